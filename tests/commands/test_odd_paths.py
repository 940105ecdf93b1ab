# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Every flag that takes a path takes one with odd characters, from a run to its evaluation."""

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


@pytest.mark.parametrize("odd", ODD)
def test_a_run_and_what_follows_it(tmp_path, odd, monkeypatch, capsys):
    """Paths are relative, so that the odd name is where a flag's value starts."""
    (tmp_path / odd).mkdir()
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / odd / "scans")
    write_public(tmp_path / odd / "public")
    recipe = tmp_path / odd / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"max_train_steps": 2}))

    def call(*words):
        cli.main(list(words))
        return capsys.readouterr().out

    flags = [*TINY_RUN, f"--train_data_dir={odd}/scans", f"--public_data_dir={odd}/public", "--public_steps", "1"]
    flags += [f"--config={odd}/recipe.yaml", f"--output_dir={odd}/run"]
    call("plan", "--method", "dp_diffusion", *flags)
    assert f"images: {NUM_IMAGES}" in call("data", "--method", "dp_diffusion", *flags)
    call("train", "dp_diffusion", *flags)
    release = tmp_path / odd / "run" / "release"
    assert (release / "privacy_receipt.json").is_file()
    place = f"./{odd}/run/release"
    call("verify", place)
    call("sample", place, "--num_images", "4", f"--output_dir={odd}/drawn")
    call("push", place, "--hub_model_id", "a/b", "--dry_run")
