# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Does memory stay flat when there are more images, and what does a step cost on many processes?

    python benchmarks/scaling.py
    python benchmarks/scaling.py --only memory --num_images 10000 100000 1000000
    python benchmarks/scaling.py --only ranks --images_per_rank 1000000 --seconds_per_image 0.002 --parameters 500e6

1. **Memory.** For each number of images, tiny ones written as a parquet data set: a fresh process decodes them by
   `load_images`. For each of `--mapped_images`: a fresh process asks a query of five Poisson samples through the
   door, of images in an empty file of their size, which may exceed the memory of the machine. Memory that only the
   process can free ("own") is told from pages of mapped files, which the kernel drops when it needs them ("mapped").
   Linux only; a second for each 10,000 images decoded.
2. **Sampling.** Poisson samples of up to 10^8 records.
3. **Weak scaling, simulated.** Each of W ranks holds as many images. All that decides privacy is real: every rank
   draws its own Poisson sample, by the library's sampler with its own entropy, and the first keeps the library's
   ledger on disk. Computation is `--seconds_per_image`, and communication a ring all-reduce by the usual formula. A
   step takes as long as its slowest rank; sampling counts in CPU time.

Nothing here reads sensitive data.
"""

import argparse
import io
import json
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch
from scipy import stats

from diffusers_dp import PrivacyLedger, SensitiveImages
from diffusers_dp.accounting.ledger_row import gradient_row
from diffusers_dp.data.images import load_images, public_facts
from diffusers_dp.gradients.sampling import poisson_sample
from diffusers_dp.mechanisms import sampled
from diffusers_dp.methods.flags import TrainingConfig
from diffusers_dp.randomness.private_generator import PrivateGenerator


SHAPE = (3, 16, 16)
STEPS, SAMPLES = 20, 5
SHARD = 10_000  # images in a file
PARTS = ("memory", "sampling", "ranks")


def main() -> None:
    args = parse_args()
    if args.measure is not None:
        what, folder, number = args.measure
        print(json.dumps({"decoding": measure_decoding, "door": measure_door}[what](Path(folder), int(number))))
        return
    if "memory" in args.only:
        compare_decoding(args.num_images)
        compare_door(args.mapped_images)
    if "sampling" in args.only:
        time_sampling()
    if "ranks" in args.only:
        results = [simulate(ranks, args) for ranks in args.ranks]
        print_ranks(results, args)
        draw(results, args)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--num_images", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--mapped_images", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000, 40_000_000])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 4, 16, 64, 256, 1024])
    parser.add_argument("--images_per_rank", type=int, default=100_000)
    parser.add_argument("--batch_per_rank", type=int, default=64, help="Expected images of a rank in a step.")
    parser.add_argument(
        "--seconds_per_image", type=float, default=0.01, help="Clipped gradient of one image, all its draws."
    )
    parser.add_argument("--parameters", type=float, default=1e8, help="Of the model, four bytes each.")
    parser.add_argument(
        "--bandwidth", type=float, default=2.5e10, help="Bytes a second between neighbours of the ring."
    )
    parser.add_argument("--latency", type=float, default=5e-6, help="Seconds for a message.")
    parser.add_argument(
        "--noise_seconds_per_parameter", type=float, default=2e-11, help="On the first rank, once a step."
    )
    parser.add_argument("--picture", type=Path, default=Path("runs/scaling.png"))
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)  # what the fresh process does
    return parser.parse_args()


# 1. Memory.


def compare_decoding(numbers: list[int]) -> None:
    print(f"images of {SHAPE}, decoded | together | own memory | of other processes, together | seconds")
    for number in numbers:
        with tempfile.TemporaryDirectory() as folder:
            write_images(Path(folder) / "set", number)
            found = in_a_fresh_process("decoding", folder, number)
        print(
            f"{number:>10,} | {megabytes(number)} | {found['own']:6.1f} MB | {found['children']:6.1f} MB | "
            f"{found['seconds']:.1f} s",
            flush=True,
        )


def compare_door(numbers: list[int]) -> None:
    print(
        f"\nimages of {SHAPE}, mapped | together | own memory | mapped pages | CPU time of a sample of 1,000, with "
        "its sum"
    )
    for number in numbers:
        with tempfile.TemporaryDirectory() as folder:
            found = in_a_fresh_process("door", folder, number)
        print(
            f"{number:>10,} | {megabytes(number)} | {found['own']:6.1f} MB | {found['mapped']:6.1f} MB | "
            f"{found['seconds']:.3f} s",
            flush=True,
        )


def megabytes(number: int) -> str:
    return f"{number * math.prod(SHAPE) / 1e6:9,.1f} MB"


def in_a_fresh_process(what: str, folder: str, number: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", what, folder, str(number)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def write_images(folder: Path, number: int) -> None:
    """A parquet data set of images of noise, 256 different ones."""
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    draws = np.random.default_rng(0)
    pool = []
    for _ in range(256):
        buffer = io.BytesIO()
        Image.fromarray(draws.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(buffer, "PNG")
        pool.append({"bytes": buffer.getvalue(), "path": None})
    features = datasets.Features({"image": datasets.Image()})
    folder.mkdir(parents=True)
    starts = range(0, number, SHARD)
    for shard, start in enumerate(starts):
        rows = [pool[i % 256] for i in range(start, min(start + SHARD, number))]
        table = pa.table({"image": pa.array(rows, features.arrow_schema.field("image").type)})
        path = folder / f"train-{shard:05}-of-{len(starts):05}.parquet"
        pq.write_table(table.cast(features.arrow_schema), path, row_group_size=1000)


class MemoryMeter:
    """Peaks, in MB above the start: of this process' own memory, of mapped pages, and of its children's own memory
    together."""

    def __init__(self) -> None:
        self.process = psutil.Process()
        self.start = self._own(self.process.pid), self._own(self.process.pid, "RssFile")

    def __enter__(self) -> "MemoryMeter":
        self.own = self.mapped = self.children = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.own = max(self.own, self._own(self.process.pid) - self.start[0])
            self.mapped = max(self.mapped, self._own(self.process.pid, "RssFile") - self.start[1])
            self.children = max(self.children, sum(self._own(child.pid) for child in self.process.children()))

    @staticmethod
    def _own(pid: int, field: str = "RssAnon") -> float:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:  # it has ended
            return 0.0
        return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith(field)), 0.0)


def measure_decoding(folder: Path, number: int) -> dict[str, float]:
    import datasets  # noqa: F401  loaded before the memory is measured

    config = TrainingConfig(dataset_name=str(folder / "set"), resolution=SHAPE[1], num_channels=SHAPE[0])
    facts, started = public_facts(config.data), time.perf_counter()
    with MemoryMeter() as meter:
        load_images(config.data, facts, folder / "cache")
    return {"own": meter.own, "children": meter.children, "seconds": time.perf_counter() - started}


def measure_door(folder: Path, number: int) -> dict[str, float]:
    arrays = [
        np.lib.format.open_memmap(folder / f"{len(shape)}.npy", mode="w+", dtype=dtype, shape=shape)
        for dtype, shape in ((np.uint8, (number, *SHAPE)), (np.bool_, (number,)))
    ]
    ledger = PrivacyLedger(None, target_epsilon=100, target_delta=1e-9, num_images=number)
    mechanism = sampled(1000 / number, 10.0)
    with MemoryMeter() as meter:
        images = SensitiveImages(arrays[0], None, arrays[1], num_images=number, image_shape=SHAPE, ledger=ledger)
        started = time.process_time()
        images.noisy_sum(lambda batch, _: batch.flatten(1), mechanism, clip_norm=1.0, name="mean", repeats=SAMPLES)
        seconds = (time.process_time() - started) / SAMPLES
    return {"own": meter.own, "mapped": meter.mapped, "seconds": seconds}


# 2. Sampling.


def time_sampling() -> None:
    print("\nrecords | CPU time of a Poisson sample of 1,000 expected | own memory")
    for number in (10**6, 10**7, 10**8):
        started = time.process_time()
        with MemoryMeter() as meter:
            poisson_sample(number, 1000 / number, PrivateGenerator())
        print(f"{number:>11,} | {time.process_time() - started:6.3f} s | {meter.own:.1f} MB", flush=True)
    print(f"Gaussian noise, one thread of this CPU: {noise_seconds():.2g} s a number")


# 3. Weak scaling.


@dataclass
class Result:
    """Means over steps; times in seconds."""

    ranks: int
    batch: float  # images of all ranks
    largest: float  # images of the fullest rank
    expected_largest: float
    dispersion: float  # variance of the ranks' numbers of images, over that of independent draws
    sampling: float
    compute: float  # of the mean rank
    waiting: float  # of the mean rank for the slowest
    noise: float
    all_reduce: float
    ledger: float
    epsilon: float

    @property
    def step(self) -> float:
        return self.sampling + self.compute + self.waiting + self.all_reduce + self.ledger


def simulate(ranks: int, args: argparse.Namespace) -> Result:
    rate, total = args.batch_per_rank / args.images_per_rank, ranks * args.images_per_rank
    noise = args.parameters * args.noise_seconds_per_parameter
    row = gradient_row(sampled(rate), max_grad_norm=1.0, normaliser=rate * total)
    largest = args.images_per_rank * max(args.ranks)
    generators = [PrivateGenerator() for _ in range(ranks)]
    counts, sampling, ledger_time = np.zeros((STEPS, ranks)), np.zeros((STEPS, ranks)), []
    with tempfile.TemporaryDirectory() as folder:
        ledger = PrivacyLedger(
            Path(folder) / "ledger.jsonl",
            target_epsilon=10,
            target_delta=1 / (largest * math.log(largest)),
            num_images=total,
        )
        for step in range(STEPS):
            started = time.perf_counter()
            ledger.take_step(row, reserve_steps=STEPS // 2)
            ledger_time.append(time.perf_counter() - started)
            for rank, generator in enumerate(generators):
                started = time.process_time()
                own = poisson_sample(args.images_per_rank, rate, generator)
                images = own * ranks + rank  # which images of the whole data set these are
                sampling[step, rank] = time.process_time() - started
                assert ((images % ranks == rank) & (images < total)).all()
                counts[step, rank] = len(images)
        ledger.flush_executed()
        epsilon = ledger.epsilon()
        ledger.close()
    busy = counts * args.seconds_per_image
    busy[:, 0] += noise  # the first rank adds it to its part of the sum, before the parts are added up
    message = 4 * args.parameters
    return Result(
        ranks, counts.sum(1).mean(), counts.max(1).mean(), expected_largest(ranks, args.images_per_rank, rate),
        counts.var() / (args.images_per_rank * rate * (1 - rate)), float(np.median(sampling)),
        (counts * args.seconds_per_image).mean(), (busy.max(1) - (counts * args.seconds_per_image).mean(1)).mean(),
        noise, 2 * (ranks - 1) / ranks * message / args.bandwidth + 2 * (ranks - 1) * args.latency,
        statistics.median(ledger_time), epsilon,
    )  # fmt: skip


def noise_seconds() -> float:
    """For one parameter, on this machine's CPU."""
    generator, number = PrivateGenerator(), 2 * 10**6
    started = time.process_time()
    generator.normal((number,), 1.0)
    return (time.process_time() - started) / number


