# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The audit of teachers: honest ones pass, broken noise is noticed, and a receipt that claims less is named."""

import pytest
import torch

from diffusers_dp import verify
from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.accounting.ledger_row import gradient_row
from diffusers_dp.audit.stand_ins import AuditedModel
from diffusers_dp.audit.targets import target_runs
from diffusers_dp.audit.teacher_targets import SHARES, TeachersTarget, own_teacher_checks
from diffusers_dp.release.receipt import accounting_facts
from support.doors import CLASSES, SHAPE
from support.teachers import Student, teaching


C = 0.5


@pytest.mark.parametrize("votes", [None, 7])
def test_honest_teachers_pass_and_broken_noise_is_noticed(votes):
    mechanism = SHARES.at(noise_multiplier=1.5, votes=votes)
    row = gradient_row(mechanism, max_grad_norm=0.3 if votes is None else votes**0.5, normaliser=2)
    honest, off, halved = target_runs(TeachersTarget(row), delta=1e-5, draws=60, accountant="rdp")
    assert not honest.failures
    for broken in (off, halved):
        assert broken.noise_noticed and not broken.faults


def test_the_own_teaching_is_tried():
    torch.manual_seed(0)
    row = gradient_row(SHARES.at(noise_multiplier=1.0), max_grad_norm=C, normaliser=2)
    checks = own_teacher_checks(row, AuditedModel(Student(), teaching(batch_size=40), SHAPE, CLASSES))
    assert all(check.passed for check in checks) and checks[1].observed > 0.01


@pytest.mark.parametrize("changes, words", [
    ({"sensitivity": C}, "two clip norms"), ({"sensitivity": 1e-9, "clip_norm": 1e-9}, "two clip norms"),
    ({"sensitivity": 2 * C, "shares": 1000}, "number of units"),
    ({"sensitivity": 2 * C, "group_key": None}, "group_key must be a text of the form"),
    ({"sensitivity": 2 * C, "shares": None}, "whole number"),
    ({"sensitivity": 2.5, "clip_norm": 2.0, "votes": 4}, "sqrt"),
    ({"sensitivity": 10.0, "clip_norm": 10.0, "votes": 1}, "sqrt"),
])  # fmt: skip
def test_a_forged_receipt_is_named(changes, words):
    ledger = PrivacyLedger(None, target_epsilon=9.0, target_delta=1e-5, num_images=12)
    ledger.reserve(gradient_row(SHARES.at(noise_multiplier=1.0), max_grad_norm=C, normaliser=2))
    facts = accounting_facts(ledger)
    (event,) = facts["events"]

    def said(**changed):
        return " ".join(verify.check_numbers({**facts, "events": [{**event, **changed}]}))

    assert said() == "" and words in said(query=event["query"] | changes)
    assert "samples" in said(mechanism="poisson_gaussian", sampling_probability=0.5)
