# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The training script from its command line: a whole run, refusals, curricula, crashes, damaged images."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from accelerate.state import AcceleratorState
from PIL import Image
from safetensors.torch import load_file

from diffusers_dp.errors import UsageError
from diffusers_dp.models.denoiser import EDMDenoiser
from diffusers_dp.release.allow_list import RELEASE_FILES
from diffusers_dp.verify import verify
from support.few import few
from support.flags import FOLDER, NUM_IMAGES, TINY
from support.places import FETA_PRO, ROOT
from support.runs import (
    PowerCut,
    cut_power_at,
    files,
    independent_epsilon,
    interrupted,
    read_ledger,
    status,
    write_images,
)


LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "1", "--num_machines", "1"]
LAUNCH += ["--mixed_precision", "no", "--dynamo_backend", "no"]

DIGITS = [*TINY, "--train_batch_size", "64"]


def test_from_digits_to_release(tmp_path):
    """By `accelerate launch`, tiny (by RDP: PLD is slow where so few steps spend so much).

    On one core: the script takes a thread per core, and tiny layers wait for theirs where the cores are busy.
    """
    output_dir = tmp_path / "run"
    process = subprocess.run(
        [*LAUNCH, FETA_PRO, *DIGITS, "--accountant", "rdp", "--target_epsilon", "1", "--output_dir", output_dir],
        capture_output=True, text=True, env={**os.environ, "TQDM_DISABLE": "1"}, cwd=ROOT, timeout=300,
        preexec_fn=lambda: os.sched_setaffinity(0, {max(os.sched_getaffinity(0))}),
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert files(output_dir / "release") == set(RELEASE_FILES)
    assert {path.name for path in output_dir.iterdir()} == {"private", "release"}
    assert (output_dir / "private").stat().st_mode & 0o777 == 0o700
    assert status(output_dir) == {"exit_code": 0, "message": "done"}
    released, *following, _ = process.stdout.strip().splitlines()[-4:]
    printed = float(re.search(f"^Released {output_dir / 'release'} with epsilon ([0-9.]+)", released)[1])
    assert independent_epsilon(output_dir) <= printed <= 1
    assert following[0] == f"next: diffusers-dp verify {output_dir / 'release'}"


CURRICULA = {
    "spatial,frequency": ["central_images", "frequency_features"],
    "frequency,spatial": ["central_images", "frequency_features"],
    "mix": ["central_images", "frequency_features"],
    "frequency": ["frequency_features"],
    "spatial": ["central_images"],
    "none": [],
}


@pytest.mark.slow
def test_half_precision(script, folder_flags, tmp_path, monkeypatch):
    """One physical batch of whatever fits, bfloat16 inside, float32 outside."""
    AcceleratorState._reset_state(True)  # it remembers the precision of the first run of a process
    shapes = set()
    forward = EDMDenoiser.forward

    def watched(self, sample, sigma, class_labels=None):
        if torch.is_grad_enabled():
            shapes.add((len(sample), self.autocast_dtype))
        return forward(self, sample, sigma, class_labels)

    monkeypatch.setattr(EDMDenoiser, "forward", watched)
    flags = "--mixed_precision bf16 --max_physical_batch_size auto --accountant rdp".split()
    flags += "--curriculum none --target_epsilon 1 --noise_multiplicity 3 --max_train_steps 3".split()
    script.main([*folder_flags, *flags])
    AcceleratorState._reset_state(True)
    assert {(3, torch.bfloat16), (6, torch.bfloat16)} <= shapes  # one image and two measured the memory
    assert {dtype for _, dtype in shapes} == {torch.bfloat16}
    weights = load_file(tmp_path / "run" / "release" / "unet" / "diffusion_pytorch_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


@pytest.mark.parametrize("curriculum", few(CURRICULA, 0, len(CURRICULA) - 1))
def test_every_curriculum(script, tmp_path, folder_flags, capsys, curriculum):
    """Asks and pays for the queries that it needs alone, and releases."""
    script.main([*folder_flags, "--curriculum", curriculum])
    header, rows = read_ledger(tmp_path / "run")
    assert [row["stage"] for row in rows] == [*CURRICULA[curriculum], "dp_sgd", "dp_sgd"]
    assert all(row["steps_executed"] == row["steps_reserved"] for row in rows)
    assert independent_epsilon(tmp_path / "run") <= header["target_epsilon"]
    assert files(tmp_path / "run" / "release") == set(RELEASE_FILES)
    receipt = json.loads((tmp_path / "run" / "release" / "privacy_receipt.json").read_text())
    assert receipt["curriculum"]["curriculum"] == curriculum
    warm_ups = re.findall(r"warm-up \((\w+)\)", capsys.readouterr().out)
    assert warm_ups == [name for name in curriculum.split(",") if name != "none"]


def test_auxiliary_images_of_moments(script, tmp_path, folder_flags, monkeypatch):
    """They cost their share of the whole budget; a run that goes on has their answers, and draws the same images."""
    flags = [*folder_flags, *"--auxiliary_features moments --num_frequencies 9 --num_parts 2".split()]
    flags += ["--budget", "moments=0.3", "--curriculum", "frequency", "--expert", "distillation_steps=2"]
    interrupted(script, monkeypatch, flags, 2)
    _, before = read_ledger(tmp_path / "run")
    script.main([*flags, "--resume_from_checkpoint", "latest"])
    _, rows = read_ledger(tmp_path / "run")
    asked = ["grey_levels", "class_moments", "part_means_1", "part_means_2", "part_means_3", "covariances"]
    assert [row["stage"] for row in rows][:6] == asked and before[:6] == rows[:6]
    receipt, problems = verify(tmp_path / "run" / "release")
    assert receipt["curriculum"]["expert"]["distillation_steps"] == 2
    assert problems == [] and receipt["curriculum"]["num_parts"] == receipt["curriculum"]["distillation_steps"] == 2
    taught = [json.loads(line)["stage"] for line in (tmp_path / "run/private/stages.jsonl").read_text().splitlines()]
    assert taught.index("auxiliary images") < taught.index("warm-up (moments)") < taught.index("warm-up (frequency)")


@pytest.mark.parametrize(("call", "lost"), [(2, 0), (7, 2)], ids=["in warm-up", "in DP-SGD"])
def test_resuming_after_a_crash(script, tmp_path, folder_flags, monkeypatch, capsys, call, lost):
    """No query is asked again, lost steps stay spent, and the total stays within the target."""
    flags = [*folder_flags, "--max_train_steps", "4", "--checkpointing_steps", "2"]
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        cut_power_at(patch, script, call)
        with pytest.raises(PowerCut):
            script.main(flags)
    _, before = read_ledger(run)
    answers = {name: (run / "private" / "answers" / name).read_bytes() for name in files(run / "private" / "answers")}
    assert len(answers) == 4 and not (run / "release").exists()
    with pytest.raises(UsageError, match="--resume_from_checkpoint latest"):
        script.main(flags)
    script.main([*flags, "--resume_from_checkpoint", "latest"])
    header, after = read_ledger(run)
    assert [row["stage"] for row in after][:2] == ["central_images", "frequency_features"]
    steps = [row for row in after if row["stage"] == "dp_sgd"]
    assert len(after) == 2 + len(steps) and after[: len(before)] == before
    assert sum(row["steps_reserved"] for row in steps) == 4
    assert sum(row["steps_executed"] for row in steps if row["state"] == "executed") == 4 - lost
    assert independent_epsilon(run) <= header["target_epsilon"]
    assert {name: (run / "private" / "answers" / name).read_bytes() for name in answers} == answers
    assert files(run / "release") == set(RELEASE_FILES) and status(run)["exit_code"] == 0
    assert (run / "private" / f"checkpoint-{4 - lost}").is_dir()


def visible(script, capfd, output_dir, flags):
    """All that a run shows outside private/, with seconds and the noise's consequences taken out."""
    script.main([*FOLDER, *flags, "--output_dir", str(output_dir)])
    out, err = capfd.readouterr()
    lines = [re.sub(r" +[\d.]+$", "", line).replace(str(output_dir), "RUN") for line in out.splitlines()]
    bars = [re.sub(r"\|.*\| (\d+/\d+).*", r" \1", part) for part in re.split(r"[\r\n]", err) if "100%" in part]
    release = output_dir / "release"
    receipt = json.loads((release / "privacy_receipt.json").read_text())
    receipt.pop("files")
    with Image.open(release / "samples.png") as samples:
        picture = (samples.size, samples.mode)
    sizes = {path.name: path.stat().st_size for path in release.rglob("*.safetensors")}
    return {
        "stdout": lines, "bars": list(dict.fromkeys(bars)),
        "other": [line for line in err.splitlines() if "|" not in line], "files": files(release),
        "private files": files(output_dir / "private"), "sizes": sizes, "picture": picture, "receipt": receipt,
        "ledger": read_ledger(output_dir), "status": status(output_dir),
    }  # fmt: skip


def test_a_damaged_or_missing_image_shows_nowhere(script, tmp_path, capfd):
    """Also with a declared class that has no image. The runs are of one command, and so is all but their noise."""
    seen = {}
    for last in ("good", "broken", "missing"):
        flags = write_images(tmp_path / last, last)
        seen[last] = visible(script, capfd, tmp_path / f"run_{last}", flags)
    for key, value in seen["good"].items():
        assert seen["broken"][key] == value, key
        assert seen["missing"][key] == value, key
    assert f"Reading images: 100% {NUM_IMAGES}/{NUM_IMAGES}" in seen["good"]["bars"]
    assert files(tmp_path / "run_good" / "release") == set(RELEASE_FILES)
    assert seen["good"]["receipt"]["public_facts"]["class_names"] == ["left", "empty", "right"]
    # The same sums and the same public seed, and no noise in common: whatever a seed decided could be subtracted.
    one, other = (tmp_path / f"run_{last}" for last in ("broken", "missing"))
    answers = sorted(path.relative_to(one) for path in (one / "private" / "answers").rglob("*.safetensors"))
    assert len(answers) == 2
    for path in [*answers, "release/unet/diffusion_pytorch_model.safetensors"]:
        for noisy, again in zip(load_file(one / path).values(), load_file(other / path).values(), strict=True):
            assert (noisy != again).double().mean() > 0.99, path  # a few float32 agree by chance
