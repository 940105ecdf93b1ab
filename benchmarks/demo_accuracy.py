"""How good are the images of a run? Accuracy of a small CNN that is trained only on synthetic images, tested on real
ones.

    python benchmarks/demo_accuracy.py --seeds 0 1 2 3 4
    python benchmarks/demo_accuracy.py --seeds 0 --output_dir runs/mnist_cpu -- \
        --config training/recipes/feta_pro/mnist_cpu.yaml --dataset_name path/to/mnist
    python benchmarks/demo_accuracy.py --releases runs/dpdm/release runs/dp_feta/release -- \
        --config training/recipes/feta_pro/mnist_cpu.yaml --dataset_name path/to/mnist

For each seed it trains (a run that is there is used as it is), then draws images, in this process and not in the
training's, from the auxiliary generator, from the model after each warm-up stage, and from `release/`. What follows
`--` goes to the training script. The test images are the dataset's test split (for the embedded digits: the fixed
360); they choose nothing: every number of the classifier's training is fixed below. One JSON line a run is appended to
`results.jsonl` in the output folder. `--releases` trains nothing: it verifies releases that are there, of any method,
and scores them alike.

Reading real images, the numbers are private where the images are; they never enter the release.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from diffusers_dp.data.images import load_digits_split, load_images, public_facts
from diffusers_dp.distributed.memory import keep_freed_memory
from diffusers_dp.methods.config import load_config
from diffusers_dp.models import FeatureGenerator
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.release.loading import load_verified


SCRIPT = Path(__file__).parents[1] / "training" / "train_feta_pro.py"
NUM_IMAGES = 5000
CLASSIFIER_STEPS = 1000
CLASSIFIER_BATCH_SIZE = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--output_dir", type=Path, default=Path("runs/demo_accuracy"))
    parser.add_argument("--num_inference_steps", type=int, default=20)
    parser.add_argument("--releases", type=Path, nargs="+", help="Score these, and train nothing.")
    own = sys.argv[1:]
    flags = own[own.index("--") + 1 :] if "--" in own else []
    args = parser.parse_args(own[: own.index("--")] if "--" in own else own)

    keep_freed_memory()
    test_images, test_labels = real_test_images(flags, args.output_dir)
    if args.releases:
        for release in args.releases:
            score = accuracy(*draw(load_verified(release), args.num_inference_steps), test_images, test_labels)
            print(json.dumps({"release": str(release), "accuracy": round(score, 4)}), flush=True)
        return
    rows = []
    for seed in args.seeds:
        run = args.output_dir / f"seed{seed}"
        start = time.perf_counter()
        if not (run / "release").exists():
            command = [sys.executable, str(SCRIPT), "--output_dir", str(run), "--seed", str(seed), *flags]
            subprocess.run(command, check=True)
        row = {"seed": seed, "seconds": round(time.perf_counter() - start, 1)}
        for name, (images, labels) in draw_all(run, args.num_inference_steps).items():
            row[name] = round(accuracy(images, labels, test_images, test_labels), 4)
        print(json.dumps(row), flush=True)
        with open(args.output_dir / "results.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
        rows.append(row)
    summarise(rows)


def real_test_images(flags: list[str], folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    config = load_config(flags)
    if config.uses_digits:
        images, labels = load_digits_split(train=False)
    else:
        config.train_split, config.validation_size, config.num_train_images = "test", 0, None
        private = folder / "private"
        private.mkdir(parents=True, exist_ok=True)
        private.chmod(0o700)
        arrays = load_images(config.data, public_facts(config.data), private / "cache")
        images, labels = arrays.images, arrays.labels
    return torch.tensor(images), torch.tensor(labels)


def draw_all(run: Path, num_inference_steps: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Images and labels from every point of a run, in order."""
    drawn = {}
    if (run / "private" / "auxiliary_generator").exists():
        torch.manual_seed(0)
        generator = FeatureGenerator.from_pretrained(run / "private" / "auxiliary_generator")
        labels = torch.arange(NUM_IMAGES) % generator.config.num_classes
        drawn["generator"] = generator.generate(labels), labels
    for name in ("spatial", "frequency", "mix"):
        if (run / "private" / f"warmed_up_{name}").exists():
            warmed_up = DPImagePipeline.from_pretrained(run / "private" / f"warmed_up_{name}")
            drawn[f"warm-up {name}"] = draw(warmed_up, num_inference_steps)
    drawn["final"] = draw(load_verified(run / "release"), num_inference_steps)
    return drawn


def draw(
    pipeline: DPImagePipeline, num_inference_steps: int, guidance_scale: float = 1.0, num_images: int = NUM_IMAGES
) -> tuple[torch.Tensor, torch.Tensor]:
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(num_images) % pipeline.num_classes
    images = [
        pipeline(
            class_labels=part,
            generator=generator,
            num_inference_steps=num_inference_steps,
            guidance_scale=guidance_scale,
            output_type="pt",
        ).images
        for part in labels.split(500)
    ]
    return torch.cat(images).mul(255).round().byte(), labels


class SmallCNN(nn.Sequential):
    def __init__(self, channels: int, side: int, num_classes: int, width: int = 32):
        super().__init__(
            nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.25),
            nn.Linear(2 * width * (side // 4) ** 2, 128), nn.ReLU(), nn.Linear(128, num_classes),
        )  # fmt: skip


def accuracy(
    images: torch.Tensor, labels: torch.Tensor, test_images: torch.Tensor, test_labels: torch.Tensor
) -> float:
    """Train on synthetic, test on real; the last state counts, nothing is selected."""
    torch.manual_seed(0)
    model = SmallCNN(images.shape[1], images.shape[-1], int(labels.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, CLASSIFIER_STEPS)
    for _ in range(CLASSIFIER_STEPS):
        batch = torch.randint(len(images), (CLASSIFIER_BATCH_SIZE,))
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch].float() / 255), labels[batch]).backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        predicted = torch.cat([model(part.float() / 255).argmax(1) for part in test_images.split(1000)])
    return (predicted == test_labels).float().mean().item()


def summarise(rows: list[dict]) -> None:
    """Mean and standard error over seeds; the final model against the best point before DP-SGD, paired by seed."""
    points = [name for name in rows[0] if name not in ("seed", "seconds")]
    print(f"{'point':<20} {'mean':>7} {'s.e.':>7}")
    for name in points:
        print(f"{name:<20} {_mean_and_error([row[name] for row in rows])}")
    before = [name for name in points if name != "final"]
    if before:
        best = max(before, key=lambda name: statistics.mean(row[name] for row in rows))
        print(f"final - {best}: {_mean_and_error([row['final'] - row[best] for row in rows])}")


def _mean_and_error(values: list[float]) -> str:
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{np.mean(values):>7.4f} {error:>7.4f}"


if __name__ == "__main__":
    main()
