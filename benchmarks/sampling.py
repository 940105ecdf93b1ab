"""How fast does a release draw? Images per second, by solver and steps.

    python benchmarks/sampling.py runs/demo/release --num_images 2000
    python benchmarks/sampling.py RELEASE --settings heun:18 heun:10 hmc:18/2 hmc:7 dpm:35 dpm:19
    python benchmarks/sampling.py RELEASE --num_images 60000 --batch_size 6000 --settings heun:1000 dpm:30   (on a GPU)

Every setting draws the same number of images with each of `--seeds`, from the same noise. `hmc:7` is `sampler="hmc"`
at 7 noise levels, with 3 leapfrog steps at each; `hmc:18/2` has 2. What the images are worth is a case of `rows.py`
with these settings in `draw`.
One JSON line for each setting and seed is appended to `--output`, and a second call skips what is there.
"""

import argparse
import hashlib
import json
import statistics
import time
from pathlib import Path

import torch
from tqdm.auto import tqdm

from diffusers_dp.distributed.memory import keep_freed_memory
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.verify import RECEIPT_NAME


SETTINGS = (
    "heun:100", "heun:18", "heun:10", "heun:6", "hmc:67", "hmc:18/2", "hmc:7", "hmc:6/2",
    "dpm:30", "dpm:20", "dpm:15", "dpm:10", "dpm:8", "dpm:6", "dpm:5",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", type=Path)
    parser.add_argument("--num_images", type=int, default=10_000)
    parser.add_argument("--batch_size", type=int, default=250)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), help="SOLVER:STEPS ...")
    parser.add_argument("--output", type=Path, default=Path("runs/sampling.jsonl"))
    args = parser.parse_args()

    keep_freed_memory()  # as `diffusers-dp sample` does
    pipeline = DPImagePipeline.from_pretrained(args.release).to("cuda" if torch.cuda.is_available() else "cpu")
    pipeline.set_progress_bar_config(disable=True)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    receipt = hashlib.sha256((args.release / RECEIPT_NAME).read_bytes()).hexdigest()[:12]
    rows = [json.loads(line) for line in args.output.read_text().splitlines()] if args.output.exists() else []
    for seed in args.seeds:
        for setting in args.settings:
            key = {"receipt": receipt, "setting": setting, "seed": seed, "num_images": args.num_images}
            if any(key.items() <= row.items() for row in rows):
                continue
            seconds = draw(pipeline, setting, seed, args)
            rows.append({**key, "images_per_second": round(args.num_images / seconds, 1)})
            with open(args.output, "a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    summarise([row for row in rows if row["receipt"] == receipt and row["num_images"] == args.num_images])


def draw(pipeline: DPImagePipeline, setting: str, seed: int, args: argparse.Namespace) -> float:
    """Seconds that drawing took."""
    how = arguments(setting)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(args.num_images) % pipeline.num_classes
    start = time.perf_counter()
    for part in tqdm(labels.split(args.batch_size), desc=f"{setting}, seed {seed}", unit="batch", leave=False):
        pipeline(class_labels=part, generator=generator, output_type="pt", **how).images.cpu()
    return time.perf_counter() - start


def arguments(setting: str) -> dict:
    """Arguments of the pipeline's call, from SOLVER:STEPS or hmc:STEPS/LENGTH."""
    solver, _, steps = setting.partition(":")
    steps, _, length = steps.partition("/")
    if solver == "hmc":
        return {"sampler": "hmc", "num_inference_steps": int(steps), "trajectory_length": int(length or 3)}
    return {"solver": solver, "num_inference_steps": int(steps)}


def evaluations(setting: str) -> int:
    """Returns how often the model is called for an image."""
    how = arguments(setting)
    steps = how["num_inference_steps"]
    if "trajectory_length" in how:
        return (steps - 1) * how["trajectory_length"] + 1
    return 2 * steps - 1 if how["solver"] == "heun" else steps


def summarise(rows: list[dict]) -> None:
    """Prints a line for each setting."""
    by_setting: dict[str, list[float]] = {}
    for row in rows:
        by_setting.setdefault(row["setting"], []).append(row["images_per_second"])
    print("| solver, steps | evaluations | images/s |\n|---|---|---|")
    for setting, speeds in sorted(by_setting.items(), key=lambda item: -evaluations(item[0])):
        print(f"| {setting} | {evaluations(setting)} | {statistics.median(speeds):,.0f} |")


if __name__ == "__main__":
    main()
