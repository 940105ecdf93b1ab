# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tier A on the one-shot queries: the run's own, on no image and on one.

The one image is white, and the statistic is the answer's part along what that image adds without noise: a plain
Gaussian test. Whether images move each other is asked of six, without noise.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import stats

from ..accounting.ledger_row import LedgerRow
from ..privacy.sensitive import SensitiveImages
from ..privacy.separate_records import Features
from ..queries.query import Query
from .additivity import additivity_check
from .bounds import gaussian_estimate
from .canaries import FaultyNoise
from .cells import untrained_judge
from .checks import ESTIMATE_CONFIDENCE, ROUNDING, Check, Outcome, exact_check, random_check, std_check, z_check
from .mechanism import NOISE_SCALES, audited_door, counting_ledger, labels_of


NUM_IMAGES = 12  # N of the audit, or its units
DRAWS_PER_LEDGER = 100
NUM_TOGETHER = 6  # images that are asked for at once
MOST_VALUES = 4_000_000  # of noise, per check
STAGES = 8  # of `query_runs`, for a progress bar


@dataclass(frozen=True)
class PlannedQuery:
    """A query of a run, with the noise that the plan has for it.

    Args:
        query (`Query`): As the run asks it.
        row (`LedgerRow`): Name, noise multiplier, sample rate.
        features (`Features`): The query's stand-in.
    """

    query: Query
    row: LedgerRow
    features: Features

    @classmethod
    def of(cls, query: Query, row: LedgerRow) -> "PlannedQuery":
        """With its own stand-in."""
        return cls(query, row, query.stand_in())

    def answers(self, images: SensitiveImages, draws: int, rate: float) -> np.ndarray:
        """Sums `[draws, classes, values]`, not finished."""
        question = replace(self.query, repeats=draws, sample_rate=rate)
        return question.ask(images, self.features, noise_multiplier=self.row.noise_multiplier).double().numpy()


def evaluation_query(
    row: LedgerRow, image_shape: tuple[int, ...], class_names: tuple[str, ...] | None
) -> PlannedQuery:
    """The question of `--evaluation_reserve`, about images of noise in the place of drawn ones."""
    judge = untrained_judge(image_shape, class_names)
    return PlannedQuery(judge.query, row, judge.features)


