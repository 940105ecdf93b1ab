"""From flags to images: first the public facts, which no image decides, then uint8 arrays for the door."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from .errors import UsageError
from .flags import TrainingConfig
from .image_decoding import decode_image
from .image_sources import DigitsSource, load_digits_split, open_source


__all__ = ["ImageArrays", "PublicFacts", "load_digits_split", "load_images", "public_facts"]

# Public and fixed: the validation images of a dataset are the same in every run, whatever --seed is.
_VALIDATION_SEED = 0


@dataclass(frozen=True)
class PublicFacts:
    """
    What may be known of the images by everybody.

    Args:
        num_images (`int`): N, the declared number of images to train on.
        image_shape (`tuple[int, int, int]`): (channels, height, width).
        class_names (`tuple[str, ...]`, *optional*): The label set, `None` for unlabelled images.
        declared_units (`int`, *optional*): The declared number of units, where a unit is not an image.
    """

    num_images: int
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...] | None
    declared_units: int | None = None

    @property
    def num_units(self) -> int:
        """N of the guarantee: the number of units of privacy."""
        return self.num_images if self.declared_units is None else self.declared_units


@dataclass(frozen=True)
class ImageArrays:
    """
    The private images, ready for the door.

    Args:
        images (`np.ndarray` of uint8, shape `[n, C, H, W]`): n <= N images; zeros where not readable.
        labels (`np.ndarray` of int64, shape `[n]`, *optional*): Class of each image, `None` for unlabelled images.
        readable (`np.ndarray` of bool, shape `[n]`): False for an image that contributes nothing, because it or its
            label or unit could not be read.
        units (`np.ndarray` of int64, shape `[n]`, *optional*): Unit of each image, from 0 on, where a unit is not an image.
    """

    images: np.ndarray
    labels: np.ndarray | None
    readable: np.ndarray
    units: np.ndarray | None = None


def public_facts(config: TrainingConfig) -> PublicFacts:
    """
    Finds out what is public, from flags and metadata, without reading an image or writing a file.

    A dry run with a declared number of images does not even look at the metadata.

    Args:
        config (`TrainingConfig`): The configuration.

    Returns:
        `PublicFacts`: The facts.

    Raises:
        `UsageError`: A dataset, split or column is missing or unknown, N or the label set cannot be known without
            reading images, or there are known to be more images than declared.
    """
    if config.dry_run and config.num_train_images is not None:
        names = DigitsSource().class_names() if config.uses_digits else config.declared_class_names
        return PublicFacts(config.num_train_images, config.image_shape, names, config.num_train_units)
    source = open_source(config)
    count = source.count()
    num_images = config.num_train_images
    if count == 0:
        raise UsageError(f"{_source_words(config)} holds no images; name a source that does.")
    if num_images is not None and count is not None and num_images + config.validation_size < count:
        raise UsageError(
            f"--num_train_images {num_images} and --validation_size {config.validation_size} together are less than the "
            f"{count} images of {_source_words(config)}; give --num_train_images {count - config.validation_size}, or leave it out."
        )
    if num_images is None:
        if count is None:
            raise UsageError("--num_train_images must be given: the dataset's metadata does not tell its length.")
        num_images = count - config.validation_size
        if num_images < 1:
            raise UsageError(f"--validation_size {config.validation_size} leaves no image to train on; lower it.")
    return PublicFacts(num_images, config.image_shape, source.class_names(), config.num_train_units)


def load_images(config: TrainingConfig, facts: PublicFacts, cache_dir: str | Path) -> ImageArrays:
    """
    Reads, converts, resizes and crops the images. A damaged one stays, as zeros that contribute nothing.

    The validation images go by position: an absent file moves them, an unreadable one does not.

    Args:
        config (`TrainingConfig`): The configuration.
        facts (`PublicFacts`): Its public facts.
        cache_dir (`str` or `Path`): A private folder for what `datasets` caches.

    Returns:
        `ImageArrays`: The images in the order of their source, without the validation images.

    Raises:
        `UsageError`: There is no image at all, or more than declared, or a column is missing or unknown.
    """
    capacity = facts.num_images + config.validation_size
    held_out = validation_positions(capacity, config.validation_size)
    images = np.zeros((facts.num_images, *facts.image_shape), dtype=np.uint8)
    labels = np.zeros(facts.num_images, dtype=np.int64)
    readable = np.zeros(facts.num_images, dtype=bool)
    numbers: dict[Any, int] = {}  # of the units
    units = np.zeros(facts.num_images, dtype=np.int64)
    row = 0
    with tqdm(total=capacity, desc="Reading images", unit="image") as bar:
        for position, (encoded, label, unit) in enumerate(
            open_source(config).records(facts.class_names, Path(cache_dir))
        ):
            if position >= capacity:
                raise UsageError(
                    f"--num_train_images {facts.num_images} is less than {_source_words(config)} holds; raise it."
                )
            bar.update()
            if held_out[position]:
                continue
            image = decode_image(encoded, facts.image_shape)
            complete = (facts.class_names is None or label is not None) and (
                config.unit_column is None or unit is not None
            )
            if image is not None and complete:
                images[row], labels[row], readable[row] = image, label or 0, True
                units[row] = numbers.setdefault(unit, len(numbers))
            row += 1
        bar.update(capacity - bar.n)  # the bar ends at the declared number, however many images there are
    if row == 0:
        raise UsageError(f"{_source_words(config)} holds no images; name a source that does.")
    if len(numbers) > facts.num_units:
        raise UsageError(f"--num_train_units {facts.num_units} is less than --unit_column tells apart; raise it.")
    return ImageArrays(
        images[:row],
        None if facts.class_names is None else labels[:row],
        readable[:row],
        None if config.unit_column is None else units[:row],
    )


def validation_positions(capacity: int, size: int) -> np.ndarray:
    """Which records of a split are validation images, bool, shape `[capacity]`: the same in every run and every evaluation.

    Args:
        capacity (`int`): Declared number of records of the split.
        size (`int`): `--validation_size`.
    """
    held_out = np.zeros(capacity, dtype=bool)
    held_out[np.random.default_rng(_VALIDATION_SEED).permutation(capacity)[:size]] = True
    return held_out


def _source_words(config: TrainingConfig) -> str:
    if config.uses_digits:
        return "scikit-learn's digits"
    return "--train_data_dir" if config.train_data_dir is not None else "--dataset_name"
