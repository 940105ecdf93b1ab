# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The page with two releases, one of them trained here, and a browser that looks at it."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from diffusers_dp.methods import judge
from support import forked
from support.page_visits import Visit, playwright_or_skip
from support.places import ROOT
from support.runs import load


TINY = [
    "--max_train_steps=2", "--spatial_steps=3", "--frequency_steps=3", "--generator_steps=3",
    "--expert=num_auxiliary_images=20,generator_batch_size=20", "--num_inference_steps=2",
    "--noise_multiplicity=1", "--train_batch_size=50", "--skip_preflight", "--budget=judge=0.3", "--accountant=rdp",
    "--target_epsilon=3", "--expert=generator_channels=4",
]  # fmt: skip


@pytest.fixture(scope="package", autouse=True)
def forks():
    forked.serve()


@pytest.fixture(scope="package")
def models(tmp_path_factory, honest):
    """A release of ten digits with a judge, made by the training script, one of three classes, and one that was
    tampered with."""
    pytest.importorskip("gradio", reason="Gradio is not installed")
    playwright_or_skip()
    folder = tmp_path_factory.mktemp("app")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "BATCH_SIZE", 50)
        load("feta_pro", patch).main([*TINY, "--output_dir", str(folder / "digits")])
    shutil.copytree(honest, folder / "three" / "release")
    shutil.copytree(honest, folder / "tampered" / "release")
    (folder / "tampered" / "release" / "samples.png").write_bytes(b"")
    return folder


@pytest.fixture(scope="package")
def address(models):
    """Of the server, started as people start it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(ROOT / "app.py"), "digits/release", "three/release", "--server_port", str(port)]
    process = subprocess.Popen(
        command, cwd=models, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "GRADIO_SHARE": "True", "GRADIO_ALLOWED_PATHS": "/", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    try:
        said = process.stdout.readline()
        assert f"127.0.0.1:{port}" in said, said + process.stdout.read()
        yield f"http://127.0.0.1:{port}"
        maps = Path(f"/proc/{process.pid}/maps")
        assert not maps.exists() or "libtorch" not in maps.read_text(), "models have processes of their own"
    finally:
        process.terminate()
        said, _ = process.communicate(timeout=30)
        assert "Traceback" not in said


@pytest.fixture
def visit(address, chromium):
    opened = []

    def open_page(**options):
        opened.append(Visit(chromium, address, **options))
        return opened[-1]

    yield open_page
    for page in opened:
        page.context.close()
        assert page.elsewhere == [] and page.complaints == []
