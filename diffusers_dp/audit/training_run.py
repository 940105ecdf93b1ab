# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tier B: DP-SGD of a training, with its own model and loop, on synthetic noise images among which there are canaries.

The noise is calibrated anew, to epsilon 2: what one run can show ends far below the epsilon of most trainings
(`bounds.py`), so that the same code is held against a claim which it can exceed. Nothing is released and no private
image is read.
"""

import math
import os
import pkgutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from tqdm.auto import tqdm

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import DP_SGD
from ..data.images import PublicFacts
from ..errors import UsageError
from ..methods.config import SamplingFacts
from ..methods.flags import DPSGDConfig
from ..runs.dp_sgd import Trained, run_dp_sgd
from ..runs.plan import Plan, dp_sgd_row
from .canaries import WatchedImages
from .canary_runs import canary_runs
from .checks import Check
from .mechanism_audit import model_probes, stand_in_probes
from .report import Audit, settings_of
from .stand_ins import NOISE_SCALES, AuditedModel
from .turns import enough_steps


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
    sys.path.insert(0, os.getcwd())
    try:
        if ":" not in name:
            raise ValueError("it is no module:function")
        found = pkgutil.resolve_name(name)
        if not callable(found):
            raise TypeError("it is no function that returns a `Trained`")
    except Exception as error:  # whatever it does when it is imported
        words = (str(error).splitlines() or [""])[0]
        raise UsageError(
            f"--script {name} cannot be loaded ({type(error).__name__}: {words}); repair it, or give --method NAME."
        ) from error
    finally:
        sys.path.pop(0)
    return cast(Build, found)


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

    def __call__(self) -> Audit:
        """Runs it: honest, then, for fewer steps, with the noise off and with the noise halved, all else the same."""
        start, step = time.perf_counter(), self.plan.rows[DP_SGD]
        shape = self._new_model().row_shape or self.facts.image_shape
        enough = self.steps >= FEWEST_STEPS
        words = "too few steps to see reuse of noise and shuffling"
        checks = [*self._probes(), Check(words, self.steps, FEWEST_STEPS, None, enough)]
        broken = broken_steps(self.steps)
        lengths = [enough_steps(length, step.mechanism) for length in (self.steps, broken, broken)]
        ledgers = [self._ledger() for _ in NOISE_SCALES]
        with tqdm(total=sum(lengths), desc="Audit", unit="step") as bar:
            outcomes = canary_runs(
                step, self.sampling.num_units, self.num_canaries, lengths, self._train, ledgers=ledgers,
                after_step=bar.update, image_shape=shape, class_names=self.facts.class_names,
                device=self.device,
            )  # fmt: skip
        settings = {
            "script": self.name,
            "num_canaries": self.num_canaries,
            "num_records": self.sampling.num_units,
            "steps": self.steps,
            "steps_of_a_broken_run": broken,
            "steps_of_the_training": self.config.max_train_steps,
            **settings_of(step),
            "noise_multiplier": ledgers[0].asked[-1].noise_multiplier,
            "delta": self.sampling.target_delta,
        }
        return Audit("run", settings, {DP_SGD: outcomes}, checks, time.perf_counter() - start)

    @property
    def sampling(self) -> SamplingFacts:
        assert self.plan.sampling is not None  # the plan of a `DPSGDConfig`
        return self.plan.sampling

    def _new_model(self) -> Trained:
        return self.build(self.config, self.facts, self.device)

    def _probes(self) -> list[Check]:
        model = AuditedModel.of(self._new_model(), self.facts.image_shape, self.facts.class_names)
        step = self.plan.rows[DP_SGD]
        probes = model_probes(step, model, bf16=self.config.precision == "bf16")
        probes += stand_in_probes(step, model, cells=[step.mechanism], thorough=True)
        return [check for probe in probes for check in probe()]

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


def broken_steps(steps: int) -> int:
    """The steps of a run whose noise is off or halved, where the honest one has `steps`."""
    return math.ceil(BROKEN_SHARE * steps)


def default_canaries(sampling: SamplingFacts, asked: int) -> int:
    """As many canaries as are asked for, but no more than four fifths of the records."""
    return min(asked, int(LARGEST_SHARE * sampling.num_units))
