# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A release of this library as the start of another run: what it cost is written down, and where both were probably
trained on the same images, the one is refused unless one ledger adds both up. No torch."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ..accounting.ledger_file import Release, facts_of, other_releases
from ..data.images import PublicFacts
from ..errors import UsageError
from ..verify import RECEIPT_NAME, Unreadable, read_receipt, settled_digest
from .identity import read_identity


_OF_RESERVATIONS = ("id", "steps_reserved", "steps_executed", "state")  # the rest of a row says what was asked


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
            f"{what} is a release whose {RECEIPT_NAME} is missing or damaged, so that nothing says what it cost; take "
            "the release whole, or another model."
        ) from None
    return receipt


def facts_of_release(receipt: dict[str, Any]) -> dict[str, Any]:
    """What the receipt of a run that begins with a release says of it: its epsilon (PLD) and delta, as it states them,
    and the hash of its receipt, as its `model_index.json` has it."""
    return {
        "kind": "release of diffusers_dp",
        "epsilon": receipt["claimed_epsilon"]["pld"]["epsilon"],
        "delta": receipt["delta"],
        "receipt_sha256": settled_digest(receipt),
    }


def refuse_the_same_images(
    receipt: dict[str, Any],
    facts: PublicFacts,
    what: str,
    *,
    private: Path,
    ledger_path: Path,
    dataset_id: str | None,
    unit_of_privacy: str,
) -> None:
    """Refuses a release that has the number of units and the classes of this run, so that both were probably trained
    on the same images: the epsilon of an image in both is the sum, and this run's receipt would state its own part
    alone.

    Under one `--dataset_id` the ledger of that data set adds the two up, and nothing is refused, if the ledger in
    `--ledger_dir` holds the release and those before it. Images in common in another number, or under other
    classes, and under no common `--dataset_id`, cannot be noticed: the receipt lists the release, with its epsilon,
    and what is assumed of it.

    Args:
        facts (`PublicFacts`): Of this run's images.
        what (`str`): The flag and its value, for the message.
        private, ledger_path (`Path`): This run's private folder and the file of its ledger.
        dataset_id, unit_of_privacy (`str`): Of this run, as for `PrivacyLedger`.

    Raises:
        UsageError: They are, or the ledger of the data set does not hold the release.
    """
    dataset = receipt.get("dataset")
    if dataset_id is not None and isinstance(dataset, dict) and dataset.get("id") == dataset_id:
        release_id = str(read_identity(private, dataset_id, ledger_path).release_id)
        others = other_releases(
            ledger_path, dataset_id=dataset_id, release_id=release_id, unit_of_privacy=unit_of_privacy
        )
        if not _hold(others, receipt):
            raise UsageError(
                f"{what} is a release of --dataset_id {dataset_id}, but {ledger_path} does not hold all "
                "questions that its receipt lists, so they would not be counted: give the --ledger_dir where it was "
                "made."
            )
        return
    theirs = receipt["public_facts"]
    classes = None if facts.class_names is None else list(facts.class_names)
    number = theirs.get("num_units", theirs.get("num_images"))
    if (number, theirs.get("class_names")) != (facts.num_units, classes):
        return
    raise UsageError(
        f"{what} is a release trained on as many images of the "
        "same classes, so probably on these, and its epsilon would not be counted; begin with another model, or make "
        "both releases under one --dataset_id, which adds them up."
    )


def _hold(releases: Sequence[Release], receipt: dict[str, Any]) -> bool:
    """Whether a ledger's releases asked what a receipt lists, prior releases included: no fewer steps of any question.

    Two releases may have asked the same, so that a receipt names its own; those of earlier versions do not.
    """
    named = receipt["dataset"].get("release_id")
    if named is not None and named not in [release.header["release_id"] for release in releases]:
        return False
    try:
        lists = [receipt["events"], *(prior["events"] for prior in receipt.get("prior_releases", []))]
        return _steps(chain(*lists)) <= _steps(facts_of(row) for release in releases for row in release.rows)
    except (KeyError, TypeError, AttributeError):  # no receipt that this library wrote
        return False


def _steps(events: Iterable[dict[str, Any]]) -> Counter[str]:
    """Steps of each question, however they were reserved."""
    steps: Counter[str] = Counter()
    for event in events:
        facts = {key: value for key, value in event.items() if key not in _OF_RESERVATIONS}
        steps[json.dumps(facts, sort_keys=True)] += event["steps_reserved"]
    return steps
