# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Files that a user names and a stranger may have written: read as they stand, or refused in one sentence."""

import json
import os
import socket
from pathlib import Path

import pytest

from diffusers_dp.dossier.evidence import read_audit, read_evaluation
from diffusers_dp.dossier.form import read_context
from diffusers_dp.errors import UsageError
from diffusers_dp.files.untrusted_values import parse_yaml, read_json_file
from diffusers_dp.methods.config import chosen_method


DIGEST = "0" * 64
REFUSED = {  # contents, by what a context is refused for
    "anchor, alias or tag": [
        "a: &a [x]\nb: *a", "&a purpose: *a", "<<: *a", "purpose: !!str x", "purpose: !mine x",
        "!!python/object/apply:os.system ['true']",
        "a: &a [x, x]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(99)),
    ],
    "twice": ["purpose: x\npurpose: y", "purpose: x\n'purpose': y"],
    "not UTF-8": [b"purpose: \xe9", "purpose: x".encode("utf-16"), b"purpose: \xed\xa0\x80"],
    "not YAML": [
        "purpose: a\0b", "purpose: a: b", "purpose: [x", "purpose: x\n---\npurpose: y", 'purpose: "\\UFFFFFFFF"',
        "%YAML 9.9\n---\npurpose: x", "purpose: x\n\ty: z",
    ],
    "control characters": ['purpose: "\\0"', 'purpose: "\\ud800"', 'purpose: "\\e[31m"', '"purp\\0se": x'],
    "nested too deeply": ["[" * 99_999, "{a: " * 20_000, "- " * 9_000, "? " * 9_000],
    "more than 200,000 bytes": ["purpose: " + "x" * 200_000],
    "a name is no text": ["[a]: x", "{a: b}: x"],
    "purpose: ...": ["- purpose", "hello", "17"],
    "is no question": ["<<: {purpose: x}", "=: x", "1: x", "~: x", "2001-01-01: x", "x" * 900 + ": y", '"a\\nb": x'],
    "must be a text": ["purpose: [x]", "purpose: {x: y}", "purpose: " + "x" * 5001],
}  # fmt: skip
AS_THEY_STAND = [
    "0x10", "190:20:30", "1:30.5", "010", "0b101", "1_0", "9" * 4999, "1.0e+999", ".nan", "-.inf", "2027-01-31",
    "2027-13-45", "2001-12-14t21:59:43.10-05:00", "yes", "=", "<<", "1e3", "a#b", "<!-- terms -->",
]  # fmt: skip


@pytest.fixture
def place(tmp_path):
    return tmp_path / "file"


@pytest.mark.parametrize(
    ("content", "words"), [(each, words) for words, contents in REFUSED.items() for each in contents],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_a_context_that_cannot_be_is_one_sentence(place, content, words):
    place.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match="--context") as refused:
        read_context(place)
    said = str(refused.value)
    assert words in said and str(place) in said and len(said) < 700 and said.isprintable()


@pytest.mark.parametrize("answer", AS_THEY_STAND, ids=lambda answer: answer[:20])
def test_an_answer_is_the_text_that_stands_there(place, answer):
    place.write_text(f"purpose: {answer}\nsigned:\nreview: ~\n", encoding="utf-8-sig")
    assert read_context(place) == {"purpose": answer}


def test_a_recipe_has_numbers_and_no_traps():
    text = "{a: 1, b: -1.5, c: 1.0e-3, d: yes, e: off, f: , g: 0x10, h: 010, i: 1:30, j: 2001-01-01, k: [1, x], l: <<}"
    found = {"a": 1, "b": -1.5, "c": 1e-3, "d": True, "e": False, "f": None, "g": "0x10", "h": "010", "i": "1:30"}
    assert parse_yaml(text) == found | {"j": "2001-01-01", "k": [1, "x"], "l": "<<"}


