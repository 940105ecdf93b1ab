# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tier A on queries that are Gaussian mechanisms of whole answers: queries, and rounds of teachers. Each is put to
stand-ins of which one unit is there or not, and the statistic is the answer's part along what that unit moves without
noise: a plain Gaussian test. Whether images move each other is asked of six, without noise.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy import stats

from ..accounting.ledger_row import LedgerRow
from ..evaluation.charged import Judge
from ..evaluation.images import ImageSet
from ..privacy.separate_records import Features
from ..queries.query import Query
from .bounds import gaussian_estimate
from .canaries import FaultyNoise
from .checks import (
    ESTIMATE_CONFIDENCE,
    ROUNDING,
    Check,
    Outcome,
    exact_check,
    noise_p_values,
    random_check,
    score_checks,
    std_check,
    worst_checks,
)
from .probes import additivity_check
from .stand_ins import NOISE_SCALES, audited_door, counting_ledger, labels_of


NUM_UNITS = 12  # of the audit
NUM_TOGETHER = 6  # images that are asked for at once
MOST_VALUES = 4_000_000  # of noise, per check
MOST_HELD = 64_000_000  # values of answers that are held at once


class AuditTarget(ABC):
    """A query of a run, put to `NUM_UNITS` stand-in units.

    Args:
        row (`LedgerRow`): Name and mechanism of the plan.

    Attributes:
        sensitivity (`float`): What the one unit must move, in L2 norm.
        place (`int`, *optional*): The one row of an answer that it moves, of sums that are 0 without it.
    """

    sensitivity: float
    place: int | None = None

    def __init__(self, row: LedgerRow):
        self.row = row

    @abstractmethod
    def answers(self, generator: FaultyNoise, present: bool, count: int) -> np.ndarray:
        """So many answers, `[count, rows, values]`, with or without the one unit."""

    def checks(self) -> Sequence[Check]:
        """What else can be said of it without noise."""
        return []


