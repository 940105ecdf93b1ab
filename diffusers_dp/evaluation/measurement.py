# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""One number of a report, with everything that is needed to measure it again."""

from dataclasses import dataclass, field
from typing import Any


WITH_DP = "real, with DP-SGD"  # what a classifier was trained on


@dataclass(frozen=True)
class Measurement:
    """One number, and how it came about.

    Args:
        metric (`str`): What is measured. `FID` only where the features are those of the published Inception network.
        value (`float`): The number, in the unit that the metric has in the literature.
        protocol (`dict`): Extractor, counts, split, seed: JSON values.
        standard_error (`float`, *optional*): Of `value`, where there are several seeds or a count of test images.
    """

    metric: str
    value: float
    protocol: dict[str, Any] = field(default_factory=dict)
    standard_error: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "value": self.value,
            "standard_error": self.standard_error,
            "protocol": self.protocol,
        }
