# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The dossier as a page: no script, nothing from the network, made to be printed."""

import re
from html import unescape
from typing import Any

from .charts import BoundChart, advantage, draw, one_gaussian, percent, success
from .evidence import ATTACKS
from .terms import explained


FLOOR = 1e-3  # of the scale of the advantage


def dossier_page(found: dict[str, Any]) -> str:
    """Renders the contents. Names and receipts come from strangers, so the template escapes all of them."""
    page = _render("dossier.html", found=found, charts=_charts(found))
    return page.replace(TERMS_HERE, _render("dossier_terms.html", terms=explained(_text(page))))


def annex_page(found: dict[str, Any]) -> str:
    """Renders what was measured on private images, for the house alone."""
    page = _render("dossier_annex.html", found=found, attacks=ATTACKS)
    return page.replace(TERMS_HERE, _render("dossier_terms.html", terms=explained(_text(page))))


TERMS_HERE = "<!-- terms -->"


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


def _text(page: str) -> str:
    """The words of a page, without its style."""
    body = page[page.index("<body") :]
    return unescape(re.sub(r"<[^>]+>", " ", body))


def _code(text: str) -> str:
    """Shows what stands between back ticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _render(name: str, **values: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("diffusers_dp"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["percent"] = percent
    environment.filters["code"] = _code
    return str(environment.get_template(name).render(**values))
