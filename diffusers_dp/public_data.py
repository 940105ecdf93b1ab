# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Public images to pre-train on, and the check that their files are not the sensitive ones'."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from .errors import UsageError
from .flags import TrainingConfig
from .image_decoding import IMAGE_SUFFIXES, decode_image
from .image_sources import ImageSource, open_source
from .method_flags import PublicConfig
from .pretrained import StartingModel, kept_pretrained, licence_of


#: Flags of sensitive images, and those that say the same of public ones.
_FLAGS = {
    "--train_data_dir": "--public_data_dir",
    "--train_split": "--public_split",
    **{f"--{name}": f"--public_{name}" for name in ("dataset_name", "dataset_config_name", "image_column", "label_column", "class_names")},
}  # fmt: skip


@dataclass(frozen=True)
class PublicImages:
    """Images that everybody may see.

    Args:
        images (`torch.Tensor` of uint8, shape `[n, C, H, W]`): In the shape of the sensitive ones.
        labels (`torch.Tensor` of int64, shape `[n]`, *optional*): Class of each, the number of classes where it is unknown.
        num_classes (`int`, *optional*): Of their own label set.
        origin (`dict`): Id or "local folder", number, hash and licence, and how long they are trained on, for the receipt.
    """

    images: torch.Tensor
    labels: torch.Tensor | None
    num_classes: int | None
    origin: dict[str, Any]

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Images `[size, C, H, W]` in [-1, 1], drawn uniformly, and their labels."""
        index = torch.randint(len(self.images), (size,))
        return self.images[index].float() / 127.5 - 1, None if self.labels is None else self.labels[index]


def check_public_images(config: PublicConfig) -> None:
    """Looks for the images of `--public_dataset_name` or `--public_data_dir` before anything is planned; none is read. A dry run that looks for no
    sensitive ones (`--num_train_images`) looks for no public ones; nor does a run that goes on, which may have learned from them before.

    Raises:
        UsageError: There are none, or a split, column or class is missing or unknown (names the flags of public data).
    """
    declared = config.dry_run and config.num_train_images is not None
    if not config.pretrains or declared or config.resume_from_checkpoint is not None:
        return
    with _public_flags():
        source = open_source(_as_sensitive(config))
        source.class_names()
    if source.count() == 0:
        raise UsageError(_no_images(config))


def load_public_images(config: PublicConfig, cache_dir: str | Path) -> PublicImages:
    """Reads, converts, resizes and crops the images of `--public_dataset_name` or `--public_data_dir`; those that cannot be read are
    left out.

    Args:
        config (`PublicConfig`): The configuration.
        cache_dir (`str` or `Path`): A folder for what `datasets` caches.

    Raises:
        UsageError: There are none, or a column is missing or unknown (names the flags of public data), or they are the files of the
            sensitive ones, see `refuse_the_same_files`.
    """
    own = _as_sensitive(config)
    images, labels = [], []
    with _public_flags():
        refuse_the_same_files(config)
        source: ImageSource = open_source(own)
        names = source.class_names()
        for encoded, label, _ in tqdm(
            source.records(names, Path(cache_dir)), desc="Reading public images", unit="image"
        ):
            image = decode_image(encoded, own.image_shape, own.max_image_pixels)
            if image is not None:
                images.append(image)
                labels.append(label if label is not None else len(names or ()))
    if not images:
        raise UsageError(_no_images(config))
    stacked = np.stack(images)
    name = config.public_dataset_name
    origin = {
        "kind": "public images",
        "name": "local folder" if name is None or Path(name).expanduser().exists() else name,
        "num_images": len(stacked),
        "images_sha256": hashlib.sha256(stacked.tobytes()).hexdigest(),
        "licence": _licence(config),
        "steps": config.public_steps,
        "batch_size": config.public_batch_size,
        "learning_rate": config.public_learning_rate,
    }
    num_classes = None if names is None else len(names)
    return PublicImages(
        torch.from_numpy(stacked), None if names is None else torch.tensor(labels), num_classes, origin
    )


def starting_point(
    config: PublicConfig, model: StartingModel, private: Path, checkpoint: Path | None
) -> tuple[StartingModel, dict[str, Any] | None, PublicImages | None]:
    """What training begins with: the model, with what an earlier start taught it, its origin, and the public images that are to teach it.

    Args:
        model (`StartingModel`): See `starting_model`; its weights are replaced where an earlier start kept others.
        private (`Path`): The run's private folder.
        checkpoint (`Path`, *optional*): Where DP-SGD goes on.

    Raises:
        UsageError: See `load_public_images`; or an earlier start without `--mix_public_images` has taught the model public images alone.
    """
    origin = kept_pretrained(private, model.unet) if config.pretrains else model.origin
    if getattr(config, "mix_public_images", False) and checkpoint is None and origin is not None:
        raise UsageError(
            "--mix_public_images was not given at this run's first start, which has taught its model public images already; leave it out, or "
            "start anew."
        )
    if not config.pretrains or origin is not None or checkpoint is not None:
        return model, origin, None
    return model, origin, load_public_images(config, private / "cache")


def refuse_the_same_files(config: PublicConfig) -> None:
    """Refuses public data whose files are those of the sensitive data, whatever they are called and wherever they lie.

    Files are compared whole, by size and then by SHA-256; no image is decoded. Refused are a file of many images (parquet, arrow, an archive)
    that both have, and image files of which all of one side are among the other's. So a single image file in common decides nothing. What
    follows from the files is whether the run starts, which says what the operator named, and names twice.

    Not noticed: the same images in other files (another format, resized, split up differently), a copy of a data set on the Hub under
    another name, and a part of it mixed with others as image files. That public images are other ones is the operator's statement.

    Raises:
        UsageError: They are the same.
    """
    sides = [open_source(config).files(), open_source(_as_sensitive(config)).files()]
    sizes = [{_size(file) for file in files} for files in sides]
    sensitive, public = ({_identity(file, sizes[0] & sizes[1]) for file in files} for files in sides)
    common = sensitive & public
    if any(holds_many for _, holds_many in common) or (common and common in (sensitive, public)):
        raise UsageError(
            f"{_flag(config)} holds data files of the sensitive images, under another name; name data that is public and other."
        )


def _as_sensitive(config: PublicConfig) -> TrainingConfig:
    """The flags of the public images in the place of those of sensitive ones."""
    names = config.public_class_names
    if config.public_data_dir is not None and names is None:
        folder = Path(config.public_data_dir).expanduser()
        names = ",".join(sorted(entry.name for entry in folder.glob("*") if entry.is_dir() and entry.name[0] != "."))
    _, side, _ = config.image_shape
    return TrainingConfig(
        dataset_name=config.public_dataset_name, dataset_config_name=config.public_dataset_config_name,
        train_data_dir=config.public_data_dir, train_split=config.public_split, image_column=config.public_image_column,
        label_column=config.public_label_column, class_names=names, resolution=side, num_channels=config.image_shape[0],
        max_image_pixels=config.max_image_pixels,
    )  # fmt: skip


def _flag(config: PublicConfig) -> str:
    return "--public_data_dir" if config.public_data_dir is not None else "--public_dataset_name"


def _no_images(config: PublicConfig) -> str:
    return f"{_flag(config)} holds no image that can be read; name another."


@contextmanager
def _public_flags() -> Iterator[None]:
    """A refusal in here names the flags of public data."""
    try:
        yield
    except UsageError as error:
        text = str(error)
        for flag, public in _FLAGS.items():
            text = text.replace(flag, public)
        raise UsageError(text) from None


def _licence(config: PublicConfig) -> str:
    from huggingface_hub import DatasetCard

    place = config.public_dataset_name or config.public_data_dir or ""
    folder = Path(place).expanduser()
    return licence_of(DatasetCard, folder / "README.md" if folder.exists() else place)


def _size(file: Path | str) -> int | None:
    """In bytes; `None` of what is not here or cannot be read."""
    try:
        return file.stat().st_size if isinstance(file, Path) else None
    except OSError:
        return None


def _identity(file: Path | str, sizes: set[int | None]) -> tuple[str, bool]:
    """What a file has in common with its copies, and whether it holds many images. It is read only where its size is in `sizes`."""
    name, holds_many = str(file), Path(file).suffix.lower() not in IMAGE_SUFFIXES
    size = _size(file)
    if isinstance(file, Path) and size is not None and size in sizes:
        try:
            name = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError:
            pass
    return name, holds_many
