# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Flags that take a path take one with odd characters."""

import unicodedata

import pytest
import yaml

from diffusers_dp import cli
from support.flags import NUM_IMAGES, TINY_RUN
from support.runs import write_images, write_public


ODD = (
    "a[1]", "a?b*c", "two words", unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é"), "a#b",
    "50%20", "-dash", "'q\"", "{x,y}", "~tilde", "$HOME", "a::b",
)  # fmt: skip


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Paths are relative, so that the odd name is where a flag's value starts."""
    monkeypatch.chdir(tmp_path)

    def called(*words):
        try:
            cli.main(list(words))
        except SystemExit as ended:
            assert not ended.code, capsys.readouterr().err
        return capsys.readouterr().out

    return called


def flags_of(folder):
    folder.mkdir()
    write_images(folder / "scans")
    write_public(folder / "public")
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"max_train_steps": 2}))
    flags = {"train_data_dir": "scans", "public_data_dir": "public", "config": "recipe.yaml", "output_dir": "run"}
    return [*TINY_RUN, "--public_steps", "1", *(f"--{flag}={folder.name}/{name}" for flag, name in flags.items())]


@pytest.mark.parametrize("odd", ODD)
def test_a_plan_and_what_a_run_would_read(tmp_path, odd, call):
    flags = ["--method", "dp_diffusion", *flags_of(tmp_path / odd)]
    assert "epsilon" in call("plan", *flags)
    assert f"images: {NUM_IMAGES}" in call("data", *flags).splitlines()
