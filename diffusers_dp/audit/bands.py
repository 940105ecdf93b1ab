# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Steps with bands as an attacker sees them who knows the matrix C: their correlated noise made white again, and of
each record what all of its turns tell.

Of answers `U = G + C^-1 Z` he forms `C U`. One turn of a record at step t adds a column of C to that. The inner
product with the column holds the record once and noise of standard deviation sigma; turns of one record, b steps
apart, do not touch each other. So to him T steps are as many Poisson-sampled Gaussians as the record has turns.
"""

from typing import TypeVar

import numpy as np
import torch

from ..mechanisms import Banded, Mechanism
from ..randomness.keyed_hash import digests_of, group_of


Numbers = TypeVar("Numbers", np.ndarray, torch.Tensor)


def whitened(answers: Numbers, bands: Banded) -> Numbers:
    """`C U`, whose noise is z again.

    Args:
        answers (array or tensor of shape `[T, ...]`): Answers of all steps of one block, in their order.
    """
    return _along_steps(answers, [(k, value) for k, value in enumerate(bands.coefficients)])


def scored_turns(steps: int, bands: Banded) -> int:
    """Turns of each group whose columns of C end within so many steps: what an audit looks at."""
    return max(0, steps - bands.num_groups + 1) // bands.num_groups


def enough_steps(steps: int, mechanism: Mechanism) -> int:
    """So many steps or some more, such that all groups have the same number of turns, and two at least."""
    groups = mechanism.num_groups
    return steps if groups == 1 else groups * max(2, -(-steps // groups))


def groups_of_rows(num_records: int, bands: Banded) -> np.ndarray:
    """Groups of records whose ids are their row numbers, int64 `[num_records]`."""
    return group_of(digests_of(range(num_records)), bands.num_groups, bands.group_key)


def turns_of(answers: np.ndarray, bands: Banded) -> np.ndarray:
    """Of each record's own coordinate, what its turns tell: `<column of C, C U>`, with the record's part, 0 or C, and
    noise N(0, (sigma C)^2).

    Args:
        answers (`np.ndarray`, shape `[T, m]`): Coordinate i is that of record i.

    Returns:
        `np.ndarray`, shape `[scored_turns, m]`.
    """
    projected = _along_steps(whitened(answers, bands), [(-k, value) for k, value in enumerate(bands.coefficients)])
    groups = groups_of_rows(answers.shape[1], bands)
    own = np.arange(scored_turns(len(answers), bands))[:, None] * bands.num_groups + groups
    return np.take_along_axis(projected, own, axis=0)


def out_of_turn(samples: list[np.ndarray], bands: Banded, num_records: int) -> int:
    """How many records of all samples were there though it was not their group's turn."""
    groups = groups_of_rows(num_records, bands)
    return sum(int((groups[sample] != step % bands.num_groups).sum()) for step, sample in enumerate(samples))


def _along_steps(values: Numbers, shifts: list[tuple[int, float]]) -> Numbers:
    """`sum_k c_k values[t - k]`, steps before the first and after the last taken for 0."""
    total, steps = values * 0, len(values)
    for shift, coefficient in shifts:
        later, earlier = slice(max(shift, 0), steps + min(shift, 0)), slice(max(-shift, 0), steps - max(shift, 0))
        if abs(shift) < steps:
            total[later] += coefficient * values[earlier]
    return total
