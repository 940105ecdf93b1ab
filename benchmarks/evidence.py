# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The rows that `diffusers-dp recommend` goes by: `diffusers_dp/methods/evidence.json`, made from `results/rows.jsonl`
by `python benchmarks/rows.py docs`."""

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from board import core_minutes
from figures import CHOICE, ROOT, TEXTS

from diffusers_dp.methods.advice import MeasuredRow, rank
from diffusers_dp.methods.automatic import AUTO
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.data_flags import DataFlags
from diffusers_dp.methods.flag import flags_of, plain_flags
from diffusers_dp.methods.public_flags import PublicDataFlags
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.queries.efficientnet import EFFICIENTNET


FILE = ROOT / "diffusers_dp" / "methods" / "evidence.json"
#: Flags that follow from the images.
OF_DATA = {flag.name for group in (DataFlags, PublicDataFlags) for flag in fields(group)}
OF_DATA |= {"images_per_class", "candidates_per_class"}
MOST_DRAWN = 10_000  # images that a classifier learned: with more, rows do not compare


def evidence_of(rows: Sequence[dict[str, Any]]) -> list[MeasuredRow]:
    """Mean rows of all cases that were scored on test images, of data sets that have a row of real images,
    or whose whole has one."""
    real: dict[str, float] = {}
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["scored_on"] != "test" or "accuracy" not in row:
            continue
        draw = row.get("draw", "")
        if row["case"] == "real images":
            real[row["data"]] = max(real.get(row["data"], 0.0), row["accuracy"]["cnn"])
        elif draw and "{" not in draw:
            continue  # how these images are drawn was chosen on them, and `recommend` prints no such flag
        elif row["method"] is not None and row.get("num_drawn", 0) <= MOST_DRAWN and not row.get("upscale"):
            key = (*(row[name] for name in ("case", "method", "recipe", "data", "epsilon", "flags")), draw)
            groups.setdefault(key, []).append(row)
    made = [_mean_row(key, same, real.get(key[3], real.get(key[3].partition("_")[0]))) for key, same in groups.items()]
    found = [row for row in made if row is not None]
    classes = {row.data: row.num_classes for row in found}
    # Fewer classes of a data set are another task, which real images of all classes do not bound.
    found = [row for row in found if row.data in real or row.num_classes == classes.get(row.images, row.num_classes)]
    signals = Counter(images for images, _ in {(row.images, row.signal) for row in found})
    methods = Counter(images for images, _ in {(row.images, row.method) for row in found})
    # One signal says nothing of others, and one method nothing of a choice.
    found = [row for row in found if min(signals[row.images], methods[row.images]) > 1]
    return sorted(found, key=lambda row: (row.method, row.data, -row.epsilon, row.case))


def _mean_row(key: tuple[Any, ...], same: list[dict[str, Any]], real: float | None) -> MeasuredRow | None:
    case, method, recipe, data, epsilon, flags, _ = key
    start = ["--config", recipe] if recipe else []
    known_config = METHODS[method].config
    assert known_config is not None
    plain = plain_flags(known_config)
    experts = "|".join(flags_of(known_config).keys() - set(plain))
    flags = re.sub(rf"--({experts}) (\S+)", r"--expert \1=\2", flags)  # some were flags when rows were made
    pairs = re.findall(r"--(\w+)((?: (?!--)\S+)*)", flags)
    if not {name for name, _ in pairs} <= {*plain, "expert"}:
        return None  # a flag that is gone: nobody could run this
    if EFFICIENTNET in flags or "deformation" in flags:
        return None  # of an extra, which is not installed everywhere, or of what teaches more on some images alone
    config = load_config([*start, "--dataset_name", data, *flags.split()], METHODS[method])
    if real is None or config.num_train_images is None:
        return None
    if config.dp_sgd is not None and (recipe != AUTO or "--max_train_steps" in flags):
        return None  # steps, rates and batch are tuned to these images, and say nothing of others
    if config.unit_column is not None:
        return None  # the images of a patient are alike, so a patient is neither one image nor several
    needs = {flag for flag, value in pairs if "{" in value}
    needs |= set() if config.public_images is None else {"public_dataset_name"}
    own = [word for flag, value in pairs if flag not in OF_DATA | needs for word in (f"--{flag}", *value.split())]
    minutes = [core_minutes(row, "train", "draw") for row in same]
    return MeasuredRow(
        epsilon, config.num_train_units or config.num_train_images, len(config.declared_class_names or ("",)),
        config.image_shape, case, method, recipe or "", tuple(own), tuple(sorted(needs)), data, len(same),
        round(statistics.mean(row.get("accuracy_on_soft_labels", row["accuracy"])["cnn"] for row in same), 4), real,
        round(statistics.mean(minutes), 2),
    )  # fmt: skip


@dataclass(frozen=True)
class LeftOut:
    """A group of rows, and what the rule chooses without them.

    Args:
        data (`str`), epsilon (`float`): Of the group.
        methods (`dict[str, float]`): Best accuracy of each method in it.
        choice (`str`, *optional*): First choice among its methods; `None`: the other rows say nothing of them.
    """

    data: str
    epsilon: float
    methods: dict[str, float]
    choice: str | None

    @property
    def loss(self) -> float:
        """How much less accurate than the best the choice is."""
        return max(self.methods.values()) - (0.0 if self.choice is None else self.methods[self.choice])


def left_out(rows: Sequence[MeasuredRow]) -> Iterator[LeftOut]:
    """The check of the rule, for each group (data set and epsilon) of several methods."""
    for data, epsilon in dict.fromkeys((row.data, row.epsilon) for row in rows):
        group = [row for row in rows if (row.data, row.epsilon) == (data, epsilon)]
        methods = {name: max(row.accuracy for row in group if row.method == name)
                   for name in dict.fromkeys(row.method for row in group)}  # fmt: skip
        if len(methods) < 2:
            continue
        others = [row for row in rows if row not in group]
        given = {need for row in rows for need in row.needs}
        ranked = [each.row.method for each in rank(others, group[0], given) if each.row.method in methods]
        yield LeftOut(data, epsilon, methods, ranked[0] if ranked else None)


def text_of(rows: Sequence[dict[str, Any]]) -> str:
    """The file, a line for each row."""
    lines = [json.dumps(asdict(row)) for row in evidence_of(rows)]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def check_table(rows: Sequence[dict[str, Any]]) -> str:
    """What the rule chooses without the rows of a group, as Markdown."""
    lines = ["| data | epsilon | best methods, and accuracy | first choice without these rows | below the best |",
             "|---|---|---|---|---|"]  # fmt: skip
    for each in left_out(evidence_of(rows)):
        best = sorted(each.methods.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{name} {100 * accuracy:.1f}" for name, accuracy in best[:5])
        lines.append(
            f"| {each.data} | {each.epsilon:g} | {shown} | {each.choice or 'none'} | {100 * each.loss:.1f} points |"
        )
    return "\n".join(lines)


def with_check(text: str, rows: Sequence[dict[str, Any]]) -> str:
    """A text with the table of the check made from these rows."""
    return CHOICE.sub(lambda found: f"{found[1]}\n\n{check_table(rows)}\n\n{found[2]}", text)


def write_evidence(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Writes the file, and the table of the check into the docs. Returns the names of what changed."""
    changes = {FILE: text_of(rows)} | {path: with_check(path.read_text(encoding="utf-8"), rows) for path in TEXTS}
    for path, new in changes.items():
        if not path.exists() or path.read_text(encoding="utf-8") != new:
            path.write_text(new, encoding="utf-8")
            yield str(path.relative_to(ROOT))
