# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a dossier says, as JSON values; the page shows the same."""

from typing import Any

from .. import __version__
from ..accounting.attack_bounds import AttackBounds, attack_bounds_of
from ..release.plain_words import claimed, found_in_words, has_earlier, plain_guarantee, queries
from ..verify import FORMAT, about_delta, known_faults, settled_digest
from .texts import hazards, texts


NOT_STATED = "not stated"


def contents(
    receipt: dict[str, Any],
    *,
    name: str,
    answers: dict[str, str],
    tests: dict[str, Any] | None,
    per_class: list[dict[str, Any]],
) -> dict[str, Any]:
    """Collects everything that a dossier says of a release.

    Args:
        receipt (`dict`): Receipt that `verify` found consistent.
        name (`str`): Name of the release.
        answers (`dict[str, str]`): Answers of the institution, see `form.read_context`.
        tests (`dict`, *optional*): See `evidence.read_tests`.
        per_class (`list[dict]`): See `evidence.per_class`; measured on public images alone.

    Raises:
        ValueError: The bounds take too long to compute.
    """
    delta, number, unit = about_delta(receipt)
    method, library = receipt.get("method") or {}, receipt.get("library") or {}
    together = has_earlier(receipt)
    bounds = attack_bounds_of(receipt)
    both = attack_bounds_of(receipt, all_releases=True) if together else None
    return {
        "format": FORMAT,
        "library": {"name": "diffusers_dp", "version": __version__},
        "release": {
            "name": name,
            "receipt_sha256": settled_digest(receipt),
            "created": receipt.get("created_utc", NOT_STATED),
            "method": method.get("name", NOT_STATED),
            "paper": method.get("paper"),
            "status": receipt["status"],
            "made_with": f"{library.get('name', 'a version')} {library.get('version', NOT_STATED)}",
            "checked": "numbers consistent",
        },
        "protected": {
            "unit": unit,
            "number": number,
            "adjacency": receipt["adjacency"],
            "public_facts": receipt["public_facts"],
            "in_words": plain_guarantee(receipt, "this release"),
        },
        "parameters": {
            "epsilon": claimed(receipt),
            "delta": delta,
            "accountant": receipt["accountant"],
            "epsilon_of_all_releases": receipt["dataset"]["epsilon_of_all_releases"]["pld"] if together else None,
            "earlier_releases": len(receipt.get("prior_releases") or []),
        },
        "asked": queries(receipt["events"]),
        "attacker": {"in_words": found_in_words(receipt, bounds, both), "bounds": _limits(bounds, both)},
        "tests": tests,
        "assumptions": receipt.get("assumptions") or [f"The receipt has no assumptions: {NOT_STATED}."],
        "not_covered": {
            "outputs": receipt.get("leaky_outputs") or [],
            "private_evaluations": receipt["private_evaluations"],
            "public_inputs": receipt.get("public_inputs") or [],
        },
        "hazards": hazards(receipt, tests=tests, per_class=bool(per_class)),
        "known_faults": list(known_faults(receipt)),
        "classes": per_class,
        "paid_for": receipt.get("evaluation") or [],
        "form": [
            {"name": each, "group": group, "question": words, "answer": answers.get(each)}
            for group, found in texts()["questions"].items()
            for each, words in found.items()
        ],
    }


def _limits(bounds: AttackBounds, both: AttackBounds | None) -> list[dict[str, Any]]:
    """Name of each bound, what a blind guess reaches, the bound, and the bound for all releases of the data set."""
    together = [None] * len(_rows(bounds)) if both is None else [bound for _, _, bound in _rows(both)]
    names = ("name", "without_release", "at_most", "at_most_with_earlier_releases")
    return [dict(zip(names, (*row, other), strict=True)) for row, other in zip(_rows(bounds), together, strict=True)]


def _rows(bounds: AttackBounds) -> list[tuple[str, float, float]]:
    return [
        *(
            (f"true-positive rate at {100 * rate:g} % false positives", rate, bound)
            for rate, bound in bounds.true_positive_rates.items()
        ),
        ("membership advantage", 0.0, bounds.advantage),
        *(
            (f"reconstruction, guessed once in {round(1 / prior):,}", prior, bound)
            for prior, bound in bounds.reconstructions.items()
        ),
    ]
