# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Data sets of recipes that no parquet data set on the Hub has.

python benchmarks/paper_data.py octmnist octmnist.npz          # MedMNIST's file; makes the folder `octmnist`
python benchmarks/paper_data.py fashion_mnist /usr/share/datasets/fashion-mnist    # Debian's dataset-fashion-mnist;
                                                               # makes the folder `fashion_mnist`
"""

import argparse
import gzip
from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, Features
from datasets import Image as ImageFeature
from PIL import Image


EYES = ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal")
CLOTHES = (
    "T - shirt / top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def octmnist(source: Path, folder: Path) -> None:
    """Writes the training images of MedMNIST's file, in a folder for each class."""
    arrays = np.load(source)
    for number, (image, label) in enumerate(zip(arrays["train_images"], arrays["train_labels"].ravel(), strict=True)):
        path = folder / EYES[label] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


def fashion_mnist(source: Path, folder: Path) -> None:
    """Writes the original files as parquet, a file for each split."""
    folder.mkdir(parents=True, exist_ok=True)
    features = Features({"image": ImageFeature(), "label": ClassLabel(names=list(CLOTHES))})
    for split, files in (("train", "train"), ("test", "t10k")):
        images, labels = (
            np.frombuffer(gzip.open(source / f"{files}-{kind}-ubyte.gz").read(), np.uint8, offset=offset)
            for kind, offset in (("images-idx3", 16), ("labels-idx1", 8))
        )
        table = {"image": list(images.reshape(-1, 28, 28)), "label": labels.tolist()}
        Dataset.from_dict(table, features).to_parquet(folder / f"{split}.parquet")


def main(argv: list[str] | None = None) -> None:
    makers = {"octmnist": octmnist, "fashion_mnist": fashion_mnist}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=makers)
    parser.add_argument("source", type=Path, help="Where the original files are.")
    args = parser.parse_args(argv)
    makers[args.name](args.source, Path(args.name))


if __name__ == "__main__":
    main()
