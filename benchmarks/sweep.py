"""One or two training flags over a grid, with a plot: FETA-Pro's Figures 6 (noise of the two questions) and 7
(epsilon), and any other.

    python benchmarks/sweep.py --vary spatial_noise_multiplier 5 10 20 \\
        --vary frequency_noise_multiplier 7.4 15 30 -- --config RECIPE
    python benchmarks/sweep.py --vary target_epsilon 1 5 10 --vary curriculum none spatial,frequency \\
        --seeds 0 1 2 -- --config RECIPE

What follows `--` goes to every run. A run is trained, its release verified and drawn from, and a line appended to
`results.jsonl` in `--output_dir`; the same command goes on where it was interrupted and does nothing twice.
`sweep.svg` has a line for each value of the second flag, or with `--map` a map of both. The score is the accuracy on
real images of a small CNN that has seen drawn ones only: on the validation images that `--validation_size` holds out
of the training, where it is given, else on the test images. Who chooses by a sweep should use the former. Like all
numbers from real images they are private where these are. `--vary target_epsilon 1 10 inf` compares with a run that
has neither noise nor guarantee.
"""

import argparse
import itertools
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import demo_accuracy
import torch
from quality_cpu import accuracy
from tqdm.auto import tqdm

from diffusers_dp import DiffusersDPError, UsageError
from diffusers_dp.data.images import load_images, public_facts
from diffusers_dp.distributed.memory import keep_freed_memory
from diffusers_dp.methods.config import load_config
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.randomness.keyed_hash import is_held_out
from diffusers_dp.release.loading import load_verified
from diffusers_dp.release.no_guarantee import FOLDER
from diffusers_dp.training import train_feta_pro as script
from diffusers_dp.words import RECEIPT_NAME


NUM_INFERENCE_STEPS = 20


@dataclass(frozen=True)
class Point:
    """One run of the grid.

    Args:
        values (`tuple[tuple[str, str], ...]`): Flags that are varied, and their values.
        seed (`int`): `--seed`.
    """

    values: tuple[tuple[str, str], ...]
    seed: int

    @property
    def name(self) -> str:
        return "_".join([*(f"{flag}={value.replace(',', '+')}" for flag, value in self.values), f"seed={self.seed}"])

    @property
    def flags(self) -> list[str]:
        given = [part for flag, value in self.values for part in (f"--{flag}", value)]
        return [*given, "--seed", str(self.seed)]

    @property
    def key(self) -> dict[str, Any]:
        return {**dict(self.values), "seed": self.seed}


def main(argv: list[str] | None = None) -> None:
    given = sys.argv[1:] if argv is None else argv
    own, flags = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vary", nargs="+", action="append", required=True, metavar=("FLAG", "VALUE"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--num_images", type=int, default=5000, help="Images to draw from each release.")
    parser.add_argument("--map", action="store_true", help="Draw two flags as a map.")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/sweep"))
    args = parser.parse_args(own)
    if len(args.vary) > 2 or min(map(len, args.vary)) < 2:
        raise UsageError("--vary takes a flag and its values, and is given once or twice.")
    points = [
        Point(tuple(zip([flag for flag, *_ in args.vary], values, strict=True)), seed)
        for seed in args.seeds
        for values in itertools.product(*(values for _, *values in args.vary))
    ]
    for point in points:
        load_config([*flags, *point.flags])  # a value that cannot be is refused before anything is trained
    keep_freed_memory()
    results = args.output_dir / "results.jsonl"
    judge_all(args, flags, points, results)
    draw(read(results), args, args.output_dir / "sweep.svg")
    print(f"Written to {results} and {args.output_dir / 'sweep.svg'}.")


