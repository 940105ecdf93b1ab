# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Check a release against its `privacy_receipt.json`:   python verify.py FOLDER [BASE]   (or `diffusers-dp verify`)

This one file needs `pip install dp-accounting` and nothing else. It rebuilds the events that the receipt lists,
computes epsilon again, and compares the hashes of the files. What it can say is "numbers consistent": a
receipt is the trainer's statement, and nobody can see from the weights whether the events are all that happened.

A folder may come from a stranger: only regular files are read, reading and computing are bounded, and no code
of the folder is run.

Exit codes: 0 consistent, 2 nothing to check, 4 something does not match or is damaged, or a known fault may touch it;
each mismatch is one line.
"""

import base64
import hashlib
import itertools
import json
import logging
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple


RECEIPT_NAME, CARD_NAME, SIGNATURE_NAME = "privacy_receipt.json", "README.md", "privacy_receipt.json.sig"
FORMAT = "diffusers_dp/1"  # of all files that this library writes and reads again
TOLERANCE, EXACT = 1e-3, 1e-6
OUTSIDE = (CARD_NAME, RECEIPT_NAME, SIGNATURE_NAME, ".gitattributes")  # what the Hub adds, and what people may edit
FOLDERS_OUTSIDE = (".cache", ".git")
# A stranger's receipt must not keep this machine busy for days.
MOST_BYTES, MOST_EVENTS, MOST_STEPS, MOST_ORDERS = 10_000_000, 2_000, 6_000_000, 200
MOST_FILES, MOST_HASHED, MOST_DEPTH, MOST_COUNTED = 10_000, 20_000_000_000, 50, 10_000_000
MOST_KINDS, LARGEST_ORDER, LARGEST_CLAIM = 50, 1_024, 1e9  # kinds: events that differ in more than their steps
LONGEST_TEXT, ADAPTERS = 10_000, "DPLatentAdapters"  # letters of a name or a sentence; a class of `model_index.json`
BANDED, MOST_BANDS, SUM_OF_SQUARES = "banded_gaussian", 1_000, 1 + 1e-9
IDS = ("path", "row", "column")
CLOSED_PIPE = 141  # as a shell has it of a program that SIGPIPE ends
DP_SGD, TEACHERS, JUDGE, EVALUATION_STAGE = "dp_sgd", "teachers", "judge", "evaluation_reserve"
JUDGE_FILE, JUDGES_NETWORK, SCATTERING = "judge.safetensors", "network of the judge", "scattering"
NOISE, INTERVALS = (0.02, 1e7), (5e-6, 1e-2)
SIZES = (9.99e-31, LARGEST_CLAIM)  # of clip norms and divisors; squares of smaller ones vanish in float32
ACCOUNTANTS = ("pld", "rdp", "prv")
# Epsilon by RDP beyond which its low orders size PLD's grid, and beyond which PLD is not computed. Points of that grid
# over epsilon: more take GiB.
MOST_EPSILON, MOST_BY_RDP, GRID = 1000, 5900, 600_000
LARGE_EPSILON = 700  # e^-709 is the smallest number of full precision
LARGE_DELTA = 1e-4  # above it delta is spoken of: it is too likely for something that must not happen
QUICK_ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # with them the ledger decides how wide PLD's grid must be
LOW_ORDERS = (1.005, 1.01, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0)
MOST_WORK = 16_000_000  # in steps of about 1.6 microseconds, see `_work`; PLD takes about 200 bytes a step
LOWERED_STATUS = "proven_except_leaky_outputs"
STATUSES = ("proven", "proven_with_assumptions", LOWERED_STATUS)
NO_GUARANTEE, WITHOUT = "no_guarantee", "trained WITHOUT any privacy guarantee (epsilon is infinite)"
PICKLE_SUFFIXES = (".bin", ".ckpt", ".dill", ".joblib", ".npy", ".npz", ".pickle", ".pkl", ".pt", ".pth")
PICKLED = ", and pickled weights are never loaded"
#: The sources of noise that this library has had; what else a receipt says of them would be a key or a seed.
EXACT_RNG = "the operating system's generator for noise and samples; numpy Philox 4x64, 128-bit key, for losses"
RNG_KINDS = ("numpy Philox 4x64, 128-bit key; on CUDA torch's Philox 4x32, a fresh 64-bit seed per draw", EXACT_RNG)
CLIP_STEPS, COIN = 2**18, 2**53  # of `--noise exact`: steps of a clip norm, and of a probability
RELEASED = "release of diffusers_dp"  # kind of a public input
#: Words in names of what the noise may follow from, which no query states.
SECRETS = {"key", "keys", "secret", "secrets", "seed", "seeds", "salt", "entropy", "password", "token"}
VERSION, LEAST_ASSUMPTIONS, MOST_BOUNDS = r"[\w.+-]{1,100}", 5, 20
UNIT, DATASET_ID = r"(?! |.*  )[\w .-]{1,100}(?<! )", r"[A-Za-z0-9][\w.-]{0,99}"  # no stray spaces
PRIVACY_FIELDS = ("delta", "accountant", "adjacency", "unit_of_privacy", "status")
STATEMENT = {"epsilon", *PRIVACY_FIELDS, "receipt_sha256"}
PAIR = re.compile(r"\(epsilon = [^()]{1,60}, delta = [^()]{1,60}\)")  # as `guarantee` states them
HEADLINE = re.compile(r"epsilon (\d+(?:\.\d+)?(?:e[+-]?\d+)?), delta")  # as the first lines of a card round it
NO_CARD = f"{CARD_NAME} does not carry the guarantee of the receipt: it lies outside the hashes"
#: SHA-256 of each `pipeline.py` that was published, the newest last.
PIPELINES = (
    "01b925b71f645b1032726e754ce13275a41f5985a05fc2d859f6ea74525cb1f5",
    "f5a2ac72374ac62bab46dcaf03281528cb4ddb8b172f10f6ca57ef39bab8b742",
    "e3d9516cd87fd0a2de59d3f19f1a2a87e7ccfdb8a8e79aa6db20a8912089d6d2",
)
#: What a base may be made of: in folders of components, and no pickle, no program, no way out of the folder.
BASE_FILE = re.compile(
    r"(?:[a-z][a-z0-9_]*/)?[A-Za-z0-9][\w-]*(?:\.safetensors\.index)?\.(?:json|txt|model|safetensors)"
)
UNKNOWN_CODE = "UNKNOWN code, which diffusers_dp never published: read it first"
ADDED = "they are added up as if all were the same ones"
NOT_CANONICAL = "not canonical"  # in place of the hash of a receipt that is written otherwise
EDITED = (
    f"model_index.json or {RECEIPT_NAME} was edited after the release was made: the one holds the hash of the other, "
    "and its hash differs."
)


def priced_inputs(receipt: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The public inputs of a receipt that have an epsilon of their own, and those that these began with.

    Raises:
        `TypeError`: They are no list of objects.
    """
    for name in ("public_inputs", "began_with", "trained_on"):
        found = receipt.get(name) or []
        for origin in [found] if isinstance(found, dict) else found:
            if not isinstance(origin, dict):
                raise TypeError
            if "epsilon" in origin:
                yield origin
            yield from priced_inputs(origin)


