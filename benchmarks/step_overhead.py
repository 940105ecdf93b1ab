"""What does a training script add to the engine? Time and memory of its DP-SGD, beside those of the clipped gradient
sums alone.

    python benchmarks/step_overhead.py --dataset_name path/to/mnist
    python benchmarks/step_overhead.py --methods dpdm --steps 50 -- --noise_multiplicity 8 --max_physical_batch_size 16

Each method's script runs as it is, by its recipe `mnist_cpu` with next to no warm-up and no public images, for a few
steps of DP-SGD and one checkpoint. The engine is `clipped_gradient_sum`: forward, backward, norms, clipping, what
`benchmarks/dp_step.py` calls `ours`. All else is the script's own: sampling, reading images, the ledger, noise, Adam,
averaging, checkpoints. Both times are of one run, in one process, so that other jobs on the machine slow both. Memory
is the highest sum of live bytes of torch within one step, and within its largest physical batch. Flags after `--` go
to the scripts.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from diffusers_dp.audit.preflight import preflight
from diffusers_dp.distributed.memory import keep_freed_memory, peak_bytes
from diffusers_dp.errors import DiffusersDPError
from diffusers_dp.methods.registry import METHODS as REGISTERED
from diffusers_dp.privacy import sensitive
from diffusers_dp.runs.diffusion_run import DiffusionRun
from diffusers_dp.runs.launch import run_method


TRAINING = Path(__file__).parents[1] / "training"
METHODS = ("feta_pro", "dp_feta", "dpdm", "dp_diffusion")
SHORT = "--skip_preflight --lr_scheduler constant --lr_warmup_steps 0".split()
SHORT_WARM_UP = {
    "feta_pro": "--spatial_steps 1 --generator_steps 1 --expert num_auxiliary_images=200 --frequency_steps 1".split(),
    "dp_feta": ["--spatial_steps", "1"],
}


class Timed:
    """Calls a function, and adds up the seconds of it; keeps the arguments of its largest call."""

    def __init__(self, function: Callable[..., Any]):
        self.function, self.seconds, self.largest = function, 0.0, (0, (), {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        size = (
            max((len(batch[0]) for batch in args[2]), default=0) if len(args) > 2 and isinstance(args[2], list) else 0
        )
        self.largest = max(self.largest, (size, args, kwargs), key=lambda call: call[0])
        start = time.perf_counter()
        try:
            return self.function(*args, **kwargs)
        finally:
            self.seconds += time.perf_counter() - start


def run(method: str, flags: list[str], watched: Callable[[Callable], Any]) -> Timed:
    """A run whose DP-SGD is handed to `watched`; what the engine did in it."""

    class Watched(DiffusionRun):
        def dp_sgd(self, *args: Any, **kwargs: Any) -> None:
            watched(lambda: super(Watched, self).dp_sgd(*args, **kwargs))

    engine = Timed(sensitive.clipped_gradient_sum)
    sensitive.clipped_gradient_sum = engine
    try:
        with tempfile.TemporaryDirectory() as folder:
            recipe = yaml.safe_load((TRAINING / "recipes" / method / "mnist_cpu.yaml").read_text())
            recipe.pop("by_name", None)
            without = {name: value for name, value in recipe.items() if not name.startswith("public_")}
            Path(folder, "recipe.yaml").write_text(yaml.safe_dump(without))
            own = ["--config", f"{folder}/recipe.yaml", "--output_dir", f"{folder}/run", *SHORT]
            given = [*own, *SHORT_WARM_UP.get(method, []), *flags]
            run_method(replace(REGISTERED[method], run_class=Watched), preflight, given)
    finally:
        sensitive.clipped_gradient_sum = engine.function
    return engine


def measure(method: str, flags: list[str], steps: int) -> str:
    loop = Timed(lambda dp_sgd: dp_sgd())
    peaks: list[int] = []

    def profiled(dp_sgd: Callable) -> None:
        peaks.append(peak_bytes(dp_sgd, torch.device("cpu")))

    engine = run(method, [*flags, "--max_train_steps", str(steps), "--checkpointing_steps", str(steps)], loop)
    whole = loop.seconds
    _, args, kwargs = run(method, [*flags, "--max_train_steps", "1", "--checkpointing_steps", "1"], profiled).largest
    alone = peak_bytes(lambda: sensitive.clipped_gradient_sum(*args, **kwargs), torch.device("cpu"))
    return (
        f"| {method} | {whole / steps:.3f} | {engine.seconds / steps:.3f} | {whole / engine.seconds - 1:.1%} | "
        f"{peaks[0] / 1e6:.0f} | {alone / 1e6:.0f} | {peaks[0] / alone - 1:.1%} |"
    )


def main() -> None:
    own = sys.argv[1:]
    own, flags = (own[: own.index("--")], own[own.index("--") + 1 :]) if "--" in own else (own, [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset_name", required=True)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args(own)
    keep_freed_memory()
    rows = [measure(method, ["--dataset_name", args.dataset_name, *flags], args.steps) for method in args.methods]
    print("| method | seconds a step | of which the engine | more | peak MB of a step | of the engine | more |")
    print("|---|---|---|---|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    try:
        main()
    except DiffusersDPError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
