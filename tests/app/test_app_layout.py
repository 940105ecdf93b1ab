# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a visitor sees at once, on a phone by day and on a desk in the dark; and that all of it can be read."""

import re

import pytest

from support.page_visits import CONTRAST, PHONE


DESK = {"viewport": {"width": 1280, "height": 900}}
SCREENS = {"desk in the dark": {**DESK, "color_scheme": "dark"}, "phone": PHONE}
TABS = ("Draw", "How private?")


@pytest.mark.parametrize("name", SCREENS)
def test_everything_can_be_read(visit, name):
    page = visit(**SCREENS[name])
    for summary in page.page.query_selector_all("#guarantee summary"):
        summary.click()
    page.draw(16)
    page.page.click("#save-zip")
    page.page.wait_for_selector("#saved a")
    for tab in TABS:
        page.page.get_by_role("tab", name=tab).click()
        page.page.wait_for_timeout(300)  # colours move
        assert page.page.evaluate(CONTRAST) == [], tab
        assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1"), "it scrolls sideways"
    ground = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == ("dark" in name)
