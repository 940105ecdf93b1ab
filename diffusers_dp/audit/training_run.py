# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tier B: DP-SGD of a training, with its own model and loop, on synthetic noise images among which there are canaries.

The noise is calibrated anew, to epsilon 2: what one run can show ends far below the epsilon of most trainings
(`bounds.py`), so that the same code is held against a claim which it can exceed. Nothing is released and no private
image is read.
"""

import importlib
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from ..accounting.ledger import PrivacyLedger
from ..data.images import PublicFacts
from ..errors import UsageError
from ..mechanisms import Mechanism
from ..methods.config import SamplingFacts
from ..methods.flags import DPSGDConfig
from ..runs.dp_sgd import Trained, run_dp_sgd
from ..runs.plan import Plan, dp_sgd_row
from .additivity import additivity_checks, model_tolerance
from .bands import enough_steps
from .canaries import FaultyNoise, Watch, WatchedImages, tag_images
from .checks import Check, Declared, exact_check, judge
from .mechanism import NOISE_SCALES, Audited, AuditedModel, flip_coins, stand_in
from .own_gradients import own_gradient_checks
from .probes import parameter_noise_checks, sensitivity_checks
from .report import Audit


AUDIT_EPSILON = 2.0
FEWEST_STEPS = 20  # with fewer, noise that is reused and samples that are shuffled do not show
LARGEST_SHARE = 0.8  # of the records that are canaries
BROKEN_SHARE = 0.4  # of the honest run's steps: noise that is missing shows in few


Build = Callable[[DPSGDConfig, PublicFacts, str], Trained]


def load_own(name: str) -> Build:
    """A function of one's own, which returns what is trained.

    Args:
        name (`str`): `module:function`; modules in the current folder are found, too.

    Raises:
        UsageError: There is none, or its module cannot be loaded.
    """
    module, _, function = name.partition(":")
    if not function:
        raise UsageError(f"--script {name} is no module:function of your own; give one, or --method NAME.")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function, None)
    except Exception as error:  # whatever it does when it is imported
        words = str(error).splitlines() or [""]
        raise UsageError(
            f"--script {name} cannot be loaded ({type(error).__name__}: {words[0]}); repair it."
        ) from error
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise UsageError(f"--script {name}: {module} has no function {function!r}; name one that returns a `Trained`.")
    return found


@dataclass(frozen=True)
class RunAudit:
    """A training that is audited.

    Args:
        build (`Callable`): Configuration, public facts and device to what is trained, newly made.
        name (`str`): Name of the script, for the report.
        config, facts, plan: Configuration, public facts and plan of the run.
        num_canaries (`int`): m, at most 0.8 N.
        steps (`int`): T of the honest run; a broken one has two fifths of them, and noise calibrated to those.
        device (`str`): Where they run.
    """

    build: Build
    name: str
    config: DPSGDConfig
    facts: PublicFacts
    plan: Plan
    num_canaries: int
    steps: int
    device: str = "cpu"

    def __call__(self, announce: Callable[[float], None] = lambda seconds: None) -> Audit:
        """Runs it: honest, then, for fewer steps, with the noise off and with the noise halved, all else the same.

        Args:
            announce (`Callable`): Is told, after the second of all steps, how many seconds the steps will take.
        """
        start = time.perf_counter()
        shape = self._new_model().row_shape or self.facts.image_shape
        facts, sampling = replace(self.facts, image_shape=shape), self.sampling
        num_records = sampling.num_units
        taken, readable = flip_coins(num_records, self.num_canaries)
        images = np.random.default_rng().integers(0, 256, (num_records, *facts.image_shape), dtype=np.uint8)
        tag_images(images, np.arange(num_records))
        labels = None
        if facts.class_names is not None:
            labels = np.random.default_rng().integers(0, len(facts.class_names), num_records)
        outcomes, asked, checks = [], [], self._probes()
        enough = self.steps >= FEWEST_STEPS
        checks.append(
            Check("too few steps to see reuse of noise and shuffling", self.steps, FEWEST_STEPS, None, enough)
        )
        lengths = [self.steps if scale == 1 else broken_steps(self.steps) for scale in NOISE_SCALES]
        lengths = [enough_steps(length, self.mechanism) for length in lengths]
        with tqdm(total=sum(lengths), desc="Audit", unit="step") as bar:
            clock = _Clock(bar, announce)
            for noise_scale, steps in zip(NOISE_SCALES, lengths, strict=True):
                watch, ledger = Watch(self.num_canaries), self._ledger()
                door = WatchedImages(
                    images, labels, readable, num_images=num_records, image_shape=facts.image_shape,
                    ledger=ledger, class_names=facts.class_names, device=self.device,
                    watch=watch, generator=FaultyNoise(noise_scale), after_step=clock.tick,
                )  # fmt: skip
                self._train(door, steps)
                declared, found = self._declared(ledger, steps)
                asked.append(declared)
                outcome = judge(watch, declared, taken, np.flatnonzero(readable), noise_scale)
                outcomes.append(replace(outcome, checks=[*found, *outcome.checks]))
        settings = {
            "script": self.name,
            "num_canaries": self.num_canaries,
            "num_records": num_records,
            "steps": self.steps,
            "steps_of_a_broken_run": broken_steps(self.steps),
            "steps_of_the_training": self.config.max_train_steps,
            "sample_rate": sampling.sample_rate,
            "noise_multiplier": asked[0].noise_multiplier,
            "max_grad_norm": self.config.max_grad_norm,
            "normaliser": sampling.normaliser,
            "noise_multiplicity": self.config.noise_multiplicity,
            **({} if self.mechanism.num_groups == 1 else {"noise_bands": self.mechanism.num_groups}),
            "delta": sampling.target_delta,
        }
        return Audit("run", settings, {"dp_sgd": outcomes}, checks, time.perf_counter() - start)

    @property
    def mechanism(self) -> Mechanism:
        return self.plan.rows["dp_sgd"].mechanism

    @property
    def sampling(self) -> SamplingFacts:
        assert self.plan.sampling is not None  # the plan of a `DPSGDConfig`
        return self.plan.sampling

    def _new_model(self) -> Trained:
        return self.build(self.config, self.facts, self.device)

    def _probes(self) -> list[Check]:
        trained = self._new_model()
        step = Audited.of(self.plan)
        shape = trained.row_shape or self.facts.image_shape
        model = AuditedModel(trained.model, trained.loss, shape, self.facts.class_names)
        bf16 = self.config.precision == "bf16"
        return [
            *own_gradient_checks(step, model, bf16=bf16),
            *sensitivity_checks(step, stand_in(), tight=True, thorough=True),
            *sensitivity_checks(step, model, tight=False, thorough=False),
            *additivity_checks(step, stand_in(), "stand-in"),
            *additivity_checks(step, model, "the model", model_tolerance(bf16)),
            *parameter_noise_checks(step, model),
        ]

    def _ledger(self) -> PrivacyLedger:
        return PrivacyLedger(
            None, target_epsilon=AUDIT_EPSILON, target_delta=self.plan.ledger.target_delta,
            num_images=self.plan.ledger.num_images,
        )  # fmt: skip

    def _train(self, door: WatchedImages, steps: int) -> None:
        """The loop of every training, from a new model, in a folder that is thrown away."""
        config = replace(self.config, max_train_steps=steps, restart_slack=0, checkpointing_steps=steps)
        sampling = self.sampling
        row = dp_sgd_row(config, self.plan, door.ledger, anew=True)
        with tempfile.TemporaryDirectory() as temporary:
            run_dp_sgd(
                door, self._new_model(), row, config, private=Path(temporary),
                largest_batch_size=sampling.largest_batch_size, expected_batch_size=sampling.expected_batch_size,
            )  # fmt: skip

    def _declared(self, ledger: PrivacyLedger, steps: int) -> tuple[Declared, list[Check]]:
        """What the ledger says that was asked; it must be one kind of step, with the plan's sampling."""
        rows, sampling = ledger.rows, self.sampling
        last = rows[-1]
        kinds = {(row["noise_multiplier"], row["sampling_probability"], str(row["query"])) for row in rows}
        checks = [
            exact_check("ledger: kinds of steps", len(kinds), 1),
            exact_check("ledger: steps", sum(row["steps_executed"] for row in rows), steps),
            exact_check(
                "ledger: sample rate",
                last["sampling_probability"],
                self.mechanism.sampling_probability,
            ),
            exact_check("ledger: clip norm", last["query"].get("clip_norm", math.nan), self.config.max_grad_norm),
        ]
        declared = Declared(
            steps, sampling.num_units, ledger.asked[-1].mechanism, self.config.max_grad_norm,
            sampling.normaliser, self.config.noise_multiplicity, ledger.epsilon(), sampling.target_delta,
        )  # fmt: skip
        return declared, checks


def broken_steps(steps: int) -> int:
    """The steps of a run whose noise is off or halved, where the honest one has `steps`."""
    return math.ceil(BROKEN_SHARE * steps)


class _Clock:
    """Counts steps, and tells from the second, for the first is slower, how long all will take."""

    def __init__(self, bar: tqdm, announce: Callable[[float], None]):
        self.bar, self.announce = bar, announce
        self.last = time.perf_counter()

    def tick(self) -> None:
        self.bar.update()
        now = time.perf_counter()
        if self.bar.n == 2:
            self.announce((now - self.last) * self.bar.total)
        self.last = now


def default_canaries(sampling: SamplingFacts, asked: int) -> int:
    """As many canaries as are asked for, but no more than four fifths of the records."""
    return min(asked, int(LARGEST_SHARE * sampling.num_units))
