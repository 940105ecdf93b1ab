# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""How long a run takes on this machine, and how much memory and disk: measured on blank images in a few seconds."""

import contextlib
import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import LedgerRow
from ..data.images import PublicFacts
from ..distributed.memory import peak_bytes
from ..gradients.physical_batch import blank_images, blank_step, largest_physical_batch
from ..gradients.step import add_noise
from ..methods.dp_sgd_flags import LoopFlags
from ..methods.flags import OrdinaryTraining
from ..models.feature_generator import FeatureGenerator
from ..privacy.sensitive import SensitiveImages
from ..privacy.teachers import Teachers
from ..queries.query import Query
from ..randomness.private_generator import PrivateGenerator
from .dp_sgd import Trained
from .plan import Plan
from .plan_table import AT_ONCE, VALUES_AT_ONCE, memory_of_queries
from .result_model import new_image_model


REPEATS = 3
FOLLOWING = 5  # calls of what follows a noisy gradient, which are timed together: not all of them do the same
LONG_ENOUGH = 0.3  # seconds of one call, from which on more images at once tell nothing new
COPIES = 6  # of the trained weights in memory: themselves, gradient, noise, Adam's two moments, their average
STORED_COPIES = 4  # in a checkpoint: weights, average, two moments
A_DAY = 24 * 3600
LONG = "\nwarning: that is more than a day; take a GPU, more processes, a smaller network, or fewer --max_train_steps."
FEW_TEACHERS, WEIGHTS_OF_ADAM = 100, 3  # weights, and two moments of each


@dataclass(frozen=True)
class Forecast:
    """What a run will take, but for reading images and drawing samples.

    Args:
        where (`str`): The machine, in words.
        step_seconds (`float`), steps (`int`): Seconds and number of steps of DP-SGD, or of all queries together.
        other_seconds (`float`): Seconds of ordinary training before and after it.
        memory_bytes (`int`): Bytes of the weights and of the images that are computed at once.
        disk_bytes (`int`): Bytes of decoded images, checkpoints and release.
        title (`str`): What a person calls the steps; empty if there are only queries.
    """

    where: str
    step_seconds: float
    steps: int
    other_seconds: float
    memory_bytes: int
    disk_bytes: int
    title: str = ""

    @property
    def seconds(self) -> float:
        return self.step_seconds * self.steps + self.other_seconds

    def __str__(self) -> str:
        others = f" and {in_words(self.other_seconds)} of ordinary training" if self.other_seconds else ""
        steps = f"{self.title} {self.steps:,} steps of {self.step_seconds:.3g} s"
        what = steps if self.title else f"the queries {in_words(self.step_seconds)}"
        return (
            f"how long, measured here ({self.where}): {in_words(self.seconds)} in all, of which {what}{others}; "
            "reading images and drawing samples come on top\n"
            f"memory: about {self.memory_bytes / 1e9:.2g} GB beside the libraries; disk: about "
            f"{self.disk_bytes / 1e9:.2g} GB for decoded images, checkpoints and release"
        ) + (LONG if self.seconds > A_DAY else "")


def forecast(
    facts: PublicFacts, plan: Plan, trained: Trained, device: torch.device | str, settings: LoopFlags,
    stages: Sequence[OrdinaryTraining], *, count: int = 1,
) -> Forecast:  # fmt: skip
    """
    Args:
        trained (`Trained`): New; it keeps its weights.
        settings (`LoopFlags`): Those of DP-SGD.
        stages (sequence of `OrdinaryTraining`): What comes before and after DP-SGD.
        count (`int`, defaults to 1): Processes that share the work.
    """
    device, row = torch.device(device), plan.step
    assert row is not None  # where there is DP-SGD
    pixels, weights = facts.num_images * math.prod(facts.image_shape), _bytes(trained.module)
    with _unchanged(device, trained.module, trained.model):
        if not row.mechanism.has_teachers:
            step, memory = _step(facts, plan, row, trained, device, settings, count)
            disk = 4 * facts.num_images * math.prod(trained.row_shape) if trained.row_shape else 0
            before, title = 0.0, "DP-SGD"
        else:
            step, before = _round(facts, trained, row, device, count)
            teaching: Any = trained.loss
            memory = disk = WEIGHTS_OF_ADAM * _bytes(teaching.new()) * row.mechanism.num_groups
            title = "rounds of teachers,"
        other, _ = _ordinary(stages, facts, trained, device, count)
    return Forecast(
        _machine(device, count), step, row.steps, other + before, COPIES * weights + memory,
        pixels + disk + (STORED_COPIES * (settings.checkpoints_total_limit + 1) + 1) * weights, title,
    )  # fmt: skip


