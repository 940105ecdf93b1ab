"""Times a private step of the published MNIST recipe's own network against an ordinary one, case by case.

    python benchmarks/gpu_steps.py formats --multiplicities 32 --rows runs/gpu/gpu.jsonl --seconds 110

Parts:

- `formats`: in float32 (as PyTorch does by itself: TF32 in convolutions alone), in TF32 and in bf16, each with and
  without channels_last.
- `calls`: with more images in a grouped convolution, and with cuDNN's search for the fastest algorithm.
- `compiled`: `torch.compile` of forward, loss and backward (`taps`), of forward and loss under the hooks of the
  engine, and of the whole step.
- `graph`: the step as a CUDA graph, of a fixed shape and of draws that were made before.
- `profile`: kernels of the fastest step that the file has.

Both steps see the same rows. Each case becomes a line of the file when it is done, and a case that is there is not
measured again. Code 75 says that the time was over before the last one.
"""

import argparse
import contextlib
import functools
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diffusers_dp.data.images import public_facts
from diffusers_dp.distributed.memory import keep_freed_memory, peak_bytes
from diffusers_dp.gradients import rules
from diffusers_dp.gradients.per_example import per_example_gradients
from diffusers_dp.gradients.step import clip_factors, clipped_gradient_sum
from diffusers_dp.methods.config import load_config
from diffusers_dp.models.draws import Draws
from diffusers_dp.randomness.private_generator import PrivateGenerator
from diffusers_dp.runs.dp_sgd import Trained
from diffusers_dp.runs.launch import planned_model


