# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp data`: what a run would read of a folder or a data set, before any run. What it prints is private.

diffusers-dp data scans --config folder_cpu --class_names benign,malignant
"""

import argparse
import hashlib
import json
import math
import os
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ..data.decoding import Encoded, describe_file
from ..data.folders import class_folders, refuse_some_splits, service_entries
from ..data.images import READING, ImageArrays, PublicFacts, load_images, public_facts
from ..data.records import DataSource, Id
from ..data.sources import open_source
from ..data.values import are_positions, integer_of, label_of, positions, why_no_label
from ..errors import UsageError, printable
from ..files.file_modes import private_files
from ..methods.command_line import as_flags
from ..methods.config import CONFIGS, chosen_method, load_config
from ..release.hub import keep_downloads_in
from ..verify import file_digest


PRIVATE = "PRIVATE: this tells of single images, outside of any guarantee. It stays in the house."
MOST_KINDS = 10  # sizes, modes or suffixes that are listed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [DIR] [--config RECIPE] [--ANY_TRAINING_FLAG VALUE ...]"
    parser.epilog = (
        "DIR comes first: a folder of one folder of images per class, as --train_data_dir; or give --dataset_name. "
        "All flags of the method's training script are taken, and read the images as a run would. Without "
        "--class_names and --config the folders in DIR are the classes. What is printed is private, unlike the plan."
    )
    parser.add_argument("--method", choices=CONFIGS, help="Whose flags are taken; unset: the recipe's, or feta_pro.")
    parser.set_defaults(training_flags=[])  # the command line's other flags


def run(args: argparse.Namespace) -> None:
    """Prints how many images there are, of which kinds, and how many can be read. Nothing of them stays on the
    disk."""
    data = _source(args)
    facts = public_facts(data)
    with private_files(), tempfile.TemporaryDirectory(prefix="diffusers-dp-data-") as folder:
        arrays = load_images(data, facts, folder)
        noted = json.loads(Path(folder, READING).read_bytes())
        cache = Path(folder)
        lines = [*_describe(arrays, facts, noted), *_labels(data, facts, cache), *_files(data, facts, cache)]
        lines += _left_out(data)
        del arrays  # it maps files of the folder
    print(printable("\n".join([PRIVATE, *lines])), _declared(data, facts), sep="\n")


def _source(args: argparse.Namespace) -> DataSource:
    """The sensitive images, as a run with these flags has them."""
    flags = list(args.training_flags)
    if flags and not flags[0].startswith("-"):
        flags.insert(0, "--train_data_dir")
        given = {flag.partition("=")[0].replace("-", "_") for flag in flags}
        if not given & {"__class_names", "__config"}:
            root = Path(os.path.expanduser(flags[1]))
            if not (names := class_folders(root, "train_data_dir")):
                raise UsageError(f"{root} holds no folder; give one that holds a folder of images for each class.")
            flags.append(f"--class_names={','.join(names)}")
            refuse_some_splits(root, "train_data_dir", ())
    config = load_config([*flags, "--dry_run"], chosen_method(flags, args.method))
    keep_downloads_in(config.cache_dir)
    if config.uses_digits or not (config.train_data_dir or config.dataset_name):
        raise UsageError("Nothing is named that could be read; name the folder, or give --dataset_name.")
    return replace(config.data, declared_only=False)


def _describe(arrays: ImageArrays, facts: PublicFacts, noted: dict[str, object]) -> Iterable[str]:
    readable = arrays.readable
    yield f"images: {len(readable)}"
    yield f"can be read: {int(readable.sum())}"
    yield f"cannot be read, and contribute nothing: {noted['unreadable_images']}"
    if not readable.any():
        yield "NOTHING of this can be trained on: a run would end with a release of noise."
    ignored = noted["ignored_files"]
    assert isinstance(ignored, dict)
    listed = ", ".join(f"{number} {suffix or 'without a suffix'}" for suffix, number in sorted(ignored.items()))
    yield f"files beside them that are ignored: {listed or 'none'}"
    if facts.class_names is not None and arrays.labels is not None:
        counts = Counter(arrays.labels[readable].tolist())
        yield "of each class that can be read:"
        yield from (f"  {name}: {counts[label]}" for label, name in enumerate(facts.class_names))


def _labels(data: DataSource, facts: PublicFacts, cache: Path) -> Iterable[str]:
    """Labels of a column that are no class, with the reason, and how numbers were read."""
    if facts.class_names is None:
        return
    reasons, numbers = Counter[str](), 0
    for value in open_source(data).labels(cache):
        reasons.update(filter(None, [why_no_label(value, facts.class_names)]))
        numbers += integer_of(value) is not None and label_of(value, facts.class_names) is not None
    if numbers and are_positions(facts.class_names):
        yield f"labels that are numbers, read as positions in --class_names: {numbers}; {positions(facts.class_names)}"
    yield from (
        f"labels that are no class: {number} of {reason}" for reason, number in reasons.most_common(MOST_KINDS)
    )


def _files(data: DataSource, facts: PublicFacts, cache: Path) -> Iterable[str]:
    """Sizes and modes as the files say them, why some are not read, the values of deep ones, and byte-identical
    images; the validation images are among them."""
    counted = {name: Counter[str]() for name in ("sizes", "modes", "why images cannot be read")}
    deep: list[tuple[float, float]] = []
    holders: dict[str, list[Id]] = {}
    images_of = Counter[Id]()
    for number, (encoded, _, unit) in enumerate(open_source(data).records(facts.class_names, cache)):
        found = describe_file(encoded, data.max_image_pixels, data.value_range)
        for kinds, kind in zip(counted.values(), (found.size, found.mode, found.reason)):
            kinds.update([kind] if kind else [])
        deep += [] if found.ends is None else [found.ends]
        owner = number if data.unit_column is None else unit
        images_of[unit] += 1
        readable = not found.reason and owner is not None  # others contribute nothing
        if readable and (digest := _digest(encoded)) is not None:
            holders.setdefault(digest, []).append(owner)
    for name, kinds in counted.items():
        listed = [f"{number} of {kind}" for kind, number in kinds.most_common(MOST_KINDS)]
        yield f"{name}: {', '.join(listed) or 'none'}{', ...' if len(kinds) > MOST_KINDS else ''}"
    if deep:
        low, high = min(each[0] for each in deep), max(each[1] for each in deep)
        yield (
            f"more than 8 bits: {len(deep)}, largest value {high:g}, smallest {low:g}; the flag that declares their "
            f"black and white, under which images of 8 bits cannot be read: {_range_flag(low, high)}"
        )
    if data.unit_column is not None:
        none = images_of.pop(None, 0)  # contribute nothing
        most = max(images_of.values(), default=0)
        yield f"{data.unit_column}: {len(images_of)} units of up to {most} records, and {none} without a file or an id"
    channels, height, width = facts.image_shape
    yield f"become: {width}x{height} pixels, {channels} channel{'s' if channels > 1 else ''}"
    yield from _copies(list(holders.values()), data)


def _digest(encoded: Encoded) -> str | None:
    """Of an encoded image; a file of any size takes little memory."""
    if isinstance(encoded, Path) and encoded.is_file() and os.access(encoded, os.R_OK):
        return file_digest(encoded)
    return hashlib.sha256(encoded).hexdigest() if isinstance(encoded, bytes) else None


def _copies(holders: list[list[Id]], data: DataSource) -> Iterable[str]:
    """What identical images mean for the guarantee."""
    copied = [units for units in holders if len(units) > 1]
    spread = [len(set(units)) for units in copied if len(set(units)) > 1]
    yield f"identical images: {sum(map(len, copied))} files hold {len(copied)} images"
    if spread:
        what = f"{data.unit_column}s" if data.unit_column else "files, each of which is a unit of its own"
        yield (
            f"of these, {len(spread)} are in several {what}, up to {max(spread)}: a person whose image is in k units "
            "has k times the epsilon that a run prints; remove the copies, or give --unit_column"
        )


def _left_out(data: DataSource) -> Iterable[str]:
    """Folders and files that systems and programs made, which are no records."""
    folder = Path(os.path.expanduser(data.train_data_dir or data.dataset_name or ""))
    if folder.is_dir():
        names = Counter(path.name for path in service_entries(folder))
        listed = ", ".join(f"{number} {name}" for name, number in names.most_common(MOST_KINDS))
        yield f"of systems and programs, and left out with all that is in them: {listed or 'none'}"


def _range_flag(low: float, high: float) -> str:
    """The flag whose range holds all values: that of fractions, or of as many bits, so that no image's own end becomes
    public."""
    if low >= 0 and high <= 1:
        return "--value_range 0,1"
    white = 2 ** max(0, math.ceil(high)).bit_length() - 1
    black = -(2 ** (math.ceil(-low) - 1).bit_length()) if low < 0 else 0
    return f"--value_range={black},{white}" if black else f"--value_range 0,{white}"


def _declared(data: DataSource, facts: PublicFacts) -> str:
    """What becomes public with a run, as flags."""
    names, units = facts.class_names, {"unit_column": data.unit_column, "num_train_units": data.num_train_units or "N"}
    stated = {"num_train_images": facts.num_images, **({} if names is None else {"class_names": ",".join(names)})}
    stated |= {} if data.unit_column is None else units
    return f"a run makes public what you declare: {shlex.join(as_flags(stated))}"
