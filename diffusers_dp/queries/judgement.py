# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The query of `--evaluation_reserve` about a finished model; `evaluation.charged` has its features. No torch."""

import math
from dataclasses import dataclass
from typing import Any

from .query import Query


@dataclass(frozen=True, kw_only=True)
class JudgesQuery(Query):
    """
    Confusion counts, first and second moments, with a row for each true class; without classes only the moments.

    Args:
        num_classes, synthetic_images (`int`): Number of classes, and of drawn images.
    """

    name = "evaluation_reserve"
    title = "left for evaluation"

    num_classes: int
    synthetic_images: int

    @property
    def clip_norm(self) -> float:
        """Norm of one image's contribution: two or three parts of norm 1."""
        return math.sqrt(3 if self.num_classes else 2)

    @property
    def facts(self) -> dict[str, Any]:
        return {"synthetic_images": self.synthetic_images}
