# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The flags of the sensitive images, and what their places cannot be. Nothing here reads an image or writes a file."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.decoding import IMAGE_SUFFIXES, MAX_IMAGE_PIXELS, ValueRange
from ..data.medical import PACKAGES
from ..errors import UsageError
from ..verify import NO_GUARANTEE, UNIT
from .flag import LARGEST, distinct, flag, numbers, split_list


#: Side length of images whose `--resolution` is not given, other than the embedded 8x8 digits.
DEFAULT_RESOLUTION = 32
DIGITS_RESOLUTION = 8
#: What a flag says that holds a label set.
CLASSES: dict[str, Any] = {"read": distinct, "range": "each class once, comma-separated"}
#: All that a run writes in `--output_dir`.
_WRITTEN = ("private", "release", "model", NO_GUARANTEE)


SUFFIXES = sorted({*IMAGE_SUFFIXES, *PACKAGES})


def read_range(text: str) -> ValueRange:
    """Black and then white. Raises `ValueError`."""
    black, white = numbers(text)
    if not black < white:
        raise ValueError(text)
    return black, white


def read_window(text: str) -> ValueRange:
    """The same of center and width. Raises `ValueError`."""
    center, width = numbers(text)
    return read_range(f"{center - width / 2!r},{center + width / 2!r}")


def read_suffixes(text: str) -> tuple[str, ...]:
    """Suffixes of files, in small letters and with their dots."""
    return tuple(f".{item.lower().removeprefix('.')}" for item in split_list(text))


#: What flags say that hold these.
RANGE: dict[str, Any] = {
    "read": read_range, "at_least": -LARGEST, "range": "two numbers, black and then white, such as 0,4095",
}  # fmt: skip
WINDOW: dict[str, Any] = {
    "read": read_window, "at_least": -LARGEST, "excludes": ("value_range",),
    "range": "two numbers, center and then a width above 0, such as 40,400",
}  # fmt: skip
KNOWN: dict[str, Any] = {
    "read": read_suffixes, "choices": tuple(SUFFIXES), "range": f"some of {' '.join(SUFFIXES)}, comma-separated",
}  # fmt: skip


def range_of(value_range: str | None, window: str | None) -> ValueRange | None:
    """What `--value_range`, or `--window`, declares."""
    if window is not None:
        return read_window(window)
    return None if value_range is None else read_range(value_range)


def check_unit_column(name: str) -> None:
    """Raises `UsageError` where a column's name is not that of what a receipt can protect."""
    if name == "image" or not re.fullmatch(UNIT, name, re.ASCII):
        raise UsageError(
            f"--unit_column '{name}' cannot name a unit; call the column what it tells apart, such as patient_id."
        )


def _one_character(text: str) -> str:
    if len(text) != 1 or not text.isascii() or text in '" \r\n\0':
        raise ValueError(text)
    return text


