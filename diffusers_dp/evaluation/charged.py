# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the training images say of a finished model, asked once, out of `--evaluation_reserve`: numbers that a card may
carry, for they are covered by the same guarantee as the weights.

The question is one noisy sum. Each image x of class y adds three vectors to the row of its class. The first is
one-hot: what a classifier takes it for, which makes a confusion matrix. The others are its first and second moments,
`x / |x|` and `x^2 / |x^2|` over all pixels (DP-MEPF, Harder et al. 2023, section 3.2, with pixels for features). Each
of the three has norm 1, so that the sensitivity is sqrt(3). The classifier has seen drawn images only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import LedgerRow
from ..distributed.processes import Processes
from ..pipelines import DPImagePipeline
from ..privacy.sensitive import SensitiveImages
from ..privacy.stored_answers import NoisyAnswers
from ..queries.query import Query
from ..randomness.private_generator import PrivateGenerator
from ..sampling.class_balance import CLASS_SHARE
from ..sampling.seeds import generators
from .classifiers import NetworkClassifier, build_classifier
from .extractors import hash_weights
from .images import ImageSet
from .measurement import Measurement
from .selection import split_for_training


CLASSIFIER = "cnn"
MOMENTS = ("first moment distance", "second moment distance")
DRAWN_AT_A_TIME = 250
# A class of so many standard deviations of its noisy number of images: below, ratios are noise.
CLEAR = 5.0


@dataclass(frozen=True, kw_only=True)
class JudgesQuery(Query):
    """
    Confusion counts, first and second moments, a row for each true class; without classes the moments alone.

    Args:
        num_classes, synthetic_images (`int`): Of the drawn images.
    """

    name = "evaluation_reserve"
    title = "left for evaluation"

    num_classes: int
    synthetic_images: int

    @property
    def clip_norm(self) -> float:
        """Each of the two or three parts of what one image adds has norm 1."""
        return math.sqrt(3 if self.num_classes else 2)

    @property
    def facts(self) -> dict[str, Any]:
        return {"synthetic_images": self.synthetic_images}


