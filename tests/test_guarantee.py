# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A whole run, watched: every secret draw was paid for first, epsilon follows from the JSON alone, the release reads
nothing private, and the guarantee is never for other neighbours than it says."""

import json
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import dp_accounting as dp
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from PIL import Image
from safetensors.torch import load_file

from diffusers_dp import verify
from diffusers_dp.accounting.ledger import LedgerRow, PrivacyLedger
from diffusers_dp.accounting.ledger_file import _link
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.mechanisms import sampled
from diffusers_dp.methods.config import load_config
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.randomness.private_generator import PrivateGenerator
from diffusers_dp.release.allow_list import RELEASE_FILES
from diffusers_dp.runs.dp_sgd import run_dp_sgd
from support.flags import FOLDER, NUM_IMAGES
from support.places import FETA_PRO, ROOT, module_of
from support.runs import files, read_ledger, write_images


FLAGS = [*FOLDER, "--target_epsilon", "2", "--checkpointing_steps", "1"]
SECRETS = ("random_states_0.pkl", "loss.csv", "real_grid.png", "ledger_backup.jsonl")
SECRET = b"patient-4711"


PRIVATE = "_records"


class Untouchable:
    """In the place of a private tensor."""

    def __getattribute__(self, name):
        raise AssertionError(f"the export read {name} of a private tensor")


class WatchedImages(SensitiveImages):
    """Private records are read by the door's own code alone."""

    def __getattribute__(self, name):
        reader = sys._getframe(1).f_globals["__name__"]
        assert name != PRIVATE or reader == "diffusers_dp.privacy.sensitive", f"{reader} read {name} in the clear"
        return super().__getattribute__(name)


def note_draws(patch, ledger_file, draws):
    """Each draw of noise or of a sample, beside the ledger's file as it stood at that moment. A loss is tried under a
    public key, which draws neither."""
    normal, uniform = PrivateGenerator.normal, PrivateGenerator.uniform

    def paid():
        rows = [json.loads(line) for line in ledger_file.read_text().splitlines()[1:]] if ledger_file.exists() else []
        return sum(row["steps_reserved"] for row in rows)

    def noted_normal(self, shape, std, device="cpu"):
        if not self._injected:
            draws.append(SimpleNamespace(kind="normal", shape=tuple(shape), std=std, paid=paid()))
        return normal(self, shape, std, device)

    def noted_uniform(self, size):
        if not self._injected:
            draws.append(SimpleNamespace(kind="uniform", shape=(size,), std=None, paid=paid()))
        return uniform(self, size)

    patch.setattr(PrivateGenerator, "normal", noted_normal)
    patch.setattr(PrivateGenerator, "uniform", noted_uniform)


def forbid_private_reads(patch, script, output_dir, images):
    """Whoever reads private tensors past the door fails. After DP-SGD nobody may: they become untouchable, images and
    all that is private on disk but the ledger are removed, and what must never be published is put where a careless
    export would find it."""

    def last_of_the_training(door, *others, **options):
        run_dp_sgd(door, *others, **options)
        setattr(door, PRIVATE, Untouchable())
        shutil.rmtree(images)
        for path in (output_dir / "private").iterdir():
            if path.is_dir():
                shutil.rmtree(path)
        for folder in (output_dir, output_dir / "private"):
            for name in SECRETS:
                (folder / name).write_bytes(SECRET)

    patch.setattr("diffusers_dp.runs.run.SensitiveImages", WatchedImages)
    patch.setattr("diffusers_dp.runs.run.run_dp_sgd", last_of_the_training)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    flags = write_images(folder / "images")
    pixels = [np.asarray(Image.open(path)).tobytes() for path in (folder / "images").rglob("*.png")]
    output_dir, draws, script = folder / "run", [], module_of(FETA_PRO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "set_num_threads", lambda number: None)
        note_draws(patch, output_dir / "private" / "ledger.jsonl", draws)
        forbid_private_reads(patch, script, output_dir, folder / "images")
        script.main([*FLAGS, *flags, "--output_dir", str(output_dir)])
    return SimpleNamespace(output_dir=output_dir, release=output_dir / "release", draws=draws, pixels=pixels)


