# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A release of this library as the start of another run, a model or images: what it cost is written down, and where
both were probably trained on the same images, the one is refused unless one ledger adds both up."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..accounting.ledger_file import ReleaseRows, facts_of, other_releases
from ..data.images import PublicFacts
from ..data.public_images import files_of_public_images, public_field
from ..data.records import DataSource
from ..errors import UsageError
from ..release.allow_list import read_index
from ..release.hub import fetch_snapshot
from ..release.marked import refuse_marked
from ..verify import RECEIPT_NAME, RELEASED, Unreadable, priced_inputs, read_receipt, settled_digest
from .folder import read_identity


_NAMED_BESIDE = ("began_with", "trained_on")  # they have places of their own
_OF_RESERVATIONS = ("id", "steps_reserved", "steps_executed", "state")  # the rest of a row says what was asked


def receipt_of(folder: Path, what: str) -> dict[str, Any] | None:
    """The receipt of a saved pipeline; `None` of one that says nothing of privacy, and so is no release.

    Args:
        folder (`Path`): Folder of the pipeline.
        what (`str`): The flag and its value, for the message.

    Raises:
        UsageError: It says that it is a release, and its receipt is not there, damaged or of another release.
    """
    if not isinstance(read_index(folder).get("privacy"), dict) and not (folder / RECEIPT_NAME).exists():
        return None
    try:
        receipt = read_receipt(folder)
        float(receipt["claimed_epsilon"]["pld"]["epsilon"]), float(receipt["delta"]), dict(receipt["public_facts"])
        dict(receipt.get("dataset") or {}), [float(each["epsilon"]) for each in priced_inputs(receipt)]
    except (Unreadable, KeyError, TypeError, ValueError):
        raise UsageError(
            f"{what} is a release whose {RECEIPT_NAME} is missing or damaged, so that nothing says what it cost; take "
            "the release whole, or begin with something else."
        ) from None
    return receipt


def cost_of_start(folder: Path, what: str, facts: PublicFacts, **ledger_options: Any) -> dict[str, Any]:
    """What the release cost that a run is to begin with, for its origin; empty where the pipeline is no release.

    Args:
        folder (`Path`), what (`str`): As for `receipt_of`.
        facts, ledger_options: As `cost_of_release` takes them.

    Raises:
        UsageError: It learned from sensitive images, and is no whole release; or see `cost_of_release`.
    """
    refuse_marked(folder, what, "begin with a release, or with a model that has not seen sensitive images")
    receipt = receipt_of(folder, what)
    return {} if receipt is None else cost_of_release(receipt, facts, what, **ledger_options)


def facts_of_release(receipt: dict[str, Any]) -> dict[str, Any]:
    """What the receipt of a run that begins with a release says of it: its epsilon (PLD) and delta, as it states them,
    the hash of its receipt, as its `model_index.json` has it, whose epsilon that is, and what it began with that has
    an epsilon."""
    facts, dataset = receipt["public_facts"], receipt.get("dataset") or {}
    earlier = [{key: each[key] for key in each if key not in _NAMED_BESIDE} for each in priced_inputs(receipt)]
    return {
        "kind": RELEASED,
        "epsilon": receipt["claimed_epsilon"]["pld"]["epsilon"],
        "delta": receipt["delta"],
        "receipt_sha256": settled_digest(receipt),
        "unit_of_privacy": receipt.get("unit_of_privacy"),
        "num_units": facts.get("num_units", facts.get("num_images")),
        "class_names": facts.get("class_names"),
        **({"dataset_id": dataset.get("id"), "release_id": dataset.get("release_id")} if dataset else {}),
        **({"began_with": earlier} if earlier else {}),
    }


def cost_of_public_images(data: DataSource, facts: PublicFacts, **ledger_options: Any) -> dict[str, Any]:
    """What a release cost that public images are, or were drawn from, for their origin; empty where they are none.

    The receipt is looked for in the folders of the data files and above them, and on the Hub in the repository. Copies
    of the images without the receipt are not noticed.

    Args:
        data (`DataSource`): The public images.
        facts (`PublicFacts`): Public facts of this run's images.
        ledger_options: As `cost_of_release` takes them.

    Raises:
        UsageError: They are of several releases, or the receipt is damaged; or see `cost_of_release`.
    """
    what = f"--{public_field(data)} {data.train_data_dir or data.dataset_name}"
    found = [receipt_of(folder, what) for folder in _folders_with_receipts(data)]
    receipts = {settled_digest(receipt): receipt for receipt in found if receipt is not None}
    if not receipts:
        return {}
    if len(receipts) > 1:
        raise UsageError(f"{what} holds images of {len(receipts)} releases; name one of them.")
    (receipt,) = receipts.values()
    return cost_of_release(receipt, facts, what, **ledger_options)