def judge_all(args: argparse.Namespace, flags: list[str], points: list[Point], results: Path) -> None:
    judged_on, test = real_images(flags, args.output_dir)
    facts = {"num_images": args.num_images, "num_inference_steps": NUM_INFERENCE_STEPS}
    common = {"flags": flags, "judged_on": judged_on, **facts}
    for point in tqdm(points, desc="Sweep", unit="run"):
        key = {**common, **point.key}
        if any(key.items() <= row.items() for row in read(results)):
            continue
        folder = args.output_dir / point.name
        private = load_config([*flags, *point.flags]).has_guarantee
        if not (folder / "release" / RECEIPT_NAME if private else folder / FOLDER).exists():
            resume = ["--resume_from_checkpoint", "latest"] if (folder / "private").exists() else []
            script.main([*flags, *point.flags, "--output_dir", str(folder), "--skip_preflight", *resume])
        if private:
            pipeline = load_verified(folder / "release")
            receipt = json.loads((folder / "release" / RECEIPT_NAME).read_text())
            epsilon = receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"]
        else:
            pipeline, epsilon = DPImagePipeline.from_pretrained(folder / FOLDER), "inf"
        row = {**key, "accuracy": accuracy(pipeline, facts, test), "epsilon_spent": epsilon}
        with open(results, "a") as file:
            file.write(json.dumps(row) + "\n")


def real_images(flags: list[str], folder: Path) -> tuple[str, tuple[torch.Tensor, torch.Tensor]]:
    """The validation images of the runs, or else the test images, with their name."""
    config = load_config(flags)
    size, config.validation_size, config.num_train_images = config.validation_size, 0, None
    if size == 0:
        return "test", demo_accuracy.real_test_images(flags, folder)
    private = folder / "private"
    private.mkdir(parents=True, exist_ok=True)
    private.chmod(0o700)
    facts = public_facts(config.data)
    arrays = load_images(config.data, facts, private / "cache")
    held_out = is_held_out(arrays.ids, size, facts.num_images) & arrays.readable
    return "validation", (torch.from_numpy(arrays.images[held_out]), torch.from_numpy(arrays.labels[held_out]))


def read(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def draw(rows: list[dict[str, Any]], args: argparse.Namespace, path: Path) -> None:
    """Accuracy against the first flag, or as a map of both: means over seeds, with their range."""
    from matplotlib.figure import Figure

    (first, *values), *more = args.vary
    second, others = (more[0][0], more[0][1:]) if more else (None, [None])
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()

    def scores(value: str, other: str | None) -> list[float]:
        found = [row for row in rows if row[first] == value and (second is None or row[second] == other)]
        return [100 * row["accuracy"] for row in found if row["seed"] in args.seeds]

    if args.map and second is not None:
        means = [[statistics.mean(scores(value, other)) for other in others] for value in values]
        axes.imshow(means, cmap="cividis", aspect="auto")
        axes.set_xticks(range(len(others)), others)
        axes.set_yticks(range(len(values)), values)
        axes.set_xlabel(second.replace("_", " "))
        axes.set_ylabel(first.replace("_", " "))
        for y, line in enumerate(means):
            for x, mean in enumerate(line):
                axes.text(x, y, f"{mean:.1f}", ha="center", va="center", bbox={"facecolor": "white", "alpha": 0.8})
        axes.set_title("accuracy on real images, %")
    else:
        for other in others:
            found = [scores(value, other) for value in values]
            means = [statistics.mean(each) for each in found]
            spread = [
                [mean - min(each) for mean, each in zip(means, found, strict=True)],
                [max(each) - mean for mean, each in zip(means, found, strict=True)],
            ]
            label = None if second is None else f"{second.replace('_', ' ')} {other}"
            axes.errorbar(range(len(values)), means, spread, marker="o", capsize=3, label=label)
        axes.set_xticks(range(len(values)), values)
        axes.set_xlabel(first.replace("_", " "))
        axes.set_ylabel("accuracy on real images, %")
        if second is not None:
            axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


if __name__ == "__main__":
    try:
        main()
    except DiffusersDPError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