def test_every_draw_was_paid_for(watched):
    """Of each query the ledger holds, step by step: one Poisson sample of all N, what the loss draws, and noise of
    the stated standard deviation, once for each sum. Nothing is drawn that the ledger does not hold, nor before it is
    on disk."""
    _, rows = read_ledger(watched.output_dir)
    weights = load_file(watched.release / "unet" / "diffusion_pytorch_model.safetensors")
    num_tensors = {"central_images": 1, "frequency_features": 1, "dp_sgd": len(weights)}
    draws, steps = iter(watched.draws), 0
    for row in rows:
        std = row["noise_multiplier"] * row["query"]["clip_norm"]
        times, is_step = row["steps_reserved"], row["stage"] == "dp_sgd"
        # A query passes over the images once for each repeat, is charged, and then gets its noise.
        for repeats in [1] * times if is_step else [times]:
            for _ in range(repeats):
                sample = next(draws)
                assert sample.kind == "uniform" and sample.shape == (NUM_IMAGES,), row["stage"]
                assert not is_step or sample.paid > steps, "drawn before it was paid for"
            steps += repeats
            noise = []
            while len(noise) < repeats * num_tensors[row["stage"]]:
                draw = next(draws)
                if draw.kind == "normal" and draw.std != 1.0:  # the loss draws standard normals
                    noise.append(draw)
                else:
                    assert is_step and not noise
            assert all(draw.std == pytest.approx(std) and draw.paid >= steps for draw in noise), row["stage"]
            if is_step:
                assert sorted(draw.shape for draw in noise) == sorted(tuple(each.shape) for each in weights.values())
    assert next(draws, None) is None and steps == 5 + 1 + 2


def test_the_export_reads_nothing_private(watched):
    """It went through without images, private tensors and checkpoints; and nothing of what lay about is in it."""
    assert files(watched.release) == set(RELEASE_FILES)
    for name in RELEASE_FILES:
        content = (watched.release / name).read_bytes()
        assert SECRET not in content and not any(pixels in content for pixels in watched.pixels), name
    assert {path.name for path in watched.output_dir.iterdir()} == {"private", "release", *SECRETS}


def test_the_receipt_holds_every_row_of_the_ledger(watched):
    header, rows = read_ledger(watched.output_dir)
    receipt = json.loads((watched.release / "privacy_receipt.json").read_text())
    assert receipt["events"] == [
        {key: value for key, value in row.items() if key not in ("state", "chain")} for row in rows
    ]
    assert [event["steps_executed"] for event in receipt["events"]] == [5, 1, 1, 1]
    assert (receipt["delta"], receipt["adjacency"]) == (header["target_delta"], "zero_out")


def test_a_stranger_finds_the_same_epsilon_in_a_fresh_process(watched, tmp_path):
    """By the snippet of the documentation, and by the one-file verifier away from the package; close to the target,
    for calibration wastes nothing."""
    guide = (ROOT / "docs" / "methods" / "diffusion.md").read_text()
    snippet = re.search(r"## Recompute epsilon.*?```python\n(.*?)```", guide, re.DOTALL)[1]
    banded = ROOT / "benchmarks" / "results" / "releases" / "feta_pro_mnist_eps10"  # interrupted, too
    for release in (banded, watched.release):
        receipt_file = release / "privacy_receipt.json"
        said = snippet.replace("runs/demo/release/privacy_receipt.json", str(receipt_file))
        (tmp_path / "snippet.py").write_text(said)
        printed = subprocess.run(
            [sys.executable, "-I", "snippet.py"], capture_output=True, text=True, cwd=tmp_path, check=True
        )
        computed, claimed = map(float, printed.stdout.split())
        receipt = json.loads(receipt_file.read_text())
        assert claimed == receipt["claimed_epsilon"]["pld"]["epsilon"] == pytest.approx(computed, abs=1e-3)
    assert 0.98 * 2 < receipt["claimed_epsilon"]["rdp"]["epsilon"] <= 2
    shutil.copyfile(verify.__file__, tmp_path / "verify.py")
    verified = subprocess.run([sys.executable, "-I", "verify.py", str(watched.release)], cwd=tmp_path)
    assert verified.returncode == 0


