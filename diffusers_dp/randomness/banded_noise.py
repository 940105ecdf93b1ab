# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Noise that is correlated over steps, so that it partly cancels in an optimiser's sums (banded matrix
factorisation)."""

from collections import deque
from collections.abc import Sequence

import torch

from ..mechanisms.banded import COEFFICIENT_STEPS
from .private_generator import PrivateGenerator


class BandedNoise:
    """The noise `y = C^-1 z` of consecutive steps, with `z ~ N(0, std^2 I)` and C lower triangular, banded and
    Toeplitz (Choquette-Choo et al. 2023, arXiv 2306.08153, Section 4).

    Row t is `y_t = (z_t - sum_{k=1}^{b-1} c_k y_{t-k}) / c_0`; before the first step the noise is 0. The noise of the
    last b - 1 steps stays in memory, in float32, as returned. Anybody who has it can subtract noise, so it is never
    serialised.

    A new object starts a new block of C. So does a step that does not follow the previous one, or that has other
    parameters, coefficients or another standard deviation. Columns b steps apart are orthogonal across blocks, too.
    """

    def __init__(self) -> None:
        self._block: tuple[object, ...] = ()
        self._next = 0
        self._past: list[deque[torch.Tensor]] = []  # one per tensor of a step, the newest noise first

    def step(
        self,
        position: int,
        coefficients: Sequence[float],
        std: float,
        tensors: Sequence[torch.Tensor],
        generator: PrivateGenerator,
    ) -> list[torch.Tensor]:
        """Draws one step's noise, of the shapes of these tensors, where they are.

        Args:
            position (`int`): Position of the step among all steps that the ledger reserved.
            coefficients (sequence of `float`): Coefficients c_0 to c_{b-1}.
            std (`float`): Standard deviation of z.
            tensors (sequence of `torch.Tensor`): What gets noise.
            generator (`PrivateGenerator`): Source of z.
        """
        c_0, *others = coefficients
        block = (tuple(coefficients), std, tuple(tensor.shape for tensor in tensors))
        if block != self._block or position != self._next:
            self._past = [deque(maxlen=len(others)) for _ in tensors]
        # A step that fails leaves no block to continue.
        self._block, self._next = (), position + 1
        for tensor, past in zip(tensors, self._past, strict=True):
            noise = generator.normal(tensor.shape, std, tensor.device).double()
            for coefficient, earlier in zip(others, past):
                noise -= coefficient * earlier
            given = (noise / c_0).float()
            past.appendleft(given)
        self._block = block
        return [past[0] for past in self._past]

    def __reduce__(self):
        raise TypeError("BandedNoise is never serialised: anybody who has past noise can subtract it.")


class BandedSums:
    """
    Noise that is correlated over steps, in whole numbers. Step t answers `V_t = sum_k m_k G_(t-k) + Z_t`, of sums G
    and fresh noise Z; what a step of DP-SGD takes, `A_t = (V_t - sum_{k>=1} m_k A_(t-k)) / m_0`, follows from answers
    alone. That is `G_t` plus noise `C^-1 z` as in `BandedNoise`, with coefficients `m_k / COEFFICIENT_STEPS`.

    The sums of the last b - 1 steps stay in memory without noise, and are never serialised. Blocks are as in
    `BandedNoise`.
    """

    def __init__(self) -> None:
        self._block: tuple[object, ...] = ()
        self._begun: tuple[object, ...] = ()
        self._next = 0
        self._weights: tuple[int, ...] = ()
        self._sums: deque[list[torch.Tensor]] = deque()  # without noise, the newest first
        self._taken: deque[list[torch.Tensor]] = deque()

    def __reduce__(self):
        raise TypeError("BandedSums is never serialised: it holds sums without noise.")

    def mix(
        self, position: int, coefficients: Sequence[float], scale: tuple[float, float], sums: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """
        Returns `sum_k m_k G_(t-k)`, the part of V of this process.

        Args:
            position (`int`): Position of the step among all steps that the ledger reserved.
            coefficients (sequence of `float`): c_0 to c_{b-1}.
            scale (`tuple[float, float]`): Noise multiplier and clip norm. With another one, a new block begins.
            sums (list of `torch.Tensor`): G_t, whole numbers in float64.

        Raises:
            ValueError: The rounded coefficients have an L2 norm above `COEFFICIENT_STEPS`.
        """
        weights = whole_coefficients(coefficients)
        block = (weights, scale, tuple(value.shape for value in sums))
        if (block, position) != (self._block, self._next):
            self._sums, self._taken = deque(maxlen=len(weights) - 1), deque(maxlen=len(weights) - 1)
        # A step that fails leaves no block to continue.
        self._block, self._next, self._begun, self._weights = (), position + 1, block, weights
        mixed = [weights[0] * value for value in sums]
        for weight, earlier in zip(weights[1:], self._sums):
            for value, other in zip(mixed, earlier, strict=True):
                value += weight * other
        self._sums.appendleft(sums)
        return mixed

    def solve(self, answers: list[torch.Tensor]) -> list[torch.Tensor]:
        """
        Returns A_t, in steps of the grid.

        Args:
            answers (list of `torch.Tensor`): V_t, of all processes, with its noise.
        """
        taken = [value.clone() for value in answers]
        for weight, earlier in zip(self._weights[1:], self._taken):
            for value, other in zip(taken, earlier, strict=True):
                value -= weight * other
        taken = [value / self._weights[0] for value in taken]
        self._taken.appendleft(taken)
        self._block = self._begun
        return taken


def whole_coefficients(coefficients: Sequence[float]) -> tuple[int, ...]:
    """
    The coefficients of bands as whole numbers, rounded towards 0: their norm is `COEFFICIENT_STEPS` at most.

    Raises:
        ValueError: It is not.
    """
    weights = tuple(int(COEFFICIENT_STEPS * value) for value in coefficients)
    if 0 in weights[:1] or sum(weight**2 for weight in weights) > COEFFICIENT_STEPS**2:
        raise ValueError("The coefficients of bands have a norm above 1, or the first is below a step.")
    return weights
