# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""In-toto statements by the real `ssh-keygen`, read as programs without this library read them; and advisories."""

import base64
import hashlib
import json
import shutil
import subprocess

import pytest

from diffusers_dp import cli, verify
from diffusers_dp.release.statement import NAMESPACE, PAYLOAD_TYPE, signed_content
from support.releases import RECEIPT, WEIGHTS, reseal


needs_keys = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed (openssh-client)"
)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "others"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", folder / name]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture
def statement(release, keys, tmp_path, capsys):
    path = tmp_path / "statement.json"
    assert command(capsys, "sign", release, "--key", keys / "ours", "--statement", path)[0] == 0
    return path


def command(capsys, *arguments):
    code = 0
    try:
        cli.main(list(map(str, arguments)))
    except SystemExit as stopped:
        code = stopped.code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out + said.err


def check(capsys, release, key, statement):
    return command(capsys, "verify", release, "--signer", key, "--statement", statement)


def test_what_is_signed_is_the_encoding_of_the_specification():
    """Its own test vector, with another type."""
    assert signed_content(b"hello world") == b"DSSEv1 28 application/vnd.in-toto+json 11 hello world"


@needs_keys
def test_a_statement_is_what_programs_expect(release, statement, keys, tmp_path):
    """Envelope, statement and subjects, without the library; the signature by ssh-keygen alone."""
    envelope = json.loads(statement.read_text())
    assert set(envelope) == {"payload", "payloadType", "signatures"} and envelope["payloadType"] == PAYLOAD_TYPE
    payload = base64.b64decode(envelope["payload"])
    found = json.loads(payload)
    assert found["_type"] == "https://in-toto.io/Statement/v1" and ":v1" in found["predicateType"]
    assert set(found) == {"_type", "subject", "predicateType", "predicate"}
    for subject in found["subject"]:
        content = (release / subject["name"]).read_bytes()
        assert subject["digest"] == {"sha256": hashlib.sha256(content).hexdigest()}
    receipt = json.loads((release / RECEIPT).read_text())
    assert {each["name"] for each in found["subject"]} == {file["name"] for file in receipt["files"]}
    predicate = found["predicate"]
    assert predicate["receipt"]["digest"]["sha256"] == hashlib.sha256((release / RECEIPT).read_bytes()).hexdigest()
    assert (predicate["epsilon"], predicate["delta"], predicate["unit"]) == (
        receipt["claimed_epsilon"]["rdp"]["epsilon"], receipt["delta"], "image",
    )  # fmt: skip
    blob = envelope["signatures"][0]["sig"]
    assert base64.b64decode(blob).startswith(b"SSHSIG")
    (tmp_path / "sig").write_text(f"-----BEGIN SSH SIGNATURE-----\n{blob}\n-----END SSH SIGNATURE-----\n")
    (tmp_path / "allowed").write_text(f"us {(keys / 'ours.pub').read_text()}")
    pae = b"DSSEv1 28 application/vnd.in-toto+json %d " % len(payload) + payload
    by_hand = ["ssh-keygen", "-Y", "verify", "-f", "allowed", "-I", "us", "-n", NAMESPACE, "-s", "sig"]
    subprocess.run(by_hand, input=pae, check=True, cwd=tmp_path)


@needs_keys
def test_a_statement_vouches_only_by_the_reader_s_key(release, statement, keys, capsys):
    code, said = check(capsys, release, keys / "ours.pub", statement)
    assert code == 0 and "numbers consistent: epsilon" in said and "statement signed by the holder of" in said
    code, said = check(capsys, release, keys / "others.pub", statement)
    assert code == 4 and "carries no signature" in said and "numbers consistent" not in said
    code, said = command(capsys, "verify", release, "--statement", statement)
    assert code == 2 and "--signer" in said


def payload_with(statement, **changes):
    envelope = json.loads(statement.read_text())
    payload = json.loads(base64.b64decode(envelope["payload"]))
    payload["predicate"] |= changes
    envelope["payload"] = base64.b64encode(json.dumps(payload).encode()).decode()
    statement.write_text(json.dumps(envelope))


@needs_keys
def test_an_edited_statement_and_another_release_are_noticed(release, statement, keys, capsys, tmp_path):
    kept = statement.read_text()
    payload_with(statement, epsilon=0.1)
    assert "carries no signature" in check(capsys, release, keys / "ours.pub", statement)[1]
    statement.write_text(kept)
    reseal(release, lambda receipt: receipt.update(target_epsilon=1000.0))
    code, said = check(capsys, release, keys / "ours.pub", statement)
    assert code == 4 and "about another release" in said


@needs_keys
@pytest.mark.parametrize(
    "content", ["{", "[]", '{"payload": "!", "payloadType": "x", "signatures": []}', "{}", "null"]
)
def test_what_is_no_envelope_is_said(release, keys, capsys, tmp_path, content):
    path = tmp_path / "statement.json"
    path.write_text(content)
    assert check(capsys, release, keys / "ours.pub", path)[0] == 4
    assert check(capsys, release, keys / "ours.pub", tmp_path / "absent")[0] == 2


@needs_keys
def test_a_signature_of_a_receipt_is_none_of_a_statement(release, keys, capsys, statement, tmp_path):
    """Each has a purpose of its own."""
    envelope = json.loads(statement.read_text())
    content = signed_content(base64.b64decode(envelope["payload"]))
    made = subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-n", "diffusers_dp-receipt-v1", "-f", keys / "ours"],
        input=content, capture_output=True, check=True,
    ).stdout.decode()  # fmt: skip
    statement.write_text(json.dumps({**envelope, "signatures": [{"sig": "".join(made.split("-----")[2].split())}]}))
    assert check(capsys, release, keys / "ours.pub", statement)[0] == 4


@needs_keys
def test_only_what_verifies_gets_a_statement_and_none_lies_in_a_release(release, keys, capsys, tmp_path):
    code, said = command(capsys, "sign", release, "--key", keys / "ours", "--statement", release / "statement.json")
    assert code == 2 and "lies in the release" in said
    (release / WEIGHTS).write_bytes(b"")
    path = tmp_path / "statement.json"
    assert command(capsys, "sign", release, "--key", keys / "ours", "--statement", path)[0] == 4 and not path.exists()


class TestAdvisories:
    def test_a_release_without_known_faults(self, release, capsys):
        code, said = command(capsys, "advisories", release)
        assert code == 0 and "No known fault touches this release" in said and "new version" in said

    def test_a_fault_of_its_version_is_told_with_what_to_do(self, release, capsys):
        inputs, resumes = [{"kind": "public images", "name": "x"}], [{"step": 3, "fresh_entropy": True}]
        reseal(release, lambda receipt: receipt.update(claims_version=2, resumes=resumes, public_inputs=inputs))
        assert verify.verify(release)[1] == []
        code, said = command(capsys, "advisories", release)
        assert code == 4 and said.count("KNOWN FAULT") == said.count("What to do:") == 2
        assert "the run was resumed" in said and "Ask who trained it" in said and "withdraw" in said

    def test_each_known_fault_says_what_to_do(self):
        for _, _, sentence, remedy in verify.KNOWN_FAULTS:
            assert sentence.endswith(".") and remedy.endswith(".") and sentence != remedy

    def test_what_does_not_match_has_no_advisories(self, release, capsys):
        (release / "samples.png").write_bytes(b"")
        code, said = command(capsys, "advisories", release)
        assert code == 4 and "samples.png" in said and "KNOWN FAULT" not in said
        (release / RECEIPT).unlink()
        assert command(capsys, "advisories", release)[0] == 2
