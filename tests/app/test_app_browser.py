# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The page in a real Chromium, on a release that is trained here: pick, draw, save, read, and what goes
wrong."""

import io
import json
import re
import urllib.error
import urllib.request
import zipfile

import datasets
import numpy as np
import pytest
from PIL import Image

from support.places import ROOT


@pytest.mark.slow  # a minute each
def test_the_guarantee_comes_first_then_images_that_can_be_saved(visit, tmp_path):
    page = visit()
    assert "Numbers consistent" in page.text("#guarantee") and "moderate" in page.text("#guarantee")
    assert page.page.query_selector("#result .dp-grid") is None and page.page.is_disabled("#save-zip")
    guarantee, result = (page.page.query_selector(name).bounding_box()["y"] for name in ("#guarantee", "#result"))
    assert guarantee < result
    page.choose("classes", "3", "7")
    page.number("count", 1000)
    page.page.click("#draw")
    page.page.wait_for_selector(".toast-body:has-text('at most 64 images at a time')")
    page.number("count", 5)
    page.page.click("text=Seed, steps and solver")
    page.number("steps", 4)
    images = page.draw(5)
    captions = [each.inner_text().split("\n") for each in page.page.query_selector_all("#result figcaption")]
    assert {image.shape for image in images} == {(8, 8)} and [each[0] for each in captions] == [
        "3",
        "7",
        "3",
        "7",
        "3",
    ]
    assert all(len(each) == 4 and re.fullmatch(r"\d: [1-9]\d?%", each[1]) for each in captions), "of the judge"

    name, content = page.save("#result .dp-grid figure:nth-child(2) a")
    assert name == "0-0001-7.png" and np.array_equal(np.asarray(Image.open(io.BytesIO(content))), images[1])
    name, content = page.save("#save-zip")
    archive = zipfile.ZipFile(io.BytesIO(content))
    assert name == "digits-seed0-images.zip" and len(archive.namelist()) == 6
    name, content = page.save("#save-set")
    assert name == "digits-seed0-dataset.zip"
    zipfile.ZipFile(io.BytesIO(content)).extractall(tmp_path / "set")
    table = datasets.load_dataset(str(tmp_path / "set"), split="train", cache_dir=str(tmp_path / "cache"))
    assert table["label"] == [3, 7, 3, 7, 3] and len(table[0]["label_probabilities"]) == 10
    assert np.array_equal(np.asarray(table[0]["image"]), images[0])


@pytest.mark.slow  # a minute each
def test_a_page_is_of_one_model_and_who_leaves_a_drawing_frees_it_for_others(visit, address):
    """A card is a link; what was typed is opened, or refused, before the page leaves the model that it shows."""
    page, other = visit(), visit()
    for each in (page, other):
        each.page.click("text=Seed, steps and solver")
        each.number("steps", 50)
    page.number("count", 64)
    page.page.click("#draw")
    page.page.wait_for_selector("#result progress")
    page.page.click("#gallery a:has-text('three/release')")
    other.number("count", 64)
    for _ in range(2):  # a step that comes late does not hide that it stopped, nor is the next click lost
        other.page.click("#draw:not([disabled])")
        other.page.wait_for_selector("#result progress")
        other.page.click("#stop")
        other.page.wait_for_selector("#result :text('Stopped.')")
    page.page.wait_for_selector("#guarantee h2:has-text('three/release')")
    page.draw(16)
    assert "class 2" in page.text("#result")
    page.type("tampered/release")
    page.page.wait_for_selector(".toast-body:has-text('samples.png')")
    assert "three/release" in page.text("#guarantee")
    page.type("digits/../digits/release")
    page.page.wait_for_selector("#guarantee h2:has-text('digits/../digits/release')")
    page.page.goto(f"{address}/?model=tampered/release")
    page.page.wait_for_selector("#guarantee :text('is not open here yet')")
    assert page.page.is_disabled("#draw")


def test_a_wrong_value_is_refused_in_a_sentence_and_without_a_traceback(address):
    """Of the page's API; `address` looks for tracebacks when the server ends."""
    draw, plan = ["digits/release", [], 2, 0, 2, "dpm"], [900, 28, "grey", 1, 10, 0]
    wrong = [(draw, 0, "a" * 5000, "5,000 letters"), (draw, 0, None, "Choose a release"), (draw, 1, ["a"], "no class"),
             (draw, 1, "a", "a list of names"), (draw, 2, 1000, "at most 64 images"), (draw, 2, "2", "a whole number"),
             (draw, 3, -1, "The seed"), (draw, 4, True, "The number of steps"), (draw, 5, "<b>", "one of dpm, heun"),
             (plan, 0, 1.5, "a whole number"), (plan, 2, ["grey"], "one of grey, colour"), (plan, 4, 0, "Epsilon"),
             (plan, 5, "", "minutes")]  # fmt: skip
    for right, place, value, words in wrong:
        body = json.dumps({"data": [*right[:place], value, *right[place + 1 :]]}).encode()
        path = f"{address}/gradio_api/call/{'draw' if right is draw else 'plan'}"
        request = urllib.request.Request(path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as asked:
            event = json.load(asked)["event_id"]
        with urllib.request.urlopen(f"{path}/{event}") as answer:
            last = answer.read().decode().rsplit("event: ", 1)[1]  # others are heartbeats
        assert last.startswith("error") and words in json.loads(last.split("data: ")[1])["error"]


def test_the_server_stands_behind_its_doors(address):
    """Whatever the environment allows Gradio to serve."""
    for path in ("/etc/passwd", str(ROOT / "app.py"), "digits/release/privacy_receipt.json"):
        for route in (f"/gradio_api/file={path}", f"/file={path}"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(address + route)
            assert refused.value.code == 404
