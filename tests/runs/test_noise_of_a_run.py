# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The loop of DP-SGD as a run has it: no step's noise or sample is another's, over reservations and restarts."""

import numpy as np
import pytest
import torch
from torch import nn

from diffusers_dp.accounting.ledger_row import gradient_row
from diffusers_dp.mechanisms import sampled
from diffusers_dp.methods.dp_sgd_flags import LoopFlags
from diffusers_dp.privacy import passages
from diffusers_dp.randomness.private_generator import PrivateGenerator
from diffusers_dp.runs.checkpoints import find_checkpoint
from diffusers_dp.runs.dp_sgd import Trained, run_dp_sgd
from support.bands import banded_row, bands_of, matrix
from support.doors import make_door, make_ledger


STEPS, TOGETHER, VALUES, RECORDS = 12, 3, 20_000, 400
SIGMA, CLIP_NORM, DIVISOR = 2.0, 1.0, 10.0  # as `banded_row` has them


def plain_row(rate=0.05):
    return gradient_row(sampled(rate, SIGMA), max_grad_norm=CLIP_NORM, normaliser=DIVISOR)


def run(door, row, folder, steps, noise):
    """From the last checkpoint on, in a folder; notes the noisy gradient of each step."""
    module = nn.Linear(64, VALUES // 64, bias=False)
    with torch.no_grad():
        module.weight.zero_()

    def note(gradients):
        noise.append(gradients["weight"].flatten().double().numpy())
        module.weight.grad = gradients["weight"]

    loss = lambda model, rows, labels, generator: model(rows.flatten(1)).sum(1)  # noqa: E731
    settings = LoopFlags(
        max_train_steps=steps, learning_rate=1e-3, ema_decay=0.9, checkpointing_steps=TOGETHER,
        max_physical_batch_size="50",
    )  # fmt: skip
    run_dp_sgd(
        door, Trained(module, module, loss, note), row, settings, private=folder, largest_batch_size=50,
        checkpoint=find_checkpoint(folder, "latest" if noise else None),
    )  # fmt: skip


def blank_door(ledger):
    return make_door(range(RECORDS), np.zeros((RECORDS, 1, 8, 8), np.uint8), class_names=None, ledger=ledger)


@pytest.mark.parametrize("bands", [1, 3])
def test_the_noise_of_each_step_is_its_own(bands, tmp_path):
    """White within a reservation, between reservations, and after a restart, where the door and its source are new."""
    ledger, noise = make_ledger(RECORDS), []
    row = plain_row() if bands == 1 else banded_row(bands)
    for steps in (STEPS // 2, STEPS):
        run(blank_door(ledger), row, tmp_path, steps, noise)
    white = np.stack(noise) / (SIGMA * CLIP_NORM / DIVISOR)
    if bands > 1:
        white = matrix(bands_of(bands).coefficients, [STEPS // 2, STEPS // 2]) @ white
    assert len(white) == STEPS and white.std(1) == pytest.approx(np.ones(STEPS), abs=6 / (2 * VALUES) ** 0.5)
    assert np.abs(np.corrcoef(white) - np.eye(STEPS)).max() < 6 / VALUES**0.5


def test_the_sample_of_each_step_is_its_own(tmp_path, monkeypatch):
    """Of 400 records at q = 0.05 two samples have 1 in common on average, and 20 with themselves."""
    samples, draw = [], passages.poisson_sample
    monkeypatch.setattr(passages, "poisson_sample", lambda *rest: samples.append(draw(*rest)) or samples[-1])
    ledger, noise = make_ledger(RECORDS), []
    for steps in (STEPS // 2, STEPS):
        run(blank_door(ledger), plain_row(), tmp_path, steps, noise)
    assert len(samples) == STEPS
    common = [len(set(a.tolist()) & set(b.tolist())) for n, a in enumerate(samples) for b in samples[:n]]
    assert max(common) <= 8 and sum(common) / len(common) == pytest.approx(1.0, abs=0.5)


def test_a_source_never_begins_again():
    """Of 20,000 draws of 64 bits each, no two are alike."""
    source, seen = PrivateGenerator(), set()
    for _ in range(5000):
        seen |= {*source.uniform(2).tolist(), *(source.normal((2,), 1.0).double() + 10).tolist()}
    assert len(seen) > 19_900  # of 10,000 normal draws in float32, a few are alike by chance
