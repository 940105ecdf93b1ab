# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""States of the model that a run saved before the release, to show the progress of each stage.

All of them depend only on noisy answers and gradients that the run's ledger counts, so the release's guarantee covers
them, too. It does not cover measurements of them against real images, as for every number of an evaluation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class EarlierState:
    """A saved state of the model.

    Args:
        name (`str`): Name for display.
        step (`int`, *optional*): Step of DP-SGD; 0 is its initial state, `None` an earlier state.
        folder (`Path`): Checkpoint, or pipeline saved after a stage of the warm-up.
    """

    name: str
    step: int | None
    folder: Path


@dataclass(frozen=True)
class CurvePoint:
    """Images of a state, drawn only when needed.

    Args:
        state (`EarlierState`): State of the model.
        weights_sha256 (`str`): Hash of its averaged weights.
        drawing (`dict`): Other settings that determine the images: JSON values.
        draw (`Callable`): Function that returns the images, uint8, shape `[n, C, H, W]`.
    """

    state: EarlierState
    weights_sha256: str
    drawing: dict[str, Any]
    draw: Callable[[], np.ndarray]
