# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Cases of one kind: some run each time, the others with the slow tests."""

from collections.abc import Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], *kept: int) -> list[Any]:
    """All cases, of which those at the places `kept` run each time; unset: the first.

    A case is a value, or a tuple of a test's arguments.
    """
    return [
        case if place in (kept or (0,)) else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=SLOW)
        for place, case in enumerate(cases)
    ]


SLOW = pytest.mark.slow