def _step(
    facts: PublicFacts, plan: Plan, row: LedgerRow, trained: Trained, device: torch.device, settings: LoopFlags,
    count: int,
) -> tuple[float, int]:  # fmt: skip
    """Seconds of a noisy gradient and of what follows, and bytes of the images that are computed at once."""
    assert plan.sampling is not None
    images = max(1, math.ceil(plan.sampling.expected_batch_size * plan.sampling.images_per_unit / count))
    blank: dict[str, Any] = {
        "image_shape": trained.row_shape or facts.image_shape, "labelled": facts.class_names is not None,
        "noise_multiplicity": row.facts["noise_multiplicity"], "device": device,
    }  # fmt: skip

    def step(number: int) -> dict[str, torch.Tensor]:
        total = blank_step(trained.model, trained.loss, number, **blank)
        return add_noise(total, std=1.0, normaliser=1.0, generator=PrivateGenerator())

    at_once = settings.physical_batch_size or largest_physical_batch(
        trained.model, trained.loss, at_most=images, processes_here=count, **blank
    )
    seconds, memory = _measured(step, images, min(at_once, images), device)
    return seconds + _following(trained, step(1), FOLLOWING, device), memory


def _round(
    facts: PublicFacts, trained: Trained, row: LedgerRow, device: torch.device, count: int
) -> tuple[float, float]:
    """Seconds of a round, and of the teachers' first steps: a round of a few teachers on blank images, as many times
    as there are more of them."""
    teaching: Any = trained.loss
    number = row.mechanism.num_groups
    few = min(number, FEW_TEACHERS)
    ledger = PrivacyLedger(None, target_epsilon=1e9, target_delta=1e-5, num_images=few, accountant="rdp")
    door = SensitiveImages(
        np.zeros((few, *facts.image_shape), dtype=np.uint8),
        None if facts.class_names is None else np.zeros(few, dtype=np.int64), num_images=few,
        image_shape=facts.image_shape, ledger=ledger, class_names=facts.class_names, device=device,
    )  # fmt: skip
    shares = row.mechanism.at(noise_multiplier=1.0, number=few, max_images_per_unit=None)
    teachers = Teachers(door, replace(teaching, first_steps=0), shares)
    ask = partial(
        teachers.noisy_gradient, trained.model, teachers.teaching, shares, max_grad_norm=row.facts["clip_norm"],
        normaliser=few,
    )  # fmt: skip
    seconds = _timed(lambda number: ask(), 1, device) * number / few / count
    # Once, because a student may take many steps.
    return seconds + _following(trained, ask(), 1, device), seconds * teaching.first_steps / max(1, teaching.steps)


def _following(trained: Trained, gradients: dict[str, torch.Tensor], calls: int, device: torch.device) -> float:
    """Seconds of what follows from a noisy gradient, on average over some calls."""
    backward = trained.backward
    return 0.0 if backward is None else _once(lambda: [backward(gradients) for _ in range(calls)], device) / calls


