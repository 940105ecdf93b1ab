"""Public images in colour where nothing else is public: random crops of the two photographs that scikit-learn brings.

    python benchmarks/crops.py crops --resolution 32

They show a temple and a flower, and have no classes.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images


def crops(number: int, side: int, seed: int) -> Iterator[dict[str, Image.Image]]:
    """Squares of `side` to 8 x `side` pixels, shrunk to `side`, every second one mirrored."""
    rng = np.random.default_rng(seed)
    pictures = [Image.fromarray(each) for each in load_sample_images().images]
    for place in range(number):
        picture = pictures[int(rng.integers(len(pictures)))]
        size = int(rng.integers(side, min(8 * side, *picture.size) + 1))
        left, top = (int(rng.integers(whole - size + 1)) for whole in picture.size)
        crop = picture.crop((left, top, left + size, top + size)).resize((side, side), Image.Resampling.BOX)
        yield {"image": crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if place % 2 else crop}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="New folder.")
    parser.add_argument("--number", type=int, default=20_000, help="Crops.")
    parser.add_argument("--resolution", type=int, default=32, help="Their side in pixels.")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = datasets.Dataset.from_generator(
        crops, gen_kwargs={"number": args.number, "side": args.resolution, "seed": args.seed},
        features=datasets.Features({"image": datasets.Image()}),
    )  # fmt: skip
    (args.output / "data").mkdir(parents=True)
    found.to_parquet(args.output / "data" / "train-00000-of-00001.parquet")


if __name__ == "__main__":
    main()