UNFINISHED = 75
RECIPE = ["--config", "mnist_eps1", "--dry_run"]  # of FETA-Pro: 64 and 64 channels, heads of 64
TINY = ["--block_out_channels", "4", "--layers_per_block", "1", "--attention_resolutions", ""]
TINY_SHARE = 8  # a tiny run has one case of so many
MAX_NORM = 1e-3
ROUNDS = 3
KERNELS = 15  # of a profile
Step = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One way to compute a step.

    Args:
        multiplicity (`int`): K.
        images (`int`): Physical batch.
        precision (`str`): `float32`, `tf32` or `bf16`.
        channels_last (`bool`): Memory format of weights and rows.
        in_a_call (`int`): Images of a grouped convolution.
        search (`bool`): Whether cuDNN tries all of its algorithms.
        how (`str`): `eager`, `taps`, `compiled loss`, `compiled step` or `graph`.
    """

    multiplicity: int
    images: int
    precision: str = "float32"
    channels_last: bool = False
    in_a_call: int = rules.IMAGES_IN_A_CALL
    search: bool = False
    how: str = "eager"


def cases(part: str, multiplicities: Sequence[int], images: Sequence[int], rows: list[dict[str, Any]]) -> list[Case]:
    """The cases of a part, those that tell most first."""
    sizes = [(k, b) for b in images for k in multiplicities]
    if part == "formats":
        layouts = itertools.product(("float32", "tf32", "bf16"), (False, True))
        return [Case(k, b, *layout) for (k, b), layout in itertools.product(sizes, list(layouts))]
    if part == "calls":
        ways = itertools.product((64, 128, 256, rules.IMAGES_IN_A_CALL), (False, True), ("float32", "bf16"))
        return [
            Case(k, b, precision, False, calls, search)
            for (k, b), (calls, search, precision) in itertools.product(sizes, list(ways))
        ]
    if part == "compiled":
        ways = itertools.product(("taps", "compiled loss", "compiled step"), ("float32", "bf16"))
        return [Case(k, b, precision, how=how) for (k, b), (how, precision) in itertools.product(sizes, list(ways))]
    if part == "graph":
        return [Case(k, b, precision, how="graph") for (k, b) in sizes for precision in ("float32", "bf16")]
    found = []
    for k in multiplicities:
        known = [row for row in rows if "rows_per_second" in row and row["case"]["multiplicity"] == k]
        known = [row for row in known if row["case"]["how"] == "eager"]
        fastest = max(known, key=lambda row: row["rows_per_second"], default=None)
        found.append(Case(k, images[0]) if fastest is None else Case(**fastest["case"]))
    return found


def measure(case: Case, device: torch.device, flags: list[str]) -> dict[str, Any]:
    """Rows a second, the ratio to the ordinary step, and megabytes above it; or why there are none."""
    torch.set_float32_matmul_precision("high" if case.precision == "tf32" else "highest")
    torch.backends.cudnn.benchmark = case.search
    rules.IMAGES_IN_A_CALL = case.in_a_call
    torch.manual_seed(0)
    trained, shape = build(case, device, flags)
    try:
        ordinary = ordinary_step(trained, case, shape, device)
        private = private_step(trained, case, shape, device)
        fastest, seconds = timed(ordinary, device), timed(private, device)
        above = peak_bytes(private, device) - peak_bytes(ordinary, device)
    except Exception as error:  # a figure, too: of memory, of dynamo, of capture
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    rows = case.images * case.multiplicity
    return {
        "rows_per_second": round(rows / seconds, 1), "seconds": round(seconds, 6),
        "to_ordinary": round(seconds / fastest, 3), "ordinary_rows_per_second": round(rows / fastest, 1),
        "mb_above_ordinary": round(above / 1e6),
    }  # fmt: skip


def build(case: Case, device: torch.device, flags: list[str]) -> tuple[Trained, tuple[int, ...]]:
    """What DP-SGD of the recipe trains, and the shape of an image."""
    precision = ["--mixed_precision", "bf16" if case.precision == "bf16" else "no"]
    config = load_config([*RECIPE, *precision, *flags])
    facts = public_facts(config.data)
    trained = planned_model(config, facts)
    assert trained is not None
    trained.module.to(device)
    trained.module.to(memory_format=layout(case))  # type: ignore[call-overload]
    return trained, facts.image_shape


def layout(case: Case) -> torch.memory_format:
    return torch.channels_last if case.channels_last else torch.contiguous_format


def blanks(case: Case, number: int, shape: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.rand(number, *shape, device=device).contiguous(memory_format=layout(case)) * 2 - 1
    return images, torch.arange(number, device=device) % 10


def ordinary_step(trained: Trained, case: Case, shape: tuple[int, ...], device: torch.device) -> Step:
    images, labels = blanks(case, case.images * case.multiplicity, shape, device)
    generator = PrivateGenerator()

    def step() -> None:
        trained.loss(trained.model, images, labels, generator).mean().backward()
        trained.module.zero_grad()

    return step


def private_step(trained: Trained, case: Case, shape: tuple[int, ...], device: torch.device) -> Step:
    images, labels = blanks(case, case.images, shape, device)
    loss = trained.loss
    if case.how == "taps":
        return tapped(trained, case, images, labels)
    if case.how == "graph":
        loss = with_fixed_draws(trained, case, shape, device)
    if case.how == "compiled loss":
        loss = torch.compile(loss, backend=backend(device))
    summed = functools.partial(
        clipped_gradient_sum, trained.model, loss, [(images, labels, torch.ones_like(labels, dtype=torch.bool), None)],
        max_grad_norm=MAX_NORM, noise_multiplicity=case.multiplicity, generator=PrivateGenerator(),
    )  # fmt: skip
    if case.how == "compiled step":
        return torch.compile(summed, backend=backend(device))
    return captured(summed) if case.how == "graph" and device.type == "cuda" else summed


def backend(device: torch.device) -> str:
    return "inductor" if device.type == "cuda" else "eager"  # traced alike, without a compiler of C++


def with_fixed_draws(trained: Trained, case: Case, shape: tuple[int, ...], device: torch.device) -> Any:
    """A graph cannot ask the operating system for a seed: times and noise were drawn before."""
    loss: Any = trained.loss
    rows = case.images * case.multiplicity
    draws = Draws(None, device)
    noise, times = draws.normal(rows, *shape), loss.times(draws, rows)
    return lambda model, images, labels, generator: loss.at(model, images, labels, noise, times)


def tapped(trained: Trained, case: Case, images: torch.Tensor, labels: torch.Tensor) -> Step:
    """The step with forward, loss and backward compiled as one graph, which hooks of a pass would break. Zeros are
    added to what each layer gives: their gradients are those of its output, and its input is handed out. So hooks stay
    where they are and write into one dictionary; gradients per image are formed outside of the graph."""
    model, k = trained.model, case.multiplicity
    rows, row_labels = images.repeat_interleave(k, 0), labels.repeat_interleave(k)
    row_loss = with_fixed_draws(trained, case, tuple(images.shape[1:]), images.device)
    layers = {name: layer for name, layer in model.named_modules() if rules.rule_of(layer) is not None}
    inputs: dict[str, torch.Tensor] = {}
    taps: dict[str, torch.Tensor] = {}

    def tap(name: str, layer: nn.Module, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        inputs[name] = given[0]
        if name not in taps:  # of the first call, for the shape
            taps[name] = torch.zeros((), dtype=output.dtype, device=output.device).expand(output.shape)
        return output + taps[name]

    for name, layer in layers.items():
        layer.register_forward_hook(functools.partial(tap, name))
    trained.module.requires_grad_(False)
    row_loss(model, rows, row_labels, None)
    zeros = {name: each.requires_grad_() for name, each in taps.items()}

    def forward(zeros: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        taps.update(zeros)
        return row_loss(model, rows, row_labels, None).sum(), dict(inputs)

    compiled = torch.compile(forward, backend=backend(images.device))
    names = {parameter: name for name, parameter in model.named_parameters()}

    def step() -> dict[str, torch.Tensor]:
        loss, activations = compiled(zeros)
        gradients = torch.autograd.grad(loss, list(zeros.values()))
        collected = per_example_gradients(model, group_size=k)
        with torch.no_grad():
            for (name, zero), gradient in zip(zeros.items(), gradients, strict=True):
                activation = activations[name].detach()
                if activation.is_floating_point():
                    activation = activation.to(zero.dtype)
                for parameter, parts in rules.rule_of(layers[name])(layers[name], activation, gradient, k):
                    collected._keep(names[parameter], parts)
            return collected.weighted_sum(clip_factors(collected.squared_norms(), MAX_NORM))

    return step


def captured(step: Step) -> Step:
    """The step as a CUDA graph, after a warm-up on a stream of its own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def timed(step: Step, device: torch.device) -> float:
    """The median of some calls, after one that chooses, compiles and allocates."""
    seconds = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def profile(case: Case, device: torch.device, flags: list[str]) -> dict[str, Any]:
    """Shares of the kernels that take longest."""
    trained, shape = build(case, device, flags)
    step = private_step(trained, case, shape, device)
    step()
    activity = torch.profiler.ProfilerActivity
    on_card = device.type == "cuda"
    with torch.profiler.profile(activities=[activity.CUDA if on_card else activity.CPU]) as found:
        step()
    key = "self_device_time_total" if on_card else "self_cpu_time_total"
    events = sorted(found.key_averages(), key=lambda each: -getattr(each, key))
    total = sum(getattr(each, key) for each in events)
    shares = {each.key[:80]: round(getattr(each, key) / total, 4) for each in events[:KERNELS]}
    return {"ms": round(total / 1e3, 2), "shares": shares}


