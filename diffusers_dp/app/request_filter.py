# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Filter of requests to Gradio: they must use a name of this page, come from it, ask for its routes, be small, and
have as many values as the page's function takes.

Gradio has many routes, and some accept or serve files. Another site that a visitor has open can point its name to this
machine (DNS rebinding); the browser then treats this page as part of that site.
"""

import ipaddress
import json
import math
import socket
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


HERE, EVERYWHERE = ("127.0.0.1", "localhost", "::1"), ("0.0.0.0", "::", "")
API, NAMES = "/gradio_api", ("draw", "plan")
#: Exact paths, and prefixes of paths, which end with a slash. All other requests are refused.
READ = (
    "/", "/config", "/theme.css", "/favicon.ico", "/robots.txt", "/manifest.json", "/assets/", "/static/", "/svelte/",
    f"{API}/info", f"{API}/startup-events", f"{API}/app_id", f"{API}/queue/data", f"{API}/heartbeat/",
    *(f"{API}/call/{name}/" for name in NAMES),
)  # fmt: skip
JOIN, STOPPED = f"{API}/queue/join", (f"{API}/cancel", f"{API}/reset")
ASKED = (JOIN, *STOPPED, *(f"{API}/call/{name}" for name in NAMES))
LONGEST_PATH = 200  # ASCII characters; longer names are no files of Gradio's, and some systems raise for them
WRONG_BODY = (
    f'The body has to be {{"data": [...]}} with as many values as {API}/info lists; each has to be a finite number, '
    "a text, or a list of texts."
)
LARGEST_REQUEST = 100_000  # bytes: names, numbers and classes


class RequestFilter:
    """ASGI middleware.

    Args:
        app: Application behind the filter.
        server_name (`str`): Address that the page listens on.
        host_names (sequence of `str`): Further host names of the page.
        inputs (mapping): Number of values that a function of the page takes, by its API name and by its index.
    """

    def __init__(
        self, app: ASGIApp, server_name: str, host_names: Sequence[str], inputs: Mapping[str | int, int]
    ) -> None:
        self.app, self.inputs = app, inputs
        self.any_address = server_name in EVERYWHERE
        own = (socket.gethostname(), socket.getfqdn()) if self.any_address else (server_name,)
        self.host_names = {name.lower() for name in host_names}
        self.names = {*HERE, *(name.lower() for name in own), *self.host_names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            refusal = self.refusal(scope)
            if refusal is None and scope["method"] == "POST":
                body = await Request(scope, receive).body()
                receive = _replay(body, receive)
                refusal = None if self.takes(body, scope["path"].rstrip("/")) else (422, WRONG_BODY)
            if refusal is not None:
                await PlainTextResponse(refusal[1], refusal[0])(scope, receive, send)
                return
            try:
                await self.app(scope, receive, send)
            except RuntimeError:
                if scope["method"] == "POST":
                    raise
                await send({"type": "http.response.body"})  # Gradio has sent that it knows no such event
        # The page uses no websockets, so the server closes them.

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Returns status and message of a refusal, or `None` if the request is allowed."""
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not self._is_ours(_host(f"//{hosts[0]}")):
            return 403, "This page does not answer to that name; whoever starts it can add names with --host_names."
        for origin in origins:
            if origin.partition("://")[2].lower() != hosts[0].lower() and _host(origin) not in self.host_names:
                return 403, "This page takes no requests from other sites."
        if not origins and headers.get("sec-fetch-site") == "cross-site" and method not in ("GET", "HEAD"):
            return 403, "This page takes no requests from other sites."
        routes = {"GET": READ, "HEAD": READ, "POST": ASKED}.get(method, ())
        known = len(path) <= LONGEST_PATH and path.isascii() and any(_leads(path, route) for route in routes)
        if ".." in path.split("/") or not known:
            return 404, "There is nothing here."
        length = math.inf if "transfer-encoding" in headers else float(headers.get("content-length", "inf"))
        if method == "POST" and not 0 <= length <= LARGEST_REQUEST:
            return 413, "That is more than this page asks for."
        return None

    def takes(self, body: bytes, path: str) -> bool:
        """Tells whether a function of the page takes this body. Gradio has tracebacks for some that none takes."""
        try:
            found = json.loads(body, parse_constant=_finite, parse_float=_finite)
            json.dumps(found, ensure_ascii=False).encode()  # raises for half a character, which cannot be sent back
        except (ValueError, RecursionError):
            return False
        if path in STOPPED or not isinstance(found, dict):
            return path in STOPPED
        name, values = found.get("fn_index") if path == JOIN else path.rpartition("/")[2], found.get("data")
        number = self.inputs.get(name) if isinstance(name, str | int) else None
        # An event of a session without a name cannot be told of; a call without a session gets one.
        has_session = bool(found.get("session_hash")) if path == JOIN else found.get("session_hash") != ""
        return has_session and isinstance(values, list) and len(values) == number and all(map(_is_plain, values))

    def _is_ours(self, host: str) -> bool:
        return host in self.names or (self.any_address and _is_address(host))  # an address has no name to rebind


def _replay(body: bytes, receive: Receive) -> Receive:
    """Returns what receives a body once more, and then what follows it."""
    first = iter([{"type": "http.request", "body": body}])

    async def receive_again() -> Message:
        return next(first, None) or await receive()

    return receive_again


def _finite(number: str) -> float:
    """Raises `ValueError` for NaN and infinity, which JSON does not have."""
    if not math.isfinite(value := float(number)):
        raise ValueError(number)
    return value


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(each, str) for each in value)
    return value is None or isinstance(value, str | int | float)


def _leads(path: str, route: str) -> bool:
    """Tells whether the path is this route, or is below a route that ends with a slash."""
    return path.rstrip("/") == route.rstrip("/") or (route.endswith("/") and route != "/" and path.startswith(route))


def _host(address: str) -> str:
    """Returns the host name or address without the port, or an empty string."""
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
