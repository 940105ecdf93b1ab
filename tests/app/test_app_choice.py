# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the page recommends for declared facts: the words of `diffusers-dp recommend`, asked of Gradio's real app."""

import html
import re
import time

import pytest

from diffusers_dp import cli
from diffusers_dp.app import choice
from diffusers_dp.app.choice import measured_picture, measured_tables, recommended
from diffusers_dp.errors import UsageError
from diffusers_dp.methods.leaderboard import Place


FACTS = (1500, 64, "colour", 2, 5, 20)


@pytest.fixture(scope="module")
def ask():
    """Presses the button with these values; what the page then shows, in words."""
    pytest.importorskip("gradio", reason="Gradio is not installed")
    from diffusers_dp.app.page import build_page
    from diffusers_dp.app.shelf import Shelf
    from diffusers_dp.commands.app import Limits

    page = build_page(Shelf([], Limits()))
    (pressed,) = (each for each in page.fns.values() if each.api_name == "recommend")

    def press(*values):
        taken = [block.preprocess(value) for block, value in zip(pressed.inputs, values, strict=True)]
        return html.unescape(re.sub(r"<[^>]+>", "", pressed.fn(*taken)))

    return press


def test_the_page_says_what_the_command_says(ask, capsys):
    cli.main("recommend --num_train_images 1500 --resolution 64 --num_channels 3 --num_classes 2 --target_epsilon 5"
             " --minutes 20".split())  # fmt: skip
    said = capsys.readouterr().out.rstrip("\n")
    assert ask(*FACTS) == said and "diffusers-dp train" in said
    cli.main("recommend --num_train_images 900 --resolution 28 --num_channels 1 --num_classes 1".split())
    assert ask(900, 28, "grey", 1, 10, 0) == capsys.readouterr().out.rstrip("\n"), "any number of minutes"


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, None, "The number of images has to be a number from 1 to"), (0, 0, "number of images"),
        (0, 1e12, "number of images"), (1, 1.5e9, "side"), (1, "64", "side"), (3, 10**6, "number of classes"),
        (3, [2], "number of classes"), (4, 0, "epsilon"), (4, float("nan"), "epsilon"), (5, -1, "minutes"),
        (3, 900, "hopeless"), (0, 1, "less than one for each"), (5, 0.001, "raise --minutes"),
    ],
)  # fmt: skip
def test_facts_that_cannot_be_are_one_sentence(place, value, words):
    facts = [*FACTS[:place], value, *FACTS[place + 1 :]]
    if words in ("hopeless", "raise --minutes"):
        assert words in recommended(*facts)
        return
    with pytest.raises(UsageError, match=words) as refusal:
        recommended(*facts)
    assert "\n" not in str(refusal.value)


def test_the_sentence_is_on_the_page(ask):
    assert ask(1, 64, "grey", 2, 5, 20).startswith("--num_train_images declares 1 for 2 classes")
    assert ask(None, 64, "grey", 2, 5, 20).startswith("The number of images has to be a number")


def test_nobody_waits_long_for_the_largest_facts():
    start = time.process_time()
    with pytest.raises(UsageError):
        recommended(100_000_000, 28, "grey", 1_000, 10, 0)
    assert time.process_time() - start < 20


def test_the_leaderboard_is_shown_as_a_picture_and_tables(monkeypatch):
    tables = dict(measured_tables())
    assert list(tables)[:2] == ["MNIST", "CIFAR-10"]
    assert all("\n|---|" in table or "No row" in table for table in tables.values())
    pytest.importorskip("gradio", reason="Gradio is not installed")
    from diffusers_dp.app import page
    from diffusers_dp.app.shelf import Shelf
    from diffusers_dp.commands.app import Limits

    places = [Place("Moments", "moments", "mnist", 10.0, 95.5, 0.1, 5, 0.6, "proven")]
    for measured, words in ((places, ['aria-label="Leaderboard"', "data:image/png"]), ([], ["Nothing is measured"])):
        measured_picture.cache_clear()
        monkeypatch.setattr(choice, "read_leaderboard", lambda measured=measured: measured)
        built = page.build_page(Shelf([], Limits()))
        (shown,) = (each for each in built.fns.values() if each.name == "_leaderboard")
        assert [event for _, event in shown.targets] == ["select"]
        assert all(word in shown.fn() for word in words)
    measured_picture.cache_clear()