@contextlib.contextmanager
def as_it_was() -> Iterator[None]:
    """Settings of PyTorch and of the rules stay as they were found."""
    calls, search = rules.IMAGES_IN_A_CALL, torch.backends.cudnn.benchmark
    try:
        yield
    finally:
        rules.IMAGES_IN_A_CALL, torch.backends.cudnn.benchmark = calls, search
        torch.set_float32_matmul_precision("highest")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("formats", "calls", "compiled", "graph", "profile"))
    parser.add_argument("--multiplicities", type=int, nargs="+", default=[32, 1], help="Values of K.")
    parser.add_argument("--images", type=int, nargs="+", default=[64, 256, 16], help="Physical batches.")
    parser.add_argument("--rows", type=Path, required=True, help="File that figures are appended to.")
    parser.add_argument("--seconds", type=float, default=110, help="Time of this call; a case more may begin in it.")
    parser.add_argument("--tiny", action="store_true", help="A tiny network, and few cases.")
    args = parser.parse_args(argv)
    keep_freed_memory()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    known = [json.loads(line) for line in args.rows.read_text().splitlines()] if args.rows.exists() else []
    measured = [(row["part"], row["case"]) for row in known if "case" in row and row["dry_run"] == args.tiny]
    end = time.monotonic() + args.seconds
    for case in cases(args.part, args.multiplicities, args.images, known)[:: TINY_SHARE if args.tiny else 1]:
        if (args.part, asdict(case)) in measured:
            continue
        if time.monotonic() > end:
            return UNFINISHED
        with as_it_was():
            figures = (profile if args.part == "profile" else measure)(case, device, TINY if args.tiny else [])
        row = {"part": args.part, "case": asdict(case), **figures, "dry_run": args.tiny}
        with open(args.rows, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