#: Faults of the guarantee that became known after a release: whether one may touch a receipt, and sentences that say
#: what is wrong and what to do.
KNOWN_FAULTS: tuple[tuple[Callable[[dict[str, Any]], bool], str], ...] = ()


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
        Unreadable: There is no receipt. `Damaged`: it is no receipt, or of another format.
    """
    folder = Path(folder)
    receipt = read_receipt(folder)
    problems = [*check_files(folder, receipt), *check_guarantee(receipt)]
    return receipt, sorted(problems, key=EDITED.__eq__)  # what explains least comes last


def check_guarantee(receipt: dict[str, Any]) -> list[str]:
    """All that is checked of a receipt by itself, without the files of its release."""
    wrong = list(check_fields(receipt, FIELDS))
    wrong = wrong or [*check_statement(receipt), *check_numbers(receipt)] or list(check_method(receipt))
    try:
        with quiet_absl():
            return wrong or list(check_claims(receipt))
    except (ArithmeticError, ValueError, MemoryError) as error:  # too dear, or dp_accounting has no answer
        return [f"Epsilon cannot be computed from these events: {error or 'too little memory'}."]


@contextmanager
def quiet_absl() -> Iterator[None]:
    """Silences dp_accounting about RDP orders that it leaves out: a missing order only loosens the bound."""
    absl = logging.getLogger("absl")
    level = absl.level
    absl.setLevel(max(level, logging.ERROR))
    try:
        yield
    finally:
        absl.setLevel(level)


def read_receipt(folder: Path) -> dict[str, Any]:
    path = folder / RECEIPT_NAME
    if not os.path.isdir(folder):  # `Path.is_dir` raises where a name is too long
        raise Unreadable(f"{folder} is not a folder here.")
    try:
        receipt = _json(path)
    except OSError as error:
        if os.path.lexists(path):
            raise Unreadable(f"{path} cannot be read: {error.strerror}.") from None
        if without_guarantee(folder):
            raise Unreadable(f"{folder} was {WITHOUT}: it is no release, and it stays in the house.") from None
        raise Unreadable(f"{folder} holds no {RECEIPT_NAME}.") from None
    except ValueError as error:
        raise Damaged(f"{path} is damaged: {error}.") from None
    if not isinstance(receipt, dict):
        raise Damaged(f"{path} is damaged: it is not a privacy receipt.")
    if receipt.get("format") != FORMAT:
        raise Damaged(f'{path} does not state "format": "{FORMAT}", the only one that this program checks.')
    return receipt


def without_guarantee(folder: Path) -> bool:
    """Whether a pipeline says of itself that `--target_epsilon inf` made it."""
    try:
        return bool(_json(folder / "model_index.json")["privacy"]["status"] == NO_GUARANTEE)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _content(path: Path) -> bytes:
    """Of a regular file: a pipe or a device may have no end."""
    if os.path.lexists(path) and not os.path.isfile(path):
        raise ValueError("it is no regular file")
    with open(path, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return content


def _json(path: Path) -> Any:
    """Raises `ValueError` also for what programs read in different ways: a name that occurs twice, NaN, other text."""
    content = _content(path)
    try:
        layer = [json.loads(content.decode("utf-8"), object_pairs_hook=_object, parse_constant=_object)]
        value = layer[0]
        for _ in range(MOST_DEPTH):
            inner = [
                here.values() if isinstance(here, dict) else here for here in layer if isinstance(here, dict | list)
            ]
            layer = list(itertools.chain.from_iterable(inner))
    except (ValueError, RecursionError):
        raise ValueError("it is not valid JSON") from None
    if layer:
        raise ValueError("its values are nested too deeply")
    return value


def _object(pairs: Any) -> dict[str, Any]:
    found = dict(pairs)  # the word NaN is no list of pairs
    if len(found) < len(pairs):
        raise ValueError
    return found


def check_files(folder: Path, receipt: dict[str, Any]) -> Iterator[str]:
    """Every file but the card and the receipt has the hash that the receipt states, and no file is there that it does
    not know."""
    listed = receipt.get("files", [None])
    if list(check_fields(listed, FIELDS["files"])):
        yield "The receipt lists no files."
        return
    stated = {file["name"]: file["sha256"] for file in listed}
    if len(stated) < len(listed):
        yield "The receipt lists a file twice."
    blobs = folder.resolve().parent.parent / "blobs"  # where the Hub's cache keeps the files of a snapshot
    found, size = {}, 0
    try:
        entries = sorted(itertools.islice(_entries(folder), MOST_FILES + 1))
        for name, path in entries:
            if name.partition("/")[0] in FOLDERS_OUTSIDE and name not in FOLDERS_OUTSIDE:
                if _is_pickle(name):
                    yield f"{name} is a pickle: none may lie in a release or below it."
            elif path.is_symlink() and not (path.is_file() and path.resolve().parent == blobs):
                yield f"{name} is a link to elsewhere: a release holds files."
            elif not path.is_file() and not path.is_dir():
                yield f"{name} is no regular file: a release holds files."
            elif path.is_file() and name not in OUTSIDE:
                found[name], size = path, size + path.stat().st_size
    except OSError as error:
        yield f"The folder cannot be read: {error.strerror}."
        return
    if max(len(entries), len(stated)) > MOST_FILES or size > MOST_HASHED:
        most = f"{MOST_FILES} files or {MOST_HASHED / 1e9:g} GB"
        yield f"The release has more than {most}: it was not compared with its hashes."
        return
    for name in sorted({*stated, *found}):
        if name not in found:
            yield f"{name} is missing."
        elif name not in stated:
            yield f"{name} is not in the receipt{PICKLED if _is_pickle(name) else ''}."
        elif _is_pickle(name):
            yield f"{name} is a pickle: none may lie in a release or below it."
        elif file_digest(found[name]) != stated[name]:
            yield f"{name} is not the file that the receipt describes: its hash differs."
    yield from _check_model_index(folder, receipt)
    yield from check_index(folder)
    base = base_of(folder)
    if base is not None:
        yield from check_reference(base)


def _is_pickle(name: str) -> bool:
    return name.lower().endswith(PICKLE_SUFFIXES)


def check_index(folder: str | Path) -> Iterator[str]:
    """What `model_index.json` says of a release is of the types that this library writes."""
    try:
        index = _json(Path(folder, "model_index.json"))
        needs_base = index.get("_class_name") == ADAPTERS and "base" not in index
    except (OSError, ValueError, AttributeError):
        yield "model_index.json cannot be read."
        return
    wrong = ["base must be there"] * needs_base + [
        f"{place[1:]} must {must}" for place, must in _misfits(index, INDEX, "", index)
    ]
    yield from (f"model_index.json says what no release does: {problem}." for problem in wrong)


def base_of(folder: str | Path) -> dict[str, Any] | None:
    """What `model_index.json` names as the base of adapters; `None` of any other release."""
    try:
        base = _json(Path(folder, "model_index.json")).get("base")
    except (OSError, ValueError, AttributeError):
        return None
    return base if isinstance(base, dict) else None


def check_base(folder: str | Path, base: dict[str, Any]) -> Iterator[str]:
    """Every file of the base that was read is here, and has the hash that the release states. What else lies beside
    them is not used.

    Args:
        folder (`str` or `Path`): Folder of the base.
        base (`dict`): As `base_of` returned it.
    """
    yield from check_reference(base)
    for file in base.get("files", []) if not list(check_reference(base)) else []:
        path = Path(folder, file["name"])
        if not path.is_file():
            yield f"{file['name']} of the base is missing."
        elif file_digest(path) != file["sha256"]:
            yield f"{file['name']} of the base is another file than the release was made with: its hash differs."


def check_reference(base: dict[str, Any]) -> Iterator[str]:
    """The base is named by a whole commit, not by a branch or tag that may move, and holds no program."""
    for place, must in _misfits(base, BASE, "", base):
        what = "a whole commit" if "revision" in place else "the hashes of safetensors and configurations"
        yield f"The base is not named by {what}: {place[1:]} must {must}."


def _entries(folder: Path) -> Iterator[tuple[str, Path]]:
    """The name and path of all that lies in the folder, but not behind links."""
    pending = [""]
    while pending:
        below = pending.pop()
        with os.scandir(folder / below) as entries:
            for entry in entries:
                name = below + entry.name
                yield name, Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(f"{name}/")


def file_digest(path: Path) -> str:
    """SHA-256 of a file, as a receipt or a reference to a base states it."""
    try:
        if path.name == "model_index.json" and path.parent.joinpath(RECEIPT_NAME).is_file():
            index = _json(path)  # it carries the receipt's hash, so it is hashed without that field
            index.pop("privacy", None)
            return hashlib.sha256(_canonical(index)).hexdigest()
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()
    except (OSError, ValueError, AttributeError, TypeError):
        return "cannot be read, or is not JSON"


def _check_model_index(folder: Path, receipt: dict[str, Any]) -> Iterator[str]:
    """The statement that travels in `model_index.json` is that of the receipt."""
    try:
        index = _json(folder / "model_index.json")
        if "judged" in index and all(file["name"] != JUDGE_FILE for file in receipt["files"]):
            yield "model_index.json says that a judge labelled the images, which is not in the receipt."
        privacy = index["privacy"]
        if privacy["receipt_sha256"] not in {receipt_digest(folder / RECEIPT_NAME)} - {NOT_CANONICAL}:
            yield EDITED
        stated = {**receipt, "epsilon": receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"]}
        others = [name.replace("_", " ") for name in ("epsilon", *PRIVACY_FIELDS) if privacy[name] != stated[name]]
        if set(privacy) - STATEMENT:
            yield "model_index.json says more about privacy than the library writes."
        if others:
            yield f"model_index.json states another guarantee than the receipt: {', '.join(others)}."
    except (OSError, ValueError, KeyError, TypeError):
        yield "model_index.json carries no privacy statement."


def receipt_digest(path: Path) -> str:
    """Of the receipt without what may be added later, its `audit` and the count of `private_evaluations`; the file
    must be written as the library writes it."""
    receipt = _json(path)
    return settled_digest(receipt) if _content(path) == _canonical(receipt) else NOT_CANONICAL


def settled_digest(receipt: dict[str, Any]) -> str:
    """`receipt_digest` of what will be written."""
    settled = {name: value for name, value in receipt.items() if name != "audit"}
    return hashlib.sha256(_canonical({**settled, "private_evaluations": 0})).hexdigest()


def _canonical(value: Any) -> bytes:
    content = bytearray()
    for piece in json.JSONEncoder(sort_keys=True, indent=2).iterencode(value):
        content += piece.encode()
        if len(content) > MOST_BYTES:
            raise ValueError(f"written as the library writes it, it has more than {MOST_BYTES} bytes")
    return bytes(content + b"\n")


# What a receipt may say: a table of its fields, and a function that walks it.


def anything(value: Any) -> bool:
    """anything"""
    return True


def left_out(value: Any) -> bool:
    """left out: this library writes no such field"""
    return False


def words(value: Any) -> bool:
    """words without stray spaces"""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_TEXT and value == value.strip()


def a_day(value: Any) -> bool:
    """a day"""
    with suppress(ValueError):
        return isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    return False


def zero_to_one(value: Any) -> bool:
    """[0, 1]"""
    return json.dumps(value) == "[0, 1]"


def a_range(value: Any) -> bool:
    """two numbers, the second above the first"""
    ends = value if isinstance(value, list) and len(value) == 2 else [0, 0]
    return all(_between(end, -1e300, 1e300) for end in ends) and ends[0] < ends[1]


def a_fact(value: Any) -> bool:
    """a number, a short word, or a list of them"""
    if isinstance(value, list):
        return len(value) <= MOST_BANDS and not any(isinstance(each, list) or not a_fact(each) for each in value)
    is_word = isinstance(value, str) and re.fullmatch(r"[\w .,:/+-]{0,31}", value, re.ASCII) is not None
    return value is None or isinstance(value, bool) or is_word or _between(value, -LARGEST_CLAIM, LARGEST_CLAIM)


def _between(value: Any, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low < value < high


def _has_shares(event: dict[str, Any]) -> bool:
    return event.get("stage") == TEACHERS or isinstance(event.get("query"), dict) and "shares" in event["query"]


#: By the word after `@` in the name of a field: in which events it must be. In others it must not.
WHERE: dict[str, Callable[[dict[str, Any]], bool]] = {
    "bands": lambda event: bool(event.get("mechanism") == BANDED),
    "shares": _has_shares,
    "groups": lambda event: event.get("mechanism") == BANDED or _has_shares(event),
}
COUNT, PLACE, SHARE, EPSILON = range(1, MOST_COUNTED + 1), range(MOST_COUNTED + 1), (0, 1), (0, LARGEST_CLAIM)
FLOAT = -1e300, 1e300
TEXT, DIGEST, KEY = re.compile(r"(?s:.{0,10000})"), re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{32}")
NAME, VERSIONED = re.compile(UNIT, re.ASCII), re.compile(VERSION, re.ASCII)
#: Fields of an event. In these tables a set has all values, a range whole numbers, a pair what a number lies between,
#: a pattern texts; a function says itself what fits. A list is an element and how many there are. A field with `?` may
#: be missing, one with `~` may be null; `...` is all others.
EVENT: dict[Any, Any] = {
    "id": PLACE,
    "stage": words,
    "mechanism": {"gaussian", "poisson_gaussian", BANDED},
    "noise_multiplier": NOISE,
    "sampling_probability": (0, math.nextafter(1, 2)),
    "steps_reserved": COUNT,
    "steps_executed": PLACE,
    "dataset_size": COUNT,
    "partition": {None, "label"},
    "bands@bands": range(2, MOST_BANDS + 1),
    "first_step@bands": PLACE,
    "query": {
        "sensitivity": SIZES, "clip_norm": SIZES, "normaliser?": SIZES,
        "noise_multiplicity?": COUNT, "max_images_per_unit?": COUNT, "grid?": {CLIP_STEPS},
        "coefficients@bands": [(-2, 2), range(2, MOST_BANDS + 1)], "sample_rate@bands": SHARE,
        "group_key@groups": KEY, "ids@groups": {*IDS}, "shares@shares": COUNT, "votes?": COUNT,
        ...: a_fact,
    },
}  # fmt: skip
EVENTS, CLASSES = [EVENT, range(1, MOST_EVENTS + 1)], [TEXT, COUNT]
#: Fields of what training began with, where that has an epsilon of its own.
PRICED = {
    "epsilon": EPSILON, "delta": SHARE, "receipt_sha256": DIGEST, "num_units?~": COUNT, "unit_of_privacy?~": NAME,
    "dataset_id?~": NAME, ...: anything,
}  # fmt: skip
#: Fields that the accounting reads, also of a plan.
ACCOUNTED = {
    "adjacency": {"zero_out"},
    "unit_of_privacy": NAME,
    "delta": SHARE,
    "public_facts": {
        "num_images?": COUNT, "num_units?": COUNT, "max_images_per_unit?": COUNT, "normaliser?": SIZES,
        "class_names?~": CLASSES, "image_shape?": [COUNT, range(3, 4)], "evaluation_reserve?": SHARE,
        "value_range?": zero_to_one, "grey_range?": a_range,
        "held_out?": {"images": COUNT, "ids": {*IDS}, "column~": TEXT},
        "reading?": {
            "image_column?": TEXT, "label_column?": TEXT, "image_suffixes?": CLASSES, "delimiter?": TEXT,
            "train_split?": TEXT, "dataset_config_name?": TEXT, "max_image_pixels?": COUNT,
        },
    },
    "events": EVENTS,
    "prior_releases": [{"unit_of_privacy": NAME, "num_images": COUNT, "events": EVENTS}, range(MOST_EVENTS + 1)],
}  # fmt: skip
#: Fields of `model_index.json` that this library writes, and of the base of adapters there.
INDEX = {
    "base?": {...: anything}, "class_prompts?~": [TEXT, PLACE], "class_names?~": [TEXT, PLACE], "judged?": {True},
    "id2label?~": {...: TEXT}, "image_shape?": [COUNT, range(3, 4)], "num_images?": COUNT, "num_shards?": COUNT,
    "patch_size?": COUNT, ...: anything,
}  # fmt: skip
BASE = {
    "name": TEXT, "revision~": re.compile(r"[0-9a-f]{40}"), ...: anything,
    "files": [{"name": BASE_FILE, "sha256": DIGEST, ...: anything}, range(1, MOST_FILES + 1)],
}  # fmt: skip
#: Fields of a receipt.
FIELDS = {
    **ACCOUNTED,
    "format": {FORMAT},
    "library": {"name": {"diffusers_dp"}, "version": VERSIONED, "source_sha256": DIGEST},
    "versions": {"dp_accounting": VERSIONED, "opacus": VERSIONED, "torch": VERSIONED, ...: VERSIONED},
    "created_utc": a_day,
    "method": {"name": words, "paper": TEXT, "status": {*STATUSES}},
    "curriculum": {...: anything},
    "status": {*STATUSES},
    "assumptions": [words, range(LEAST_ASSUMPTIONS, MOST_COUNTED)],
    "composition": {"sequential; the classes of an event with partition `label` are parallel"},
    "rng": {"kind": {*RNG_KINDS}, "os_entropy": {True}, "seed_published": {False}},
    "resumes": [{"step": PLACE, "fresh_entropy": {True}}, PLACE],
    "processes": [COUNT, COUNT],
    "public_inputs": [
        {"kind": words, "name": words, "licence?~": words, "release_id?~": words, "class_names?~": CLASSES,
         ...: anything},
        PLACE,
    ],
    "accountant": {*ACCOUNTANTS},
    "target_epsilon": EPSILON,
    "claimed_epsilon": {
        "pld": {"epsilon": EPSILON, "value_discretization_interval": INTERVALS},
        "rdp": {"epsilon": EPSILON, "orders": [(1, LARGEST_ORDER + 1), range(1, MOST_ORDERS + 1)]},
        "prv?": {"epsilon": EPSILON},
    },
    "dataset~": {
        "id": re.compile(DATASET_ID, re.ASCII), "release_id": words, "target_epsilon~": EPSILON,
        "bounds": [{"delta": SHARE, "target_epsilon": EPSILON}, range(MOST_BOUNDS + 1)],
        "epsilon_of_all_releases": {"pld": EPSILON}, "value_discretization_interval": INTERVALS,
    },
    "private_evaluations": PLACE,
    "evaluation": [
        {"metric": words, "value": FLOAT, "standard_error": FLOAT, "protocol": {...: anything}},
        range(MOST_EVENTS + 1),
    ],
    "leaky_outputs": [re.compile(r"(?s:.{0,2000})"), range(101)],
    "derived_from?": DIGEST,
    "files": [{"name": TEXT, "sha256": TEXT}, PLACE],
    "audit?": anything,
}  # fmt: skip


def check_fields(value: Any, table: Any) -> Iterator[str]:
    """Each field is there or not, and is what it must be, as the table says; and there are no others."""
    misfits = list(_misfits(value, table, "", value))
    for number, more in _grouped((re.sub(r"\.\d+", ".*", place), must) for place, must in misfits):
        place, must = misfits[number]
        hint = ": this is no guarantee" if place.endswith(("status", "epsilon")) else ""
        yield f"The receipt's field {place[1:]}{more} must {must}{hint}."


def _misfits(value: Any, table: Any, place: str, event: Any) -> Iterator[tuple[str, str]]:
    """Places where a value does not fit, and what must be there; `event` is the innermost one that it lies in."""
    match table:
        case dict() if isinstance(value, dict):
            yield from _misfits_of_object(value, table, place, event)
        case [each, numbers] if isinstance(table, list) and isinstance(value, list) and len(value) in numbers:
            for number, inner in enumerate(value):
                yield from _misfits(inner, each, f"{place}.{number}", inner if each is EVENT else event)
        case _:
            fits, what = _fits(value, table)
            yield from () if fits else [(place, f"be {what}")]


def _misfits_of_object(value: dict[str, Any], table: Any, place: str, event: Any) -> Iterator[tuple[str, str]]:
    others = dict(value)
    for name, inner in table.items():
        if name is ...:
            continue
        key, _, where = name.partition("@")
        needed, null, key = WHERE[where](event) if where else "?" not in key, "~" in key, key.rstrip("?~")
        others.pop(key, None)
        if key in value and (needed or not where):
            yield from () if null and value[key] is None else _misfits(value[key], inner, f"{place}.{key}", event)
        elif key in value or needed:
            yield f"{place}.{key}", "be there" if needed else "not be there"
    for key, each in others.items():
        yield from _misfits(each, table.get(..., left_out), f"{place}.{key}", event)


def _fits(value: Any, table: Any) -> tuple[bool, str]:
    """Whether a value fits what is no object, and what it must be."""
    match table:
        case dict():
            return False, "an object"
        case list():
            return False, f"a list of {table[1][0]} to {table[1][-1]}"
        case set():
            known = " or ".join(sorted(map(json.dumps, table)))
            return any(type(each) is type(value) and each == value for each in table), known
        case range():
            whole = isinstance(value, int) and not isinstance(value, bool)
            return whole and value in table, f"a whole number from {table[0]} to {table[-1]}"
        case (low, high):
            return _between(value, low, high), f"a number between {low:g} and {high:g}"
        case re.Pattern():
            return isinstance(value, str) and table.fullmatch(value) is not None, f"a text of the form {table.pattern}"
    return table(value), table.__doc__


# What the fields say together.


def participants(event: dict[str, Any]) -> str:
    """Who is in the sums of an event: `everyone`, `poisson`, `banded` or `shares`."""
    kind = {"gaussian": "everyone", "poisson_gaussian": "poisson", BANDED: "banded"}[event["mechanism"]]
    return "shares" if kind == "everyone" and _has_shares(event) else kind


class Counted(NamedTuple):
    """Poisson-sampled Gaussians of one kind."""

    noise_multiplier: float
    sampling_probability: float
    steps: int


def check_statement(receipt: dict[str, Any]) -> Iterator[str]:
    """The receipt claims no more than it can, and says nothing that would be the end of a guarantee."""
    status, kind, inputs = receipt["status"], receipt["rng"]["kind"], receipt["public_inputs"]
    events, releases = receipt["events"], [receipt, *receipt["prior_releases"]]
    exact = kind == EXACT_RNG and all("grid" in event["query"] for each in releases for event in each["events"])
    evaluated = any(event["stage"] == EVALUATION_STAGE and event["steps_executed"] for event in events)
    proven = "proven" in (status, receipt["method"]["status"])
    if status not in (receipt["method"]["status"], LOWERED_STATUS):
        yield "The receipt's status is not that of its method."
    if bool(receipt["leaky_outputs"]) != (status == LOWERED_STATUS):
        yield f"The status must be {LOWERED_STATUS} where some outputs are not covered by it, and only there."
    if (proven or kind == EXACT_RNG) and not exact:
        yield "The receipt says that its noise is proven to the bit, and lists events whose noise is not."
    if proven and any(origin["kind"] == "latent pipeline" for origin in inputs):
        yield "The receipt says that its noise is proven to the bit, which no encoder of latents was."
    if _is_derived_from_itself(receipt):
        yield "The receipt says that its release is derived from itself."
    if receipt["evaluation"] and not evaluated:
        yield f"The receipt carries numbers of an evaluation, and no event {EVALUATION_STAGE} paid for them."
    if receipt["prior_releases"] and receipt["dataset"] is None:
        yield "The receipt lists prior releases of no data set."
    if receipt["accountant"] not in receipt["claimed_epsilon"]:
        yield "The receipt claims no epsilon by its accountant."
    if _publishes_a_key(receipt):
        yield "The receipt states a hash, and elsewhere what it is the hash of, as if that were a key."
    yield from _check_inputs(receipt)


def _is_derived_from_itself(receipt: dict[str, Any]) -> bool:
    parent = {name: value for name, value in receipt.items() if name != "derived_from"}
    try:
        return "derived_from" in receipt and bool(receipt["derived_from"] == settled_digest(parent))
    except ValueError:  # larger than the library writes, which is said elsewhere
        return False


def _publishes_a_key(receipt: dict[str, Any]) -> bool:
    """Of 16 bytes or more; files may have any content."""
    texts = {*_texts({name: value for name, value in receipt.items() if name != "files"})}
    spelled = {spelling for text in texts if len(text) >= 16 for spelling in _spellings(text) if len(spelling) >= 16}
    return any(hashlib.sha256(spelling).digest() in spelled for spelling in spelled)


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value, and those of one list or object put together."""
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    texts = [each for each in inner if isinstance(each, str)]
    yield from (*texts, "".join(texts), "".join(each for each in texts if re.fullmatch(r"[0-9A-Fa-f]{8,}", each)))
    for each in inner:
        yield from _texts(each)