@dataclass
class DataFlags:
    """Which images, and the public facts about them."""

    _argument_group_name = "data"

    dataset_name: str | None = flag(
        None, "Hub id, dataset folder, or CSV or JSON lines file that names images; unset: the embedded digits.",
        place=True, excludes=("train_data_dir",),
    )  # fmt: skip
    dataset_config_name: str | None = flag(
        None, "Configuration of the dataset, where it has several.", rare=True, only_with="dataset_name"
    )
    train_split: str = flag("train", "Split of --dataset_name to train on.", rare=True, only_with="dataset_name")
    train_data_dir: str | None = flag(
        None, "Folder that holds one folder of images per class; needs --class_names.", place=True
    )
    image_column: str = flag(
        "image", "Column of --dataset_name that holds the images.", rare=True, only_with="dataset_name"
    )
    label_column: str | None = flag(
        None, "Column of --dataset_name that holds the class; unset: 'label' if there is one, else no classes.",
        only_with="dataset_name",
    )  # fmt: skip
    class_names: str | None = flag(None, "The public label set; unset: that of the dataset's ClassLabel.", **CLASSES)
    resolution: int | None = flag(
        None,
        f"Side length in pixels to which images are resized and cropped; unset: {DEFAULT_RESOLUTION}, of the digits "
        f"{DIGITS_RESOLUTION}.",
        at_least=2, at_most=4_096,
    )  # fmt: skip
    num_channels: int | None = flag(
        None, "1 (grey) or 3 (RGB); unset: 1 for the embedded digits, else 3.", choices=(1, 3)
    )
    unit_column: str | None = flag(
        None,
        "Column of --dataset_name that says whose image it is: a unit's images are protected together, and N counts "
        "units.",
        needs=("dataset_name", "num_train_units", "num_train_images"),
    )  # fmt: skip
    key_column: str | None = flag(
        None, "Column of --dataset_name with a key that places an image; unset: the row's number, or a file's path.",
        rare=True, needs=("dataset_name",),
    )  # fmt: skip
    delimiter: str = flag(
        ",", "Character between the fields of a CSV table; a tab is written as it is.",
        rare=True, only_with="dataset_name", read=_one_character, range="one character: ';', '|' or a tab",
    )  # fmt: skip
    num_train_units: int | None = flag(
        None, "N, the declared, public number of units of --unit_column.", needs=("unit_column",)
    )
    max_images_per_unit: int | None = flag(
        None, "Images of one unit in one query or step, drawn at random; unset: 8.",
        rare=True, needs=("unit_column",),
    )  # fmt: skip
    num_train_images: int | None = flag(
        None,
        "N, the declared, public number of images to train on (with --unit_column the most that there are); unset: "
        "the length of the split minus --validation_size.",
    )  # fmt: skip
    max_image_pixels: int = flag(
        MAX_IMAGE_PIXELS, "An image of more pixels is not decoded, and counts as damaged.", rare=True, at_most=2**40
    )
    value_range: str | None = flag(
        None,
        "Grey values that become black and white, of images with more than 8 bits (others are then unreadable): "
        "0,4095 for 12 bits; unset: 16-bit PNG by 0,65535, PNM by its maxval.",
        **RANGE,
    )  # fmt: skip
    window: str | None = flag(
        None, "--value_range as scanners say it: center,width, such as 40,400 (Hounsfield units).", **WINDOW
    )
    image_suffixes: str | None = flag(
        None,
        "Suffixes of files in --train_data_dir that are images. DICOM (.dcm) and NIfTI (.nii,.nii.gz) need "
        "diffusers_dp[medical] and --window; unset: those of pictures, such as .png, .jpg and .tif.",
        needs=("train_data_dir",), **KNOWN,
    )  # fmt: skip
    dataloader_num_workers: int | None = flag(
        None, "Processes that decode the images, once; 0: the run's own alone; unset: one for each core.",
        rare=True, at_least=0, at_most=1_024,
    )  # fmt: skip
    validation_size: int = flag(
        0, "Images held out of the split by a public hash of each, never trained on; N does not count them.",
        rare=True, at_least=0,
    )  # fmt: skip

    @property
    def uses_digits(self) -> bool:
        """True where no flag names or describes other images: the embedded digits."""
        return self.dataset_name is None and self.train_data_dir is None and self.class_names is None

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of the images that the model sees, with defaults filled in."""
        side = self.resolution or (DIGITS_RESOLUTION if self.uses_digits else DEFAULT_RESOLUTION)
        return self.num_channels or (1 if self.uses_digits else 3), side, side

    @property
    def declared_class_names(self) -> tuple[str, ...] | None:
        """`--class_names` as a tuple, `None` where not given."""
        return None if self.class_names is None else split_list(self.class_names)

    @property
    def declared_range(self) -> ValueRange | None:
        """What is black and what is white, of images with more than 8 bits."""
        return range_of(self.value_range, self.window)

    @property
    def suffixes(self) -> tuple[str, ...] | None:
        """`--image_suffixes`, one by one."""
        return None if self.image_suffixes is None else read_suffixes(self.image_suffixes)

    @property
    def unit_of_privacy(self) -> str:
        """What is protected as a whole: an image, or what `--unit_column` tells apart."""
        return self.unit_column or "image"

    @property
    def images_per_unit(self) -> int:
        """`--max_images_per_unit` with its default filled in; 1 where each image is a unit."""
        return 1 if self.unit_column is None else self.max_images_per_unit or 8

    def check(self) -> None:
        if self.train_data_dir is not None and self.class_names is None:
            raise UsageError("--train_data_dir needs --class_names: the label set is public and declared.")
        if self.unit_column is None:
            return
        if self.key_column is not None:
            raise UsageError("--key_column and --unit_column exclude each other: units are ids already.")
        check_unit_column(self.unit_column)
        if (self.num_train_units or 0) > (self.num_train_images or 0):
            raise UsageError(
                f"--num_train_units {self.num_train_units} is more than --num_train_images {self.num_train_images}, "
                "and each unit has an image: lower the one or raise the other."
            )


def refuse_sensitive_as_public(sensitive: Mapping[str, str], public: Mapping[str, str]) -> None:
    """Raises `UsageError` where public data are the sensitive ones.

    Args:
        sensitive, public (mapping): Places by their flags.
    """
    for name, place in public.items():
        if any(_same_source(place, private) for private in sensitive.values()):
            raise UsageError(
                f"--{name} {place} is the sensitive data itself, or has its name; name data that is public and other."
            )


def refuse_writing_among_images(
    sources: Mapping[str, str], output_dir: str, ledger_dir: Path | None, cache_dir: str | None = None
) -> None:
    """Refuses a run, a ledger or downloads inside of a data source, where a later start would read
    `release/samples.png` as an image or take the run for a class. A folder that holds the data beside the run, such as
    `--output_dir .` with `./data`, may be one: of it a run reads and writes `private/`, `release/` and `no_guarantee/`
    alone, and of `--ledger_dir` one file. Data may not lie in those three: they are made anew, and removed where a
    start is refused.

    Args:
        sources (mapping): Places of data by their flags.
        output_dir (`str`), ledger_dir (`Path`, *optional*), cache_dir (`str`, *optional*): See the flags.

    Raises:
        UsageError: One sentence that names both places.
    """
    run, cache = Path(output_dir).resolve(), None if cache_dir is None else Path(os.path.expanduser(cache_dir))
    if cache is not None and any(cache.resolve().is_relative_to(run / part) for part in _WRITTEN):
        raise UsageError(f"--cache_dir {cache_dir} is where --output_dir {output_dir} writes; give another folder.")
    for name, place in sources.items():
        if not os.path.exists(os.path.expanduser(place)):  # on the Hub, or refused by whoever opens it
            continue
        source = Path(os.path.expanduser(place)).resolve()
        for flag_name, folder in (("output_dir", output_dir), ("ledger_dir", ledger_dir), ("cache_dir", cache)):
            if folder is not None and Path(folder).resolve().is_relative_to(source):
                raise UsageError(
                    f"--{flag_name} {folder} lies in --{name} {place}, where a later start would take what it holds "
                    "for images; give a folder outside of it."
                )
        for part in _WRITTEN:
            if source.is_relative_to((run / part).resolve()):
                raise UsageError(
                    f"--output_dir {output_dir} is where --{name} {place} lies in {part}/, which the run writes; give "
                    "another folder."
                )


def _same_source(first: str, second: str) -> bool:
    """Whether two names are of one data set on the Hub (old ones have no owner), or of folders of which one holds the
    other."""
    paths = [Path(os.path.expanduser(name)) for name in (first, second)]
    if all(path.exists() for path in paths):
        here, there = (path.resolve() for path in paths)
        return here.is_relative_to(there) or there.is_relative_to(here)
    ids = [name.strip().lower() for name in (first, second)]
    if any("/" not in name for name in ids):
        ids = [name.rpartition("/")[2] for name in ids]
    return ids[0] == ids[1]
