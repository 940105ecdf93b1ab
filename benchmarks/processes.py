"""What do several processes cost or gain? Steps of DP-SGD through the door, in one process with all cores and in
several that share them.

    python benchmarks/processes.py --counts 1 2 --output runs/processes.md

Each count is started by `torchrun` on the CPU, `--rounds` times in turn; each start takes `--steps` steps after one to
warm up. Samples are Poisson samples, so that processes wait for the one with the most images: that is part of the
time. The ratio is that of the median steps.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from dp_step import MODELS, build

from diffusers_dp import PrivacyLedger, SensitiveImages
from diffusers_dp.data.images import ImageArrays
from diffusers_dp.data.shares import share_of
from diffusers_dp.distributed.processes import start_processes
from diffusers_dp.distributed.shared_ledger import shared_ledger
from diffusers_dp.mechanisms import sampled
from diffusers_dp.models.denoiser import EDMDenoiser, EDMLoss


NUM_IMAGES = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2], help="Numbers of processes.")
    parser.add_argument("--model", choices=[name for name in MODELS if name != "LoRA"], default="14x14")
    parser.add_argument("--images", type=int, default=256, help="Expected images of a step.")
    parser.add_argument("--noise_multiplicity", type=int, default=1, help="K.")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="Write the table here, too.")
    args = parser.parse_args()
    if "RANK" in os.environ:
        seconds_of_first = take_steps(args)
        if seconds_of_first:
            print(json.dumps(seconds_of_first), flush=True)
        return
    seconds: dict[int, list[float]] = {count: [] for count in args.counts}
    for _ in range(args.rounds):
        for count in args.counts:
            seconds[count] += start(count)
    base = statistics.median(seconds[args.counts[0]])
    lines = [
        f"{args.model}, {args.images} images a step, K {args.noise_multiplicity}, torch {torch.__version__}, "
        f"{len(os.sched_getaffinity(0))} cores",
        "",
        "| processes | threads each | seconds a step | / first |",
        "|---|---|---|---|",
    ]
    for count, taken in seconds.items():
        median, threads = statistics.median(taken), max(1, len(os.sched_getaffinity(0)) // count)
        lines.append(f"| {count} | {threads} | {median:.3f} | {median / base:.2f} |")
    print("\n".join(lines))
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text("\n".join([*lines, ""]))


def start(count: int) -> list[float]:
    """Seconds of each step, as the first process saw them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}", *sys.argv]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def take_steps(args: argparse.Namespace) -> list[float]:
    """In each process; the others of the first return nothing."""
    processes = start_processes(precision="no")
    side, channels, *_ = MODELS[args.model]
    shape = (channels, side, side)
    images = np.random.default_rng(0).integers(0, 256, (NUM_IMAGES, *shape), dtype=np.uint8)
    arrays = ImageArrays(images, np.arange(NUM_IMAGES) % 10, np.ones(NUM_IMAGES, dtype=bool))
    share = share_of(arrays, processes.index, processes.count)
    ledger = shared_ledger(
        processes,
        lambda: PrivacyLedger(None, target_epsilon=1e6, target_delta=1e-5, num_images=NUM_IMAGES, accountant="rdp"),
    )
    door = SensitiveImages(
        share.images,
        share.labels,
        num_images=NUM_IMAGES,
        image_shape=shape,
        ledger=ledger,
        class_names=list("0123456789"),
        processes=processes,
    )
    torch.manual_seed(0)
    model, loss = EDMDenoiser(build(args.model), sigma_data=0.5), EDMLoss(0.0)
    processes.same_weights(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    seconds = []
    for _ in range(args.steps + 1):
        begin = time.perf_counter()
        gradients = door.noisy_gradient(
            model, loss, sampled(args.images / NUM_IMAGES, 2.0), max_grad_norm=1.0,
            normaliser=args.images, noise_multiplicity=args.noise_multiplicity, max_physical_batch_size=32,
            reserve_steps=args.steps + 1,
        )  # fmt: skip
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    return seconds[1:] if processes.first_goes_on() else []


if __name__ == "__main__":
    main()
