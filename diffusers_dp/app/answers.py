# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the page answers. Every error is a sentence on the page."""

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import gradio as gr

from ..errors import DiffusersDPError, UsageError
from ..release.loading import AnyRelease
from ..runs.plan_picture import picture_of
from . import views
from .downloads import archive_name, dataset_zip, images_zip
from .drawing import Drawn, read_order
from .planning import planned
from .shelf import Shelf


PACKED = {"images": images_zip, "dataset": dataset_zip}


@contextmanager
def told() -> Iterator[None]:
    """Shows an error on the page until the visitor closes it."""
    try:
        yield
    except DiffusersDPError as error:
        raise gr.Error(escape(str(error)), duration=None, print_exception=False) from None


class Answers:
    """Answers of a page that shows the models of a shelf.

    Args:
        shelf (`Shelf`): The models.
    """

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def chosen(self, request: gr.Request) -> str:
        """Name of the model that the page's address asks for; defaults to the first."""
        return str(request.query_params.get("model") or next(iter(self.shelf.names), ""))

    def open(self, request: gr.Request) -> tuple[Any, ...]:
        """Name, guarantee and samples; updates of classes, steps and solver; and of the three buttons."""
        name = self.chosen(request)
        try:
            released = self.shelf.opened(name)
        except DiffusersDPError as error:
            return name, views.error(str(error)), *(gr.skip() for _ in range(7))
        names = list(released.class_names or ())
        drawn, ready = gr.update(visible=not released.holds_images), gr.update(interactive=True)
        return (
            name, views.guarantee(released), views.samples(released),
            gr.update(choices=names, visible=bool(names)), drawn, drawn, *[ready] * 3,
        )  # fmt: skip

    def fetch(self, name: str) -> None:
        """Opens what a visitor typed. The page then goes to its address."""
        with told():
            self.shelf.open(name)

    def gallery(self, request: gr.Request) -> Iterator[str]:
        """Cards, one by one, because some may need a request to the Hub."""
        cards: list[AnyRelease | str] = []
        for name in self.shelf.names:
            try:
                cards.append(self.shelf.open(name))
            except DiffusersDPError:  # the page shows the message when the model is chosen
                cards.append(name)
            yield views.gallery(cards, self.chosen(request))

    def draw(self, name: str, *values: Any) -> Iterator[tuple[str, Drawn | None, str]]:
        """Images, what a visitor can save of them, and the link of what was saved before, which goes."""
        with told():
            released = self.shelf.open(name)
            for found in self.shelf.draw(released, read_order(released, values, self.shelf.limits)):
                yield views.drawing(found), found if isinstance(found, Drawn) else None, ""


@told()
def save(kind: str, drawn: Drawn | None) -> str:
    """A link to an archive of drawn images: of the `images`, or a `dataset`."""
    if drawn is None:
        raise UsageError("Draw images first: then they can be saved.")
    return views.saved(PACKED[kind](drawn), archive_name(drawn, kind))


@told()
def plan(*values: Any) -> str:
    text, found = planned(*values)
    if found is None:
        return views.text(text)
    words = f"Total epsilon {found.epsilon:.4g}; the table has the numbers."
    return views.text(text) + views.picture(picture_of(found), words)
