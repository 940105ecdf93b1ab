# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A delta that allows to publish records is refused or said wherever the guarantee is; one that is merely large is
named."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from diffusers_dp import load_verified, verify
from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.app import views
from diffusers_dp.app.shelf import Shelf
from diffusers_dp.commands.app import Limits
from diffusers_dp.data.images import PublicFacts
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.mechanisms import sampled
from diffusers_dp.methods.config import load_config
from diffusers_dp.release.cards import dataset_card
from diffusers_dp.release.push import files_to_push
from diffusers_dp.runs.plan import plan_run
from support.ledgers import row
from support.releases import make_release


OUTRIGHT = "such a guarantee allows to publish some of them outright."
LARGE = (
    "it alone allows to publish each of the 50 patient_ids with that probability, so one of them with probability "
    "0.26."
)


def plan_of(*flags, number=1437):
    cheap = ["--accountant=rdp", "--max_train_steps=1", "--curriculum=none", f"--train_batch_size={min(number, 9)}"]
    config = load_config([*cheap, *flags])
    return plan_run(config, PublicFacts(number, (1, 8, 8), ("a", "b")))


def release_of(folder, **facts):
    ledger = PrivacyLedger(None, target_epsilon=0.9, **facts)
    ledger.reserve(row(ledger.calibrate(sampled(0.1), 20), 0.1, 20, name="dp_sgd"))
    return make_release(folder, ledger=ledger)


@pytest.fixture(scope="module")
def outright(tmp_path_factory):
    """Epsilon below 1, and a delta that allows to publish images."""
    return release_of(tmp_path_factory.mktemp("outright"), target_delta=0.01, num_images=100)


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    """Epsilon below 1, and the default delta of 50 patients."""
    facts = {"num_images": 50, "unit_of_privacy": "patient_id", "target_delta": 1 / (50 * math.log(50))}
    return release_of(tmp_path_factory.mktemp("clinic"), **facts)


def receipt_of(release):
    return json.loads((release / "privacy_receipt.json").read_text())


class TestPlan:
    @pytest.mark.parametrize("delta", ["0.002", repr(1 / 1437), "0.001"])
    def test_a_delta_that_publishes_images_is_refused_unless_a_flag_takes_it(self, delta):
        words = re.escape("is not below 1 / 1,437 images and allows to publish some of them outright")
        with pytest.raises(UsageError, match=f"--target_delta .* {words}: give a smaller .* --allow_large_delta"):
            plan_of(f"--target_delta={delta}")
        plan = plan_of(f"--target_delta={delta}", "--allow_large_delta")
        assert (
            plan.table.splitlines()[-1] == f"A delta of {float(delta):.4g} is not below 1 / 1,437 images: {OUTRIGHT}"
        )

    def test_below_that_it_is_named_while_it_is_large(self):
        below = math.nextafter(1 / 1437, 0)
        assert "A delta of 0.0006959 is large: " in plan_of(f"--target_delta={below!r}").table
        assert "A delta" not in plan_of("--target_delta=1e-4").table
        assert "A delta" not in plan_of().table

    def test_the_default_of_few_images_is_named_and_that_of_two_refused(self):
        with pytest.raises(UsageError, match="--target_delta 0.7213 is not below 1 / 2 images"):
            plan_of(number=2)
        for number in (3, 50, 999):
            table = plan_of(number=number).table
            assert f"publish each of the {number} images with that probability" in table and "outright" not in table

    def test_without_a_guarantee_there_is_nothing_to_refuse(self):
        table = plan_of("--target_delta=0.5", "--target_epsilon=inf").table
        assert "NO GUARANTEE" in table and "A delta" not in table
        assert "NO GUARANTEE" in plan_of("--target_epsilon=inf", number=2).table


class TestOutright:
    """A receipt whose delta is 1/N or more."""

    @pytest.fixture
    def stranger_s(self, outright, tmp_path):
        """As a stranger made it: its card says nothing of delta."""
        release = Path(shutil.copytree(outright, tmp_path / "release"))
        card = (release / "README.md").read_text()
        sentence = f" A delta of 0.01 is not below 1 / 100 images: {OUTRIGHT}"
        assert card.count(sentence) == 2, "in plain words, and with the guarantee"
        (release / "README.md").write_text(card.replace(sentence, ""))
        return release

    def test_the_verifier_never_says_consistent_without_it(self, stranger_s, outright, capsys):
        assert verify.report(outright) == 0
        said = capsys.readouterr().out
        assert said.startswith("numbers consistent") and OUTRIGHT in said.splitlines()[0] and "NOTE" not in said
        assert verify.report(stranger_s) == 0
        said = capsys.readouterr().out
        assert OUTRIGHT in said.splitlines()[0] and "NOTE: README.md does not carry the guarantee" in said

    def test_a_card_without_it_is_not_pushed(self, stranger_s, outright):
        assert files_to_push(outright)
        with pytest.raises(IntegrityError, match="does not carry the guarantee"):
            files_to_push(stranger_s)

    def test_who_loads_it_is_told(self, outright, caplog):
        load_verified(outright)
        assert OUTRIGHT in caplog.text

    def test_what_is_drawn_from_it_says_it(self, outright):
        receipt = receipt_of(outright)
        card = dataset_card(receipt, num_images=10, class_names=None, parameters={})
        assert card.count(OUTRIGHT) == 2 and "too wide to reassure" in card


class TestLarge:
    """A receipt whose delta is above 1e-4, and below 1/N."""

    def test_it_is_named_by_verifier_card_and_page(self, clinic, capsys):
        assert verify.report(clinic) == 0
        said = capsys.readouterr().out
        assert LARGE in said.splitlines()[0] and "NOTE" not in said
        assert LARGE in (clinic / "README.md").read_text()
        shelf = Shelf([str(clinic)], Limits(max_images=8, max_steps=6, max_model_mb=10))
        opened = shelf.open(shelf.names[0])
        shown = views.guarantee(opened)
        assert LARGE in shown and 'class="dp-moderate"' in shown and views.in_short(opened)[0] == "moderate"


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"num_units": 0}, None),
        ({"num_images": 100}, OUTRIGHT),
        ({"num_images": "100"}, None),
        ({}, None),
    ],
)
def test_a_receipt_that_does_not_match_breaks_no_page(outright, facts, sentence):
    shelf = Shelf([str(outright)], Limits(max_images=8, max_steps=6, max_model_mb=10))
    opened = shelf.open(shelf.names[0])
    forged = {**opened.receipt, "public_facts": facts}
    shown = views.guarantee(replace(opened, receipt=forged, problems=("Edited.",)))
    assert "Does NOT match" in shown and ((sentence or "<meter") in shown) == (sentence is not None)
