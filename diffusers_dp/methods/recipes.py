# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The recipes that come with the package, and what `--config` names: one of them, or a file."""

import os
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from ..errors import UsageError


def find_recipe(given: str, method: str) -> Path:
    """
    The file that `--config` means.

    Args:
        given (`str`): The path of a file, or the name of a shipped recipe such as `mnist_cpu` or, of another folder,
            `feta_pro_plus/mnist_cpu`. A file of that name wins.
        method (`str`): Whose recipes are looked at.

    Returns:
        `Path`: Of the file; a path need not lead to one.

    Raises:
        `UsageError`: The method has no recipe of that name.
    """
    if not _is_name(given):
        shipped = _recipes() / f"{given}.yaml"
        return shipped if os.path.isfile(shipped) and not os.path.isfile(given) else Path(given)
    names = recipes_of(method)
    if given not in names:
        raise UsageError(
            f"--config {given} is neither a file here nor a recipe of {method} ({', '.join(names)}); "
            "give one of these, or the path of a YAML file."
        )
    return names[given]


def method_of_recipe(given: str, methods: Iterable[str]) -> str | None:
    """The first of these methods that has a recipe of this name; `None` of a path, and where none has one."""
    return next((method for method in methods if _is_name(given) and given in recipes_of(method)), None)


def recipes_of(method: str) -> dict[str, Path]:
    """The shipped recipes of a method, by their names."""
    return {path.stem: path for path in sorted(_recipes().joinpath(method).glob("*.yaml"))}


def _recipes() -> Path:
    return Path(str(files("diffusers_dp.training"))) / "recipes"


def _is_name(given: str) -> bool:
    """Whether it has neither a separator nor a suffix of YAML, and is no file in the current folder."""
    path = Path(given)  # whose `is_file` raises where a name is too long
    return path.name == given and path.suffix not in (".yaml", ".yml") and not os.path.isfile(path)
