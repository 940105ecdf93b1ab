# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What is loaded is what was verified, or nothing."""

import json
from unittest.mock import Mock

import huggingface_hub
import pytest

from diffusers_dp import DPImagePipeline, IntegrityError, cli, load_verified


RECEIPT = "privacy_receipt.json"
WEIGHTS = "unet/diffusion_pytorch_model.safetensors"


def edit_receipt(release, **changes):
    path = release / RECEIPT
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


TAMPERINGS = {
    "no receipt": (lambda r: (r / RECEIPT).unlink(), f"holds no {RECEIPT}"),
    "other weights": (lambda r: (r / WEIGHTS).write_bytes((r / WEIGHTS).read_bytes()[:-1] + b"x"), "its hash differs"),
    "another delta": (lambda r: edit_receipt(r, delta=1e-9), "epsilon"),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_what_does_not_match_raises_or_warns_loudly(release, tampering, caplog, monkeypatch):
    tamper, said = TAMPERINGS[tampering]
    tamper(release)
    with pytest.raises(IntegrityError, match=said):
        load_verified(release)
    pipeline = Mock()
    monkeypatch.setattr(DPImagePipeline, "from_pretrained", pipeline.from_pretrained)
    assert load_verified(release, require_dp=False) is pipeline.from_pretrained.return_value
    assert pipeline.from_pretrained.call_args.kwargs == {"use_safetensors": True}
    assert "NOT verified" in caplog.text and said in caplog.text


def test_the_folder_of_a_run_is_refused_by_naming_its_release(release, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    release.rename(run / "release")
    for words in (["verify"], ["push", "--dry_run", "--hub_model_id", "someone/scans"]):
        with pytest.raises(SystemExit, match="2"):
            cli.main([*words[:1], str(run), *words[1:]])
        assert f"is the folder of a run; give its release, {run / 'release'}." in capsys.readouterr().err


def test_no_pickle_is_ever_loaded(release):
    (release / WEIGHTS).rename(release / "unet" / "diffusion_pytorch_model.bin")
    with pytest.raises(IntegrityError, match="no diffusion_pytorch_model.safetensors that can be read"):
        load_verified(release, require_dp=False)


def test_from_the_hub_the_whole_snapshot_is_verified(release, monkeypatch):
    """A file that the receipt does not know is fetched, too, so that it is seen."""
    asked = {}

    def snapshot_download(name, **arguments):
        asked.update(arguments, name=name)
        return str(release)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert isinstance(load_verified("someone/scans", revision="abc"), DPImagePipeline)
    assert asked == {
        "name": "someone/scans", "repo_type": "model", "revision": "abc", "allow_patterns": None, "token": None
    }  # fmt: skip
    (release / "surprise.py").write_text("")
    with pytest.raises(IntegrityError, match="surprise.py is not in the receipt"):
        load_verified("someone/scans")
