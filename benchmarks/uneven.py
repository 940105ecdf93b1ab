# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A data set with uneven classes, made of a public one: the first half of the classes has few images.

    python benchmarks/uneven.py path/to/mnist path/to/mnist_uneven
    python benchmarks/uneven.py path/to/mnist path/to/mnist_uneven --few 300 --many 5400

The first images of each class are taken, in their order. The test split stays as it is.
"""

import argparse
from pathlib import Path

import datasets
import numpy as np


def chosen(labels: np.ndarray, few: int, many: int) -> np.ndarray:
    """Places of the first `few` images of each class of the first half, and of the first `many` of the others."""
    classes = int(labels.max()) + 1
    sizes = [few if label < classes // 2 else many for label in range(classes)]
    return np.sort(np.concatenate([np.flatnonzero(labels == label)[:size] for label, size in enumerate(sizes)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="Hub id or folder of a data set with splits train and test.")
    parser.add_argument("output", type=Path, help="New folder.")
    parser.add_argument("--few", type=int, default=300, help="Images of each class of the first half.")
    parser.add_argument("--many", type=int, default=5400, help="Images of each other class.")
    parser.add_argument("--label_column", default="label", help="Column of the classes.")
    args = parser.parse_args()
    (args.output / "data").mkdir(parents=True)
    for split in ("train", "test"):
        rows = datasets.load_dataset(args.source, split=split)
        if split == "train":
            rows = rows.select(chosen(np.asarray(rows[args.label_column]), args.few, args.many))
        rows.to_parquet(args.output / "data" / f"{split}-00000-of-00001.parquet")
        print(f"{args.output}: {len(rows):,} images of {split}")


if __name__ == "__main__":
    main()
