"""All figures of one GPU, in the order of what they tell: one command, called again until nothing is left.

    python benchmarks/gpu.py data path/to/mnist          # copies it to runs/gpu_data/mnist, which git ignores
    python benchmarks/gpu.py run                         # nine minutes at most; the next call goes on
    python benchmarks/gpu.py run --dry_run               # every part with tiny sizes, on a CPU

Parts: (a) a step of the published MNIST recipe in float32, TF32 and bf16, with and without channels_last; (b) more
images in a grouped convolution; (c) `torch.compile`; (d) CUDA graphs; (e) a profile of the fastest step; (f) FETA-Pro
by the rules of `--config auto` for ten minutes of this card, verified, drawn from and judged; (g) exactness on the
card, and the tests that once failed there.

Each part is a process of its own. It leaves a row with the card's name in `gpu.jsonl` of the output folder, a log
beside that, and, of steps, a row for each case. It has two minutes; a training, or a network of the published
protocol, has seven. A part that says by code 75 that it is not done goes on where it was, in the same call or in the
next one, which may be on another machine that has the output folder.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


HERE = Path(__file__).parent
OUTPUT, DATA = Path("runs/gpu"), Path("runs/gpu_data/mnist")
LIMIT, PART = 540.0, 120.0  # seconds of one call, and of a part in it
LONGEST = 420.0  # seconds of one network of 50 epochs, and of a training, whose warm-up begins anew when it is stopped
SLOWER = 10  # how much longer a part may take in a dry run
GRACE = 20  # seconds that a part has to keep its state
UNFINISHED = 75
LINES = 12  # of a part's output, in its row
MENDED = (
    "gradients privacy/test_exact_noise.py privacy/test_noise.py privacy/test_noise_cells.py "
    "training/test_exact_runs.py training/test_train_private_evolution.py training/test_train_pge_dpsgd.py "
    "training/test_train_releases.py training/test_train_dp_ldm.py distributed/test_worker_pool.py"
)
RULES = "--num_train_images 60000 --class_names 0,1,2,3,4,5,6,7,8,9 --resolution 28 --num_channels 1"
RULES += " --minutes 10 --expert minutes_on=gpu"
TINY = (
    "--max_train_steps 2 --lr_warmup_steps 0 --train_batch_size 16 --noise_multiplicity 1 --block_out_channels 4 "
    "--layers_per_block 1 --attention_resolutions= --frequency_steps 1 --num_inference_steps 1 --noise_bands 1 "
    "--expert distillation_steps=0,num_auxiliary_images=20"
)
TINY_STEPS = "--tiny --images 2 --multiplicities 2 1"


@dataclass(frozen=True)
class Part:
    """One process.

    Args:
        name (`str`): Name of its row.
        command (`str`): What is run; `{run}` is a folder for it, `{data}` that of the data set, `{rows}` the file of
            rows.
        tiny (`str`): Flags that are added in a dry run.
        seconds (`float`): The most that it gets at once.
        resumes (`str`, *optional*): Flags with which it goes on, where they are others.
    """

    name: str
    command: str
    tiny: str = ""
    seconds: float = PART
    resumes: str = ""


def parts() -> Iterator[Part]:
    python, here = shlex.quote(sys.executable), shlex.quote(str(HERE))
    ours, steps = f"{python} -m diffusers_dp.cli", f"{python} {here}/gpu_steps.py"
    enough = f"--rows {{rows}} --seconds {PART - GRACE}"
    for k in (32, 1):
        yield Part(f"(a) formats, K = {k}", f"{steps} formats {enough} --multiplicities {k}", TINY_STEPS)
    yield Part("(b) calls", f"{steps} calls {enough} --images 256", TINY_STEPS)
    yield Part("(c) compiled", f"{steps} compiled {enough} --images 64", TINY_STEPS)
    yield Part("(d) graph", f"{steps} graph {enough} --multiplicities 1", TINY_STEPS)
    yield Part("(e) profile", f"{steps} profile {enough} --images 64", TINY_STEPS)
    train = f"{ours} train feta_pro --config auto {RULES} --dataset_name {{data}} --output_dir {{run}}"
    resumes = "--resume_from_checkpoint latest"
    yield Part("(f) rules", f"{train} --skip_preflight", TINY, seconds=LONGEST, resumes=resumes)
    release, drawn = "{runs}/f_rules/release", "{runs}/f_drawn"
    yield Part("(f) verified", f"{ours} verify {release}")
    draw = f"{ours} sample {release} --output_dir {drawn} --num_images 60000"
    yield Part("(f) drawn", draw, "--num_images 20 --num_inference_steps 1")
    yield Part("(f) scored", f"{python} {here}/scorer.py {drawn} --real {{data}}", "--help")
    judged = f"{ours} evaluate --images {drawn} --real {{data}} --output_dir {{run}} --metrics fid --extractors pixels"
    for network in ("wrn", "resnet", "resnext"):
        flags = f"--selection validation --validation_size 5000 --classifiers {network}"
        yield Part(f"(f) {network}", f"{judged} {flags}", "--help", seconds=LONGEST)
    yield Part("(g) exactness", f"{python} {here}/gpu.py check")
    tests = " ".join(shlex.quote(str(HERE.parent / "tests" / place)) for place in MENDED.split())
    suite = f"env OMP_NUM_THREADS=1 {python} -m pytest -q -n auto -p no:cacheprovider {tests}"
    yield Part("(g) tests", suite, "-n 0 -k test_half_precision_that_needs")


def run(output: Path, data: Path, *, dry: bool, only: str, seconds: float) -> int:
    """Runs the parts that have no row of success, until the time is over. Returns 1 if one failed."""
    rows, end = output / "gpu.jsonl", time.monotonic() + seconds
    output.mkdir(parents=True, exist_ok=True)
    known = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    done = {row["part"] for row in known if row.get("status") == "done" and row["dry_run"] == dry}
    failed = 0
    for part in parts():
        status = "done" if part.name in done or only not in part.name else UNFINISHED
        while status == UNFINISHED:
            left = end - time.monotonic() - GRACE
            if left < part.seconds / 2:
                print(f"The time is over before {part.name} is done; call again.")
                return failed
            row = run_part(part, output, data, dry=dry, seconds=min(left, part.seconds * (SLOWER if dry else 1)))
            status = row["status"]
            with open(rows, "a", encoding="utf-8") as file:
                file.write(json.dumps({**row, "dry_run": dry, "card": card(dry)}) + "\n")
            said = row["said"][-1] if row["said"] else ""
            print(f"{part.name:<20} {status!s:<8} {row['seconds']:>6.0f} s  {said[:200]}", flush=True)
        failed |= status == "failed"
    return failed


def run_part(part: Part, output: Path, data: Path, *, dry: bool, seconds: float) -> dict[str, Any]:
    folder = output / "".join(letter for letter in part.name.replace(" ", "_") if letter.isalnum() or letter == "_")
    places = {"run": folder, "runs": output, "data": data, "rows": output / "gpu.jsonl"}
    command = part.command.format(**{name: shlex.quote(str(place)) for name, place in places.items()})
    words = shlex.split(f"{command} {part.tiny if dry else ''}")
    if part.resumes and (folder / "private" / "run.json").exists():
        words += shlex.split(part.resumes)
    environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if dry else {}), "TQDM_MININTERVAL": "30"}
    start = time.monotonic()
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, errors="replace"
    )
    try:
        said = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            said = process.communicate(timeout=GRACE)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[0]
    status: str | int = {0: "done", UNFINISHED: UNFINISHED}.get(process.returncode, "failed")
    folder.with_suffix(".log").write_text(said)
    lines = [line.split("\r")[-1].strip() for line in said.splitlines()]
    return {
        "part": part.name, "status": status, "seconds": round(time.monotonic() - start, 1),
        "command": shlex.join(words), "said": [line for line in lines if line][-LINES:],
    }  # fmt: skip


def card(dry: bool) -> str:
    import torch

    return "CPU (dry run)" if dry or not torch.cuda.is_available() else torch.cuda.get_device_name()


def check() -> None:
    """Exactness on the device that there is: gradients for each image against autograd, the clip norm as a bound, and
    the noise of the door. Raises `AssertionError` where one does not hold."""
    import numpy as np
    import torch
    from torch import nn

    from diffusers_dp.accounting.ledger import PrivacyLedger
    from diffusers_dp.gradients.per_example import per_example_gradients
    from diffusers_dp.mechanisms import sampled
    from diffusers_dp.privacy.sensitive import SensitiveImages

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 4, 3, stride=2, padding=1),
        nn.Flatten(), nn.Linear(64, 3),
    ).to(device)  # fmt: skip
    rows = torch.rand(6, 1, 8, 8, device=device)
    with per_example_gradients(model) as gradients:
        model(rows).square().sum().backward()
    errors = []
    for number, norm in enumerate(gradients.squared_norms().tolist()):
        exact = torch.autograd.grad(model(rows[number : number + 1]).square().sum(), list(model.parameters()))
        reference = sum(float(each.double().square().sum()) for each in exact)
        errors.append(abs(norm - reference) / reference)
    assert max(errors) < 1e-2, errors  # TF32 keeps ten bits
    images = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8), dtype=np.uint8)

    def door(missing: int) -> SensitiveImages:
        readable = np.arange(40) >= missing
        ledger = PrivacyLedger(None, target_epsilon=1e9, target_delta=1e-5, num_images=40, accountant="rdp")
        return SensitiveImages(
            images, None, readable, num_images=40, image_shape=(1, 8, 8), ledger=ledger, device=device
        )

    def gradient(missing: int, noise: float) -> torch.Tensor:
        answer = door(missing).noisy_gradient(
            model, lambda model, rows, labels, generator: model(rows).square().sum(1), sampled(1.0, noise),
            max_grad_norm=0.5, normaliser=1.0, noise_multiplicity=1, max_physical_batch_size=16,
        )  # fmt: skip
        return torch.cat([value.flatten() for value in answer.values()])

    small = 1e-4  # next to no noise: what one image moves
    moved = float((gradient(0, small) - gradient(1, small)).norm())
    assert moved <= 0.5 * 1.01, moved
    noise = torch.cat([gradient(40, 4.0) for _ in range(8)])
    spread = float(noise.std()) / (4.0 * 0.5)
    assert abs(spread - 1) < 0.05, spread
    print(f"{device}: worst relative error of a squared norm {max(errors):.1e}; one image moves a sum by "
          f"{moved / 0.5:.4f} clip norms; noise has {spread:.3f} of its stated deviation")  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    copied = what.add_parser("data", help="Copy a data set into an ignored folder, to carry it along.")
    copied.add_argument("folder", type=Path, help="Folder of MNIST.")
    runs = what.add_parser("run", help="Run the parts that are left.")
    runs.add_argument("--dry_run", action="store_true", help="Tiny sizes on a CPU: does every part run?")
    runs.add_argument("--only", default="", help="Only parts whose name contains this.")
    runs.add_argument("--seconds", type=float, default=LIMIT, help="Time of this call.")
    runs.add_argument("--output_dir", type=Path, default=OUTPUT)
    what.add_parser("check", help="The first part.")
    for each in (copied, runs):
        each.add_argument("--data_dir", type=Path, default=DATA, help="Where the copy is.")
    args = parser.parse_args(argv)
    if args.what == "check":
        check()
    elif args.what == "data":
        shutil.copytree(args.folder, args.data_dir, dirs_exist_ok=True)
        print(f"{args.folder} is copied to {args.data_dir}.")
    else:
        if not args.data_dir.is_dir():
            parser.error(f"{args.data_dir} is not there: run `python benchmarks/gpu.py data path/to/mnist` first")
        return run(args.output_dir, args.data_dir, dry=args.dry_run, only=args.only, seconds=args.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
