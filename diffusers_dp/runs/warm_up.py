# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Training that reads nothing private: on public images, and on images made from noisy answers,
which may be drawn from as long as one likes.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel

from ..data.public_images import PublicImages
from ..distributed.processes import Processes
from ..models.augmentation import AugmentationBag
from ..models.denoiser import Denoiser, TrainingLoss, in_mixed_precision
from ..models.feature_generator import FeatureGenerator, frequency_matching_loss
from ..models.one_step import DDIMGenerator, OneStepGenerator, generate
from ..queries.central_images import restore_central_images
from ..schedulers.scheduling_frequency_warmup import FrequencyWarmupScheduler


Batch = tuple[torch.Tensor, torch.Tensor | None]


class CentralImages:
    """Batches of augmented noisy central images and their labels.

    Args:
        noisy (`torch.Tensor` of shape `[num_images, classes, C, h, w]`): The answer.
        image_shape (`tuple[int, int, int]`): (C, H, W) to which they are restored.
        seed (`int`): Public, of the augmentations.
    """

    def __init__(self, noisy: torch.Tensor, image_shape: tuple[int, int, int], seed: int):
        repeats, classes = noisy.shape[:2]
        self.images = restore_central_images(noisy.flatten(0, 1), image_shape)
        self.labels = torch.arange(classes).repeat(repeats)
        self.augment = AugmentationBag(np.random.default_rng(seed))

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Images `[size, C, H, W]`, uint8, drawn uniformly, and labels `[size]`."""
        index = torch.randint(len(self.images), (size,))
        return self.augment(self.images[index]), self.labels[index]


class LabelledImages:
    """Batches of images, each as likely as any other.

    Args:
        images (`torch.Tensor` of uint8, shape `[m, C, H, W]`), labels (`torch.Tensor` of int64, shape `[m]`): They
            follow from noisy answers alone.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor):
        self.images, self.labels = images, labels

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Images `[size, C, H, W]`, uint8, drawn uniformly, and labels `[size]`."""
        index = torch.randint(len(self.images), (size,))
        return self.images[index], self.labels[index]


class AuxiliaryImages(LabelledImages):
    """Batches of images of the auxiliary generator and their labels, in equal parts.

    Args:
        generator (`FeatureGenerator` or `DDIMGenerator`): Fitted to noisy frequency features.
        num_images (`int`): Drawn once.
    """

    def __init__(self, generator: FeatureGenerator | DDIMGenerator, num_images: int):
        labels = torch.arange(num_images) % generator.num_classes
        super().__init__(generate(generator, labels), labels)


class MixedImages:
    """Central images and public images as one set to pre-train on, each image as likely as any other (DP-FETA paper,
    Section 6.1).

    Public images have no label here, so that the class table is that of the sensitive images from the start, and
    central images teach it.

    Args:
        central (`CentralImages`): Central images of the sensitive ones.
        public (`PublicImages`): The others.
        null_label (`int`): The row of the class table that stands for "no label".
    """

    num_classes: int | None = None  # the public images' own play no part

    def __init__(self, central: CentralImages, public: PublicImages, null_label: int):
        self.central, self.public, self.null_label = central, public, null_label

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Images `[size, C, H, W]` in [-1, 1] and labels `[size]`."""
        count = len(self.central.images)
        num_central = int((torch.randint(count + len(self.public.images), (size,)) < count).sum())
        central, labels = self.central.batch(num_central)
        public, _ = self.public.batch(size - num_central)
        images = torch.cat([central.float() / 127.5 - 1, public])
        return images, torch.cat([labels, torch.full((len(public),), self.null_label)])


def warm_up(
    denoiser: Denoiser, loss: TrainingLoss, batch: Callable[[], Batch], *, num_steps: int,
    learning_rate: float, ema_decay: float, processes: Processes, title: str, lr_warmup_steps: int = 0,
) -> None:  # fmt: skip
    """Ordinary training with Adam. The averaged weights go on.

    Args:
        batch (`Callable`): Draws images `[b, C, H, W]`, uint8 or float32 in [-1, 1], and any labels.
        title (`str`): Title of the progress bar.
        lr_warmup_steps (`int`, defaults to 0): Steps in which the learning rate rises from 0.
    """
    denoiser = in_mixed_precision(denoiser, processes.warm_up_type)
    weights = [*denoiser.parameters()]
    optimizer = torch.optim.Adam(weights, lr=learning_rate)
    lr_scheduler = get_scheduler("constant_with_warmup", optimizer, num_warmup_steps=lr_warmup_steps)
    ema = EMAModel(weights, decay=ema_decay)
    for _ in processes.bar(range(num_steps), desc=title, unit="step"):
        images, labels = batch()
        images = images.to(weights[0].device)
        if images.dtype == torch.uint8:
            images = images.float() / 127.5 - 1
        if denoiser.unet.config.num_class_embeds is None:
            labels = None
        elif labels is None:
            labels = torch.full((len(images),), denoiser.null_label)
        optimizer.zero_grad()
        loss(denoiser, images, None if labels is None else labels.to(images.device)).mean().backward()
        processes.average_gradients(denoiser, len(images))
        optimizer.step()
        lr_scheduler.step()
        ema.step(weights)
    ema.copy_to(weights)


def curriculum_batch(
    scheduler: FrequencyWarmupScheduler, sources: Mapping[str, CentralImages | LabelledImages], processes: Processes
) -> Batch:
    """The next batch of a curriculum, in the parts that its stage takes from each source.

    Args:
        sources (`dict`): `"spatial"` and `"frequency"`, as far as the stage needs them.
    """
    counts = dict(zip(("spatial", "frequency"), scheduler.split_batch(scheduler.step()), strict=True))
    parts = [sources[name].batch(processes.part(size)) for name, size in counts.items() if size > 0]
    return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])


def fit_generator(
    generator: FeatureGenerator | DDIMGenerator | OneStepGenerator, features: Callable[[torch.Tensor], torch.Tensor],
    embedding: torch.Tensor, *, num_steps: int, batch_size: int, learning_rate: float, processes: Processes,
    loss: Callable[..., torch.Tensor] = frequency_matching_loss, after_step: Callable[[int], None] | None = None,
) -> None:  # fmt: skip
    """Fits a generator whose images' features come close to the noisy ones.

    Args:
        features (`Callable`): Images `[b, C, H, W]` in [0, 1] to features `[b, D]`.
        embedding (`torch.Tensor` of shape `[classes, D]`): The noisy answer.
        loss (`Callable`): As `frequency_matching_loss`.
        after_step (`Callable`, *optional*): Is told the number of each step that is over, from 1 on.
    """
    optimizer = torch.optim.Adam(generator.parameters(), lr=learning_rate)
    lr_scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=num_steps)
    labels = processes.rows(batch_size) % len(embedding)
    processes.same_weights(generator)
    for step in processes.bar(range(num_steps), desc="Frequency features", unit="step"):
        distance = loss(features, generator.draw(labels), labels, embedding, processes.mean_of_all)
        optimizer.zero_grad()
        distance.backward()
        processes.average_gradients(generator, len(labels))
        optimizer.step()
        lr_scheduler.step()
        if after_step is not None:
            after_step(step + 1)
    processes.same_weights(generator)  # also what batch normalisation counted
