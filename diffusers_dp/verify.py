# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Check a release against its `privacy_receipt.json`:   python verify.py FOLDER   (or `diffusers-dp verify FOLDER`)

This one file needs `pip install dp-accounting` and nothing else. It rebuilds the events that the receipt lists, computes epsilon again,
and compares the hashes of the files. What it can say is "numbers consistent, unsigned": a receipt is the trainer's statement, and
nobody can see from the weights whether the events are all that happened.

Exit codes: 0 consistent, 2 nothing to check, 4 something does not match or is damaged; each mismatch is one line.
"""

import hashlib
import json
import logging
import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


RECEIPT_NAME, CARD_NAME = "privacy_receipt.json", "README.md"
NEWEST_SCHEMA = 1
TOLERANCE = 1e-3
OUTSIDE = (CARD_NAME, RECEIPT_NAME, ".gitattributes")  # what the Hub adds, and what people may edit
FOLDERS_OUTSIDE = (".cache", ".git")
# A stranger's receipt must not keep this machine busy for days.
MOST_BYTES, MOST_EVENTS, MOST_STEPS, MOST_ORDERS = 10_000_000, 2_000, 10_000_000, 1_000
MOST_KINDS, LARGEST_ORDER, LARGEST_CLAIM = 50, 1_024, 1e9  # kinds: events that differ in more than their steps
NOISE, INTERVALS = (0.05, 1e7), (5e-6, 1e-2)
ACCOUNTANTS = ("pld", "rdp", "prv")
MOST_EPSILON, GRID = 1000, 600_000
LOWERED_STATUS = "proven_except_leaky_outputs"
STATUSES = ("proven", "proven_with_assumptions", LOWERED_STATUS)
NO_GUARANTEE, WITHOUT = "no_guarantee", "trained WITHOUT any privacy guarantee (epsilon is infinite)"
PICKLE_SUFFIXES = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth")
PICKLED = ", and pickled weights are never loaded"
EVALUATION_STAGE = "evaluation_reserve"
MOST_OUTPUTS, LONGEST_OUTPUT, MOST_BOUNDS = 100, 2_000, 20
UNIT = r"[\w .-]{1,100}"
PRIVACY_FIELDS = ("delta", "accountant", "adjacency", "unit_of_privacy", "status")
NO_CARD = f"{CARD_NAME} does not carry the guarantee of the receipt: it lies outside the hashes"
EDITED = f"model_index.json or {RECEIPT_NAME} was edited after the release was made: the one holds the hash of the other, and its hash differs."


class Unreadable(Exception):
    """There is no receipt that could be checked."""

    exit_code = 2


class Damaged(Unreadable):
    """There is one, but it is none that the library wrote."""

    exit_code = 4


def verify(folder: str | Path) -> tuple[dict[str, Any], list[str]]:
    """Compares a release with its receipt.

    Args:
        folder (`str` or `Path`): The release: weights, `model_index.json`, receipt.

    Returns:
        `tuple[dict, list[str]]`: The receipt, and one sentence for each mismatch; none if all is consistent.

    Raises:
        Unreadable: There is no receipt, or a newer version wrote it. `Damaged`: it is no receipt.
    """
    folder = Path(folder)
    receipt = read_receipt(folder)
    problems = list(check_files(folder, receipt))
    wrong = list(check_statement(receipt)) + list(check_numbers(receipt))
    absl = logging.getLogger("absl")
    level, quiet = absl.level, max(absl.level, logging.ERROR)
    try:
        absl.setLevel(quiet)  # dp_accounting warns of RDP orders that it leaves out, which changes nothing
        problems += wrong or list(check_claims(receipt))
    except (ArithmeticError, ValueError) as error:  # numbers within bounds that dp_accounting has no answer for
        problems.append(f"Epsilon cannot be computed from these events: {error}.")
    finally:
        absl.setLevel(level)
    return receipt, sorted(problems, key=EDITED.__eq__)  # what explains least comes last


def read_receipt(folder: Path) -> dict[str, Any]:
    path = folder / RECEIPT_NAME
    if not os.path.isdir(folder):  # `Path.is_dir` raises where a name is too long
        raise Unreadable(f"{folder} is not a folder here.")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise Damaged(f"{path} has more than {MOST_BYTES} bytes, which no receipt has.")
        receipt = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        if without_guarantee(folder):
            raise Unreadable(f"{folder} was {WITHOUT}: it is no release, and it stays in the house.") from None
        raise Unreadable(f"{folder} holds no {RECEIPT_NAME}.") from None
    except (ValueError, RecursionError):
        raise Damaged(f"{path} is damaged: it is not valid JSON.") from None
    if not isinstance(receipt, dict) or not _whole(receipt.get("schema_version"), 1):
        raise Damaged(f"{path} is damaged: it is not a privacy receipt.")
    if receipt["schema_version"] > NEWEST_SCHEMA:
        raise Unreadable(f"A newer version wrote {path} (schema {receipt['schema_version']}): update this program.")
    return receipt


def without_guarantee(folder: Path) -> bool:
    """Whether a pipeline says of itself that `--target_epsilon inf` made it."""
    try:
        return bool(json.loads((folder / "model_index.json").read_bytes())["privacy"]["status"] == NO_GUARANTEE)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def check_files(folder: Path, receipt: dict[str, Any]) -> Iterator[str]:
    """Every file but the card and the receipt has the hash that the receipt states, and no file is there that it does not know."""
    listed = receipt.get("files")
    if not isinstance(listed, list) or not all(
        isinstance(file, dict) and isinstance(file.get("name"), str) and isinstance(file.get("sha256"), str)
        for file in listed
    ):
        yield "The receipt lists no files."
        return
    stated = {file["name"]: file["sha256"] for file in listed}
    blobs = folder.resolve().parent.parent / "blobs"  # where the Hub's cache keeps the files of a snapshot
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.startswith(tuple(f"{part}/" for part in FOLDERS_OUTSIDE)):
            continue
        if path.is_symlink() and not (path.is_file() and path.resolve().parent == blobs):
            yield f"{name} is a link to elsewhere: a release holds files."
        elif path.is_file() and name not in OUTSIDE:
            found[name] = path
    for name in sorted({*stated, *found}):
        if name not in found:
            yield f"{name} is missing."
        elif name not in stated:
            yield f"{name} is not in the receipt{PICKLED if name.endswith(PICKLE_SUFFIXES) else ''}."
        elif _digest(found[name]) != stated[name]:
            yield f"{name} is not the file that the receipt describes: its hash differs."
    yield from _check_model_index(folder, receipt)


def _digest(path: Path) -> str:
    if path.name == "model_index.json" and path.parent.joinpath(RECEIPT_NAME).is_file():
        try:  # it carries the receipt's hash, so it is hashed without that field
            index = json.loads(path.read_bytes())
            index.pop("privacy", None)
            return hashlib.sha256(_canonical(index)).hexdigest()
        except (ValueError, AttributeError, RecursionError):
            return "not JSON"
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _check_model_index(folder: Path, receipt: dict[str, Any]) -> Iterator[str]:
    """The statement that travels in `model_index.json` is that of the receipt."""
    try:
        privacy = json.loads((folder / "model_index.json").read_bytes())["privacy"]
        if privacy["receipt_sha256"] != receipt_digest(folder / RECEIPT_NAME):
            yield EDITED
        stated = {**receipt, "epsilon": receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"]}
        others = [name.replace("_", " ") for name in ("epsilon", *PRIVACY_FIELDS) if privacy[name] != stated[name]]
        if others:
            yield f"model_index.json states another guarantee than the receipt: {', '.join(others)}."
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        yield "model_index.json carries no privacy statement."


def receipt_digest(path: Path) -> str:
    """Of the receipt without what may be added later, its `audit` and the count of `private_evaluations`; the file must be written
    as the library writes it."""
    content = path.read_bytes()
    receipt = json.loads(content)
    if content != _canonical(receipt):
        return "not canonical"
    return settled_digest(receipt)


def settled_digest(receipt: dict[str, Any]) -> str:
    """`receipt_digest` of what will be written."""
    settled = {name: value for name, value in receipt.items() if name != "audit"}
    return hashlib.sha256(_canonical({**settled, "private_evaluations": 0})).hexdigest()  # as it was made


def _canonical(value: Any) -> bytes:
    return (json.dumps(value, sort_keys=True, indent=2) + "\n").encode()


def check_statement(receipt: dict[str, Any]) -> Iterator[str]:
    """The receipt claims a guarantee at all, and says nothing that would be the end of one."""
    if receipt.get("status") not in STATUSES:
        yield f"The receipt's status is {ascii(receipt.get('status'))}: this is no guarantee."
    unit, dataset, rng = receipt.get("unit_of_privacy"), receipt.get("dataset"), receipt.get("rng")
    if not isinstance(unit, str) or not re.fullmatch(UNIT, unit, re.ASCII):
        yield "The receipt names no unit of privacy."
    if not isinstance(rng, dict) or rng.get("os_entropy") is not True or rng.get("seed_published") is not False:
        yield "The noise does not come from a secret source, or the receipt does not say so."
    resumes = receipt.get("resumes", [])
    if not isinstance(resumes, list) or not all(
        isinstance(resume, dict) and resume.get("fresh_entropy") is True and _whole(resume.get("step"), 0)
        for resume in resumes
    ):
        yield "A resumed run drew its noise again, or the receipt does not say that it did not."
    evaluations, name = receipt.get("private_evaluations"), dataset.get("id") if isinstance(dataset, dict) else None
    if not _whole(evaluations, 0):
        yield "The number of private evaluations is no number."
    outputs = receipt.get("leaky_outputs", [])
    if (
        not isinstance(outputs, list)
        or len(outputs) > MOST_OUTPUTS
        or not all(isinstance(output, str) and len(output) <= LONGEST_OUTPUT for output in outputs)
    ):
        yield "The outputs that the guarantee does not cover are no list of words."
    elif bool(outputs) != (receipt.get("status") == LOWERED_STATUS):
        yield f"The status must be {LOWERED_STATUS} where the receipt lists outputs that the guarantee does not cover, and only there."
    yield from _check_evaluation(receipt)
    if dataset is not None and not (isinstance(name, str) and re.fullmatch(UNIT, name, re.ASCII)):
        yield "The receipt's data set has no name."


def _check_evaluation(receipt: dict[str, Any]) -> Iterator[str]:
    """Numbers that the training images answered were paid for by an event."""
    found, events = receipt.get("evaluation", []), receipt.get("events")
    asked = [
        event
        for event in (events if isinstance(events, list) else [])
        if isinstance(event, dict) and event.get("stage") == EVALUATION_STAGE and event.get("steps_executed") == 1
    ]
    if not isinstance(found, list) or len(found) > MOST_EVENTS or not all(map(_is_number_with_protocol, found)):
        yield "The numbers of the evaluation are no list of them."
    elif found and not asked:
        yield f"The receipt carries numbers of an evaluation, and no event {EVALUATION_STAGE} paid for them."


def _is_number_with_protocol(found: Any) -> bool:
    kinds = {"metric": str, "value": float, "standard_error": float, "protocol": dict}
    if not isinstance(found, dict) or found.keys() != kinds.keys():
        return False
    return (
        all(isinstance(found[name], kind) for name, kind in kinds.items()) and len(found["metric"]) <= LONGEST_OUTPUT
    )


def check_numbers(receipt: dict[str, Any]) -> Iterator[str]:
    """Everything that the accounting reads is there, of the right kind, and within bounds."""
    if receipt.get("adjacency") != "zero_out":
        yield f"Adjacency {receipt.get('adjacency')!r} is unknown; this program computes epsilon for 'zero_out'."
    if not _between(receipt.get("delta"), 0, 1):
        yield "delta does not lie between 0 and 1."
    facts, unit = receipt.get("public_facts"), receipt.get("unit_of_privacy")
    facts, parallel = facts if isinstance(facts, dict) else {}, unit == "image"
    if ("num_units" in facts) == parallel:
        counted = "units of several images" if parallel else "images"
        yield f"The unit of privacy is {ascii(unit)}, but the public facts count {counted}: one of the two was edited."
    count = facts.get("num_units", facts.get("num_images"))
    yield from _check_events(receipt.get("events"), count, parallel)
    prior = receipt.get("prior_releases", [])
    if not isinstance(prior, list) or len(prior) > MOST_EVENTS or not all(isinstance(other, dict) for other in prior):
        yield "The receipt's prior releases are not a list of them."
        return
    events = sum(len(other["events"]) for other in prior if isinstance(other.get("events"), list))
    if events > MOST_EVENTS:
        yield f"The prior releases have more than {MOST_EVENTS} events."
        return
    for other in prior:
        if other.get("unit_of_privacy") != receipt.get("unit_of_privacy"):
            yield "A prior release protects another unit: these do not add up."
        yield from (
            f"A prior release: {problem}"
            for problem in _check_events(other.get("events"), other.get("num_images"), parallel)
        )
    if prior and not isinstance(receipt.get("dataset"), dict):
        yield "The receipt lists prior releases of no data set."


def _check_events(events: Any, num_images: Any, parallel: bool) -> Iterator[str]:
    if not isinstance(events, list) or not events or len(events) > MOST_EVENTS:
        yield f"The receipt needs from 1 to {MOST_EVENTS} events."
        return
    total = 0
    wrong: dict[str, list[int]] = {}
    for number, event in enumerate(events):
        problem = "it is not an object" if not isinstance(event, dict) else _wrong(event, num_images)
        if problem is None:
            total += event["steps_reserved"]
            if event.get("partition") not in ((None, "label") if parallel else (None,)):
                problem = "it calls parts parallel that one unit can lie in together"
        if problem is not None:
            wrong.setdefault(problem, []).append(number)
    for problem, numbers in wrong.items():
        more = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        yield f"Event {numbers[0]}{more} cannot be accounted: {problem}."
    if len(_kinds([event for event in events if isinstance(event, dict)])) > MOST_KINDS:
        yield f"The events are of more than {MOST_KINDS} kinds."
    if total > MOST_STEPS:
        yield f"The events have more than {MOST_STEPS} steps."


def _wrong(event: dict[str, Any], num_images: Any) -> str | None:
    keys = ("noise_multiplier", "sampling_probability", "truncated_batch_size", "steps_reserved", "steps_executed")
    values: list[Any] = [event.get(key) for key in keys]
    sigma, q, cap, steps, executed = values
    if not _between(sigma, *NOISE):
        return f"a noise multiplier must lie between {NOISE[0]:g} and {NOISE[1]:g}"
    if not (_between(q, 0, 1) or q == 1):
        return "a sampling probability must lie above 0 and not above 1"
    if not _whole(steps, 1) or not _whole(executed, 0) or executed > steps:
        return "steps must be whole, and no more executed than reserved"
    known = {"gaussian": q == 1 and cap is None, "poisson_gaussian": q < 1 and cap is None}
    known["truncated_poisson_gaussian"] = q < 1 and _whole(cap, 1)
    if not known.get(str(event.get("mechanism")), False):
        return "its mechanism does not fit its sampling probability and truncation"
    if not _whole(event.get("dataset_size"), 1) or event["dataset_size"] != num_images:
        return "its data set has another size than the public facts say"
    return None


def _between(value: Any, low: float, high: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low < value < high


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST_STEPS


def check_claims(receipt: dict[str, Any]) -> Iterator[str]:
    """Epsilon computed again is the epsilon that is claimed, and meets the target."""
    claims: Any = receipt.get("claimed_epsilon")
    orders: list[float] = []
    try:
        pld, accountant, target = claims["pld"], receipt["accountant"], receipt["target_epsilon"]
        interval, main = pld["value_discretization_interval"], claims[accountant]["epsilon"]
        stated = {name: claims[name]["epsilon"] for name in claims}
        if "rdp" in claims:
            orders = claims["rdp"]["orders"]
    except (KeyError, TypeError):
        yield "The receipt claims no epsilon by its accountant and by PLD."
        return
    if not all(_between(value, 0, LARGEST_CLAIM) for value in (*stated.values(), target)):
        yield "A claimed epsilon is not a finite number above 0: this is no guarantee."
        return
    if accountant not in ACCOUNTANTS or not set(stated) <= set(ACCOUNTANTS):
        yield f"The receipt claims epsilon by an accountant other than {', '.join(ACCOUNTANTS)}."
        return
    if not _between(interval, *INTERVALS):
        yield f"PLD's interval must lie between {INTERVALS[0]:g} and {INTERVALS[1]:g}."
        return
    plain = {**receipt, "events": [{**event, "truncated_batch_size": None} for event in receipt["events"]]}
    rough = epsilon(plain)
    if not rough < MOST_EPSILON:  # PLD's grid would grow beyond all memory
        yield f"The events cost an epsilon of about {rough:.3g}: this is no guarantee."
        return
    interval = max(interval, rough / GRID)
    tolerance = max(TOLERANCE, 10 * rough / GRID)  # above epsilon 60 the grid is coarser
    computed = {"pld": epsilon(receipt, interval=interval)}
    if "rdp" in stated:
        numbers = isinstance(orders, list) and all(_between(order, 1, LARGEST_ORDER + 1) for order in orders)
        if not numbers or not 0 < len(orders) <= MOST_ORDERS:
            yield f"RDP's orders must be from 1 to {MOST_ORDERS} numbers above 1, and none above {LARGEST_ORDER}."
            return
        computed["rdp"] = epsilon(receipt, orders=orders)
    for name, value in computed.items():
        if abs(value - stated[name]) > tolerance:
            yield f"The events cost epsilon {value:.6g} by {name.upper()}, but the receipt claims {stated[name]:.6g}."
    # PRV needs Opacus, so only the order is checked.
    if "prv" in stated and stated["prv"] < 0.99 * computed["pld"]:
        yield f"The receipt claims {stated['prv']:.6g} by PRV, less than PLD's {computed['pld']:.6g}."
    if main > target + TOLERANCE:
        yield f"The claimed epsilon {main:.6g} exceeds the receipt's own target {target:.6g}."
    yield from _check_dataset(receipt)


def _check_dataset(receipt: dict[str, Any]) -> Iterator[str]:
    """The sum over all releases of the data set, computed again, is the one that is claimed, and within its bound."""
    if receipt.get("dataset") is None:
        return
    try:
        dataset = receipt["dataset"]
        claim, target = dataset["epsilon_of_all_releases"]["pld"], dataset["target_epsilon"]
        interval = dataset["value_discretization_interval"]
    except (KeyError, TypeError):
        claim = target = interval = None
    numbers = _between(claim, 0, LARGEST_CLAIM) and _between(interval, *INTERVALS)
    if not numbers or not (target is None or _between(target, 0, LARGEST_CLAIM)):
        yield "The receipt names a data set, but claims no epsilon for all its releases."
        return
    events = [event for other in receipt.get("prior_releases", []) for event in other["events"]]
    together = {"delta": receipt["delta"], "events": [*receipt["events"], *events]}
    plain = [{**event, "truncated_batch_size": None} for event in together["events"]]
    rough = epsilon({**together, "events": plain})
    if not rough < MOST_EPSILON:
        yield f"All releases together cost an epsilon of about {rough:.3g}: this is no guarantee."
        return
    interval = max(interval, rough / GRID)
    computed = epsilon(together, interval=interval)
    if abs(computed - claim) > max(TOLERANCE, 10 * rough / GRID):
        yield f"All releases together cost epsilon {computed:.6g}, but the receipt claims {claim:.6g}."
    if target is not None and claim > target + TOLERANCE:
        yield f"Epsilon of all releases, {claim:.6g}, exceeds the data set's own bound {target:.6g}."
    yield from _check_bounds(dataset.get("bounds", []), together, interval, computed)


def _check_bounds(bounds: Any, together: dict[str, Any], interval: float, computed: float) -> Iterator[str]:
    """Each promise about the sum, which costs `computed` at the receipt's delta, holds at its own delta."""
    if (
        not isinstance(bounds, list)
        or len(bounds) > MOST_BOUNDS
        or not all(
            isinstance(bound, dict)
            and _between(bound.get("delta"), 0, 1)
            and _between(bound.get("target_epsilon"), 0, LARGEST_CLAIM)
            for bound in bounds
        )
    ):
        yield f"The data set's bounds are no list of up to {MOST_BOUNDS}."
        return
    for bound in bounds:
        at_delta, target = {**together, "delta": bound["delta"]}, bound["target_epsilon"]
        cost = computed if at_delta == together else epsilon(at_delta, interval=interval)
        if not cost <= target + TOLERANCE:
            where = f"at delta {bound['delta']:.4g}"
            yield f"All releases together cost epsilon {cost:.6g} {where}, over the data set's bound {target:.6g}."