def query_runs(
    query: PlannedQuery, image_shape: tuple[int, ...], class_names: tuple[str, ...] | None, *, delta: float,
    draws: int, accountant: str = "pld", units: bool = False, exact: bool = False,
    progress: Callable[[], None] | None = None,
) -> list[Outcome]:  # fmt: skip
    """The query honest, with the noise off and with the noise halved; `draws` answers with the image and as many
    without it, and a tenth of them where the noise is broken. With `units`, the image is a unit of two that are
    alike."""
    label = len(class_names or ("",)) - 1
    place = label if query.query.by_label else 0  # of its row in an answer
    per_unit = 2 if units else 1
    unit_of = np.arange(per_unit * NUM_IMAGES) // per_unit
    images = np.full((len(unit_of), *image_shape), 255, dtype=np.uint8)
    labels = None if class_names is None else np.full(len(unit_of), label, dtype=np.int64)

    rate = query.row.sampling_probability

    def answers(noise_scale: float, present: bool, count: int) -> np.ndarray:
        """`[count, classes, values]`."""
        readable = (unit_of == NUM_IMAGES // 2) & present
        parts, source = [], FaultyNoise(noise_scale)
        while count > 0:
            ledger = counting_ledger(NUM_IMAGES, delta)
            ledger.affordable_steps(query.row, DRAWS_PER_LEDGER)  # counted once, not anew for every draw
            door = audited_door(
                images, labels, readable, ledger=ledger, generator=source, units=unit_of if units else None,
                class_names=class_names, exact=exact,
            )  # fmt: skip
            parts.append(query.answers(door, min(count, DRAWS_PER_LEDGER), rate))
            count -= len(parts[-1])
        if progress is not None:
            progress()
        return np.concatenate(parts)

    # Enough asks that a Poisson sample holds the image: without noise, an answer is what the image adds, or nothing.
    noiseless = answers(0.0, True, max(20, int(np.ceil(20 / rate))))
    lengths = np.linalg.norm(noiseless.reshape(len(noiseless), -1), axis=1)
    signal = noiseless[lengths.argmax()]
    claim = counting_ledger(NUM_IMAGES, delta, accountant).epsilon(extra=[replace(query.row, steps=1)])
    certain = _exact_checks(query, noiseless, answers(0.0, False, 2), signal, place)
    certain.append(_additivity_check(query, image_shape, class_names, delta, exact))
    outcomes = []
    for noise_scale in NOISE_SCALES:
        count = draws if noise_scale == 1 else max(10, draws // 10)
        without, within = (answers(noise_scale, present, count) for present in (False, True))
        checks = certain if noise_scale == 1 else []
        outcomes.append(_judge(query, without, within, signal, place, noise_scale, claim, delta, checks))
    return outcomes


def _exact_checks(
    query: PlannedQuery, with_it: np.ndarray, without: np.ndarray, signal: np.ndarray, label: int
) -> list[Check]:
    """What one image adds, without noise."""
    name, lengths = query.row.name, np.linalg.norm(with_it.reshape(len(with_it), -1), axis=1)
    hits = int((lengths > query.query.clip_norm / 2).sum())
    rate, trials = query.row.sampling_probability, len(with_it)
    seen = 2 * min(stats.binom.cdf(hits, trials, rate), stats.binom.sf(hits - 1, trials, rate))
    others = np.delete(signal, label, axis=0)
    return [
        exact_check(
            f"{name}: largest contribution, in clip norms", lengths.max() / query.query.clip_norm, 1.0, ROUNDING
        ),
        exact_check(f"{name}: contribution to other classes", np.abs(others).max(initial=0), 0.0),
        exact_check(f"{name}: answer to no image without noise", np.abs(without).max(), 0.0),
        random_check(f"{name}: rate of sampling", hits / trials, rate, 1.0 if rate == 1 and hits == trials else seen),
    ]


def _additivity_check(
    query: PlannedQuery, image_shape: tuple[int, ...], class_names: tuple[str, ...] | None, delta: float, exact: bool
) -> Check:
    """Six images of several classes, all asked for, against the sum of what each adds alone: white, grey and noise,
    some longer than the clip norm and some shorter, none of them with the largest value that there is."""
    images = np.random.default_rng(0).integers(0, 200, (NUM_TOGETHER, *image_shape), dtype=np.uint8)
    images[0], images[1], images[2] = 240, 60, 150
    numbers = np.arange(NUM_TOGETHER)

    def answer(which: slice) -> torch.Tensor:
        door = audited_door(
            images[which], labels_of(class_names, numbers[which] // 2), ledger=counting_ledger(NUM_IMAGES, delta),
            generator=FaultyNoise(0.0), num_images=NUM_IMAGES, class_names=class_names, exact=exact,
        )  # fmt: skip
        return torch.from_numpy(query.answers(door, 1, 1.0))

    alone = sum(answer(slice(i, i + 1)) for i in range(NUM_TOGETHER))
    return additivity_check(f"{query.row.name}: additivity", answer(slice(None)), torch.as_tensor(alone))


def _judge(
    query: PlannedQuery, without: np.ndarray, within: np.ndarray, signal: np.ndarray, label: int, noise_scale: float,
    claim: float, delta: float, checks: list[Check],
) -> Outcome:  # fmt: skip
    name, rate = query.row.name, query.row.sampling_probability
    std = query.row.noise_multiplier * query.query.clip_norm
    direction = signal / query.query.clip_norm
    scores_out, scores_in = ((part * direction).sum((1, 2)) for part in (without, within))
    spread = np.sqrt(std**2 + rate * (1 - rate) * query.query.clip_norm**2)
    values = without[: max(2, MOST_VALUES // without[0].size)]
    z = values / std
    checks = [
        *checks,
        std_check(f"{name}: standard deviation of the noise", values, std),
        _correlation(f"{name}: correlation of consecutive answers", z[1:], z[:-1]),
        z_check(f"{name}: mean without the image", scores_out.mean(), 0.0, std / np.sqrt(len(scores_out))),
        z_check(
            f"{name}: mean with the image",
            scores_in.mean(),
            rate * query.query.clip_norm,
            spread / np.sqrt(len(scores_in)),
        ),
    ]
    if z.shape[1] > 1:
        checks.append(_correlation(f"{name}: correlation of neighbouring classes", z[:, 1:], z[:, :-1]))
        others = np.delete(within[: len(values)], label, axis=1)
        checks.append(std_check(f"{name}: standard deviation of the noise in classes without images", others, std))
    estimate = gaussian_estimate(scores_in, scores_out, query.query.clip_norm / 2, delta, ESTIMATE_CONFIDENCE)
    return Outcome(noise_scale, checks, None, estimate, claim)


def _correlation(name: str, first: np.ndarray, second: np.ndarray) -> Check:
    return z_check(name, float((first * second).mean()), 0.0, 1 / np.sqrt(first.size))
