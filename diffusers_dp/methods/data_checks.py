# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Flags of the data that cannot be, each with one sentence; part of `validation.py`. Nothing here reads an image or
writes a file."""

import os
from collections.abc import Collection
from pathlib import Path

from ..errors import UsageError
from ..words import NO_GUARANTEE
from .flag_groups import split_list
from .flags import TrainingConfig


#: Flags that name data: a folder, or a name on the Hub for which a local folder may stand.
_PRIVATE_SOURCES = ("dataset_name", "train_data_dir")
_PUBLIC_SOURCES = ("public_dataset_name", "public_data_dir")
#: What each of these flags alone has.
_OF_A_DATASET = {
    "dataset_name": ("dataset_config_name", "train_split", "image_column", "label_column"),
    "public_dataset_name": (
        "public_dataset_config_name", "public_split", "public_image_column", "public_label_column",
    ),
}  # fmt: skip
#: All that a run writes in `--output_dir`.
_WRITTEN = ("private", "release", "model", NO_GUARANTEE)


def validate_data(config: TrainingConfig) -> None:
    """
    Refuses flags of the data that cannot be.

    Raises:
        `UsageError`: One sentence that names the flag and the remedy.
    """
    names = config.declared_class_names
    for name in (
        "dataset_name",
        "train_data_dir",
        "train_split",
        "image_column",
        "label_column",
        "unit_column",
        "key_column",
        "ledger_dir",
        "output_dir",
    ):
        if getattr(config, name) is not None and not getattr(config, name).strip():
            raise UsageError(f"--{name} is empty; give a value, or leave the flag out.")
    if config.dataset_name is not None and config.train_data_dir is not None:
        raise UsageError("--dataset_name and --train_data_dir exclude each other; give one of them.")
    if config.train_data_dir is not None and names is None:
        raise UsageError(
            "--train_data_dir needs --class_names (comma-separated), for the label set must be public and declared."
        )
    _check_class_names("class_names", config.class_names)
    _check_class_names("public_class_names", getattr(config, "public_class_names", None))
    if not (config.uses_digits or config.dataset_name or config.train_data_dir or config.dry_run):
        raise UsageError("--class_names is given but no images are; add --train_data_dir or --dataset_name.")
    if config.num_channels not in (None, 1, 3):
        raise UsageError(f"--num_channels is {config.num_channels}; give 1 (grey) or 3 (RGB).")
    _refuse_sensitive_as_public(config)
    _refuse_writing_among_images(config)


def refuse_columns_without_a_dataset(config: TrainingConfig, given: Collection[str]) -> None:
    """
    Refuses what only a dataset has, where there is none. A recipe may say it all the same: `--train_data_dir` takes
    the place of its dataset.

    Args:
        config (`TrainingConfig`): The configuration.
        given (collection of `str`): The flags of the command line.

    Raises:
        `UsageError`: One sentence that names the flag and the remedy.
    """
    for dataset, names in _OF_A_DATASET.items():
        for name in names:
            if (
                name in given
                and getattr(config, name) != getattr(type(config), name)
                and getattr(config, dataset) is None
            ):
                raise UsageError(f"--{name} needs --{dataset}, for only a dataset has it; give both, or neither.")


def _check_class_names(flag: str, text: str | None) -> None:
    if text is None:
        return
    names = split_list(text)
    if not names:
        raise UsageError(f"--{flag} '{text}' names no class; give each class once, comma-separated.")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--{flag} names the class '{name}' twice; give each class once, comma-separated.")


def _refuse_sensitive_as_public(config: TrainingConfig) -> None:
    for flag in _PUBLIC_SOURCES:
        public = getattr(config, flag, None)
        for private in (config.dataset_name, config.train_data_dir):
            if public is not None and private is not None and _same_source(public, private):
                raise UsageError(
                    f"--{flag} {public} is the sensitive data itself, or has its name; name data that is public and "
                    "other."
                )


def _refuse_writing_among_images(config: TrainingConfig) -> None:
    """Refuses a run or a ledger inside of a data source, where a later start would read `release/samples.png` as an
    image or take the run for a class. A folder that holds the data beside the run, such as `--output_dir .` with
    `./data`, may be one: of it a run reads and writes `private/`, `release/` and `no_guarantee/` alone, and of
    `--ledger_dir` one file. Data may not lie in those three: they are made anew, and removed where a start is
    refused."""
    for flag in (*_PRIVATE_SOURCES, *_PUBLIC_SOURCES):
        name = getattr(config, flag, None)
        if name is None or not os.path.exists(os.path.expanduser(name)):  # on the Hub, or refused by whoever opens it
            continue
        source = Path(name).expanduser().resolve()
        run = Path(config.output_dir).resolve()
        if run.is_relative_to(source):
            raise UsageError(
                f"--output_dir {config.output_dir} lies in --{flag} {name}, where a later start would take what the "
                "run writes for images; give a folder outside of it."
            )
        for part in _WRITTEN:
            if source.is_relative_to((run / part).resolve()):
                raise UsageError(
                    f"--output_dir {config.output_dir} is where --{flag} {name} lies in {part}/, which the run "
                    "writes; give another folder."
                )
        if config.ledger_dir is not None and config.ledger_path.parent.resolve().is_relative_to(source):
            raise UsageError(
                f"--ledger_dir {config.ledger_dir} lies in --{flag} {name}, whose images it would lie among; give a "
                "folder outside of it."
            )


def _same_source(first: str, second: str) -> bool:
    """Whether two names are of one data set on the Hub (old ones have no owner), or of folders of which one holds the
    other."""
    paths = [Path(name).expanduser() for name in (first, second)]
    if all(path.exists() for path in paths):
        here, there = (path.resolve() for path in paths)
        return here.is_relative_to(there) or there.is_relative_to(here)
    ids = [name.strip().lower() for name in (first, second)]
    if any("/" not in name for name in ids):
        ids = [name.rpartition("/")[2] for name in ids]
    return ids[0] == ids[1]
