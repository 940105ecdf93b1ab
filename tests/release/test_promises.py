# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Words on cards, on the page and in the docs promise no more than the numbers do."""

from types import SimpleNamespace

import pytest

from diffusers_dp.release.receipt import build_receipt
from support.places import ROOT
from support.receipts import RNG, make_ledger
from support.releases import make_release


PUBLIC = {"kind": "public images", "name": "a", "licence": "not stated"}
BASE = {"kind": "latent pipeline", "name": "b", "licence": "not stated", "files_sha256": "a" * 64}
UNKNOWN = {**BASE, "saw_training_images": "unknown"}
STATED = {**BASE, "saw_training_images": "no, as the trainer states"}
PRICED = {
    "kind": "release of diffusers_dp", "name": "c", "epsilon": 1.0, "delta": 1e-5, "receipt_sha256": "b" * 64,
}  # fmt: skip
#: What is on no card and no page: a promise that nothing proves.
TOO_MUCH = ("photograph of anything", "None of those is among them", "an image of the training set")


def assumptions(*inputs):
    record = SimpleNamespace(
        ledger=make_ledger(), method=SimpleNamespace(status="proven", title="A", paper="", note=""), curriculum=None,
        resumes=(), leaky_outputs=(), evaluation=(), public_inputs=list(inputs), processes=(1,), derived_from=None,
    )  # fmt: skip
    return [text for text in build_receipt(record, files=[], rng=RNG)["assumptions"] if "public_inputs" in text]


@pytest.mark.parametrize(
    ("inputs", "made_without", "unknown", "priced"),
    [
        ([], 0, 0, 0), ([PUBLIC], 1, 0, 0), ([STATED], 1, 0, 0), ([UNKNOWN], 0, 1, 0), ([UNKNOWN, PUBLIC], 1, 1, 0),
        ([PRICED], 0, 0, 1), ([{**UNKNOWN, **PRICED}], 0, 1, 1), ([PRICED, UNKNOWN, PUBLIC], 1, 1, 1),
    ],
)  # fmt: skip
def test_nothing_is_said_to_be_made_without_the_images_that_may_have_seen_them(inputs, made_without, unknown, priced):
    said = assumptions(*inputs)
    assert [sum(word in text for text in said) for word in (
        "made without the sensitive images", "is not known", "an epsilon of its own",
    )] == [made_without, unknown, priced]  # fmt: skip
    if made_without and unknown + priced:
        assert said[-1].startswith("What else is listed under `public_inputs` was public")


def words(text):
    return " ".join(text.split())


@pytest.mark.parametrize("inputs", [[], [PUBLIC]])
def test_what_else_the_model_was_computed_from_is_on_its_card(inputs, tmp_path):
    card = words((make_release(tmp_path, public_inputs=inputs) / "README.md").read_text())
    began = "Everything else was computed from these noisy answers and from what training began with"
    assert (began in card) is bool(inputs) and "Everything else was computed from these noisy answers" in card
    assert not any(promise in card for promise in TOO_MUCH)


def test_docs_promise_what_the_proof_does():
    """The README's first words; delta, which `--allow_large_delta` lets be large."""
    readme = words((ROOT / "README.md").read_text())
    assert not any(promise in readme for promise in (*TOO_MUCH, "almost the same"))
    for name in ("guides/own_images.md", "tutorial.md"):
        page = words((ROOT / "docs" / name).read_text())
        assert "stays below one in the number" not in page and "--allow_large_delta" in page
