# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The page in a real Chromium, on a release that is trained here: pick, draw, save, compare, read, and what goes
wrong."""

import io
import re
import urllib.error
import urllib.request
import zipfile

import datasets
import numpy as np
import pytest
from PIL import Image

from support.places import ROOT


def test_the_guarantee_comes_first_then_images_that_can_be_saved(visit, tmp_path):
    page = visit()
    assert "Numbers consistent, unsigned" in page.text("#guarantee") and "moderate" in page.text("#guarantee")
    assert page.page.query_selector("#result .dp-grid") is None
    guarantee, result = (page.page.query_selector(name).bounding_box()["y"] for name in ("#guarantee", "#result"))
    assert guarantee < result
    page.choose("classes", "3", "7")
    page.number("count", 5)
    page.number("steps", 4)
    images = page.draw(5)
    assert {image.shape for image in images} == {(8, 8)} and "3\n7\n3\n7\n3" in re.sub(
        r"\n\s*", "\n", page.text("#result")
    )

    name, content = page.save("#result .dp-grid figure:nth-child(2) a")
    assert name == "0-0001-7.png" and np.array_equal(np.asarray(Image.open(io.BytesIO(content))), images[1])
    name, content = page.save("#save-zip")
    archive = zipfile.ZipFile(io.BytesIO(content))
    assert name == "digits-seed0-images.zip" and len(archive.namelist()) == 6
    name, content = page.save("#save-dataset")
    assert name == "digits-seed0-dataset.zip"
    zipfile.ZipFile(io.BytesIO(content)).extractall(tmp_path / "set")
    table = datasets.load_dataset(str(tmp_path / "set"), split="train", cache_dir=str(tmp_path / "cache"))
    assert table["label"] == [3, 7, 3, 7, 3] and np.array_equal(np.asarray(table[0]["image"]), images[0])


def test_what_was_said_of_one_model_never_stands_under_the_name_of_another(visit):
    """Not while the other is checked, and not where its answer comes after a third was chosen."""
    page = visit()
    page.page.get_by_role("tab", name="Compare").click()
    page.page.wait_for_selector("#compare:not([disabled])")
    page.page.get_by_role("tab", name="Draw").click()
    held, gate = [], ["closed"]
    page.page.route("**/queue/join*", lambda route: held.append(route) if gate else route.continue_())
    page.page.evaluate(
        """() => { window.seen = []; const box = document.querySelector("#guarantee");
        const watch = {subtree: true, childList: true, characterData: true};
        new MutationObserver(() => window.seen.push(box.innerText)).observe(box, watch); }"""
    )
    page.choose("model", "tampered/release")
    page.page.wait_for_function("document.querySelector('#guarantee').innerText.includes('Checking')")
    for button in ("draw", "save-zip", "save-dataset", "compare"):
        page.page.wait_for_selector(f"#{button}[disabled]", state="attached")
    page.choose("model", "three/release")
    gate.clear()
    for request in held:
        request.continue_()
    page.page.wait_for_function("document.querySelector('#guarantee').innerText.includes('Numbers consistent')")
    page.page.wait_for_selector("#draw:not([disabled])")
    assert not any("samples.png" in text for text in page.page.evaluate("window.seen"))


def test_no_files_are_served_or_taken(address):
    """Of the server itself: whatever a visitor sends."""
    for path in (
        "/etc/passwd",
        str(ROOT / "app.py"),
        "digits/private/ledger.jsonl",
        "digits/release/privacy_receipt.json",
    ):
        for route in (f"/gradio_api/file={path}", f"/file={path}"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(address + route)
            assert refused.value.code in (403, 404)
    line = b"--x\r\n"
    body = (
        line + b'Content-Disposition: form-data; name="files"; filename="a"\r\n\r\n' + b"0" * 5000 + b"\r\n--x--\r\n"
    )
    request = urllib.request.Request(
        f"{address}/gradio_api/upload", body, {"Content-Type": "multipart/form-data; boundary=x"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 404  # there is no such route
