# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What must never leave the door: losses, gradient norms, clip fractions, batch sizes, random states, real images."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from diffusers_dp.gradients import step
from diffusers_dp.privacy import passages, sensitive
from diffusers_dp.release.allow_list import RELEASE_FILES
from support.flags import FOLDER, NUM_IMAGES
from support.runs import files


# What a run may leave in private/; tensors among it are noisy answers and what was made of them.
PRIVATE = re.compile(
    r"lock|run\.json|status\.json|stages\.jsonl|ledger\.jsonl"
    r"|answers/(central_images|frequency_features)/(state\.json|answer\.safetensors)"
    r"|checkpoint-\d+/(state\.json|(unet|ema|optimizer)\.safetensors)"
    r"|auxiliary_generator/.*\.(json|safetensors)"
    r"|learned/(spatial|frequency|auxiliary_generator)/(state\.json|module\.safetensors)"  # taught by noisy answers
    r"|cache/.*"
)


@pytest.fixture
def secrets(monkeypatch):
    """Everything secret that goes through the door's hands in a run."""
    seen = {"norms": [], "sizes": [], "losses": []}
    sample, norms, gradient_sum = passages.poisson_sample, step.clip_factors, sensitive.clipped_gradient_sum

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

    monkeypatch.setattr(passages, "poisson_sample", poisson_sample)
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
    found = texts(run)
    everywhere = [said, *found.values()]
    assert secrets["norms"] and secrets["losses"]
    for number in secrets["norms"] + secrets["losses"]:
        assert not any(spelling in text for text in everywhere for spelling in spellings(number))
    assert not any("secret-name" in text or str(tmp_path / "images") in text for text in everywhere)
    # Settings of the warm-up say the size of its public batches.
    for text in [said, *(text for path, text in found.items() if "learned" not in path.parts)]:
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
    # No tile of the grid is a training image.
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
