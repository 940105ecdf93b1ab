# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The dossier as a page: no script, nothing from the network, made to be printed."""

import re
from typing import Any

from ..files.templates import render
from .charts import BoundChart, advantage, bound_chart, one_gaussian, percent, success
from .evidence import ATTACKS
from .texts import texts


FLOOR = 1e-3  # of the scale of the advantage


def dossier_page(found: dict[str, Any], *, annex: bool = False) -> str:
    """Renders the contents of a dossier, or of its annex for the house alone. Names and receipts come from strangers,
    so the template escapes all of them."""
    from markupsafe import Markup, escape

    def code(text: str) -> str:
        return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))

    return render(
        "dossier.html", filters={"percent": percent, "code": code}, found=found, annex=annex, attacks=ATTACKS,
        charts=[] if annex else _charts(found), terms=texts()["terms"].items(),
    )  # fmt: skip


def _charts(found: dict[str, Any]) -> list[BoundChart]:
    parameters = found["parameters"]
    reference = one_gaussian(parameters["delta"])
    drawn = []
    for row in found["attacker"]["bounds"]:
        alpha = row["without_release"]
        bound, floor = (success(alpha), alpha) if alpha else (advantage, FLOOR)
        title = row["name"][0].upper() + row["name"][1:]
        drawn.append(bound_chart(title, bound, floor, reference, (parameters["epsilon"], row["at_most"])))
    return drawn
