# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The states that a run kept on its way to the release: how far each stage brought it.

All of them follow from the noisy answers and noisy gradients that the run's ledger counts, so that the release's
guarantee covers them as well. What is measured of them against real images is covered by nothing, as every other
number of an evaluation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class KeptState:
    """A state of the model.

    Args:
        name (`str`): In words.
        step (`int`, *optional*): Of DP-SGD; 0 is the state that it began with, `None` one before that.
        folder (`Path`): A checkpoint, or a pipeline that was saved after a stage of the warm-up.
    """

    name: str
    step: int | None
    folder: Path


@dataclass(frozen=True)
class CurvePoint:
    """Images of a state, drawn only when they are needed.

    Args:
        state (`KeptState`): Which one.
        weights_sha256 (`str`): Hash of its averaged weights.
        drawing (`dict`): All that decides the images besides: JSON values.
        draw (`Callable`): Returns them, uint8, shape `[n, C, H, W]`.
    """

    state: KeptState
    weights_sha256: str
    drawing: dict[str, Any]
    draw: Callable[[], np.ndarray]
