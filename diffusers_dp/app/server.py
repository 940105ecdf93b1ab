# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Serves the page, only on this machine unless it is a Space or `--server_name` is given. torch is loaded in the
background."""

import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..commands.app import HERE, NAMES_VARIABLE, PageFlags
from ..errors import DiffusersDPError, UsageError, install
from ..files.templates import render
from ..release.loading import release_in
from .limits import SESSIONS_KEPT
from .shelf import Shelf


LARGEST_UPLOAD = "1kb"  # the page accepts no files


def run(flags: PageFlags) -> None:
    """Serves until interrupted, and loads the first visitor's model in the background.

    Raises:
        UsageError: The page cannot start.
    """
    logging.getLogger("absl").setLevel(logging.ERROR)  # dp_accounting warns about RDP orders that it skips
    try:
        import gradio  # noqa: F401
    except ImportError:
        raise UsageError(f"The page needs Gradio: {install('app')}.") from None
    from .page import build_page, theme

    os.environ.pop("GRADIO_ALLOWED_PATHS", None)  # it would override the empty list below
    shelf = build_shelf(flags)
    page = build_page(shelf)
    try:
        _, address, _ = page.launch(
            server_name=flags.server_name,
            server_port=flags.server_port,
            share=False,
            _frontend=False,  # otherwise it requests its own page, through any proxy, and gives up after 3 seconds
            prevent_thread_lock=True,
            quiet=True,
            allowed_paths=[],
            max_file_size=LARGEST_UPLOAD,
            state_session_capacity=SESSIONS_KEPT,
            ssr_mode=False,
            mcp_server=False,
            theme=theme(),
            css=render("app.css", escape=False),
            footer_links=[],
            app_kwargs={"middleware": middleware(flags, page)},
        )
    except OSError:
        raise UsageError(f"--server_port {flags.server_port} is taken or not allowed; give another.") from None
    print(f"The page is at {address}", flush=True)
    threading.Thread(target=warm_up, args=(shelf,), name="warm-up", daemon=True).start()
    page.block_thread()


def build_shelf(flags: PageFlags) -> Shelf:
    """Builds the shelf of models. Remote visitors choose among these and public models on the Hub; they cannot type
    paths."""
    names = flags.releases or [name.strip() for name in os.environ.get(NAMES_VARIABLE, "").split(",") if name.strip()]
    names = names or [str(path.parent) for path in sorted(Path("runs").glob("*/release/privacy_receipt.json"))]
    for name in names:
        if not os.path.isdir(name):
            print(f"'{name}' is not a folder here: the page looks for it on the Hub.")
        elif release_in(name).holds_images:
            print(f"'{name}' holds images and no model: the page shows these, and draws no others.")
    is_here = flags.server_name in (HERE, "localhost", "::1")
    return Shelf(
        list(dict.fromkeys(names)), flags, allow_unverified=flags.allow_unverified, folders_by_visitors=is_here
    )


def middleware(flags: PageFlags, page: Any) -> list[Any]:
    """Returns the middleware for Gradio's FastAPI app of this `page`, a `gradio.Blocks`."""
    from starlette.middleware import Middleware

    from .request_filter import RequestFilter

    names = [name.strip() for name in flags.host_names.split(",") if name.strip()]
    inputs = {key: len(each.inputs) for index, each in page.fns.items() if each.fn for key in (index, each.api_name)}
    return [Middleware(RequestFilter, server_name=flags.server_name, host_names=names, inputs=inputs)]


def warm_up(shelf: Shelf) -> None:
    """Loads torch and the first model, so that the first drawing does not wait for them."""
    with suppress(DiffusersDPError):  # the page shows the message when a visitor chooses that model
        if shelf.names:
            shelf.load(shelf.open(shelf.names[0]))