def forecast_of_queries(
    facts: PublicFacts, queries: Sequence[Query], stages: Sequence[OrdinaryTraining], device: torch.device,
    num_made: int, *, exact: bool = False,
) -> Forecast:  # fmt: skip
    """
    What a method without DP-SGD takes.

    Args:
        queries (sequence of `Query`): What is asked.
        stages (sequence of `OrdinaryTraining`): What is trained on the answers.
        num_made (`int`): Images that are made of the answers.
        exact (`bool`, defaults to `False`): `--noise exact`, whose queries are computed on the CPU.
    """
    labelled, classes, pixels = facts.class_names is not None, len(facts.class_names or ("",)), facts.image_shape
    seconds, asking = 0.0, torch.device("cpu") if exact else device
    for query in queries:

        def ask(number: int, features: Any = query.timed()) -> None:
            images, labels, _ = blank_images(number, pixels, labelled, asking)
            with torch.no_grad():
                features(images, labels).double().sum(0)

        at_once = min(AT_ONCE, max(1, VALUES_AT_ONCE // max(query.num_values or 1, math.prod(pixels))))
        seconds += query.repeats * _measured(ask, math.ceil(query.sample_rate * facts.num_images), at_once, asking)[0]
    with _unchanged(device):
        other, most = _ordinary(stages, facts, None, device, 1)
    memory = max(most, memory_of_queries(queries, pixels, classes, num_made))
    return Forecast(_machine(device, 1), seconds, 1, other, memory, (facts.num_images + num_made) * math.prod(pixels))


def _bytes(module: nn.Module) -> int:
    """Bytes of a module's float32 weights."""
    return 4 * sum(parameter.numel() for parameter in module.parameters())


def _machine(device: torch.device, count: int) -> str:
    """The device in words."""
    threads = f"{torch.get_num_threads()} threads" if device.type == "cpu" else torch.cuda.get_device_name(device)
    return f"{device.type}, {threads}, {count} process{'' if count == 1 else 'es'}"


@contextlib.contextmanager
def _unchanged(device: torch.device, *modules: nn.Module) -> Iterator[None]:
    """Puts back the public random stream, the states of modules, and that they have no gradients."""
    states = [copy.deepcopy(module.state_dict()) for module in modules]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
    for module, state in zip(modules, states, strict=True):
        module.load_state_dict(state)
        module.zero_grad()


def _ordinary(
    stages: Sequence[OrdinaryTraining], facts: PublicFacts, trained: Trained | None, device: torch.device, count: int
) -> tuple[float, int]:
    """Seconds of training that reads nothing private, and bytes of the largest of its steps."""
    seconds, most = 0.0, 0
    for stage in stages:
        batch = max(1, math.ceil(stage.batch_size / count))
        of_step, memory = _measured(_ordinary_step(stage, facts, trained, device), batch, batch, device)
        seconds, most = seconds + stage.num_steps * of_step, max(most, memory)
    return seconds, most


def _ordinary_step(
    stage: OrdinaryTraining, facts: PublicFacts, trained: Trained | None, device: torch.device
) -> Callable[[int], None]:
    """Computes gradients of a number of rows: of a model's loss, and of features of images."""
    model: Any = None
    loss: Any = None
    generator, shape = None, facts.image_shape
    if stage.generator_channels is not None:
        generator = FeatureGenerator(shape, len(facts.class_names or ("",)), stage.generator_channels).to(device)
    elif stage.network is not None:
        _, model, loss = new_image_model(facts, stage.network, device)
    elif trained is not None:
        model, loss, shape = trained.model, trained.loss, trained.row_shape or shape

    def step(number: int) -> None:
        rows, labels, _ = blank_images(number, shape, facts.class_names is not None, device)
        total = torch.zeros((), device=device)
        if generator is not None:
            rows = generator.draw(torch.zeros(number, dtype=torch.long, device=device))
        if loss is not None:
            total = loss(model, rows, labels, PrivateGenerator()).mean()
        if loss is None or stage.query is not None:
            rows.requires_grad_()
            total = total + (rows if stage.query is None else stage.query.features(rows, None)).square().mean()
        total.backward()

    return step


def _measured(step: Callable[[int], object], images: int, at_once: int, device: torch.device) -> tuple[float, int]:
    """Seconds of one step on so many images, and bytes of those at once: of one image, and as much more for each as a
    call with several tells."""
    step(1)  # what is chosen and allocated once
    memory, two = (peak_bytes(partial(step, count), device) for count in (1, min(2, at_once)))
    one = several = _timed(step, 1, device)
    number = 1
    while several < LONG_ENOUGH and number < at_once:
        number = min(2 * number, at_once)
        several = _timed(step, number, device)
    each = max(0.0, several - one) / (number - 1) if number > 1 else one
    return one + (images - 1) * each, memory + (at_once - 1) * max(0, two - memory)


def _timed(step: Callable[[int], object], number: int, device: torch.device) -> float:
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
