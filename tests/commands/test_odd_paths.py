# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Flags that take a path take one with odd characters, from the plan of a run to all that follows it."""

import unicodedata

import pytest
import yaml

from diffusers_dp import cli
from diffusers_dp.app.shelf import Shelf
from diffusers_dp.commands.app import Limits
from support.flags import SHORT_RUN
from support.hub_stand_in import OWNER
from support.runs import interrupted, load, write_images, write_public


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
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"max_train_steps": 3}))
    flags = {
        "train_data_dir": "scans", "public_data_dir": "public", "config": "recipe.yaml", "output_dir": "run",
        "ledger_dir": "ledgers",
    }  # fmt: skip
    short = [*SHORT_RUN, "--public_steps", "1", "--dataset_id", "scans"]
    del short[short.index("--max_train_steps") :][:2]
    return [*short, *(f"--{flag}={folder.name}/{name}" for flag, name in flags.items())]


def test_a_run_that_is_resumed_and_what_follows_it(tmp_path, call, monkeypatch, hub):
    """All characters at once, because each command reads a path in one way."""
    odd = "~".join(["", *ODD])
    folder, flags = tmp_path / odd, flags_of(tmp_path / odd)
    interrupted(load("dp_diffusion", monkeypatch), monkeypatch, flags, call=4)
    call("train", "dp_diffusion", *flags, f"--resume_from_checkpoint={odd}/run/private/checkpoint-2")
    assert {path.name for path in folder.iterdir()} == {"scans", "public", "recipe.yaml", "run", "ledgers"}
    release, real = f"{odd}/run/release", f"--real={odd}/scans"
    assert "epsilon" in call("verify", release)
    call("push", release, "--hub_model_id", f"{OWNER}/scans")
    assert f"models/{OWNER}/scans" in hub.repositories
    call("sample", release, "--num_images", "12", f"--output_dir={odd}/drawn")
    fast = "--quick --resize --num_images 12".split()
    call("evaluate", f"--images={odd}/drawn", real, *fast, f"--output_dir={odd}/judged")
    call("evaluate", f"--model={release}", real, *fast, f"--output_dir={odd}/judged_model")
    write_public(folder / "others", ("left", "right"), seed=2)
    call(
        "audit", "release", release, f"--members={odd}/scans", f"--holdout={odd}/others", "--num_samples=5",
        "--max_images=5", f"--output_dir={odd}/audited",
    )  # fmt: skip
    report = "private/unprotected/evaluation/report.json"
    call("dossier", release, f"--evaluation={odd}/judged_model/{report}", f"--output_dir={odd}/dossier")
    for made in ("ledgers/scans.jsonl", "drawn/privacy_receipt.json", f"judged/{report}", "audited", "dossier"):
        assert (folder / made).exists()
    assert not Shelf([release], Limits()).open(release).problems


@pytest.mark.parametrize("words", ["verify -dash", "sample x --output_dir -dash", "train moments --output_dir -dash"])
def test_a_path_that_argparse_takes_for_a_flag(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(words.split())
    assert "a path that starts with a dash is given as ./-name" in capsys.readouterr().err
