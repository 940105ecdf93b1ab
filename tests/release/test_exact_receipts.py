# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A receipt of `--noise exact` says proven, and one that has no right to is refused."""

import json
import shutil
from dataclasses import replace

import pytest

from diffusers_dp import verify
from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.mechanisms.mechanism import STEPS
from diffusers_dp.randomness.private_generator import EXACT_RNG_FACTS, RNG_FACTS
from diffusers_dp.release.receipt import ASSUMPTIONS
from support.bands import banded_row
from support.ledgers import row
from support.releases import RECEIPT, forge, make_release


FACTS = {"clip_norm": 1.0, "normaliser": 30.0}


def release_of(folder, *rows):
    ledger = PrivacyLedger(None, target_epsilon=9.0, target_delta=1e-5, num_images=5000)
    for each in rows:
        ledger.reserve(each)
    return make_release(folder, ledger=ledger)


def steps(**facts):
    return row(3.0, 0.125, 2, "dp_sgd", facts={**FACTS, **facts}, exact=True)


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    banded = banded_row(4, sample_rate=0.0625)
    banded = replace(banded, mechanism=banded.mechanism.at(exact=True), steps=5)
    rows = row(12.0, facts=FACTS, name="moments", exact=True), steps()
    return release_of(tmp_path_factory.mktemp("run"), *rows), release_of(tmp_path_factory.mktemp("bands"), banded)


def receipt_of(release):
    return json.loads((release / RECEIPT).read_text())


def test_a_release_whose_queries_are_all_exact_is_proven(exact):
    for release in exact:
        receipt = receipt_of(release)
        assert receipt["status"] == receipt["method"]["status"] == "proven"
        assert receipt["rng"] == EXACT_RNG_FACTS
        assert ASSUMPTIONS["exact"] in receipt["assumptions"] and ASSUMPTIONS["float"] not in receipt["assumptions"]
        assert verify.verify(release)[1] == []


def test_one_query_without_the_grid_lowers_the_status(tmp_path):
    receipt = receipt_of(release_of(tmp_path, row(12.0, facts=FACTS, name="a"), steps()))
    assert receipt["status"] == "proven_with_assumptions" and receipt["rng"] == RNG_FACTS
    assert ASSUMPTIONS["float"] in receipt["assumptions"]


@pytest.mark.parametrize("which", ["first", "second", "neither"])
def test_one_release_in_floating_point_lowers_the_status_of_those_after_it(tmp_path, which):
    """Their epsilons add up, so that the sum is no better proven than any of them."""
    facts = {"target_epsilon": 9.0, "target_delta": 1e-5, "num_images": 5000, "dataset_id": "scans"}
    for name in ("first", "second", "third"):
        ledger = PrivacyLedger(tmp_path / "scans.jsonl", release_id=name, **facts)
        ledger.reserve(row(12.0, facts=FACTS, name="moments", exact=name != which))
        (tmp_path / name).mkdir()
        release = make_release(tmp_path / name, ledger=ledger)
        ledger.close()
    receipt, proven = receipt_of(release), which == "neither"
    assert receipt["status"] == ("proven" if proven else "proven_with_assumptions")
    assert receipt["rng"] == (EXACT_RNG_FACTS if proven else RNG_FACTS)
    assert (ASSUMPTIONS["exact"] in receipt["assumptions"]) == proven and verify.verify(release)[1] == []

    def lie(receipt):
        receipt["status"] = receipt["method"]["status"] = "proven"
        receipt["rng"] = EXACT_RNG_FACTS

    assert any("proven to the bit" in problem for problem in forge(release, lie)) == (not proven)


def event(receipt, number=1):
    return receipt["events"][number]


LIES = {
    "a query without a grid": (lambda r: event(r, 0)["query"].pop("grid"), "whose noise is not"),
    "noise of another source": (lambda r: r.update(rng=RNG_FACTS), "whose noise is not"),
    "latents": (
        lambda r: r.update(public_inputs=[{"kind": "latent pipeline", "name": "a/b", "revision": None}]), "no encoder"
    ),
    "another grid": (lambda r: event(r)["query"].update(grid=STEPS // 2), "query.grid must be 262144"),
    "a sensitivity above the clip norm": (lambda r: event(r)["query"].update(sensitivity=1.5), "of 262144 steps"),
    "a probability that no coin has": (lambda r: event(r).update(sampling_probability=0.1), "no coin"),
    "units of several images": (
        lambda r: (r.update(unit_of_privacy="patient"),
                   r["public_facts"].update(num_units=5000, max_images_per_unit=3),
                   [each["query"].update(max_images_per_unit=3) for each in r["events"]]), "no gradients of units",
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_whole_numbers_is_refused(exact, tmp_path, lie):
    change, words = LIES[lie]
    assert any(words in problem for problem in forge(shutil.copytree(exact[0], tmp_path / "forged"), change))


def test_status_alone_is_refused(tmp_path):
    release = release_of(tmp_path, row(12.0, facts=FACTS, name="a"))

    def lie(receipt):
        receipt["status"] = receipt["method"]["status"] = "proven"

    assert any("proven to the bit" in problem for problem in forge(release, lie))
