# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""An in-toto statement about a release, for programs that decide by attestations what they admit. No torch.

The statement (in-toto attestation framework, Statement v1) names each file by its SHA-256, and states the guarantee.
It travels in a DSSE envelope (v1.0). The signature is one of OpenSSH, as that of a receipt: DSSE leaves the kind of
signature to signer and reader. It says who vouches for the statement, never that noise was added.
"""

import base64
import binascii
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from ..errors import IntegrityError, UsageError
from ..files.canonical import canonical_json
from ..files.journal import replace_file
from ..files.strange_files import read_bounded
from ..verify import settled_digest
from .hub import verify_here
from .plain_words import claimed
from .signing import Signer, fingerprint_of, signature_of


STATEMENT_TYPE, PAYLOAD_TYPE = "https://in-toto.io/Statement/v1", "application/vnd.in-toto+json"
#: Names the fields of `predicate_of`. It leads nowhere, as the framework allows.
PREDICATE_TYPE = "urn:diffusers_dp:privacy-guarantee:v1"
NAMESPACE = "diffusers_dp-statement-v1"
MOST_BYTES = 10_000_000
ARMOUR = "-----BEGIN SSH SIGNATURE-----\n{}\n-----END SSH SIGNATURE-----\n"


def statement_of(folder: Path, receipt: dict[str, Any]) -> dict[str, Any]:
    """Builds the statement about a verified release.

    Args:
        folder (`Path`): Folder of the release.
        receipt (`dict`): Its receipt, as compared with the files.
    """
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": file["name"], "digest": {"sha256": _digest(folder, file)}} for file in receipt["files"]],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate_of(receipt),
    }


def predicate_of(receipt: dict[str, Any]) -> dict[str, Any]:
    """States the guarantee. The receipt's digest is `verify.receipt_digest`, of the receipt as it was made."""
    facts = receipt["public_facts"]
    return {
        "receipt": {"digest": {"sha256": settled_digest(receipt)}},
        "epsilon": claimed(receipt),
        "delta": receipt["delta"],
        "accountant": receipt["accountant"],
        "unit": receipt["unit_of_privacy"],
        "numberOfUnits": facts.get("num_units", facts.get("num_images")),
        "adjacency": receipt["adjacency"],
        "status": receipt["status"],
    }


def _digest(folder: Path, file: dict[str, str]) -> str:
    """SHA-256 of the file as it is. A receipt hashes `model_index.json` without the field that names the receipt."""
    if file["name"] != "model_index.json":
        return file["sha256"]
    return hashlib.sha256((folder / file["name"]).read_bytes()).hexdigest()


def signed_content(payload: bytes) -> bytes:
    """Returns what is signed: DSSE's pre-authentication encoding of type and payload."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def write_statement(release: str | Path, key: str | Path, path: Path) -> None:
    """Checks a release completely, and writes a signed statement about it.

    Args:
        release (`str` or `Path`): Folder of the release.
        key (`str` or `Path`): Private key, or the public half of a key in an agent.
        path (`Path`): File to write, outside of the release.

    Raises:
        UsageError: The release, the key or `ssh-keygen` is missing, or the file cannot be written or lies in the
            release.
        IntegrityError: The release does not match its receipt.
    """
    folder = Path(release)
    if path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"--statement {path} lies in the release, which holds listed files only; give another place.")
    receipt, problems = verify_here(folder)
    if problems:
        raise IntegrityError(f"{folder} gets no statement: {' '.join(problems)} Restore the release first.")
    payload = canonical_json(statement_of(folder, receipt)).encode()
    armoured = signature_of(signed_content(payload), key, NAMESPACE).decode()
    envelope = {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"sig": "".join(armoured.split("-----")[2].split())}],
    }
    try:
        replace_file(path, canonical_json(envelope).encode())
    except OSError as error:
        raise UsageError(f"--statement {path} cannot be written ({error.strerror}); give another file.") from None


def check_statement_of(path: Path, folder: Path, receipt: dict[str, Any], signer: Signer) -> tuple[bool, str]:
    """Tells whether a file is a statement of this signer about this release, with a sentence for the reader.

    Args:
        path (`Path`): Envelope.
        folder (`Path`): Folder of the release.
        receipt (`dict`): Its receipt, as compared with the files.
        signer (`Signer`): Signer whom the reader trusts.

    Raises:
        UsageError: The file cannot be read, or `ssh-keygen` is missing.
    """
    try:
        content = read_bounded(path, MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--statement {path} cannot be read ({reason}); give the file that `sign` wrote.") from None
    try:
        envelope = json.loads(content)
        payload = base64.b64decode(_standard(envelope["payload"]), validate=True)
        signatures = [_standard(each["sig"]) for each in envelope["signatures"]]
        kind, said = envelope["payloadType"], json.loads(payload)
    except (ValueError, LookupError, TypeError, AttributeError, binascii.Error, RecursionError):
        return False, f"{path} is no DSSE envelope of a statement."
    vouched = (
        fingerprint_of(ARMOUR.format(signature).encode(), signed_content(payload), signer, NAMESPACE)
        for signature in signatures[:10]
        if re.fullmatch(r"[A-Za-z0-9+/=]{1,20000}", signature)
    )
    fingerprint = next(filter(None, vouched), None)
    if kind != PAYLOAD_TYPE or fingerprint is None:
        return False, f"{path} carries no signature of {signer.words}."
    if said != statement_of(folder, receipt):
        return False, f"{path} is a statement about another release, or about another state of this one."
    return True, f"{path}: statement signed by {signer.words}, fingerprint {fingerprint}."


def _standard(text: str) -> str:
    """DSSE takes both alphabets of base64."""
    return text.replace("-", "+").replace("_", "/")
