# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which method suits the declared facts, by measured rows that it names, the plan of that method, and the command to
run. No image is read, nothing is written, and no torch is loaded."""

import os
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from typing import Any

import yaml

from .. import methods
from ..data.images import declared_facts
from ..errors import UsageError
from ..methods.advice import Advice, MeasuredRow, Situation, far_from, in_digits, rank, what_would
from ..methods.automatic import AUTO
from ..methods.command_line import as_flags
from ..methods.config import CONFIGS, load_config
from ..methods.data_flags import DEFAULT_RESOLUTION, DataFlags
from ..methods.flag import flag
from ..methods.public_flags import PublicDataFlags
from ..methods.registry import METHODS
from ..verify import MOST_EPSILON
from .plan import plan_run
from .plan_table import aligned


MODEL_SIDE = 512  # pixels, at least, of the images of a text-to-image model
PUBLIC = {"public_dataset_name": "--public_data_dir", "feature_network": "--feature_network",
          "pretrained_model_name_or_path": "--pretrained_model_name_or_path"}  # fmt: skip


@dataclass
class AdviceFlags:
    """What is asked for."""

    _argument_group_name = "privacy and time"

    target_epsilon: float = flag(10.0, "Total epsilon.", at_most=MOST_EPSILON)
    target_delta: float | None = flag(None, "delta of the guarantee; unset: 1/(N ln N).", above=0, below=1)
    minutes: float | None = flag(None, "Minutes that a run may take on one core; unset: any.")
    num_classes: int | None = flag(
        None, "Number of classes, in place of --class_names.", at_most=100_000, excludes=("class_names",)
    )
    feature_network: str | None = flag(None, "Public vision network, for methods that can use one.", place=True)
    pretrained_model_name_or_path: str | None = flag(
        None, "Public diffusion pipeline, for methods that can use one.", place=True
    )

    public_model: str | None = flag(
        None, "Public text-to-image model, such as Stable Diffusion: names the two methods that begin with one.",
        place=True,
    )  # fmt: skip


@dataclass
class DeclaredFacts(AdviceFlags, PublicDataFlags, DataFlags):
    """All flags of the command."""

    @property
    def given(self) -> set[str]:
        """Flags of public images and models that are there."""
        found = {name for name in PUBLIC if getattr(self, name, None) is not None}
        return found | ({"public_dataset_name"} if self.names_public_images else set())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes, invented where their number alone is declared; none without classes."""
        return self.declared_class_names or tuple(f"CLASS_{number + 1}" for number in range(self.num_classes or 0))

    @property
    def situation(self) -> Situation:
        side = self.resolution or DEFAULT_RESOLUTION
        number = self.num_train_units or self.num_train_images
        assert number is not None  # checked
        return Situation(self.target_epsilon, number, len(self.names) or 1, (self.num_channels or 3, side, side))

    def check(self) -> None:
        if self.num_train_images is None:
            raise UsageError("--num_train_images is missing: declare the number of your images, which is public.")
        if self.label_column is not None and not self.names:
            raise UsageError("--label_column needs --class_names, or --num_classes here: the classes are declared.")
        if self.situation.num_classes > self.situation.num_units:
            raise UsageError(
                f"--num_train_images declares {self.situation.num_units} for {self.situation.num_classes} classes, "
                "less than one for each: give fewer classes, or merge some."
            )


def names_facts_alone(flags: Sequence[str]) -> bool:
    """Whether flags declare a number of images and name nothing that is a method's own."""
    names = {word.split("=")[0] for word in flags if word.startswith("--")}
    return "--num_train_images" in names and names <= {f"--{each.name}" for each in fields(DeclaredFacts)}


def recommendation(facts: DeclaredFacts, rows: Sequence[MeasuredRow], *, details: bool = False) -> str:
    """
    Returns the ranking in words, with the plan and the command of the first choice.

    Args:
        facts (`DeclaredFacts`): Checked.
        rows (`list[MeasuredRow]`): What was measured.
        details (`bool`): Whether the plan is told with all numbers.

    Raises:
        UsageError: No method can be planned for these facts.
    """
    situation = facts.situation
    ranked, far = rank(rows, situation, facts.given, facts.minutes or float("inf")), far_from(rows, situation)
    in_time = [each for each in ranked if facts.minutes is None or each.minutes <= facts.minutes]
    refused: dict[str, str] = {}
    plan, chosen, flags = None, None, list[str]()
    commands = [(each, _flags(facts, each)) for each in in_time]
    for chosen, flags in commands:  # the first whose plan can be made
        try:
            config = load_config([*flags, "--dry_run"], METHODS[chosen.row.method])
            plan = plan_run(config, declared_facts(config.data))
            break
        except UsageError as error:
            refused[chosen.row.method] = str(error)
    if refused and len(refused) == len(in_time):
        raise UsageError(next(iter(refused.values())))
    per_class = situation.num_units / situation.num_classes
    unit = "images" if facts.unit_column is None else f"units ({facts.unit_column})"
    classes = f"in {situation.num_classes:,} classes of one size" if situation.num_classes > 1 else "of one class"
    lines = [
        f"for {situation.num_units:,} {unit} of {'x'.join(map(str, situation.image_shape))} {classes}; none was read",
        f"signal: {in_digits(situation.signal)} = epsilon {situation.epsilon:g} * {in_digits(per_class)} {unit} of a "
        "class",
        "",
        *_table(facts, ranked, refused),
        "",
        "skill: share of what real images teach a classifier, beyond chance, that drawn ones are expected to teach.",
        *_source(ranked, situation.num_classes),
    ]
    if far:
        lines.append(f"far from what was measured, so a guess: {'; '.join(far)}.")
    lines += [f"{name}: {reason}" for name, reason in refused.items()]
    lines += [*_left_out_methods(rows, facts.given, ranked), *_roads(facts), ""]
    if chosen is None or plan is None or chosen.word == "hopeless":
        if ranked and not in_time:
            lines.append(f"Nothing is done within {facts.minutes:g} minutes: raise --minutes.")
        else:
            word, changes = what_would(rows, situation, facts.given)
            would = f"It would be {word} with {'; or with '.join(changes)}" if changes else "No single change helps"
            lines.append(f"hopeless: nothing will do with these facts. {would.replace('images', unit)}.")
        return "\n".join(lines)
    word = f"{chosen.word}, a guess" if far else chosen.word
    lines += [
        f"{word}: {METHODS[chosen.row.method].title}, about {chosen.minutes:.1f} minutes of one core (this "
        f"machine has {os.cpu_count()}). Its plan:",
        plan.table if details else plan.summary, "", "Run:",
        shlex.join(["diffusers-dp", "train", chosen.row.method, *flags]),
    ]  # fmt: skip
    return "\n".join(lines)


