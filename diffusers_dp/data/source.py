# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which images are meant, as a person names them: sensitive ones, public ones, or real ones to compare with."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .decoding import MAX_IMAGE_PIXELS, ValueRange
from .records import Records


class MissingSplit(UsageError):
    """The data set is there, and has no split of that name."""


@dataclass(frozen=True)
class DataSource:
    """A data set by its name, and the public facts that are declared of it. Fields are called like the flags of
    training.

    Args:
        dataset_name (`str`, *optional*): Hub id, local folder, or CSV or JSON lines file that names images.
        dataset_config_name (`str`, *optional*): Its configuration, where it has several.
        train_data_dir (`str`, *optional*): Folder of one folder of images per class, in place of `dataset_name`.
        train_split, image_column (`str`): Split and column of the data set.
        label_column, unit_column, key_column (`str`, *optional*): Class, unit and own id of each image.
        delimiter (`str`): One character between the fields of a CSV file.
        class_names (`tuple[str, ...]`, *optional*): The declared label set; unset: that of the data set.
        image_shape (`tuple[int, int, int]`): (channels, height, width) to which images are brought.
        num_train_images, num_train_units (`int`, *optional*): Declared numbers.
        validation_size (`int`): Images that are held out: each by its id, or by that of its unit.
        max_image_pixels (`int`): An image of more pixels is not decoded, and counts as damaged.
        value_range (`tuple[float, float]`, *optional*): Declared black and white of images with more than 8 bits.
        image_suffixes (`tuple[str, ...]`, *optional*): Suffixes of image files in `train_data_dir`; unset: those of
            pictures.
        num_workers (`int`, *optional*): Processes that decode; 0: none beside this one; unset: one for each core.
        declared_only (`bool`): A dry run: what is declared is all that is known, and nothing is looked at.
        own_files (`bool`): A card of `dataset_name` that names files of another place is refused, and a row that does
            has no image.
        is_untrusted (`bool`): A stranger's folder: see `untrusted_tables`, besides `own_files`.
    """

    dataset_name: str | None = None
    dataset_config_name: str | None = None
    train_data_dir: str | None = None
    train_split: str = "train"
    image_column: str = "image"
    label_column: str | None = None
    unit_column: str | None = None
    key_column: str | None = None
    delimiter: str = ","
    class_names: tuple[str, ...] | None = None
    image_shape: tuple[int, int, int] = (1, 8, 8)
    num_train_images: int | None = None
    num_train_units: int | None = None
    validation_size: int = 0
    max_image_pixels: int = MAX_IMAGE_PIXELS
    value_range: ValueRange | None = None
    image_suffixes: tuple[str, ...] | None = None
    num_workers: int | None = None
    declared_only: bool = False
    own_files: bool = False
    is_untrusted: bool = False

    @property
    def id_column(self) -> str | None:
        """The column that has the ids: of units, or else of images."""
        return self.unit_column or self.key_column

    @property
    def declared_classes(self) -> tuple[str, ...] | None:
        """`class_names`, where nothing else tells the label set. Raises `UsageError` where labels need one."""
        if self.label_column is not None and self.class_names is None:
            raise UsageError(
                "needs declared class names, because the metadata tells no label set: give both.", field="label_column"
            )
        return self.class_names

    @property
    def uses_digits(self) -> bool:
        """True where nothing names or describes other images: the embedded digits."""
        return self.dataset_name is None and self.train_data_dir is None and self.class_names is None


class ImageSource:
    """What is known of images without reading one, and the images.

    Attributes:
        ids (`str`): What the id of a record is: its `"path"`, the number of its `"row"`, or its value in a `"column"`.
    """

    ids: str = "row"

    def count(self) -> int | None:
        """Number of images, `None` where it cannot be known without reading them."""
        raise NotImplementedError

    def class_names(self) -> tuple[str, ...] | None:
        """The public label set, `None` for unlabelled images."""
        raise NotImplementedError

    def records(self, class_names: tuple[str, ...] | None, cache_dir: Path) -> Records:
        """The images in a fixed order, each with its class; none is read yet."""
        raise NotImplementedError

    def files(self) -> list[Path | str]:
        """The data files: local ones as paths, others by their address; none of them is opened for it."""
        return []

    def descriptions(self) -> list[Path]:
        """Local files that hold no image and say what the images are, such as their labels."""
        return []

    def labels(self, cache_dir: Path) -> Iterator[Any]:
        """The labels as they are written, of a data set whose columns tell them; otherwise nothing. Private."""
        return iter(())

    def ignored(self) -> dict[str, int]:
        """How many files beside the images are not read, by suffix. Private, as the number of images is."""
        return {}
