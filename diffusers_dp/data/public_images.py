# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Public images to pre-train on, and the check that their files are not the sensitive ones'."""

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from tqdm.auto import tqdm

from ..errors import UsageError, fields_named
from ..files.hub_errors import one_sentence
from .decoding import decode_image
from .images import size_and_time
from .records import DataSource, ImageSource
from .sources import holds_one_image, open_source


DIGITS, DIGITS_LICENCE = "scikit-learn's digits", "cc-by-4.0"  # of the UCI repository, which they come from
_LICENCE = re.compile(r"[\w.+-]{1,60}")  # what is copied from somebody's card into ours
#: Flags that say of public images what others say of sensitive ones.
_PUBLIC = {"train_data_dir": "public_data_dir", "train_split": "public_split"} | {
    name: f"public_{name}"
    for name in ("dataset_name", "dataset_config_name", "image_column", "label_column", "class_names")
}


@dataclass(frozen=True)
class PublicImages:
    """Images that everybody may see.

    Args:
        images (`torch.Tensor` of uint8, shape `[n, C, H, W]`): In the shape of the sensitive ones. Or float32: what an
            autoencoder made of them.
        labels (`torch.Tensor` of int64, shape `[n]`, *optional*): Class of each, the number of classes where it is
            unknown.
        num_classes (`int`, *optional*): Size of their own label set.
        class_names (tuple of `str`, *optional*): That label set.
        origin (`dict`): Id or "local folder", number, hash and licence, and how long they are trained on, for the
            receipt.
    """

    images: torch.Tensor
    labels: torch.Tensor | None
    num_classes: int | None
    origin: dict[str, Any]
    class_names: tuple[str, ...] | None = None

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Images `[size, C, H, W]` in [-1, 1], or latents as they are, drawn uniformly, and their labels."""
        index = torch.randint(len(self.images), (size,))
        images, labels = self.images[index], None if self.labels is None else self.labels[index]
        return images.float() / 127.5 - 1 if images.dtype == torch.uint8 else images, labels


def of_classes(public: PublicImages, chosen: list[list[int]], labelled: bool) -> PublicImages:
    """The images of some classes, with new labels.

    Args:
        public (`PublicImages`): All.
        chosen (`list[list[int]]`): Their classes that stand for each new one.
        labelled (`bool`): Whether they have labels from now on.

    Raises:
        UsageError: No image is of these classes.
    """
    assert public.labels is not None and public.num_classes is not None
    new = torch.full((public.num_classes + 1,), -1)
    for label, classes in enumerate(chosen):
        new[classes] = label
    labels = new[public.labels]
    kept = labels >= 0
    if not kept.any():
        raise UsageError("No public image is of the classes that the sensitive ones look like; add some.")
    return replace(
        public, images=public.images[kept], labels=labels[kept] if labelled else None,
        num_classes=len(chosen) if labelled else None, class_names=None,
    )  # fmt: skip


def images_by_class(public: PublicImages, class_names: Any, margin: int = 0) -> list[torch.Tensor]:
    """
    The public images that stand for each class: those of the class of the same name; all of them for each, where no
    class has such a name.

    Args:
        public (`PublicImages`): Smaller than the sensitive ones by the margin.
        class_names (sequence of `str`, *optional*): The sensitive images' label set.
        margin (`int`): Black pixels that are put around them.

    Raises:
        UsageError: Some classes have public images, and others none.
    """
    images = F.pad(public.images, (margin,) * 4)
    if class_names is None:
        return [images]
    known = public.class_names or ()
    if public.labels is None or not set(known) & set(class_names):
        return [images] * len(class_names)
    labels = public.labels
    found = [images[labels == known.index(name)] if name in known else images[:0] for name in class_names]
    for name, own in zip(class_names, found, strict=True):
        if not len(own):
            raise UsageError(
                f"The public images have none of the class '{name}', and some of others: add them, or name the public "
                "classes otherwise with --public_class_names, and all images stand for each."
            )
    return found


def check_public_images(data: DataSource) -> None:
    """Looks for public images before anything is planned; none is read.

    Raises:
        UsageError: There are none, or a split, column or class is missing or unknown (names the flags of public data).
    """
    with fields_named(_PUBLIC):
        source = open_source(data)
        source.class_names()
    if source.count() == 0:
        raise _no_images(data)


def load_public_images(
    data: DataSource, sensitive: DataSource, cache_dir: str | Path, *, training: dict[str, Any]
) -> PublicImages:
    """Reads, converts, resizes and crops public images; those that cannot be read are left out.

    Args:
        data (`DataSource`): The public images, in the shape of the sensitive ones.
        sensitive (`DataSource`): The sensitive images, whose files must be other ones.
        cache_dir (`str` or `Path`): A folder for what `datasets` caches.
        training (`dict`): How long they are trained on, for the receipt.

    Raises:
        UsageError: There are none, or a column is missing or unknown (names the flags of public data), or they are the
            files of the sensitive ones, see `refuse_the_same_files`.
    """
    images, labels = [], []
    with fields_named(_PUBLIC):
        refuse_the_same_files(data, sensitive)
        source: ImageSource = open_source(data)
        names = source.class_names()
        for encoded, label, _ in tqdm(
            source.records(names, Path(cache_dir)), desc="Reading public images", unit="image"
        ):
            image = decode_image(encoded, data.image_shape, data.max_image_pixels, data.value_range)
            if image is None and data.value_range is not None:  # the sensitive images' range; these may have 8 bits
                image = decode_image(encoded, data.image_shape, data.max_image_pixels)
            if image is not None:
                images.append(image)
                labels.append(label if label is not None else len(names or ()))
    if not images:
        raise _no_images(data)
    stacked = np.stack(images)
    name = data.dataset_name
    origin = {
        "kind": "public images",
        "name": DIGITS if data.uses_digits else _name(name),
        "num_images": len(stacked),
        "images_sha256": hashlib.sha256(stacked.tobytes()).hexdigest(),
        "licence": _licence(data),
        **training,
    }
    num_classes = None if names is None else len(names)
    return PublicImages(
        torch.from_numpy(stacked), None if names is None else torch.tensor(labels), num_classes, origin, names
    )


def refuse_the_same_files(data: DataSource, sensitive: DataSource) -> None:
    """Refuses public data whose files are those of the sensitive data, whatever they are called and wherever they lie.

    Files are compared whole, by size and then by SHA-256; no image is decoded. Refused are a file of many images
    (parquet, arrow, an archive) that both have, and image files of which all of one side are among the other's. So a
    single image file in common decides nothing. What follows from the files is whether the run starts, which says what
    the operator named, and names twice.

    Three things are not noticed. One is the same images in other files: another format, resized, split up differently.
    The others are a copy of a data set on the Hub under another name, and a part of it among other image files. That
    public images are other ones is the operator's statement.

    Raises:
        UsageError: They are the same.
    """
    sides = [open_source(sensitive).files(), open_source(data).files()]
    sizes = [{size_and_time(file)[:1] for file in files} for files in sides]
    theirs, public = ({_identity(file, sizes[0] & sizes[1]) for file in files} for files in sides)
    common = theirs & public
    if any(holds_many for _, holds_many in common) or (common and common in (theirs, public)):
        raise UsageError(
            "holds data files of the sensitive images, under another name; name data that is public and other.",
            field=public_field(data),
        )


def files_of_public_images(data: DataSource) -> list[Path | str]:
    """The data files of public images, see `ImageSource.files`. Raises `UsageError` as `check_public_images`."""
    with fields_named(_PUBLIC):
        return open_source(data).files()


def public_field(data: DataSource) -> str:
    """The flag that names public images."""
    return "public_data_dir" if data.train_data_dir is not None else "public_dataset_name"


def _no_images(data: DataSource) -> UsageError:
    return UsageError("holds no image that can be read; name another.", field=public_field(data))


def _name(name: str | None) -> str:
    return "local folder" if name is None or Path(os.path.expanduser(name)).exists() else name


def _licence(data: DataSource) -> str:
    from huggingface_hub import DatasetCard

    if data.uses_digits:
        return DIGITS_LICENCE
    return licence_of(DatasetCard, data.dataset_name or data.train_data_dir or "")


def origin_of_model(name: str, folder: Path) -> dict[str, Any]:
    """Id, commit and licence of a public model, for a receipt; a local folder has no path there.

    Args:
        name (`str`): Folder, or id on the Hub.
        folder (`Path`): Where its files are.
    """
    from huggingface_hub import ModelCard

    licence = licence_of(ModelCard, folder)
    if Path(name).exists():
        return {"name": "local folder", "revision": None, "licence": licence}
    return {"name": name, "revision": folder.name, "licence": licence}


def _identity(file: Path | str, sizes: set[tuple[int, ...]]) -> tuple[str, bool]:
    """What a file has in common with its copies, and whether it holds many images. It is read only where its size is
    in `sizes`."""
    name, holds_many = str(file), not holds_one_image(file)
    size = size_and_time(file)[:1]
    if isinstance(file, Path) and size and size in sizes:
        with suppress(OSError):
            name = hashlib.sha256(file.read_bytes()).hexdigest()
    return name, holds_many


def licence_of(card_class: type[Any], place: str | Path) -> str:
    """What the metadata of a card states, "not stated" where it is none that could be a licence's name.

    Args:
        card_class (`ModelCard` or `DatasetCard`): Class of `huggingface_hub`.
        place (`str` or `Path`): The folder of `README.md`, or an id on the Hub.
    """
    folder = Path(os.path.expanduser(place))
    place = folder / "README.md" if folder.exists() else place
    try:
        with one_sentence("the card", "a repository"):
            licence = str(card_class.load(place, ignore_metadata_errors=True).data.license)
    # There is none, or its metadata is none.
    except (UsageError, ValueError, TypeError, AttributeError, yaml.YAMLError):
        licence = ""
    return licence if _LICENCE.fullmatch(licence) and licence != "None" else "not stated"
