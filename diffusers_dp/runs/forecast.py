# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""How long a run takes on this machine, and how much memory and disk: measured on blank images in a few seconds."""

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import LedgerRow, Shares
from ..data.images import PublicFacts
from ..distributed.memory import is_out_of_memory, peak_bytes
from ..gradients.physical_batch import blank_images, blank_step, largest_physical_batch
from ..gradients.step import Gradients, add_noise
from ..methods.dp_sgd_flags import LoopFlags
from ..methods.flags import OrdinaryTraining
from ..models import FeatureGenerator
from ..privacy.sensitive import SensitiveImages
from ..privacy.separate_records import Features
from ..queries.query import Query
from ..randomness.private_generator import PrivateGenerator
from .dp_sgd import Trained
from .plan import Plan
from .plan_table import AT_ONCE, VALUES_AT_ONCE, memory_of_questions
from .result_model import new_image_model


REPEATS = 3
FOLLOWING = 5  # calls of what follows a noisy gradient, which are timed together
LONG_ENOUGH = 0.3  # seconds of one call, from which on more images at once tell nothing new
COPIES = 6  # of the trained weights in memory: themselves, gradient, noise, Adam's two moments, their average
STORED_COPIES = 4  # in a checkpoint: weights, average, two moments
A_DAY = 24 * 3600
FEW_TEACHERS, WEIGHTS_OF_ADAM = 100, 3  # weights, and two moments of each


@dataclass(frozen=True)
class Forecast:
    """What a run will take, but for reading images and drawing samples.

    Args:
        where (`str`): The machine, in words.
        step_seconds (`float`), steps (`int`): Seconds and number of steps of DP-SGD, or of all questions together.
        other_seconds (`float`): Seconds of ordinary training before and after it.
        memory_bytes (`int`): Bytes of the weights and of the images that are computed at once.
        disk_bytes (`int`): Bytes of decoded images, checkpoints and release.
        asks_only (`bool`): Whether there are questions in the place of DP-SGD.
        title (`str`): What a person calls the steps.
    """

    where: str
    step_seconds: float
    steps: int
    other_seconds: float
    memory_bytes: int
    disk_bytes: int
    asks_only: bool = False
    title: str = "DP-SGD"

    @property
    def seconds(self) -> float:
        return self.step_seconds * self.steps + self.other_seconds

    def __str__(self) -> str:
        others = f" and {in_words(self.other_seconds)} of ordinary training" if self.other_seconds else ""
        steps = f"{self.title} {self.steps:,} steps of {self.step_seconds:.3g} s"
        what = f"the questions {in_words(self.step_seconds)}" if self.asks_only else steps
        lines = [
            f"how long, measured here ({self.where}): {in_words(self.seconds)} in all, of which {what}{others}; "
            "reading images and drawing samples come on top",
            f"memory: about {self.memory_bytes / 1e9:.2g} GB beside the libraries; disk: about "
            f"{self.disk_bytes / 1e9:.2g} GB for decoded images, checkpoints and release",
        ]
        if self.seconds > A_DAY:
            lines.append(
                "warning: that is more than a day; take a GPU, more processes, a smaller network, "
                "or fewer --max_train_steps."
            )
        return "\n".join(lines)


def forecast(
    facts: PublicFacts,
    plan: Plan,
    trained: Trained,
    device: torch.device | str,
    settings: LoopFlags,
    stages: Sequence[OrdinaryTraining],
    *,
    count: int = 1,
) -> Forecast:
    """
    Args:
        trained (`Trained`): New; it keeps its weights.
        settings (`LoopFlags`): Those of DP-SGD.
        stages (sequence of `OrdinaryTraining`): What comes before and after DP-SGD.
        count (`int`, defaults to 1): Processes that share the work.
    """
    device, sampling, row = torch.device(device), plan.sampling, plan.step
    assert sampling is not None and row is not None  # where there is DP-SGD
    shares = Shares.of(row.query)
    if shares is not None:
        return _forecast_of_teachers(facts, trained, shares, row, device, settings, stages, count)
    multiplicity = row.query["noise_multiplicity"]
    shape, labelled = trained.row_shape or facts.image_shape, facts.class_names is not None
    images = max(1, math.ceil(sampling.expected_batch_size * sampling.images_per_unit / count))

    def step(number: int) -> None:
        total = blank_step(
            trained.model, trained.loss, number, image_shape=shape, labelled=labelled,
            noise_multiplicity=multiplicity, device=device,
        )  # fmt: skip
        add_noise(total, std=1.0, normaliser=1.0, generator=PrivateGenerator())

    step(1)  # what is chosen and allocated once
    at_once = settings.physical_batch_size or largest_physical_batch(
        trained.model, trained.loss, image_shape=shape, labelled=labelled, device=device,
        noise_multiplicity=multiplicity, at_most=images, processes_here=count,
    )  # fmt: skip
    at_once = min(at_once, images)
    one, two = (peak_bytes(partial(step, number), device) for number in (1, min(2, at_once)))
    weights = 4 * sum(parameter.numel() for parameter in trained.module.parameters())
    rows = facts.num_images * (math.prod(facts.image_shape) + (4 * math.prod(shape) if trained.row_shape else 0))
    return Forecast(
        where=_machine(device, count),
        step_seconds=_seconds(step, images, at_once, device) + _following(trained, device),
        steps=row.steps,
        other_seconds=_ordinary(stages, facts, trained, device, count)[0],
        memory_bytes=COPIES * weights + one + (at_once - 1) * max(0, two - one),
        disk_bytes=rows + (STORED_COPIES * (settings.checkpoints_total_limit + 1) + 1) * weights,
    )


