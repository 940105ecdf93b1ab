# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""One number of a report, with everything needed to reproduce it."""

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any


OF_HALVES = "between_halves_of_the_real_images"  # a distance, beside that of the synthetic images


@dataclass(frozen=True)
class Measurement:
    """One number and its protocol.

    Args:
        metric (`str`): Name of the metric. `FID` is reserved for features of the published Inception network.
        value (`float`): Value in the unit that the metric has in the literature.
        protocol (`dict`): Extractor, counts, split, seed: JSON values.
        standard_error (`float`, *optional*): Standard error of `value`, from several seeds or a count of test images.
        analysis (`str`): Name of the `Analysis` that it is from. `as_json` leaves it out.
    """

    metric: str
    value: float
    protocol: dict[str, Any] = field(default_factory=dict)
    standard_error: float | None = None
    analysis: str = ""

    @property
    def unit(self) -> str:
        return str(self.protocol.get("unit", ""))

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("metric", "value", "standard_error", "protocol")}


def number(value: float, unit: str = "", digits: int = 4) -> str:
    """Formats a number for reading; `unit` is `%` for per cent."""
    if unit == "%":
        return f"{value:.1f} %" if digits > 2 else f"{value:.1f}"
    return f"{value:,.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"


def protocol_words(protocol: dict[str, Any], without: Container[str] = ()) -> str:
    """Formats a protocol in one line, `extractor pixels, seed 0, ...`, without empty values and the fields `without`,
    at any depth."""

    def words(value: Any) -> str:
        if isinstance(value, dict):
            return f"({protocol_words(value, without)})"
        if isinstance(value, float):
            return f"{value:.4g}"
        return " ".join(map(words, value)) if isinstance(value, (list, tuple)) else str(value)

    return ", ".join(
        f"{key.replace('_', ' ')} {words(value)}"
        for key, value in protocol.items()
        if value not in (None, [], {}, "", [None]) and key != "unit" and key not in without
    )
