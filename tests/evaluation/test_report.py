# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The report: every number with its protocol, a page that needs nothing else, and no word from outside taken for
markup."""

import gc
import json
import stat
import warnings
from html.parser import HTMLParser

import numpy as np
import pytest

from diffusers_dp.evaluation import figures
from diffusers_dp.evaluation.images import ImageSet
from diffusers_dp.evaluation.measurement import OF_HALVES, WITH_DP, Measurement
from diffusers_dp.evaluation.page import report_page
from diffusers_dp.evaluation.pictures import build_charts, build_samples
from diffusers_dp.evaluation.report import Evaluation, class_rates, release_facts, write_report
from diffusers_dp.evaluation.summary import number, summary


NAMES = ("<script>alert(1)</script>", "$x^2$ & \"quoted\" 'twice'", "_ordinary_")
COUNTS = [[8, 2, 0], [1, 9, 0], [0, 0, 0]]
VOID = {"meta", "img", "br", "path", "use", "rect", "link", "image", "stop"}


class Reader(HTMLParser):
    """Every tag is closed; collects tags, addresses and words."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.addresses, self.words, self.alt = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.alt += [value for name, value in attrs if tag == "img" and name == "alt"]
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)


def read(page):
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def test_names_in_any_script_are_text_in_the_charts():
    names = ("日本", "한국", "<b>")
    gc.collect()  # what other tests left open warns now, and is not taken for a warning of the charts
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg, again = (figures.draw_confusion(COUNTS, names) for _ in range(2))
    words = read(svg).words
    assert {"日本", "한국", "<b>", "taken for"} <= set(words) and "<b>" not in svg
    assert "font-family" not in svg or "sans-serif" in svg
    assert "url(" not in svg.replace("url(#", "") and "@import" not in svg and svg == again


@pytest.fixture
def evaluation():
    rng = np.random.default_rng(0)
    images = ImageSet(
        rng.integers(0, 256, (20, 3, 8, 8), dtype=np.uint8), np.arange(20) % 2, NAMES, {"dataset": "<b>"}
    )
    fidelity = {"extractor": "pixels", "seed": 0}
    public, trained = {**fidelity, "public_origin": {}}, {"trained_on": "synthetic", "unit": "%"}
    return Evaluation(
        True,
        {"seed": 0},
        {"synthetic": images, "real training": images},
        None,
        [
            Measurement("Fréchet distance (pixels)", 3.25, fidelity, analysis="fid"),
            Measurement(
                "Fréchet distance (pixels) of class <i>", 4.0, {**fidelity, "class": NAMES[0]}, analysis="class_fid"
            ),
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
            Measurement("share taken for private images (pixels)", 0.75, public, 0.02, "public_images"),
            Measurement("accuracy of the domain discriminator (pixels)", 0.9, public, analysis="public_images"),
        ],
        {"cnn": COUNTS},
        ["No synthetic image was generated of: <img src=x onerror=alert(2)>."],
    )


@pytest.fixture
def page(evaluation):
    evaluation.embedding = np.random.default_rng(0).normal(size=(40, 2)), 20, "pixels"
    return report_page(evaluation, build_charts(evaluation), build_samples(evaluation), [])


def test_the_page_needs_nothing_else(page):
    reader = read(page)
    assert not {"script", "link", "iframe", "object", "form", "base"} & set(reader.tags)
    assert reader.tags.count("svg") == 5 and reader.tags.count("img") == 2
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in reader.addresses)
    assert all(reader.alt) and "default-src 'none'" in page and "url(http" not in page and "@import" not in page


def test_names_from_outside_are_words(page):
    reader = read(page)
    words = "".join(reader.words)
    assert NAMES[0] in words and NAMES[1] in words and "onerror=alert(2)" in words
    assert "<img src=x" not in page and "<script" not in page and "<b>" not in page


def test_the_page_says_that_it_is_private(evaluation, page):
    assert page.count("PRIVATE") == 2 and "Read private data: <strong>yes</strong>" in page
    evaluation.read_private_data = False
    page = report_page(evaluation, [], [], [])
    assert "PRIVATE" not in page and "declared public" in page and "Read private data: <strong>no</strong>" in page


def test_the_json_has_everything(evaluation, page, tmp_path):
    write_report(evaluation, page, tmp_path / "private" / "evaluation")
    found = json.loads((tmp_path / "private" / "evaluation" / "report.json").read_text())
    assert found["marking"].startswith("PRIVATE") and found["read private data"] == "yes"
    assert [each["value"] for each in found["measurements"]] == [3.25, 4.0, 50.0, 85.0, 60.0, 84.0, 0.75, 0.9]
    assert found["measurements"][0]["protocol"] == {"extractor": "pixels", "seed": 0}
    assert found["image_sets"]["synthetic"]["images_per_class"] == [10, 10, 0]
    assert found["confusion"]["cnn"]["per_class"][0] == {
        "class": NAMES[0], "real_test_images": 10, "accuracy": 0.8, "precision": 8 / 9,
    }  # fmt: skip
    assert str(tmp_path) not in page + json.dumps(found)
    assert stat.S_IMODE((tmp_path / "private" / "evaluation").stat().st_mode) == 0o700