def target_runs(target: AuditTarget, *, delta: float, draws: int, accountant: str = "pld") -> list[Outcome]:
    """The query honest, with the noise off and with the noise halved; `draws` answers with the unit and as many
    without it, and a tenth of them where the noise is broken. Of long answers, there are only as many as are held at
    once: noise shows in each of their values."""

    def answers(noise_scale: float, present: bool, count: int) -> np.ndarray:
        return target.answers(FaultyNoise(noise_scale), present, count)

    base = answers(0.0, False, 2)[-1]
    few = max(2, MOST_HELD // base.size)
    # Enough asks that a sample holds the unit: without noise, an answer is what the unit adds, or nothing.
    rate, lengths, signal = target.row.sampling_probability, np.zeros(0), base
    asks = min(few, 20) if rate == 1 else int(np.ceil(20 / rate))
    for start in range(0, asks, few):
        heard = answers(0.0, True, min(few, asks - start)) - base
        own = np.linalg.norm(heard.reshape(len(heard), -1), axis=1)
        if own.max() >= lengths.max(initial=0):
            signal = heard[own.argmax()]
        lengths = np.append(lengths, own)
    certain = [*_exact_checks(target, lengths, signal, base), *target.checks()]
    claim = counting_ledger(NUM_UNITS, delta, accountant).epsilon(extra=[replace(target.row, steps=1)])
    outcomes = []
    for noise_scale in NOISE_SCALES:
        count = min(few, draws if noise_scale == 1 else max(10, draws // 10))
        without, within = (answers(noise_scale, present, count) - base for present in (False, True))
        scores = [np.tensordot(part, signal, 2) / np.linalg.norm(signal) for part in (without, within)]
        estimate = gaussian_estimate(scores[1], scores[0], target.sensitivity / 2, delta, ESTIMATE_CONFIDENCE)
        checks = [*(certain if noise_scale == 1 else ()), *_random_checks(target, without, within, signal, scores)]
        outcomes.append(Outcome(noise_scale, checks, None, estimate, claim))
    return outcomes


def _exact_checks(target: AuditTarget, lengths: np.ndarray, signal: np.ndarray, base: np.ndarray) -> list[Check]:
    """What one unit moves, without noise."""
    name, rate, trials = target.row.name, target.row.sampling_probability, len(lengths)
    largest, hits = lengths.max() / target.sensitivity, int((lengths > target.sensitivity / 2).sum())
    checks = [
        exact_check(f"{name}: what one unit moves, in the sensitivity", largest, 1.0, ROUNDING),
        random_check(f"{name}: rate of sampling", hits / trials, rate, stats.binomtest(hits, trials, rate).pvalue),
    ]
    if target.place is not None:
        others = np.abs(np.delete(signal, target.place, axis=0)).max(initial=0)
        checks.append(exact_check(f"{name}: contribution to other classes", others, 0.0))
        checks.append(exact_check(f"{name}: answer to no image without noise", np.abs(base).max(), 0.0))
    return checks


def _random_checks(
    target: AuditTarget, without: np.ndarray, within: np.ndarray, signal: np.ndarray, scores: list[np.ndarray]
) -> list[Check]:
    """Of answers from which what they are without noise and without the unit is taken away."""
    name, rate, size = target.row.name, target.row.sampling_probability, target.sensitivity
    std, few = target.row.noise_multiplier * size, max(2, MOST_VALUES // without[0].size)
    checks = worst_checks(name, noise_p_values({"classes and values": without[:few]}, std))
    checks += score_checks(name, scores[1], scores[0], turns=1, rate=rate, size=size, std=std)
    beside = within[:few] - signal if target.place is None else np.delete(within[:few], target.place, axis=1)
    if beside.size:
        checks.append(std_check(f"{name}: standard deviation of the noise beside the unit", beside, std))
    return checks


class QueryTarget(AuditTarget):
    """A query as the run asks it. The one image is white; where the run has units, it is a unit of two that are
    alike.

    Args:
        query (`Query`): As the run asks it.
        row (`LedgerRow`): Its row of the plan.
        features (`Features`, *optional*): In the place of the query's stand-in.
    """

    def __init__(
        self, query: Query, row: LedgerRow, image_shape: tuple[int, ...], class_names: tuple[str, ...] | None,
        features: Features | None = None,
    ):  # fmt: skip
        super().__init__(row)
        self.query, self.features, self.sensitivity = query, features or query.stand_in(), query.clip_norm
        self.image_shape, self.class_names = image_shape, class_names
        self.label = len(class_names or ("",)) - 1
        self.place = self.label if query.by_label else 0

    def answers(self, generator: FaultyNoise, present: bool, count: int) -> np.ndarray:
        unit_of = np.arange(NUM_UNITS)
        if self.row.mechanism.max_images_per_unit is not None:
            unit_of = unit_of.repeat(2)
        images = np.full((len(unit_of), *self.image_shape), 255, dtype=np.uint8)
        labels = None if self.class_names is None else np.full(len(unit_of), self.label, dtype=np.int64)
        units = None if self.row.mechanism.max_images_per_unit is None else unit_of
        readable = (unit_of == NUM_UNITS // 2) & present
        return self._sums(generator, images, labels, readable, count, self.row.sampling_probability, units=units)

    def checks(self) -> Sequence[Check]:
        """Six images of several classes, all asked for, against the sum of what each adds alone: white, grey and
        noise, some longer than the clip norm and some shorter, none of them with the largest value that there is."""
        images = np.random.default_rng(0).integers(0, 200, (NUM_TOGETHER, *self.image_shape), dtype=np.uint8)
        images[0], images[1], images[2] = 240, 60, 150

        def answer(which: np.ndarray) -> torch.Tensor:
            labels = labels_of(self.class_names, which // 2)
            return torch.from_numpy(
                self._sums(FaultyNoise(0.0), images[which], labels, None, 1, 1.0, num_images=NUM_UNITS)
            )

        return [additivity_check(f"{self.row.name}: additivity", answer, np.arange(NUM_TOGETHER)[:, None])]

    def _sums(
        self, generator: FaultyNoise, images: np.ndarray, labels: np.ndarray | None, readable: np.ndarray | None,
        count: int, rate: float, **options: Any,
    ) -> np.ndarray:  # fmt: skip
        """`[count, classes, values]`, not finished."""
        door = audited_door(
            images, labels, readable, generator=generator, class_names=self.class_names,
            exact=self.row.mechanism.exact, **options,
        )  # fmt: skip
        query = replace(self.query, repeats=count, sample_rate=rate)
        return query.ask(door, self.features, noise_multiplier=self.row.noise_multiplier).double().numpy()


def untrained_judge(image_shape: tuple[int, ...], class_names: tuple[str, ...] | None) -> Judge:
    """The query of `--evaluation_reserve`, about images of noise; its classifier has learnt nothing, for only the sum
    is audited."""
    count = 4 * len(class_names or ("",))
    images = np.random.default_rng(0).integers(0, 256, (count, *image_shape), dtype=np.uint8)
    if class_names is None:
        return Judge(ImageSet(images))
    return Judge(ImageSet(images, np.arange(count) % len(class_names), class_names), epochs=0)
