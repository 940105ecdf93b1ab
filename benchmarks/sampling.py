"""How few model evaluations are enough? Images per second, and accuracy of a small CNN trained on the images, by
solver and steps.

    python benchmarks/sampling.py runs/mnist_cpu/release --num_images 10000 -- --dataset_name path/to/mnist \\
        --resolution 28 --num_channels 1
    python benchmarks/sampling.py runs/demo/release --num_images 2000
    python benchmarks/sampling.py RELEASE --settings heun:18 heun:10 hmc:18/2 hmc:7 dpm:35 dpm:19 -- ...
    python benchmarks/sampling.py RELEASE --num_images 60000 --batch_size 6000 \\
        --settings heun:1000 dpm:30 dpm:20 -- ...   (on a GPU)

Every setting draws the same number of images with each of `--seeds`, from the same noise; a CNN is trained on them
with a fixed procedure (that of `demo_accuracy.py`) and scored on the dataset's real test images. Training flags after
`--` name the dataset. `hmc:7` is `sampler="hmc"` at 7 noise levels, with 3 leapfrog steps at each; `hmc:18/2` has 2.
The first setting is what the others are compared with: Heun with 100 steps, 199 evaluations.
One JSON line for each setting and seed is appended to `--output`, and what is there is not drawn again: an interrupted
run goes on.
"""

import argparse
import hashlib
import json
import math
import statistics
import sys
import time
from pathlib import Path

import torch
from demo_accuracy import accuracy, real_test_images
from tqdm.auto import tqdm

from diffusers_dp.distributed.memory import keep_freed_memory
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.words import RECEIPT_NAME


SETTINGS = (
    "heun:100",
    "heun:18",
    "heun:10",
    "heun:6",
    "hmc:67",
    "hmc:18/2",
    "hmc:7",
    "hmc:6/2",
    "dpm:30",
    "dpm:20",
    "dpm:15",
    "dpm:10",
    "dpm:8",
    "dpm:6",
    "dpm:5",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", type=Path)
    parser.add_argument("--num_images", type=int, default=10_000)
    parser.add_argument("--batch_size", type=int, default=250)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), help="SOLVER:STEPS ...")
    parser.add_argument("--output", type=Path, default=Path("runs/sampling.jsonl"))
    own = sys.argv[1:]
    flags = own[own.index("--") + 1 :] if "--" in own else []
    args = parser.parse_args(own[: own.index("--")] if "--" in own else own)

    keep_freed_memory()  # as `diffusers-dp sample` does
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pipeline = DPImagePipeline.from_pretrained(args.release).to(device)
    pipeline.set_progress_bar_config(disable=True)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    test_images, test_labels = real_test_images(flags, args.output.parent)
    receipt = hashlib.sha256((args.release / RECEIPT_NAME).read_bytes()).hexdigest()[:12]
    shape = tuple(pipeline(batch_size=1, num_inference_steps=1, output_type="pt").images.shape[1:])
    if tuple(test_images.shape[1:]) != shape:
        parser.error(
            f"the release draws {shape}, the test images are {tuple(test_images.shape[1:])}: see --resolution, "
            "--num_channels"
        )
    rows = [json.loads(line) for line in args.output.read_text().splitlines()] if args.output.exists() else []
    for seed in args.seeds:
        for setting in args.settings:
            key = {"receipt": receipt, "setting": setting, "seed": seed, "num_images": args.num_images}
            if any(key.items() <= row.items() for row in rows):
                continue
            images, labels, seconds = draw(pipeline, setting, seed, args)
            score = accuracy(images, labels, test_images, test_labels)
            rows.append({**key, "images_per_second": round(args.num_images / seconds, 1), "accuracy": round(score, 4)})
            with open(args.output, "a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    rows = [row for row in rows if row["receipt"] == receipt and row["num_images"] == args.num_images]
    summarise(rows, args.settings[0])


def draw(
    pipeline: DPImagePipeline, setting: str, seed: int, args: argparse.Namespace
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """8-bit images, their labels in turns, and the seconds that drawing took."""
    how = arguments(setting)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(args.num_images) % pipeline.num_classes
    start = time.perf_counter()
    images = [
        pipeline(class_labels=part, generator=generator, output_type="pt", **how).images.cpu()
        for part in tqdm(labels.split(args.batch_size), desc=f"{setting}, seed {seed}", unit="batch", leave=False)
    ]
    return torch.cat(images).mul(255).round().byte(), labels, time.perf_counter() - start


def arguments(setting: str) -> dict:
    """Of the pipeline's call: SOLVER:STEPS, or hmc:STEPS/LENGTH."""
    solver, _, steps = setting.partition(":")
    steps, _, length = steps.partition("/")
    if solver == "hmc":
        return {"sampler": "hmc", "num_inference_steps": int(steps), "trajectory_length": int(length or 3)}
    return {"solver": solver, "num_inference_steps": int(steps)}


def evaluations(setting: str) -> int:
    """How often the model is called for an image."""
    how = arguments(setting)
    steps = how["num_inference_steps"]
    if "trajectory_length" in how:
        return (steps - 1) * how["trajectory_length"] + 1
    return 2 * steps - 1 if how["solver"] == "heun" else steps


def summarise(rows: list[dict], first: str) -> None:
    """A line for each setting; the difference from the first setting is paired by seed."""
    by_setting: dict[str, dict[int, dict]] = {}
    for row in rows:
        by_setting.setdefault(row["setting"], {})[row["seed"]] = row
    reference = by_setting.get(first, {})
    print(f"| solver, steps | evaluations | images/s | accuracy | less than {first} |\n|---|---|---|---|---|")
    for setting, of_seed in sorted(by_setting.items(), key=lambda item: -evaluations(item[0])):
        speed = statistics.median(row["images_per_second"] for row in of_seed.values())
        paired = [reference[seed]["accuracy"] - row["accuracy"] for seed, row in of_seed.items() if seed in reference]
        scores = [row["accuracy"] for row in of_seed.values()]
        print(
            f"| {setting} | {evaluations(setting)} | {speed:,.0f} | {points(scores)} | "
            f"{points(paired) if paired else ''} |"
        )


def points(values: list[float]) -> str:
    """Mean and standard error, in percentage points."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{100 * statistics.mean(values):.2f} (s.e. {100 * error:.2f})"


if __name__ == "__main__":
    main()
