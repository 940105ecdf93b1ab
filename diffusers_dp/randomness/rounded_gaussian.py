# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Gaussian noise, rounded to whole numbers, with exactly the probabilities that a rounded Gaussian has.

A whole number plus rounded noise is the sum of both, rounded: `s + round(Z) = round(s + Z)`. So the answer is a
function of the continuous Gaussian mechanism's, and costs what that one costs. No torch.
"""

from collections.abc import Callable

import numpy as np
from scipy.special import ndtri


#: n to n random 64-bit words, `np.ndarray` of uint64.
Words = Callable[[int], np.ndarray]

BITS = 54  # of u in [0, 1/2), of which a word decides the first 53 that can differ
#: How far the inverse distribution in float64 may be from its value at the u that all bits tell: this, times 1 + |z|.
#: Errors of 2^-46 |z| times 320 were measured, and up to `TAIL` the bits that a word lacks move z by 2^-37.
MARGIN = 2.0**-38
TAIL = 4.6  # beyond it every number is decided
MOST_STEPS = 2.0**36  # of a standard deviation: with more, most numbers would have to be decided one by one
MORE = 64  # bits at a time


def rounded_gaussian(count: int, std: float, words: Words) -> np.ndarray:
    """
    Draws `round(Z)` with `Z ~ N(0, std^2)`, independently.

    Each number begins with one word: a sign, and 53 bits of a uniform u. Its magnitude is `-ndtri(u) std`, rounded.
    Where that lies near the middle between two whole numbers, or far in the tail, more bits of u and interval
    arithmetic decide.

    Args:
        count (`int`): How many.
        std (`float`): Above 0, at most `MOST_STEPS`.
        words (`Callable`): Source of random words.

    Returns:
        `np.ndarray` of float64, shape `[count]`: whole numbers.

    Raises:
        ValueError: `std` is outside its range.
    """
    if not 0 < std <= MOST_STEPS:
        raise ValueError(f"The standard deviation must lie in (0, 2^36] steps, not {std}.")
    drawn = words(count)
    sign, uniform = 1 - 2 * (drawn & np.uint64(1)).astype(np.float64), drawn >> np.uint64(11)
    z = -ndtri((uniform.astype(np.float64) + 0.5) * 2.0**-BITS)
    magnitude = z * std
    found = np.rint(magnitude)
    unsure = 0.5 - np.abs(magnitude - found) <= MARGIN * std * (1 + z)
    for index in np.flatnonzero(unsure | (z > TAIL)):
        found[index] = decided(int(uniform[index]), std, words)
    return sign * found + 0.0  # no negative zero


def decided(uniform: int, std: float, words: Words) -> int:
    """
    The magnitude of one number, whatever is rounded on the way: the least k >= 0 with `P(Z >= k + 1/2) <= u`.

    Args:
        uniform (`int`): The first 53 bits of u, in units of 2^-54.
        std (`float`): As above.
        words (`Callable`): Source of further bits, which are asked for where those that are there leave it open.
    """
    from flint import arb, ctx

    numerator, bits = uniform, BITS

    def draw_more() -> None:
        nonlocal numerator, bits
        numerator, bits = numerator << MORE | int(words(1)[0]), bits + MORE

    def is_below(k: int) -> bool:
        """Whether u < P(Z >= k + 1/2)."""
        while True:
            with ctx.workprec(bits + MORE):
                tail = (arb(2 * k + 1) / 2 / arb(std) / arb(2).sqrt()).erfc() / 2
                if arb(numerator + 1) / arb(1 << bits) <= tail:  # true where no point of the intervals contradicts
                    return True
                if arb(numerator) / arb(1 << bits) >= tail:
                    return False
            draw_more()

    draw_more()  # now the inverse distribution is a good guess, in the tail too
    while numerator == 0:
        draw_more()
    k = int(max(0.0, np.rint(-ndtri(numerator / (1 << bits)) * std)))
    while is_below(k):
        k += 1
    while k > 0 and not is_below(k - 1):
        k -= 1
    return k
