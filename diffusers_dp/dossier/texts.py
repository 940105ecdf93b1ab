# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Texts of the dossier, in `templates/dossier.yaml`, and what fills them in."""

from functools import cache
from importlib.resources import files
from typing import Any

from ..verify import about_delta, known_faults


COLUMNS = ("hazard", "held_by", "measured_by", "not_covered")


@cache
def texts() -> dict[str, Any]:
    """Returns `questions`, `hazards` and `terms`."""
    import yaml

    content = files("diffusers_dp").joinpath("templates", "dossier.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(content))


def hazards(receipt: dict[str, Any], *, tests: dict[str, Any] | None, per_class: bool) -> list[dict[str, str]]:
    """Returns a row for each hazard, with `hazard`, `held_by`, `measured_by` and `not_covered`.

    Args:
        receipt (`dict`): Verified receipt.
        tests (`dict`, *optional*): See `evidence.read_tests`.
        per_class (`bool`): Whether the dossier shows results for each class.

    Raises:
        jinja2.TemplateError: The receipt lacks what a text needs.
    """
    from jinja2 import Environment

    delta, number, unit = about_delta(receipt)
    facts: dict[str, Any] = {
        "receipt": receipt, "tests": tests, "delta": delta, "number": number, "unit": unit, "per_class": per_class,
        "faults": list(known_faults(receipt)),
    }  # fmt: skip
    fill = Environment().from_string  # what a receipt holds is never a template itself
    rows = texts()["hazards"]
    return [{name: fill(row.get(name, "")).render(facts) or "nothing" for name in COLUMNS} for row in rows]
