# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Audits of steps with bands: an honest run passes and stays below its claim, and what breaks the proof shows."""

import numpy as np
import pytest
import torch

from diffusers_dp.audit import checks as runs_module
from diffusers_dp.audit.canaries import FaultyNoise, enough_steps, groups_of_rows, scored_turns, turns_of, whitened
from diffusers_dp.audit.checks import stand_in_runs
from diffusers_dp.audit.probes import noise_checks_at_the_door, sensitivity_checks
from diffusers_dp.audit.report import Audit
from diffusers_dp.audit.stand_ins import stand_in
from diffusers_dp.mechanisms import sampled
from diffusers_dp.privacy import passages
from diffusers_dp.privacy.records import PrivateRecords
from diffusers_dp.randomness.banded_noise import BandedNoise
from support.audits import DELTA, changed
from support.bands import bands_of, matrix
from support.few import few


STEP = changed(mechanism=bands_of(4, rate=0.1), noise_multiplicity=2)


@pytest.fixture(autouse=True)
def small_audits(monkeypatch):
    """They see less, and take a second."""
    monkeypatch.setattr(runs_module, "RECORDS_PER_STEP", 60)


def audit(step=STEP):
    checks = sensitivity_checks(step, thorough=False)
    checks += noise_checks_at_the_door(step, stand_in())
    return Audit("mechanism", {}, {"dp_sgd": stand_in_runs(step, DELTA, quick=True)}, checks, 0.0)


def test_an_attacker_who_knows_the_matrix_sees_sampled_gaussians():
    """One record's turns: C for each that it took, and nothing of its other turns or of other steps' noise."""
    bands, rng = bands_of(4), np.random.default_rng(0)
    groups = groups_of_rows(9, bands)
    signal = rng.integers(0, 2, (23, 9)) * (np.arange(23)[:, None] % 4 == groups)
    fresh = rng.normal(size=(23, 9))
    c = matrix(bands.coefficients, [23])
    answers = signal + np.linalg.solve(c, fresh)
    assert np.allclose(whitened(answers, bands), c @ signal + fresh)
    told = turns_of(answers, bands)
    assert told.shape == (scored_turns(23, bands), 9) == (5, 9)
    own = 4 * np.arange(5)[:, None] + groups
    expected = np.take_along_axis(signal, own, 0) + np.take_along_axis(c.T @ fresh, own, 0)
    assert np.allclose(told, expected)
    assert [enough_steps(steps, bands) for steps in (1, 8, 9)] == [8, 8, 12] and enough_steps(9, sampled(0.1)) == 9


@pytest.mark.parametrize(
    "bands", [bands_of(4, rate=0.1), bands_of(4, rate=0.25), bands_of(8, rate=0.1)], ids=["", "bq = 1", "8 bands"]
)
def test_an_honest_run_passes_below_its_claim(bands):
    found = audit(changed(STEP, bands))
    assert found.verdict == "VALID" and not found.reasons
    honest, off, halved = found.outcomes["dp_sgd"]
    assert honest.gaussian_estimate < honest.claimed_epsilon and not honest.failures
    for broken in (off, halved):
        assert any("noise: standard deviation" in failure for failure in broken.failures)
        assert "scores: standard deviation without it" in broken.failures


def past_dropped(monkeypatch):
    step = BandedNoise.step
    monkeypatch.setattr(BandedNoise, "step", lambda self, *arguments: (self.__init__(), step(self, *arguments))[1])


def groups_that_overlap(monkeypatch):
    units = passages.Turns.units
    monkeypatch.setattr(
        passages.Turns, "units",
        lambda self, position: units(self, position if np.random.random() < 0.9 else position + 1),
    )  # fmt: skip


def everybody_at_every_turn(monkeypatch):
    monkeypatch.setattr(PrivateRecords, "groups", lambda self, number, key: [torch.arange(len(self.images))] * number)


def the_rate_of_all(monkeypatch):
    sample = passages.poisson_sample
    monkeypatch.setattr(passages, "poisson_sample", lambda count, rate, g: sample(count, rate / 4, g))


def noise_repeated(monkeypatch):
    """Each process begins with the same key: at every step z is that of the first one."""
    normal, key = FaultyNoise.normal, bytes(16)
    monkeypatch.setattr(
        FaultyNoise, "normal",
        lambda self, *arguments: normal(FaultyNoise(self.noise_scale, key), *arguments),
    )  # fmt: skip


FAULTS = {
    "noise of the past dropped": (past_dropped, "noise: standard deviation"),
    "groups that are not disjoint": (groups_that_overlap, "sampler: records out of their group's turn"),
    "one group": (everybody_at_every_turn, "sampler: records out of their group's turn"),
    "z that is replayed": (noise_repeated, "noise: correlation of answers"),
    "q in place of bq": (the_rate_of_all, "sampler: rate"),
}


@pytest.mark.parametrize("fault", few(FAULTS))
def test_what_breaks_the_proof_is_found(fault, monkeypatch):
    plant, caught_by = FAULTS[fault]
    plant(monkeypatch)
    honest, *_ = stand_in_runs(STEP, DELTA, quick=True)
    assert any(caught_by in failure for failure in honest.failures), honest.failures
