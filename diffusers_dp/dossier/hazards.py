# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What can go wrong although epsilon is right, one row each, filled from the receipt.

The list follows the privacy hazards and the pyramid of NIST SP 800-226 as summaries describe them; its text was not
read. Each row says what holds the hazard, what measured it, and what nobody covers.
"""

from typing import Any

from ..verify import about_delta, known_faults


NOTHING = "nothing"


def hazards(receipt: dict[str, Any], *, per_class: bool) -> list[dict[str, str]]:
    """Returns the rows, each with `hazard`, `held_by`, `measured_by` and `not_covered`.

    Args:
        receipt (`dict`): Verified receipt.
        per_class (`bool`): Whether the dossier shows results for each class.
    """
    rows = [
        _unit(receipt), _delta(receipt), _sensitivity(receipt), _composition(receipt), _arithmetic(receipt),
        _randomness(receipt), _bias(per_class), _choices(receipt), _inputs(receipt), _faults(receipt), *FIXED,
    ]  # fmt: skip
    names = ("hazard", "held_by", "measured_by", "not_covered")
    return [dict(zip(names, row, strict=True)) for row in rows]


Row = tuple[str, str, str, str]
FIXED: tuple[Row, ...] = (
    (
        "The house itself is not trustworthy",
        NOTHING,
        NOTHING,
        "Whoever operates the machine sees the images and writes the receipt. A signature says who vouches for it.",
    ),
    (
        "Time, memory or access patterns tell something",
        "the folder to release holds listed files alone",
        NOTHING,
        "Running time, memory, power and sizes of files on the machine of the training.",
    ),
    (
        "Images were collected or stored without care",
        NOTHING,
        NOTHING,
        "Consent, storage, access rights and deletion are the institution's.",
    ),
    (
        "The images are useless for their purpose",
        NOTHING,
        "`diffusers-dp evaluate`",
        "The guarantee says nothing about quality.",
    ),
)


def _unit(receipt: dict[str, Any]) -> Row:
    unit = receipt["unit_of_privacy"]
    if unit == "image":
        return (
            "The protected unit is smaller than a person", NOTHING, NOTHING,
            "Several images of one person are not protected as a whole.",
        )  # fmt: skip
    return (
        "The protected unit is smaller than a person",
        f"all images with one {unit} are one unit",
        NOTHING,
        f"That {unit} names persons, and is right, is the institution's statement.",
    )


def _delta(receipt: dict[str, Any]) -> Row:
    delta, number, unit = about_delta(receipt)
    return (
        "Delta is too large",
        f"delta {delta:.3g} is {'below' if delta < 1 / number else 'NOT below'} 1 / {number:,} {unit}s",
        f"delta times the number of {unit}s is {delta * number:.2g}",
        "With probability delta the limit of epsilon may fail.",
    )


def _sensitivity(receipt: dict[str, Any]) -> Row:
    audit = receipt.get("audit")
    measured = NOTHING if audit is None else f"an audit of the training program: {audit.get('verdict', 'no verdict')}"
    return (
        "One unit changes an answer by more than was assumed",
        "each contribution is scaled down to the clip norm, and the noise is measured in it",
        measured,
        "A changed program. The receipt is the trainer's statement of what ran.",
    )


def _composition(receipt: dict[str, Any]) -> Row:
    dataset, prior = receipt.get("dataset"), receipt.get("prior_releases") or []
    if dataset is None:
        return (
            "Several releases from the same images add up",
            "the sum over all questions of this release", "this dossier, recomputed from the receipt",
            "The receipt names no data set, so other releases from these images are not counted.",
        )  # fmt: skip
    return (
        "Several releases from the same images add up",
        f"a ledger of the data set, with {len(prior)} earlier release(s)",
        "this dossier, recomputed from the receipt",
        "Later releases, and releases outside of that ledger.",
    )


def _arithmetic(receipt: dict[str, Any]) -> Row:
    exact = receipt["status"] == "proven"
    return (
        "Arithmetic of computers is not that of the proof (floating point)",
        "noise and sums are whole numbers, and the proof covers them" if exact else NOTHING,
        NOTHING,
        "The processor and its libraries." if exact else "Attacks on the last digits of noise.",
    )


def _randomness(receipt: dict[str, Any]) -> Row:
    return (
        "The noise can be guessed",
        f"source: {(receipt.get('rng') or {}).get('kind', 'not stated')}; its seed is secret",
        NOTHING,
        "A machine whose source of randomness is weak, or that was copied while it ran.",
    )


def _bias(per_class: bool) -> Row:
    return (
        "Small groups come off worse",
        NOTHING,
        "the table of classes in this dossier" if per_class else NOTHING,
        "Groups that are no class of the data set." if per_class else "Results for each class were not given.",
    )


def _choices(receipt: dict[str, Any]) -> Row:
    read = receipt.get("private_evaluations", 0)
    said = f" Private images were read {read} time(s) to judge this release." if read else ""
    return (
        "Settings were chosen by looking at the private images",
        NOTHING,
        "the form below asks for it",
        f"Such choices, and discarded trainings, are in no receipt.{said}",
    )


def _inputs(receipt: dict[str, Any]) -> Row:
    inputs = receipt.get("public_inputs") or []
    named = "; ".join(f"{each.get('kind')} {each.get('name')}" for each in inputs)
    return (
        "A public input has seen the sensitive images",
        NOTHING if inputs else "no public input",
        NOTHING,
        f"What these inputs tell: {named}." if inputs else "Nothing: training began with noise.",
    )


def _faults(receipt: dict[str, Any]) -> Row:
    faults = list(known_faults(receipt))
    return (
        "A fault of the program becomes known later",
        "a table of known faults in the verifier",
        f"{len(faults)} of them may touch this release" if faults else "none of them touches this release",
        " ".join(faults) or "Faults that nobody knows yet: run `diffusers-dp advisories` with each new version.",
    )
