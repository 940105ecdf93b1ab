# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which requests the page answers: asked of Gradio's real app, with what stands before it."""

import json

import pytest

from diffusers_dp.app import server
from diffusers_dp.app.shelf import Shelf
from diffusers_dp.commands.app import Limits, PageFlags


HERE = "http://127.0.0.1:7860"


@pytest.fixture(scope="module", autouse=True)
def gradio():
    """Not imported with this file, which every worker reads."""
    pytest.importorskip("gradio", reason="Gradio is not installed")


def client_of(**flags):
    from starlette.testclient import TestClient

    from diffusers_dp.app.page import build_page

    page = build_page(Shelf([], Limits()))
    more = {"middleware": server.middleware(PageFlags(**flags), page)}
    page.launch(prevent_thread_lock=True, quiet=True, _frontend=False, ssr_mode=False, app_kwargs=more)
    return page, TestClient(page.app, base_url=HERE, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client():
    page, client = client_of()
    yield client
    page.close(verbose=False)


def join(client, **headers):
    body = {"data": [None, [], 1, 0, 2, "dpm"], "fn_index": 0, "session_hash": "a"}
    return client.post("/gradio_api/queue/join", json=body, headers=headers)


@pytest.mark.parametrize("path", ["/", "/config", "/theme.css", "/gradio_api/info", "/gradio_api/app_id"])
def test_the_page_itself_is_answered(client, path):
    assert client.get(path).status_code == 200
    assert client.get(path, headers={"Origin": HERE}).status_code == 200


def test_the_page_s_own_requests_come_through(client):
    asked = client.post("/gradio_api/call/plan", json={"data": [900, 28, "grey", 1, 10, 0]}, headers={"Origin": HERE})
    assert asked.status_code == 200 and asked.json()["event_id"]
    assert join(client, Origin=HERE).status_code == 200


FILES = [
    ("POST", "/gradio_api/upload"), ("POST", "//gradio_api/upload"), ("POST", "/assets/../gradio_api/upload"),
    ("GET", "/gradio_api/file=/etc/passwd"), ("HEAD", "/gradio_api/file=/etc/passwd"), ("GET", "/file=/etc/passwd"),
    ("GET", "/gradio_api/proxy=https://a.hf.space/b"), ("POST", "/gradio_api/stream/a"), ("POST", "/login"),
    ("POST", "/gradio_api/run/plan"), ("POST", "/gradio_api/call/open"), ("GET", "/gradio_api/call/open/a"),
    ("GET", f"/assets/{'a' * 5000}"), ("GET", f"/assets/{'a' * 300}"), ("POST", f"/gradio_api/call/{'a' * 5000}"),
    ("GET", "/assets/%C3%A9"), ("POST", "/gradio_api/run/predict"),
    ("GET", "/docs"), ("PUT", "/"), ("DELETE", "/gradio_api/queue/join"),
    ("GET", "/assets/../../etc/passwd"), ("GET", "/static/..%2f..%2f..%2fsetup.cfg"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), FILES)
def test_no_files_are_taken_and_none_are_served(client, method, path):
    files = {"files": ("a.html", b"<script>")} if method == "POST" else None
    for headers in ({}, {"Origin": HERE}, {"Origin": "https://evil.example"}):
        answer = client.request(method, f"{HERE}{path}", headers=headers, files=files)
        assert answer.status_code in (403, 404) and "root:" not in answer.text and "Traceback" not in answer.text


@pytest.mark.parametrize(
    "host", ["evil.example:7860", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "192.168.0.7", "[::1", ""]
)
def test_a_name_that_is_not_ours_gets_no_answer(client, host):
    """DNS rebinding: the browser sends the name that it believes in."""
    for path in ("/", "/config", "/gradio_api/info"):
        answer = client.get(path, headers={"Host": host})
        assert answer.status_code == 403 and "--host_names" in answer.text
    assert join(client, Host=host, Origin=f"http://{host}").status_code == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:9999", "http://[::1"])
def test_another_site_asks_for_nothing(client, origin):
    assert join(client, Origin=origin).status_code == 403
    assert client.get("/config", headers={"Origin": origin}).status_code == 403
    assert join(client, **{"Sec-Fetch-Site": "cross-site"}).status_code == 403


def test_a_request_is_small(client):
    assert client.post("/gradio_api/queue/join", content=b"0" * 200_000).status_code == 413
    assert client.post("/gradio_api/queue/join", content=iter([b"0"])).status_code == 413


FACTS = [900, 28, "grey", 1, 10, 0]
BODIES = [
    b"", b"{", b"null", b"[]", b"\xff", b"[" * 50_000, b'{"data": NaN}', b'{"data": [1e999, 28, "grey", 1, 10, 0]}',
    b'{"data": ["\\ud800", 28, "grey", 1, 10, 0]}', b'{"data": [' + b"9" * 5000 + b"]}",
    *(json.dumps({"data": data}).encode() for data in (
        None, 5, "text", {}, [], FACTS[:2], [*FACTS, 1], [{}] * 6, [[[]]] * 6, [{"path": "/etc/passwd"}] * 6,
    )),
    json.dumps({"data": FACTS, "session_hash": ""}).encode(),
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_a_body_that_no_function_takes_is_refused_in_a_sentence(client, body, caplog):
    for path in ("call/plan", "call/draw", "queue/join"):
        for more in (b"", b', "fn_index": 0', b', "fn_index": -1', b', "fn_index": [1]'):
            sent = body[:-1] + more + b"}" if body.endswith(b"}") else body
            answer = client.post(f"/gradio_api/{path}", content=sent, headers={"Content-Type": "application/json"})
            assert answer.status_code == 422 and answer.text.endswith(".") and "\n" not in answer.text
    assert not caplog.records


def test_an_event_that_does_not_exist_is_said_and_the_answer_ends(client):
    for path in ("call/draw/none", "queue/data?session_hash=none"):
        assert "404" in client.get(f"/gradio_api/{path}").text


def test_names_that_the_page_was_given():
    page, client = client_of(server_name="0.0.0.0", host_names="scans.example, other.example")
    for host in ("scans.example", "other.example:443", "192.168.0.7:7860", "localhost"):
        assert client.get("/config", headers={"Host": host}).status_code == 200
    assert client.get("/config", headers={"Host": "evil.example"}).status_code == 403
    proxied = {"Host": "127.0.0.1:7860", "Origin": "https://scans.example"}  # as a proxy hands it on
    assert join(client, **proxied).status_code == 200
    page.close(verbose=False)
    page, client = client_of(server_name="scans.example")
    assert client.get("/config", headers={"Host": "scans.example:7860"}).status_code == 200
    page.close(verbose=False)


def test_a_visitor_sees_no_path_and_no_size_of_ours(release):
    shelf = Shelf([str(release)], Limits(max_model_mb=1), folders_by_visitors=True)
    assert shelf.names == (f"{release.parent.name}/release",)
    assert shelf.open(shelf.names[0]) is shelf.open(str(release))
    (release / "privacy_receipt.json").unlink()
    for problem in ("receipt", "size"):
        if problem == "size":
            (release / "large").write_bytes(b"0" * 1_500_000)
        with pytest.raises(server.DiffusersDPError) as refusal:
            Shelf([str(release)], Limits(max_model_mb=1)).open(str(release))
        assert str(release.parent) not in str(refusal.value) and "2 MB" not in str(refusal.value)