def _forecast_of_teachers(
    facts: PublicFacts,
    trained: Trained,
    shares: Shares,
    row: LedgerRow,
    device: torch.device,
    settings: LoopFlags,
    stages: Sequence[OrdinaryTraining],
    count: int,
) -> Forecast:
    """A round of a few teachers on blank images, as many times as there are more of them."""
    few = min(shares.number, FEW_TEACHERS)
    ledger = PrivacyLedger(None, target_epsilon=1e9, target_delta=1e-5, num_images=few, accountant="rdp")
    labels = None if facts.class_names is None else np.zeros(few, dtype=np.int64)
    door = SensitiveImages(
        np.zeros((few, *facts.image_shape), dtype=np.uint8), labels, num_images=few, image_shape=facts.image_shape,
        ledger=ledger, class_names=facts.class_names, device=device,
    )  # fmt: skip
    teaching: Any = trained.loss
    state = copy.deepcopy(trained.module.state_dict())
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        teachers = door.teachers(replace(teaching, first_steps=0), replace(shares, number=few))
        answers: list[Gradients] = []

        def rounds(number: int) -> None:
            for _ in range(number):
                answers[:] = [teachers.noisy_gradient(
                    trained.model, teachers.teaching, max_grad_norm=row.query["clip_norm"], noise_multiplier=1.0,
                    sample_rate=1.0, normaliser=few, noise_multiplicity=1, max_physical_batch_size=few,
                )]  # fmt: skip

        round_seconds = _timed(rounds, 1, device)
        backward = trained.backward  # once, because a student may take many steps
        following = 0.0 if backward is None else _once(lambda: backward(answers[0]), device)
    trained.module.load_state_dict(state)
    weights = 4 * sum(parameter.numel() for parameter in teaching.new().parameters()) * shares.number
    own = 4 * sum(parameter.numel() for parameter in trained.module.parameters())
    first = teaching.first_steps / max(1, teaching.steps)  # in rounds
    other, _ = _ordinary(stages, facts, trained, device, count)
    seconds = round_seconds * shares.number / few / count
    return Forecast(
        where=_machine(device, count), step_seconds=seconds + following, steps=row.steps,
        other_seconds=other + first * seconds,
        memory_bytes=WEIGHTS_OF_ADAM * weights + COPIES * own,
        disk_bytes=facts.num_images * math.prod(facts.image_shape) + WEIGHTS_OF_ADAM * weights
        + (STORED_COPIES * (settings.checkpoints_total_limit + 1) + 1) * own,
        title="rounds of teachers,",
    )  # fmt: skip


