# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The ledger of a run that stopped, for its receipt; and receipts of plans."""

from dataclasses import replace

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.data.images import PublicFacts
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.randomness.private_generator import EXACT_RNG_FACTS
from diffusers_dp.randomness.private_generator import RNG_FACTS as RNG
from diffusers_dp.release.receipt import RunRecord, build_receipt
from diffusers_dp.runs.plan import plan_run
from diffusers_dp.runs.run_ledger import new_ledger
from support.ledgers import SAID, row


__all__ = ["RNG", "make_ledger", "receipt_of_plan"]


def make_ledger(path=None, accountant="rdp", target_epsilon=10.0):
    ledger = PrivacyLedger(
        path,
        target_epsilon=target_epsilon,
        target_delta=1e-5,
        num_images=1437,
        accountant=accountant,
        public_facts={"class_names": ["zero", "one"], "image_shape": [1, 8, 8]},
    )
    ledger.executed(ledger.reserve(row(5.0, 0.5, 5, "central_images", by_label=True)), 5)
    ledger.executed(ledger.reserve(row(8.0, name="frequency")), 1)
    for _ in range(2):  # the second half was reserved after a checkpoint
        reservation = ledger.reserve(row(2.0, 0.25, 20, "dp_sgd", facts={"clip_norm": 0.001}))
    ledger.executed(reservation, 11)  # the run stopped here
    return ledger


def receipt_of_plan(name, *flags, classes=("a", "b", "c"), **facts):
    """The receipt of a run of a method whose queries were all asked, as its plan has them and the door writes them.

    Args:
        name (`str`): A method of the registry.
        flags (`str`): Its flags, beside few and small ones.
        facts: What `training_facts` do not hold of its curriculum.
    """
    config = load_config(
        ["--dry_run", "--resolution", "8", "--num_train_images", "90", "--target_epsilon", "1", "--accountant", "rdp",
         *(["--max_train_steps", "8"] if METHODS[name].config().dp_sgd else []), *flags],
        METHODS[name],
    )  # fmt: skip
    public = PublicFacts(90, config.image_shape, classes, config.num_train_units)
    plan, ledger = plan_run(config, public), new_ledger(None, config, public)
    by_label = len(classes or ()) if config.unit_column is None else 0
    for planned in plan.rows.values():
        row = planned
        asked = next((query for query in config.queries if query.name == planned.name), None)
        if asked is not None:
            divisor = asked.normaliser(90, len(classes or ("",)) if asked.by_label else 1)
            said = asked.facts | ({} if divisor is None else {"normaliser": divisor}) | {"clip_norm": asked.clip_norm}
            row = replace(row, facts=said, mechanism=row.mechanism.at(by_label=asked.by_label and by_label > 1))
        elif row.name == "evaluation_reserve":
            row = replace(row, facts=SAID, mechanism=row.mechanism.at(by_label=by_label > 1))
        ledger.executed(ledger.reserve(row), row.steps)
    record = RunRecord(ledger=ledger, method=METHODS[name], curriculum=config.training_facts | facts)
    return build_receipt(record, files=[], rng=EXACT_RNG_FACTS if config.is_exact else RNG)
