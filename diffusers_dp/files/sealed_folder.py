# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Folders of tensors, written atomically with a hash of every file: safetensors and JSON, nothing pickled."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from ..errors import IntegrityError
from .journal import sync_folder, write_synced


STATE_FILE = "state.json"


def seal(
    folder: Path, tensors: dict[str, dict[str, torch.Tensor]], state: dict[str, Any], *, replace: bool = False
) -> None:
    """Writes `folder` atomically: one safetensors file per entry of `tensors`, and `state` (JSON values) with all
    hashes."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    if temporary.exists():
        shutil.rmtree(temporary)
    if not folder.parent.exists():
        folder.parent.mkdir(parents=True)
        sync_folder(folder.parent.parent)
    temporary.mkdir()
    hashes = {}
    for name, group in tensors.items():
        # Cloned because safetensors refuses tensors that share memory.
        data = safetensors.torch.save(
            {key: value.detach().cpu().clone(memory_format=torch.contiguous_format) for key, value in group.items()}
        )
        write_synced(temporary / f"{name}.safetensors", data)
        hashes[f"{name}.safetensors"] = hashlib.sha256(data).hexdigest()
    state = {**state, "sha256": hashes}
    state["sha256_of_state"] = _hash_state(state)
    write_synced(temporary / STATE_FILE, json.dumps(state, indent=2).encode())
    sync_folder(temporary)
    if replace and folder.exists():
        os.replace(folder, folder.with_name(f".{folder.name}.old"))
    os.replace(temporary, folder)  # fails if `folder` exists
    sync_folder(folder.parent)


def find_replaced(folder: Path) -> bool:
    """Returns whether there is a folder that [`seal`] wrote. Puts back what it replaced if a crash came between."""
    replaced = folder.with_name(f".{folder.name}.old")
    if not folder.exists() and replaced.exists():
        os.replace(replaced, folder)
    return folder.exists()


def clear_replaced(folder: Path) -> None:
    """Removes what [`seal`] replaced."""
    replaced = folder.with_name(f".{folder.name}.old")
    if replaced.exists():
        shutil.rmtree(replaced)


def open_sealed(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, torch.Tensor]]]:
    """Reads a folder that [`seal`] wrote. Raises `IntegrityError`, naming the file, if it cannot be read or its hash
    does not match."""
    try:
        state = json.loads(_read(folder / STATE_FILE))
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict) or state.pop("sha256_of_state", None) != _hash_state(state):
        raise IntegrityError(f"{folder / STATE_FILE} is damaged.")
    tensors = {}
    for name, expected in state.pop("sha256").items():
        data = _read(folder / name)
        if hashlib.sha256(data).hexdigest() != expected:
            raise IntegrityError(f"{folder / name} is damaged.")
        tensors[name.removesuffix(".safetensors")] = safetensors.torch.load(data)
    return state, tensors


def _hash_state(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise IntegrityError(f"{path} is missing.") from None
    except OSError as error:
        raise IntegrityError(f"{path} cannot be read ({error.strerror}).") from None
