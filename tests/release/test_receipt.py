"""The receipt: what it states, that it can be checked from itself alone, and what it never holds."""

import json

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from diffusers_dp import verify
from diffusers_dp.accounting import epsilon as accounting
from diffusers_dp.accounting.ledger import LedgerRow, PrivacyLedger
from diffusers_dp.files.canonical import canonical_json
from diffusers_dp.mechanisms import sampled
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.release.receipt import RunRecord, build_receipt, hash_release
from support.receipts import RNG, make_ledger


METHOD = METHODS["feta_pro"]


def make_receipt(**kwargs):
    files = [{"name": "pipeline.py", "sha256": "0" * 64}]
    curriculum = {
        "_class_name": "FrequencyWarmupScheduler",
        "_name_or_path": "/home/jane/run",
        "curriculum": "spatial",
    }
    return build_receipt(
        RunRecord(ledger=make_ledger(**kwargs), method=METHOD, curriculum=curriculum), files=files, rng=RNG
    )


def recompute(receipt, accountant):
    """What a stranger does: epsilon from the receipt's JSON, with dp_accounting and nothing of ours."""
    for event in json.loads(canonical_json(receipt))["events"]:
        one = dp_accounting.GaussianDpEvent(event["noise_multiplier"])
        if event["mechanism"] == "poisson_gaussian":
            one = dp_accounting.PoissonSampledDpEvent(event["sampling_probability"], one)
        accountant.compose(one, event["steps_reserved"])
    return accountant.get_epsilon(receipt["delta"])


class TestClaims:
    def test_epsilon_can_be_recomputed_from_the_receipt_alone(self):
        receipt = make_receipt()
        neighbours = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
        claims = receipt["claimed_epsilon"]
        interval = claims["pld"]["value_discretization_interval"]
        pld = recompute(receipt, PLDAccountant(neighbours, value_discretization_interval=interval))
        rdp = recompute(receipt, RdpAccountant(neighboring_relation=neighbours))
        assert claims["pld"]["epsilon"] == pytest.approx(pld, abs=1e-3)
        assert claims["rdp"]["epsilon"] == pytest.approx(rdp, rel=0.01)  # other orders
        assert claims["pld"]["epsilon"] < claims["rdp"]["epsilon"] < receipt["target_epsilon"]

    def test_reserved_steps_count_even_if_not_executed(self):
        events = make_receipt()["events"]
        assert [event["steps_reserved"] for event in events] == [5, 1, 20, 20]
        assert [event["steps_executed"] for event in events] == [5, 1, 0, 11]

    def test_run_with_prv_states_prv_too(self):
        receipt = make_receipt(accountant="prv")
        assert set(receipt["claimed_epsilon"]) == {"pld", "rdp", "prv"}
        assert set(make_receipt()["claimed_epsilon"]) == {"pld", "rdp"}

    @pytest.mark.parametrize(
        ("target", "rows"),
        [
            (
                10.0,
                [("a", 8.0, 1.0, 1), ("b", 2.0, 0.25, 40), ("c", 1.5, 0.01, 9)],
            ),
            (0.1, [("gaussian", 100.0, 1.0, 1)]),
            (200.0, [("gaussian", 0.1, 1.0, 1)]),  # above an RDP epsilon of 60 the grid is wider
            (10.0, [("poisson_gaussian", 200.0, 0.1, 3)]),  # below 0.1 it is finer
        ],
    )
    def test_the_verifier_computes_the_same_number(self, target, rows):
        """On the grid that the receipt states, whatever the order of the rows: to the last bit, on one machine."""
        ledger = PrivacyLedger(
            None, target_epsilon=target, target_delta=1e-5, num_images=1000, dataset_id="digits", release_id="a"
        )
        for mechanism, sigma, q, steps in rows:
            ledger.reserve(LedgerRow(mechanism, sampled(q, sigma), steps))
        receipt = build_receipt(RunRecord(ledger=ledger, method=METHOD), files=[], rng=RNG)
        pld = receipt["claimed_epsilon"]["pld"]
        found = verify.epsilon(verify.counted(receipt["events"]), 1e-5, interval=pld["value_discretization_interval"])
        assert found == pld["epsilon"]
        assert list(verify.check_claims(receipt)) == []
        receipt["claimed_epsilon"]["pld"]["epsilon"] -= 2e-6
        assert len(list(verify.check_claims(receipt))) == 1

    def test_prv_claims_no_less_than_pld(self):
        """PRV's estimate may lie below PLD's bound: where many steps lose less than PLD's grid shows."""
        ledger = PrivacyLedger(None, target_epsilon=1.0, target_delta=1e-5, num_images=10**6, accountant="prv")
        ledger.reserve(LedgerRow("dp_sgd", sampled(1e-4, 2.0), 1_000_000))
        receipt = build_receipt(RunRecord(ledger=ledger, method=METHOD), files=[], rng=RNG)
        claims = {name: claim["epsilon"] for name, claim in receipt["claimed_epsilon"].items()}
        composition = accounting.merge([sampled(1e-4, 2.0).event(1_000_000)])
        assert accounting.epsilon(composition, 1e-5, "prv") < claims["pld"] == claims["prv"] == ledger.epsilon()
        assert list(verify.check_claims(receipt)) == []


class TestContent:
    def test_no_path_and_no_state(self):
        text = canonical_json(make_receipt())
        assert make_receipt()["curriculum"] == {"curriculum": "spatial"}
        assert "jane" not in text and '"state"' not in text

    def test_canonical_json_refuses_what_json_cannot_say(self):
        assert canonical_json({"b": 1, "a": [1.5]}) == '{\n  "a": [\n    1.5\n  ],\n  "b": 1\n}\n'
        with pytest.raises(ValueError):
            canonical_json({"epsilon": float("inf")})


class TestHashRelease:
    @pytest.fixture()
    def folder(self, tmp_path):
        (tmp_path / "unet").mkdir()
        (tmp_path / "unet" / "config.json").write_text("{}")
        (tmp_path / "model_index.json").write_text('{"b": 1, "a": 2}')
        (tmp_path / "README.md").write_text("card")
        (tmp_path / "privacy_receipt.json").write_text("{}")
        return tmp_path

    def test_model_index_is_hashed_without_its_privacy_statement(self, folder):
        before = hash_release(folder)
        (folder / "model_index.json").write_text(json.dumps({"a": 2, "b": 1, "privacy": {"epsilon": 1.0}}))
        assert hash_release(folder) == before
        (folder / "model_index.json").write_text(json.dumps({"a": 3, "b": 1}))
        assert hash_release(folder) != before
