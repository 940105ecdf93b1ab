# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Ways to ask the door, of one process or several, where no image can be read: what comes out is noise from the real
generator."""

import numpy as np
import torch

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.accounting.ledger_row import LedgerRow
from diffusers_dp.audit.checks import noise_p_values
from diffusers_dp.audit.targets import untrained_judge
from diffusers_dp.data.images import ImageArrays
from diffusers_dp.data.shares import share_of
from diffusers_dp.distributed.shared_ledger import shared_ledger
from diffusers_dp.mechanisms import Everyone, sampled
from diffusers_dp.models.denoiser import EDMDenoiser, EDMLoss
from diffusers_dp.privacy.sensitive import SensitiveImages
from support.models import convolutional_unet


SHAPE, CLASSES, NUM_IMAGES = (1, 16, 16), ("a", "b", "c"), 12
MANY = tuple(f"class {number}" for number in range(24))  # an answer about each, so that few queries are enough
STD = 0.6  # sigma 3, C 0.2
NOISE_CELLS = (
    ("step", "images", "plain"),
    ("step", "units", "plain"),
    ("step", "images", "exact"),
    ("query", "images", "exact"),
    ("query", "units", "exact"),
    ("finished model", "images", "exact"),
    ("query", "images", "plain"),
    ("query", "units", "plain"),
    ("query of all", "images", "plain"),
    ("query of all", "units", "plain"),
    ("finished model", "images", "plain"),
    ("finished model", "units", "plain"),
)


def p_values(answers, std):
    """See `noise_p_values`, of answers that are each named tensors."""
    return noise_p_values({name: torch.stack([a[name] for a in answers]).double().numpy() for name in answers[0]}, std)


def noise_of(cell, processes):
    """Several answers, each of named tensors, and the standard deviation that they should have."""
    kind, of, sampling = cell
    arrays = ImageArrays(
        np.zeros((NUM_IMAGES, *SHAPE), np.uint8), np.arange(NUM_IMAGES) % 3, np.zeros(NUM_IMAGES, bool),
        np.arange(NUM_IMAGES) // 3 if of == "units" else None,
    )  # fmt: skip
    number = NUM_IMAGES if of == "images" else NUM_IMAGES // 3
    share = share_of(arrays, processes.index, processes.count)
    ledger = shared_ledger(
        processes,
        lambda: PrivacyLedger(None, target_epsilon=1e9, target_delta=1e-5, num_images=number, accountant="rdp"),
    )
    door = SensitiveImages(
        share.images, share.labels, share.readable, num_images=NUM_IMAGES, image_shape=SHAPE, ledger=ledger,
        class_names={"query of all": None, "finished model": MANY}.get(kind, CLASSES), units=share.units,
        num_units=None if of == "images" else number, processes=processes,
        exact=sampling == "exact",
    )  # fmt: skip
    if kind == "query of all":
        answer = door.noisy_sum(
            lambda x, _: x.new_zeros(len(x), 12_000), sampled(1.0, 3.0), clip_norm=0.2, name="query", repeats=6
        )
        return [{"all": each} for each in answer], STD
    if kind == "query":
        answer = door.noisy_sum(
            lambda x, _: x.new_zeros(len(x), 4000), sampled(0.5, 3.0, by_label=True), clip_norm=0.2,
            name="query", repeats=6,
        )  # fmt: skip
        return [{"classes": each} for each in answer], STD
    if kind == "finished model":
        judge, row = untrained_judge(SHAPE, MANY), LedgerRow("evaluation_reserve", Everyone(noise_multiplier=3.0))
        return [{"classes": judge.ask(door, row)} for _ in range(5)], 3.0 * judge.query.clip_norm
    model = EDMDenoiser(convolutional_unet(16, (8, 16), 4))
    answers = [
        door.noisy_gradient(
            model, EDMLoss(0.3), sampled(0.5, 3.0), max_grad_norm=0.2, normaliser=8.0,
            noise_multiplicity=2, max_physical_batch_size=4, reserve_steps=4,
        )
        for _ in range(4)
    ]  # fmt: skip
    return answers, STD / 8.0