class Judge:
    """Drawn images, what follows from them, and the question about it. All of it is post-processing of the model.

    Args:
        synthetic (`ImageSet`): Drawn from the model; with labels, a classifier is trained on them.
        seed (`int`, defaults to 0): Of that training.
        epochs (`int`, *optional*): Of that training; unset: the published number; 0: none, for an audit of the
            question alone.
        device (`str` or `torch.device`, defaults to `"cpu"`): Where it is trained.
        processes (`Processes`, *optional*): Of the run. The first one trains; the others get the same bits, for each
            adds its share to one sum of one function.
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
            self.classifier = build_classifier(
                CLASSIFIER, image_shape=(channels, height, width), seed=seed, epochs=epochs or None, device=device
            )
            assert isinstance(self.classifier, NetworkClassifier)
            if epochs != 0:
                processes.on_first(partial(self._train, train, validation))
            if epochs == 0 or not processes.is_first:
                self.classifier.prepare(train)
            processes.same_weights(self.classifier.network)

    def _train(self, train: ImageSet, validation: ImageSet) -> None:
        self.classifier.fit(train, validation)

    @property
    def query(self) -> JudgesQuery:
        """The question."""
        return JudgesQuery(num_classes=len(self.class_names), synthetic_images=len(self.synthetic))

    def ask(
        self,
        images: SensitiveImages,
        row: LedgerRow,
        ledger: PrivacyLedger,
        *,
        generator: PrivateGenerator | None = None,
    ) -> torch.Tensor:
        """The noisy sum over all images: confusion counts, first and second moments, a row for each true class.

        Args:
            images (`SensitiveImages`): With the classes of the drawn images.
            row (`LedgerRow`): With the noise multiplier.
            ledger (`PrivacyLedger`): Is written before an image is looked at.
            generator (`PrivateGenerator`, *optional*): For tests.

        Returns:
            `torch.Tensor` of shape `[classes, classes + 2 pixels]`, or `[1, 2 pixels]` without classes; float32.

        Raises:
            BudgetExceeded: The reserve is not there; nothing was asked.
        """
        answer = self.query.ask(
            images, self.features, noise_multiplier=row.noise_multiplier, ledger=ledger, generator=generator
        )
        return answer[0].cpu()

    def features(self, images: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        """Images `[b, C, H, W]` in [0, 1] to `[b, classes + 2 pixels]`, row by row."""
        parts = [_moments(images)]
        if self.class_names:
            taken_for = self.classifier.predict_one_by_one(images.mul(255).round().byte().cpu().numpy())
            one_hot = torch.nn.functional.one_hot(torch.from_numpy(taken_for), len(self.class_names))
            parts.insert(0, one_hot.to(images))
        return torch.cat(parts, dim=1)

    def measurements(self, answer: torch.Tensor, *, noise_std: float, num_units: int) -> list[Measurement]:
        """Numbers out of an answer, each with the standard error that is due to its noise: accuracies in per cent, and
        distances.

        Each class has its share of the images, which a dataset of drawn ones may be given. Distances are squared,
        between the means of real and drawn images of a class, averaged over classes; what noise and the finite number
        of drawn images add on average is taken off, so that they can fall below 0. A class whose noisy number of
        images does not stand out from the noise is left out of them and has no accuracy of its own.

        Args:
            answer (`torch.Tensor`): As `ask` returned it.
            noise_std (`float`): Standard deviation of the noise in each coordinate.
            num_units (`int`): The declared number of images (units): the divisor of the accuracy, so that one that
                cannot be read counts as wrong.
        """
        sums = answer.double().numpy()
        classes = len(self.class_names)
        facts = {
            "tested_on": "the training images, by one noisy answer", "synthetic_images": len(self.synthetic),
            "standard_error_of": "the noise of the answer",
        }  # fmt: skip
        if not classes:
            return list(self._distances([_Class(sums[0], float(num_units), 0.0, None)], noise_std, facts))
        confusion, counts = sums[:, :classes], sums[:, :classes].sum(1)
        error = noise_std * math.sqrt(classes)  # of a count, and of the trace
        judged_by = {**facts, "classifier": CLASSIFIER, "trained_on": "synthetic"}
        found = [_share(float(confusion.trace()) / num_units, error / num_units, judged_by)]
        for label, name in enumerate(self.class_names):
            found.append(_share(counts[label] / num_units, error / num_units, {**facts, "class": name}, CLASS_SHARE))
        clear = [label for label in range(classes) if counts[label] > CLEAR * error]
        for label in clear:
            rate = float(confusion[label, label] / counts[label])
            spread = noise_std * math.sqrt((1 - rate) ** 2 + rate**2 * (classes - 1)) / counts[label]
            found.append(_share(rate, float(spread), {**judged_by, "class": self.class_names[label]}))
        parts = [_Class(sums[label, classes:], float(counts[label]), error, label) for label in clear]
        return found + list(self._distances(parts, noise_std, facts))

    def _distances(self, parts: "list[_Class]", noise_std: float, facts: dict[str, Any]) -> list[Measurement]:
        if not parts:
            return []
        found, drawn = [], [self._drawn(each.label) for each in parts]
        for part, name in enumerate(MOMENTS):
            values = [each.distance(moments, part, noise_std) for each, moments in zip(parts, drawn, strict=True)]
            value, variance = np.sum(values, axis=0)
            protocol = {**facts, "features": "pixels, scaled to norm 1 in each image", "classes": len(parts)}
            found.append(
                Measurement(name, float(value) / len(parts), protocol, math.sqrt(float(variance)) / len(parts))
            )
        return found

    def _drawn(self, label: int | None) -> np.ndarray:
        """Moments of the drawn images of a class, or of all."""
        images = self.synthetic.images if label is None else self.synthetic.images[self.synthetic.labels == label]
        return _moments(torch.from_numpy(images).double() / 255).numpy()


def _share(share: float, error: float, protocol: dict[str, Any], metric: str = "accuracy") -> Measurement:
    """In per cent. Noise can carry a share out of [0, 1], where it is brought back."""
    return Measurement(metric, 100 * float(min(max(share, 0.0), 1.0)), {**protocol, "unit": "%"}, 100 * error)


@dataclass(frozen=True)
class _Class:
    """The noisy moments of one class: sums `[2 pixels]`, the noisy number of images with its standard deviation, and
    which class it is."""

    sums: np.ndarray
    count: float
    count_error: float
    label: int | None

    def distance(self, drawn: np.ndarray, part: int, noise_std: float) -> tuple[float, float]:
        """Squared distance of the means, without what noise and the number of drawn images add on average, and the
        variance of the noise."""
        pixels = len(self.sums) // 2
        where = slice(part * pixels, (part + 1) * pixels)
        real, drawn = self.sums[where] / self.count, drawn[:, where]
        difference = real - drawn.mean(0)
        std, count_std = noise_std / self.count, self.count_error / self.count  # of a coordinate; of the divisor
        by_noise = pixels * std**2
        length = float(difference @ difference) - by_noise - count_std**2 * float(real @ real)
        along = (float(difference @ real) - by_noise) * count_std
        variance = 4 * std**2 * max(length, 0.0) + 4 * along**2 + 2 * pixels * std**4
        return length - float(drawn.var(0, ddof=1).sum()) / len(drawn), variance


def charged_evaluation(
    pipeline: DPImagePipeline,
    images: SensitiveImages,
    row: LedgerRow,
    ledger: PrivacyLedger,
    answers: NoisyAnswers,
    *,
    num_images: int,
    num_inference_steps: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Draws images, trains a classifier on them, asks once what the training images say, and returns numbers that may
    be published.

    Args:
        pipeline (`DPImagePipeline`): The finished model.
        images (`SensitiveImages`): The images that it was trained on.
        row (`LedgerRow`): What was reserved.
        ledger (`PrivacyLedger`): Of the run.
        answers (`NoisyAnswers`): Keeps the answer, so that a run which resumes does not ask again.
        num_images (`int`): To draw, at least two of each class.
        num_inference_steps, seed (`int`): Of drawing; the seed also of the classifier.

    Returns:
        `list[dict]`: As `Measurement.as_json` has them; empty if the reserve was spent on an answer that was lost, or
            on another state of the model, before the run went on from an earlier checkpoint.

    Raises:
        BudgetExceeded: The reserve is not there.
    """
    processes = images.processes  # they share what is drawn, and each asks its own share of the images
    digest = processes.on_first(lambda: hash_weights(pipeline.unet))
    weights = torch.frombuffer(bytearray.fromhex(digest), dtype=torch.uint8)
    stored = answers.get(row, ledger)
    spent = any(earlier["stage"] == row.name for earlier in ledger.rows)
    if spent and (stored is None or not torch.equal(stored["weights"], weights)):
        processes.print(
            "The reserve for evaluation was spent before an interruption, on an answer that was lost or is about "
            "another state of the model: this release carries no charged numbers."
        )
        return []
    processes.print(
        f"The question about the finished model: {num_images} images are drawn, and a small CNN is trained on them."
    )
    drawn = drawn_images(
        pipeline,
        num_images=num_images,
        num_inference_steps=num_inference_steps,
        seed=seed,
        processes=processes,
    )
    judge = Judge(drawn, seed=seed, device=pipeline.device, processes=processes)
    stored = answers.ask(row, ledger, lambda: {"answer": judge.ask(images, row, ledger), "weights": weights})
    noise_std = row.noise_multiplier * judge.query.clip_norm
    found = judge.measurements(stored["answer"], noise_std=noise_std, num_units=images.num_units)
    return [each.as_json() for each in found]


