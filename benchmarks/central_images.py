"""How near are noisy central images to the true ones, with the clip norm here and with the published noise?

    python benchmarks/central_images.py --config feta_pro/mnist \\
        --dataset_name path/to/mnist

The images are public ones, read without the door; nothing is trained. For each clip norm it prints the share of images
that it scales down and the root mean square error of the answers, clamped to [0, 1], against the true class means,
over five seeds.
"""

import argparse
import tempfile

import torch

from diffusers_dp.data.images import load_images, public_facts
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.feta_pro import FETAProConfig
from diffusers_dp.queries.central_images import MeanImages, stride_of


SEEDS = range(5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _, flags = parser.parse_known_args()
    config = load_config(flags)
    facts = public_facts(config.data)
    with tempfile.TemporaryDirectory() as cache:
        arrays = load_images(config.data, facts, cache)
        stride = stride_of(facts.image_shape)
        small = torch.from_numpy(arrays.images[:, :, ::stride, ::stride]).float().flatten(1) / 255
        labels = torch.from_numpy(arrays.labels[:])
    size, clip_norm = small.shape[1], MeanImages(image_shape=facts.image_shape).clip_norm
    print("| clip norm | scaled down | error |\n|---|---|---|")
    for name, middle, norm in (
        ("here", 0.0, clip_norm), ("that of the published noise", 0.0, size**0.5),
        ("of the difference from grey", 0.5, clip_norm),
    ):  # fmt: skip
        clipped = (small - middle).norm(dim=1) > norm * (1 + 1e-6)
        errors = [error(small - middle, labels, norm, middle, config, seed) for seed in SEEDS]
        print(f"| {name}: {norm:.1f} | {100 * clipped.float().mean():.1f} % | {sum(errors) / len(errors):.4f} |")


def error(
    values: torch.Tensor, labels: torch.Tensor, clip_norm: float, middle: float, config: FETAProConfig, seed: int
) -> float:
    """Of one answer to the query of central images, whose values have `middle` taken off."""
    generator = torch.Generator().manual_seed(seed)
    classes, rate, sigma = (
        int(labels.max()) + 1,
        float(config.spatial_rate),
        config.central_images_query.noise_multiplier,
    )
    taken = torch.rand(len(values), generator=generator) < rate
    squares = []
    for label in range(classes):
        true = values[labels == label].mean(0) + middle
        rows = values[taken & (labels == label)]
        total = (rows * (clip_norm / rows.norm(dim=1, keepdim=True).clamp_min(1e-9)).clamp_max(1)).sum(0)
        noise = sigma * clip_norm * torch.randn(values.shape[1], generator=generator)
        answer = (total + noise) / (rate * len(values) / classes) + middle
        squares.append((answer.clamp(0, 1) - true).square().mean())
    return float(torch.stack(squares).mean().sqrt())


if __name__ == "__main__":
    main()
