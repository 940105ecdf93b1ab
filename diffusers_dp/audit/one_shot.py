# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tier A on the one-shot queries: the run's own central images, mode images and frequency features, on no image and on one.

The one image is white, and the statistic is the answer's part along what that image adds without noise: a plain Gaussian test. Whether
images move each other is asked of six, without noise.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import stats

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import LedgerRow
from ..privacy.sensitive import SensitiveImages
from ..queries import (
    RandomFourierFeatures,
    central_image_facts,
    mode_image_facts,
    noisy_central_images,
    noisy_frequency_features,
    noisy_pixel_histograms,
)
from .additivity import additivity_check
from .bounds import gaussian_estimate
from .canaries import FaultyNoise
from .cells import untrained_judge
from .checks import ESTIMATE_CONFIDENCE, ROUNDING, Check, Outcome, exact_check, random_check, std_check, z_check
from .mechanism import ANY_EPSILON, NOISE_SCALES


NUM_IMAGES = 12  # N of the audit, or its units; the answers are divided by it, or by a share of it
DRAWS_PER_LEDGER = 100
NUM_TOGETHER = 6  # images that are asked for at once
MOST_VALUES = 4_000_000  # of noise, per check
STAGES = 8  # of `query_runs`, for a progress bar


@dataclass(frozen=True)
class Query:
    """A one-shot query of a run.

    Args:
        row (`LedgerRow`): Name, noise multiplier, sample rate.
        clip_norm (`float`): Its sensitivity.
        divisor (`float`): By which the audit's N divides an answer.
        ask (`Callable`): Images, a ledger, a number of draws and a sample rate to answers `[draws, classes, values]`.
    """

    row: LedgerRow
    clip_norm: float
    divisor: float
    ask: Callable[[SensitiveImages, PrivacyLedger, int, float], np.ndarray]


def central_images_query(row: LedgerRow, image_shape: tuple[int, ...], num_classes: int) -> Query:
    def ask(images: SensitiveImages, ledger: PrivacyLedger, draws: int, rate: float) -> np.ndarray:
        answer = noisy_central_images(
            images, num_images=draws, sample_rate=rate, noise_multiplier=row.noise_multiplier, ledger=ledger
        )
        return answer.flatten(2).double().numpy()

    clip_norm = central_image_facts(image_shape)["clip_norm"]
    return Query(row, clip_norm, row.sampling_probability * NUM_IMAGES / num_classes, ask)


def mode_images_query(row: LedgerRow, image_shape: tuple[int, ...], num_classes: int, num_bins: int) -> Query:
    def ask(images: SensitiveImages, ledger: PrivacyLedger, draws: int, rate: float) -> np.ndarray:
        answer = noisy_pixel_histograms(
            images,
            num_bins=num_bins,
            num_images=draws,
            sample_rate=rate,
            noise_multiplier=row.noise_multiplier,
            ledger=ledger,
        )
        return answer.flatten(2).double().numpy()

    clip_norm = mode_image_facts(image_shape)["clip_norm"]
    return Query(row, clip_norm, row.sampling_probability * NUM_IMAGES / num_classes, ask)


def frequency_query(row: LedgerRow, features: RandomFourierFeatures) -> Query:
    def ask(images: SensitiveImages, ledger: PrivacyLedger, draws: int, rate: float) -> np.ndarray:
        answers = [
            noisy_frequency_features(images, features, noise_multiplier=row.noise_multiplier, ledger=ledger)
            for _ in range(draws)
        ]
        return np.stack([answer.double().numpy() for answer in answers])

    return Query(row, 1.0, float(NUM_IMAGES), ask)


def evaluation_query(row: LedgerRow, image_shape: tuple[int, ...], class_names: tuple[str, ...] | None) -> Query:
    """The question of `--evaluation_reserve`, about images of noise in the place of drawn ones."""
    judge = untrained_judge(image_shape, class_names)

    def ask(images: SensitiveImages, ledger: PrivacyLedger, draws: int, rate: float) -> np.ndarray:
        return torch.stack([judge.ask(images, row, ledger) for _ in range(draws)]).double().numpy()

    return Query(row, judge.sensitivity, 1.0, ask)


