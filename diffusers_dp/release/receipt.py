# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`privacy_receipt.json`: the trainer's statement of all queries to the sensitive images, beside the weights.

It shows consistency, not honesty: anybody can recompute epsilon from its events and compare its hashes with the files.
It never contains seeds, counts of classes or batches, losses, paths, or hashes of data. This module loads no torch.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from importlib.resources import files as resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from .. import __version__
from ..accounting.epsilon import RDP_ORDERS
from ..accounting.ledger import PrivacyLedger
from ..errors import UsageError
from ..files.canonical import canonical_json
from ..mechanisms.mechanism import STEPS
from ..methods.method import PROVEN, Method
from ..verify import CARD_NAME, FORMAT, MOST_EVENTS, RECEIPT_NAME


NOT_HASHED = (CARD_NAME, RECEIPT_NAME)
STEPS_OF_EVENT = ("steps_reserved", "steps_executed")
RESERVATION = ("id", "first_step", *STEPS_OF_EVENT)  # fields of an event

#: What the guarantee takes for granted: texts by the case that they are stated in.
ASSUMPTIONS = yaml.safe_load(resources("diffusers_dp").joinpath("templates", "assumptions.yaml").read_text("utf-8"))


def hash_release(folder: str | Path) -> list[dict[str, str]]:
    """Computes the SHA-256 of every released file except the card and the receipt.

    `model_index.json` contains the receipt's hash in its field `privacy`. It is therefore hashed as `canonical_json`
    of its content without that field; the verifier compares `privacy` with the receipt. All other files are hashed
    unchanged.

    Args:
        folder (`str` or `Path`): Folder of the release.

    Returns:
        `list[dict]`: `{"name": path in the release with forward slashes, "sha256": hexadecimal digest}`, by name.
    """
    folder = Path(folder)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    files = []
    for name in names:
        if name in NOT_HASHED:
            continue
        content = (folder / name).read_bytes()
        if name == "model_index.json":
            index = json.loads(content)
            index.pop("privacy", None)
            content = canonical_json(index).encode()
        files.append({"name": name, "sha256": hashlib.sha256(content).hexdigest()})
    return files


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """
    The facts about a run in its receipt.

    Args:
        ledger (`PrivacyLedger`): Complete ledger of the run; its rows become the events, without their `state`. If
            there are more than `verify` reads, reservations of one query are summed.
        method (`Method`): Method from the registry. The receipt has its status, `proven` where all noise is exact. All
            assumptions are always listed.
        curriculum (`dict`, *optional*): Config of the warm-up scheduler, public values only; entries that start with
            an underscore (added by Diffusers) are left out.
        resumes (sequence of `int`): Steps at which the run was resumed.
        evaluation (sequence of `dict`): Numbers from a query among the events, see `charged_evaluation`.
        public_inputs (sequence of `dict`): External weights and images from which training started; no paths.
        processes (sequence of `int`): Number of processes at each start of the run.
        derived_from (`str`, *optional*): Digest of another release's receipt, if this release was computed from that
            one only; the events are then those of the other release.
    """

    ledger: PrivacyLedger
    method: Method
    curriculum: dict[str, Any] | None = None
    resumes: Sequence[int] = ()
    evaluation: Sequence[dict[str, Any]] = ()
    public_inputs: Sequence[dict[str, Any]] = ()
    processes: Sequence[int] = (1,)
    derived_from: str | None = None


def build_receipt(record: RunRecord, *, files: list[dict[str, str]], rng: dict[str, Any]) -> dict[str, Any]:
    """Builds the receipt from the ledger and the hashes of the files.

    Args:
        record (`RunRecord`): Facts about the run.
        files (`list[dict]`): Result of `hash_release`.
        rng (`dict`): Facts about the private source of randomness (`kind`, `os_entropy`, `seed_published`); never its
            state.

    Returns:
        `dict`: JSON object. `claimed_epsilon` has epsilon by PLD, by RDP and by the run's accountant.

    Raises:
        UsageError: The method or the run has no guarantee, so nothing can be claimed.
    """
    ledger, method, public_inputs = record.ledger, record.method, record.public_inputs
    if method.status not in PROVEN:
        raise UsageError(f"{method.title} has no guarantee, so that no receipt can claim one: {method.note}")
    if not ledger.has_guarantee:
        raise UsageError("A run with --target_epsilon inf has no guarantee, so it gets no receipt and no release.")
    unit, exact = ledger.header["unit_of_privacy"], is_exact(ledger)
    status = "proven" if exact else method.status
    return {
        "format": FORMAT,
        "library": {"name": "diffusers_dp", "version": __version__, "source_sha256": hash_source()},
        "versions": {name: version(name) for name in ("dp_accounting", "opacus", "torch")},
        "created_utc": datetime.now(timezone.utc).date().isoformat(),
        **accounting_facts(ledger),
        "claimed_epsilon": _claims(ledger),
        "status": status,
        "assumptions": _assumptions(unit, public_inputs, exact),
        "dataset": _dataset(ledger),
        "public_inputs": list(public_inputs),
        "resumes": [{"step": step, "fresh_entropy": True} for step in record.resumes],
        "processes": list(record.processes),
        "composition": "sequential; the classes of an event with partition `label` are parallel",
        "rng": rng,
        "method": {"name": method.title, "paper": method.paper, "status": status},
        "curriculum": {key: value for key, value in (record.curriculum or {}).items() if not key.startswith("_")},
        "leaky_outputs": [],
        "private_evaluations": 0,
        "evaluation": list(record.evaluation),
        **({} if record.derived_from is None else {"derived_from": record.derived_from}),
        "files": files,
    }


