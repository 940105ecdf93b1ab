# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A visitor of the page in a real Chromium."""

import io
import shutil
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


BROWSERS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
WAIT = 240_000  # milliseconds; torch is loaded behind the page
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


def playwright_or_skip():
    if BROWSER is None:
        pytest.skip(f"no Chromium is installed: none of {', '.join(BROWSERS)}")
    return pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")


@pytest.fixture(scope="module")
def chromium():
    """For one module: as long as it is open, nothing else of this process may run a loop of asyncio."""
    with playwright_or_skip().sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


class Visit:
    """A visitor's page, with what it asked of other servers and what its console complained of."""

    def __init__(self, browser, address, **options):
        self.context = browser.new_context(reduced_motion="reduce", **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT)
        self.elsewhere, self.complaints = [], []
        self.page.on(
            "request",
            lambda request: (
                None if request.url.startswith((address, "data:", "blob:")) else self.elsewhere.append(request.url)
            ),
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(address)
        self.page.wait_for_selector("#guarantee .dp-badge")

    def choose(self, box, *texts):
        for text in texts:
            self.page.fill(f"#{box} input", text)
            self.page.keyboard.press("Enter")
        self.page.keyboard.press("Tab")

    def type(self, name):
        self.page.fill("#typed textarea", name)
        self.page.keyboard.press("Enter")

    def number(self, box, value):
        self.page.fill(f"#{box} input[type=number]", str(value))
        self.page.keyboard.press("Tab")

    def draw(self, count):
        self.page.click("#draw:not([disabled])")
        self.page.wait_for_function(f"document.querySelectorAll('#result .dp-grid img').length == {count}")
        return [
            read_uri(src)
            for src in self.page.eval_on_selector_all("#result .dp-grid img", "all => all.map(i => i.src)")
        ]

    def save(self, selector):
        with self.page.expect_download() as download:
            self.page.click(selector)
        return download.value.suggested_filename, Path(download.value.path()).read_bytes()

    def text(self, selector):
        return self.page.inner_text(selector)


def read_uri(uri):
    with urllib.request.urlopen(uri) as content:
        return np.asarray(Image.open(io.BytesIO(content.read())))


# Words that are broken within: their letters are on two lines.
BROKEN = """() => {
  const broken = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) for (const word of texts.currentNode.data.matchAll(/[\\p{L}\\d.]+/gu)) {
    if (!texts.currentNode.parentElement.checkVisibility({visibilityProperty: true})) continue;
    const range = document.createRange();
    range.setStart(texts.currentNode, word.index); range.setEnd(texts.currentNode, word.index + word[0].length);
    if (new Set([...range.getClientRects()].map((r) => r.top)).size > 1) broken.push(word[0]); }
  return broken; }"""

# What is wider than the page, or than the part of it that scrolls.
CUT_OFF = """() => [document.documentElement, ...document.querySelectorAll(".dp-scroll")]
  .filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => [e.tagName, e.innerText.slice(0, 40)])"""

# Words whose colour has less than 4.5 to 1 against what lies behind them (WCAG 2, AA); not of what is disabled.
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (css) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = css; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = (c) => c.slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => { for (let e = element; e; e = e.parentElement) {
    const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] > 250) return c; } return [255, 255, 255, 255]; };
  const words = (e) => [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data).join("").trim();
  const shown = (e) => e.checkVisibility({visibilityProperty: true}) && !e.closest("[disabled], [aria-disabled=true]");
  const typed = (e) => e.matches("input:not([type=radio], [type=checkbox], [type=range]), textarea") ? e.value : "";
  const found = [...document.body.querySelectorAll("*")].filter((e) => shown(e) && (words(e) || typed(e)))
    .map((e) => [e, getComputedStyle(e)[e.closest("svg") ? "fill" : "color"], words(e) || typed(e)]);
  const hints = [...document.querySelectorAll("input[placeholder], textarea[placeholder]")].filter(shown)
    .map((e) => [e, getComputedStyle(e, "::placeholder").color, e.placeholder]);
  return [...found, ...hints].map(([e, colour, text]) => {
      const [a, b] = [light(rgba(colour)), light(behind(e))].sort((x, y) => y - x);
      return [(a + 0.05) / (b + 0.05), text.slice(0, 40), e.tagName]; })
    .filter(([ratio]) => ratio < 4.5); }"""
