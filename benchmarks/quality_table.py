"""The table of `quality_cpu.py` in the docs: mean and standard error over seeds, and differences paired by seed."""

import math
import statistics
from pathlib import Path
from typing import Any


REFERENCE = "none"
NAMES = {
    "none": "DP-SGD from scratch (DPDM)",
    "spatial": "central images (DP-FETA)",
    "frequency": "frequency features",
    "spatial,frequency": "central images, then frequency features (FETA-Pro)",
    "frequency,spatial": "frequency features, then central images",
    "mix": "both at once",
}


def write_table(document: Path, marker: str, table: str) -> str:
    """Puts a table between `<!-- marker -->` and `<!-- /marker -->` of a document, and returns it."""
    text = document.read_text(encoding="utf-8")
    head, found, rest = text.partition(f"<!-- {marker} -->\n")
    _, closed, tail = rest.partition(f"<!-- /{marker} -->")
    if not (found and closed):
        raise SystemExit(f"{document.name} lacks the lines <!-- {marker} --> and <!-- /{marker} -->: put them back.")
    document.write_text(f"{head}{found}{table}{closed}{tail}", encoding="utf-8")
    return table


def table_of(rows: list[dict[str, Any]], curricula: list[str]) -> str:
    """Markdown: one line for each epsilon and curriculum of which there are rows, and the machines.

    Args:
        rows (`list[dict]`): Results of one recipe for each epsilon, at most one for each curriculum and seed.
        curricula (`list[str]`): In the order of the table.
    """
    lines = [
        "| epsilon | warm-up | before DP-SGD | released | more than from scratch | seeds | DP-SGD, minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for epsilon in sorted({row["epsilon"] for row in rows}, reverse=True):
        of_epsilon = [row for row in rows if row["epsilon"] == epsilon]
        reference = by_seed(of_epsilon, REFERENCE, "accuracy")
        for curriculum in curricula:
            after = by_seed(of_epsilon, curriculum, "accuracy")
            if not after:
                continue
            gain = [] if curriculum == REFERENCE else [after[s] - reference[s] for s in after if s in reference]
            before = list(by_seed(of_epsilon, curriculum, "accuracy_before_dp_sgd").values())
            seconds = by_seed(of_epsilon, curriculum, "dp_sgd_seconds").values()
            minutes = f"{statistics.median(seconds) / 60:.1f}" if seconds else ""
            lines.append(
                f"| {epsilon:g} | {NAMES[curriculum]} | {points(before)} | {points(list(after.values()))} | "
                f"{points(gain)} | {len(after)} | {minutes} |"
            )
    return "\n".join([*lines, "", *machines(rows), ""])


def paired_table_of(first: list[dict[str, Any]], second: list[dict[str, Any]], curricula: list[str]) -> str:
    """Markdown: two recipes on the seeds of which both have rows, and how much more the second reaches."""
    lines = ["| epsilon | warm-up | FETA-Pro | plus | more, paired by seed | seeds |", "|---|---|---|---|---|---|"]
    for epsilon in sorted({row["epsilon"] for row in second}, reverse=True):
        for curriculum in curricula:
            one, other = (
                by_seed([row for row in rows if row["epsilon"] == epsilon], curriculum, "accuracy")
                for rows in (first, second)
            )
            seeds = sorted(one.keys() & other.keys())
            if seeds:
                cells = ([one[s] for s in seeds], [other[s] for s in seeds], [other[s] - one[s] for s in seeds])
                lines.append(
                    f"| {epsilon:g} | {NAMES[curriculum]} | {' | '.join(map(points, cells))} | "
                    f"{', '.join(map(str, seeds))} |"
                )
    return "\n".join([*lines, "", *machines([*first, *second]), ""])


def by_seed(rows: list[dict[str, Any]], curriculum: str, name: str) -> dict[int, float]:
    """One number of each seed's row, where it was measured."""
    return {row["seed"]: row[name] for row in rows if row["curriculum"] == curriculum and row[name] is not None}


def points(values: list[float]) -> str:
    """Mean and, with two values or more, its standard error, in percentage points."""
    if not values:
        return ""
    mean = f"{100 * statistics.mean(values):.2f}"
    if len(values) == 1:
        return mean
    return f"{mean} (s.e. {100 * statistics.stdev(values) / math.sqrt(len(values)):.2f})"


def machines(rows: list[dict[str, Any]]) -> list[str]:
    """A sentence for each machine that trained."""
    seen = {tuple(row["machine"][key] for key in ("cpu", "gpu", "cores", "torch")) for row in rows}
    return [
        f"Trained on {' and '.join(filter(None, (cpu, gpu)))}, {cores} core{'s' * (cores != 1)}, torch {version}."
        for cpu, gpu, cores, version in sorted(seen, key=str)
    ]
