# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tier B: DP-SGD of a training, with its own model and loop, on synthetic noise images among which there are canaries.

The noise is calibrated anew, to epsilon 2: what one run can show ends far below the epsilon of most trainings
(`bounds.py`), so that the same code is held against a claim which it can exceed. Nothing is released and no private
image is read.
"""

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tqdm.auto import tqdm

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import DP_SGD
from ..data.images import PublicFacts
from ..methods.config import SamplingFacts
from ..methods.dp_sgd_flags import LoopFlags
from ..runs.dp_sgd import Trained, run_dp_sgd
from ..runs.plan import Plan
from .canaries import WatchedImages, enough_steps
from .checks import Check, canary_runs
from .mechanism_audit import probes_of_steps
from .report import Audit, settings_of
from .stand_ins import AuditedModel


AUDIT_EPSILON = 2.0
FEWEST_STEPS = 20  # with fewer, noise that is reused and samples that are shuffled do not show
LARGEST_SHARE = 0.8  # of the records that are canaries
BROKEN_SHARE = 0.4  # of the honest run's steps: noise that is missing shows in few


def audit_run(
    build: Callable[[], Trained], name: str, settings: LoopFlags, facts: PublicFacts, plan: Plan, num_canaries: int,
    steps: int, device: str = "cpu",
) -> Audit:  # fmt: skip
    """Audits a training: honest, then, for fewer steps, with the noise off and with the noise halved, all else the
    same. Its own model is tried as in the pre-flight.

    Args:
        build (`Callable`): Returns what is trained, newly made.
        name (`str`): Name of the script, for the report.
        settings (`LoopFlags`), facts, plan: Flags of the loop, public facts and plan of the run.
        num_canaries (`int`): m, at most 0.8 N.
        steps (`int`): T of the honest run; a broken one has two fifths of them, and noise calibrated to those.
        device (`str`): Where they run.
    """
    start, step, sampling = time.perf_counter(), plan.rows[DP_SGD], plan.sampling
    assert sampling is not None  # the plan of a `DPSGDConfig`

    def train(door: WatchedImages, number: int) -> None:
        """The loop of every training, from a new model, in a folder that is thrown away."""
        own = replace(settings, max_train_steps=number, restart_slack=0, checkpointing_steps=number)
        mechanism = step.mechanism.with_noise(door.ledger.calibrate(step.mechanism, number))
        row = replace(step, steps=1, mechanism=mechanism)
        with tempfile.TemporaryDirectory() as temporary:
            run_dp_sgd(
                door, build(), row, own, private=Path(temporary),
                largest_batch_size=sampling.largest_batch_size,
            )  # fmt: skip

    model = AuditedModel.of(build(), facts.image_shape, facts.class_names)
    probes = probes_of_steps(step, model, bf16=settings.precision == "bf16", thorough=True)
    checks = [check for probe in probes for check in probe()]
    words = "too few steps to see reuse of noise and shuffling"
    checks.append(Check(words, steps, FEWEST_STEPS, None, steps >= FEWEST_STEPS))
    broken = broken_steps(steps)
    lengths = [enough_steps(length, step.mechanism) for length in (steps, broken, broken)]
    delta, number = plan.ledger.target_delta, plan.ledger.num_images
    ledgers = [
        PrivacyLedger(None, target_epsilon=AUDIT_EPSILON, target_delta=delta, num_images=number) for _ in lengths
    ]
    with tqdm(total=sum(lengths), desc="Audit", unit="step") as bar:
        outcomes = canary_runs(
            step, sampling.num_units, num_canaries, lengths, train, ledgers=ledgers, after_step=bar.update,
            image_shape=model.image_shape, class_names=facts.class_names, device=device,
        )  # fmt: skip
    said = {
        "script": name,
        "num_canaries": num_canaries,
        "num_records": sampling.num_units,
        "steps": steps,
        "steps_of_a_broken_run": broken,
        "steps_of_the_training": settings.max_train_steps,
        **settings_of(step),
        "noise_multiplier": ledgers[0].asked[-1].noise_multiplier,
        "delta": sampling.target_delta,
    }
    return Audit("run", said, {DP_SGD: outcomes}, checks, time.perf_counter() - start)


def broken_steps(steps: int) -> int:
    """The steps of a run whose noise is off or halved, where the honest one has `steps`."""
    return math.ceil(BROKEN_SHARE * steps)


def default_canaries(sampling: SamplingFacts, asked: int) -> int:
    """As many canaries as are asked for, but no more than four fifths of the records."""
    return min(asked, int(LARGEST_SHARE * sampling.num_units))
