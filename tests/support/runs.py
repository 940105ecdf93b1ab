# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Runs of the training scripts: their data, their ends, and what they leave."""

import json

import dp_accounting as dp
import numpy as np
import pytest
import torch
from diffusers.training_utils import EMAModel
from dp_accounting.rdp import RdpAccountant
from PIL import Image

from diffusers_dp.methods.registry import METHODS
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.release.receipt import hash_release
from support import ledgers
from support.flags import NUM_IMAGES
from support.places import ROOT, module_of


BITS_OF_A_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU adds in another order each time")
PRETRAINING = ["--public_steps", "3", "--expert", "public_batch_size=4"]


def reserved_steps(run, stage="dp_sgd"):
    return sum(row["steps_reserved"] for row in read_ledger(run)[1] if row["stage"] == stage)


def rdp_epsilon(run):
    """From the ledger's JSON alone, as a stranger would (PLD takes seconds each time)."""
    header, rows = read_ledger(run)
    accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
    for row in rows:
        query = dp.GaussianDpEvent(row["noise_multiplier"])
        if row["sampling_probability"] < 1:
            query = dp.PoissonSampledDpEvent(row["sampling_probability"], query)
        accountant.compose(query, row["steps_reserved"])
    return accountant.get_epsilon(header["target_delta"])


def check_finished(run, steps, at_most=8):
    """The release is whole and can be loaded, and its receipt covers all steps that any process took."""
    assert status(run) == {"exit_code": 0, "message": "done"}
    assert steps <= reserved_steps(run) <= at_most and rdp_epsilon(run) <= 1 + 1e-9
    receipt = json.loads((run / "release" / "privacy_receipt.json").read_text())
    assert receipt["files"] == hash_release(run / "release")
    facts = ("stage", "noise_multiplier", "sampling_probability", "steps_reserved", "steps_executed")
    events, rows = (
        [[row[fact] for fact in facts] for row in rows] for rows in (receipt["events"], read_ledger(run)[1])
    )
    assert events == rows
    assert DPImagePipeline.from_pretrained(run / "release").unet.config.in_channels == 1


def write_public(folder, classes=("a", "b"), seed=1, count=6):
    """Stand-ins of other classes than the sensitive images, and a broken one."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        path = folder / classes[number % len(classes)] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(path)
    (folder / classes[0] / "broken.png").write_bytes(b"none")
    (folder / "README.md").write_text("---\nlicense: cc0-1.0\n---\n")
    return ["--public_data_dir", str(folder), *PRETRAINING]


def receipt_of(run):
    """The receipt of a run's release."""
    return json.loads((run / "release" / "privacy_receipt.json").read_text())


def write_images(folder, last="good"):
    """Two classes of three have images; the last image is good, broken or not there."""
    rng = np.random.default_rng(0)
    (folder / "empty").mkdir(parents=True)
    for number in range(NUM_IMAGES):
        path = folder / ("left", "right")[number % 2] / f"{number:03}.png"
        path.parent.mkdir(exist_ok=True)
        if number < NUM_IMAGES - 1 or last == "good":
            Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(path)
        elif last == "broken":
            path.write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    return ["--train_data_dir", str(folder)]


def ledger_of(output_dir):
    return output_dir / "private" / "ledger.jsonl"


def read_ledger(output_dir):
    header, *rows = map(json.loads, ledger_of(output_dir).read_text().splitlines())
    return header, rows


def independent_epsilon(output_dir):
    return ledgers.independent_epsilon(ledger_of(output_dir), interval=1e-3)


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def status(output_dir):
    return json.loads((output_dir / "private" / "status.json").read_text())


class PowerCut(Exception):
    pass


def cut_power_at(monkeypatch, script, call):
    """The process dies at the given step of the moving average, of warm-up (four steps) and DP-SGD together."""
    step, calls = EMAModel.step, []

    def failing(self, parameters):
        calls.append(1)
        if len(calls) == call:
            raise PowerCut
        step(self, parameters)

    monkeypatch.setattr(EMAModel, "step", failing)


def interrupted(script, monkeypatch, flags, call):
    with monkeypatch.context() as patch:
        cut_power_at(patch, script, call)
        with pytest.raises(PowerCut):
            script.main(flags)


def load(method, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)  # of the test process
    return module_of(ROOT / METHODS[method].script)
