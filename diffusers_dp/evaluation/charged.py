# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Evaluation of a finished model on the training images by one query, paid from `--evaluation_reserve`. A card may
contain its numbers because the same guarantee covers them and the weights.

The query is one noisy sum. Each image x of class y adds three vectors to the row of its class. The first is one-hot: a
classifier's prediction, which gives a confusion matrix. The others are the first and second moments, `x / |x|` and
`x^2 / |x^2|` over all pixels (DP-MEPF, Harder et al. 2023, section 3.2, with pixels as features). Each of the three
has norm 1, so the sensitivity is sqrt(3). The classifier was trained on drawn images only.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ..accounting.ledger_row import LedgerRow
from ..distributed.processes import Processes
from ..pipelines import DPImagePipeline
from ..privacy.sensitive import SensitiveImages
from ..privacy.stored_answers import NoisyAnswers
from ..queries.judgement import JudgesQuery
from ..queries.perceptual import hash_weights
from ..sampling.drawing import CLASS_SHARE, Drawing, class_names, draw_shared
from .classifiers import NetworkClassifier, build_classifier, split_for_training
from .images import ImageSet
from .measurement import Measurement


CLASSIFIER = "cnn"
MOMENTS = ("first moment distance", "second moment distance")
# Minimum noisy number of images of a class, in its standard deviations; below, ratios are noise.
CLEAR = 5.0

_Part = tuple[int | None, np.ndarray, float]  # a class, its noisy sums of moments, and its noisy number of images