def forecast_of_questions(
    facts: PublicFacts,
    queries: Sequence[Query],
    stages: Sequence[OrdinaryTraining],
    device: torch.device,
    num_made: int,
    *,
    exact: bool = False,
) -> Forecast:
    """
    What a method without DP-SGD takes.

    Args:
        queries (sequence of `Query`): What is asked.
        stages (sequence of `OrdinaryTraining`): What is trained on the answers.
        num_made (`int`): Images that are made of the answers.
        exact (`bool`, defaults to `False`): `--noise exact`, whose questions are computed on the CPU.
    """
    labelled, classes, pixels = facts.class_names is not None, len(facts.class_names or ("",)), facts.image_shape
    seconds, asking = 0.0, torch.device("cpu") if exact else device
    for query in queries:
        features, rows = query.timed(), classes if query.by_label else 1

        def ask(number: int, features: Features = features, rows: int = rows) -> None:
            images, labels, _ = blank_images(number, pixels, labelled, asking)
            with torch.no_grad():
                found = features(images, labels)
                total = torch.zeros(rows, found.shape[1], dtype=torch.float64, device=asking)
                total += torch.zeros_like(total).index_add_(
                    0, torch.zeros(number, dtype=torch.long, device=asking), found.double()
                )

        at_once = min(AT_ONCE, max(1, VALUES_AT_ONCE // max(query.num_values or 1, math.prod(pixels))))
        seconds += query.repeats * _seconds(ask, math.ceil(query.sample_rate * facts.num_images), at_once, asking)
    trained, most = _ordinary(stages, facts, None, device, 1)
    asked = memory_of_questions(queries, pixels, classes, num_made)
    rows_on_disk = (facts.num_images + num_made) * math.prod(pixels)
    return Forecast(_machine(device, 1), seconds, 1, trained, max(asked, most), rows_on_disk, asks_only=True)


def _machine(device: torch.device, count: int) -> str:
    """The device in words."""
    threads = f"{torch.get_num_threads()} threads" if device.type == "cpu" else torch.cuda.get_device_name(device)
    return f"{device.type}, {threads}, {count} process{'' if count == 1 else 'es'}"


def _following(trained: Trained, device: torch.device) -> float:
    """Seconds of what follows from a noisy gradient, on average over some steps: not all of them do the same."""
    backward = trained.backward
    if backward is None:
        return 0.0
    states = [(each, copy.deepcopy(each.state_dict())) for each in (trained.module, trained.model)]
    learned = {name: weight for name, weight in trained.model.named_parameters() if weight.requires_grad}

    def steps(number: int) -> None:
        for _ in range(number):
            backward({name: torch.randn_like(weight) for name, weight in learned.items()})

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        seconds = _timed(steps, FOLLOWING, device) / FOLLOWING
    for each, state in states:
        each.load_state_dict(state)
        each.zero_grad()
    return seconds


def _ordinary(
    stages: Sequence[OrdinaryTraining], facts: PublicFacts, trained: Trained | None, device: torch.device, count: int
) -> tuple[float, int]:
    """Seconds of training that reads nothing private, and bytes of the largest of its steps."""
    seconds, most = 0.0, 0
    for stage in stages:
        batch = max(1, math.ceil(stage.batch_size / count))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            step = _ordinary_step(stage, facts, trained, device)
            step(1)
            seconds += stage.num_steps * _seconds(step, batch, batch, device)
            most = max(most, 0 if trained is not None else peak_bytes(partial(step, batch), device))
    if trained is not None:
        trained.model.zero_grad()
    return seconds, most


def _ordinary_step(
    stage: OrdinaryTraining, facts: PublicFacts, trained: Trained | None, device: torch.device
) -> Callable[[int], None]:
    """Gradients of so many rows."""

    def matched(images: torch.Tensor) -> torch.Tensor:
        return images if stage.query is None else stage.query.features(images, None)

    if stage.generator_channels is not None:
        generator = FeatureGenerator(facts.image_shape, len(facts.class_names or ("",)), stage.generator_channels)
        generator.to(device)

        def step(number: int) -> None:
            drawn = generator(
                torch.zeros(number, generator.config.latent_dim, device=device),
                torch.zeros(number, dtype=torch.long, device=device),
            )
            matched(drawn).square().mean().backward()

        return step

    if stage.network is None and trained is None:

        def pixels_step(number: int) -> None:
            matched(
                blank_images(number, facts.image_shape, False, device)[0].requires_grad_()
            ).square().mean().backward()

        return pixels_step

    model: torch.nn.Module
    if stage.network is not None:
        shape, (_, model, loss) = facts.image_shape, new_image_model(facts, stage.network, device)
    else:
        assert trained is not None  # else a stage says what it trains
        model, loss, shape = trained.model, trained.loss, trained.row_shape or facts.image_shape

    def rows_step(number: int) -> None:
        rows, labels, _ = blank_images(number, shape, facts.class_names is not None, device)
        total = loss(model, rows, labels, PrivateGenerator()).mean()
        if stage.query is not None:
            total = total + matched(rows.requires_grad_()).square().mean()
        total.backward()

    return rows_step


def _seconds(step: Callable[[int], None], images: int, at_once: int, device: torch.device) -> float:
    """Of one step on so many images: that on one, and as much more for each as a call with several tells."""
    # A busy CPU lets a call wait: what counts is the time that it computed, of all threads.
    clock, threads = (time.process_time, torch.get_num_threads()) if device.type == "cpu" else (time.perf_counter, 1)
    one = several = _timed(step, 1, device)
    number, computed = 1, 0.0
    while computed < LONG_ENOUGH and number < at_once:
        start = clock()
        try:
            several = _timed(step, min(2 * number, at_once), device)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            break  # a run halves what it computes at once
        number, computed = min(2 * number, at_once), (clock() - start) / REPEATS / threads
    each = max(0.0, several - one) / (number - 1) if number > 1 else one
    return one + (images - 1) * each


def _timed(step: Callable[[int], None], number: int, device: torch.device) -> float:
    """The shortest of three: a busy machine slows single calls down, and makes none quicker."""
    return min(_once(partial(step, number), device) for _ in range(REPEATS))


def _once(call: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def in_words(seconds: float) -> str:
    """A span of time in the unit that a person would take."""
    for unit, size in (("days", A_DAY), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"