def drawn_images(
    pipeline: DPImagePipeline,
    *,
    num_images: int,
    num_inference_steps: int,
    seed: int,
    processes: Processes | None = None,
) -> ImageSet:
    """Images of a model in 8 bits; classes take turns. Several processes share the batches, and all get all: the
    images of one process, for each has its own noise."""
    processes = processes or Processes()
    labels = None if pipeline.num_classes is None else torch.arange(num_images) % pipeline.num_classes
    batches = [range(i, min(i + DRAWN_AT_A_TIME, num_images)) for i in range(0, num_images, DRAWN_AT_A_TIME)]
    with processes.bar(total=num_images, desc="Drawing for the evaluation", unit="image") as bar:

        def draw(batch: range) -> np.ndarray:
            images = pipeline(
                batch_size=len(batch),
                class_labels=None if labels is None else labels[batch.start : batch.stop],
                generator=generators(seed, batch),
                num_inference_steps=num_inference_steps,
                output_type="pt",
            ).images.cpu()
            bar.update(min(len(batch) * processes.count, num_images - bar.n))  # the others are as far
            return images.mul(255).round().byte().numpy()

        images = np.concatenate(processes.share(draw, batches))
    if labels is None:
        return ImageSet(images)
    names = {int(key): str(value) for key, value in (pipeline.config.id2label or {}).items()}
    return ImageSet(images, labels.numpy(), tuple(names.get(i, str(i)) for i in range(pipeline.num_classes or 0)))


def _moments(images: torch.Tensor) -> torch.Tensor:
    """Images `[b, C, H, W]` in [0, 1] to `[b, 2 pixels]`: `x / |x|` and `x^2 / |x^2|`; zeros of a black image."""
    pixels = images.flatten(1)
    return torch.cat([torch.nn.functional.normalize(power, dim=1) for power in (pixels, pixels.square())], dim=1)
