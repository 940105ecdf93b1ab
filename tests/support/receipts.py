# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The ledger of a run that stopped, for its receipt."""

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.randomness.private_generator import RNG_FACTS as RNG
from support.ledgers import row


__all__ = ["RNG", "make_ledger"]


def make_ledger(path=None, accountant="rdp", target_epsilon=10.0):
    ledger = PrivacyLedger(
        path,
        target_epsilon=target_epsilon,
        target_delta=1e-5,
        num_images=1437,
        accountant=accountant,
        public_facts={"class_names": ["zero", "one"], "image_shape": [1, 8, 8]},
    )
    ledger.executed(ledger.reserve(row(5.0, 0.5, 5, "central_images", partition="label")), 5)
    ledger.executed(ledger.reserve(row(8.0, name="frequency")), 1)
    for _ in range(2):  # the second half was reserved after a checkpoint
        reservation = ledger.reserve(row(2.0, 0.25, 20, "dp_sgd", query={"sensitivity": 0.001, "clip_norm": 0.001}))
    ledger.executed(reservation, 11)  # the run stopped here
    return ledger