def test_a_number_that_is_none_is_not_written(evaluation, tmp_path):
    evaluation.measurements.append(Measurement("FID", float("nan"), analysis="fid"))
    with pytest.raises(ValueError):
        write_report(evaluation, "", tmp_path / "evaluation")
    assert not list(tmp_path.rglob("*.*"))


def test_class_rates():
    rates = class_rates(COUNTS, NAMES)
    assert [row["accuracy"] for row in rates] == [0.8, 0.9, None]
    assert [row["precision"] for row in rates] == [8 / 9, 9 / 11, None]


def test_numbers_as_they_are_read():
    assert number(93.125, "%") == "93.1 %" and number(None) == "–"
    assert number(3.14159) == "3.142" and number(12345.6) == "12,346"


def test_many_classes_are_drawn(evaluation):
    names = tuple(f"class {i}" for i in range(100))
    counts = np.eye(100, dtype=int).tolist()
    assert figures.draw_confusion(counts, names) and figures.draw_class_rates(class_rates(counts, names))


def test_a_picture_is_the_same_twice():
    points = np.random.default_rng(0).normal(size=(10, 2))
    assert figures.draw_embedding(points, 5) == figures.draw_embedding(points, 5)


def test_release_facts(release, tmp_path):
    facts = release_facts(release)
    assert 0 < facts["epsilon"] <= 10 and facts["delta"] == 1e-5 and len(facts["receipt_sha256"]) == 64
    assert release_facts(tmp_path) is None


def test_numbers_that_were_paid_for_are_on_the_page(evaluation):
    paid = [Measurement("accuracy", 0.875, {"class": NAMES[0], "tested_on": "the training images"}, 0.01).as_json()]
    facts = {
        "epsilon": 1.0, "delta": 1e-5, "accountant": "pld", "status": "proven_with_assumptions", "method": "DPDM",
        "unit_of_privacy": "image", "receipt_sha256": "0" * 64, "paid_for": paid,
    }  # fmt: skip
    evaluation.release = facts
    words = " ".join(read(report_page(evaluation, [], [], [])).words)
    assert "paid for and covered by the guarantee" in words and "0.875" in words and NAMES[0] in words
    facts["paid_for"] = []
    assert "paid for" not in report_page(evaluation, [], [], [])


def test_what_a_reader_wants_to_know_first():
    images = ImageSet(np.arange(32, dtype=np.uint8).reshape(2, 1, 4, 4) * 8, np.array([0, 1]), ("cat", "dog"))
    evaluation = Evaluation(False, {}, {"synthetic": images})
    assert summary(evaluation) == []
    protocol = {"tested_on": "real", "unit": "%", "num_train": 5}
    evaluation.measurements = [
        Measurement("accuracy", value, {**protocol, "classifier": name, "trained_on": trained_on})
        for name, trained_on, value in (
            ("logreg", "synthetic", 70.0), ("cnn", "synthetic", 80.0), ("cnn", "real", 99.0),
            ("dp_cnn", WITH_DP, 90.0),
        )
    ]  # fmt: skip
    evaluation.measurements.append(
        Measurement("accuracy", 100.0, {**protocol, "classifier": "cnn", "trained_on": "synthetic", "class": "dog"})
    )
    evaluation.confusion = {"cnn": [[6, 4], [0, 10]]}
    verdict, first, *others = summary(evaluation)
    # (80 - 50) / (99 - 50), because half of the test images are of one class.
    assert (
        verdict.startswith("Verdict: fair for training a classifier. Synthetic images teach 61.2 % ")
        and "guessing has 50.0 %" in verdict
    )
    assert "(cnn) takes 80.0 %" in first
    assert [line.rpartition(": ")[2] for line in others] == ["99.0 %.", "90.0 %.", "60.0 %."] and "cat" in others[-1]
    evaluation.confusion = {"cnn": [[10, 0], [0, 0]]}
    assert summary(evaluation)[0].startswith("No verdict, because the real images teach no more than guessing")


def test_likeness_is_said_apart_and_nothing_of_images_that_show_nothing():
    images = np.random.default_rng(0).integers(0, 256, (20, 1, 4, 4), dtype=np.uint8)
    measured = Measurement("Fréchet distance (pixels)", 12.5, {OF_HALVES: 3.25})
    for dark in (0, 17, 19, 20):
        shown = images // np.where(np.arange(20) < dark, 17, 1)[:, None, None, None].astype(np.uint8)
        for name in ("synthetic", "real training", "real test"):
            evaluation = Evaluation(False, {}, {"synthetic": ImageSet(images), name: ImageSet(shown)})
            evaluation.measurements = [measured]
            (said,) = summary(evaluation)
            if dark < 19:
                assert (
                    said.startswith("Likeness: Fréchet distance (pixels) 12.5 ") and "3.25 between two halves" in said
                )
            else:
                assert said.startswith(f"No verdict, because {5 * dark:.1f} % of the {name} images are nearly of one")
