# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""How long a run takes on this machine, and how much memory and disk: measured on blank images in a few seconds."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from ..accounting.ledger_row import LedgerRow
from ..data.images import PublicFacts
from ..distributed.memory import peak_bytes
from ..distributed.processes import warm_up_type
from ..gradients.physical_batch import blank_images, blank_step, largest_physical_batch
from ..gradients.step import add_noise
from ..methods.dp_sgd_flags import LoopFlags
from ..methods.flags import OrdinaryTraining
from ..methods.private_training import PrivateTraining
from ..models.denoiser import in_mixed_precision
from ..models.feature_generator import FeatureGenerator
from ..randomness.private_generator import PrivateGenerator
from .dp_sgd import Trained
from .plan import Plan
from .result_model import new_image_model


REPEATS = 3
FOLLOWING = 5  # calls of what follows a noisy gradient, which are timed together: not all of them do the same
LONG_ENOUGH = 0.3  # seconds of one call, from which on more images at once tell nothing new
#: Images and values that a query computes at once, float64 copies of its answer, and float32 ones of its features.
AT_ONCE, VALUES_AT_ONCE, ANSWERS, COPIES_OF_FEATURES = 500, 2**24, 3, 3
MUCH_LATER = 1.15  # times the minutes that were asked for
COPIES = 6  # of the trained weights in memory: themselves, gradient, noise, Adam's two moments, their average
STORED_COPIES = 4  # in a checkpoint: weights, average, two moments


def forecast(
    facts: PublicFacts, plan: Plan, trained: Trained | None, loop: LoopFlags | None,
    stages: Sequence[OrdinaryTraining], num_made: int, device: torch.device | str, *, count: int = 1,
    others: Mapping[str, Trained] = MappingProxyType({}), minutes: float = math.inf,
) -> str:  # fmt: skip
    """
    What a run will take, in words, but for reading images and drawing samples.

    Args:
        trained (`Trained`, *optional*): What DP-SGD trains, new; it keeps its weights.
        loop (`LoopFlags`, *optional*): Settings of DP-SGD.
        stages (sequence of `OrdinaryTraining`): What else is trained.
        num_made (`int`): Images that are made of the answers.
        count (`int`, defaults to 1): Processes that share the work.
        others (`dict[str, Trained]`): What other trainings of the plan train, new, by their rows.
        minutes (`float`, *optional*): Those that the settings were counted for.
    """
    if plan.step is not None and plan.step.mechanism.has_teachers:
        return "how long: not measured for teachers."
    device, other = torch.device(device), 0.0
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        seconds, memory = _queries(facts, plan, num_made, device)
        disk, parts = num_made * math.prod(facts.image_shape), [f"the queries {_in_words(seconds)}"] * (seconds > 0)
        if trained is not None and loop is not None and plan.step is not None:
            weights = 4 * sum(parameter.numel() for parameter in trained.module.parameters())
            assert plan.sampling is not None
            images = plan.sampling.expected_batch_size * plan.sampling.images_per_unit
            of_step, most = _step(facts, plan.step, trained, device, loop, count, images)
            seconds, memory = seconds + plan.step.steps * of_step, max(memory, most + COPIES * weights)
            disk += (STORED_COPIES * (loop.checkpoints_total_limit + 1) + 1) * weights
            disk += 4 * facts.num_images * math.prod(trained.row_shape) if trained.row_shape else 0
            parts.insert(0, f"DP-SGD {plan.step.steps:,} steps of {of_step:.3g} s")
        for query in plan.queries:
            if isinstance(query, PrivateTraining):
                of_all, most = _training(facts, plan.rows[query.name], query, others[query.name], device, count)
                other, memory = other + of_all, max(memory, most)
        for stage in stages:
            batch = max(1, math.ceil(stage.batch_size / count))
            step = _ordinary_step(stage, facts, trained, device, None if loop is None else loop.precision)
            of_step, most = _measured(step, batch, batch, device)
            other, memory = other + stage.num_steps * of_step, max(memory, most)
    if trained is not None:
        trained.module.zero_grad()
        trained.model.zero_grad()
    disk += facts.num_images * math.prod(facts.image_shape)
    parts += [f"{_in_words(other)} of {'other' if others else 'ordinary'} training"] * (other > 0)
    seconds += other
    late = seconds > MUCH_LATER * 60 * minutes
    remedy = f"\ngive --minutes {60 * minutes**2 / seconds:.2g} to end after {minutes:g} min here" if late else ""
    number = torch.get_num_threads()
    threads = f"{number} thread{'' if number == 1 else 's'}"
    where = f"{device.type}, {threads if device.type == 'cpu' else torch.cuda.get_device_name(device)}"
    where += "" if count == 1 else f", {count} processes"
    return (
        f"how long, measured here ({where}): {_in_words(seconds)} in all, of which {', '.join(parts)}; "
        f"reading images and drawing samples come on top{remedy}\n"
        f"memory: about {memory / 1e9:.2g} GB beside the libraries; disk: about {disk / 1e9:.2g} GB for decoded "
        "images, checkpoints and release"
    )


