# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Signatures of releases by `ssh-keygen`, with a key that an institution already has. No torch.

The signature covers the settled receipt with the hash of every file, and thereby all that `verify` compares. It does
not cover later additions: the `audit`, the count of `private_evaluations`, the card's words. A signature tells who
vouches for the receipt; it does not prove that noise was added. The format is OpenSSH's (PROTOCOL.sshsig). The
namespace is specific to this library, so signatures of the same key for other purposes do not count.
"""

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files.journal import replace_file
from ..files.untrusted_files import read_bounded
from ..verify import settled_content
from ..words import SIGNATURE_NAME
from .hub import intact_receipt


NAMESPACE = "diffusers_dp-receipt-v1"
HOLDER = "holder"  # name of a single key in the file for `ssh-keygen`
MOST_BYTES = 100_000  # maximum size of a signature, a key, or a file of allowed signers


@dataclass(frozen=True)
class Signer:
    """The signer whom a reader trusts.

    Args:
        allowed (`bytes`): Lines of allowed signers, as ssh-keygen(1) describes them.
        identity (`str`): Identity of the signer among them.
        words (`str`): Description of the signer.
    """

    allowed: bytes
    identity: str
    words: str


def read_signer(path: str | Path | None, identity: str | None = None) -> Signer | None:
    """Reads the reader's copy of a key; returns `None` if no file is given.

    Args:
        path (`str` or `Path`, *optional*): File with one public key; with an identity, a file of allowed signers.
        identity (`str`, *optional*): Required signer among the allowed signers.

    Raises:
        UsageError: The key or `ssh-keygen` is missing, or there is an identity and no file.
    """
    if path is None:
        if identity is not None:
            raise UsageError("--identity names one of several signers: give their file with --signer.")
        return None
    content = _read(path, f"--signer {path}", "one public key" if identity is None else "allowed signers")
    if identity is not None:
        return Signer(content, identity, f"{identity} of {path}")
    lines = [line.split() for line in content.splitlines() if line.strip()]
    key = b" ".join(lines[0][:2]) if len(lines) == 1 else b""  # only type and key, without options and comments
    is_key = _ssh_keygen("-l", "-f", key).returncode == 0
    if not is_key:
        raise UsageError(f"--signer {path} is not one public key: give the file of one, such as id_ed25519.pub.")
    return Signer(HOLDER.encode() + b" " + key + b"\n", HOLDER, f"the holder of {path}")


def check_signature(folder: Path, receipt: dict[str, Any], signer: Signer) -> tuple[bool, str]:
    """Tells whether this signer vouches for this receipt, with a sentence for the reader.

    Args:
        folder (`Path`): Folder of the release with the signature.
        receipt (`dict`): Its receipt, as compared with the files.
        signer (`Signer`): Signer whom the reader trusts.

    Raises:
        UsageError: `ssh-keygen` is missing.
    """
    if not os.path.lexists(folder / SIGNATURE_NAME):
        return False, f"It is not signed: {SIGNATURE_NAME} is missing."
    found = _ssh_keygen(
        "-Y", "verify", "-f", signer.allowed, "-I", signer.identity, "-n", NAMESPACE, "-s", _read_signature(folder),
        content=settled_content(receipt),
    )  # fmt: skip
    if found.returncode != 0:
        return False, f"{SIGNATURE_NAME} is no signature of this receipt by {signer.words}."
    fingerprint = found.stdout.decode(errors="replace").split()[-1]
    return True, (
        f"signed by {signer.words}, fingerprint {fingerprint}: they vouch for this receipt and its files. "
        "A signature cannot show that noise was added."
    )


def signature_of(content: bytes, key: str | Path) -> bytes:
    """Signs bytes in this library's namespace."""
    _read(key, f"--key {key}", "a private key")  # ssh-keygen would wait for a pipe
    made = _ssh_keygen("-Y", "sign", "-n", NAMESPACE, "-f", str(key), content=content)
    if made.returncode != 0:
        reason = (made.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        raise UsageError(f"--key {key} cannot sign: ssh-keygen says '{reason}'. Give the file of a private key.")
    return made.stdout


def signature_fits(folder: Path, receipt: dict[str, Any]) -> bool:
    """Tells whether any key made the release's signature for this receipt, without checking the owner of the key.

    Raises:
        UsageError: `ssh-keygen` is missing.
    """
    signature = _read_signature(folder)
    found = _ssh_keygen("-Y", "check-novalidate", "-n", NAMESPACE, "-s", signature, content=settled_content(receipt))
    return found.returncode == 0


def sign_release(release: str | Path, key: str | Path) -> None:
    """Checks a release completely and signs it; replaces an earlier signature.

    Args:
        release (`str` or `Path`): Folder of the release.
        key (`str` or `Path`): Private key, or the public half of a key in an agent.

    Raises:
        UsageError: The release, the key or `ssh-keygen` is missing, or the folder cannot be written.
        IntegrityError: The release does not match its receipt.
    """
    folder = Path(release)
    signature = signature_of(settled_content(intact_receipt(folder, "sign")), key)
    try:
        replace_file(folder / SIGNATURE_NAME, signature)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror}): copy it to a folder that can.") from None


def _read_signature(folder: Path) -> bytes:
    """Reads the signature of a stranger's release; returns nothing if it is not a file or is too large."""
    try:
        return read_bounded(folder / SIGNATURE_NAME, MOST_BYTES)
    except (OSError, ValueError):
        return b""


def _read(path: str | Path, named: str, what: str) -> bytes:
    try:
        return read_bounded(path, MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{named} cannot be read ({reason}): give the file of {what}.") from None


def _ssh_keygen(*arguments: str | bytes, content: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Runs the program. An argument of bytes is the content of a temporary file."""
    with tempfile.TemporaryDirectory() as temporary:
        command = ["ssh-keygen"]
        for number, argument in enumerate(arguments):
            if isinstance(argument, bytes):
                file = Path(temporary, str(number))
                file.write_bytes(argument)
                argument = str(file)
            command.append(argument)
        try:
            return subprocess.run(command, input=content, capture_output=True)
        except OSError:
            raise UsageError(
                "ssh-keygen makes and checks signatures, and it is not on this machine: install OpenSSH 8.2 or newer "
                "(openssh-client)."
            ) from None
