# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What is torch about a mechanism: who is in the batch, and which noise covers the sum. One class each."""

import torch

from ..gradients.grid import refuse_too_much_noise
from ..gradients.sampling import poisson_sample
from ..gradients.step import Gradients, add_noise, add_rounded_noise
from ..mechanisms import Banded, Mechanism
from ..mechanisms.banded import COEFFICIENT_STEPS
from ..mechanisms.mechanism import STEPS
from ..randomness.banded_noise import BandedNoise, BandedSums, whole_coefficients
from ..randomness.private_generator import PrivateGenerator
from .records import PrivateRecords


class Passage:
    """A mechanism at the door: all units or a Poisson sample of them take part, and each answer has noise of its own.

    Args:
        mechanism (`Mechanism`): What the ledger is charged for.
        records (`PrivateRecords`): Of this process.
        generator (`PrivateGenerator`): Secret source of samples and noise.

    Raises:
        UsageError: More noise than `--noise exact` can draw.
        ValueError: The units have no ids, and the mechanism has groups. Or noise is exact, and the sensitivity is not
            one clip norm, which the grid stands for.
    """

    fine = 1  # steps of the grid to one of `STEPS`

    def __init__(self, mechanism: Mechanism, records: PrivateRecords, generator: PrivateGenerator):
        self.mechanism, self.records, self.generator = mechanism, records, generator
        if mechanism.exact:
            if mechanism.sensitivity(1.0) != 1.0:
                raise ValueError("Exact noise covers a sensitivity of one clip norm.")
            refuse_too_much_noise(mechanism.noise_multiplier, STEPS * self.fine)

    def __reduce__(self):
        raise TypeError("A passage is never serialised: it may hold noise, or sums without it.")

    def units(self, position: int) -> torch.Tensor:
        """Units of this process that take part in the step at this position of the ledger, ascending."""
        return poisson_sample(self.records.own_units, self.mechanism.sampling_probability, self.generator)

    def answer(self, total: Gradients, *, clip_norm: float, normaliser: float, position: int = 0) -> Gradients:
        """Adds up the sums of all processes, with noise once, and divides by a public constant.

        The noise has the standard deviation `noise_multiplier * sensitivity`. The first process adds it to its own
        part, before anything leaves it.

        Args:
            total (`dict[str, torch.Tensor]`): Sums of this process, exact where the mechanism is; they are changed.
            clip_norm (`float`): C.
            normaliser (`float`): The public divisor.
            position (`int`): Of the step, by the ledger.
        """
        processes, sigma = self.records.processes, self.mechanism.noise_multiplier
        if self.mechanism.exact:
            return self._exact_answer(total, clip_norm, normaliser, position)
        if processes.is_first:
            std = sigma * self.mechanism.sensitivity(clip_norm)
            part = self._covered(total, std, normaliser, position)
        else:
            part = {name: value / normaliser for name, value in total.items()}
        return processes.sum(part)

    def _exact_answer(self, total: Gradients, clip_norm: float, normaliser: float, position: int) -> Gradients:
        """All that is added up, over images, steps and processes, are whole numbers, divided after the noise."""
        processes, std = self.records.processes, self.mechanism.noise_multiplier * STEPS * self.fine
        total = self._mixed(total, clip_norm, position)
        if processes.is_first:
            total = add_rounded_noise(total, std=std, generator=self.generator)
        step = clip_norm / STEPS / normaliser
        return {name: value * step for name, value in self._solved(processes.sum(total)).items()}

    def _covered(self, total: Gradients, std: float, normaliser: float, position: int) -> Gradients:
        """Sums in floating point with the noise of a step, divided."""
        return add_noise(total, std=std, normaliser=normaliser, generator=self.generator)

    def _mixed(self, total: Gradients, clip_norm: float, position: int) -> Gradients:
        """Whole numbers that get noise in a step."""
        return total

    def _solved(self, answers: Gradients) -> Gradients:
        """What is taken of their sums with noise."""
        return answers


class Turns(Passage):
    """Groups of units take turns. A new object, as a resumed run has, begins a new block of noise."""

    fine = COEFFICIENT_STEPS

    def __init__(self, mechanism: Mechanism, records: PrivateRecords, generator: PrivateGenerator):
        super().__init__(mechanism, records, generator)
        assert isinstance(mechanism, Banded)
        self._coefficients = mechanism.coefficients
        whole_coefficients(self._coefficients if mechanism.exact else ())
        self._groups = records.groups(mechanism.num_groups, mechanism.group_key)
        self._noise, self._sums = BandedNoise(), BandedSums()

    def units(self, position: int) -> torch.Tensor:
        members = self._groups[position % len(self._groups)]
        return members[poisson_sample(len(members), self.mechanism.sampling_probability, self.generator)]

    def _covered(self, total: Gradients, std: float, normaliser: float, position: int) -> Gradients:
        drawn = self._noise.step(position, self._coefficients, std, list(total.values()), self.generator)
        return {name: total[name].add_(noise).div_(normaliser) for name, noise in zip(total, drawn, strict=True)}

    def _mixed(self, total: Gradients, clip_norm: float, position: int) -> Gradients:
        scale = self.mechanism.noise_multiplier, clip_norm
        mixed = self._sums.mix(position, self._coefficients, scale, list(total.values()))
        return dict(zip(total, mixed, strict=True))

    def _solved(self, answers: Gradients) -> Gradients:
        return dict(zip(answers, self._sums.solve(list(answers.values())), strict=True))
