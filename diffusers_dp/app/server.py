# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Serves the page, only on this machine unless it is a Space or `--server_name` is given. torch is loaded in the
background."""

import argparse
import logging
import os
import sys
import threading
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import DiffusersDPError, UsageError
from .doors import Doors
from .limits import SESSIONS_KEPT, Limits
from .shelf import Shelf


HERE = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
NAMES_VARIABLE = "DIFFUSERS_DP_RELEASES"  # for a Space: Hub ids, comma-separated
LARGEST_UPLOAD = "1kb"  # the page accepts no files


def main(argv: Sequence[str] | None = None) -> None:
    """Runs until interrupted. Exits with code 2 and one sentence if it cannot start."""
    try:
        run(parse(argv))
    except DiffusersDPError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def run(args: argparse.Namespace) -> None:
    """Of `diffusers-dp app` as well. Raises `UsageError` where it cannot start."""
    _check(args)
    serve(build_shelf(args), args)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="app.py",
        description="A page that draws from released models.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_arguments(parser)
    return parser.parse_args(argv)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = Limits()
    parser.add_argument(
        "releases",
        nargs="*",
        help=f"Folders and Hub ids to choose from; none: those of {NAMES_VARIABLE}, or else runs/*/release.",
    )
    parser.add_argument(
        "--server_name",
        default=EVERYWHERE if "SPACE_ID" in os.environ else HERE,
        help="Address to listen at; this machine alone, but on a Space.",
    )
    parser.add_argument(
        "--host_names",
        default=os.environ.get("SPACE_HOST", ""),
        help="Names that visitors use for the page besides its address, comma-separated, as behind a proxy.",
    )
    parser.add_argument("--server_port", type=int, default=7860, help="Port.")
    parser.add_argument(
        "--allow_unverified",
        action="store_true",
        help="Also open models whose receipt does not match; the page says so in red.",
    )
    parser.add_argument("--max_images", type=int, default=defaults.max_images, help="Images in one drawing, at most.")
    parser.add_argument("--max_steps", type=int, default=defaults.max_steps, help="Steps of the solver, at most.")
    parser.add_argument(
        "--max_model_mb",
        type=int,
        default=defaults.max_model_mb,
        help="Size of a model, and of the base that it names, asked for before it is fetched.",
    )
    parser.add_argument(
        "--max_seconds",
        type=int,
        default=defaults.max_seconds,
        help="For loading a model, and for one drawing, at most.",
    )


def _check(args: argparse.Namespace) -> None:
    for name in ("max_images", "max_steps", "max_model_mb", "max_seconds"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name} is {getattr(args, name)}; give an integer of at least 1.")


def build_shelf(args: argparse.Namespace) -> Shelf:
    """Builds the shelf of models. Remote visitors choose among these and public models on the Hub; they cannot type
    paths."""
    names = args.releases or [name.strip() for name in os.environ.get(NAMES_VARIABLE, "").split(",") if name.strip()]
    names = names or [str(path.parent) for path in sorted(Path("runs").glob("*/release/privacy_receipt.json"))]
    return Shelf(
        list(dict.fromkeys(names)),
        Limits(args.max_images, args.max_steps, args.max_model_mb, args.max_seconds),
        allow_unverified=args.allow_unverified,
        folders_by_visitors=args.server_name in (HERE, "localhost", "::1"),
    )


def middleware(args: argparse.Namespace) -> list[Any]:
    """Returns the middleware for Gradio's FastAPI app."""
    from starlette.middleware import Middleware

    names = [name.strip() for name in args.host_names.split(",") if name.strip()]
    return [Middleware(Doors, server_name=args.server_name, host_names=names)]


def serve(shelf: Shelf, args: argparse.Namespace, *, block: bool = True) -> str:
    """Starts the server, loads the first visitor's model in the background, and returns the address."""
    logging.getLogger("absl").setLevel(logging.ERROR)  # dp_accounting warns about RDP orders that it skips
    try:
        import gradio  # noqa: F401
    except ImportError:
        raise UsageError("The page needs Gradio: pip install diffusers_dp[app].") from None
    from .page import build_page, theme

    os.environ.pop("GRADIO_ALLOWED_PATHS", None)  # it would override the empty list below
    page = build_page(shelf)
    try:
        _, address, _ = page.launch(
            server_name=args.server_name,
            server_port=args.server_port,
            share=False,
            _frontend=False,  # otherwise it requests its own page, through any proxy, and gives up after 3 seconds
            inbrowser=False,
            prevent_thread_lock=True,
            quiet=True,
            show_error=False,
            allowed_paths=[],
            max_file_size=LARGEST_UPLOAD,
            state_session_capacity=SESSIONS_KEPT,
            enable_monitoring=False,
            ssr_mode=False,
            pwa=False,
            mcp_server=False,
            theme=theme(),
            css=_template("app.css"),
            js=_template("app.js"),
            footer_links=[],
            app_kwargs={"middleware": middleware(args)},
        )
    except OSError:
        raise UsageError(f"--server_port {args.server_port} is taken or not allowed; give another.") from None
    print(f"The page is at {address}", flush=True)
    threading.Thread(target=warm_up, args=(shelf,), name="warm-up", daemon=True).start()
    if block:
        page.block_thread()
    return str(address)


def _template(name: str) -> str:
    return files("diffusers_dp").joinpath("templates", name).read_text(encoding="utf-8")


def warm_up(shelf: Shelf) -> None:
    """Loads torch and the first model, so that the first drawing does not wait for them."""
    try:
        if shelf.names:
            shelf.painter(shelf.open(shelf.names[0]))
    except DiffusersDPError:  # the page shows the message when a visitor chooses that model
        return