@pytest.mark.parametrize(
    "content",
    ["", "#", "{", "NaN", '{"a": Infinity}', '{"a": 1e999}', '{"a": 1, "a": 2}', '{"a": "\\ud800"}', '{"\\u0000": 1}',
     b'{"a": "\xe9"}', "[" * 99_999, "[" * 99 + "]" * 99, f"[{'9' * 999}]", f"[{'[],' * 200_000}[]]", "{} {}"],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_json_that_programs_read_in_different_ways_is_refused(place, content):
    place.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=r"^--audit .*file cannot be read \([a-zA-Z0-9 ,-]+\); look\.$"):
        read_json_file(place, f"--audit {place}", "look", most=2_000_000)


def evaluation():
    row = {"class": "one", "real_test_images": 10, "accuracy": 0.5, "precision": None}
    return {"release": {"receipt_sha256": DIGEST}, "confusion": {"cnn": {"per_class": [row]}}}


def audit():
    names = ("auc", "true_positive_rate_at_1_percent", "samples_nearer_to_a_member")
    measures = {name: {"value": 0.5, "low": 0.4, "high": 0.6} for name in names}
    return {"receipt_sha256": DIGEST, "conclusion": "none", "confidence": 0.99, **measures}


def altered(value):
    """Copies of nested values in which one value is gone, or is of another type or size."""
    for key in value if isinstance(value, dict) else range(len(value)):
        rest = {name: each for name, each in value.items() if name != key} if isinstance(value, dict) else []
        yield rest
        for other in (None, True, -1, 1e300, [], {}, [[]], "x" * 1001):
            yield {**rest, key: other} if isinstance(value, dict) else [other]
        if isinstance(value[key], dict | list):
            for inner in altered(value[key]):
                yield {**rest, key: inner} if isinstance(value, dict) else [inner]


@pytest.mark.parametrize(
    ("made", "read", "least"), [(evaluation, read_evaluation, 40), (audit, read_audit, 120)],
    ids=["evaluation", "audit"],
)  # fmt: skip
def test_results_with_anything_in_any_place_are_taken_or_refused(place, made, read, least):
    place.write_text(json.dumps(made()))
    assert read(place, "--result", DIGEST)
    refused = 0
    for content in (*altered(made()), {"receipt_sha256": DIGEST}, [], None, "x", 1):
        place.write_text(json.dumps(content))
        try:
            found = read(place, "--result", DIGEST)
            if made is evaluation:  # what is left out is no row, and what is there can be shown
                assert all(
                    0 <= row["accuracy"] <= 1 and row["images"] >= 0 for each in found[0] for row in each["rows"]
                )
        except UsageError as error:
            refused += 1
            assert str(error).startswith(f"--result {place} ")
    assert refused >= least


def no_end(kind, place):
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "link to a pipe":
        os.mkfifo(f"{place}_pipe")
        place.symlink_to(f"{place}_pipe")
    elif kind == "folder":
        place.mkdir()
    elif kind == "socket":
        os.chdir(place.parent)  # its whole path may be too long
        socket.socket(socket.AF_UNIX).bind(place.name)
    elif kind == "loop":
        place.symlink_to(place)
    elif kind == "sparse":
        place.touch()
        os.truncate(place, 10**11)
    return {"device": Path("/dev/zero"), "missing": place, "null": Path("a\0b"), "long": place / ("x" * 300)}.get(
        kind, place
    )


@pytest.mark.parametrize(
    "read",
    [
        read_context,
        lambda path: read_evaluation(path, "--evaluation", DIGEST),
        lambda path: chosen_method(["--config", str(path)]),
    ],
    ids=["context", "evaluation", "recipe"],
)
@pytest.mark.parametrize(
    "kind", ["pipe", "link to a pipe", "folder", "socket", "loop", "device", "missing", "null", "long", "sparse"]
)
def test_what_is_no_file_is_never_waited_for(place, monkeypatch, read, kind):
    monkeypatch.chdir(place.parent)
    path = no_end(kind, place)
    with pytest.raises(UsageError, match=r"^--\w+ .*(cannot be read|is neither a file)"):
        read(path)