def _spellings(text: str) -> Iterator[bytes]:
    """What a text may stand for: its letters, or bytes in hexadecimal or base64."""
    yield from (each.encode("utf-8", "surrogatepass") for each in (text, text.lower(), text.upper()))
    with suppress(ValueError):
        yield bytes.fromhex(text)
    with suppress(ValueError):
        standard = text.replace("-", "+").replace("_", "/").rstrip("=")
        yield base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)


def _check_inputs(receipt: dict[str, Any]) -> Iterator[str]:
    """What training began with that has an epsilon says how much, and is not forgotten in the sum of its data set."""
    for origin in receipt["public_inputs"]:
        hashes = [value for name, value in origin.items() if name.endswith("sha256")]
        priced = origin["kind"] == RELEASED or "receipt_sha256" in origin
        if priced and "epsilon" not in origin or not all(_fits(value, DIGEST)[0] for value in hashes):
            yield "A public input does not say what it cost, or has another kind of hash."
    try:
        for origin in priced_inputs(receipt):
            yield from check_fields(origin, PRICED)
            ours = (receipt["dataset"] or {}).get("id", ...) == origin.get("dataset_id")
            if ours and not receipt["prior_releases"]:
                yield "The receipt began with a release of its data set, and lists no prior release."
    except TypeError:
        yield "What the public inputs began with is no list of objects."