def _queries(facts: PublicFacts, plan: Plan, num_made: int, device: torch.device) -> tuple[float, int]:
    """Seconds of all queries. Bytes of the largest answer, of the images and features that are computed at once, and
    of the images that are made of the answers."""
    shape, labelled, pixels = facts.image_shape, facts.class_names is not None, math.prod(facts.image_shape)
    if plan.exact:  # such queries are computed on the CPU
        device = torch.device("cpu")
    seconds, most = 0.0, 0
    for query in plan.queries:
        if isinstance(query, PrivateTraining) or query.num_values is None:  # an absent network, or captions
            continue

        def ask(number: int, features: Any = query.timed()) -> None:
            images, labels, _ = blank_images(number, shape, labelled, device)
            with torch.no_grad():
                features(images, labels).double().sum(0)

        values = (query.num_values or 0) * (shape[0] if query.by_channel else 1)
        at_once = min(AT_ONCE, max(1, VALUES_AT_ONCE // max(values, pixels)))
        seconds += query.repeats * _measured(ask, math.ceil(query.sample_rate * facts.num_images), at_once, device)[0]
        classes = len(facts.class_names or ("",)) if query.by_label else 1
        answer = 8 * (ANSWERS + query.repeats - 1) * values * classes
        most = max(most, answer + 4 * at_once * (COPIES_OF_FEATURES * values + pixels))
    return seconds, most + num_made * pixels * 5  # of whole numbers, and of real ones before


def _training(
    facts: PublicFacts, row: LedgerRow, query: PrivateTraining, trained: Trained, device: torch.device, count: int
) -> tuple[float, int]:
    """Seconds of another training with what it encodes, and bytes of the images that are computed at once."""
    images = query.batch_size * (row.mechanism.max_images_per_unit or 1)
    of_step, memory = _step(facts, row, trained, device, query.settings, count, images)
    if trained.row_shape is None:
        return row.steps * of_step, memory
    encode, few = query.timed(), math.ceil(facts.num_images / count)
    blank = partial(blank_images, image_shape=facts.image_shape, labelled=False, device=device)
    seconds, most = _measured(lambda number: encode(blank(number)[0], None), few, min(AT_ONCE, few), device)
    return row.steps * of_step + seconds, max(memory, most)


def _step(
    facts: PublicFacts, row: LedgerRow, trained: Trained, device: torch.device, loop: LoopFlags, count: int,
    in_all: float,
) -> tuple[float, int]:  # fmt: skip
    """Seconds of a noisy gradient over so many images and of what follows, and bytes of the images that are computed
    at once."""
    images = max(1, math.ceil(in_all / count))
    blank: dict[str, Any] = {
        "image_shape": trained.row_shape or facts.image_shape, "labelled": facts.class_names is not None,
        "noise_multiplicity": row.facts["noise_multiplicity"], "device": device,
    }  # fmt: skip

    def step(number: int) -> dict[str, torch.Tensor]:
        total = blank_step(trained.model, trained.loss, number, **blank)
        return add_noise(total, std=1.0, normaliser=1.0, generator=PrivateGenerator())

    at_once = loop.physical_batch_size or largest_physical_batch(
        trained.model, trained.loss, at_most=images, processes_here=count, **blank
    )
    seconds, memory = _measured(step, images, min(at_once, images), device)
    if (backward := trained.backward) is not None:
        gradients = step(1)
        backward(gradients)  # what is chosen and allocated once
        seconds += _once(lambda: [backward(gradients) for _ in range(FOLLOWING)], device) / FOLLOWING
    return seconds, memory


def _ordinary_step(
    stage: OrdinaryTraining, facts: PublicFacts, trained: Trained | None, device: torch.device, precision: str | None
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
    model = in_mixed_precision(model, warm_up_type(precision, device))

    def step(number: int) -> None:
        rows, labels, _ = blank_images(number, shape, facts.class_names is not None, device)
        if generator is not None:
            rows = generator.draw(torch.zeros(number, dtype=torch.long, device=device))
        losses = [] if loss is None else [loss(model, rows, labels, PrivateGenerator()).mean()]
        if loss is None or stage.query is not None:
            rows.requires_grad_()
            losses.append((rows if stage.query is None else stage.query.features(rows, None)).square().mean())
        torch.stack(losses).sum().backward()

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
    # Busy cores slow single calls, and a further image never costs more than a call of its own.
    each = min(one, max(0.0, several - one) / (number - 1)) if number > 1 else one
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


def _in_words(seconds: float) -> str:
    return str(timedelta(seconds=max(1, round(seconds))))