def _table(facts: DeclaredFacts, ranked: Sequence[Advice], refused: Collection[str]) -> list[str]:
    if not ranked:
        return ["No method has a row for these facts."]
    lines = [["method", "word", "skill", "minutes of one core"]]
    for each in ranked:
        too_long = facts.minutes is not None and each.minutes > facts.minutes
        minutes = f"{each.minutes:.1f}{' (too long)' if too_long else ''}"
        word = "refused" if each.row.method in refused else each.word
        lines.append([each.row.method, word, f"{each.skill:.2f}", minutes])
    named = ["row"] + [
        f"{row.case}, {row.data} ({row.num_units:,}) at epsilon {row.epsilon:g}: {100 * row.accuracy:.1f} %, real "
        f"images {100 * row.accuracy_of_real:.1f} %"
        for row in (each.row for each in ranked)
    ]
    return [f"{line}  {name}" for line, name in zip(aligned(lines), named, strict=True)]


def _source(ranked: Sequence[Advice], num_classes: int) -> list[str]:
    """By which images the methods are judged."""
    if not ranked:
        return []
    images, classes = ranked[0].images, ranked[0].row.num_classes
    lines = [f"judged by rows of {images}, whose images have the nearest number of values."]
    if num_classes != classes:
        lines.append(f"rows have {classes} classes: fewer are easier to tell apart than skill says, more are harder.")
    if any(each.row.images != images for each in ranked):
        lines.append(f"a method without such rows: by its own rows, and what others lose between those and {images}.")
    return lines


def _left_out_methods(rows: Sequence[MeasuredRow], given: Collection[str], ranked: Sequence[Advice]) -> list[str]:
    """Methods with rows that need what is not there, and those without a row."""
    known, shown = {row.method for row in rows}, {each.row.method for each in ranked}
    lines = []
    for method in sorted(known - shown):
        missing = sorted({PUBLIC.get(need, f"--{need}") for row in rows if row.method == method for need in row.needs
                          if need not in given})  # fmt: skip
        why = f"not weighed without {' or '.join(missing)}" if missing else "no row of such images"
        lines.append(f"{method}: {why}")
    others = [name for name in CONFIGS if name not in known]
    return [*lines, f"without a measured row of settings for any folder: {', '.join(others)}"] if others else lines


def _roads(facts: DeclaredFacts) -> list[str]:
    """What `--public_model` is good for."""
    if facts.public_model is None:
        return []
    lines = [
        f"with {facts.public_model}, which has no row: nothing was measured here with real weights. Published figures "
        "are those of smaller models of ImageNet at epsilon 10 (DPImageBench, arXiv 2503.14681; FETA-Pro).",
    ]  # fmt: skip
    roads = yaml.safe_load(files(methods).joinpath("roads.yaml").read_text(encoding="utf-8"))
    large = replace(facts, resolution=max(MODEL_SIDE, facts.situation.image_shape[1]))
    for method, road in roads.items():
        declared = _declared(facts if CONFIGS[method].releases_images else large, method)
        command = ["diffusers-dp", "train", method, road["model"], facts.public_model, *road["flags"], *declared]
        lines += [f"{road['images']}: {METHODS[method].title}. Published of {road['published']}.",
                  f"  {shlex.join(command)}"]  # fmt: skip
    return lines


def _flags(facts: DeclaredFacts, advice: Advice) -> list[str]:
    """Flags of the training script: settings by rules, what the row has beside them, and the facts."""
    row = advice.row
    return ["--config", AUTO, *row.flags, *_declared(facts, row.method, row.needs)]


def _declared(facts: DeclaredFacts, method: str, needs: Sequence[str] = ()) -> list[str]:
    """The facts as flags of a method that needs these public images or models."""
    situation = facts.situation
    stated: dict[str, Any] = {
        "num_train_images": facts.num_train_images, "resolution": situation.image_shape[1],
        "num_channels": situation.image_shape[0], "target_epsilon": facts.target_epsilon,
    }  # fmt: skip
    if facts.names:
        stated["class_names"] = ",".join(facts.names)
    known = {each.name for each in fields(CONFIGS[method])}
    own = {"target_delta", *needs, *(each.name for each in fields(DataFlags))}
    if "public_dataset_name" in needs:
        own |= {each.name for each in fields(PublicDataFlags)}
    for each in fields(facts):
        if each.name in known & own and (value := getattr(facts, each.name)) != each.default:
            stated.setdefault(each.name, value)
    if facts.train_data_dir is None and facts.dataset_name is None:
        stated["train_data_dir" if facts.names else "dataset_name"] = "FOLDER"
    return as_flags(stated)
