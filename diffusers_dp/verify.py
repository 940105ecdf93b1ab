# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Check a release against its `privacy_receipt.json`:   python verify.py FOLDER [BASE]   (or `diffusers-dp verify`)

This one file needs `pip install dp-accounting` and nothing else. It rebuilds the events that the receipt lists,
computes epsilon again, and compares the hashes of the files. What it can say is "numbers consistent, unsigned": a
receipt is the trainer's statement, and nobody can see from the weights whether the events are all that happened.

A folder may come from a stranger: only regular files are read, reading and computing are bounded, and no code
of the folder is run.

Exit codes: 0 consistent, 2 nothing to check, 4 something does not match or is damaged, or a known fault may touch it;
each mismatch is one line.
"""

import hashlib
import itertools
import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


RECEIPT_NAME, CARD_NAME, SIGNATURE_NAME = "privacy_receipt.json", "README.md", "privacy_receipt.json.sig"
FORMAT = "diffusers_dp/1"  # of all files that this library writes and reads again
TOLERANCE, EXACT = 1e-3, 1e-6
OUTSIDE = (CARD_NAME, RECEIPT_NAME, SIGNATURE_NAME, ".gitattributes")  # what the Hub adds, and what people may edit
FOLDERS_OUTSIDE = (".cache", ".git")
# A stranger's receipt must not keep this machine busy for days.
MOST_BYTES, MOST_EVENTS, MOST_STEPS, MOST_ORDERS = 10_000_000, 2_000, 6_000_000, 200
MOST_FILES, MOST_HASHED, MOST_DEPTH, MOST_COUNTED = 10_000, 20_000_000_000, 50, 10_000_000
MOST_KINDS, LARGEST_ORDER, LARGEST_CLAIM = 50, 1_024, 1e9  # kinds: events that differ in more than their steps
BANDED, MOST_BANDS, SUM_OF_SQUARES = "banded_gaussian", 1_000, 1 + 1e-9
IDS = ("path", "row", "column")
NOISE, INTERVALS = (0.02, 1e7), (5e-6, 1e-2)
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
RNG_FIELDS = {"kind", "os_entropy", "seed_published"}
RELEASED = "release of diffusers_dp"  # kind of a public input
VERSION, LEAST_ASSUMPTIONS = r"[\w.+-]{1,100}", 5
EVALUATION_STAGE = "evaluation_reserve"
MOST_OUTPUTS, LONGEST_OUTPUT, MOST_BOUNDS = 100, 2_000, 20
UNIT, DATASET_ID = r"(?! |.*  )[\w .-]{1,100}(?<! )", r"[A-Za-z0-9][\w.-]{0,99}"  # no stray spaces
PRIVACY_FIELDS = ("delta", "accountant", "adjacency", "unit_of_privacy", "status")
STATEMENT = {"epsilon", *PRIVACY_FIELDS, "receipt_sha256"}
PAIR = re.compile(r"\(epsilon = [^()]{1,60}, delta = [^()]{1,60}\)")  # as `guarantee` states them
NO_CARD = f"{CARD_NAME} does not carry the guarantee of the receipt: it lies outside the hashes"
PIPELINE = "01b925b71f645b1032726e754ce13275a41f5985a05fc2d859f6ea74525cb1f5"  # SHA-256 of `pipeline.py`
#: What a base may be made of: in folders of components, and no pickle, no program, no way out of the folder.
BASE_FILE = re.compile(
    r"(?:[a-z][a-z0-9_]*/)?[A-Za-z0-9][\w-]*(?:\.safetensors\.index)?\.(?:json|txt|model|safetensors)"
)
UNKNOWN_CODE = "UNKNOWN code, which diffusers_dp never published: read it first"
ADDED = "they are added up as if all were the same ones"
EDITED = (
    f"model_index.json or {RECEIPT_NAME} was edited after the release was made: the one holds the hash of the other, "
    "and its hash differs."
)


def _asked(receipt: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a release and of those before it, which it counts."""
    return [event for release in (receipt, *receipt.get("prior_releases", [])) for event in release["events"]]


ADAPTERS, LONGEST_TEXT = "DPLatentAdapters", 10_000  # a class of `model_index.json`, letters of a prompt or a name
#: Fields of `model_index.json` that this library writes, and whether a value can be one.
INDEX_FIELDS: dict[str, Callable[[Any], bool]] = {
    "base": lambda value: isinstance(value, dict),
    "class_prompts": lambda value: value is None or are_texts(value),
    "class_names": lambda value: value is None or are_texts(value),
    "id2label": lambda value: value is None or isinstance(value, dict) and are_texts(list(value.values())),
    "image_shape": lambda value: isinstance(value, list) and len(value) == 3 and all(_whole(n, 1) for n in value),
    **{name: lambda value: _whole(value, 1) for name in ("num_images", "num_shards", "patch_size")},
}