def epsilon(receipt: dict[str, Any], *, interval: float | None = None, orders: list[float] | None = None) -> float:
    """What the receipt's events cost together, by PLD at this interval or else by RDP; every reserved step counts, executed or not."""
    import dp_accounting as dp  # it brings scipy, a second or two that a reader of words need not wait for
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    adjacency = dp.NeighboringRelation.REPLACE_SPECIAL
    accountant: dp.PrivacyAccountant = RdpAccountant(orders, adjacency)
    if interval is not None:
        accountant = PLDAccountant(adjacency, interval)
    for (sigma, q, cap, size), steps in _kinds(receipt["events"]).items():
        question: dp.DpEvent = dp.GaussianDpEvent(sigma)
        if cap is not None:
            question = dp.TruncatedSubsampledGaussianDpEvent(size, q, cap, sigma)
        elif q < 1:
            question = dp.PoissonSampledDpEvent(q, question)
        accountant.compose(question, steps)
    return float(accountant.get_epsilon(receipt["delta"]))


def guarantee(receipt: dict[str, Any]) -> str:
    """What a receipt claims, in the words of the card, which must hold them; epsilon is rounded up to four decimals, never down."""
    unit, accountant, delta = receipt["unit_of_privacy"], receipt["accountant"], f"{receipt['delta']:.4g}"
    epsilon = _rounded_up(receipt["claimed_epsilon"][accountant]["epsilon"])
    outputs = " but what its receipt lists under `leaky_outputs`" if receipt.get("leaky_outputs") else ""
    whose = "any one training image was" if unit == "image" else f"all training images of any one {unit} were"
    text = (
        f"Whether {whose} used or contributed nothing (the number of {unit}s unchanged) changes the probability of everything in this "
        f"release{outputs} by at most a factor of e^{epsilon}, but for a probability of {delta}: **(epsilon = {epsilon}, delta = "
        f"{delta})-differential privacy for each {unit}**, computed by {accountant.upper()}."
    )
    if receipt.get("dataset") and receipt.get("prior_releases"):
        total = _rounded_up(receipt["dataset"]["epsilon_of_all_releases"]["pld"])
        others = len(receipt["prior_releases"])
        text += f" With {others} other release(s) from the same data the sum is epsilon = {total}."
    return text


