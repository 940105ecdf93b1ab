# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Dirac canaries: records whose whole gradient lies in one coordinate of their own, and a door that watches what
becomes of them.

A record carries its number in its pixels. Canary `i` has the loss `G w[i]`, with a vector `w` that is added to the
model and G far above the clip norm. So the gradient of `w[i]`, summed over the steps, is exactly C for each step the
canary took part in, plus noise: the strongest signal that any record can give (Nasr et al. 2023, Section 4).
That of a canary whose coin left it out is noise alone.

Steps as an attacker sees them who knows the mechanism: correlated noise made white again, and of each record what
all of its turns tell.

Of answers `U = G + C^-1 Z` he forms `C U`. One turn of a record at step t adds a column of C to that. The inner
product with the column holds the record once and noise of standard deviation sigma; turns of one record, b steps
apart, do not touch each other. So to him T steps are as many Poisson-sampled Gaussians as the record has turns. Where
noise is independent, C is the identity and each step is everybody's turn.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from ..errors import UsageError
from ..gradients.step import Gradients, RowLoss
from ..mechanisms import Mechanism
from ..privacy.kept_state import KeptState
from ..privacy.sensitive import SensitiveImages
from ..randomness.keyed_hash import digests_of, group_of
from ..randomness.private_generator import PrivateGenerator


TAG_BYTES = 8
_MAGIC = (0xCA, 0x2D, 0x91, 0x5E)
LOUDNESS = 1e4  # G / C: what an unclipped canary would contribute, in clip norms


Numbers = TypeVar("Numbers", np.ndarray, torch.Tensor)


def whitened(answers: Numbers, mechanism: Mechanism) -> Numbers:
    """`C U`, whose noise is z again.

    Args:
        answers (array or tensor of shape `[T, ...]`): Answers of all steps of one block, in their order.
    """
    return _along_steps(answers, list(enumerate(_coefficients(mechanism))))


def scored_turns(steps: int, mechanism: Mechanism) -> int:
    """Turns of each group whose columns of C end within so many steps: what an audit looks at."""
    return max(0, steps - mechanism.num_groups + 1) // mechanism.num_groups


