# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A small Hub on this machine: repositories in memory, behind the HTTP calls that `huggingface_hub` makes to push and
to fetch."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest


TOKEN = "hf_standin"
OWNER = "someone"


class StandIn:
    """Repositories by `models/owner/name` or `datasets/owner/name`, each a dictionary of files; `refuse` breaks calls
    off whose path it matches."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.large: dict[str, bytes] = {}  # by SHA-256
        self.calls: list[str] = []
        self.calls_with_token: list[str] = []
        self.refuse: str | None = None
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def answer(self, status, content=b"", **headers):
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def handle_call(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                if self.headers.get("Transfer-Encoding") == "chunked":
                    body = b""
                    while size := int(self.rfile.readline(), 16):
                        body += self.rfile.read(size)
                        self.rfile.readline()
                    self.rfile.readline()
                address = urlsplit(self.path)
                path = unquote(address.path)
                if path == "/api/agent-harnesses":  # the client's own query, once a day
                    return self.answer(404, {"error": "not here"})
                stand_in.calls.append(f"{self.command} {path}")
                if stand_in.refuse is not None and re.search(stand_in.refuse, f"{self.command} {path}"):
                    return self.answer(400, {"error": "broken off"})
                known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
                if known:
                    stand_in.calls_with_token.append(f"{self.command} {path}")
                stand_in.call(self, path, parse_qs(address.query), body, known)

            do_GET = do_POST = do_PUT = do_HEAD = handle_call

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def call(self, http, path, query, body, known):
        if path == "/api/whoami-v2":
            return (
                http.answer(200, {"name": OWNER, "type": "user"}) if known else http.answer(401, {"error": "no token"})
            )
        if path == "/api/validate-yaml":
            return http.answer(200, {"errors": [], "warnings": []})
        if path == "/api/repos/create":
            return self.create(http, json.loads(body), known)
        if found := re.fullmatch(r"/lfs/(\w+)", path):
            self.large[found[1]] = body
            return http.answer(200)
        if found := re.fullmatch(r"/(datasets/)?([\w-]+/[\w-]+)\.git/info/lfs/objects/batch", path):
            objects = json.loads(body)["objects"]
            return http.answer(200, {"transfer": "basic", "objects": [self.large_object(each) for each in objects]})
        if found := re.fullmatch(r"/api/(models|datasets)/([\w-]+/[\w-]+)(/.*)?", path):
            return self.api(http, f"{found[1]}/{found[2]}", found[3] or "", query, body, known)
        if found := re.fullmatch(r"/(datasets/)?([\w-]+/[\w-]+)/resolve/([^/]+)/(.*)", path):
            return self.file(http, f"{(found[1] or 'models/')}{found[2]}", found[4], known)
        return http.answer(404, {"error": path})

    def create(self, http, asked, known):
        owner = asked.get("organization") or OWNER
        kind = {"dataset": "datasets"}.get(asked.get("type"), "models")
        name = f"{kind}/{owner}/{asked['name']}"
        address = f"{self.url}/{'datasets/' if kind == 'datasets' else ''}{owner}/{asked['name']}"
        if not known:
            return http.answer(401, {"error": "no token"})
        if owner != OWNER:
            return http.answer(403, {"error": "not yours"})
        if name in self.repositories:
            return http.answer(409, {"error": "exists", "url": address})
        self.repositories[name] = {".gitattributes": b""}
        if asked.get("private") or asked.get("visibility") == "private":
            self.private.add(name)
        return http.answer(200, {"url": address})

    def large_object(self, asked):
        done = asked["oid"] in self.large
        actions = {} if done else {"actions": {"upload": {"href": f"{self.url}/lfs/{asked['oid']}"}}}
        return {"oid": asked["oid"], "size": asked["size"], **actions}

    def api(self, http, name, rest, query, body, known):
        files = self.repositories.get(name)
        if files is None or (name in self.private and not known):
            return http.answer(404 if known else 401, {"error": "none"}, X_Error_Code="RepoNotFound")
        if rest.startswith("/preupload/"):
            asked = json.loads(body)["files"]
            modes = [
                {
                    "path": each["path"],
                    "uploadMode": "lfs" if each["path"].endswith((".safetensors", ".parquet")) else "regular",
                    "shouldIgnore": False,
                }
                for each in asked
            ]
            return http.answer(200, {"files": modes})
        if rest.startswith("/commit/"):
            for line in map(json.loads, body.decode().splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    files[value["path"]] = self.large[value["oid"]]
            return http.answer(200, {"commitUrl": f"{self.url}/{name}/commit/x", "commitOid": self.sha(name)})
        if rest.startswith("/tree/"):
            listed = [
                {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for path, content in files.items()
            ]
            return http.answer(200, listed)
        siblings = [{"rfilename": path, "size": len(content), "blobId": "0"} for path, content in files.items()]
        return http.answer(
            200,
            {
                "id": name.split("/", 1)[1],
                "sha": self.sha(name),
                "siblings": siblings,
                "private": name in self.private,
            },
        )

    def file(self, http, name, path, known):
        content = self.repositories.get(name, {}).get(path)
        if content is None:
            return http.answer(404, {"error": "none"}, X_Error_Code="EntryNotFound")
        etag = hashlib.sha1(content).hexdigest()
        return http.answer(200, content, ETag=f'"{etag}"', X_Repo_Commit=self.sha(name))

    def sha(self, name):
        listed = sorted((path, hashlib.sha1(content).hexdigest()) for path, content in self.repositories[name].items())
        return hashlib.sha1(json.dumps(listed).encode()).hexdigest()


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The Hub of a test, and a token that it knows."""
    from huggingface_hub import constants

    stand_in = StandIn()
    monkeypatch.setattr(constants, "ENDPOINT", stand_in.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", stand_in.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield stand_in
    stand_in.server.shutdown()
    stand_in.server.server_close()