def query_runs(
    query: Query, image_shape: tuple[int, ...], class_names: tuple[str, ...] | None, *, delta: float, draws: int,
    accountant: str = "pld", units: bool = False, progress: Callable[[], None] | None = None,
) -> list[Outcome]:  # fmt: skip
    """The query honest, with the noise off and with the noise halved; `draws` answers with the image and as many without it, and
    a tenth of them where the noise is broken. With `units`, the image is a unit of two that are alike."""
    label = len(class_names or ("",)) - 1
    per_unit = 2 if units else 1
    unit_of = np.arange(per_unit * NUM_IMAGES) // per_unit
    images = np.full((len(unit_of), *image_shape), 255, dtype=np.uint8)
    labels = None if class_names is None else np.full(len(unit_of), label, dtype=np.int64)

    options: dict[str, Any] = {"units": unit_of, "num_units": NUM_IMAGES} if units else {}
    rate = query.row.sampling_probability

    def answers(noise_scale: float, present: bool, count: int) -> np.ndarray:
        """`[count, classes, values]`, times the divisor."""
        readable = (unit_of == NUM_IMAGES // 2) & present
        door = SensitiveImages(
            images, labels, readable, num_images=len(unit_of), image_shape=image_shape, class_names=class_names,
            **options,
        )  # fmt: skip
        door._generator = FaultyNoise(noise_scale)
        parts = []
        while count > 0:
            ledger = _ledger(delta, "rdp")
            ledger.affordable_steps(query.row, DRAWS_PER_LEDGER)  # counted once, not anew for every draw
            parts.append(query.ask(door, ledger, min(count, DRAWS_PER_LEDGER), rate) * query.divisor)
            count -= len(parts[-1])
        if progress is not None:
            progress()
        return np.concatenate(parts)

    # Enough asks that a Poisson sample holds the image: without noise, an answer is what the image adds, or nothing.
    noiseless = answers(0.0, True, max(20, int(np.ceil(20 / rate))))
    lengths = np.linalg.norm(noiseless.reshape(len(noiseless), -1), axis=1)
    signal = noiseless[lengths.argmax()]
    claim = _ledger(delta, accountant).epsilon(extra=[replace(query.row, steps=1)])
    exact = _exact_checks(query, noiseless, answers(0.0, False, 2), signal, label)
    exact.append(_additivity_check(query, image_shape, class_names, delta))
    outcomes = []
    for noise_scale in NOISE_SCALES:
        count = draws if noise_scale == 1 else max(10, draws // 10)
        without, within = (answers(noise_scale, present, count) for present in (False, True))
        checks = exact if noise_scale == 1 else []
        outcomes.append(_judge(query, without, within, signal, label, noise_scale, claim, delta, checks))
    return outcomes


def _ledger(delta: float, accountant: str) -> PrivacyLedger:
    return PrivacyLedger(
        None, target_epsilon=ANY_EPSILON, target_delta=delta, num_images=NUM_IMAGES, accountant=accountant
    )


def _exact_checks(
    query: Query, with_it: np.ndarray, without: np.ndarray, signal: np.ndarray, label: int
) -> list[Check]:
    """What one image adds, without noise."""
    name, lengths = query.row.name, np.linalg.norm(with_it.reshape(len(with_it), -1), axis=1)
    hits = int((lengths > query.clip_norm / 2).sum())
    rate, trials = query.row.sampling_probability, len(with_it)
    seen = 2 * min(stats.binom.cdf(hits, trials, rate), stats.binom.sf(hits - 1, trials, rate))
    others = np.delete(signal, label, axis=0)
    return [
        exact_check(f"{name}: largest contribution, in clip norms", lengths.max() / query.clip_norm, 1.0, ROUNDING),
        exact_check(f"{name}: contribution to other classes", np.abs(others).max(initial=0), 0.0),
        exact_check(f"{name}: answer to no image without noise", np.abs(without).max(), 0.0),
        random_check(f"{name}: rate of sampling", hits / trials, rate, 1.0 if rate == 1 and hits == trials else seen),
    ]


def _additivity_check(
    query: Query, image_shape: tuple[int, ...], class_names: tuple[str, ...] | None, delta: float
) -> Check:
    """Six images of several classes, all asked for, against the sum of what each adds alone: white, grey and noise, some longer than the
    clip norm and some shorter, none of them with the largest value that there is."""
    images = np.random.default_rng(0).integers(0, 200, (NUM_TOGETHER, *image_shape), dtype=np.uint8)
    images[0], images[1], images[2] = 240, 60, 150
    labels = None if class_names is None else np.arange(NUM_TOGETHER) // 2 % len(class_names)

    def answer(which: slice) -> torch.Tensor:
        door = SensitiveImages(
            images[which], None if labels is None else labels[which], num_images=NUM_IMAGES, image_shape=image_shape,
            class_names=class_names,
        )  # fmt: skip
        door._generator = FaultyNoise(0.0)
        return torch.from_numpy(query.ask(door, _ledger(delta, "rdp"), 1, 1.0))

    alone = sum(answer(slice(i, i + 1)) for i in range(NUM_TOGETHER))
    return additivity_check(f"{query.row.name}: additivity", answer(slice(None)), torch.as_tensor(alone))


def _judge(
    query: Query, without: np.ndarray, within: np.ndarray, signal: np.ndarray, label: int, noise_scale: float,
    claim: float, delta: float, checks: list[Check],
) -> Outcome:  # fmt: skip
    name, rate = query.row.name, query.row.sampling_probability
    std = query.row.noise_multiplier * query.clip_norm
    direction = signal / query.clip_norm
    scores_out, scores_in = ((part * direction).sum((1, 2)) for part in (without, within))
    spread = np.sqrt(std**2 + rate * (1 - rate) * query.clip_norm**2)
    values = without[: max(2, MOST_VALUES // without[0].size)]
    z = values / std
    checks = [
        *checks,
        std_check(f"{name}: standard deviation of the noise", values, std),
        _correlation(f"{name}: correlation of consecutive answers", z[1:], z[:-1]),
        z_check(f"{name}: mean without the image", scores_out.mean(), 0.0, std / np.sqrt(len(scores_out))),
        z_check(
            f"{name}: mean with the image", scores_in.mean(), rate * query.clip_norm, spread / np.sqrt(len(scores_in))
        ),
    ]
    if z.shape[1] > 1:
        checks.append(_correlation(f"{name}: correlation of neighbouring classes", z[:, 1:], z[:, :-1]))
        others = np.delete(within[: len(values)], label, axis=1)
        checks.append(std_check(f"{name}: standard deviation of the noise in classes without images", others, std))
    estimate = gaussian_estimate(scores_in, scores_out, query.clip_norm / 2, delta, ESTIMATE_CONFIDENCE)
    return Outcome(noise_scale, checks, None, estimate, claim)


def _correlation(name: str, first: np.ndarray, second: np.ndarray) -> Check:
    return z_check(name, float((first * second).mean()), 0.0, 1 / np.sqrt(first.size))
