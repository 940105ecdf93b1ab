# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Local folders of Parquet: which files `datasets` is given, by literal paths, and what it may not merge."""

import os
import re
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .folders import files_below, is_service, split_of
from .untrusted_tables import root_of


_CARDS = ("README.md", ".huggingface.yaml", "dataset_infos.json")  # where `datasets` looks for what belongs to a split
_UNREADABLE = re.compile(r"::|://|\$\w|\$\{")  # `datasets` splits such paths, or fills in variables
_GLOB = re.compile(r"([*?\[])")


def local_tables(folder: Path, config_name: str | None) -> dict[str, Any]:
    """
    How `datasets` is told to read a local folder: a folder of Parquet without a card by the literal paths of its
    files. By itself `datasets` would take `[`, `?` and `*` in a path for patterns, and read or merge other folders.

    Args:
        folder (`Path`): Folder of the data set.
        config_name (`str`, *optional*): A configuration, which only a card can have.

    Raises:
        UsageError: `datasets` cannot read this path.
    """
    odd = _UNREADABLE.search(str(folder))
    declared = config_name is not None or any(_declares_files(folder / name) for name in _CARDS)
    if odd or (declared and _GLOB.search(str(folder))):
        what = odd[0] if odd else "[, ? or *"
        raise UsageError(
            f"{folder} has {what} in its path, where `datasets` cannot read it; rename the folder.",
            field="dataset_name",
        )
    tables = [path for path in files_below(folder) if path.suffix == ".parquet"]
    if declared or not tables:
        return {"path": str(folder)}
    splits: dict[str, list[str]] = {}
    for path in tables:
        splits.setdefault(_split_of_file(path.relative_to(folder)) or "", []).append(_GLOB.sub(r"[\1]", str(path)))
    unnamed = splits.pop("", [])  # as `datasets` does it, they are the split `train` only where no file has a split
    return {"path": "parquet", "data_files": splits or {"train": unnamed}}


def check_tables(folder: Path, data_files: dict[str, list[str]]) -> None:
    """
    Refuses files of service folders, whatever a card says, and splits that were merged.

    Args:
        folder (`Path`): Folder of the data set.
        data_files (`dict`): The files of each split, as `datasets` found them.

    Raises:
        UsageError: There are some.
    """
    for paths in data_files.values():
        local = [Path(os.path.relpath(path, root)) for path in paths for root in [root_of(path, folder)] if root]
        service = next((path for path in local if any(map(is_service, path.parts))), None)
        if service is not None:
            raise UsageError(
                f"{folder} names {service}, which a system or a program made and holds no records; remove it.",
                field="dataset_name",
            )
        found = {split: path for path in local for split in [_split_of_folders(path)] if split}
        if len(found) > 1:
            parents = sorted(str(folder / path.parent) for path in found.values())
            raise UsageError(
                f"{folder} holds folders that look like splits, and its card merges them; give "
                f"--dataset_name {parents[-1]}, or mend the card.",
                field="dataset_name",
            )


def _declares_files(card: Path) -> bool:
    """Whether a card says which files there are, or what their columns mean."""
    if not card.is_file() or card.suffix != ".md":
        return card.is_file()
    text = card.read_text(encoding="utf-8", errors="replace")
    return re.search(r"^(configs|dataset_info):", text, re.MULTILINE) is not None


def _split_of_file(path: Path) -> str | None:
    """By the name of a shard, which can be any split's; else by the folders, then by the file's own name."""
    shard = re.fullmatch(r"(\w+)-\d{5}-of-\d{5}.*\.parquet", path.name)
    named = _split_of_folders(path) or split_of(path.stem)
    return (split_of(shard[1]) or shard[1]) if shard and not named else named


def _split_of_folders(path: Path) -> str | None:
    return next((split for split in map(split_of, reversed(path.parent.parts)) if split), None)