def enough_steps(steps: int, mechanism: Mechanism) -> int:
    """So many steps or some more, such that all groups have the same number of turns, and two at least."""
    groups = mechanism.num_groups
    return steps if groups == 1 else groups * max(2, -(-steps // groups))


def groups_of_rows(num_records: int, mechanism: Mechanism) -> np.ndarray:
    """Groups of records whose ids are their row numbers, int64 `[num_records]`."""
    if mechanism.num_groups == 1:
        return np.zeros(num_records, dtype=np.int64)
    return group_of(digests_of(range(num_records)), mechanism.num_groups, mechanism.own_facts["group_key"])


def turns_of(answers: np.ndarray, mechanism: Mechanism) -> np.ndarray:
    """Of each record's own coordinate, what its turns tell: `<column of C, C U>`, with the record's part, 0 or C, and
    noise N(0, (sigma C)^2).

    Args:
        answers (`np.ndarray`, shape `[T, m]`): Coordinate i is that of record i.

    Returns:
        `np.ndarray`, shape `[scored_turns, m]`.
    """
    backwards = [(-k, value) for k, value in enumerate(_coefficients(mechanism))]
    projected = _along_steps(whitened(answers, mechanism), backwards)
    first = np.arange(scored_turns(len(answers), mechanism))[:, None] * mechanism.num_groups
    return np.take_along_axis(projected, first + groups_of_rows(answers.shape[1], mechanism), axis=0)


def _coefficients(mechanism: Mechanism) -> tuple[float, ...]:
    """c_0 to c_{b-1}: those of the identity where noise is independent."""
    return tuple(mechanism.own_facts.get("coefficients", (1.0,)))


def _along_steps(values: Numbers, shifts: list[tuple[int, float]]) -> Numbers:
    """`sum_k c_k values[t - k]`, steps before the first and after the last taken for 0."""
    total, steps = values * 0, len(values)
    for shift, coefficient in shifts:
        later, earlier = slice(max(shift, 0), steps + min(shift, 0)), slice(max(-shift, 0), steps - max(shift, 0))
        if abs(shift) < steps:
            total[later] += coefficient * values[earlier]
    return total


def tag_images(images: np.ndarray, numbers: np.ndarray) -> None:
    """Writes each record's number into its first 8 values: 4 bytes that say "tagged", 4 of the number.

    Args:
        images (`np.ndarray` of uint8, shape `[n, C, H, W]`): Changed in place.
        numbers (`np.ndarray`, shape `[n]`): From 0 to 2^31 - 1.

    Raises:
        UsageError: An image has less than 8 values.
    """
    if images[0].size < TAG_BYTES:
        raise UsageError(f"An audit needs images of at least {TAG_BYTES} values; give a larger --resolution.")
    flat = images.reshape(len(images), -1)
    flat[:, :4] = _MAGIC
    flat[:, 4:TAG_BYTES] = np.asarray(numbers, dtype="<u4").view(np.uint8).reshape(-1, 4)


def read_tags(rows: torch.Tensor) -> torch.Tensor:
    """The number of each row's record, -1 where there is no tag (a blank row).

    Args:
        rows (`torch.Tensor`, shape `[rows, C, H, W]`): As a loss is given them: in [-1, 1].

    Returns:
        `torch.LongTensor`, shape `[rows]`, on the CPU.
    """
    values = rows.flatten(1)[:, :TAG_BYTES].detach().cpu().double().add(1).mul(127.5).round().long()
    number = (values[:, 4:] * torch.tensor([1, 1 << 8, 1 << 16, 1 << 24])).sum(1)
    return torch.where((values[:, :4] == torch.tensor(_MAGIC)).all(1), number, -1)


class FaultyNoise(PrivateGenerator):
    """The private source with one argument that breaks it: all noise is multiplied by `noise_scale`.

    Args:
        noise_scale (`float`): 1 is honest, 0.5 halves the noise, 0 leaves it off.

    Attributes:
        for_loss (`PrivateGenerator`): What a loss draws from, always honest.
    """

    def __init__(self, noise_scale: float = 1.0, key: bytes | None = None):
        super().__init__(key)
        self.noise_scale = noise_scale
        self.for_loss = PrivateGenerator(None if key is None else key[::-1])

    def normal(self, shape: tuple[int, ...], std: float, device: torch.device | str = "cpu") -> torch.Tensor:
        if self.noise_scale == 0:
            return torch.zeros(tuple(shape), device=device)
        return super().normal(shape, std, device) * self.noise_scale

    def rounded_normal(self, shape: tuple[int, ...], std: float, device: torch.device | str = "cpu") -> torch.Tensor:
        return (super().rounded_normal(shape, std, device) * self.noise_scale).round()


class CanaryModel(nn.Module):
    """A model, and a coordinate for each canary.

    Args:
        model (`nn.Module`): The user's model; not changed.
        num_canaries (`int`): m.
    """

    def __init__(self, model: nn.Module, num_canaries: int):
        super().__init__()
        self.model = model
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.canaries = nn.Embedding(num_canaries, 1, device=device)
        nn.init.zeros_(self.canaries.weight)


class Watch:
    """What the audit sees of a run: for each step the records of the sample, and the noisy gradients of the canaries'
    coordinates.

    Args:
        num_canaries (`int`): m; records 0 to m - 1 are canaries.

    Attributes:
        samples (`list[np.ndarray]`): For each step the numbers of the tagged records, in order.
        batch_sizes (`list[float]`): For each step the records of the sample, blanks included.
        canaries (`list[np.ndarray]`, each of shape `[m]`): Noisy gradients times the normaliser.
        queries (`list[dict]`): The arguments of each step's query.
    """

    def __init__(self, num_canaries: int):
        self.num_canaries = num_canaries
        self.samples: list[np.ndarray] = []
        self.batch_sizes: list[float] = []
        self.canaries: list[np.ndarray] = []
        self.queries: list[dict[str, Any]] = []

    def loss(self, row_loss: RowLoss, loudness: float, noise_multiplicity: int) -> RowLoss:
        """`row_loss`, except that a canary's row has the canary's loss. Notes who is there."""

        def watched(
            model: nn.Module, rows: torch.Tensor, labels: torch.Tensor | None, generator: PrivateGenerator
        ) -> torch.Tensor:
            assert isinstance(model, CanaryModel)
            numbers = read_tags(rows)
            seen = numbers[::noise_multiplicity]
            self.batch_sizes[-1] += len(rows) / noise_multiplicity
            self.samples[-1] = np.concatenate([self.samples[-1], seen[seen >= 0].numpy()])
            numbers = numbers.to(rows.device)
            canary = (numbers >= 0) & (numbers < self.num_canaries)
            coordinates = model.canaries(torch.where(canary, numbers, 0)).squeeze(1)
            losses = row_loss(model.model, rows, labels, getattr(generator, "for_loss", generator))
            return torch.where(canary, loudness * coordinates, losses)

        return watched

    def begin_step(self) -> None:
        self.samples.append(np.zeros(0, dtype=np.int64))
        self.batch_sizes.append(0.0)

    def end_step(self, gradients: Gradients, normaliser: float) -> Gradients:
        """Takes the canaries' part out of an answer; returns the model's."""
        gradients = dict(gradients)
        self.canaries.append(gradients.pop("canaries.weight").squeeze(1).double().cpu().numpy() * normaliser)
        return {name.removeprefix("model."): gradient for name, gradient in gradients.items()}

    def inclusions(self, num_records: int) -> np.ndarray:
        """How often each tagged record took part, shape `[num_records]` at least."""
        return np.bincount(np.concatenate([*self.samples, np.zeros(0, dtype=np.int64)]), minlength=num_records)


class NotingImages(SensitiveImages):
    """A door to records of noise, whose losses may note what they are shown."""

    def _state_of(self, model: nn.Module, row_loss: RowLoss, noise_multiplicity: int, at_most: int) -> KeptState:
        return KeptState()


class WatchedImages(NotingImages):
    """`SensitiveImages` whose `noisy_gradient` adds canaries to the model and the loss, asks the real door, and hands
    on the answer without them.

    Args:
        *args, **arguments: As for `SensitiveImages`; the images are tagged.
        watch (`Watch`): What is noted.
        after_step (`Callable`): Called after each step.
    """

    def __init__(self, *args: Any, watch: Watch, after_step: Callable[[], Any], **arguments: Any):
        super().__init__(*args, **arguments)
        self.watch, self.after_step = watch, after_step

    def noisy_gradient(  # type: ignore[override]
        self, model: nn.Module, row_loss: RowLoss, mechanism: Mechanism, **query: Any
    ) -> Gradients:
        self.watch.begin_step()
        loudness = LOUDNESS * query["max_grad_norm"]
        answer = super().noisy_gradient(
            CanaryModel(model, self.watch.num_canaries),
            self.watch.loss(row_loss, loudness, query["noise_multiplicity"]),
            mechanism,
            **query,
        )
        self.watch.queries.append({**query, "mechanism": mechanism})
        gradients = self.watch.end_step(answer, query["normaliser"])
        self.after_step()
        return gradients
