# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A release of this library as the start of another run: what it cost is written down, and where both were probably trained on the same images,
the one is refused unless one ledger adds both up. No torch."""

from pathlib import Path
from typing import Any

from .data import PublicFacts
from .errors import UsageError
from .flags import TrainingConfig
from .verify import RECEIPT_NAME, Unreadable, read_receipt, settled_digest


def receipt_of(folder: Path, index: dict[str, Any], what: str) -> dict[str, Any] | None:
    """The receipt of a saved pipeline; `None` of one that says nothing of privacy, and so is no release.

    Args:
        folder (`Path`): Of the pipeline.
        index (`dict`): Its `model_index.json`.
        what (`str`): The flag and its value, for the message.

    Raises:
        UsageError: It says that it is a release, and its receipt is not there, damaged or of another release.
    """
    if not isinstance(index.get("privacy"), dict) and not (folder / RECEIPT_NAME).exists():
        return None
    try:
        receipt = read_receipt(folder)
        float(receipt["claimed_epsilon"]["pld"]["epsilon"]), float(receipt["delta"]), dict(receipt["public_facts"])
    except (Unreadable, KeyError, TypeError, ValueError):
        raise UsageError(
            f"{what} is a release whose {RECEIPT_NAME} is missing or damaged, so that nothing says what it cost; take the release whole, or "
            "another model."
        ) from None
    return receipt


def facts_of_release(receipt: dict[str, Any]) -> dict[str, Any]:
    """What the receipt of a run that begins with a release says of it: its epsilon (PLD) and delta, as it states them, and the hash of its
    receipt, as its `model_index.json` has it."""
    return {
        "kind": "release of diffusers_dp",
        "epsilon": receipt["claimed_epsilon"]["pld"]["epsilon"],
        "delta": receipt["delta"],
        "receipt_sha256": settled_digest(receipt),
    }


def refuse_the_same_images(receipt: dict[str, Any], config: TrainingConfig, facts: PublicFacts, what: str) -> None:
    """Refuses a release that has the number of units and the classes of this run, so that both were probably trained on the same images: the
    epsilon of an image in both is the sum, and this run's receipt would state its own part alone.

    Under one `--dataset_id` the ledger of that data set adds the two up, and nothing is refused. Images in common in another number, or under
    other classes, cannot be noticed: the receipt lists the release, with its epsilon, and what is assumed of it.

    Args:
        what (`str`): The flag and its value, for the message.

    Raises:
        UsageError: They are.
    """
    theirs = receipt["public_facts"]
    classes = None if facts.class_names is None else list(facts.class_names)
    number = theirs.get("num_units", theirs.get("num_images"))
    if (number, theirs.get("class_names")) != (facts.num_units, classes):
        return
    dataset = receipt.get("dataset")
    if config.dataset_id is not None and isinstance(dataset, dict) and dataset.get("id") == config.dataset_id:
        return
    raise UsageError(
        f"{what} is a release trained on as many images of the "
        "same classes, so probably on these, and its epsilon would not be counted; begin with another model, or make both releases under one "
        "--dataset_id, which adds them up."
    )