def expected_largest(ranks: int, images: int, rate: float) -> float:
    """The mean of the largest of `ranks` independent binomial numbers: the sum over k >= 0 of 1 - F(k)^ranks."""
    mean = images * rate
    numbers = np.arange(0, int(mean + 20 * math.sqrt(mean) + 50))
    return float((1 - stats.binom.cdf(numbers, images, rate) ** ranks).sum())


def print_ranks(results: list[Result], args: argparse.Namespace) -> None:
    print(
        f"\n{args.images_per_rank:,} images and {args.batch_per_rank} expected images of a step on each rank, "
        f"{args.seconds_per_image} s for each, {args.parameters:.3g} parameters, {args.bandwidth:.3g} B/s, noise "
        f"{results[-1].noise:.3g} s"
    )
    print(
        "ranks | batch | largest on a rank: found, expected | dispersion | step s | compute | waiting | all-reduce | "
        "sampling | ledger | epsilon | efficiency"
    )
    for each in results:
        print(
            f"{each.ranks:5} | {each.batch:8.1f} | {each.largest:6.1f}, {each.expected_largest:6.1f} | "
            f"{each.dispersion:.3f} | {each.step:6.3f} | {each.compute:6.3f} | {each.waiting:6.3f} | "
            f"{each.all_reduce:6.3f} | {each.sampling:.4f} | {each.ledger:.4f} | {each.epsilon:.4f} | "
            f"{each.compute / each.step:.0%}"
        )


