# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a visitor sees at once, on a phone by day and on a desk in the dark; and that all of it can be read."""

import re

import pytest

from support.page_visits import BROKEN, CONTRAST, CUT_OFF, PHONE


DESK = {"viewport": {"width": 1280, "height": 800}}
SCREENS = {"desk in the dark": {**DESK, "color_scheme": "dark"}, "phone": PHONE}
TABS = ("Releases", "How private?", "Plan a run")


@pytest.mark.slow
@pytest.mark.parametrize("name", SCREENS)
def test_everything_can_be_read(visit, name):
    page = visit(**SCREENS[name])
    for summary in page.page.query_selector_all("#guarantee summary"):
        summary.click()
    page.draw(16)
    page.page.click("#save-zip")
    page.page.wait_for_selector("#saved a")
    boxes = [page.page.query_selector(f"#{each}").bounding_box() for each in ("count", "draw", "stop", "result")]
    count, draw, stop, result = boxes
    assert draw["width"] > 3 * stop["width"] and draw["y"] < result["y"]
    assert count["y"] < draw["y"] or name != "phone"
    for tab in TABS:
        page.page.get_by_role("tab", name=tab).click()
        if tab == "Plan a run":
            page.page.click("#plan")
            page.page.wait_for_selector("#planned :text('Moments')")
        page.page.wait_for_timeout(300)  # colours move
        for fault in (CONTRAST, CUT_OFF, BROKEN):
            assert page.page.evaluate(fault) == [], tab
    ground = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == ("dark" in name)
