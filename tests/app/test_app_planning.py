# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the page plans for declared facts: words of `diffusers-dp plan`, asked of Gradio's real app."""

import html
import re

import pytest

from diffusers_dp import cli


FACTS = (1500, 64, "colour", 2, 5, 20)


@pytest.fixture(scope="module")
def ask():
    """Presses the button with these values; what the page then shows, in words."""
    pytest.importorskip("gradio", reason="Gradio is not installed")
    from diffusers_dp.app.page import build_page
    from diffusers_dp.app.shelf import Shelf
    from diffusers_dp.commands.app import Limits

    page = build_page(Shelf([], Limits()))
    (pressed,) = (each for each in page.fns.values() if each.api_name == "plan")

    def press(*values):
        taken = [block.preprocess(value) for block, value in zip(pressed.inputs, values, strict=True)]
        shown = pressed.fn(*taken)
        return html.unescape(re.sub(r"<[^>]+>", "", shown)).rstrip()

    return press


def test_the_page_says_what_the_command_says(ask, capsys):
    cli.main("plan --num_train_images 1500 --resolution 64 --num_channels 3 --num_classes 2 --target_epsilon 5"
             " --minutes 20".split())  # fmt: skip
    said = capsys.readouterr().out.rstrip("\n")
    assert ask(*FACTS) == said and "diffusers-dp train" in said
    cli.main("plan --num_train_images 900 --resolution 28 --num_channels 1".split())
    assert ask(900, 28, "grey", 1, 10, 0) == capsys.readouterr().out.rstrip("\n"), "any number of minutes"
