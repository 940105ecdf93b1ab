# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Images, and data sets of them on disk."""

import io

import datasets
from PIL import Image

from diffusers_dp.data.images import load_images, public_facts
from diffusers_dp.methods.feta_pro import FETAProConfig


def encode(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def grey(value: int = 100, size: tuple[int, int] = (8, 8)) -> Image.Image:
    return Image.new("L", size, value)


def folder_config(folder, **flags) -> FETAProConfig:
    return FETAProConfig(**{"train_data_dir": str(folder), "class_names": "dog,cat,empty", "resolution": 8, **flags})


def save_parquet(folder, columns: dict, features: datasets.Features | None = None, split: str = "train"):
    (folder / "data").mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_dict(columns, features=features).to_parquet(folder / f"data/{split}-00000-of-00001.parquet")
    return str(folder)


def image_bytes(*contents: bytes | None) -> list:
    return [None if content is None else {"bytes": content, "path": None} for content in contents]


def labelled(names: list[str]) -> datasets.Features:
    return datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})


def read_images(config: FETAProConfig, tmp_path):
    facts = public_facts(config.data)
    return facts, load_images(config.data, facts, tmp_path / "cache")


def config_of(name: str, **flags) -> FETAProConfig:
    return FETAProConfig(dataset_name=name, resolution=8, num_channels=1, **flags)


def write_dataset(folder, images, labels=None, names=None, split="train"):
    """Images `[n, C, H, W]` as the parquet file of a split."""
    folder.mkdir(exist_ok=True)
    columns = {
        "image": [Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)) for image in images]
    }
    features = {"image": datasets.Image()}
    if labels is not None:
        columns["label"], features["label"] = list(labels), datasets.ClassLabel(names=list(names))
    table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    table.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return folder
