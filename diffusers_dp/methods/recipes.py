# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The recipes that come with the package, and what `--config` names: one of them, or a file."""

import os
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import UsageError


#: Flags that name a data set, and those that say its public facts.
SOURCES = ("dataset_name", "train_data_dir")
FACTS = ("num_train_images", "class_names", "resolution", "num_channels", "validation_size")


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


def refuse_another_data_set(config: str, method: str, recipe: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """
    A shipped recipe describes the data set that it names. Of another one its N would be false, and so the guarantee.
    Files of one's own say what they say.

    Args:
        config (`str`): As `--config` names it.
        method (`str`): Whose recipe it is.
        recipe, given (mapping): Values by flags, of the recipe and of the command line.

    Raises:
        `UsageError`: The command line names another data set, and not all facts of it.
    """
    flag = next((flag for flag in SOURCES if given.get(flag) is not None), None)
    named = next((recipe[flag] for flag in SOURCES if recipe.get(flag) is not None), None)
    missing = [fact for fact in FACTS if fact in recipe and fact not in given]
    if flag is None or named is None or not missing or not _is_shipped(find_recipe(config, method)):
        return
    if recipe.get(flag) is not None and _is_same(recipe[flag], given[flag]):
        return
    raise UsageError(
        f"--config {config} describes {named}, and --{flag} {given[flag]} is another data set, whose facts are "
        f"public and have to be declared, as `diffusers-dp data` says them; add --{' and --'.join(missing)}."
    )


def _is_same(named: str, given: str) -> bool:
    """Whether two names are of one data set on the Hub, where old ones have no owner, or one is that of a folder with
    a copy of it. Nobody looks into the folder: what lies there is private."""
    folder, last = Path(os.path.expanduser(given)), named.rpartition("/")[2].lower()
    if os.path.isdir(folder):
        return folder.resolve().name.lower() == last
    return given.strip().lower() in (named.lower(), last)


def _is_shipped(path: Path) -> bool:
    return path.resolve().is_relative_to(_recipes().resolve())


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
