"""Is ordinary training of a warm-up faster in bf16, or in channels_last, and does it teach as much? One thread.

    taskset -c 1 python benchmarks/warm_up_precision.py time
    taskset -c 1 python benchmarks/warm_up_precision.py loss --network "auto, MNIST" --images RELEASE --steps 600

`time`: a step is that of `runs/warm_up.py`: loss, backward, Adam, averaging, of the networks that `--config auto` and
the CPU recipes take. Four ways alternate in one process, each with its own copy of the network, so that other work on
the machine slows all of them. A ratio is the median over rounds of a way's time to float32's in the same round.

`loss`: pairs of warm-ups, in float32 and bf16, with the same weights, images and noise, on a release of `moments`, all
but 2,000 of its images. The loss on these, with the same noise for all, in float32, of the averaged weights.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from diffusers.training_utils import EMAModel

from diffusers_dp.data.images import public_facts
from diffusers_dp.distributed.memory import keep_freed_memory
from diffusers_dp.distributed.processes import Processes
from diffusers_dp.methods.config import load_config
from diffusers_dp.runs.launch import planned_model
from diffusers_dp.runs.warm_up import LabelledImages, warm_up


CLASSES = "--class_names 0,1,2,3,4,5,6,7,8,9"
DIGITS = f"--resolution 28 --num_channels 1 --num_train_images 60000 {CLASSES}"
COLOUR = f"--resolution 32 --num_channels 3 --num_train_images 50000 {CLASSES}"
NETWORKS = {
    "auto, MNIST": f"--config auto {DIGITS}",
    "auto, CIFAR-10": f"--config auto {COLOUR}",
    "mnist_cpu": "--config mnist_cpu",
    "folder_cpu, 32 pixels": f"--config folder_cpu {COLOUR}",
}
WAYS = {
    "float32": ("no", False),
    "bf16": ("bf16", False),
    "float32, channels_last": ("no", True),
    "bf16, channels_last": ("bf16", True),
}
BATCH, HELD_OUT = 128, 2000


def trained_of(network: str, precision: str) -> tuple[Any, tuple[int, ...]]:
    config = load_config([*NETWORKS[network].split(), "--dry_run", "--mixed_precision", precision])
    facts = public_facts(config.data)
    return planned_model(config, facts), facts.image_shape


def warm_up_step(network: str, precision: str, channels_last: bool) -> Callable[[], object]:
    """A step of ordinary training on fixed images; noise and times are drawn."""
    torch.manual_seed(0)
    trained, image_shape = trained_of(network, precision)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    trained.module.to(memory_format=layout)
    weights = [*trained.module.parameters()]
    optimizer, ema = torch.optim.Adam(weights, lr=1e-4), EMAModel(weights)
    images = (torch.rand(BATCH, *image_shape) * 2 - 1).contiguous(memory_format=layout)
    labels = torch.arange(BATCH) % 10

    def step() -> None:
        optimizer.zero_grad()
        trained.loss(trained.model, images, labels).mean().backward()
        optimizer.step()
        ema.step(weights)

    return step


def timed(step: Callable[[], object]) -> tuple[float, float]:
    process, clock = time.process_time(), time.perf_counter()
    step()
    return time.process_time() - process, time.perf_counter() - clock


def times(network: str, rounds: int) -> None:
    steps = {way: warm_up_step(network, *choices) for way, choices in WAYS.items()}
    measured = [{way: timed(step) for way, step in steps.items()} for _ in range(rounds + 3)][3:]
    for way in WAYS:
        process, clock = ([each[way][i] / each["float32"][i] for each in measured] for i in (0, 1))
        print(json.dumps({
            "network": network, "way": way,
            "ms of a step": round(1e3 * statistics.median(each[way][0] for each in measured), 1),
            "time / float32": round(statistics.median(process), 2),
            "quartiles": [round(quartile, 2) for quartile in statistics.quantiles(process)[::2]],
            "by the clock": round(statistics.median(clock), 2),
        }), flush=True)  # fmt: skip


def losses(network: str, release: Path, steps: int, seeds: list[int]) -> None:
    files = [str(path) for path in sorted((release / "data").glob("*.parquet"))]
    rows = datasets.load_dataset("parquet", data_files=files, split="train").shuffle(seed=7)
    pixels = torch.from_numpy(np.stack([np.atleast_3d(np.asarray(image)) for image in rows["image"]]))
    images, labels = pixels.permute(0, 3, 1, 2).contiguous(), torch.tensor(rows["label"])
    taught, held_out = LabelledImages(images[HELD_OUT:], labels[HELD_OUT:]), images[:HELD_OUT].float() / 127.5 - 1
    for seed in seeds:
        found = []
        for dtype in (None, torch.bfloat16):
            torch.manual_seed(seed)
            trained, _ = trained_of(network, "no")
            processes = Processes()
            processes.warm_up_type = dtype
            warm_up(
                trained.model, trained.loss, lambda: taught.batch(BATCH), num_steps=steps, learning_rate=2e-3,
                ema_decay=0.999, processes=processes, title=f"{network}, seed {seed}",
            )  # fmt: skip
            torch.manual_seed(12345)
            with torch.no_grad():
                found.append(trained.loss(trained.model, held_out, labels[:HELD_OUT]).double())
        less = found[1] - found[0]
        print(json.dumps({
            "network": network, "steps": steps, "seed": seed, "loss, float32": round(float(found[0].mean()), 4),
            "bf16 less float32, %": round(100 * float(less.mean() / found[0].mean()), 3),
            "s.e. over images": round(100 * float(less.std() / len(less) ** 0.5 / found[0].mean()), 3),
        }), flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("time", "loss"))
    parser.add_argument("--network", choices=NETWORKS, help="One instead of all.")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--images", type=Path, help="Folder of a release.")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    for network in [args.network] if args.network else NETWORKS:
        if args.what == "time":
            times(network, args.rounds)
        else:
            losses(network, args.images, args.steps, args.seeds)


if __name__ == "__main__":
    main()
