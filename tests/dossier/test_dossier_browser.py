# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The dossier in a real Chromium: on a desk, on a phone, and printed."""

import re

import pytest

from diffusers_dp import cli
from support.page_visits import CONTRAST, PHONE


@pytest.fixture(scope="module")
def address(honest, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dossier")
    cli.main(["dossier", str(honest), "--output_dir", str(folder)])
    return (folder / "dossier/dossier.html").as_uri()


@pytest.mark.parametrize(
    "screen", [{"viewport": {"width": 1280, "height": 900}}, PHONE, {"viewport": {"width": 320, "height": 640}}],
    ids=["desk", "phone", "small"],
)  # fmt: skip
def test_everything_can_be_read_and_nothing_is_fetched(chromium, address, screen):
    context = chromium.new_context(**screen)
    page, asked, complaints = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(address)
    assert [url for url in asked if url != address] == [] and complaints == []
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1"), "it scrolls sideways"
    context.close()


def test_it_prints_on_pages_of_paper(chromium, address):
    page = chromium.new_page()
    page.goto(address)
    pages = len(re.findall(rb"/Type\s*/Page\b", page.pdf(prefer_css_page_size=True)))
    assert 5 <= pages <= 14
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1")
    page.close()
