# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Pages and cards from `templates/`."""

import base64
from functools import cache
from typing import Any


def render(name: str, *, escape: bool = True, filters: dict[str, Any] | None = None, **values: Any) -> str:
    """Renders a template of the package. What comes from outside is a value, never a template.

    Args:
        name (`str`): File in `templates/`.
        escape (`bool`): Whether values are escaped for HTML.
        filters (`dict`, *optional*): Functions that the template applies to values, by name.
        values: Values by their names in the template.

    Raises:
        jinja2.TemplateError: The template needs a value that is not there.
    """
    environment = _environment(escape)
    environment.filters.update(filters or {})
    return str(environment.get_template(name).render(values))


@cache
def _environment(escape: bool) -> Any:
    """It keeps compiled templates: to compile those of a card takes a tenth of a second."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("diffusers_dp"), autoescape=escape, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip


def data_uri(content: bytes, kind: str) -> str:
    """A file as the address of itself, for a page that asks no server; `kind` is its type, such as `image/png`."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