class Judge:
    """Drawn images, a classifier and moments computed from them, and the query. All of it is post-processing of the
    model.

    Args:
        synthetic (`ImageSet`): Images drawn from the model; with labels, a classifier is trained on them.
        seed (`int`, defaults to 0): Seed of the training.
        epochs (`int`, *optional*): Epochs of the training; defaults to the published number; 0 trains nothing, for an
            audit of the query.
        device (`str` or `torch.device`, defaults to `"cpu"`): Device of the training.
        processes (`Processes`, *optional*): Processes of the run. The first one trains; the others get the same bits,
            because all add their shares to one sum of one function.
    """

    def __init__(
        self,
        synthetic: ImageSet,
        *,
        seed: int = 0,
        epochs: int | None = None,
        device: torch.device | str = "cpu",
        processes: Processes | None = None,
    ):
        self.synthetic = synthetic
        self.class_names: Sequence[str] = synthetic.class_names or ()
        if self.class_names:
            processes = processes or Processes()
            train, validation = split_for_training(synthetic)
            channels, height, width = synthetic.images.shape[1:]
            classifier = build_classifier(
                CLASSIFIER, image_shape=(channels, height, width), seed=seed, epochs=epochs or None, device=device
            )
            assert isinstance(classifier, NetworkClassifier)
            self.classifier = classifier
            if epochs != 0:
                processes.on_first(partial(self._train, train, validation))
            if epochs == 0 or not processes.is_first:
                self.classifier.prepare(train)
            processes.same_weights(self.classifier.network)

    def _train(self, train: ImageSet, validation: ImageSet) -> None:
        self.classifier.fit(train, validation)

    @property
    def query(self) -> JudgesQuery:
        """The query."""
        return JudgesQuery(num_classes=len(self.class_names), synthetic_images=len(self.synthetic))

    def ask(self, images: SensitiveImages, row: LedgerRow) -> torch.Tensor:
        """The noisy sum over all images: confusion counts, first and second moments, a row for each true class.

        Args:
            images (`SensitiveImages`): With the classes of the drawn images.
            row (`LedgerRow`): With the noise multiplier.

        Returns:
            `torch.Tensor` of shape `[classes, classes + 2 pixels]`, or `[1, 2 pixels]` without classes; float32.

        Raises:
            BudgetExceeded: The reserve is spent; nothing was asked.
        """
        return self.query.ask(images, self.features, noise_multiplier=row.noise_multiplier)[0].cpu()

    def features(self, images: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        """Maps images `[b, C, H, W]` in [0, 1] to features `[b, classes + 2 pixels]`, row by row."""
        parts = [_moments(images)]
        if self.class_names:
            self.classifier.to(images.device)
            taken_for = self.classifier.predict_one_by_one(images.mul(255).round().byte().cpu().numpy())
            one_hot = torch.nn.functional.one_hot(torch.from_numpy(taken_for), len(self.class_names))
            parts.insert(0, one_hot.to(images))
        return torch.cat(parts, dim=1)

    def measurements(self, answer: torch.Tensor, *, noise_std: float, num_units: int) -> list[Measurement]:
        """Computes numbers from an answer, each with the standard error of its noise: accuracies in per cent, and
        distances.

        Each class also gets its share of the images, which a dataset of drawn images can use. Distances are squared
        distances between the means of real and drawn images of a class, averaged over classes. The average
        contributions of noise and of the finite number of drawn images are subtracted, so distances can be negative. A
        class whose noisy number of images is within the noise is left out and has no accuracy.

        Args:
            answer (`torch.Tensor`): Answer from `ask`.
            noise_std (`float`): Standard deviation of the noise in each coordinate.
            num_units (`int`): Declared number of images (units). It is the divisor of the accuracy, so that unreadable
                images count as wrong.
        """
        sums = answer.double().numpy()
        classes = len(self.class_names)
        facts = {
            "tested_on": "the training images, by one noisy answer", "synthetic_images": len(self.synthetic),
            "standard_error_of": "the noise of the answer",
        }  # fmt: skip
        if not classes:
            return self._distances([(None, sums[0], float(num_units))], 0.0, noise_std, facts)
        confusion, counts = sums[:, :classes], sums[:, :classes].sum(1)
        error = noise_std * math.sqrt(classes)  # standard deviation of a count, and of the trace
        judged_by = {**facts, "classifier": CLASSIFIER, "trained_on": "synthetic"}
        found = [_share(float(confusion.trace()) / num_units, error / num_units, judged_by)]
        for label, name in enumerate(self.class_names):
            found.append(_share(counts[label] / num_units, error / num_units, {**facts, "class": name}, CLASS_SHARE))
        clear = [label for label in range(classes) if counts[label] > CLEAR * error]
        for label in clear:
            rate = float(confusion[label, label] / counts[label])
            spread = noise_std * math.sqrt((1 - rate) ** 2 + rate**2 * (classes - 1)) / counts[label]
            found.append(_share(rate, float(spread), {**judged_by, "class": self.class_names[label]}))
        parts = [(label, sums[label, classes:], float(counts[label])) for label in clear]
        return found + self._distances(parts, error, noise_std, facts)

    def _distances(
        self, parts: Sequence[_Part], error: float, noise_std: float, facts: dict[str, Any]
    ) -> list[Measurement]:
        """Averages the distances of classes, whose numbers of images have the standard deviation `error`."""
        totals, synthetic = np.zeros((2, 2)), self.synthetic
        for label, sums, count in parts:
            images = synthetic.images if label is None else synthetic.images[synthetic.labels == label]
            drawn = _moments(torch.from_numpy(images).double() / 255).numpy()
            pairs = zip(np.split(sums, 2), np.split(drawn, 2, axis=1), strict=True)
            totals += [_distance(real / count, moments, error / count, noise_std / count) for real, moments in pairs]
        protocol = {**facts, "features": "pixels, scaled to norm 1 in each image", "classes": len(parts)}
        return [
            Measurement(name, value / len(parts), protocol, math.sqrt(variance) / len(parts))
            for name, (value, variance) in zip(MOMENTS, totals.tolist(), strict=True) if parts
        ]  # fmt: skip


def _distance(real: np.ndarray, drawn: np.ndarray, count_std: float, std: float) -> tuple[float, float]:
    """Computes the squared distance of the means, without the average contributions of noise and of the number of
    drawn images, and the variance of the noise.

    Args:
        real, drawn (`np.ndarray`, shapes `[pixels]` and `[n, pixels]`): Noisy mean of a class, and moments of drawn
            images.
        count_std, std (`float`): Relative standard deviation of the number of images, and that of a coordinate.
    """
    difference, by_noise = real - drawn.mean(0), len(real) * std**2
    length = float(difference @ difference) - by_noise - count_std**2 * float(real @ real)
    along = (float(difference @ real) - by_noise) * count_std
    variance = 4 * std**2 * max(length, 0.0) + 4 * along**2 + 2 * len(real) * std**4
    return length - float(drawn.var(0, ddof=1).sum()) / len(drawn), variance


def _share(share: float, error: float, protocol: dict[str, Any], metric: str = "accuracy") -> Measurement:
    """Builds a share in per cent, clipped to [0, 1] because of the noise."""
    return Measurement(metric, 100 * float(min(max(share, 0.0), 1.0)), {**protocol, "unit": "%"}, 100 * error)


def charged_evaluation(
    pipeline: DPImagePipeline, images: SensitiveImages, row: LedgerRow, answers: NoisyAnswers, drawing: Drawing
) -> list[dict[str, Any]]:
    """Draws images, trains a classifier on them, asks the training images once, and returns publishable numbers.

    Args:
        pipeline (`DPImagePipeline`): The finished model.
        images (`SensitiveImages`): The images that it was trained on.
        row (`LedgerRow`): What was reserved.
        answers (`NoisyAnswers`): Keeps the answer, so that a run which resumes does not ask again.
        drawing (`Drawing`): Images to draw, at least two of each class; the classifier has their seed.

    Returns:
        `list[dict]`: Measurements from `Measurement.as_json`. The list is empty if the reserve was spent on a lost
            answer which the budget does not cover again, or on another state of the model before
            the run resumed from an earlier checkpoint.

    Raises:
        BudgetExceeded: The reserve is spent.
    """
    processes = images.processes  # they share the drawing, and each asks its share of the images
    digest = processes.on_first(lambda: hash_weights(pipeline.unet))
    weights = torch.frombuffer(bytearray.fromhex(digest), dtype=torch.uint8)
    ledger = images.ledger
    stored = answers.get(row, ledger)
    lost = stored is None and any(earlier["stage"] == row.name for earlier in ledger.rows)
    if lost and ledger.over_budget([row]) or stored is not None and not torch.equal(stored["weights"], weights):
        processes.print(
            "The reserve for evaluation was spent before an interruption, on an answer that was lost or is about "
            "another state of the model: this release carries no charged numbers."
        )
        return []
    processes.print(
        f"The query about the finished model: {drawing.num_images} images are drawn, and a small CNN is trained on "
        "them."
    )
    drawn = drawn_images(pipeline, drawing, processes)
    judge = Judge(drawn, seed=drawing.seed, device=pipeline.device, processes=processes)
    stored = answers.ask(row, ledger, lambda: {"answer": judge.ask(images, row), "weights": weights})
    noise_std = row.noise_multiplier * judge.query.clip_norm
    found = judge.measurements(stored["answer"], noise_std=noise_std, num_units=images.num_units)
    return [each.as_json() for each in found]


def drawn_images(pipeline: DPImagePipeline, drawing: Drawing, processes: Processes) -> ImageSet:
    """Draws 8-bit images of a model; classes alternate. Processes share the batches, and each gets all images. These
    are those of a single process, because each image has its own noise."""
    images = draw_shared(pipeline, drawing, processes, "Drawing for the evaluation")
    names = class_names(pipeline)
    if names is None:
        return ImageSet(images)
    labels = drawing.labels_of(range(drawing.num_images), len(names))
    return ImageSet(images, np.array(labels, dtype=np.int64), tuple(names))


def _moments(images: torch.Tensor) -> torch.Tensor:
    """Maps images `[b, C, H, W]` in [0, 1] to `[b, 2 pixels]`: `x / |x|` and `x^2 / |x^2|`, or 0 for black images."""
    pixels = images.flatten(1)
    return torch.cat([torch.nn.functional.normalize(power, dim=1) for power in (pixels, pixels.square())], dim=1)