def _inputs(receipt: dict[str, Any]) -> list[dict[str, Any]]:
    """Public inputs, also of a receipt that was not checked yet."""
    inputs = receipt.get("public_inputs")
    return [origin for origin in inputs if isinstance(origin, dict)] if isinstance(inputs, list) else []


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
    wrong = list(check_statement(receipt)) + list(check_numbers(receipt))
    absl = logging.getLogger("absl")
    level, quiet = absl.level, max(absl.level, logging.ERROR)
    try:
        absl.setLevel(quiet)  # dp_accounting warns of RDP orders that it leaves out, which changes nothing
        return wrong or list(check_claims(receipt))
    except (ArithmeticError, ValueError, MemoryError) as error:  # too dear, or dp_accounting has no answer
        return [f"Epsilon cannot be computed from these events: {error or 'too little memory'}."]
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
    listed = receipt.get("files")
    if not isinstance(listed, list) or not all(
        isinstance(file, dict) and isinstance(file.get("name"), str) and isinstance(file.get("sha256"), str)
        for file in listed
    ):
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
        elif _digest(found[name]) != stated[name]:
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
    except (OSError, ValueError):
        return
    if not isinstance(index, dict):
        return
    wrong = [name for name, is_right in INDEX_FIELDS.items() if name in index and not is_right(index[name])]
    if index.get("_class_name") == ADAPTERS and "base" not in index:
        wrong.append("base")
    if wrong:
        yield f"model_index.json says {', '.join(wrong)} in a way that no release does."


def are_texts(value: Any) -> bool:
    """Whether it is a list of texts of bounded length."""
    return isinstance(value, list) and all(isinstance(text, str) and len(text) <= LONGEST_TEXT for text in value)


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
        elif _digest(path) != file["sha256"]:
            yield f"{file['name']} of the base is another file than the release was made with: its hash differs."


def check_reference(base: dict[str, Any]) -> Iterator[str]:
    """The base is named by a whole commit, not by a branch or tag that may move, and holds no program."""
    files, revision = base.get("files"), base.get("revision")
    if not isinstance(base.get("name"), str) or not (
        revision is None or isinstance(revision, str) and re.fullmatch(r"[0-9a-f]{40}", revision)
    ):
        yield "The base is not named by a whole commit."
    if not isinstance(files, list) or not 0 < len(files) <= MOST_FILES or not all(
        isinstance(file, dict) and isinstance(file.get("name"), str) and isinstance(file.get("sha256"), str)
        and BASE_FILE.fullmatch(file["name"]) and re.fullmatch(r"[0-9a-f]{64}", file["sha256"])
        for file in files
    ):  # fmt: skip
        yield "The base is not named by the hashes of safetensors and configurations."


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


def _digest(path: Path) -> str:
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
        privacy = _json(folder / "model_index.json")["privacy"]
        if privacy["receipt_sha256"] != receipt_digest(folder / RECEIPT_NAME):
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
    return settled_digest(receipt) if _content(path) == _canonical(receipt) else "not canonical"


def settled_digest(receipt: dict[str, Any]) -> str:
    """`receipt_digest` of what will be written."""
    return hashlib.sha256(settled_content(receipt)).hexdigest()


def settled_content(receipt: dict[str, Any]) -> bytes:
    """The receipt as it was made, which is what people sign: without what may be added later."""
    settled = {name: value for name, value in receipt.items() if name != "audit"}
    return _canonical({**settled, "private_evaluations": 0})


def _canonical(value: Any) -> bytes:
    content = bytearray()
    for piece in json.JSONEncoder(sort_keys=True, indent=2).iterencode(value):
        content += piece.encode()
        if len(content) > MOST_BYTES:
            raise ValueError(f"written as the library writes it, it has more than {MOST_BYTES} bytes")
    return bytes(content + b"\n")


def check_statement(receipt: dict[str, Any]) -> Iterator[str]:
    """The receipt claims a guarantee at all, and says nothing that would be the end of one."""
    if receipt.get("status") not in STATUSES:
        yield f"The receipt's status is {ascii(receipt.get('status'))}: this is no guarantee."
    unit, dataset, rng = receipt.get("unit_of_privacy"), receipt.get("dataset"), receipt.get("rng")
    rng_kind = rng.get("kind") if isinstance(rng, dict) else None
    if not isinstance(unit, str) or not re.fullmatch(UNIT, unit, re.ASCII):
        yield "The receipt names no unit of privacy."
    if not isinstance(rng, dict) or rng.get("os_entropy") is not True or rng.get("seed_published") is not False:
        yield "The noise does not come from a secret source, or the receipt does not say so."
    elif rng.get("kind") not in RNG_KINDS or set(rng) != RNG_FIELDS:
        yield "The receipt names another source of noise than this library has, or publishes something of it."
    resumes = receipt.get("resumes", [])
    if not isinstance(resumes, list) or not all(
        isinstance(resume, dict) and resume.get("fresh_entropy") is True and _whole(resume.get("step"), 0)
        for resume in resumes
    ):
        yield "A resumed run drew its noise again, or the receipt does not say that it did not."
    evaluations, name = receipt.get("private_evaluations"), dataset.get("id") if isinstance(dataset, dict) else None
    if not _whole(evaluations, 0):
        yield "The number of private evaluations is no number."
    parent = receipt.get("derived_from", "0" * 64)
    if not _is_digest(parent):
        yield "The receipt does not say which release it is derived from by the digest of a receipt."
    elif _is_derived_from_itself(receipt):
        yield "The receipt says that its release is derived from itself."
    outputs = receipt.get("leaky_outputs", [])
    if (
        not isinstance(outputs, list)
        or len(outputs) > MOST_OUTPUTS
        or not all(isinstance(output, str) and len(output) <= LONGEST_OUTPUT for output in outputs)
    ):
        yield "The outputs that the guarantee does not cover are no list of words."
    elif bool(outputs) != (receipt.get("status") == LOWERED_STATUS):
        yield (
            f"The status must be {LOWERED_STATUS} where the receipt lists outputs that the guarantee does not cover, "
            "and only there."
        )
    if (_says_proven(receipt) or rng_kind == EXACT_RNG) and not _is_exact(receipt):
        yield "The receipt says that its noise is proven to the bit, and lists events whose noise is not."
    if _says_proven(receipt) and any(origin.get("kind") == "latent pipeline" for origin in _inputs(receipt)):
        yield "The receipt says that its noise is proven to the bit, which no encoder of latents was."
    yield from _check_fields(receipt)
    yield from _check_evaluation(receipt)
    yield from _check_priced_inputs(receipt)
    if dataset is not None and not (isinstance(name, str) and re.fullmatch(DATASET_ID, name, re.ASCII)):
        yield "The receipt's data set has no name."


