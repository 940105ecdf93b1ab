# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""To the Hub goes the allow-list, verified, in one commit; a stand-in answers in the Hub's place."""

import json

import pytest

from diffusers_dp import cli, load_verified
from diffusers_dp.app.shelf import Shelf
from diffusers_dp.commands.app import Limits
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.files.canonical import canonical_json
from diffusers_dp.methods.config import load_config
from diffusers_dp.release.allow_list import PIPELINE_FILES, RELEASE_FILES
from diffusers_dp.release.push import check_hub, files_to_push, push_release
from diffusers_dp.verify import SIGNATURE_NAME
from support.flags import FOLDER
from support.hub_stand_in import OWNER, hub  # noqa: F401 (a fixture)
from support.releases import add_audit
from support.runs import write_images


NAME = f"{OWNER}/scans"
SECRET = b"patient-4711"


def command(capsys, *arguments):
    """Exit code and what was printed."""
    try:
        cli.main(["push", *map(str, arguments)])
        code = 0
    except SystemExit as stopped:
        code = stopped.code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out + said.err


def test_a_release_goes_whole_and_alone_and_comes_back_verified(hub, release, capsys):  # noqa: F811
    (release.parent / "private").mkdir()
    (release.parent / "private" / "loss.csv").write_bytes(SECRET)
    (release / ".cache").mkdir()
    (release / ".cache" / "notes").write_bytes(SECRET)  # the verifier passes over this folder
    code, said = command(capsys, release, "--hub_model_id", NAME, "--hub_private_repo")
    assert code == 0 and f"Pushed to {hub.url}/{NAME}" in said
    there = hub.repositories[f"models/{NAME}"]
    assert set(there) == {*RELEASE_FILES, ".gitattributes"} and f"models/{NAME}" in hub.private
    assert all(there[name] == (release / name).read_bytes() for name in RELEASE_FILES)
    assert all(SECRET not in content for content in (*there.values(), *hub.large.values()))
    assert len(load_verified(NAME)(batch_size=1, num_inference_steps=1).images) == 1


@pytest.mark.parametrize("where", ["PUT /lfs/", "POST .*/commit/", "POST .*/preupload/"])
def test_a_push_that_breaks_off_leaves_nothing_half_and_goes_on(hub, release, capsys, where):  # noqa: F811
    hub.refuse = where
    code, said = command(capsys, release, "--hub_model_id", NAME)
    assert code == 2 and "--hub_model_id" in said and "try again" in said
    assert set(hub.repositories[f"models/{NAME}"]) == {".gitattributes"}
    sent = len(hub.large)
    hub.refuse = None
    hub.calls.clear()
    assert command(capsys, release, "--hub_model_id", NAME)[0] == 0
    assert set(hub.repositories[f"models/{NAME}"]) == {*RELEASE_FILES, ".gitattributes"}
    assert sum(call.startswith("PUT") for call in hub.calls) == 1 - sent  # what was there is not sent again


def test_the_same_release_again_and_with_an_audit_is_no_other(hub, release, capsys):  # noqa: F811
    assert command(capsys, release, "--hub_model_id", NAME)[0] == 0
    add_audit(release, {"verdict": "VALID"})
    assert command(capsys, release, "--hub_model_id", NAME)[0] == 0
    assert b"VALID" in hub.repositories[f"models/{NAME}"]["privacy_receipt.json"]


def test_a_signature_by_hand_hurts_no_release_and_goes_up_by_hand(hub, release, capsys):  # noqa: F811
    (release / SIGNATURE_NAME).write_bytes(b"-----BEGIN SSH SIGNATURE-----")
    assert command(capsys, release, "--hub_model_id", NAME)[0] == 0
    there = hub.repositories[f"models/{NAME}"]
    assert SIGNATURE_NAME not in there
    there[SIGNATURE_NAME] = b"-----BEGIN SSH SIGNATURE-----"
    assert command(capsys, release, "--hub_model_id", NAME)[0] == 0


def test_the_receipt_of_other_files_is_another_release(hub, release, capsys):  # noqa: F811
    assert command(capsys, release, "--hub_model_id", NAME)[0] == 0
    there = hub.repositories[f"models/{NAME}"]
    receipt = json.loads(there["privacy_receipt.json"])
    receipt["files"][0]["sha256"] = "0" * 64
    there["privacy_receipt.json"] = canonical_json(receipt).encode()
    code, said = command(capsys, release, "--hub_model_id", NAME)
    assert code == 2 and "is taken" in said


@pytest.mark.parametrize("others", [{"thesis.pdf": b""}, {"README.md": b"mine"}, {"privacy_receipt.json": b"{}"}])
def test_a_name_that_is_taken_is_left_alone(hub, release, capsys, others):  # noqa: F811
    hub.repositories[f"models/{NAME}"] = dict(others)
    code, said = command(capsys, release, "--hub_model_id", NAME)
    assert code == 2 and "is taken" in said and hub.repositories[f"models/{NAME}"] == others


