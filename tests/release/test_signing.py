# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Signed receipts, by the real `ssh-keygen`: who vouches is said only where the reader's own copy of the key fits."""

import json
import os
import shutil
import subprocess

import pytest

from diffusers_dp import cli, verify
from diffusers_dp.errors import UsageError
from diffusers_dp.release.build import attach_audit
from diffusers_dp.release.push import push_release
from diffusers_dp.release.receipt import canonical_json, hash_release
from diffusers_dp.release.signing import HOLDER, NAMESPACE, check_signature, read_signer
from diffusers_dp.verify import RECEIPT_NAME, SIGNATURE_NAME, read_receipt
from support.hub_stand_in import OWNER, hub  # noqa: F401 (a fixture)
from support.releases import reseal


pytestmark = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed (openssh-client)"
)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Private keys of two houses; their public halves lie beside them."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "others"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{name} of a hospital", "-f", folder / name]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture
def signed(release, keys):
    by_hand(release, keys / "ours")
    return release


def command(capsys, *arguments):
    """Exit code and what was printed."""
    try:
        cli.main(list(map(str, arguments)))
        code = 0
    except SystemExit as stopped:
        code = stopped.code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out + said.err


def check(capsys, release, key, *others):
    return command(capsys, "verify", release, "--signer", key, *others)


def vouched(release, key, identity=None):
    """Whether the signature fits, without the rest of the verifier."""
    return check_signature(release, read_receipt(release), read_signer(key, identity))[0]


def reseal_files(release):
    """After an edit of files: the receipt lists their hashes, and the index holds the hash of the receipt."""
    files = [file for file in hash_release(release) if file["name"] != SIGNATURE_NAME]
    reseal(release, lambda receipt: receipt.update(files=files))


def by_hand(release, key, namespace=NAMESPACE):
    """As anybody signs with `ssh-keygen` alone."""
    made = subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-n", namespace, "-f", key],
        input=(release / RECEIPT_NAME).read_bytes(), capture_output=True, check=True,
    )  # fmt: skip
    (release / SIGNATURE_NAME).write_bytes(made.stdout)


def test_a_signature_says_who_vouches_and_not_that_noise_was_added(signed, keys, capsys):
    code, said = check(capsys, signed, keys / "ours.pub")
    fingerprint = subprocess.run(["ssh-keygen", "-l", "-f", keys / "ours.pub"], capture_output=True, text=True).stdout
    assert code == 0 and f"signed by the holder of {keys / 'ours.pub'}" in said and fingerprint.split()[1] in said
    assert (
        "numbers consistent: epsilon" in said and "unsigned" not in said and "cannot show that noise was added" in said
    )


def test_without_the_reader_s_key_a_signature_is_mentioned_and_vouches_for_nobody(signed, capsys):
    code, said = command(capsys, "verify", signed)
    assert code == 0 and "numbers consistent, signature not checked: epsilon" in said and "--signer" in said
    assert "signed by" not in said and "unsigned" not in said
    assert verify.verify(signed)[1] == []


def test_a_release_without_a_signature_stays_valid_and_is_vouched_for_by_nobody(release, keys, capsys):
    assert command(capsys, "verify", release)[0] == 0
    code, said = check(capsys, release, keys / "ours.pub")
    assert code == 4 and "is not signed" in said and "numbers consistent" not in said


def test_another_key_does_not_vouch(signed, keys, capsys):
    code, said = check(capsys, signed, keys / "others.pub")
    assert code == 4 and "does NOT match" in said and "others.pub" in said and "signed by the holder" not in said


@pytest.mark.parametrize(
    "change",
    [
        lambda receipt: receipt["files"][0].update(sha256="0" * 64),
        lambda receipt: receipt["events"][-1].update(noise_multiplier=9.0),
        lambda receipt: receipt["claimed_epsilon"]["rdp"].update(epsilon=9.0),
    ],
)
def test_an_edited_receipt_is_not_vouched_for_however_it_was_resealed(signed, keys, change):
    assert vouched(signed, keys / "ours.pub")
    reseal(signed, change)
    assert not vouched(signed, keys / "ours.pub")


def edit_index(release):
    index = json.loads((release / "model_index.json").read_text())
    (release / "model_index.json").write_text(canonical_json({**index, "patch_size": 2}))