def _says_proven(receipt: dict[str, Any]) -> bool:
    method = receipt.get("method")
    return "proven" in (receipt.get("status"), method.get("status") if isinstance(method, dict) else None)


def _is_exact(receipt: dict[str, Any]) -> bool:
    """Whether every event, also of the releases before this one, was asked with `--noise exact`, and noise and samples
    come from the operating system."""
    try:
        return receipt["rng"]["kind"] == EXACT_RNG and all("grid" in event["query"] for event in _asked(receipt))
    except (KeyError, TypeError, AttributeError):
        return False


def _is_derived_from_itself(receipt: dict[str, Any]) -> bool:
    if "derived_from" not in receipt:
        return False
    parent = {name: value for name, value in receipt.items() if name != "derived_from"}
    try:
        return bool(receipt["derived_from"] == settled_digest(parent))
    except ValueError:  # larger than the library writes, which is said elsewhere
        return False


def _check_fields(receipt: dict[str, Any]) -> Iterator[str]:
    """No field is missing, and each is of the kind that the library writes."""
    for name, fits in FIELDS.items():
        if name not in receipt:
            yield f"The receipt lacks its field {name}."
        elif not fits(receipt[name]):
            yield f"The receipt's field {name} holds what this library does not write."
    method = receipt.get("method")
    if isinstance(method, dict) and receipt.get("status") not in (method.get("status"), LOWERED_STATUS):
        yield "The receipt's status is not that of its method."


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != "" and value == value.strip()


def _are_texts(value: Any, names: tuple[str, ...], pattern: str) -> bool:
    """An object of at least these names, and of texts alone that fit the pattern."""
    return (
        isinstance(value, dict)
        and set(names) <= set(value)
        and all(_is_text(text) and re.fullmatch(pattern, text) for text in value.values())
    )


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def _are_class_names(value: Any) -> bool:
    return value is None or isinstance(value, list) and value != [] and all(isinstance(name, str) for name in value)


def _is_origin(value: Any) -> bool:
    """A public input: it is named, and what is a release says what it cost."""
    if not isinstance(value, dict) or not all(_is_text(value.get(name)) for name in ("kind", "name")):
        return False
    digests = [value[name] for name in value if str(name).endswith("sha256")]
    words = [value[name] for name in ("licence", "release_id") if value.get(name) is not None]
    return (
        all(map(_is_digest, digests))
        and all(map(_is_text, words))
        and _are_class_names(value.get("class_names"))
        and ("epsilon" in value or value["kind"] != RELEASED and "receipt_sha256" not in value)
    )


def _is_list_of(fits: Callable[[Any], bool], least: int = 0) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and least <= len(value) and all(map(fits, value))


def _is_day(value: Any) -> bool:
    try:
        return isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def _is_grey(value: Any) -> bool:
    return _between(value, -1e300, 1e300)


def _are_public_facts(value: Any) -> bool:
    """Those that a reader has to rely on; others may stand beside them."""
    if not isinstance(value, dict):
        return False
    fits: dict[str, Callable[[Any], bool]] = {
        "class_names": _are_class_names,
        "image_shape": lambda shape: _is_list_of(lambda side: _whole(side, 1), 3)(shape) and len(shape) == 3,
        "value_range": lambda ends: ends == [0, 1] and not any(isinstance(end, bool) for end in ends),
        "grey_range": lambda ends: _is_list_of(_is_grey, 2)(ends) and len(ends) == 2 and ends[0] < ends[1],
        "normaliser": lambda number: _between(number, 0, LARGEST_CLAIM),
        "evaluation_reserve": lambda share: _between(share, 0, 1),
        **{name: lambda number: _whole(number, 1) for name in ("num_images", "num_units", "max_images_per_unit")},
    }
    return all(fit(value[name]) for name, fit in fits.items() if name in value)


