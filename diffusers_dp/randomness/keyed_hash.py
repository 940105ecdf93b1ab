# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Decisions that follow from an id alone, by a public keyed hash: the group of a unit, and who is held out.

A record that is missing, damaged or without an id moves no other record. Nothing here loads torch.
"""

import hashlib
from collections.abc import Iterable

import numpy as np


DIGEST = np.dtype("V16")  # of an id; two ids of one digest do not occur by chance
_HELD_OUT = b"held out images "  # public and fixed: the same images in every run, whatever --seed is


def digests_of(ids: Iterable[str | int | None]) -> np.ndarray:
    """Hashes ids: the first 16 bytes of SHA-256 of `"text:"` or `"number:"` and the id, in UTF-8.

    Args:
        ids (iterable of `str` or `int`, *optional*): A path, a row number, or the value of a column, of any length.

    Returns:
        `np.ndarray` of `DIGEST`, shape `[n]`; zeros for `None`.
    """
    return np.frombuffer(b"".join(map(_digest_of, ids)), dtype=DIGEST)


def _digest_of(identifier: str | int | None) -> bytes:
    if identifier is None:
        return bytes(DIGEST.itemsize)
    kind = "text" if isinstance(identifier, str) else "number"
    return hashlib.sha256(f"{kind}:{identifier}".encode("utf-8", "surrogateescape")).digest()[: DIGEST.itemsize]


def has_id(digests: np.ndarray) -> np.ndarray:
    """Tells which records have an id, bool `[n]`: the digest of one without is zeros."""
    return np.array([any(digest) for digest in digests.tolist()], dtype=bool)


def group_of(digests: np.ndarray, num_groups: int, key: str) -> np.ndarray:
    """Assigns each unit to a group: `floor(b h / 2^32)`, where h is the first four bytes of BLAKE2b of its digest
    under the key.

    The group of a unit depends on its own id and the key. Sizes of groups differ.

    Args:
        digests (`np.ndarray` of `DIGEST`, shape `[n]`): See `digests_of`.
        num_groups (`int`): b, below 2^32.
        key (`str`): Public; 16 bytes in hexadecimal.

    Returns:
        `np.ndarray` of int64, shape `[n]`: From 0 to b - 1.
    """
    return ((_hashed(digests, bytes.fromhex(key)) >> np.uint64(32)) * np.uint64(num_groups) >> np.uint64(32)).astype(
        np.int64
    )


def is_held_out(digests: np.ndarray, number: int, total: int) -> np.ndarray:
    """Chooses validation images: each id is held out with probability `number / total`, under one fixed public key.

    Args:
        digests (`np.ndarray` of `DIGEST`, shape `[n]`): See `digests_of`.
        number, total (`int`): Declared: images to hold out, and images in all; `number` is below `total`.

    Returns:
        `np.ndarray` of bool, shape `[n]`. About `number` of `total` are True, not exactly as many.
    """
    if not number:
        return np.zeros(len(digests), dtype=bool)
    return _hashed(digests, _HELD_OUT) < np.uint64(-(-(number << 64) // total))


def _hashed(digests: np.ndarray, key: bytes) -> np.ndarray:
    """uint64 `[n]`: the first eight bytes of BLAKE2b, the highest first."""
    content, size = digests.tobytes(), DIGEST.itemsize
    found = b"".join(
        hashlib.blake2b(content[start : start + size], key=key, digest_size=8).digest()
        for start in range(0, len(content), size)
    )
    return np.frombuffer(found, dtype=">u8").astype(np.uint64)