def test_what_should_be_private_does_not_go_into_a_public_repository(hub, release, capsys):  # noqa: F811
    hub.repositories[f"models/{NAME}"] = {".gitattributes": b""}
    code, said = command(capsys, release, "--hub_model_id", NAME, "--hub_private_repo")
    assert code == 2 and "public repository already" in said
    assert set(hub.repositories[f"models/{NAME}"]) == {".gitattributes"}


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (lambda r: (r / "notes.txt").write_bytes(SECRET), "notes.txt is not in the receipt"),
        (lambda r: (r / "samples.png").write_bytes(b""), "samples.png is not the file"),
        (lambda r: (r / "README.md").unlink(), "README.md is missing"),
        (lambda r: (r / "README.md").write_text("epsilon 0.1"), "does not carry the guarantee"),
        (lambda r: (r / "privacy_receipt.json").write_text("{"), "not valid JSON"),
    ],
)
def test_what_is_not_the_release_of_its_receipt_is_not_sent(hub, release, capsys, tamper, words):  # noqa: F811
    tamper(release)
    code, said = command(capsys, release, "--hub_model_id", NAME)
    assert code == 4 and words in said and hub.calls == []


def test_a_receipt_that_lists_more_files_does_not_widen_the_allow_list(release):
    """Made with our own tools: hashes and statement agree, and yet it is none of a release's files."""
    from diffusers_dp.files.canonical import canonical_json
    from diffusers_dp.release.receipt import hash_release
    from diffusers_dp.verify import receipt_digest

    (release / "private.csv").write_bytes(SECRET)
    path = release / "privacy_receipt.json"
    path.write_text(canonical_json({**json.loads(path.read_text()), "files": hash_release(release)}))
    index = json.loads((release / "model_index.json").read_text())
    index["privacy"]["receipt_sha256"] = receipt_digest(path)
    (release / "model_index.json").write_text(canonical_json(index))
    with pytest.raises(IntegrityError, match="private.csv is none of a release's files"):
        files_to_push(release)
    assert "private.csv" in files_to_push(release, (*PIPELINE_FILES, "private.csv"))  # its artefact's own allow-list


class TestTrainingFlags:
    def config(self, *flags):
        return load_config(["--output_dir", "runs/mine", *flags])

    def test_a_run_asks_the_hub_before_it_reads_an_image(self, hub, monkeypatch):  # noqa: F811
        check_hub("mine", name_alone=True)
        assert hub.calls == []
        check_hub("mine")
        assert hub.calls == ["GET /api/whoami-v2"] and hub.repositories == {}
        monkeypatch.delenv("HF_TOKEN")
        with pytest.raises(UsageError, match="--hub_model_id mine needs a Hub token"):
            check_hub("mine")

    def test_a_whole_training_ends_on_the_hub(self, hub, script, tmp_path, capsys):  # noqa: F811
        flags = [*FOLDER, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")]
        script.main([*flags, "--push_to_hub", "--hub_model_id", NAME, "--hub_private_repo"])
        there = hub.repositories[f"models/{NAME}"]
        assert set(there) == {*RELEASE_FILES, ".gitattributes"} and f"models/{NAME}" in hub.private
        assert all(there[name] == (tmp_path / "run" / "release" / name).read_bytes() for name in RELEASE_FILES)
        assert f"Pushed to {hub.url}/{NAME}" in capsys.readouterr().out.splitlines()


class TestThePage:
    """It fetches by name, and asks how large a model is before that."""

    def test_visitors_do_not_use_the_owner_s_token(self, hub, release):  # noqa: F811
        push_release(release, NAME, private=True)
        assert Shelf([NAME], Limits()).open(NAME).receipt
        with pytest.raises(UsageError, match="that you can access"):
            Shelf([], Limits()).open(NAME)

    def test_a_name_of_the_hub_opens_no_folder_here(self, hub, release, tmp_path, monkeypatch):  # noqa: F811
        """A stranger can give a repository the name of a path."""
        push_release(release, NAME)
        release.rename(tmp_path / "moved")
        monkeypatch.chdir(tmp_path)
        (tmp_path / OWNER).mkdir()
        (tmp_path / "moved").rename(tmp_path / NAME)
        folder = Shelf([], Limits()).open(NAME).folder
        assert folder.resolve() != (tmp_path / NAME).resolve()
        assert Shelf([], Limits(), folders_by_visitors=True).open(NAME).folder.resolve() == (tmp_path / NAME).resolve()

    @pytest.mark.parametrize(
        ("extra", "words"),
        [
            ({"unet/huge.safetensors": b"0" * 2_000_000}, "is too large"),
            ({"unet/diffusion_pytorch_model.bin": b""}, "pickle"),
            ({"privacy_receipt.json": None}, "holds no privacy_receipt.json"),
        ],
    )
    def test_what_will_not_do_is_not_fetched(self, hub, release, extra, words):  # noqa: F811
        push_release(release, NAME)
        files = hub.repositories[f"models/{NAME}"]
        files.update(extra)
        for name in [name for name, content in files.items() if content is None]:
            del files[name]
        hub.calls.clear()
        with pytest.raises((UsageError, IntegrityError), match=words):
            Shelf([], Limits(max_model_mb=1)).open(NAME)
        assert not [call for call in hub.calls if "/resolve/" in call]