#: What no other check reads of a receipt.
FIELDS: dict[str, Callable[[Any], bool]] = {
    "assumptions": _is_list_of(_is_text, LEAST_ASSUMPTIONS),
    "composition": _is_text,
    "created_utc": _is_day,
    "curriculum": lambda value: isinstance(value, dict),
    "dataset": lambda value: value is None or isinstance(value, dict),
    "evaluation": lambda value: isinstance(value, list),
    "leaky_outputs": lambda value: isinstance(value, list),
    "library": lambda value: (
        _are_texts(value, ("name", "version", "source_sha256"), VERSION)
        and value["name"] == "diffusers_dp"
        and _is_digest(value["source_sha256"])
    ),
    "method": lambda value: (
        isinstance(value, dict)
        and all(isinstance(value.get(name), str) for name in ("name", "paper", "status"))
        and _is_text(value["name"])
    ),
    "prior_releases": lambda value: isinstance(value, list),
    "processes": _is_list_of(lambda number: _whole(number, 1), 1),
    "public_facts": _are_public_facts,
    "public_inputs": _is_list_of(_is_origin),
    "resumes": lambda value: isinstance(value, list),
    "versions": lambda value: _are_texts(value, ("dp_accounting", "opacus", "torch"), VERSION),
}


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


def _check_priced_inputs(receipt: dict[str, Any]) -> Iterator[str]:
    """What training began with that has an epsilon says how much, and is not forgotten in the sum of its data set."""
    dataset = receipt.get("dataset")
    try:
        for origin in priced_inputs(receipt):
            words = [origin.get(name) or "none" for name in ("unit_of_privacy", "dataset_id")]
            if not (
                _between(origin["epsilon"], 0, LARGEST_CLAIM)
                and _between(origin.get("delta"), 0, 1)
                and _is_digest(origin.get("receipt_sha256"))
                and (origin.get("num_units") is None or _whole(origin["num_units"], 1))
                and all(isinstance(word, str) and re.fullmatch(UNIT, word, re.ASCII) for word in words)
            ):
                raise TypeError
            same = isinstance(dataset, dict) and dataset.get("id") == origin.get("dataset_id")
            if same and not receipt.get("prior_releases"):
                yield "The receipt began with a release of its data set, and lists no prior release."
    except (TypeError, AttributeError):
        yield "The public inputs are no list of them, or one does not say what it cost."


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
    yield from _check_events(receipt.get("events"), count, parallel, facts)
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
            for problem in _check_events(other.get("events"), other.get("num_images"), parallel, {})
        )
    if prior and not isinstance(receipt.get("dataset"), dict):
        yield "The receipt lists prior releases of no data set."


def _check_events(events: Any, num_images: Any, parallel: bool, facts: dict[str, Any]) -> Iterator[str]:
    if not isinstance(events, list) or not events or len(events) > MOST_EVENTS:
        yield f"The receipt needs from 1 to {MOST_EVENTS} events."
        return
    if not _whole(num_images, 1):
        yield "The number of units is no whole number above 0."
    total = 0
    wrong: dict[str, list[int]] = {}
    for number, event in enumerate(events):
        problem = "it is not an object" if not isinstance(event, dict) else _wrong(event, num_images)
        if problem is None:
            total += event["steps_reserved"]
            if event.get("partition") not in ((None, "label") if parallel else (None,)):
                problem = "it calls parts parallel that one unit can lie in together"
            problem = problem or _wrong_query(event, facts)
        if problem is not None:
            wrong.setdefault(problem, []).append(number)
    for problem, numbers in wrong.items():
        more = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        yield f"Event {numbers[0]}{more} cannot be accounted: {problem}."
    if not wrong:
        yield from _check_turns([event for event in events if event["mechanism"] == BANDED])
        numbers = [event.get("id") for event in events]
        if any(after <= before for before, after in itertools.pairwise(numbers)):
            yield "The events are not numbered in the order in which they were asked."
    if len(_kinds([event for event in events if isinstance(event, dict)])) > MOST_KINDS:
        yield f"The events are of more than {MOST_KINDS} kinds."
    if total > MOST_STEPS:
        yield f"The events have more than {MOST_STEPS} steps."


def _wrong_query(event: dict[str, Any], facts: dict[str, Any]) -> str | None:
    """Noise is counted against a question's sensitivity, which nothing that is clipped may exceed; and what an event
    says of the release, the public facts say.

    Args:
        facts (`dict`): The public facts, as far as they are known.
    """
    query = event.get("query")
    if not isinstance(query, dict) or not {"sensitivity", "clip_norm"} <= set(query):
        return "it does not say its sensitivity, and what is clipped to which norm"
    if "partition" not in event:
        return "it does not say whether classes are parallel"
    if not _whole(query.get("noise_multiplicity", 1), 1):
        return "its noise multiplicity is no whole number above 0"
    sizes = [query[name] for name in ("sensitivity", "clip_norm", "normaliser") if name in query]
    if not all(_between(size, 0, LARGEST_CLAIM) for size in sizes):
        return "a sensitivity, clip norm or divisor must be a number above 0"
    if query["sensitivity"] < query["clip_norm"]:
        return "its sensitivity lies below its clip norm, so that its noise is less than it says"
    shared = "shares" in query or event.get("stage") == "teachers"
    if shared and (wrong := _wrong_shares(event, query)):
        return wrong
    names = ("max_images_per_unit", *(("normaliser",) if event.get("stage") == "dp_sgd" else ()))
    if any(query.get(name) != facts[name] for name in names if name in facts):
        return "it contradicts the public facts"
    if "grid" in query and (wrong := _wrong_grid(event, query, facts)):
        return wrong
    if event.get("partition") is not None and facts.get("class_names", ()) is None:
        return "it calls classes parallel, and there are none"
    if not (_whole(event.get("id"), 0) and _is_text(event.get("stage")) and event["stage"]):
        return "it has no number or no name"
    return None