class PowerCut(Exception):
    pass


@pytest.mark.parametrize("draw", ["normal", "uniform"])
def test_a_run_whose_noise_fails_releases_nothing(tmp_path, monkeypatch, draw):
    """In DP-SGD, after a first checkpoint that could be released instead."""
    script, original, run = module_of(FETA_PRO), getattr(PrivateGenerator, draw), tmp_path / "run"

    def failing(self, *arguments):
        if (run / "private" / "checkpoint-1").is_dir():
            raise PowerCut
        return original(self, *arguments)

    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(PrivateGenerator, draw, failing)
    flags = [*FLAGS, "--max_train_steps", "3", *write_images(tmp_path / "images"), "--output_dir", str(run)]
    with pytest.raises(PowerCut):
        script.main(flags)
    assert not (run / "release").exists()
    rows = read_ledger(run)[1]
    assert [(row["stage"], row["steps_executed"]) for row in rows[-2:]] == [
        ("dp_sgd", 1)
    ] * 2  # taken before it failed


# Neighbours: one image zeroed out, and no others.


def test_other_neighbours_cannot_be_asked_for(tmp_path):
    """Replacing an image would take about twice the noise; there is no way to have it said without having it done."""
    with pytest.raises(UsageError, match="--adjacency is not a flag"):
        load_config(["--adjacency", "replace_one"])
    (tmp_path / "recipe.yaml").write_text("adjacency: replace_one\n")
    with pytest.raises(UsageError, match="'adjacency' is not a flag"):
        load_config(["--config", str(tmp_path / "recipe.yaml")])
    budget = {"target_epsilon": 5.0, "target_delta": 1e-5, "num_images": 100}
    with pytest.raises(TypeError, match="adjacency"):
        PrivacyLedger(None, **budget, adjacency="replace_one")


@pytest.mark.parametrize("adjacency", ["replace_one", "add_or_remove_one", None])
def test_a_ledger_for_other_neighbours_is_not_continued(tmp_path, adjacency):
    budget = {"target_epsilon": 5.0, "target_delta": 1e-5, "num_images": 100}
    path = tmp_path / "ledger.jsonl"
    PrivacyLedger(path, **budget).reserve(LedgerRow("query", sampled(1.0, 9.0)))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["adjacency"] = adjacency
    chain = ""
    for line in lines:  # as if another version had written it
        chain = line["chain"] = _link(chain, line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(IntegrityError, match="adjacency"):
        PrivacyLedger(path, **budget)


def test_the_claim_would_not_hold_for_replaced_images():
    """R3 of the published numbers: 0.905 for an image zeroed out, 1.915 for one replaced. The ledger says the former,
    and so does every release: "zero_out"."""
    budget = {"target_epsilon": 5.0, "target_delta": 1.6657508770018431e-6, "num_images": 55000}
    ledger = PrivacyLedger(None, **budget)
    ledger.reserve(LedgerRow("dp_sgd", sampled(1 / 14, 14.84375), 2100))
    replaced = PLDAccountant(dp.NeighboringRelation.REPLACE_ONE, 1e-4)
    replaced.compose(dp.PoissonSampledDpEvent(1 / 14, dp.GaussianDpEvent(14.84375)), 2100)
    assert ledger.epsilon() == pytest.approx(0.9049, abs=1e-3) and ledger.header["adjacency"] == "zero_out"
    assert replaced.get_epsilon(budget["target_delta"]) == pytest.approx(1.915, abs=5e-3)