def check_numbers(receipt: dict[str, Any]) -> Iterator[str]:
    """Everything that the accounting reads is there, of the right kind, and within bounds; also of a plan."""
    wrong = list(check_fields({name: receipt[name] for name in ACCOUNTED if name in receipt}, ACCOUNTED))
    yield from wrong
    if wrong:
        return
    facts, unit = receipt["public_facts"], receipt["unit_of_privacy"]
    if bool({"num_units", "max_images_per_unit"} & facts.keys()) == (unit == "image"):
        said = "units of several images" if unit == "image" else "images"
        yield f"The unit of privacy is {ascii(unit)}, but the public facts count {said}: one of the two was edited."
    yield from _check_events(receipt["events"], facts.get("num_units", facts.get("num_images")), unit, facts)
    if sum(len(other["events"]) for other in receipt["prior_releases"]) > MOST_EVENTS:
        yield f"The prior releases have more than {MOST_EVENTS} events."
        return
    for other in receipt["prior_releases"]:
        if other["unit_of_privacy"] != unit:
            yield "A prior release protects another unit: these do not add up."
        problems = _check_events(other["events"], other["num_images"], unit, {})
        yield from (f"A prior release: {problem}" for problem in problems)


def _check_events(events: list[dict[str, Any]], units: Any, unit: str, facts: dict[str, Any]) -> Iterator[str]:
    wrong = list(_of_events(events, lambda event: _problems(event, units, unit, facts)))
    yield from wrong or _check_turns([event for event in events if participants(event) == "banded"])
    if any(after["id"] <= before["id"] for before, after in itertools.pairwise(events)):
        yield "The events are not numbered in the order in which they were asked."
    if len({(event["noise_multiplier"], event["sampling_probability"]) for event in events}) > MOST_KINDS:
        yield f"The events are of more than {MOST_KINDS} kinds."
    if sum(event["steps_reserved"] for event in events) > MOST_STEPS:
        yield f"The events have more than {MOST_STEPS} steps."


