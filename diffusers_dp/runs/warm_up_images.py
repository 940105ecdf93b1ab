# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Batches of images that warm a model up: made from noisy answers, so that they may be drawn from as long as one
likes."""

import numpy as np
import torch

from ..data.public_images import PublicImages
from ..models.augmentation import AugmentationBag
from ..models.feature_generator import FeatureGenerator
from ..models.one_step import DDIMGenerator, generate
from ..queries.central_images import restore_central_images


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
