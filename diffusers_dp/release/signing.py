# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Who vouches for a release: signatures by `ssh-keygen`, with a key that an institution has already. No torch.

Signed is the settled receipt, which states the hash of every file: it covers whatever `verify` compares. What may be
added later (the `audit`, the count of `private_evaluations`, the card's words) lies outside. A signature says who
vouches for the receipt, never that noise was added. The format is OpenSSH's (PROTOCOL.sshsig). The namespace is our
own: no signature that the same key made for another purpose counts here.
"""

import os
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import IntegrityError, UsageError
from ..files.journal import replace_file
from ..verify import SIGNATURE_NAME, settled_content
from .hub import verify_here


NAMESPACE = "diffusers_dp-receipt-v1"
HOLDER = "holder"  # the name that a single key has in the file made for `ssh-keygen`
MOST_BYTES = 100_000  # of a signature, of a key, of a file of allowed signers


@dataclass(frozen=True)
class Signer:
    """Whose signature a reader asks for.

    Args:
        allowed (`bytes`): Lines of allowed signers, as ssh-keygen(1) describes them.
        identity (`str`): The one among them.
        words (`str`): Who that is.
    """

    allowed: bytes
    identity: str
    words: str


def read_signer(path: str | Path, identity: str | None = None) -> Signer:
    """Reads the reader's own copy of a key.

    Args:
        path (`str` or `Path`): A file with one public key; with an identity, a file of allowed signers.
        identity (`str`, *optional*): Who must have signed, among the allowed signers.

    Raises:
        UsageError: There is no such key, or no `ssh-keygen`.
    """
    kind = "one public key" if identity is None else "allowed signers"
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--signer {path} cannot be read ({error.strerror}): give a file with {kind}.") from None
    if len(content) > MOST_BYTES:
        raise UsageError(f"--signer {path} has more than {MOST_BYTES:,} bytes: give a file with {kind}.")
    if identity is not None:
        return Signer(content, identity, f"{identity} of {path}")
    lines = [line.split() for line in content.splitlines() if line.strip()]
    key = b" ".join(lines[0][:2]) if len(lines) == 1 else b""  # its kind and itself: neither options nor names enter
    with tempfile.NamedTemporaryFile() as copy:
        copy.write(key)
        copy.flush()
        is_key = _ssh_keygen("-l", "-f", copy.name).returncode == 0
    if not is_key:
        raise UsageError(f"--signer {path} is not one public key: give the file of one, such as id_ed25519.pub.")
    return Signer(HOLDER.encode() + b" " + key + b"\n", HOLDER, f"the holder of {path}")


def check_signature(folder: Path, receipt: dict[str, Any], signer: Signer) -> tuple[bool, str]:
    """Whether this signer vouches for this receipt, and the sentence that says so.

    Args:
        folder (`Path`): The release, which holds the signature.
        receipt (`dict`): Its receipt, as it was compared with the files.
        signer (`Signer`): Whom the reader asks for.

    Raises:
        UsageError: There is no `ssh-keygen`.
    """
    if not os.path.lexists(folder / SIGNATURE_NAME):
        return False, f"It is not signed: {SIGNATURE_NAME} is missing."
    with tempfile.TemporaryDirectory() as temporary:
        allowed, signature = Path(temporary, "allowed"), Path(temporary, "signature")
        allowed.write_bytes(signer.allowed)
        signature.write_bytes(_read_signature(folder))
        found = _ssh_keygen(
            "-Y", "verify", "-f", str(allowed), "-I", signer.identity, "-n", NAMESPACE, "-s", str(signature),
            content=settled_content(receipt),
        )  # fmt: skip
    if found.returncode != 0:
        return False, f"{SIGNATURE_NAME} is no signature of this receipt by {signer.words}."
    fingerprint = found.stdout.decode(errors="replace").split()[-1]
    return True, (
        f"signed by {signer.words}, fingerprint {fingerprint}: they vouch for this receipt and its files. "
        "A signature cannot show that noise was added."
    )


def signature_fits(folder: Path, receipt: dict[str, Any]) -> bool:
    """Whether some key made the release's signature for this receipt; whose key it is stays open.

    Raises:
        UsageError: There is no `ssh-keygen`.
    """
    with tempfile.NamedTemporaryFile() as copy:
        copy.write(_read_signature(folder))
        copy.flush()
        found = _ssh_keygen(
            "-Y", "check-novalidate", "-n", NAMESPACE, "-s", copy.name, content=settled_content(receipt)
        )
    return found.returncode == 0


def sign_release(release: str | Path, key: str | Path) -> None:
    """Signs a release, after a look at all of it; an earlier signature is replaced.

    Args:
        release (`str` or `Path`): Folder.
        key (`str` or `Path`): Private key, or the public half of one that an agent holds.

    Raises:
        UsageError: There is no release, no such key, no `ssh-keygen`, or the folder cannot be written.
        IntegrityError: The release is not what its receipt says.
    """
    folder = Path(release)
    receipt, problems = verify_here(folder)
    if problems:
        raise IntegrityError(f"{folder} is not signed: {' '.join(problems)} Restore the release first.")
    made = _ssh_keygen("-Y", "sign", "-n", NAMESPACE, "-f", str(key), content=settled_content(receipt))
    if made.returncode != 0:
        reason = (made.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        raise UsageError(f"--key {key} cannot sign: ssh-keygen says '{reason}'. Give the file of a private key.")
    try:
        replace_file(folder / SIGNATURE_NAME, made.stdout)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror}): copy it to a folder that can.") from None


def _read_signature(folder: Path) -> bytes:
    """Of a release that a stranger made: nothing, where it is no file or too large for a signature."""
    try:
        descriptor = os.open(folder / SIGNATURE_NAME, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        content = os.read(descriptor, MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    return content if len(content) <= MOST_BYTES else b""


def _ssh_keygen(*arguments: str, content: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["ssh-keygen", *arguments], input=content, capture_output=True)
    except OSError:
        raise UsageError(
            "ssh-keygen makes and checks signatures, and it is not on this machine: install OpenSSH 8.2 or newer "
            "(openssh-client)."
        ) from None