def draw(results: list[Result], args: argparse.Namespace) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    ranks = [each.ranks for each in results]
    parts = {
        "gradients": "compute", "waiting for the slowest rank": "waiting", "all-reduce": "all_reduce",
        "sampling": "sampling", "ledger": "ledger",
    }  # fmt: skip
    bottom = np.zeros(len(results))
    for label, name in parts.items():
        heights = np.array([getattr(each, name) for each in results])
        left.bar(range(len(ranks)), heights, bottom=bottom, label=label)
        bottom += heights
    left.set(xlabel="ranks", ylabel="seconds", title="A step, simulated", xticks=range(len(ranks)), xticklabels=ranks)
    left.set_ylim(0, 1.45 * bottom.max())
    left.legend(fontsize=8, loc="upper left")
    right.plot(ranks, [each.expected_largest for each in results], label="expected")
    right.plot(ranks, [each.largest for each in results], "o", label=f"mean over {STEPS} steps")
    right.axhline(args.batch_per_rank, color="grey", linestyle=":", label="mean of a rank")
    right.set(
        xlabel="ranks",
        ylabel="images",
        title="Images on the fullest rank",
        xscale="log",
        xticks=ranks,
        xticklabels=ranks,
    )
    right.minorticks_off()
    right.legend(fontsize=8)
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.picture, dpi=120)
    print(f"Picture: {args.picture}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