def _wrong_shares(event: dict[str, Any], query: dict[str, Any]) -> str | None:
    """One unit changes what the teacher of its share says from anything to anything: by two clip norms, or sqrt(2) for
    each vote. Every share answers in each round, so nothing is sampled."""
    key = query.get("group_key")
    if not _whole(query.get("shares"), 1) or query["shares"] > event.get("dataset_size", 0):
        return "its shares are no whole number from 1 to the number of units"
    if not (isinstance(key, str) and re.fullmatch(r"[0-9a-f]{32}", key) and query.get("ids") in IDS):
        return "it does not say by which public key ids are assigned to shares"
    if event.get("mechanism") != "gaussian" or event.get("partition") is not None or "coefficients" in query:
        return "teachers answer for all shares together, without samples and parallel classes"
    least, votes = 2 * query.get("clip_norm", math.inf), query.get("votes")
    if votes is not None:
        fits = _whole(votes, 1) and math.isclose(query.get("clip_norm", 0), math.sqrt(votes))
        least = math.sqrt(2 * votes) if fits else math.inf
    if not query.get("sensitivity", 0) >= least * (1 - EXACT):
        return "a teacher may say anything, so that its sensitivity is two clip norms, or sqrt(2) a vote"
    return None


def _wrong_grid(event: dict[str, Any], query: dict[str, Any], facts: dict[str, Any]) -> str | None:
    """What `--noise exact` rests on: vectors of whole numbers, no longer than the sensitivity; a probability that a
    coin of 53 bits has; and batches of a public shape."""
    if query["grid"] != CLIP_STEPS or "clip_norm" not in query or query.get("sensitivity") != query["clip_norm"]:
        return f"with whole numbers its clip norm is its sensitivity, of {CLIP_STEPS} steps"
    if event.get("sampling_probability", 1) * COIN % 1:
        return "no coin of 53 bits falls with its sampling probability"
    gradient = event.get("stage") == "dp_sgd" or "noise_multiplicity" in query
    if gradient and ("max_images_per_unit" in query or "num_units" in facts):
        return "the proof with whole numbers has no gradients of units of several images"
    return None


def _check_turns(events: list[dict[str, Any]]) -> Iterator[str]:
    """The steps of a release whose groups take turns are one stream, without gaps: a group that was skipped, or a step
    that is counted twice, would give another number of turns."""
    reached = 0
    for event in sorted(events, key=lambda event: event["first_step"]):
        if event["first_step"] != reached:
            what = "overlap" if event["first_step"] < reached else "leave a gap"
            yield f"The steps of groups that take turns {what} at step {event['first_step']}."
            return
        reached += event["steps_reserved"]
    same = ("noise_multiplier", "sampling_probability", "bands", "query")
    if any(event[key] != events[0][key] for event in events for key in same):
        yield "The groups that take turns, or their noise, change between events."


