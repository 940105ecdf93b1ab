# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the page answers. Every error is a sentence on the page."""

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import gradio as gr

from ..errors import DiffusersDPError, UsageError
from ..release.loading import AnyRelease
from . import views
from .downloads import archive_name, dataset_zip, images_zip
from .drawing import Drawn, read_order
from .limits import SECONDS_KEPT
from .planning import planned
from .shelf import Shelf


PACKED = {"images": images_zip, "dataset": dataset_zip}


@contextmanager
def told() -> Iterator[None]:
    """Shows an error on the page for a while. It is shown as HTML, so what a stranger wrote in it is escaped."""
    try:
        yield
    except DiffusersDPError as error:
        raise gr.Error(escape(str(error), quote=False), duration=20, print_exception=False) from None


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
        """Name, guarantee and samples; updates of classes, of what only a model has, and of the buttons."""
        name = self.chosen(request)
        try:
            released = self.shelf.opened(name)
        except DiffusersDPError as error:
            return name, views.error(str(error)), *(gr.skip() for _ in range(7))
        names, has_images = list(released.class_names or ()), released.holds_images
        drawn = gr.update(visible=not has_images)
        return (
            name, views.guarantee(released), views.samples(released),
            gr.update(choices=names, visible=bool(names)), gr.update(label="Seed") if has_images else gr.skip(),
            drawn, drawn, gr.update(value="Show" if has_images else "Draw", interactive=True),
            gr.update(value="Save the whole data set") if has_images else gr.skip(),
        )  # fmt: skip

    def fetch(self, name: str) -> None:
        """Opens the release that a visitor typed. The page then goes to its address."""
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
        raise UsageError(f"There are no images to save: draw some; they are kept for {SECONDS_KEPT // 60} minutes.")
    return views.saved(PACKED[kind](drawn), archive_name(drawn, kind))


@told()
def plan(*values: Any) -> str:
    return views.text(planned(*values))