def test_a_signature_for_another_purpose_does_not_count(release, keys):
    """Institutions sign mails and commits with the same key."""
    by_hand(release, keys / "ours", namespace="file")
    assert not vouched(release, keys / "ours.pub")


def test_the_signature_of_another_release_does_not_count(signed, keys, tmp_path):
    other = shutil.copytree(signed, tmp_path / "other")
    edit_index(other)
    reseal_files(other)
    by_hand(other, keys / "ours")
    assert vouched(other, keys / "ours.pub")
    shutil.copyfile(other / SIGNATURE_NAME, signed / SIGNATURE_NAME)
    assert not vouched(signed, keys / "ours.pub")


def test_what_may_be_added_later_leaves_the_signature_valid(release, keys, capsys):
    assert command(capsys, "sign", release, "--key", keys / "ours")[0] == 0
    attach_audit(release, {"read_private_data": False, "verdict": "VALID"})
    receipt = json.loads((release / RECEIPT_NAME).read_text())
    (release / RECEIPT_NAME).write_text(canonical_json({**receipt, "private_evaluations": 3}))
    (release / "README.md").write_text((release / "README.md").read_text() + "\nMore words.\n")
    assert check(capsys, release, keys / "ours.pub")[0] == 0
    first = (release / SIGNATURE_NAME).read_bytes()
    assert command(capsys, "sign", release, "--key", keys / "ours")[0] == 0
    assert (release / SIGNATURE_NAME).read_bytes() == first  # Ed25519 is deterministic: the same was signed


def test_a_file_of_allowed_signers_and_an_identity(signed, keys, capsys, tmp_path):
    file = tmp_path / "allowed_signers"
    lines = [f"{name}@clinic.example {(keys / f'{name}.pub').read_text()}" for name in ("others", "ours")]
    file.write_text("".join(lines))
    code, said = check(capsys, signed, file, "--identity", "ours@clinic.example")
    assert code == 0 and f"signed by ours@clinic.example of {file}" in said and "SHA256:" in said
    assert not vouched(signed, file, "others@clinic.example") and not vouched(signed, file, "nobody")
    assert check(capsys, signed, tmp_path / "none", "--identity", "ours@clinic.example")[0] == 2
    code, said = command(capsys, "verify", signed, "--identity", "ours@clinic.example")
    assert code == 2 and "--signer" in said


@pytest.mark.parametrize("text", ["{ours}\r{holder} {others}", "cert-authority {others}", "{ours} {others}"])
def test_a_key_cannot_smuggle_in_another(release, keys, tmp_path, text):
    """A key's file becomes a line of allowed signers: its kind and the key alone enter that."""
    by_hand(release, keys / "others")
    ours, others = (" ".join((keys / f"{name}.pub").read_text().split()[:2]) for name in ("ours", "others"))
    (tmp_path / "key.pub").write_text(text.format(ours=ours, others=others, holder=HOLDER))
    try:
        assert not vouched(release, tmp_path / "key.pub")
    except UsageError as error:
        assert "--signer" in str(error)


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(b"0" * 10**6),
        lambda path: path.write_text("-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"),
    ],
)
def test_what_stands_in_the_signature_s_place_is_no_signature(release, keys, make):
    make(release / SIGNATURE_NAME)
    fits, said = check_signature(release, read_receipt(release), read_signer(keys / "ours.pub"))
    assert not fits and SIGNATURE_NAME in said


def test_only_what_verifies_is_signed(release, keys, capsys):
    (release / "samples.png").write_bytes(b"")
    code, said = command(capsys, "sign", release, "--key", keys / "ours")
    assert code == 4 and "samples.png" in said and not (release / SIGNATURE_NAME).exists()


def test_a_signature_goes_to_the_hub_if_it_fits(hub, signed, keys, capsys):  # noqa: F811
    name = f"{OWNER}/scans"
    push_release(signed, name)
    assert SIGNATURE_NAME in hub.repositories[f"models/{name}"]
    assert check(capsys, name, keys / "ours.pub")[0] == 0
    (signed / SIGNATURE_NAME).unlink()
    push_release(signed, name)  # an unsigned copy of the same release is no other one
    by_hand(signed, keys / "ours")
    reseal(signed, lambda receipt: receipt.update(target_epsilon=1000.0))
    code, said = command(capsys, "push", signed, "--hub_model_id", name, "--dry_run")
    assert code == 4 and "sign it again" in said
