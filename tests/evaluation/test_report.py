# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The report: every number with its protocol, a page that needs nothing else, and no word from outside taken for
markup."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from diffusers_dp.evaluation.images import ImageSet
from diffusers_dp.evaluation.measurement import Measurement
from diffusers_dp.evaluation.report import Evaluation
from diffusers_dp.evaluation.report_page import report_page
from support.html_pages import Page


NAMES = ("<script>alert(1)</script>", "$x^2$ & \"quoted\" 'twice'", "_ordinary_")
COUNTS = [[8, 2, 0], [1, 9, 0], [0, 0, 0]]


@pytest.fixture
def evaluation():
    rng = np.random.default_rng(0)
    images = ImageSet(
        rng.integers(0, 256, (20, 3, 8, 8), dtype=np.uint8), np.arange(20) % 2, NAMES, {"dataset": "<b>"}
    )
    fidelity = {"extractor": "pixels", "seed": 0}
    trained = {"trained_on": "synthetic", "unit": "%"}
    return Evaluation(
        True,
        {"seed": 0},
        {"synthetic": images, "real training": images},
        None,
        [
            Measurement("Fréchet distance (pixels)", 3.25, fidelity, analysis="fid"),
            *(
                Measurement(
                    "accuracy",
                    value,
                    {"classifier": name, "num_train": size, "num_validation": 0, **trained},
                    error,
                    "classifiers",
                )  # fmt: skip
                for name, size, value, error in (
                    ("cnn", 2, 50.0, 1.0),
                    ("cnn", 20, 85.0, 1.0),
                    ("logreg", 2, 60.0, 1.0),
                    ("logreg", 20, 84.0, 1.0),
                )
            ),
        ],
        {"cnn": COUNTS},
        ["No synthetic image was generated of: <img src=x onerror=alert(2)>."],
    )


@pytest.fixture
def page(evaluation):
    return report_page(evaluation)


def test_the_page_needs_nothing_else(page):
    reader = Page(page)
    assert not {"script", "link", "iframe", "object", "form", "base"} & set(reader.tags)
    assert reader.tags.count("img") == 1 and "svg" not in reader.tags
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in reader.links)
    assert all(reader.images) and "default-src 'none'" in page and "url(http" not in page and "@import" not in page


def test_the_confusion_is_a_table_of_shares(evaluation, page):
    assert re.findall(r"--share: (\d+)%", page) == ["80", "20", "0", "10", "90", "0", "0", "0", "0"]
    assert page.count(">80%<") == page.count(">10%<") == 1 and ">0%<" not in page
    names = tuple(f"c{i}" for i in range(101))
    evaluation.image_sets = {"synthetic": replace(evaluation.image_sets["synthetic"], class_names=names)}
    evaluation.confusion = {"cnn": np.eye(101, dtype=int).tolist()}
    assert "--share:" not in report_page(evaluation), "larger ones are in the JSON alone"


def test_names_from_outside_are_words(page):
    reader = Page(page)
    words = "".join(reader.words)
    assert NAMES[0] in words and NAMES[1] in words and "onerror=alert(2)" in words
    assert "<img src=x" not in page and "<script" not in page and "<b>" not in page


def test_the_page_says_that_it_is_private(evaluation, page):
    assert page.count("PRIVATE") == 2 and "Read private data: <strong>yes</strong>" in page
    evaluation.read_private_data = False
    page = report_page(evaluation)
    assert "PRIVATE" not in page and "declared public" in page and "Read private data: <strong>no</strong>" in page


def test_the_json_has_everything(evaluation):
    found = json.loads(json.dumps(evaluation.as_json()))
    assert found["marking"].startswith("PRIVATE") and found["read private data"] == "yes"
    assert [each["value"] for each in found["measurements"]] == [3.25, 50.0, 85.0, 60.0, 84.0]
    assert found["measurements"][0]["protocol"] == {"extractor": "pixels", "seed": 0}
    assert found["image_sets"]["synthetic"]["images_per_class"] == [10, 10, 0]
    assert found["confusion"]["cnn"]["per_class"][0] == {
        "class": NAMES[0], "real_test_images": 10, "accuracy": 0.8, "precision": 8 / 9,
    }  # fmt: skip
