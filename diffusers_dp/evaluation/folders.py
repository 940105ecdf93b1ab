# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Local folders of real images, found as training finds them. No torch."""

import os
from pathlib import Path

from ..data.decoding import is_image
from ..data.folders import files_below, meant_split, splits_in, subfolders
from ..data.source import MissingSplit


#: Files that make a folder a data set of tables, which is no folder of class folders.
TABLES = (".parquet", ".arrow", ".tar", ".zip", ".csv", ".jsonl", "dataset_dict.json", "state.json")


def split_folder(name: str, split: str, suffixes: tuple[str, ...] | None) -> Path | None:
    """
    Finds the folder whose folders are the classes, as training names it.

    Args:
        name (`str`): Folder, whose folders are classes, or are splits that hold them.
        split (`str`): Name of the split; without folders of splits there is `train` alone.
        suffixes (tuple of `str`, *optional*): Suffixes of images.

    Returns:
        `Path`, or `None` where it is no folder of that kind.

    Raises:
        MissingSplit: No folder is called as the split is, or several are.
    """
    root = Path(os.path.expanduser(name))
    if not os.path.isdir(root) or any(file.name.lower().endswith(TABLES) for file in files_below(root)):
        return None
    splits = {path.name: path for path in splits_in(root)} or {"train": root}
    found = meant_split(split, splits)
    if found is None:
        raise MissingSplit(f"'{split}' does not exist; there is: {', '.join(splits)}.", field="train_split")
    folder = splits[found]
    holds_images = any(is_image(path, suffixes) for path in folder.iterdir() if path.is_file())
    return None if holds_images or not subfolders(folder) else folder
