# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Plans for a GPU that is not here: counts of the published layouts, and the largest physical batch that fits."""

import json
import re
import sys
from importlib.resources import files

import pytest
import torch

from diffusers_dp import cli, methods
from support.places import ROOT, module_of


sys.path.insert(0, str(ROOT / "benchmarks"))
latent_memory = module_of(ROOT / "benchmarks" / "latent_memory.py")
sys.path.pop(0)
COUNTS = json.loads(files(methods).joinpath("layouts.json").read_text())
LORA = (
    "--num_train_images 20000 --class_names a,b --resolution 512 --num_channels 3 --accountant rdp "
    "--noise_multiplicity 1 --train_batch_size 256 --max_train_steps 1000"
).split()


def planned(capsys, *argv, method="dp_lora"):
    cli.main(["plan", "--method", method, *argv])
    return capsys.readouterr().out


def refused(capsys, *argv, method="dp_lora"):
    with pytest.raises(SystemExit) as stop:
        cli.main(["plan", "--method", method, *argv])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.startswith("error: ") and said.count("\n") == 1, said
    return said


def test_weights_are_those_of_the_published_pipelines():
    assert [layout["weights"] for layout in COUNTS.values()] == [859_520_964, 2_567_463_684]


def test_the_refusal_names_the_largest_physical_batch_that_fits(capsys):
    memory = [*LORA, "--gpu_memory", "24", "--max_physical_batch_size"]
    said = refused(capsys, *memory, "64")
    largest = int(
        re.search(r"--max_physical_batch_size 64 takes 112 GB .*--gpu_memory 24: lower it to (\d+), or", said)[1]
    )
    assert "Stable Diffusion 1.5" in said and "--gradient_checkpointing" in said and largest == 10
    assert f"lower it to {largest}," in refused(capsys, *memory, str(largest + 1))
    for batch in (str(largest), "auto"):
        said = planned(capsys, *memory, batch)
        assert "not measured" in said and f"24 GB hold {largest} images at once" in said
    assert "24 GB hold 27 images" in planned(capsys, *memory, "auto", "--gradient_checkpointing")
    said = refused(capsys, *memory, "auto", "--noise_multiplicity", "16")
    assert "lower --noise_multiplicity, or raise --gpu_memory" in said


def test_time_is_in_proportion_to_images_draws_and_flops(capsys):
    """256,000 images of 1.781e12 FLOPs at 85e12 a second in bf16, whose draws take as long again."""
    memory = [*LORA, "--gpu_memory", "80", "--max_physical_batch_size", "auto", "--mixed_precision", "bf16"]
    assert "time: 1:29:24 of an H100 at 85 TFLOP/s for 1,000 steps of DP-SGD" in planned(capsys, *memory)
    assert "time: 2:58:48 of" in planned(capsys, *memory, "--noise_multiplicity", "2")
    xl = planned(capsys, *memory, "--resolution", "1024", "--gradient_checkpointing")
    assert "Stable Diffusion XL, not measured" in xl and "time: 16:26:06 of" in xl and "hold 20 images" in xl


def test_candidates_of_private_evolution(capsys):
    """The first ones, children for the look-ahead, and the released ones, each with as many steps as its strength."""
    evolve = (
        "--num_train_images 2000 --class_names a,b --resolution 512 --num_channels 3 --generator me/sd "
        "--accountant rdp --candidates_per_class 100 --images_per_class 300 --variation_strengths 0.8,0.4 "
        "--lookahead 2 --gpu_memory 24"
    ).split()
    steps = 2 * (100 * 20 + 300 * 16 + 200 * 8 + 300 * 8)
    seconds = round(2 * steps * COUNTS["512"]["forward"] / 85)
    said = planned(capsys, *evolve, method="pe")
    assert f"time: 0:{seconds // 60:02}:{seconds % 60:02} of an H100 at 85 TFLOP/s for 1,800 images" in said
    small = planned(capsys, *evolve, "--resolution", "64", "--expert", "generator_resolution=512", method="pe")
    assert small.splitlines()[-1] == said.splitlines()[-1]


def test_what_was_not_counted_is_refused(capsys):
    for argv, method, said in (
        ([*LORA, "--resolution", "256"], "dp_lora", "images of 512 (Stable Diffusion 1.5) or 1024"),
        ([*LORA, "--train", "all"], "dp_ldm", "counts no --train all: give lora or attention"),
        (LORA, "dpdm", "--gpu_memory plans dp_lora, dp_ldm, dp_sapf, and pe"),
    ):
        assert said in refused(capsys, *argv, "--gpu_memory", "24", method=method)


def test_live_bytes_and_flops_of_a_known_product():
    """Two matrices of 16 and 64 bytes make one of 64, and one more of 64 after that is gone."""

    def call():
        first, second = torch.empty(1, 4, device="meta"), torch.empty(4, 4, device="meta")
        for _ in range(3):
            torch.mm(second, second)
        del first

    assert latent_memory.most_bytes(call) == 16 + 64 + 64
    assert latent_memory.flops_of(call) == 3 * 2 * 4**3


@pytest.mark.slow
@pytest.mark.parametrize("checkpointed", [False, True])
def test_the_file_has_what_is_counted(checkpointed):
    """Counts differ by the versions of Diffusers and torch."""
    found = latent_memory.step_of(512, "lora", checkpointed)
    assert found == pytest.approx(COUNTS["512"]["lora" + " checkpointed" * checkpointed], rel=0.02)
