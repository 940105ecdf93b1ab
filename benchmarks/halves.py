"""Two data sets made of a public one: some of its classes play the private images, all others the public ones.

    python benchmarks/halves.py path/to/cifar10 cifar10_half cifar10_other_half --classes 0,2,3,7,8

Public images are then close to the private ones: same camera, same size, other things. Classes are numbered anew.
"""

import argparse
from pathlib import Path

import datasets


def of_classes(rows: datasets.Dataset, column: str, classes: list[int]) -> datasets.Dataset:
    """The rows of these classes, which become 0, 1, and so on, and keep their names."""
    names = [rows.features[column].names[each] for each in classes]
    rows = rows.filter(lambda label: label in classes, input_columns=column)
    labels = [classes.index(label) for label in rows[column]]
    return rows.remove_columns(column).add_column(column, labels).cast_column(column, datasets.ClassLabel(names=names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="Hub id or folder of a data set with splits train and test.")
    parser.add_argument("private", type=Path, help="New folder of the classes that are named.")
    parser.add_argument("public", type=Path, help="New folder of the other classes.")
    parser.add_argument("--classes", default="0,2,3,7,8", help="Numbers of the private classes, comma-separated.")
    parser.add_argument("--label_column", default="label", help="Column of the classes.")
    args = parser.parse_args()
    chosen = [int(each) for each in args.classes.split(",")]
    for split in ("train", "test"):
        rows = datasets.load_dataset(args.source, split=split)
        if not set(chosen) < {*range(rows.features[args.label_column].num_classes)}:
            parser.error(f"--classes {args.classes}: give some of the numbers of the classes, and not all.")
        others = [each for each in range(rows.features[args.label_column].num_classes) if each not in chosen]
        for folder, classes in ((args.private, chosen), (args.public, others)):
            half = of_classes(rows, args.label_column, classes)
            (folder / "data").mkdir(parents=True, exist_ok=split == "test")
            half.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
            print(f"{folder}: {len(half):,} images of {split}, {', '.join(half.features[args.label_column].names)}")


if __name__ == "__main__":
    main()
