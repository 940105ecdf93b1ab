"""What surviving crashes costs: the share of a run that goes into checkpoints and ledger, seconds to go on, memory
over many steps.

    python benchmarks/reliability.py
    python benchmarks/reliability.py --memory_steps 1000 -- --max_train_steps 40 --block_out_channels 16,32

Trains by `training/train_dpdm.py` (flags after `--`) in `--output_dir`, which must not exist, three times: a run to
the end, the same one resumed from its last checkpoint in a process of its own, and `--memory_steps` steps of a tiny
model. Prints one JSON object; nothing else should run on the machine.

- `overhead`: of the seconds from the first step of DP-SGD to its last checkpoint, the part spent inside ledger and
  checkpoints.
- `resume_seconds`: from the start of the process to the first step that it takes, imports included; `python_seconds`
  of these are imports.
- `memory`: resident megabytes after a tenth, a half and all of the steps.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from diffusers_dp import SensitiveImages
from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.runs import dp_sgd as loop
from diffusers_dp.training import train_dpdm as script


MEGABYTE = 2**20
TINY = (
    "--block_out_channels 4,8 --noise_multiplicity 1 --train_batch_size 4 --num_inference_steps 1 --accountant rdp "
    "--skip_preflight"
).split()
# Of the ledger: what DP-SGD calls at each step, and at each checkpoint.
LEDGER_CALLS = ("take_step", "flush_executed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/reliability"))
    parser.add_argument("--memory_steps", type=int, default=10_000)
    parser.add_argument(
        "--first_step_of", type=float, help=argparse.SUPPRESS
    )  # the process that resumes: when it was started
    own = sys.argv[1:]
    flags = own[own.index("--") + 1 :] if "--" in own else []
    args = parser.parse_args(own[: own.index("--")] if "--" in own else own)
    if args.first_step_of is not None:
        first_step(args.first_step_of, flags)
    run = args.output_dir / "run"
    # One step more than is trained can be paid for: the one that the process which resumes takes.
    measured: dict[str, Any] = overhead([*flags, "--restart_slack", "1", "--output_dir", str(run)])
    command = [sys.executable, __file__, "--first_step_of", repr(time.time()), "--", *flags, "--output_dir", str(run)]
    command += ["--max_train_steps", str(measured["steps"] + 1), "--resume_from_checkpoint", "latest"]
    measured |= json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    memory = [*TINY, "--max_train_steps", str(args.memory_steps), "--output_dir", str(args.output_dir / "memory")]
    measured["memory"] = resident_megabytes(memory, args.memory_steps)
    print(json.dumps(measured, indent=2))


class Stopwatch:
    """Adds up the seconds inside of functions, and notes when the first one began and the last one ended."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.begun: float | None = None
        self.ended = 0.0

    def around(self, owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            self.begun = self.begun or start
            try:
                return function(*arguments, **options)
            finally:
                self.ended = time.perf_counter()
                self.seconds[name] = self.seconds.get(name, 0.0) + self.ended - start

        setattr(owner, name, timed)


def overhead(flags: list[str]) -> dict[str, Any]:
    """Of a whole run."""
    watch, steps = Stopwatch(), []
    noisy_gradient = SensitiveImages.noisy_gradient
    kept = {name: getattr(PrivacyLedger, name) for name in LEDGER_CALLS}, loop.save_checkpoint
    for name in LEDGER_CALLS:
        watch.around(PrivacyLedger, name)
    watch.around(loop, "save_checkpoint")

    def counted(*arguments: Any, **options: Any) -> Any:
        steps.append(1)
        return noisy_gradient(*arguments, **options)

    SensitiveImages.noisy_gradient = counted  # type: ignore[method-assign]
    script.main(flags)
    SensitiveImages.noisy_gradient = noisy_gradient  # type: ignore[method-assign]
    for name, function in kept[0].items():
        setattr(PrivacyLedger, name, function)
    loop.save_checkpoint = kept[1]
    assert watch.begun is not None
    total = watch.ended - watch.begun
    return {
        "steps": len(steps),
        "dp_sgd_seconds": total,
        "seconds_inside": watch.seconds,
        "overhead": sum(watch.seconds.values()) / total,
        "threads": torch.get_num_threads(),
    }


def first_step(started: float, flags: list[str]) -> None:
    """Ends the process when it has drawn the first sample of DP-SGD."""
    imported = time.time()

    def found(*arguments: Any) -> Any:
        print(json.dumps({"resume_seconds": time.time() - started, "python_seconds": imported - started}), flush=True)
        sys.exit(0)

    sys.modules["diffusers_dp.privacy.passages"].poisson_sample = found  # type: ignore[attr-defined]
    script.main(flags)


def resident_megabytes(flags: list[str], steps: int) -> dict[int, float]:
    """After a tenth of the steps, when all that is allocated once is there, after half of them, and at the end."""
    process, found, taken = psutil.Process(), {}, 0
    noisy_gradient = SensitiveImages.noisy_gradient

    def watched(*arguments: Any, **options: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken in (steps // 10, steps // 2, steps):
            found[taken] = process.memory_info().rss / MEGABYTE
        return noisy_gradient(*arguments, **options)

    SensitiveImages.noisy_gradient = watched  # type: ignore[method-assign]
    script.main(flags)
    SensitiveImages.noisy_gradient = noisy_gradient  # type: ignore[method-assign]
    return found


if __name__ == "__main__":
    main()