def _of_events(asked: list[dict[str, Any]], problems: Callable[[dict[str, Any]], Iterator[str]]) -> Iterator[str]:
    """The first problem of each event."""
    found = [next(problems(event), None) for event in asked]
    for number, more in _grouped(found):
        if found[number] is not None:
            yield f"Event {number}{more} cannot be accounted: {found[number]}."


def _grouped(found: Iterable[Any]) -> Iterator[tuple[int, str]]:
    """The number of the first of equal things, and how many more there are, in words."""
    numbers: dict[Any, list[int]] = {}
    for number, each in enumerate(found):
        numbers.setdefault(each, []).append(number)
    for first, *more in numbers.values():
        yield first, f" and {len(more)} more" if more else ""


def _problems(event: dict[str, Any], units: Any, unit: str, facts: dict[str, Any]) -> Iterator[str]:
    """Noise is counted against a sensitivity, which nothing that is clipped may exceed; and what an event says of the
    release, the public facts say, as far as they are known."""
    query, kind = event["query"], participants(event)
    if kind != "banded" and (event["sampling_probability"] == 1) != (kind in ("everyone", "shares")):
        yield "its mechanism does not fit its sampling probability"
    if event["steps_executed"] > event["steps_reserved"]:
        yield "more steps were executed than reserved"
    if event["dataset_size"] != units:
        yield "its data set has another size than the public facts say"
    if event["partition"] and (unit != "image" or kind in ("banded", "shares")):
        yield "it calls parts parallel that one unit can lie in together"
    if event["partition"] and facts.get("class_names", ()) is None:
        yield "it calls classes parallel, and there are none"
    if query["sensitivity"] < query["clip_norm"]:
        yield "its sensitivity lies below its clip norm, so that its noise is less than it says"
    names = {"max_images_per_unit"} | ({"normaliser"} & facts.keys() if event["stage"] == DP_SGD else set())
    if facts and any(query.get(name) != facts.get(name) for name in names):
        yield "it contradicts the public facts"
    if any(SECRETS & {*name.lower().split("_")} for name in query if name != "group_key"):
        yield "it states a key, or what is called one"
    if kind == "banded":
        yield from _problems_of_bands(event)
    if "shares" in query:
        yield from _problems_of_shares(event)
    if "grid" in query:
        yield from _problems_of_grid(event, facts)


def _problems_of_bands(event: dict[str, Any]) -> Iterator[str]:
    """Columns of the matrix that correlates the noise have norm 1 at most, and those of one unit do not overlap."""
    c, bands, rate = event["query"]["coefficients"], event["bands"], event["query"]["sample_rate"]
    if bands > event["dataset_size"]:
        yield "there are more bands than units"
    if len(c) != bands or not c[0] > 0:
        yield "it needs as many coefficients as bands, the first above 0"
    if not math.fsum(value**2 for value in c) <= SUM_OF_SQUARES:
        yield "the squares of its coefficients have a sum above 1, so that its noise is less than it says"
    if not math.isclose(bands * rate, event["sampling_probability"], rel_tol=1e-9):
        yield "its sampling probability is not the rate of all units times its bands"


def _problems_of_shares(event: dict[str, Any]) -> Iterator[str]:
    """One unit changes what the teacher of its share says from anything to anything: by two clip norms, or sqrt(2) for
    each vote. Every share answers in each round, so nothing is sampled."""
    query = event["query"]
    votes, clip_norm = query.get("votes"), query["clip_norm"]
    least = 2 * clip_norm if votes is None else math.sqrt(2 * votes)
    if participants(event) != "shares":
        yield "teachers answer for all shares together, without samples"
    if query["shares"] > event["dataset_size"]:
        yield "its shares are more than the number of units"
    right = votes is None or math.isclose(clip_norm, math.sqrt(votes))
    if not right or query["sensitivity"] < (1 - EXACT) * least:
        yield "a teacher may say anything, so that its sensitivity is two clip norms, or sqrt(2) a vote"


def _problems_of_grid(event: dict[str, Any], facts: dict[str, Any]) -> Iterator[str]:
    """What `--noise exact` rests on: vectors of whole numbers, no longer than the sensitivity; a probability that a
    coin of 53 bits has; and batches of a public shape."""
    query = event["query"]
    if query["sensitivity"] != query["clip_norm"]:
        yield f"with whole numbers its clip norm is its sensitivity, of {CLIP_STEPS} steps"
    if event["sampling_probability"] * COIN % 1:
        yield "no coin of 53 bits falls with its sampling probability"
    of_units = "max_images_per_unit" in query or "num_units" in facts
    if of_units and (event["stage"] == DP_SGD or "noise_multiplicity" in query):
        yield "the proof with whole numbers has no gradients of units of several images"


def _check_turns(asked: list[dict[str, Any]]) -> Iterator[str]:
    """The steps of a release whose groups take turns are one stream, without gaps: a group that was skipped, or a step
    that is counted twice, would give another number of turns."""
    reached = 0
    for event in sorted(asked, key=lambda event: event["first_step"]):
        if event["first_step"] != reached:
            what = "overlap" if event["first_step"] < reached else "leave a gap"
            yield f"The steps of groups that take turns {what} at step {event['first_step']}."
            return
        reached += event["steps_reserved"]
    if any(each[name] != asked[0][name] for each in asked for name in ("noise_multiplier", "query")):
        yield "The groups that take turns, or their noise, change between events."