def _rounded_up(epsilon: float) -> str:
    return f"{math.ceil(epsilon * 1e4) / 1e4:.4f}"


def card_agrees(folder: str | Path, receipt: dict[str, Any]) -> bool:
    """Whether the card says `guarantee`, however its lines are broken. It lies outside the hashes, and may say more besides."""
    try:
        with open(Path(folder, CARD_NAME), encoding="utf-8", errors="replace") as card:
            return " ".join(guarantee(receipt).split()) in " ".join(card.read(MOST_BYTES).split())
    except OSError:
        return False


def _printable(text: str) -> str:
    """A stranger's words on one line: letters of any script as they are, what steers a terminal or turns text around as its code."""
    return "".join(
        letter if letter.isprintable() and letter != "\\" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _kinds(events: list[dict[str, Any]]) -> dict[tuple[Any, ...], int]:
    """Steps of equal questions together: the cost does not depend on how they were reserved."""
    kinds: dict[tuple[Any, ...], int] = {}
    for event in events:
        cap = event.get("truncated_batch_size")
        size = event.get("dataset_size") if cap else None
        parts = (event.get("noise_multiplier"), event.get("sampling_probability"), cap, size)
        kind = tuple(part if isinstance(part, (int, float)) else None for part in parts)
        steps = event.get("steps_reserved")
        kinds[kind] = kinds.get(kind, 0) + (steps if isinstance(steps, int) else 0)
    return kinds


def report(folder: str | Path) -> int:
    """Prints what was found, and returns the exit code."""
    try:
        receipt, problems = verify(folder)
    except Unreadable as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if problems:
        print("does NOT match:", *(f"- {_printable(problem)}" for problem in problems), sep="\n")
        return 4
    claim = receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"]
    unit = receipt.get("unit_of_privacy", "record")
    print(f"numbers consistent, unsigned: epsilon {claim:.4f} at delta {receipt['delta']:.4g} for one {unit}.")
    if receipt.get("dataset"):
        together = receipt["dataset"]["epsilon_of_all_releases"]["pld"]
        others = len(receipt.get("prior_releases", []))
        print(f"With {others} other release(s) from the same data: epsilon {together:.4f}.")
    for output in receipt.get("leaky_outputs", []):
        print(f"NOT covered by this guarantee: {_printable(output)}.")
    if receipt["private_evaluations"]:
        print(
            f"Private images were read {receipt['private_evaluations']} time(s) to evaluate this release, outside of the guarantee."
        )
    if not card_agrees(folder, receipt):
        print(f"NOTE: {NO_CARD}, so trust the numbers above and not the card.")
    return 0


if __name__ == "__main__":
    asked = {"-h", "--help"} & set(sys.argv[1:])
    if asked or len(sys.argv) != 2:
        print("usage: python verify.py FOLDER", file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else 2)
    sys.exit(report(sys.argv[1]))
