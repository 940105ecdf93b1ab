# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""HTML of the page. Names and receipts come from strangers, so templates escape all of them."""

import math
import re
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

from jinja2 import TemplateError
from markupsafe import Markup

from ..files.templates import data_uri, render
from ..release.cards import UNSAYABLE
from ..release.loading import AnyRelease
from ..release.plain_words import (
    MODERATE,
    STRONG,
    attack_in_words,
    claimed,
    has_earlier,
    plain_guarantee,
    queries,
    short_number,
    strength_of,
)
from .downloads import file_names
from .drawing import SOLVERS, Drawn, Step
from .samples import samples_of


UNSAID = "The receipt holds what no receipt of this library does, and there are no words for it."
NAMES_SHOWN = 20  # class names below a picture


def error(sentence: str) -> str:
    return f'<p class="dp-error" role="alert">{escape(sentence)}</p>'


def note(sentence: str) -> str:
    return f'<p class="dp-faint" role="status">{escape(sentence)}</p>'


def breakable(words: str) -> Markup:
    """Escapes names and commands, which may then be broken after separators, and within no word, number or flag."""
    found = re.compile(r"(--\w+)|(?<=[/_])(?=\w)|(?<=,)(?=[^\W\d])")
    return Markup(found.sub(lambda m: f'<span class="dp-flag">{m[0]}</span>' if m[0] else "<wbr>", escape(words)))


def text(lines: str) -> str:
    """Renders what a command prints: columns, which it aligns by two spaces or more, become the cells of a table."""
    split = [re.split(r"(?<=\S)(?= {2,}\S)", line) for line in lines.split("\n")]
    groups = groupby(split, lambda cells: len(cells) > 1)
    return render("app_text.html", filters={"breakable": breakable}, groups=groups)


def saved(content: bytes, name: str) -> str:
    """Renders a link that saves a zip; the page follows it by itself."""
    return render("app_saved.html", uri=data_uri(content, "application/zip"), file=name, size=len(content))


def guarantee(released: AnyRelease) -> str:
    """Renders the scale, the badge, the words and the queries."""
    try:
        return _guarantee(released, released.receipt, released.problems)
    except (*UNSAYABLE, TemplateError):  # fields that no check reads can contain anything
        return _guarantee(released, {}, released.problems or (UNSAID,))


def _guarantee(released: AnyRelease, receipt: dict[str, Any], problems: tuple[str, ...]) -> str:
    what, words = "this data set" if released.holds_images else "this model", dict[str, Any]()
    if receipt:
        epsilon, strength = claimed(receipt), strength_of(receipt)
        words = {
            "epsilon": epsilon, "strength": strength, "position": position(epsilon, strength.word),
            "plain": plain_guarantee(receipt, what), "has_earlier": has_earlier(receipt),
            "rows": queries(receipt["events"]),
            # nothing is computed from a receipt that does not match
            "attack": "" if problems else attack_in_words(receipt, what),
        }  # fmt: skip
    shown = render(
        "app_guarantee.html", release=released.name, receipt=receipt, what=what, problems=problems,
        card_agrees=released.card_agrees,
        filters={"short": short_number, "breakable": breakable}, **words,
    )  # fmt: skip
    return shown.encode().decode()  # raises for lone surrogates, which cannot be sent


def position(epsilon: float, word: str) -> float:
    """Returns where epsilon is on the scale, as its decimal logarithm: at least in the word's part, because a large
    delta can make the word weaker."""
    begins = {"strong": 0.0, "moderate": STRONG, "weak": MODERATE}[word]
    return math.log10(max(epsilon, 1.02 * begins, 1e-9))


def samples(released: AnyRelease) -> str:
    """Renders the sample picture of a verified release, before any drawing."""
    content = None if released.problems else samples_of(released.folder)
    if content is None:
        return note("No images are shown yet.")
    what = "Some images of the data set" if released.holds_images else "Drawn when the model was released"
    names = released.class_names or ()
    shown = ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")
    words = f"{what}. A row for each class that has images, from the top: {shown}." if names else f"{what}."
    uri = data_uri(content, "image/png")
    return render("app_picture.html", uri=uri, words=f"Images of {released.name}", caption=words)


def gallery(found: Sequence[AnyRelease | str], chosen: str) -> str:
    """Renders a link to each release, and to each name that could not be opened."""
    cards = [(one, "", "not opened") if isinstance(one, str) else (one.name, *in_short(one)) for one in found]
    return render("app_gallery.html", filters={"breakable": breakable}, cards=cards, chosen=chosen)


def in_short(released: AnyRelease) -> tuple[str, str]:
    """Returns the guarantee as a word, and in a line."""
    if released.problems:
        return "weak", "does NOT match its receipt"
    try:
        word, unit = strength_of(released.receipt).word, released.receipt["unit_of_privacy"]
        return word, f"epsilon {short_number(claimed(released.receipt))}, {word}, per {unit}"
    except UNSAYABLE:
        return "weak", "no words for it"


def drawing(found: Drawn | Step) -> str:
    """Renders the images, or how far they are; a click on an image saves it."""
    if isinstance(found, Step):
        return render("app_drawing.html", step=found)
    order, released = found.drawing, found.released
    how = f"Drawn with seed {order.seed}, in {order.num_inference_steps} steps of {SOLVERS[order.solver]}."
    if released.holds_images:
        how = f"Images of the data set, mixed by seed {order.seed}."
    uris = (data_uri(image, "image/png") for image in found.images)
    if found.soft_labels is not None:
        how += " Below each image: what the judge of the release finds most probable."
    images = list(zip(uris, file_names(found), found.names, found.opinions, strict=True))
    return render("app_drawing.html", step=None, release=released.name, how=how, images=images)