def counted(events: list[dict[str, Any]]) -> list[Counted]:
    """The events of one release as the accountant counts them.

    Of `n` steps in which `b` groups take turns, a unit takes part in at most `ceil(n / b)`, each a Poisson-sampled
    Gaussian (Choquette-Choo et al. 2023, arXiv 2306.08153, Theorem 4). Steps of one kind are added up first. The
    groups of another release are other groups: it is counted by itself.
    """
    steps: Counter[tuple[float, float, int]] = Counter()
    for event in events:
        kind = (
            event["noise_multiplier"],
            event["sampling_probability"],
            event["bands"] if event["mechanism"] == BANDED else 1,
        )
        steps[kind] += event["steps_reserved"]
    return [Counted(sigma, q, -(-number // bands)) for (sigma, q, bands), number in steps.items()]


# What each method asks.


class Asks(NamedTuple):
    """What the events of a method are.

    Args:
        stages (`str` or `Callable`): The stages, or a function of `curriculum` that returns them. A flag adds those
            with `?`. One of those with `|` between them is asked.
        says (`str`): Facts of `curriculum` that make the method: names, or names with `=` and values.
        votes (`bool`): Whether teachers vote.
        norm (`str`): Facts of `curriculum` whose product is the square of the clip norm.
        never (`str`): Mechanism and noise that the method refuses.
    """

    stages: str | Callable[[Any], str]
    says: str = ""
    votes: bool = False
    norm: str = ""
    never: str = ""


def _feta_pro(said: Any) -> str:
    wanted = said["curriculum"].replace("mix", "spatial,frequency")
    features = _moments(said) if "num_parts" in said else "frequency_features|mean_features"
    asked = ("central_images " if "spatial" in wanted else "") + (features if "frequency" in wanted else "")
    return f"semantic_query? class_counts? {asked} dp_sgd"


def _moments(said: Any) -> str:
    rounds = said["part_rounds"] if said["num_parts"] > 1 else 0
    return f"grey_levels class_moments {_numbered('part_means', rounds)} covariances"


def _evolution(said: Any) -> str:
    captions = "shared_captions " if said.get("captions_for_all") else "captions "
    return captions * ("num_captions" in said) + _numbered("votes", len(said["variation_strengths"]))


def _numbered(name: str, number: int) -> str:
    return " ".join(f"{name}_{place}" for place in range(1, min(number, MOST_EVENTS) + 1))


KERNEL = "class_counts? mean_features"
#: By their titles. A method that is not here is counted all the same, and `notes` says that nobody checked its kinds.
METHODS = {
    "FETA-Pro": Asks(_feta_pro, "curriculum"),
    "DP-FETA": Asks(
        lambda said: f"{said['central_images'].replace('mean', 'central')}_images dp_sgd", "mix_public_images"
    ),
    "DPDM": Asks("dp_sgd"),
    "DP-Diffusion": Asks("semantic_query? dp_sgd"),
    "PGE with DP-SGD": Asks("dp_sgd", "sampler"),
    "PSG": Asks("dp_sgd", "matched_layers", never="banded"),
    "DP-GAN": Asks("dp_sgd", "gan_loss"),
    "DP-LDM": Asks("dp_sgd", "train=attention|all", never="exact"),
    "DP-LoRA": Asks("dp_sgd", "train=lora", never="exact"),
    "DP-SAPF": Asks("saliency dp_sgd", "train=salient", never="exact"),
    "DP-MERF": Asks("class_counts? frequency_features", "features=rff"),
    "DP-Kernel (random features)": Asks(KERNEL, "features=rff_mixture"),
    "DP-NTK": Asks(KERNEL, "features=ntk"),
    "DP-HP": Asks(KERNEL, "features=hermite"),
    "DP-Scattering": Asks(KERNEL, "features=scattering"),
    "DP-MEPF": Asks(f"{KERNEL} second_moments? stopping_features_1? stopping_features_2?", "features=perceptual"),
    "Moments": Asks(lambda said: _moments(said) + " network_means" * ("matched_networks" in said), "class_balance"),
    "Private Evolution": Asks(_evolution, "lookahead"),
    "GS-WGAN": Asks("teachers", "aggregation=gradients"),
    "PATE-GAN": Asks("teachers", "aggregation=votes", True, "generated_per_round"),
    "DataLens": Asks("teachers", "aggregation=signs", False, "generated_per_round signs_per_image"),
    "G-PATE": Asks("teachers", "aggregation=bins", True, "generated_per_round projected_values"),
}
#: Methods that may train a judge: these, and those that fit a generator to mean features.
JUDGED = {"Moments", "FETA-Pro", "DP-FETA", "DPDM", "DP-GAN"}
JUDGED |= {title for title, asks in METHODS.items() if asks.says.startswith("features=")}
#: Methods that may begin with public images or weights, or ask about them. All others have no public inputs.
PUBLIC = {
    "FETA-Pro", "DP-FETA", "DP-Diffusion", "DP-LDM", "DP-LoRA", "DP-SAPF", "DP-MEPF", "Moments",
    "Private Evolution",
}  # fmt: skip
#: Of a stage: who is in its sums, whether classes are apart, and whether an event may have many steps. Other stages
#: ask everyone, by class, once.
STAGES = {
    "dp_sgd": ("everyone poisson banded", False, True),
    "teachers": ("shares", False, True),
    JUDGE: ("everyone poisson", False, True),
    "central_images": ("everyone poisson", True, True),
    "mode_images": ("everyone poisson", True, True),
    "saliency": ("everyone", False, False),
    "shared_captions": ("everyone", False, False),
}
STATED = {str(name).partition("@")[0].rstrip("?") for name in EVENT["query"]}
#: Whole numbers that queries state besides, and what `curriculum` calls some of them.
FACTS = {
    "stride", "num_bins", "num_features", "num_frequencies", "num_levels", "num_parts", "num_candidates", "num_votes",
    "num_captions", "num_networks", "width", "classes_per_class", "synthetic_images",
}  # fmt: skip
CALLED = {"shares": "num_teachers", "num_candidates": "candidates_per_class", "num_networks": "matched_networks"}


def check_method(receipt: dict[str, Any]) -> Iterator[str]:
    """The events are those of the method that the receipt names, as its `curriculum` describes it."""
    title, said, facts = receipt["method"]["name"], receipt["curriculum"], receipt["public_facts"]
    asked, method = receipt["events"], METHODS.get(title)
    judged = any(event["stage"] == JUDGE for event in asked)
    if not judged and any(file["name"].casefold() == JUDGE_FILE for file in receipt["files"]):
        yield f"The release holds {JUDGE_FILE}, and the receipt lists no steps that trained it."
    if method is None:
        return
    try:
        stages = method.stages if isinstance(method.stages, str) else method.stages(said)
        stages += f" {JUDGE}" * (title in JUDGED and "judge_frequencies" in said)
        norm = math.sqrt(math.prod(said[name] for name in method.norm.split()))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        yield f"The receipt's curriculum does not say what {title} asks."
        return
    makes = dict(each.partition("=")[::2] for each in method.says.split())
    for name, values in makes.items():
        if name not in said or values and said[name] not in values.split("|"):
            yield f"The receipt's curriculum is not that of {title}: {name} must be {values or 'there'}."
    others = {each.partition("=")[0] for other in METHODS.values() for each in other.says.split()} - {*makes}
    for name in sorted(others & {*said}):
        yield f"The receipt's curriculum is not that of {title}: {name} is another method's."
    networks = [each["name"] for each in receipt["public_inputs"] if each["kind"] == JUDGES_NETWORK]
    if networks and not judged or (networks or [SCATTERING]) != [said.get("judge_features", SCATTERING)]:
        yield "The public network of the judge is not that of the curriculum."
    moved = [each["kind"] for each in receipt["public_inputs"] if each["kind"] != JUDGES_NETWORK]
    wrong = len(moved) != ("moves_public_images" in said) or {*moved} - {"public images", RELEASED}
    if title == "Moments" and wrong:
        yield "The public inputs are not the public images that the curriculum moves."
    if len(receipt["public_inputs"]) > len(networks) and title not in PUBLIC:
        yield f"{title} begins with nothing public, and the receipt lists public inputs."
    found, known = {event["stage"] for event in asked}, {EVALUATION_STAGE} & {*facts}
    for stage in stages.split():
        either = {*stage.rstrip("?").split("|")}
        known |= either
        if len(found & either) > 1 or not (found & either or stage.endswith("?")):
            yield f"{title} asks {stage.replace('|', ' or ')}, and the receipt does not list it so."
    for stage in sorted(found - known):
        yield f"{title} asks nothing called {ascii(stage)[:60]}: this is an event of another method."
    reserved = sum(event["steps_reserved"] for event in asked if event["stage"] in (DP_SGD, TEACHERS))
    if any(resume["step"] > reserved for resume in receipt["resumes"]):
        yield "The run was resumed after more steps than its events have."
    parallel = len(facts.get("class_names") or ()) > 1 and receipt["unit_of_privacy"] == "image"
    yield from _of_events(asked, lambda event: _problems_of_method(event, method, said, parallel, norm))


def _problems_of_method(
    event: dict[str, Any], method: Asks, said: dict[str, Any], parallel: bool, norm: float
) -> Iterator[str]:
    (kinds, by_label, repeated), facts = STAGES.get(event["stage"], ("everyone", True, False)), event["query"]
    if participants(event) not in kinds.split() or participants(event) == method.never:
        yield f"{event['stage']} is a query to {kinds.replace(' ', ' or ')}, and not to {participants(event)}"
    if "grid" in facts and (method.never == "exact" or event["stage"] == JUDGE):
        yield "its method has no exact noise"
    if bool(event["partition"]) != (by_label and parallel):
        yield f"{event['stage']} asks {'each class' if by_label and parallel else 'no class'} apart"
    if event["steps_reserved"] > 1 and not repeated:
        yield f"{event['stage']} is asked once, and where its answer is lost in another event"
    least = math.sqrt(2) if method.votes else 2 if participants(event) == "shares" else 1
    if not math.isclose(facts["sensitivity"], least * facts["clip_norm"], rel_tol=EXACT):
        yield f"its sensitivity is {least:.4g} clip norms"
    if ("votes" in facts) != method.votes or method.norm and not math.isclose(facts["clip_norm"], norm):
        yield "its votes or its clip norm are not those of the curriculum"
    for name, value in facts.items():
        if name not in STATED and not (name in FACTS and type(value) is int and value > 0):
            yield f"no query of this library states {ascii(name)} so"
        if said.get(CALLED.get(name, name), value) != value:
            yield f"its {name} is not that of the curriculum"
    expected = facts.get("shares") or facts.get("sample_rate", event["sampling_probability"]) * event["dataset_size"]
    if event["stage"] in (DP_SGD, TEACHERS, JUDGE) and not -EXACT < expected - facts.get("normaliser", 0) < 1:
        yield "its divisor is not the number of teachers, or the expected number of units in a step"


def check_claims(receipt: dict[str, Any]) -> Iterator[str]:
    """Epsilon computed again is the epsilon that is claimed, and meets the target."""
    claims, delta, events = receipt["claimed_epsilon"], receipt["delta"], counted(receipt["events"])
    stated, target = {name: claims[name]["epsilon"] for name in claims}, receipt["target_epsilon"]
    interval, main = claims["pld"]["value_discretization_interval"], stated[receipt["accountant"]]
    slack = slack_of(receipt, events, interval)
    by_pld, by_rdp = epsilon(events, delta, interval=interval), epsilon(events, delta, orders=claims["rdp"]["orders"])
    for name, value in (("pld", by_pld), ("rdp", by_rdp)):
        found = f"The events cost epsilon {value:.8g} by {name.upper()}"
        yield from _compare(found, value, stated[name], interval, slack)
    # PRV needs Opacus. It is an estimate, so that no claim by it may lie below PLD's bound.
    if "prv" in stated and stated["prv"] < by_pld - slack:
        yield f"The receipt claims {stated['prv']:.8g} by PRV, less than PLD's {by_pld:.8g}."
    if main > target + EXACT:
        yield f"The claimed epsilon {main:.8g} exceeds the receipt's own target {target:.8g}."
    yield from _check_dataset(receipt)


def _compare(found: str, computed: float, claim: float, interval: float, slack: float) -> Iterator[str]:
    if not computed - slack <= claim:
        yield f"{found}, but the receipt claims {claim:.8g}."
    elif claim > computed + max(TOLERANCE, 10 * interval):
        harmless = "a larger claim weakens no guarantee, but one of the two was edited"
        yield f"{found}, but the receipt claims {claim:.8g}: {harmless}."


def slack_of(receipt: dict[str, Any], events: list[Counted], interval: float) -> float:
    """How far below the computed epsilon a claim may lie; of events as they are counted, at PLD's interval.

    Raises:
        `ValueError`: PLD would take too long, or more memory than there is, or no ledger has such an interval.
    """
    if interval > 1.001 * max(TOLERANCE / 10, rough_epsilon(receipt["delta"], events) / GRID):
        raise ValueError(f"PLD's interval {interval:.3g} is coarser than any ledger's")
    refuse_dear(events, interval)
    return _slack(receipt, interval)


def rough_epsilon(delta: float, events: list[Counted]) -> float:
    """Epsilon by RDP at few orders, as a scale. Raises `ValueError` where it is no guarantee."""
    rough = _rough(events, delta)
    if not rough <= MOST_BY_RDP:
        raise ValueError(f"RDP bounds it by {rough:.3g}, and above {MOST_BY_RDP} it is no guarantee")
    return rough


def refuse_dear(events: list[Counted], interval: float) -> None:
    """Raises `ValueError` where PLD would take too long, or more memory than there is."""
    widest = 2 * _rough(events, 1e-15)
    if not _work(events, widest, interval) < MOST_WORK:
        raise ValueError(f"it takes too much computing at PLD's interval {interval:.3g}")


def _rough(events: list[Counted], delta: float) -> float:
    """Epsilon by RDP at few orders, as a scale."""
    rough = epsilon(events, delta)
    return rough if rough <= MOST_EPSILON else scale(_kinds(events), delta)


def scale(queries: Iterable[tuple[float, float, int]], delta: float) -> float:
    """Epsilon by Renyi divergences of orders near 1, as a scale of PLD's grid and never as a claim: dp_accounting has
    no fractional orders where noise is little.

    Args:
        queries (iterable): Noise multiplier, sampling probability and steps of each Poisson-sampled Gaussian.
        delta (`float`): delta, in (0, 1).
    """
    import numpy as np
    from scipy.special import logsumexp

    orders = np.array(LOW_ORDERS)[:, None]
    divergences = np.zeros(len(LOW_ORDERS))
    for sigma, q, steps in queries:
        x = np.linspace(-12 * sigma, LOW_ORDERS[-1] + 12 * sigma, 10_000)
        density = -((x / sigma) ** 2) / 2
        loss = np.logaddexp(math.log(max(1 - q, 1e-300)), math.log(q) + (x - 0.5) / sigma**2)
        divergences += steps * (logsumexp(density + orders * loss, axis=1) - logsumexp(density))
    return float(((divergences - math.log(delta)) / (orders[:, 0] - 1)).min())


def widened(interval: float, rough: float) -> float:
    """PLD's interval where epsilon is about `rough`: its grid has no more than `GRID` points up to there."""
    return max(interval, rough / GRID)


def _slack(receipt: dict[str, Any], interval: float) -> float:
    """Below delta 1e-10 the rounding of Fourier transforms shows, which differs from machine to machine."""
    theirs, here = _versions(receipt)
    return min(max(EXACT, 1e-16 / receipt["delta"]) if theirs == here else math.inf, 10 * interval)


def _versions(receipt: dict[str, Any]) -> tuple[str, str]:
    """The version of dp_accounting that computed the claims, and the one that is here."""
    theirs = (receipt.get("versions") or {}).get("dp_accounting")
    try:
        return ascii(theirs)[:40], ascii(version("dp_accounting"))
    except PackageNotFoundError:
        return ascii(theirs)[:40], "an unknown one"


def _work(events: list[Counted], widest: float, interval: float) -> float:
    """What PLD costs, measured with dp_accounting 0.6: the grid of each kind of event, and the convolution of all."""
    work, most = 0.0, 0.0
    for sigma, _, _ in _kinds(events):
        points = (20 / sigma + 1 / sigma**2) / interval  # losses within ten standard deviations
        most = max(most, points)
        work += 15_000 + 2 * points
    return work + len(_kinds(events)) * (widest / interval + 4 * most) / 16


def _check_dataset(receipt: dict[str, Any]) -> Iterator[str]:
    """The sum over all releases of the data set, computed again, is the one that is claimed, and within its bound."""
    dataset, delta, together = receipt["dataset"], receipt["delta"], counted_together(receipt)
    if dataset is None:
        return
    claim, target = dataset["epsilon_of_all_releases"]["pld"], dataset["target_epsilon"]
    interval = dataset["value_discretization_interval"]
    slack = slack_of(receipt, together, interval)
    computed = epsilon(together, delta, interval=interval)
    yield from _compare(f"All releases together cost epsilon {computed:.8g}", computed, claim, interval, slack)
    here = [bound["target_epsilon"] for bound in dataset["bounds"] if bound["delta"] <= delta]
    if target != min(here, default=None):
        yield "The data set's own bound is not the smallest of those that were promised."
    if target is not None and claim > target + EXACT:
        yield f"Epsilon of all releases, {claim:.8g}, exceeds the data set's own bound {target:.8g}."
    for bound in dataset["bounds"]:  # each promise about the sum holds at its own delta
        cost = computed if bound["delta"] == delta else epsilon(together, bound["delta"], interval=interval)
        if not cost <= bound["target_epsilon"] + EXACT:
            where = f"at delta {bound['delta']:.4g}"
            over = f"over the data set's bound {bound['target_epsilon']:.6g}"
            yield f"All releases together cost epsilon {cost:.6g} {where}, {over}."


def counted_together(receipt: dict[str, Any]) -> list[Counted]:
    """The events of all releases, each release counted by itself."""
    releases = [receipt, *receipt.get("prior_releases", [])]
    return [event for release in releases for event in counted(release["events"])]


def epsilon(
    events: list[Counted], delta: float, *, interval: float | None = None, orders: Sequence[float] = QUICK_ORDERS
) -> float:
    """What events, as they are counted, cost together, by PLD at this interval or else by RDP; every reserved step
    counts, executed or not."""
    import dp_accounting as dp  # it brings scipy, a second or two that a reader of words need not wait for
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant, compute_epsilon

    adjacency = dp.NeighboringRelation.REPLACE_SPECIAL
    accountant: Any = RdpAccountant(orders, adjacency) if interval is None else PLDAccountant(adjacency, interval)
    # In the ledger's order, for sums of floats depend on it.
    for sigma, q, steps in _kinds(events):
        query: dp.DpEvent = dp.GaussianDpEvent(sigma)
        if q < 1:
            query = dp.PoissonSampledDpEvent(q, query)
        accountant.compose(query, steps)
    if interval is not None:
        return epsilon_by_pld(accountant, delta)
    # At 0 and below there is only rounding, from which dp_accounting would conclude that epsilon is 0.
    values = [value if value > 0 else math.inf for value in accountant.rdp]
    return float(compute_epsilon(orders, values, delta)[0])


def epsilon_by_pld(accountant: Any, delta: float) -> float:
    """Epsilon of all that a PLD accountant has composed.

    `get_epsilon` divides by a mass of about e^-epsilon. Above 709 this overflows: it gives infinity, or up to 1 too
    much. There epsilon is found as the root of `get_delta`, which has no such numbers.
    """
    if accountant.get_delta(LARGE_EPSILON) <= delta:
        return float(accountant.get_epsilon(delta))
    from scipy.optimize import brentq

    if not accountant.get_delta(2 * MOST_BY_RDP) <= delta:
        return math.inf
    root = brentq(lambda value: accountant.get_delta(value) - delta, LARGE_EPSILON, 2 * MOST_BY_RDP, xtol=1e-9)
    return float(root) + 1e-8  # from above


def guarantee(receipt: dict[str, Any]) -> str:
    """What a receipt claims, in the words of the card, which must hold them; epsilon is rounded up to four decimals,
    never down."""
    unit, accountant, delta = receipt["unit_of_privacy"], receipt["accountant"], f"{receipt['delta']:.4g}"
    epsilon = _rounded_up(receipt["claimed_epsilon"][accountant]["epsilon"])
    outputs = " but what its receipt lists under `leaky_outputs`" if receipt.get("leaky_outputs") else ""
    whose = "any one training image was" if unit == "image" else f"all training images of any one {unit} were"
    text = (
        f"Whether {whose} used or contributed nothing (the number of {unit}s unchanged) changes the probability of "
        f"everything in this release{outputs} by at most a factor of e^{epsilon}, but for a probability of {delta}: "
        f"**(epsilon = {epsilon}, delta = {delta})-differential privacy for each {unit}**, computed by "
        f"{accountant.upper()}."
    )
    if receipt.get("dataset") and receipt.get("prior_releases"):
        total = _rounded_up(receipt["dataset"]["epsilon_of_all_releases"]["pld"])
        others = len(receipt["prior_releases"])
        text += f" With {others} other release(s) from the same data the sum is epsilon = {total}."
    return f"{text} {publishes_records(*about_delta(receipt))}".rstrip()


def publishes_records(delta: float, number: int, unit: str) -> str:
    """One sentence where delta is 1/number or more, else an empty string.

    Whoever publishes one unit, drawn evenly, and does nothing else, is (0, 1/number)-private.

    Args:
        delta (`float`): delta of the guarantee.
        number (`int`): N, the number of units, above 0.
        unit (`str`): The unit of privacy.
    """
    if not delta >= 1 / number:
        return ""
    outright = "some of them" if unit == "image" else f"all images of some {unit}s"
    return (
        f"A delta of {delta:.4g} is not below 1 / {number:,} {unit}s: "
        f"such a guarantee allows to publish {outright} outright."
    )


def delta_in_words(delta: float, number: int, unit: str) -> str:
    """What a delta above `LARGE_DELTA` means, or one of 1/number and more, in one sentence; else an empty string.

    A mechanism that publishes each unit with probability delta, and never two, is (0, delta)-private: one of them is
    published with probability `number * delta`. The arguments are those of `publishes_records`.
    """
    outright = publishes_records(delta, number, unit)
    if outright or not delta > LARGE_DELTA:
        return outright
    return (
        f"A delta of {delta:.4g} is large: it alone allows to publish each of the {number:,} {unit}s with that "
        f"probability, so one of them with probability {number * delta:.2g}."
    )


def about_delta(receipt: dict[str, Any]) -> tuple[float, int, str]:
    """The arguments of `delta_in_words`."""
    facts = receipt["public_facts"]
    return receipt["delta"], facts.get("num_units", facts.get("num_images")), receipt["unit_of_privacy"]


def _rounded_up(epsilon: float) -> str:
    return f"{math.ceil(epsilon * 1e4) / 1e4:.4f}"


def card_agrees(folder: str | Path, receipt: dict[str, Any]) -> bool:
    """Whether the card says `guarantee`, however its lines are broken, and no other epsilon in such words, nor a
    smaller one in its first lines. It lies outside the hashes, and may say more besides."""
    try:
        card = _content(Path(folder, CARD_NAME)).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return False
    words, said = " ".join(guarantee(receipt).split()), " ".join(card.split())
    least = 0.999 * receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"]
    rounded = all(float(number) >= least for number in HEADLINE.findall(said))
    return rounded and words in said and set(PAIR.findall(said)) <= set(PAIR.findall(words))


def _printable(text: str) -> str:
    """A stranger's words on one line: letters of any script as they are, what steers a terminal or turns text around
    as its code."""
    return "".join(
        letter if letter.isprintable() and letter != "\\" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _kinds(events: list[Counted]) -> list[Counted]:
    """Steps of equal queries together, in order: the cost does not depend on how they were reserved."""
    steps: Counter[tuple[float, float]] = Counter()
    for event in events:
        steps[event.noise_multiplier, event.sampling_probability] += event.steps
    return [Counted(*kind, number) for kind, number in sorted(steps.items())]


def notes(receipt: dict[str, Any]) -> Iterator[str]:
    """By which rule a receipt was found consistent, and what is known of the code beside it."""
    grids = [receipt["claimed_epsilon"]["pld"], *filter(None, [receipt.get("dataset")])]
    slack = max(_slack(receipt, grid["value_discretization_interval"]) for grid in grids)
    theirs, here = _versions(receipt)
    if theirs == here:
        yield f"No claim lies more than {slack:.2g} below what the events cost."
    else:
        yield f"Consistent within {slack:.2g}: dp_accounting {theirs} computed the claims, and {here} is here."
    if receipt["method"]["name"] not in METHODS:
        name = _printable(receipt["method"]["name"])
        yield f"{name} is no method that this program knows: its events were counted, and their kinds not checked."
    yield from (f"KNOWN FAULT: {fault}" for fault in known_faults(receipt))
    yield from _about_others(receipt)
    if "derived_from" in receipt:
        parent = receipt["derived_from"][:16]
        yield f"Computed from the release with receipt {parent}... alone, by its word: both cost this epsilon once."
    for file in receipt["files"]:
        if file["name"].endswith(".py"):
            known = "known code, published by diffusers_dp" if file["sha256"] in PIPELINES else UNKNOWN_CODE
            yield f"{_printable(file['name'])} is {known}; `trust_remote_code=True` runs it on your machine."


def _about_others(receipt: dict[str, Any]) -> Iterator[str]:
    """A line for each input with an epsilon of its own, and for each prior release of another number of units."""
    unit, dataset = receipt.get("unit_of_privacy", "record"), receipt.get("dataset") or {}
    for origin in priced_inputs(receipt):
        number, its_unit, its_id = (origin.get(name) for name in ("num_units", "unit_of_privacy", "dataset_id"))
        whose = "" if number is None else f" for one of its {number:,} {its_unit or 'unit'}s"
        price = f"Began with a release of epsilon {origin['epsilon']:.4f} at delta {origin['delta']:.4g}{whose}"
        if its_id is not None and its_id == dataset.get("id"):
            yield f"{price}: it is of data set {its_id}, whose sum should count it."
        else:
            yield f"{price}: for an image in both, the two add up."
    number = about_delta(receipt)[1]
    for prior in receipt.get("prior_releases", []):
        if prior["num_images"] != number:
            yield f"A prior release is of {prior['num_images']:,} {unit}s, and this one of {number:,}: {ADDED}."


def known_faults(receipt: dict[str, Any]) -> Iterator[str]:
    """What is wrong and what to do, for each fault that became known and may touch a consistent receipt."""
    yield from (said for touches, said in KNOWN_FAULTS if touches(receipt))


def report(folder: str | Path, base: str | Path | None = None) -> int:
    """Prints what was found, and returns the exit code: 0, 2 or 4, whatever lies in the folder; 141 where the reader
    of a pipe closed it before the end.

    Args:
        folder (`str` or `Path`): The release.
        base (`str` or `Path`, *optional*): Folder of the base, where the release is adapters of one.
    """
    try:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may lack a stranger's letters
        code = _report(folder, base)
        print(end="", flush=True)
        return code
    except BrokenPipeError:  # who reads has enough, and the interpreter shall not try again
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return CLOSED_PIPE
    except ImportError as error:
        sentence, code = f"{error.name} is not installed: pip install dp-accounting.", 2
    except Exception as error:  # the last resort: nothing here spends budget, and nothing was found consistent
        sentence, code = f"the folder could not be checked: {type(error).__name__}.", 4
    try:
        print(f"error: {sentence}", file=sys.stderr)
        print(end="", flush=True)
    except OSError:  # nobody reads, and the interpreter shall not try again
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


def _report(folder: str | Path, base: str | Path | None) -> int:
    try:
        receipt, problems = verify(folder)
        reference = base_of(folder)
        if base is not None:
            problems += ["The release names no base."] if reference is None else check_base(base, reference)
    except Unreadable as error:
        print(f"error: {_printable(str(error))}", file=sys.stderr)
        return error.exit_code
    if problems:
        print("does NOT match:", *(f"- {_printable(problem)}" for problem in problems), sep="\n")
        return 4
    claim = receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"]
    unit = receipt.get("unit_of_privacy", "record")
    found = f"numbers consistent: epsilon {claim:.4f} at delta {receipt['delta']:.4g} for one {unit}."
    print(f"{found} {delta_in_words(*about_delta(receipt))}".rstrip())
    print(*notes(receipt), sep="\n")
    if reference is not None:
        where = f"{_printable(reference['name'])} at {reference['revision'] or 'no commit'}"
        print(f"Base {where}: {'its files are the stated ones' if base else 'base not checked, give its folder'}.")
    if receipt.get("dataset"):
        together = receipt["dataset"]["epsilon_of_all_releases"]["pld"]
        others = len(receipt.get("prior_releases", []))
        print(f"With {others} other release(s) from the same data: epsilon {together:.4f}.")
    for output in receipt.get("leaky_outputs", []):
        print(f"NOT covered by this guarantee: {_printable(output)}.")
    if receipt["private_evaluations"]:
        print(
            f"Private images were read {receipt['private_evaluations']} time(s) to evaluate this release, outside of "
            "the guarantee."
        )
    if not card_agrees(folder, receipt):
        print(f"NOTE: {NO_CARD}, so trust the numbers above and not the card.")
    return 4 if any(known_faults(receipt)) else 0


if __name__ == "__main__":
    asked = {"-h", "--help"} & set(sys.argv[1:])
    if asked or not 2 <= len(sys.argv) <= 3:
        print("usage: python verify.py FOLDER [BASE]", file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else 2)
    sys.exit(report(*sys.argv[1:]))
