# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Downstream classifiers with their published training: DPDM's (`logreg`, `mlp`, `cnn`) and DPImageBench's (`wrn`,
`resnet`, `resnext`).

Pixels are scaled to [-1, 1], without augmentation. A seed determines all random numbers, so a fit on a CPU is
reproducible bit by bit with the same number of threads.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers.training_utils import EMAModel
from torch import nn
from tqdm.auto import tqdm

from ..errors import UsageError
from .images import ImageSet
from .networks import Training, build_network, training_of


SCORING_BATCH_SIZE = 500
# The first 55,000 of 60,000 synthetic images, in a fixed shuffle, are for training, the rest for validation.
TRAIN_SHARE = (55_000, 60_000)
SHUFFLE_SEED = 0

# DPDM's MLP. DPDM's budget for logistic regression does not suit a convex problem, so ours is lbfgs's default.
MLP_HIDDEN, MLP_LEARNING_RATE, MLP_BATCH_SIZE, MLP_EPOCHS = 100, 3e-4, 128, 50
LOGREG_ITERATIONS = 100


def split_for_training(images: ImageSet, size: int | None = None) -> tuple[ImageSet, ImageSet]:
    """Splits images for training and validation, as DPImageBench splits synthetic ones: shuffles by a fixed seed, then
    takes the first 55,000 and the rest. Fewer than 60,000 are split 11 to 1.

    Args:
        size (`int`, *optional*): Number of images to use, the first of the shuffle; these are split 11 to 1 even if
            there are more than 60,000.
    """
    train, whole = TRAIN_SHARE
    count = len(images) if size is None else size
    order = np.random.default_rng(SHUFFLE_SEED).permutation(len(images))[:count]
    first = train if size is None and count >= whole else max(1, count * train // whole)
    return images.subset(order[:first]), images.subset(order[first:])


class Classifier:
    """Fits labelled images epoch by epoch, with a choice of the state to use, then scores others.

    Attributes:
        protocol (`dict`): All settings that determine the fit, besides the images: JSON values.
        repeatable (`bool`): Whether the fit does not depend on the seed.
        epochs (`int`): Number of passes over the training images.
    """

    repeatable = False
    epochs: int

    def __init__(self, name: str, seed: int, **protocol: Any):
        self.name = name
        self.seed = seed
        self.protocol = {"classifier": name, **protocol}

    def fit(self, train: ImageSet, validation: ImageSet | None = None) -> "Classifier":
        """Fits the classifier.

        Args:
            train (`ImageSet`): Labelled training images.
            validation (`ImageSet`, *optional*): Validation images that choose the epoch: the most accurate one, or the
                last of several. By default the last epoch is used.
        """
        required_labels(train)
        self.num_classes = num_classes_of(train)
        if train.probabilities is not None:
            self.protocol["classifier"] = f"{self.name} on soft labels"
        best, most_right = None, -1
        epochs = tqdm(
            self._train(train), total=self.epochs, desc=f"{self.name} (seed {self.seed})", unit="epoch", leave=False
        )
        for epoch, _ in enumerate(epochs, start=1):
            right = 0
            if validation is not None:
                soft = validation.probabilities
                wanted = validation.labels if soft is None else soft.argmax(1)
                right = int((self.predict(validation.images) == wanted).sum())
            if right >= most_right and (validation is not None or epoch == self.epochs):
                # The last of equally good epochs, as published.
                best, most_right, self.protocol["chosen_epoch"] = self._state(), right, epoch
        self._load(best)
        return self

    def scores(self, images: np.ndarray) -> np.ndarray:
        """Computes probabilities, float64, `[n, classes]`, of images of uint8, `[n, C, H, W]`."""
        raise NotImplementedError

    def _train(self, train: ImageSet) -> Iterator[None]:
        """Trains; yields after each epoch in the state to score."""
        raise NotImplementedError

    def _state(self) -> Any:
        """Copies the state that `scores` needs."""
        raise NotImplementedError

    def _load(self, state: Any) -> None:
        """Loads a state for scoring."""
        raise NotImplementedError

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Predicts the most probable class, int64, shape `[n]`."""
        return self.scores(images).argmax(1)

    def predict_one_by_one(self, images: np.ndarray) -> np.ndarray:
        """The same of each image in a batch of one, for sums of sensitive images: rounding beside others could flip
        it."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(self.predict(image[None]) for image in images)])


class LogisticRegressionClassifier(Classifier):
    """Multinomial logistic regression on pixels, without epochs to choose from; it does not depend on the seed."""

    repeatable = True

    def __init__(self, *, seed: int = 0):
        super().__init__("logreg", seed, solver="lbfgs", most_iterations=LOGREG_ITERATIONS, inverse_penalty=1.0)

    def fit(self, train: ImageSet, validation: ImageSet | None = None) -> "Classifier":
        from sklearn.dummy import DummyClassifier  # takes half a second, which training scripts do not need
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        labels = required_labels(train)
        self.num_classes = num_classes_of(train)
        self.model = LogisticRegression(max_iter=LOGREG_ITERATIONS)
        if len(np.unique(labels)) == 1:  # nothing to separate
            self.model = DummyClassifier(strategy="most_frequent")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the budget is fixed
            self.model.fit(_flat(train.images), labels)
        return self

    def scores(self, images: np.ndarray) -> np.ndarray:
        scores = np.zeros((len(images), self.num_classes))
        scores[:, self.model.classes_] = self.model.predict_proba(_flat(images))  # 0 for classes without images
        return scores


class PerceptronClassifier(Classifier):
    """An MLP on pixels with one hidden layer, as in DPDM."""

    def __init__(self, *, seed: int = 0, epochs: int | None = None):
        self.epochs = MLP_EPOCHS if epochs is None else epochs
        super().__init__(
            "mlp", seed, epochs=self.epochs, hidden=MLP_HIDDEN, optimizer="adam", learning_rate=MLP_LEARNING_RATE,
            batch_size=MLP_BATCH_SIZE,
        )  # fmt: skip

    def _train(self, train: ImageSet) -> Iterator[None]:
        from sklearn.neural_network import MLPClassifier

        pixels, classes = _flat(train.images), np.arange(self.num_classes)
        self.model = MLPClassifier(
            (MLP_HIDDEN,), alpha=0.0, learning_rate_init=MLP_LEARNING_RATE,
            batch_size=min(MLP_BATCH_SIZE, len(train)),
            random_state=np.random.RandomState(self.seed),  # an integer would shuffle all epochs identically
        )  # fmt: skip
        for _ in range(self.epochs):
            self.model.partial_fit(pixels, train.labels, classes=classes)
            yield

    def _state(self) -> Any:
        return [array.copy() for array in (*self.model.coefs_, *self.model.intercepts_)]

    def _load(self, state: Any) -> None:
        half = len(state) // 2
        self.model.coefs_, self.model.intercepts_ = state[:half], state[half:]

    def scores(self, images: np.ndarray) -> np.ndarray:
        return self.model.predict_proba(_flat(images)).astype(np.float64)


class NetworkClassifier(Classifier):
    """A torch network, trained according to `training`.

    Args:
        name (`str`): Name for the protocol.
        build (`Callable`): Function of image shape (C, H, W) and number of classes that builds the network.
        training (`Training`): Settings of the training.
        seed (`int`, defaults to 0): Seed of the initial weights, the order of images and dropout.
        device (`str` or `torch.device`, defaults to `"cpu"`): Device of training and scoring.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[tuple[int, int, int], int], nn.Module],
        training: Training,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ):
        super().__init__(name, seed, **asdict(training))
        self.build, self.training, self.device = build, training, torch.device(device)
        self.epochs = training.epochs

    def fit(self, train: ImageSet, validation: ImageSet | None = None) -> "Classifier":
        epochs = math.ceil(self.training.fewest_steps / math.ceil(len(train) / self.training.batch_size))
        if epochs > self.epochs:
            self.epochs, self.training = epochs, self.training.with_epochs(epochs)
            self.protocol |= asdict(self.training)
        return super().fit(train, validation)

    def prepare(self, train: ImageSet) -> "NetworkClassifier":
        """Builds the untrained network for these images."""
        channels, height, width = train.images.shape[1:]
        self.num_classes = num_classes_of(train)
        with self._seeded(0):
            network = self.build((channels, height, width), self.num_classes)
        # A quarter faster on a CPU; torch's stubs lack this argument.
        self.network = network.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self

    def _train(self, train: ImageSet) -> Iterator[None]:
        self.prepare(train)
        self.protocol["parameters"] = sum(p.numel() for p in self.network.parameters())
        images = torch.from_numpy(train.images).to(self.device)
        labels = torch.from_numpy(required_labels(train) if train.probabilities is None else train.probabilities)
        labels = labels.to(self.device)
        optimizer = self._optimizer()
        step_epochs = self.training.step_epochs or self.epochs
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_epochs, self.training.step_factor)
        ema = EMAModel(self.network.parameters(), decay=self.training.ema_decay, foreach=True)
        for epoch in range(1, self.epochs + 1):
            with self._seeded(epoch):
                self._epoch(images, labels, optimizer, ema)
            schedule.step()
            ema.store(self.network.parameters())
            ema.copy_to(self.network.parameters())
            yield
            ema.restore(self.network.parameters())

    def _epoch(
        self, images: torch.Tensor, labels: torch.Tensor, optimizer: torch.optim.Optimizer, ema: EMAModel
    ) -> None:
        self.network.train()
        for batch in torch.randperm(len(images)).to(self.device).split(self.training.batch_size):
            optimizer.zero_grad()
            for part in batch.chunk(self.training.micro_batches):
                loss = F.cross_entropy(self.network(_scaled(images[part])), labels[part], reduction="sum")
                (loss / len(batch)).backward()
            optimizer.step()
            ema.step(self.network.parameters())

    def _optimizer(self) -> torch.optim.Optimizer:
        plan, parameters = self.training, self.network.parameters()
        if plan.optimizer == "adam":
            return torch.optim.Adam(parameters, plan.learning_rate)
        return torch.optim.SGD(parameters, plan.learning_rate, plan.momentum, weight_decay=plan.weight_decay)

    @contextlib.contextmanager
    def _seeded(self, stage: int) -> Iterator[None]:
        """Seeds torch by the seed and the stage, and restores the random state afterwards."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(int(np.random.SeedSequence([self.seed, stage]).generate_state(1)[0]))
            yield

    def _state(self) -> Any:
        return {name: value.to("cpu", copy=True) for name, value in self.network.state_dict().items()}

    def _load(self, state: Any) -> None:
        self.network.load_state_dict(state)

    def to(self, device: torch.device) -> None:
        """Moves the trained network."""
        self.network, self.device = self.network.to(device), device

    def scores(self, images: np.ndarray) -> np.ndarray:
        return network_scores(self.network, images, self.device)


def build_classifier(
    name: str,
    *,
    image_shape: tuple[int, int, int],
    seed: int = 0,
    epochs: int | None = None,
    cifar: bool = False,
    device: torch.device | str = "cpu",
) -> Classifier:
    """Builds a classifier by name, with its published training.

    Args:
        name (`str`): One of `flags.CLASSIFIERS`.
        image_shape (`tuple[int, int, int]`): (C, H, W); from a side of 64 pixels, batches pass DPImageBench's networks
            in parts.
        epochs (`int`, *optional*): Number of epochs instead of the default; not for `logreg`.
        cifar (`bool`, defaults to `False`): Whether to use the networks and training published for CIFAR-10 and
            CIFAR-100.
    """
    if name == "logreg":
        return LogisticRegressionClassifier(seed=seed)
    if name == "mlp":
        return PerceptronClassifier(seed=seed, epochs=epochs)

    def build(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
        return build_network(name, shape, num_classes, cifar=cifar)

    return NetworkClassifier(
        name, build, training_of(name, image_shape, epochs, cifar=cifar), seed=seed, device=device
    )


def network_scores(network: nn.Module, images: np.ndarray, device: torch.device | str = "cpu") -> np.ndarray:
    """Computes probabilities, float64, `[n, classes]`, of images of uint8, `[n, C, H, W]`, with the network in
    evaluation mode."""
    network.eval()
    with torch.no_grad():
        parts = torch.from_numpy(images).split(SCORING_BATCH_SIZE)
        logits = [network(_scaled(part.to(device))).double().cpu() for part in parts]
    return torch.cat(logits).softmax(1).numpy()


def num_classes_of(images: ImageSet) -> int:
    """Returns the number of declared classes, or the largest label plus one."""
    return int(required_labels(images).max()) + 1 if images.class_names is None else len(images.class_names)


def required_labels(images: ImageSet) -> np.ndarray:
    """Returns the labels of images that must be labelled.

    Raises:
        UsageError: There are no labels.
    """
    if images.labels is None:
        raise UsageError("A classifier needs labelled images: name their column with --label_column.")
    return images.labels


def _scaled(images: torch.Tensor) -> torch.Tensor:
    return images.float().contiguous(memory_format=torch.channels_last) / 127.5 - 1


def _flat(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1).astype(np.float32) / 127.5 - 1
