# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The complexity of a curriculum's features: entropy and texture complexity, as in the FETA-Pro paper's Table 2.

The curriculum goes from easy to hard: spatial features (noisy central images), frequency features (images of the
auxiliary generator fitted to them), images. The inputs here are noisy answers or images drawn from a released model,
so this costs no privacy. (The paper's third row uses the original images, which would cost privacy.)

Only the order of the rows is comparable with the paper. It describes entropy in words (Appendix C.3: grey, histogram
of 256 values, Shannon) and gives no formula for texture complexity. Its entropies, 1.2 for CIFAR-10, are not in bits;
grey CIFAR-10 images have 7.0 bits.

    python benchmarks/complexity.py runs/demo --images runs/drawn

Prints a JSON line for each set: noisy central images and images of the auxiliary generator, as the run keeps them, and
drawn images.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from diffusers_dp.errors import IntegrityError
from diffusers_dp.files.sealed_folder import open_sealed
from diffusers_dp.models.feature_generator import FeatureGenerator
from diffusers_dp.models.one_step import generate
from diffusers_dp.queries.central_images import MeanImages, ModeImages, restore_central_images
from diffusers_dp.verify import RECEIPT_NAME


GENERATED_IMAGES = 1000
GREY_WEIGHTS = (0.299, 0.587, 0.114)  # for red, green, blue: ITU-R BT.601
NUM_LEVELS = 256
TEXTURE_LEVELS = 8  # few enough that the 64 pairs of levels occur often in an image of a few hundred pixels


def grey_levels(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Converts images of uint8, `[N, C, H, W]`, C 1 or 3, to grey levels 0 to 255, `[N, H, W]`."""
    if images.shape[1] == 1:
        return images[:, 0].astype(np.int64)
    return np.rint(np.tensordot(images, GREY_WEIGHTS, axes=(1, 0))).astype(np.int64)


def entropy(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Computes the Shannon entropy of each image's grey levels, `-sum_i p_i log2 p_i` over the 256 levels i (FETA-Pro,
    Appendix C.3).

    Args:
        images (`np.ndarray` of uint8, shape `[N, C, H, W]`): Images, C is 1 or 3.

    Returns:
        `np.ndarray` of shape `[N]`: Entropies in bits, from 0 (constant) to the smaller of 8 and `log2(H W)`.
    """
    return _entropy(_histograms(grey_levels(images).reshape(len(images), -1), NUM_LEVELS))


def texture_complexity(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Computes the entropy of each image's grey-level co-occurrence matrix (Haralick et al. 1973, feature 9), which
    measures irregular neighbourhoods.

    Grey levels are divided into 8 equal bins; pairs of horizontal and vertical neighbours are counted in both
    directions.

    Args:
        images (`np.ndarray` of uint8, shape `[N, C, H, W]`): Images, C is 1 or 3; at least two pixels.

    Returns:
        `np.ndarray` of shape `[N]`: Entropies in bits, from 0 (constant) to 6.
    """
    levels = grey_levels(images) * TEXTURE_LEVELS // NUM_LEVELS
    pairs = np.concatenate(
        [_pairs(levels[:, :, :-1], levels[:, :, 1:]), _pairs(levels[:, :-1], levels[:, 1:])], axis=1
    )
    counts = _histograms(pairs, TEXTURE_LEVELS**2).reshape(-1, TEXTURE_LEVELS, TEXTURE_LEVELS)
    return _entropy((counts + counts.transpose(0, 2, 1)).reshape(len(images), -1))


def _pairs(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """Encodes each pair of neighbours as one number, shape `[N, pairs]`."""
    return (first * TEXTURE_LEVELS + second).reshape(len(first), -1)


def _histograms(values: NDArray[np.int64], num_values: int) -> NDArray[np.int64]:
    """Counts 0 to `num_values` - 1 in each row, shape `[N, num_values]`."""
    rows = np.arange(len(values))[:, None] * num_values
    return np.bincount((rows + values).ravel(), minlength=len(values) * num_values).reshape(len(values), num_values)


def _entropy(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    shares = counts / counts.sum(axis=1, keepdims=True)
    return -np.where(shares > 0, shares * np.log2(np.where(shares > 0, shares, 1)), 0).sum(axis=1) + 0.0  # no -0


def warm_up_features(run: Path, image_shape: tuple[int, int, int]) -> dict[str, NDArray[np.uint8]]:
    """Loads the restored noisy central images, and draws 1,000 images of the auxiliary generator, where `private/` of
    a run has them.

    Raises:
        IntegrityError: The receipt does not count an answer.
    """
    found, private = {}, run / "private"
    for query in (MeanImages, ModeImages):
        answer = private / "answers" / query.name
        if answer.is_dir():
            state, tensors = open_sealed(answer)
            events = json.loads((run / "release" / RECEIPT_NAME).read_text(encoding="utf-8"))["events"]
            noise = [event["noise_multiplier"] for event in events if event["stage"] == answer.name]
            if state["query"]["noise_multiplier"] not in noise:
                raise IntegrityError(f"{answer} is not in the receipt of {run / 'release'}: it is of another run.")
            central = restore_central_images(tensors["answer"]["answer"].flatten(0, 1), image_shape)
            found["spatial features"] = central.numpy()
    if (private / "auxiliary_generator").is_dir():
        generator = FeatureGenerator.from_pretrained(private / "auxiliary_generator", use_safetensors=True)
        torch.manual_seed(0)
        labels = torch.arange(GENERATED_IMAGES) % generator.num_classes
        found["frequency features"] = generate(generator, labels).numpy()
    return found


def row_of(name: str, images: NDArray[np.uint8]) -> dict[str, object]:
    """Mean entropy and texture complexity of a set, in bits, with their standard errors."""
    row: dict[str, object] = {"features": name, "num_images": len(images)}
    for metric, values in (("entropy", entropy(images)), ("texture_complexity", texture_complexity(images))):
        row[metric] = round(float(values.mean()), 4)
        row[f"{metric}_error"] = round(float(values.std(ddof=1)) / len(values) ** 0.5, 4) if len(values) > 1 else None
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="Folder of a run with release/ and private/.")
    parser.add_argument("--images", help="Images drawn from its release, by `diffusers-dp sample`.")
    args = parser.parse_args()
    from scorer import read  # of this folder

    receipt = json.loads((args.run / "release" / RECEIPT_NAME).read_text(encoding="utf-8"))
    sets = warm_up_features(args.run, tuple(receipt["public_facts"]["image_shape"]))
    if args.images is not None:
        sets["synthetic images"] = read(args.images, "train").images
    for name, images in sets.items():
        print(json.dumps(row_of(name, images)))


if __name__ == "__main__":
    main()
