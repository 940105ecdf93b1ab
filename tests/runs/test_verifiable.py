# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a plan grants, `verify` accepts: what it would refuse is refused first, while nothing is spent."""

import logging
import re

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from diffusers_dp import verify
from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.accounting.ledger_row import LedgerRow
from diffusers_dp.data.images import PublicFacts
from diffusers_dp.errors import UsageError
from diffusers_dp.mechanisms import sampled
from diffusers_dp.methods.feta_pro import FETAProConfig
from diffusers_dp.methods.method_flags import DPDMConfig
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.randomness.private_generator import RNG_FACTS as RNG
from diffusers_dp.release.receipt import RunRecord, build_receipt
from diffusers_dp.runs.plan import plan_run
from support.ledgers import SAID
from support.releases import made_up


def plan(num_images=1437, config=DPDMConfig, **flags):
    settings_ = config(**{"accountant": "rdp", "max_train_steps": 1, "train_batch_size": 40, **flags})
    return plan_run(settings_, PublicFacts(num_images, (1, 8, 8), tuple("0123456789")))


def problems(ledger):
    """What `verify` has to say about the receipt of a run that asked this."""
    receipt = build_receipt(RunRecord(ledger=ledger, method=made_up("dpdm")), files=[], rng=RNG)
    for release in (receipt, *receipt["prior_releases"]):
        for event in release["events"]:
            event["query"] = {"sensitivity": 1.0, **SAID, **event["query"]}  # which the door adds when it is asked
    return verify.check_guarantee(receipt)


@pytest.mark.parametrize(
    "reading",
    [
        {"train_data_dir": "scans", "image_suffixes": ".dcm,.png", "value_range": "0,4095"},
        {"dataset_name": "scans", "image_column": "picture", "label_column": "kind", "delimiter": ";"},
        {"dataset_name": "scans", "train_split": "dev", "dataset_config_name": "left", "max_image_pixels": 100},
    ],
)
def test_however_images_are_read_the_receipt_can_say_so(reading):
    ledger = plan(class_names="0,1,2,3,4,5,6,7,8,9", dry_run=True, **reading).ledger
    said = ledger.header["public_facts"]
    assert problems(ledger) == [] and reading.keys() - said["reading"].keys() <= {
        "train_data_dir", "dataset_name", "value_range",
    }  # fmt: skip


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.fixed_dictionaries(
        {
            "target_epsilon": st.sampled_from([1e-3, 0.5, 8.0, 400.0, 1000.0]),
            "num_images": st.sampled_from([50, 1437, 200_000, 20_000_000]),
            "train_batch_size": st.integers(1, 50),
            "max_train_steps": st.sampled_from([1, 30, 300]),
        },
        optional={
            "target_delta": st.sampled_from([1e-9, 1e-5, 1e-2, 0.5]),
            "evaluation_reserve": st.sampled_from([0.01, 0.3]),
        },
    )
)
@example({"target_epsilon": 400.0, "num_images": 1437, "train_batch_size": 40, "max_train_steps": 1})
@example(
    {
        "target_epsilon": 1.0,
        "num_images": 200_000,
        "train_batch_size": 1,
        "max_train_steps": 1,
        "target_delta": 0.5,
        "allow_large_delta": True,
    }
)
def test_whatever_a_plan_grants_verifies(flags):
    logging.getLogger("absl").setLevel(logging.ERROR)
    try:
        granted = plan(**flags)
    except UsageError as refusal:
        assert "--" in str(refusal)
        return
    assert problems(granted.ledger) == []


FLAGS_THAT_VERIFY_WOULD_REFUSE = {
    "--target_epsilon": {"target_epsilon": 3e3},  # which the flag refuses, too
    "--max_train_steps": {"max_train_steps": 10_000_001, "target_epsilon": 1e3},
    "--num_train_images": {"num_images": 10_000_001, "max_train_steps": 100},
    "--target_delta": {
        "num_images": 200_000, "target_delta": 0.5, "train_batch_size": 1, "allow_large_delta": True,
    },
    "--noise_multiplier central_images": {
        "config": FETAProConfig, "curriculum": "spatial", "noise_multiplier": "central_images=2e7",
        "max_train_steps": 30,
    },
    "--budget central_images": {
        "config": FETAProConfig, "curriculum": "spatial", "budget": "central_images=0.5", "target_epsilon": 3e5,
        "spatial_sample_rate": "0.01",
    },
}  # fmt: skip


@pytest.mark.parametrize("flag", FLAGS_THAT_VERIFY_WOULD_REFUSE)
def test_what_verify_would_refuse_is_refused_by_its_flag(flag):
    with pytest.raises(UsageError, match=f"verify would refuse .*{flag}") as refused:
        plan(**FLAGS_THAT_VERIFY_WOULD_REFUSE[flag])
    assert not re.search(r"events?\W0", str(refused.value), re.IGNORECASE), "a user has no list of events"


def test_reservations_without_end_still_verify():
    """One step a reservation, as with `--checkpointing_steps 1`: the receipt adds up what `verify` would not read."""
    ledger = PrivacyLedger(None, target_epsilon=50, target_delta=1e-5, num_images=300, accountant="rdp")
    ledger.reserve(LedgerRow("first", sampled(1.0, 20.0)))
    row = LedgerRow("dp_sgd", sampled(0.01, 9.0), 1, {"clip_norm": 1.0})
    assert ledger.affordable_steps(row, verify.MOST_EVENTS) == verify.MOST_EVENTS
    for _ in range(verify.MOST_EVENTS):
        ledger.take_step(row)
    assert problems(ledger) == []
    receipt = build_receipt(RunRecord(ledger=ledger, method=METHODS["dpdm"]), files=[], rng=RNG)
    assert [(event["stage"], event["steps_reserved"], event["steps_executed"]) for event in receipt["events"]] == [
        ("first", 1, 0), ("dp_sgd", verify.MOST_EVENTS, verify.MOST_EVENTS),
    ]  # fmt: skip
