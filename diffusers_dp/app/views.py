# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""HTML of the page. Names and receipts come from strangers, so templates escape all of them."""

import base64
import math
from functools import cache
from html import escape
from typing import Any

from jinja2 import TemplateError

from ..release.dataset_card import UNSAYABLE
from ..release.loading import AnyRelease
from ..release.plain_words import (
    MODERATE,
    STRONG,
    Strength,
    attack_in_short,
    attack_in_words,
    claimed,
    plain_guarantee,
    questions,
    short_number,
    strength_of,
)
from ..verify import about_delta, consistency, publishes_records
from .downloads import file_name
from .drawing import Drawn, Preview, names_of
from .samples import samples_of, thumbnail_of


UNSAID = "The receipt holds what no receipt of this library does, and there are no words for it."
NAMES_SHOWN = 20  # class names below a picture
DIAL = (0.1, 100.0)  # ends of the logarithmic scale


@cache
def _template(name: str) -> Any:
    from jinja2 import Environment, PackageLoader

    return Environment(loader=PackageLoader("diffusers_dp"), autoescape=True, trim_blocks=True).get_template(name)


def data_uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def error(sentence: str) -> str:
    return f'<p class="dp-error" role="alert">{escape(sentence)}</p>'


def note(sentence: str) -> str:
    return f'<p class="dp-faint" role="status">{escape(sentence)}</p>'


def guarantee(released: AnyRelease) -> str:
    """Renders the dial, the badge, the words and the questions."""
    try:
        return _guarantee(released, released.receipt, released.problems)
    except (*UNSAYABLE, TemplateError):  # fields that no check reads can contain anything
        return _guarantee(released, {}, released.problems or (UNSAID,))


def _guarantee(released: AnyRelease, receipt: dict[str, Any], problems: tuple[str, ...]) -> str:
    words = _words(receipt) if receipt else {}
    if receipt and not problems:  # nothing is computed from a receipt that does not match
        words |= {"attack": attack_in_words(receipt), "short_attack": attack_in_short(receipt)}
    shown = _template("app_guarantee.html").render(
        name=released.name,
        receipt=receipt,
        problems=problems,
        card_agrees=released.card_agrees,
        consistency=consistency(released.folder).capitalize(),
        **words,
    )
    return str(shown.encode().decode())  # raises for lone surrogates, which cannot be sent


def _words(receipt: dict[str, Any]) -> dict[str, Any]:
    epsilon, words = claimed(receipt), strength_of(receipt)
    together = receipt.get("dataset") and receipt.get("prior_releases")
    return {
        "epsilon": short_number(epsilon),
        "delta": short_number(receipt["delta"]),
        "strength": words,
        "dial": dial(epsilon, words),
        "plain": plain_guarantee(receipt),
        "rows": questions(receipt["events"]),
        "size": receipt["events"][0]["dataset_size"],
        "together": short_number(receipt["dataset"]["epsilon_of_all_releases"]["pld"]) if together else None,
    }


def dial(epsilon: float, words: Strength) -> dict[str, Any]:
    """Computes a half circle of three arcs, from the left (little is learned), in pixels of a 220 x 132 drawing.

    The needle points to epsilon or, if delta makes the word weaker, to the start of the word's arc.
    """
    bounds = (DIAL[0], STRONG, MODERATE, DIAL[1])
    names = ("strong", "moderate", "weak")
    arcs = [
        {"word": word, "path": _arc(_turn(low) + 0.008, _turn(high) - 0.008)}
        for word, low, high in zip(names, bounds, bounds[1:], strict=False)
    ]
    marks = []
    for value in bounds:
        x, y = _point(_turn(value), 101)
        marks.append({"x": round(x, 1), "y": round(y + 4, 1), "text": f"{value:g}"})
    tip = _point(_turn(max(epsilon, bounds[names.index(words.word)])), 66)
    return {"arcs": arcs, "marks": marks, "tip": [round(tip[0], 1), round(tip[1], 1)]}


def _turn(epsilon: float) -> float:
    """Returns the position on the half circle, in [0, 1]."""
    low, high = (math.log(end) for end in DIAL)
    return min(max((math.log(max(epsilon, 1e-9)) - low) / (high - low), 0.0), 1.0)


def _point(turn: float, radius: float) -> tuple[float, float]:
    angle = math.pi * (1 - turn)
    return 110 + radius * math.cos(angle), 110 - radius * math.sin(angle)


def _arc(start: float, end: float, radius: float = 82) -> str:
    (x, y), (to_x, to_y) = _point(start, radius), _point(end, radius)
    return f"M {x:.1f} {y:.1f} A {radius} {radius} 0 0 1 {to_x:.1f} {to_y:.1f}"


