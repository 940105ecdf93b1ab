# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`--participation exactly` at the door: each record meets exactly k of its group's turns, chosen evenly.

Noise, clipping and sensitivity are audited with coins in the place of turns, because they are the same code.
"""

import hashlib
import secrets

import numpy as np
from scipy import stats

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import Allocation
from ..randomness.keyed_hash import SECRET_BYTES
from .bands import out_of_turn
from .canaries import FaultyNoise, Watch, WatchedImages, tag_images
from .checks import Check, exact_check, random_check
from .mechanism import ANY_EPSILON, QUICK_NOISE, STAND_IN_SHAPE, Mechanism, stand_in_loss, stand_in_model


NUM_RECORDS, MOST_TURNS = 200, 12


def turn_checks(mechanism: Mechanism) -> list[Check]:
    """Records with a number through the real door, for all turns of a smaller allocation at about the run's rate.

    Args:
        mechanism (`Mechanism`): With an allocation.
    """
    assert mechanism.allocation is not None
    turns = min(mechanism.allocation.turns, MOST_TURNS)
    participations = min(turns - 1, max(1, round(mechanism.allocation.rate * turns)))
    number = 1 if mechanism.bands is None else mechanism.bands.count
    key = secrets.token_bytes(SECRET_BYTES)
    allocation = Allocation(turns, participations, hashlib.sha256(key).hexdigest(), loss_step=0.4)
    images = np.random.default_rng().integers(0, 256, (NUM_RECORDS, *STAND_IN_SHAPE), dtype=np.uint8)
    tag_images(images, np.arange(NUM_RECORDS))
    watch = Watch(1)
    ledger = PrivacyLedger(None, target_epsilon=ANY_EPSILON, target_delta=mechanism.delta, num_images=NUM_RECORDS)
    door = WatchedImages(
        images, num_images=NUM_RECORDS, image_shape=STAND_IN_SHAPE, ledger=ledger, watch=watch,
        generator=FaultyNoise(), participation_key=key,
    )  # fmt: skip
    question = mechanism.question(NUM_RECORDS, NUM_RECORDS) | {
        "sample_rate": allocation.rate / number, "noise_multiplier": QUICK_NOISE,  # any will do
        "allocation": allocation, "truncated_batch_size": None, "reserve_steps": turns * number,
    }  # fmt: skip
    model = stand_in_model()
    for _ in range(turns * number):
        door.noisy_gradient(model, stand_in_loss, **question)
    counts = watch.inclusions(NUM_RECORDS)
    twice = sum(len(sample) - len(np.unique(sample)) for sample in watch.samples)
    of_turns = np.array([len(sample) for sample in watch.samples]).reshape(turns, number).sum(1)
    # The turns of one record exclude each other, so that the counts vary less than those of coins.
    expected, shrunk = NUM_RECORDS * allocation.rate, (1 - allocation.rate) * turns / (turns - 1)
    statistic = float(((of_turns - expected) ** 2).sum() / (expected * shrunk))
    strangers = 0 if mechanism.bands is None else out_of_turn(watch.samples, mechanism.bands, NUM_RECORDS)
    return [
        exact_check("turns: records that took part in another number", int((counts != participations).sum()), 0),
        exact_check("turns: records drawn twice in a step", twice, 0),
        exact_check("turns: records out of their group's turn", strangers, 0),
        random_check("turns: spread over them", statistic, turns - 1, float(stats.chi2.sf(statistic, turns - 1))),
    ]