def counted(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events of one release as the accountant counts them.

    Of `n` steps in which `b` groups take turns, a unit takes part in at most `ceil(n / b)`, each a Poisson-sampled
    Gaussian (Choquette-Choo et al. 2023, arXiv 2306.08153, Theorem 4). Steps of one kind are added up first. The
    groups of another release are other groups: it is counted by itself.
    """
    plain, turns = [], dict[tuple[Any, ...], dict[str, Any]]()
    for event in events:
        if event.get("mechanism") != BANDED:
            plain.append(event)
            continue
        kind = (event["noise_multiplier"], event["sampling_probability"], event["bands"])
        first = turns.setdefault(kind, {**event, "steps_reserved": 0})
        first["steps_reserved"] += event["steps_reserved"]
    for event in turns.values():
        steps = -(-event["steps_reserved"] // event["bands"])
        plain.append({**event, "mechanism": "poisson_gaussian", "steps_reserved": steps})
    return plain


def _wrong_bands(event: dict[str, Any]) -> str | None:
    """Columns of the matrix that correlates the noise have norm 1 at most, and those of one unit do not overlap."""
    bands, first, query = event.get("bands"), event.get("first_step"), event.get("query")
    if not _whole(bands, 2) or not _whole(first, 0) or not isinstance(query, dict):
        return "steps of groups that take turns lack their bands, first step or query"
    if bands > min(MOST_BANDS, event["dataset_size"]):
        return f"there are more than {MOST_BANDS} bands, or more bands than units"
    c, rate = query.get("coefficients"), query.get("sample_rate")
    if not isinstance(c, list) or len(c) != bands or not all(_between(value, -2, 2) for value in c) or not c[0] > 0:
        return "it needs as many coefficients as bands, numbers, the first above 0"
    if not math.fsum(value**2 for value in c) <= SUM_OF_SQUARES:
        return "the squares of its coefficients have a sum above 1, so that its noise is less than it says"
    if not _between(rate, 0, 1) or not math.isclose(bands * rate, event["sampling_probability"], rel_tol=1e-9):
        return "its sampling probability is not the rate of all units times its bands"
    key = query.get("group_key")
    if not (isinstance(key, str) and re.fullmatch(r"[0-9a-f]{32}", key) and query.get("ids") in IDS):
        return "it does not say by which public key ids are assigned to groups"
    return "groups that take turns are not parallel" if event.get("partition") is not None else None


def _wrong(event: dict[str, Any], num_images: Any) -> str | None:
    keys = ("noise_multiplier", "sampling_probability", "steps_reserved", "steps_executed")
    values: list[Any] = [event.get(key) for key in keys]
    sigma, q, steps, executed = values
    if not _between(sigma, *NOISE):
        return f"a noise multiplier must lie between {NOISE[0]:g} and {NOISE[1]:g}"
    if not (_between(q, 0, 1) or q == 1 and not isinstance(q, bool)):
        return "a sampling probability must lie above 0 and not above 1"
    if not _whole(steps, 1) or not _whole(executed, 0) or executed > steps:
        return "steps must be whole, and no more executed than reserved"
    known = {"gaussian": q == 1, "poisson_gaussian": q < 1, BANDED: True}
    if not known.get(str(event.get("mechanism")), False):
        return "its mechanism does not fit its sampling probability"
    if not _whole(event.get("dataset_size"), 1) or event["dataset_size"] != num_images:
        return "its data set has another size than the public facts say"
    if event["mechanism"] == BANDED:
        return _wrong_bands(event)
    return "it has bands, and its mechanism has none" if {"bands", "first_step"} & set(event) else None


def _between(value: Any, low: float, high: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low < value < high


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST_COUNTED


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
    if not {"pld", "rdp", accountant} <= set(stated):
        yield "The receipt does not claim epsilon by the accountants that its version claims it by."
        return
    numbers = isinstance(orders, list) and all(_between(order, 1, LARGEST_ORDER + 1) for order in orders)
    if "rdp" in stated and not (numbers and 0 < len(orders) <= MOST_ORDERS):
        yield f"RDP's orders must be from 1 to {MOST_ORDERS} numbers above 1, and none above {LARGEST_ORDER}."
        return
    slack = slack_of(receipt, counted(receipt["events"]), interval)
    computed = {"pld": epsilon(receipt, interval=interval)}
    if "rdp" in stated:
        computed["rdp"] = epsilon(receipt, orders=orders)
    for name, value in computed.items():
        found = f"The events cost epsilon {value:.8g} by {name.upper()}"
        yield from _compare(found, value, stated[name], interval, slack)
    # PRV needs Opacus. It is an estimate, so that no claim by it may lie below PLD's bound.
    if "prv" in stated and stated["prv"] < computed["pld"] - slack:
        yield f"The receipt claims {stated['prv']:.8g} by PRV, less than PLD's {computed['pld']:.8g}."
    if main > target + EXACT:
        yield f"The claimed epsilon {main:.8g} exceeds the receipt's own target {target:.8g}."
    yield from _check_dataset(receipt)


def _compare(found: str, computed: float, claim: float, interval: float, slack: float) -> Iterator[str]:
    if not computed - slack <= claim:
        yield f"{found}, but the receipt claims {claim:.8g}."
    elif claim > computed + max(TOLERANCE, 10 * interval):
        harmless = "a larger claim weakens no guarantee, but one of the two was edited"
        yield f"{found}, but the receipt claims {claim:.8g}: {harmless}."


def slack_of(receipt: dict[str, Any], events: list[dict[str, Any]], interval: float) -> float:
    """How far below the computed epsilon a claim may lie; of events as they are counted, at PLD's interval.

    Raises:
        `ValueError`: PLD would take too long, or more memory than there is, or no ledger has such an interval.
    """
    if interval > 1.001 * max(TOLERANCE / 10, rough_epsilon(receipt["delta"], events) / GRID):
        raise ValueError(f"PLD's interval {interval:.3g} is coarser than any ledger's")
    refuse_dear(events, interval)
    return _slack(receipt, interval)


def rough_epsilon(delta: float, events: list[dict[str, Any]]) -> float:
    """Epsilon by RDP at few orders, as a scale. Raises `ValueError` where it is no guarantee."""
    rough = _rough(events, delta)
    if not rough <= MOST_BY_RDP:
        raise ValueError(f"RDP bounds it by {rough:.3g}, and above {MOST_BY_RDP} it is no guarantee")
    return rough


def refuse_dear(events: list[dict[str, Any]], interval: float) -> None:
    """Raises `ValueError` where PLD would take too long, or more memory than there is."""
    widest = 2 * _rough(events, 1e-15)
    if not _work(events, widest, interval) < MOST_WORK:
        raise ValueError(f"it takes too much computing at PLD's interval {interval:.3g}")


def _rough(events: list[dict[str, Any]], delta: float) -> float:
    """Epsilon by RDP at few orders, as a scale."""
    rough = epsilon({"delta": delta, "events": events})
    return rough if rough <= MOST_EPSILON else scale(((*kind, n) for kind, n in _kinds(events).items()), delta)


def scale(questions: Iterable[tuple[float, float, int]], delta: float) -> float:
    """Epsilon by Renyi divergences of orders near 1, as a scale of PLD's grid and never as a claim: dp_accounting has
    no fractional orders where noise is little.

    Args:
        questions (iterable): Noise multiplier, sampling probability and steps of each Poisson-sampled Gaussian.
        delta (`float`): delta, in (0, 1).
    """
    import numpy as np
    from scipy.special import logsumexp

    orders = np.array(LOW_ORDERS)[:, None]
    divergences = np.zeros(len(LOW_ORDERS))
    for sigma, q, steps in questions:
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
    versions = receipt.get("versions")
    theirs = versions.get("dp_accounting") if isinstance(versions, dict) else None
    try:
        return ascii(theirs)[:40], ascii(version("dp_accounting"))
    except PackageNotFoundError:
        return ascii(theirs)[:40], "an unknown one"


def _work(events: list[dict[str, Any]], widest: float, interval: float) -> float:
    """What PLD costs, measured with dp_accounting 0.6: the grid of each kind of event, and the convolution of all."""
    work, most = 0.0, 0.0
    for sigma, _ in _kinds(events):
        points = (20 / sigma + 1 / sigma**2) / interval  # losses within ten standard deviations
        most = max(most, points)
        work += 15_000 + 2 * points
    return work + len(_kinds(events)) * (widest / interval + 4 * most) / 16


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
    together = {"delta": receipt["delta"], "events": counted_together(receipt)}
    slack = slack_of(receipt, together["events"], interval)
    computed = epsilon(together, interval=interval)
    yield from _compare(f"All releases together cost epsilon {computed:.8g}", computed, claim, interval, slack)
    yield from _check_promises(receipt, dataset, target)
    if target is not None and claim > target + EXACT:
        yield f"Epsilon of all releases, {claim:.8g}, exceeds the data set's own bound {target:.8g}."
    yield from _check_bounds(dataset.get("bounds"), together, interval, computed)


def _check_promises(receipt: dict[str, Any], dataset: dict[str, Any], target: Any) -> Iterator[str]:
    """The bound that is named is the smallest of those that hold at the release's delta, and the release has a
    name."""
    if not _is_text(dataset.get("release_id")) or not isinstance(dataset.get("bounds"), list):
        yield "The receipt does not name its release of the data set, or the bounds that were promised."
        return
    here = [bound["target_epsilon"] for bound in dataset["bounds"]
            if isinstance(bound, dict) and _between(bound.get("delta"), 0, 1) and bound["delta"] <= receipt["delta"]
            and _between(bound.get("target_epsilon"), 0, LARGEST_CLAIM)]  # fmt: skip
    if target != min(here, default=None):
        yield "The data set's own bound is not the smallest of those that were promised."


def counted_together(receipt: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of all releases, each release counted by itself."""
    releases = [receipt, *receipt.get("prior_releases", [])]
    return [event for release in releases for event in counted(release["events"])]


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
        if not cost <= target + EXACT:
            where = f"at delta {bound['delta']:.4g}"
            yield f"All releases together cost epsilon {cost:.6g} {where}, over the data set's bound {target:.6g}."


def epsilon(
    receipt: dict[str, Any], *, interval: float | None = None, orders: Sequence[float] = QUICK_ORDERS
) -> float:
    """What the receipt's events, of one release or as they are counted, cost together, by PLD at this interval or else
    by RDP; every reserved step counts, executed or not."""
    import dp_accounting as dp  # it brings scipy, a second or two that a reader of words need not wait for
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant, compute_epsilon

    adjacency = dp.NeighboringRelation.REPLACE_SPECIAL
    accountant: Any = RdpAccountant(orders, adjacency) if interval is None else PLDAccountant(adjacency, interval)
    # In the ledger's order, for sums of floats depend on it.
    for (sigma, q), steps in sorted(_kinds(counted(receipt["events"])).items()):
        question: dp.DpEvent = dp.GaussianDpEvent(sigma)
        if q < 1:
            question = dp.PoissonSampledDpEvent(q, question)
        accountant.compose(question, steps)
    if interval is not None:
        return epsilon_by_pld(accountant, receipt["delta"])
    # At 0 and below there is only rounding, from which dp_accounting would conclude that epsilon is 0.
    values = [value if value > 0 else math.inf for value in accountant.rdp]
    return float(compute_epsilon(orders, values, receipt["delta"])[0])


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
    """Whether the card says `guarantee`, however its lines are broken, and no other epsilon in such words. It lies
    outside the hashes, and may say more besides."""
    try:
        card = _content(Path(folder, CARD_NAME)).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return False
    words, said = " ".join(guarantee(receipt).split()), " ".join(card.split())
    return words in said and set(PAIR.findall(said)) <= set(PAIR.findall(words))


def _printable(text: str) -> str:
    """A stranger's words on one line: letters of any script as they are, what steers a terminal or turns text around
    as its code."""
    return "".join(
        letter if letter.isprintable() and letter != "\\" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _kinds(events: list[dict[str, Any]]) -> dict[tuple[Any, ...], int]:
    """Steps of equal questions together: the cost does not depend on how they were reserved."""
    kinds: dict[tuple[Any, ...], int] = {}
    for event in events:
        parts = (event.get("noise_multiplier"), event.get("sampling_probability"))
        kind = tuple(part if isinstance(part, (int, float)) else None for part in parts)
        steps = event.get("steps_reserved")
        kinds[kind] = kinds.get(kind, 0) + (steps if isinstance(steps, int) else 0)
    return kinds


def consistency(folder: str | Path) -> str:
    """What can be said of a release without a mismatch, where nobody looked at a signature."""
    signed = os.path.lexists(Path(folder, SIGNATURE_NAME))
    return f"numbers consistent, {'signature not checked' if signed else 'unsigned'}"


def notes(receipt: dict[str, Any]) -> Iterator[str]:
    """By which rule a receipt was found consistent, and what is known of the code beside it."""
    grids = [receipt["claimed_epsilon"]["pld"], *filter(None, [receipt.get("dataset")])]
    slack = max(_slack(receipt, grid["value_discretization_interval"]) for grid in grids)
    theirs, here = _versions(receipt)
    if theirs == here:
        yield f"No claim lies more than {slack:.2g} below what the events cost."
    else:
        yield f"Consistent within {slack:.2g}: dp_accounting {theirs} computed the claims, and {here} is here."
    yield from (f"KNOWN FAULT: {fault}" for fault in known_faults(receipt))
    yield from _about_others(receipt)
    if "derived_from" in receipt:
        parent = receipt["derived_from"][:16]
        yield f"Computed from the release with receipt {parent}... alone, by its word: both cost this epsilon once."
    for file in receipt["files"]:
        if file["name"].endswith(".py"):
            known = "known code, published by diffusers_dp" if file["sha256"] == PIPELINE else UNKNOWN_CODE
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


CheckSignature = Callable[[dict[str, Any]], tuple[bool, str]]


def report(folder: str | Path, check_signature: CheckSignature | None = None, base: str | Path | None = None) -> int:
    """Prints what was found, and returns the exit code: 0, 2 or 4, whatever lies in the folder.

    Args:
        folder (`str` or `Path`): The release.
        check_signature (function, *optional*): Function of the receipt: whether it is signed, and a sentence.
        base (`str` or `Path`, *optional*): Folder of the base, where the release is adapters of one.
    """
    try:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may lack a stranger's letters
        code = _report(folder, check_signature, base)
        print(end="", flush=True)
        return code
    except ImportError as error:
        sentence, code = f"{error.name} is not installed: pip install dp-accounting.", 2
    except Exception as error:  # the last resort: nothing here spends budget, and nothing was found consistent
        if hasattr(error, "exit_code"):  # of who checks signatures
            raise
        sentence, code = f"the folder could not be checked: {type(error).__name__}.", 4
    try:
        print(f"error: {sentence}", file=sys.stderr)
        print(end="", flush=True)
    except OSError:  # nobody reads, and the interpreter shall not try again
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


def _report(folder: str | Path, check_signature: CheckSignature | None, base: str | Path | None) -> int:
    try:
        receipt, problems = verify(folder)
        reference = base_of(folder)
        if base is not None:
            problems += ["The release names no base."] if reference is None else check_base(base, reference)
    except Unreadable as error:
        print(f"error: {_printable(str(error))}", file=sys.stderr)
        return error.exit_code
    fits, vouched = True, ""
    if check_signature is not None and not problems:
        fits, vouched = check_signature(receipt)
    if not fits:
        problems.append(vouched)
    if problems:
        print("does NOT match:", *(f"- {_printable(problem)}" for problem in problems), sep="\n")
        return 4
    claim = receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"]
    unit = receipt.get("unit_of_privacy", "record")
    found = "numbers consistent" if vouched else consistency(folder)
    found = f"{found}: epsilon {claim:.4f} at delta {receipt['delta']:.4g} for one {unit}."
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
    if vouched:
        print(_printable(vouched))
    elif os.path.lexists(Path(folder, SIGNATURE_NAME)):
        print("NOTE: signed, not checked: give `diffusers-dp verify` your own copy of the signer's key with --signer.")
    return 4 if any(known_faults(receipt)) else 0


if __name__ == "__main__":
    asked = {"-h", "--help"} & set(sys.argv[1:])
    if asked or not 2 <= len(sys.argv) <= 3:
        print("usage: python verify.py FOLDER [BASE]", file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else 2)
    sys.exit(report(sys.argv[1], base=sys.argv[2] if len(sys.argv) == 3 else None))