def _folders_with_receipts(data: DataSource) -> list[Path]:
    """Those that hold a receipt among the folders of the data files and those above them."""
    folders: set[Path] = set()
    for file in files_of_public_images(data):
        if isinstance(file, Path):
            folders |= {file.absolute().parent, file.resolve().parent} if file.is_symlink() else {file.parent}
        elif data.dataset_name is not None and not Path(data.dataset_name).exists():
            snapshot = fetch_snapshot(
                data.dataset_name, kind="public images", files=[f"*{RECEIPT_NAME}"], repo_types=("dataset",),
                subject=f"--{public_field(data)} {data.dataset_name}",
            )  # fmt: skip
            folders |= {path.parent for path in snapshot.rglob(RECEIPT_NAME)}
            break  # all others lie in the same repository
    ways = {way for folder in folders for way in (folder.absolute(), folder.resolve())}
    found = {folder for way in ways for folder in (way, *way.parents)}
    return sorted(folder for folder in found if (folder / RECEIPT_NAME).exists())


def cost_of_release(
    receipt: dict[str, Any], facts: PublicFacts, what: str, *, private: Path, ledger_path: Path,
    dataset_id: str | None, unit_of_privacy: str,
) -> dict[str, Any]:  # fmt: skip
    """What a release cost that a run begins with, see `facts_of_release`.

    Refuses a release that has the number of units and the classes of this run, so that both were probably trained on
    the same images: the epsilon of an image in both is the sum, and this run's receipt would state its own part alone.
    So is one that began with such a release, as far as its receipt tells.

    Under one `--dataset_id` the ledger of that data set adds the two up, and nothing is refused, if the ledger in
    `--ledger_dir` holds the release and those before it. Images in common in another number, or under other
    classes, and under no common `--dataset_id`, cannot be noticed: the receipt lists the release, with its epsilon,
    and what is assumed of it.

    Args:
        facts (`PublicFacts`): Public facts of this run's images.
        what (`str`): The flag and its value, for the message.
        private, ledger_path (`Path`): This run's private folder and the file of its ledger.
        dataset_id, unit_of_privacy (`str`): Data set and unit of this run, as for `PrivacyLedger`.

    Raises:
        UsageError: They are, or the ledger of the data set does not hold the release.
    """
    others: list[ReleaseRows] = []
    if dataset_id is not None:
        release_id = str(read_identity(private, dataset_id, ledger_path).release_id)
        others = other_releases(
            ledger_path, dataset_id=dataset_id, release_id=release_id, unit_of_privacy=unit_of_privacy
        )
    classes = None if facts.class_names is None else list(facts.class_names)
    release = facts_of_release(receipt)
    held = [found.header["release_id"] for found in others]
    for origin in (release, *release.get("began_with", [])):
        is_first = origin is release
        named = f"{what} is a release" if is_first else f"{what} began with a release"
        if dataset_id is not None and origin.get("dataset_id") == dataset_id:
            if not (_hold(others, receipt) if is_first else origin.get("release_id") in held):
                raise UsageError(
                    f"{named} of --dataset_id {dataset_id}, but {ledger_path} does not hold all queries that its "
                    "receipt lists, so they would not be counted: give the --ledger_dir where it was made."
                )
        elif (origin.get("num_units"), origin.get("class_names", ())) == (facts.num_units, classes):
            raise UsageError(
                f"{named} trained on as many images of the same classes, so probably on these, and its epsilon would "
                "not be counted; begin with something else, or make both releases under one --dataset_id, which adds "
                "them up."
            )
    return release


def _hold(releases: Sequence[ReleaseRows], receipt: dict[str, Any]) -> bool:
    """Whether a ledger's releases asked what a receipt lists, prior releases included: no fewer steps of any query.

    Two releases may have asked the same, so that a receipt names its own.
    """
    if receipt["dataset"]["release_id"] not in [release.header["release_id"] for release in releases]:
        return False
    stated = [receipt, *receipt.get("prior_releases", [])]
    try:
        asked = _steps(event for each in stated for event in each["events"])
    except (KeyError, TypeError, AttributeError):  # no receipt that this library wrote
        return False
    return not asked - _steps(facts_of(row) for release in releases for row in release.rows)


def _steps(events: Iterable[dict[str, Any]]) -> Counter[str]:
    """Steps of each query, however they were reserved."""
    steps: Counter[str] = Counter()
    for event in events:
        facts = {key: value for key, value in event.items() if key not in _OF_RESERVATIONS}
        steps[json.dumps(facts, sort_keys=True)] += event["steps_reserved"]
    return steps
