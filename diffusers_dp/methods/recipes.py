# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The recipes that come with the package, and what `--config` names: one of them, or a file."""

import os
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

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
        UsageError: The method has no recipe of that name.
    """
    folder, _, name = given.rpartition("/")
    if not _is_name(given):
        return Path(given) if os.path.isfile(given) else _shipped(name, folder) or Path(given)
    found = _shipped(given, method)
    if found is None:
        raise UsageError(
            f"--config {given} is neither a file here nor a recipe of {method} ({', '.join(recipes_of(method))}); "
            "give one of these, or the path of a YAML file."
        )
    return found


def read_as(recipe: dict[Any, Any], given: str, place: Path, epsilon: float | None) -> dict[Any, Any]:
    """
    The recipe of one name at one epsilon. First come the file's own values; then those of `by_epsilon`, of `by_name`
    and of its `by_epsilon`, each in place of earlier ones. Settings under `expert` are replaced one by one.

    Args:
        recipe (`dict`): As the file has it.
        given (`str`), place (`Path`): See `find_recipe`. The end of a name, as in `mnist_eps1`, is an epsilon.
        epsilon (`float`, *optional*): `--target_epsilon`, where no name says it.

    Raises:
        UsageError: `by_name` or `by_epsilon` is no mapping of mappings, or `by_name` lacks the name.
    """
    name = Path(given).stem
    own: dict[Any, Any] | None = {}
    short, _, end = name.rpartition("_eps")
    if names := _blocks(recipe, "by_name", given):
        own = names.get(name, names.get(short))
    if own is None:
        raise UsageError(f"--config {given}: 'by_name' holds {', '.join(map(str, names))}; give one of these.")
    if name != place.stem and short:
        own, epsilon = own | {"target_epsilon": int(end)}, int(end)
    at = str((recipe | own).get("target_epsilon")) if epsilon is None else f"{epsilon:g}"
    found: dict[Any, Any] = {}
    for part in (recipe, own):
        for each in (part, _blocks(part, "by_epsilon", given).get(at, {})):
            experts = [said["expert"] for said in (found, each) if isinstance(said.get("expert"), dict)]
            found |= each | ({"expert": experts[0] | experts[1]} if len(experts) == 2 else {})
    return found


def _blocks(recipe: dict[Any, Any], key: str, given: str) -> dict[str, Any]:
    """Takes what `by_epsilon` or `by_name` says out of a recipe."""
    blocks = recipe.pop(key, {})
    if not isinstance(blocks, dict) or not all(isinstance(each, dict) for each in blocks.values()):
        raise UsageError(f"--config {given}: '{key}' holds no '{key[3:]}: {{flag: value}}' lines; correct it.")
    return blocks


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
    return next((method for method in methods if _is_name(given) and _shipped(given, method)), None)


def recipes_of(method: str) -> dict[str, Path]:
    """The shipped recipes of a method: the files that hold them, by their names."""
    paths = sorted(_recipes().joinpath(method).glob("*.yaml"))
    return dict(sorted((name, path) for path in paths for name in _said(path).get("by_name", (path.stem,))))


def epsilons_of(path: Path, name: str) -> list[float]:
    """The epsilons that a shipped recipe has values for: its own, and those of `by_epsilon`."""
    said = _said(path)
    own = said.get("by_name", {}).get(name, {})
    return [(said | own).get("target_epsilon"), *said.get("by_epsilon", ()), *own.get("by_epsilon", ())]


@cache
def _said(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _shipped(given: str, method: str) -> Path | None:
    """The file of this name's recipe, of which `mnist_eps1` is `mnist` where that has values for epsilon 1."""
    names, (short, _, epsilon) = recipes_of(method), given.rpartition("_eps")
    if given in names or short not in names:
        return names.get(given)
    return names[short] if epsilon in map(str, epsilons_of(names[short], short)) else None


def _recipes() -> Path:
    return Path(str(files("diffusers_dp.training"))) / "recipes"


def _is_name(given: str) -> bool:
    """Whether it has neither a separator nor a suffix of YAML, and is no file in the current folder."""
    path = Path(given)  # whose `is_file` raises where a name is too long
    return path.name == given and path.suffix not in (".yaml", ".yml") and not os.path.isfile(path)
