"""All figures of one GPU, in the order of what they tell: one command, called again until nothing is left.

    python benchmarks/gpu.py data path/to/mnist          # copies it to runs/gpu_data/mnist, which git ignores
    python benchmarks/gpu.py run                         # eight minutes at most; the next call goes on
    python benchmarks/gpu.py run --dry_run               # every part with tiny sizes, on a CPU

Parts: exactness of the engine and of the door on the card; the pre-flight of a run; the paper's MNIST recipe at
epsilon 1, timed from four steps of DP-SGD; the tests of every room that computes, on the card; moments and teachers;
cost and memory of a private step against an ordinary one; then FETA-Pro by the rules of `--config auto` and at the
paper's scale, each drawn from and scored. Each part is a process of its own, and leaves a row with the card's name in
`gpu.jsonl` of the output folder, beside a log. A training that does not end in time keeps its state and is resumed.
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
OUTPUT, DATA = Path("runs/gpu"), Path("runs/gpu_data/mnist")  # recipes know a data set by its name
LIMIT = 480  # seconds of one call
GRACE = 30  # seconds that a training has to keep its state
LINES = 12  # of a part's output, in its row
ROOMS = (
    "gradients privacy queries randomness models methods pipelines schedulers sampling runs training audit "
    "distributed release evaluation test_whole_method.py test_histories.py test_hostile.py"
)
RULES = "--num_train_images 60000 --class_names 0,1,2,3,4,5,6,7,8,9 --resolution 28 --num_channels 1 --minutes 8"
TINY = (
    "--max_train_steps 2 --lr_warmup_steps 0 --train_batch_size 16 --noise_multiplicity 1 --block_out_channels 4,8 "
    "--layers_per_block 1 --attention_resolutions= --spatial_steps 1 --frequency_steps 1 --generator_steps 1 "
    "--expert generator_channels=4,num_auxiliary_images=20 --num_frequency_features 20 --num_inference_steps 1 "
    "--noise_bands 1 --expert distillation_steps=0"
)
TINY_DPDM = (
    "--max_train_steps 2 --lr_warmup_steps 0 --train_batch_size 16 --noise_multiplicity 1 --block_out_channels 4,8 "
    "--layers_per_block 1 --num_inference_steps 1 --accountant rdp"
)
TINY_MOMENTS = "--images_per_class 1 --num_frequencies 4 --num_parts 1"
TINY_TEACHERS = (
    "--max_train_steps 1 --lr_warmup_steps 0 --num_teachers 4 --expert first_teacher_steps=1 --teacher_steps 1 "
    "--generated_per_round 10 --generator_steps 1 --expert generator_channels=4 --diffusion_steps 1 "
    "--block_out_channels 4,8"
)


@dataclass(frozen=True)
class Part:
    """One process.

    Args:
        name (`str`): Name of its row.
        command (`str`): What is run; `{run}` is a folder for it, `{data}` that of the data set.
        tiny (`str`): Flags that are added in a dry run.
        resumes (`bool`): Whether it is a training, which goes on in the next call.
    """

    name: str
    command: str
    tiny: str = ""
    resumes: bool = False


def parts() -> Iterator[Part]:
    python = shlex.quote(sys.executable)
    here, train = shlex.quote(str(HERE)), f"{python} -m diffusers_dp.cli train"
    at = "--dataset_name {data} --output_dir {run}"
    yield Part("exactness", f"{python} {here}/gpu.py check")
    yield Part("pre-flight", f"{train} dpdm --config mnist_cpu --max_train_steps 12 {at}", TINY_DPDM)
    step = f"{python} {here}/dp_step.py --output {{run}}.md"
    short = (
        f"{train} dpdm --config mnist_eps1 {at} --max_train_steps 4 --skip_preflight --max_physical_batch_size auto"
    )
    yield Part("4 steps of mnist_eps1", short, TINY_DPDM)
    yield Part("4 steps in bf16", f"{short} --mixed_precision bf16", TINY_DPDM)
    rooms = " ".join(shlex.quote(str(HERE.parent / "tests" / room)) for room in ROOMS.split())
    suite = f"env OMP_NUM_THREADS=1 {python} -m pytest -v -n auto -p no:cacheprovider"
    yield Part("suite", f"{suite} {rooms}", "-k test_dora_is_refused")
    yield Part("moments", f"{train} moments --config mnist_cpu {at} --images_per_class 500", TINY_MOMENTS)
    yield Part("teachers", f"{train} gs_wgan --config mnist_cpu {at}", TINY_TEACHERS)
    tiny = "--models 14x14 --multiplicities 1 --images 2 --rounds 1 --entries ordinary ours"
    entries = "--entries ordinary ours 'Opacus hooks'"
    yield Part("private step", f"{step} --models 28x28 --multiplicities 1 8 32 --images 64 {entries}", tiny)
    bf16 = f"{step} --bf16 --models 28x28 80M --multiplicities 8 --images 32 --entries ordinary ours"
    yield Part("bf16", bf16, tiny)
    trained = f"{train} feta_pro {at} --max_physical_batch_size auto --skip_preflight"
    # Rules are what a CPU's row of the leaderboard has.
    for recipe, more in (("rules", f"auto {RULES}"), ("mnist_eps1", "mnist_eps1"), ("mnist_eps10", "mnist_eps10")):
        yield Part(recipe, f"{trained} --config {more}", TINY, resumes=True)
        draw = f"{python} -m diffusers_dp.cli sample {{runs}}/{recipe}/release --output_dir {{run}} --num_images 5000"
        yield Part(f"{recipe} drawn", draw, "--num_images 4 --num_inference_steps 1")
        yield Part(f"{recipe} scored", f"{python} {here}/scorer.py {{runs}}/{recipe}_drawn --real {{data}}", "--help")


def run(output: Path, data: Path, *, dry: bool, only: str, seconds: float) -> int:
    """Runs the parts that have no row of success, until the time is over. Returns 1 if one failed."""
    rows, end = output / "gpu.jsonl", time.monotonic() + seconds
    output.mkdir(parents=True, exist_ok=True)
    known = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    done = {row["part"] for row in known if row["status"] == "done" and row["dry_run"] == dry}
    failed = 0
    for part in parts():
        left = end - time.monotonic()
        if part.name in done or only not in part.name:
            continue
        if left < GRACE:
            print(f"The time is over before {part.name}; call again.")
            break
        row = {**run_part(part, output, data, dry=dry, seconds=left - GRACE), "dry_run": dry, "card": card(dry)}
        with open(rows, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(
            f"{part.name:<24} {row['status']:<10} {row['seconds']:>6.0f} s  {row['said'][-1] if row['said'] else ''}"
        )
        failed |= row["status"] == "failed"
        if row["status"] == "unfinished":
            break
    return int(failed)


def run_part(part: Part, output: Path, data: Path, *, dry: bool, seconds: float) -> dict[str, Any]:
    folder = output / part.name.replace(" ", "_")
    names = {"run": shlex.quote(str(folder)), "runs": shlex.quote(str(output)), "data": shlex.quote(str(data))}
    command = shlex.split(part.command.format(**names) + (f" {part.tiny}" if dry else ""))
    if part.resumes and (folder / "private" / "run.json").exists():
        command += ["--resume_from_checkpoint", "latest"]
    elif folder.exists() and not part.resumes:
        shutil.rmtree(folder)
    environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if dry else {}), "TQDM_MININTERVAL": "30"}
    start = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, errors="replace"
    )
    status = "done"
    try:
        said = process.communicate(timeout=seconds)[0]
        status = "done" if process.returncode == 0 else "failed"
    except subprocess.TimeoutExpired:
        process.terminate()
        status = "unfinished" if part.resumes else "failed"
        try:
            said = process.communicate(timeout=GRACE)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[0]
    folder.with_suffix(".log").write_text(said)
    lines = [line.split("\r")[-1].strip() for line in said.splitlines()]
    return {
        "part": part.name, "status": status, "seconds": round(time.monotonic() - start, 1),
        "command": shlex.join(command), "said": [line for line in lines if line][-LINES:],
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
    from diffusers_dp.gradients import per_example_gradients
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
