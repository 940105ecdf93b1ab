"""Simulated patients as a data set with test images: those of `examples/patients.py`, in its window, 8 bits a pixel.

    python benchmarks/patients.py simulated_patients --num_patients 3000

The first patients are the split train, 400 further ones are test. Each patient has four slices.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np


EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

from notebooks import cells_of  # noqa: E402


LOWEST, WIDTH = 24, 1500  # the window of the example, in what its scanner writes
NUM_TEST = 400


def simulation() -> dict[str, Any]:
    """What the cells of the example define that import, make a patient, and scan."""
    cells, defined = cells_of((EXAMPLES / "patients.py").read_text()), {}
    for (kind, text), (_, code) in zip(cells, cells[1:], strict=False):
        if kind == "markdown" and text.startswith(("# Scans of patients", "## The patients", "## The scanner")):
            exec(compile(code, "examples/patients.py", "exec"), defined)
    return defined


def slices(numbers: range, seed: int) -> Iterator[dict[str, Any]]:
    """Rows of the data set, patient by patient."""
    made, rng = simulation(), np.random.default_rng(seed)
    matrix = made["rays"]()
    for number in numbers:
        bodies, has_tumour = made["patient"](rng)
        for picture, found in zip(made["scan"](bodies, rng, matrix), has_tumour, strict=True):
            grey = ((picture.astype(float) - LOWEST) / WIDTH * 255).round().clip(0, 255).astype(np.uint8)
            yield {"image": grey, "label": int(found), "patient": f"patient {number}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="New folder.")
    parser.add_argument("--num_patients", type=int, default=3000, help="Patients of the split train.")
    args = parser.parse_args()
    (args.output / "data").mkdir(parents=True)
    features = datasets.Features(
        {
            "image": datasets.Image(), "label": datasets.ClassLabel(names=["clear", "tumour"]),
            "patient": datasets.Value("string"),
        }
    )  # fmt: skip
    for seed, split, first, number in (
        (0, "train", 0, args.num_patients), (1, "test", args.num_patients, NUM_TEST),
    ):  # fmt: skip
        rows = datasets.Dataset.from_generator(
            slices, features=features, gen_kwargs={"numbers": range(first, first + number), "seed": seed}
        )
        rows.to_parquet(args.output / "data" / f"{split}-00000-of-00001.parquet")
        print(f"{args.output}: {len(rows):,} images of {split}")


if __name__ == "__main__":
    main()
