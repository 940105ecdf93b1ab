# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Steps as an attacker sees them who knows the mechanism: correlated noise made white again, and of each record what
all of its turns tell.

Of answers `U = G + C^-1 Z` he forms `C U`. One turn of a record at step t adds a column of C to that. The inner
product with the column holds the record once and noise of standard deviation sigma; turns of one record, b steps
apart, do not touch each other. So to him T steps are as many Poisson-sampled Gaussians as the record has turns. Where
noise is independent, C is the identity and each step is everybody's turn.
"""

from typing import TypeVar

import numpy as np
import torch

from ..mechanisms import Mechanism
from ..randomness.keyed_hash import digests_of, group_of


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
