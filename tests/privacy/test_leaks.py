# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What must never leave the door: losses, gradient norms, clip fractions, batch sizes, random states, real images."""

import json
import re
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diffusers_dp import verify
from diffusers_dp.gradients import step
from diffusers_dp.privacy import sensitive
from diffusers_dp.randomness import private_generator as randomness
from diffusers_dp.randomness.leaky_log import LEAKY_OUTPUT, LeakyLog
from diffusers_dp.release.allow_list import RELEASE_FILES
from diffusers_dp.runs import dp_sgd
from diffusers_dp.runs import run as run_module
from support.doors import KEY, make_door, put
from support.flags import FOLDER, NUM_IMAGES, RESUME, SHORT_RUN
from support.runs import files, interrupted, load, write_images


# What a run may leave in private/ but for the leaky log; tensors among it are noisy answers and what was made of them.
PRIVATE = re.compile(
    r"lock|run\.json|status\.json|stages\.jsonl|ledger\.jsonl|warmup_scheduler/[a-z_]+\.json"
    r"|answers/(central_images|frequency_features)/(state\.json|answer\.safetensors)"
    r"|checkpoint-\d+/(state\.json|(unet|ema|optimizer)\.safetensors)"
    r"|(auxiliary_generator|warmed_up_\w+)/.*\.(json|safetensors)"
    r"|cache/.*"
)


@pytest.fixture
def secrets(monkeypatch):
    """Everything secret that goes through the door's hands in a run."""
    seen = {"norms": [], "sizes": [], "losses": []}
    sample, norms, gradient_sum = sensitive.poisson_sample, step.clip_factors, sensitive.clipped_gradient_sum

    def poisson_sample(*arguments):
        drawn = sample(*arguments)
        seen["sizes"].append(len(drawn))
        return drawn

    def clip_factors(squared_norms, max_norm):
        seen["norms"] += squared_norms.sqrt().tolist()
        return norms(squared_norms, max_norm)

    def clipped_gradient_sum(model, row_loss, batches, **arguments):
        def loss(*row_arguments):
            losses = row_loss(*row_arguments)
            seen["losses"] += losses.tolist()
            return losses

        return gradient_sum(model, loss, batches, **arguments)

    monkeypatch.setattr(sensitive, "poisson_sample", poisson_sample)
    monkeypatch.setattr(sensitive, "clipped_gradient_sum", clipped_gradient_sum)
    monkeypatch.setattr(step, "clip_factors", clip_factors)
    return seen


@pytest.fixture
def images(tmp_path):
    """Loud ones: no other image looks like them."""
    rng = np.random.default_rng(5)
    (tmp_path / "images" / "empty").mkdir(parents=True)
    arrays = rng.integers(0, 2, (NUM_IMAGES, 8, 8), dtype=np.uint8) * 255
    for number, array in enumerate(arrays):
        path = tmp_path / "images" / ("left", "right")[number % 2] / f"secret-name-{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(array).save(path)
    return arrays


def flags_of(tmp_path):
    return [*FOLDER, "--train_data_dir", str(tmp_path / "images"), "--output_dir", str(tmp_path / "run")]


def texts(folder):
    """Every file as text; tensors and pictures have their own tests. Sizes of batches are numbers like any other: the
    names under which they could stand are looked for instead."""
    return {
        path: path.read_text(errors="replace") for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".safetensors", ".png")
    }  # fmt: skip


def spellings(number):
    """To six digits and more: fewer turn up by chance."""
    return {
        text
        for text in (repr(number), f"{number:.6g}", f"{number:.8f}")
        if len(text.strip("0.").replace(".", "")) >= 6
    }


def test_nothing_secret_is_written_or_said(script, tmp_path, images, secrets, capfd, caplog):
    script.main(flags_of(tmp_path))
    run = tmp_path / "run"
    assert files(run / "release") == set(RELEASE_FILES)
    unknown = [name for name in files(run / "private") if not PRIVATE.fullmatch(name)]
    assert not unknown, "a new file in private/: is what it holds noisy?"
    said = "".join(capfd.readouterr()) + caplog.text
    everywhere = [said, *texts(run).values()]
    assert secrets["norms"] and secrets["losses"]
    for number in secrets["norms"] + secrets["losses"]:
        assert not any(spelling in text for text in everywhere for spelling in spellings(number))
    for text in everywhere:
        assert "secret-name" not in text and str(tmp_path / "images") not in text
        assert not re.search(
            r"\b(loss|grad_norm|gradient_norm|clip_fraction|clipped|random_states?)\b|\"batch_sizes?\"", text
        )
    for path, text in texts(run / "private").items():
        if path.parent.name.startswith("checkpoint"):
            assert set(json.loads(text)) == {
                "step",
                "ledger_position",
                "ema",
                "optimizer",
                "sha256",
                "sha256_of_state",
            }


