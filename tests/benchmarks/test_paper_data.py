# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Data sets of recipes that no parquet data set on the Hub has, from files of their original form."""

import gzip

import datasets
import numpy as np

from support.places import ROOT, module_of


paper_data = module_of(ROOT / "benchmarks" / "paper_data.py")


def test_each_image_has_the_class_of_its_label(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = np.arange(4 * 28 * 28, dtype=np.uint8).reshape(4, 28, 28)
    labels = np.array([3, 0, 1, 2], dtype=np.uint8)
    np.savez("octmnist.npz", train_images=images, train_labels=labels[:, None])
    paper_data.main(["octmnist", "octmnist.npz"])
    assert all(
        (tmp_path / "octmnist" / paper_data.EYES[label] / f"{i}.png").is_file() for i, label in enumerate(labels)
    )
    assert len(list(tmp_path.rglob("*.png"))) == 4
    splits = {"train": (images, labels), "test": (images[:2], labels[:2])}
    for split, name in (("train", "train"), ("test", "t10k")):
        for kind, head, values in zip(("images-idx3", "labels-idx1"), (16, 8), splits[split], strict=True):
            with gzip.open(f"{name}-{kind}-ubyte.gz", "wb") as file:
                file.write(bytes(head) + values.tobytes())
    paper_data.main(["fashion_mnist", "."])
    for split, (images, labels) in splits.items():
        made = datasets.Dataset.from_parquet(f"fashion_mnist/{split}.parquet", cache_dir=str(tmp_path / "cache"))
        assert made["label"] == labels.tolist() and made.features["label"].names == list(paper_data.CLOTHES)
        assert np.array_equal(np.asarray(made[0]["image"]), images[0])
