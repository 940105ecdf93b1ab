# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a visitor sees at once, on a desk and on a phone, by day and in the dark; and that all of it can be read."""

import re

import pytest

from support.page_visits import CONTRAST, PHONE, axe_source


DESK = {"viewport": {"width": 1280, "height": 900}}
SMALL = {**PHONE, "viewport": {"width": 320, "height": 640}}
SCREENS = {
    "desk": DESK, "desk in the dark": {**DESK, "color_scheme": "dark"},
    "phone": PHONE, "phone in the dark": {**PHONE, "color_scheme": "dark"},
}  # fmt: skip
TABS = ("Draw", "Compare", "How private?", "Leaderboard")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


def box(page, selector):
    return page.page.query_selector(selector).bounding_box()


@pytest.mark.parametrize("screen", [DESK, PHONE], ids=["desk", "phone"])
def test_images_and_draw_are_seen_at_once(visit, screen):
    """Beside a gallery of two releases, and below the guarantee."""
    page = visit(**screen)
    page.page.wait_for_selector("#result .dp-samples img")
    page.page.wait_for_function("document.querySelectorAll('#gallery img').length == 2")
    page.page.wait_for_selector("#draw:not([disabled])")
    height, draw, images = screen["viewport"]["height"], box(page, "#draw"), box(page, "#result .dp-samples img")
    assert draw["y"] + draw["height"] <= height and min(images["y"] + images["height"], height) - images["y"] >= 100
    badge = box(page, "#guarantee .dp-badge")
    assert badge["y"] < draw["y"] < images["y"]
    assert "from the top: 0, 1, 2, 3" in page.text("#result")


@pytest.mark.parametrize("name", SCREENS)
def test_everything_can_be_read(visit, name):
    page = visit(**SCREENS[name])
    for summary in page.page.query_selector_all("#guarantee summary"):
        summary.click()
    page.draw(16)
    page.page.click("#save-zip")
    page.page.wait_for_selector("#saved a")
    axe = axe_source()
    for tab in TABS:
        page.page.get_by_role("tab", name=tab).click()
        page.page.wait_for_timeout(300)  # colours move
        assert page.page.evaluate(CONTRAST) == [], tab
        assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1"), "it scrolls sideways"
        if axe is not None:
            page.page.evaluate("code => { if (!window.axe) (0, eval)(code); }", axe)
            found = page.page.evaluate(
                "rules => axe.run(document, {runOnly: {type: 'tag', values: rules}})", RULES
            )  # fmt: skip
            assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found["violations"]] == []
    ground = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == ("dark" in name)


@pytest.mark.skipif(axe_source() is None, reason="axe-core is not installed: pip install axe-core-python")
def test_axe_core_is_part_of_the_test_above(visit):
    """It finds what it should: a picture without words."""
    page = visit()
    page.page.evaluate("code => { (0, eval)(code); document.body.append(new Image()); }", axe_source())
    found = page.page.evaluate("rules => axe.run(document, {runOnly: {type: 'tag', values: rules}})", RULES)
    assert "image-alt" in [one["id"] for one in found["violations"]]


@pytest.mark.parametrize("screen", [PHONE, SMALL], ids=["390", "320"])
def test_every_tab_is_reached_on_a_phone(visit, screen):
    """Gradio hides tabs that do not fit."""
    page = visit(**screen)
    page.page.get_by_role("tab", name="Leaderboard").tap()
    page.page.get_by_role("tab", name="How private?").tap()
    page.page.wait_for_selector("text=What epsilon says.")


def test_the_leaderboard_breaks_no_word_and_scrolls_inside_the_page(visit):
    page = visit(viewport={"width": 420, "height": 844})
    page.page.get_by_role("tab", name="Leaderboard").click()
    cell = page.page.wait_for_selector(".dp-measured td >> visible=true")
    line = page.page.evaluate("cell => parseFloat(getComputedStyle(cell).lineHeight)", cell)
    assert cell.bounding_box()["height"] < 2.5 * line
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 420


def test_the_list_of_models_closes_on_tab(visit):
    page = visit()
    page.page.click("#model input")
    page.page.wait_for_selector("#model [role=option]")
    page.page.keyboard.press("Tab")
    page.page.wait_for_function("!document.querySelector('#model [role=option]')")
    assert page.page.get_attribute("#model input", "aria-expanded") == "false"
    assert page.page.evaluate("!document.activeElement.closest('#model')")


def test_a_card_of_the_gallery_chooses_its_model(visit):
    page = visit()
    card = '#gallery [data-name="three/release"]'
    assert "epsilon" in page.page.wait_for_selector(card).inner_text()
    page.page.click(card)
    page.page.wait_for_function("document.querySelector('#result').innerText.includes('class 2')")
    assert page.page.input_value("#model input") == "three/release"
    page.page.wait_for_selector(f"{card}[aria-pressed=true]")
    page.choose("model", "digits/release")
    page.page.wait_for_selector(f"{card}[aria-pressed=false]")


def test_nothing_of_one_model_is_saved_once_another_is_chosen(visit):
    """Neither what was saved before stays, nor is saved what is packed when the other is chosen already."""
    page = visit()
    page.draw(16)
    page.save("#save-zip")
    assert page.text("#saved").startswith("digits-seed0-images.zip")
    page.choose("model", "three/release")
    page.page.wait_for_selector("#saved a", state="detached")
    page.page.wait_for_selector("#draw:not([disabled])")

    page.draw(16)
    page.page.evaluate(
        "window.saved = [];"
        "HTMLAnchorElement.prototype.click = function () { if (this.download) saved.push(this.download); }"
    )
    held, gate = [], ["closed"]
    page.page.route("**/queue/join*", lambda route: held.append(route) if gate else route.continue_())
    page.page.click("#save-zip")
    page.page.wait_for_timeout(300)
    page.choose("model", "digits/release")
    gate.clear()
    for request in held:
        request.continue_()
    page.page.wait_for_selector("#draw:not([disabled])")
    page.page.wait_for_timeout(1000)
    assert page.page.evaluate("window.saved") == [] and page.page.query_selector("#saved a") is None