def test_no_released_picture_shows_a_real_image(script, tmp_path, images):
    """Neither a tile of the grid nor a stored noisy answer is a training image."""
    script.main(flags_of(tmp_path))
    grid = np.asarray(Image.open(tmp_path / "run" / "release" / "samples.png").convert("L")).astype(float)
    tiles = [
        grid[y : y + 56, x : x + 56][3::7, 3::7]
        for y in range(0, grid.shape[0] - 55, 58)
        for x in range(0, grid.shape[1] - 55, 58)
    ]
    assert len(tiles) == 30
    for tile in tiles:
        for image in images:
            assert abs(np.corrcoef(tile.ravel(), image.ravel())[0, 1]) < 0.9


def test_a_tracker_hears_what_is_public_alone():
    source = "".join(Path(module.__file__).read_text() for module in (run_module, dp_sgd))
    assert not re.search(r"log_with|init_trackers|wandb|tensorboard|accelerator\.log|save_state", source)
    assert re.findall(r"tracker\.(.+)", source) == [
        "start)",
        "log(step, learning_rate=rate, ledger=ledger))",
        "finish(step, expected_batch_size=expected_batch_size)",
    ]


def test_a_leaky_log_is_asked_for_and_stays_in_its_place(script, tmp_path, images, secrets, capfd):
    script.main([*flags_of(tmp_path), "--leaky_logs"])
    run = tmp_path / "run"
    folder = run / "private" / "unprotected"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and files(folder) == {"dp_sgd.jsonl"}
    lines = [json.loads(line) for line in (folder / "dp_sgd.jsonl").read_text().splitlines()]
    assert [line["batch_size"] for line in lines] == secrets["sizes"][6:], "the first six were the queries'"
    for line in lines:
        if line["batch_size"]:
            assert line["loss"] > 0 and 0 <= line["clipped"] <= 1
            assert min(secrets["norms"]) <= line["gradient_norm"] <= max(secrets["norms"])
    assert files(run / "release") == set(RELEASE_FILES)
    receipt = json.loads((run / "release" / "privacy_receipt.json").read_text())
    assert receipt["leaky_outputs"] == [LEAKY_OUTPUT] and receipt["status"] == "proven_except_leaky_outputs"
    assert verify.verify(run / "release")[1] == []
    said = "".join(capfd.readouterr())
    assert not any(repr(line["loss"]) in text for line in lines for text in (said, *texts(run / "release").values()))
    assert LEAKY_OUTPUT in (run / "release" / "README.md").read_text()


def test_a_leaky_log_of_an_earlier_start_stays_in_the_receipt(tmp_path, monkeypatch):
    """What it wrote is there, whether the run that goes on keeps one or not."""
    script = load("dpdm", monkeypatch)
    flags = [*SHORT_RUN, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")]
    interrupted(script, monkeypatch, [*flags, "--leaky_logs"], 3)
    assert (tmp_path / "run" / "private" / "unprotected" / "dp_sgd.jsonl").stat().st_size > 0
    script.main([*flags, *RESUME])
    receipt = json.loads((tmp_path / "run" / "release" / "privacy_receipt.json").read_text())
    assert receipt["leaky_outputs"] == [LEAKY_OUTPUT] and receipt["status"] == "proven_except_leaky_outputs"
    assert verify.verify(tmp_path / "run" / "release")[1] == []
    assert LEAKY_OUTPUT in (tmp_path / "run" / "release" / "README.md").read_text()


def test_the_leaky_log_changes_no_gradient(tmp_path):
    """It only listens; an empty batch has a line as well."""
    model = torch.nn.Linear(64, 1)
    answers = []
    for log in (None, LeakyLog(tmp_path, 1.0)):
        door = make_door()
        door._leaky_log = log
        for rate in (0.5, 1e-12):
            answers.append(
                put(
                    door, "noisy_gradient", model, lambda m, x, y, g: m(x.flatten(1)).squeeze(1), max_grad_norm=1.0,
                    noise_multiplier=2.0, sample_rate=rate, normaliser=6, noise_multiplicity=2,
                    max_physical_batch_size=4, generator=randomness.PrivateGenerator(KEY),
                )["weight"]
            )  # fmt: skip
    assert torch.equal(answers[0], answers[2]) and torch.equal(answers[1], answers[3])
    lines = [json.loads(line) for line in (tmp_path / "unprotected" / "dp_sgd.jsonl").read_text().splitlines()]
    assert lines[1] == {"batch_size": 0, "loss": None, "gradient_norm": None, "clipped": None}
    assert lines[0]["batch_size"] > 0 and lines[0]["gradient_norm"] > 0
