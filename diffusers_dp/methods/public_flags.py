# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Flags of images that everybody may see, and of what a model learns from them before DP-SGD. No torch."""

import os
from dataclasses import dataclass
from pathlib import Path

from ..data.decoding import ValueRange
from ..data.folders import class_folders
from ..data.records import DataSource
from ..randomness.timestep_mixture import TimestepMixture
from .data_flags import CLASSES
from .flag import expert, flag, split_list
from .flag_groups import TIMES, TimesOfRows
from .flags import DPSGDConfig, PublicTraining


@dataclass
class PublicDataFlags:
    """Images that everybody may see."""

    _argument_group_name = "public images"

    public_dataset_name: str | None = flag(
        None, "Hub id or local folder of public images, other than the sensitive ones.",
        place=True, excludes=("public_data_dir",),
    )  # fmt: skip
    public_data_dir: str | None = flag(
        None, "Folder of public images in its place, with one folder of images per class.", place=True
    )
    public_image_column: str = flag(
        "image", "Column of --public_dataset_name that holds the images.", rare=True, only_with="public_dataset_name"
    )
    public_class_names: str | None = flag(
        None, "Their label set; unset: that of their metadata or folders.", rare=True, **CLASSES
    )

    @property
    def names_public_images(self) -> bool:
        """Whether public images are named."""
        return bool(self.public_places)

    @property
    def public_places(self) -> dict[str, str]:
        """Where public images are, by their flags."""
        places = {"public_dataset_name": self.public_dataset_name, "public_data_dir": self.public_data_dir}
        return {name: place for name, place in places.items() if place is not None}

    def public_source(
        self, image_shape: tuple[int, int, int], max_image_pixels: int, value_range: ValueRange | None
    ) -> DataSource:
        """Where they are; the embedded digits, where none are named. Where their classes are not declared, the
        folders of `--public_data_dir` are they.

        Args:
            image_shape (`tuple[int, int, int]`): (C, H, W) to which they are brought.
            max_image_pixels (`int`), value_range (`tuple[float, float]`, *optional*): See the flags.
        """
        names = None if self.public_class_names is None else split_list(self.public_class_names)
        if self.public_data_dir is not None and names is None:
            folder = Path(os.path.expanduser(self.public_data_dir))  # a folder that is not there is refused later
            names = class_folders(folder, "public_data_dir") if os.path.isdir(folder) else ()
        return DataSource(
            dataset_name=self.public_dataset_name, train_data_dir=self.public_data_dir,
            image_column=self.public_image_column, class_names=names, image_shape=image_shape,
            max_image_pixels=max_image_pixels, value_range=value_range, own_files=True,
        )  # fmt: skip


@dataclass
class PretrainedFlags:
    """A public model to begin with."""

    _argument_group_name = "pre-trained pipeline"

    pretrained_model_name_or_path: str | None = flag(
        None,
        "Hub id or folder of a public pipeline of a UNet2DModel (safetensors) to begin with, or for --generator "
        "pipeline.",
        place=True, excludes=("public_dataset_name", "public_data_dir"),
    )  # fmt: skip
    pretrained_model_revision: str | None = flag(
        None, "Branch, tag or commit of it on the Hub.", rare=True, needs=("pretrained_model_name_or_path",)
    )


@dataclass
class PretrainingFlags:
    """What the model learns from public images, before a sensitive one is read."""

    _argument_group_name = "public pre-training"

    public_steps: int = flag(400, "Pre-training steps on the public images.")
    public_batch_size: int = expert(128, "Batch size of the pre-training.")
    public_learning_rate: float = expert(1e-3, "Learning rate of the pre-training.")
    public_lr_warmup_steps: int = expert(0, "Steps in which it rises to that from 0.", at_least=0)
    public_timestep_mixture: str | None = expert(
        None, "timestep_mixture of the pre-training; unset: the same.", **TIMES
    )


@dataclass
class LearnsPublicImages(PublicDataFlags, PretrainingFlags, TimesOfRows, DPSGDConfig):
    """Of a model that may learn from public images before DP-SGD."""

    @property
    def public_training(self) -> PublicTraining | None:
        """What the model learns from public images, where flags name some."""
        if not self.names_public_images:
            return None
        mixture = self.public_timestep_mixture
        return PublicTraining(
            self.public_source(self.image_shape, self.max_image_pixels, self.declared_range),
            self.public_steps, self.public_batch_size, self.public_learning_rate, self.public_lr_warmup_steps,
            self.mixture if mixture is None else TimestepMixture.parse(mixture),
        )  # fmt: skip