def samples(released: AnyRelease) -> str:
    """Renders the sample picture of a verified release, before any drawing."""
    picture = None if released.problems else samples_of(released.folder)
    if picture is None:
        return note("Nothing is drawn yet.")
    what = "Some of the released images" if released.holds_images else "Drawn when the model was released"
    names = released.class_names or ()
    shown = ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")
    words = f"{what}. A row for each class, from the top: {shown}." if names else f"{what}."
    return (
        f'<figure class="dp-samples"><img src="{data_uri(picture, "image/png")}" '
        f'alt="Images of {escape(released.name)}"><figcaption class="dp-faint">{escape(words)}</figcaption></figure>'
    )


def gallery(found: list[AnyRelease | str]) -> str:
    """Renders a card for each release, and for each name that could not be opened."""
    return str(_template("app_gallery.html").render(cards=[_card(one) for one in found]))


def _card(found: AnyRelease | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"name": found, "fact": "not opened"}
    if found.problems:
        return {"name": found.name, "fact": "does NOT match", "word": "weak"}
    picture = samples_of(found.folder)
    try:
        word = strength_of(found.receipt).word
        facts = {"word": word, "fact": f"epsilon {short_number(claimed(found.receipt))}, {word}"}
    except UNSAYABLE:
        facts = {"word": "weak", "fact": "no words for it"}
    return {"name": found.name, "uri": picture and data_uri(thumbnail_of(picture), "image/png"), **facts}


def preview(found: Preview) -> str:
    """Renders all images of an unfinished drawing."""
    return (
        f'<div class="dp-preview" role="status"><label>Denoising, step {found.done} of {found.total} '
        f'<progress max="{found.total}" value="{found.done}"></progress></label>'
        f'<img src="{data_uri(found.sheet, "image/png")}" alt="The images, still noisy"></div>'
    )


def images(drawn: Drawn, title: str = "", facts: str = "") -> str:
    """Renders the grid; a click on an image saves it."""
    order = drawn.order
    shown = [
        {"uri": data_uri(image, "image/png"), "file": file_name(drawn, i), "label": label}
        for i, (image, label) in enumerate(zip(drawn.images, names_of(drawn), strict=True))
    ]
    how = f"Seed {order.seed}, {order.steps} step{'s' if order.steps != 1 else ''} of {order.solver}."
    if drawn.released.holds_images:
        how = f"Released images, in the order of seed {order.seed}; nothing is drawn."
    line = f"{how} Choose an image to save it."
    return str(
        _template("app_images.html").render(
            images=shown, name=drawn.released.name, title=title, facts=facts, line=line
        )
    )


def side_by_side(columns: list[str]) -> str:
    """Renders two drawings, finished or not."""
    return f'<div class="dp-pair">{"".join(f"<div>{column}</div>" for column in columns)}</div>'


def short_guarantee(released: AnyRelease) -> str:
    """Renders the guarantee in one line, for a comparison."""
    if released.problems:
        return "Does NOT match its receipt: do not take it for private."
    try:
        receipt = released.receipt
        epsilon, unit = short_number(claimed(receipt)), receipt["unit_of_privacy"]
        found = f"epsilon {epsilon} ({strength_of(receipt).word}), per {unit}; {consistency(released.folder)}"
        outright = publishes_records(*about_delta(receipt))
        return f"{found}. {outright}" if outright else found
    except UNSAYABLE:
        return UNSAID


def saved(content: bytes, name: str, kind: str, model: str) -> str:
    """Renders a link that saves a file; the page follows it automatically while this model is chosen."""
    size = f"{len(content) / 1000:,.0f} kB" if len(content) < 1e6 else f"{len(content) / 1e6:,.1f} MB"
    return (
        f'<p role="status"><a class="dp-saved" data-model="{escape(model)}" download="{escape(name)}" '
        f'href="{data_uri(content, kind)}">{escape(name)}</a> '
        f"({size}) goes to your downloads.</p>"
    )


def picture(
    content: bytes, words: str, table: str = "", title: str = "", label: str = "Budget picture", kind: str = "png"
) -> str:
    """
    Renders a picture with a text alternative.

    Args:
        content (`bytes`), kind (`str`): The file, and its format. A PNG is a drawing, which the dark theme inverts.
        words (`str`): The text alternative.
        table (`str`): Lines below the picture.
        title (`str`): Caption above it.
        label (`str`): Name of the region, which scrolls.
    """
    caption = f"<figcaption>{escape(title)}</figcaption>" if title else ""
    below = text(table) if table else ""
    return (
        f'<figure class="dp-picture dp-{kind}">{caption}'
        '<div class="dp-scroll" tabindex="0" role="region" aria-label="'
        f'{escape(label)}">'
        f'<img src="{data_uri(content, f"image/{kind}")}" alt="{escape(words)}"></div></figure>{below}'
    )


def text(lines: str) -> str:
    """Renders aligned lines, which scroll where they are longer than the page is wide."""
    return f'<pre class="dp-scroll" tabindex="0">{escape(lines)}</pre>'
