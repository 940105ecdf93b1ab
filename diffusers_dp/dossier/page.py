# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The dossier as a page: no script, nothing from the network, made to be printed."""

import re
from html import unescape
from typing import Any

from .charts import BoundChart, advantage, draw, one_gaussian, percent, success
from .evidence import ATTACKS
from .texts import explained


FLOOR = 1e-3  # of the scale of the advantage


def dossier_page(found: dict[str, Any], *, annex: bool = False) -> str:
    """Renders the contents of a dossier, or of its annex for the house alone. Names and receipts come from strangers,
    so the template escapes all of them."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape

    environment = Environment(
        loader=PackageLoader("diffusers_dp"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["percent"] = percent
    environment.filters["code"] = lambda text: Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
    template = environment.get_template("dossier.html")
    values = {"found": found, "annex": annex, "attacks": ATTACKS, "charts": [] if annex else _charts(found)}
    page = template.render(terms=[], **values)
    words = unescape(re.sub(r"<[^>]+>", " ", page[page.index("<body") :]))
    return template.render(terms=explained(words), **values)


def _charts(found: dict[str, Any]) -> list[BoundChart]:
    parameters = found["parameters"]
    reference = one_gaussian(parameters["delta"])
    drawn = []
    for row in found["attacker"]["bounds"]:
        alpha = row["without_release"]
        bound, floor = (success(alpha), alpha) if alpha else (advantage, FLOOR)
        title = row["name"][0].upper() + row["name"][1:]
        drawn.append(draw(title, bound, floor, reference, (parameters["epsilon"], row["at_most"])))
    return drawn