def accounting_facts(ledger: PrivacyLedger) -> dict[str, Any]:
    """Collects the facts of a receipt that accounting reads, without claims; a plan and its run have the same ones."""
    header = ledger.header
    prior = ledger.prior_releases
    most = MOST_EVENTS if sum(len(other["events"]) for other in prior) <= MOST_EVENTS else 1
    return {
        "adjacency": header["adjacency"],
        "unit_of_privacy": header["unit_of_privacy"],
        "public_facts": {
            "num_images" if header["unit_of_privacy"] == "image" else "num_units": ledger.num_images,
            **header["public_facts"],
        },
        "delta": ledger.target_delta,
        "target_epsilon": ledger.target_epsilon,
        "accountant": ledger.accountant,
        "events": _events(ledger.rows, MOST_EVENTS),
        "prior_releases": [{**other, "events": _events(other["events"], most)} for other in prior],
    }


def _events(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Returns the rows without their state, added up if there are more than `most`."""
    events = [{key: value for key, value in row.items() if key != "state"} for row in rows]  # copies
    return events if len(events) <= most else added_up(events)


def added_up(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merges events that differ only in their reservation: the first one has the steps of all. Pieces of a stream
    follow each other, whatever lies between."""
    added: dict[str, dict[str, Any]] = {}
    for event in events:
        query = canonical_json({key: value for key, value in event.items() if key not in RESERVATION})
        first = added.get(query, {})
        added[query] = {**event, **first, **{key: first.get(key, 0) + event[key] for key in STEPS_OF_EVENT}}
    return list(added.values())


def hash_source() -> str:
    """Computes the SHA-256 of the library's Python files, by name, to identify the code regardless of its version."""
    package = Path(__file__).parents[1]
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    for name in ("pipelines", "training"):
        found = find_spec(f"diffusers_dp.{name}")  # in another place in an editable install
        folder = package / name if found is None or found.origin is None else Path(found.origin).parent
        files |= {f"{name}/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*.py")}
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0".encode() + files[name].read_bytes() + b"\0")
    return digest.hexdigest()


def is_exact(ledger: PrivacyLedger) -> bool:
    """Whether every query was asked with `--noise exact`, also of the releases that come before it."""
    rows = [*ledger.rows, *(row for prior in ledger.prior_releases for row in prior["events"])]
    return bool(ledger.rows) and all(row["query"].get("grid") == STEPS for row in rows)


def _assumptions(unit: str, public_inputs: Sequence[dict[str, Any]], exact: bool) -> list[str]:
    unknown = [origin for origin in public_inputs if origin.get("saw_training_images") == "unknown"]
    releases = [origin for origin in public_inputs if "epsilon" in origin]
    stated = ["image" if unit == "image" else "unit", "exact" if exact else "float", "random", "public", "choices"]
    stated += ["release_inputs"] * bool(releases) + ["unknown_inputs"] * bool(unknown)
    if any(origin not in [*unknown, *releases] for origin in public_inputs):
        stated.append("other_inputs" if releases or unknown else "public_inputs")
    return [ASSUMPTIONS[case].format(unit=unit) for case in stated]


def _dataset(ledger: PrivacyLedger) -> dict[str, Any] | None:
    """Computes the total cost of all releases of the data set, if the run names it."""
    if ledger.header["dataset_id"] is None:
        return None
    return {
        "id": ledger.header["dataset_id"],
        "release_id": ledger.header["release_id"],
        "target_epsilon": ledger.dataset_epsilon,
        "bounds": [{"target_epsilon": bound.epsilon, "delta": bound.delta} for bound in ledger.dataset_bounds],
        "epsilon_of_all_releases": {"pld": ledger.epsilon_of_all_releases()},
        "value_discretization_interval": ledger.pld_interval(all_releases=True),
    }


def _claims(ledger: PrivacyLedger) -> dict[str, dict[str, Any]]:
    pld = ledger.epsilon("pld")
    claims: dict[str, dict[str, Any]] = {
        "pld": {"epsilon": pld, "value_discretization_interval": ledger.pld_interval()},
        "rdp": {"epsilon": ledger.epsilon("rdp"), "orders": list(RDP_ORDERS)},
    }
    if ledger.accountant == "prv":
        claims["prv"] = {"epsilon": ledger.epsilon("prv")}
    return claims
