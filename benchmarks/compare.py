# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Compares two sets of rows, or two evaluated releases, paired by seed where they have seeds.

python benchmarks/compare.py rows.jsonl:DPDM rows.jsonl:FETA-Pro --picture difference.png
python benchmarks/compare.py runs/dpdm runs/feta_pro
"""

import argparse
import math
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusers_dp.dossier.evidence import MOST_BYTES, REPORTS
from diffusers_dp.errors import UsageError, install
from diffusers_dp.evaluation.analyses import BETTER, HIGHER, LOWER
from diffusers_dp.files.untrusted_files import read_bounded
from diffusers_dp.files.untrusted_values import bounded_number, bounded_text, parse_json


#: Better directions of what a row holds.
OF_ROWS = {"frechet": LOWER, "precision": HIGHER, "recall": HIGHER, "fld": LOWER}
CLEAR = 2  # standard errors, beyond which a difference is told as one


@dataclass(frozen=True)
class Number:
    """One metric of one side.

    Args:
        values (`dict[Any, float]`): Value by what is paired: data set, epsilon and seed of a row. A report has one.
        better (`str`): `HIGHER`, `LOWER` or nothing.
        error (`float`, *optional*): Standard error that a report states.
    """

    values: dict[Any, float]
    better: str = ""
    error: float | None = None


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = "FILE.jsonl or FILE.jsonl:CASE (rows), a report.json, or a run or release that `evaluate` has judged."
    parser.add_argument("first", metavar="A", help=what)
    parser.add_argument("second", metavar="B", help="The other one, of the same kind.")
    parser.add_argument("--picture", type=Path, help="PNG with the differences and their standard errors.")
    try:
        run(parser.parse_args(argv))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def run(args: argparse.Namespace) -> None:
    if args.picture is not None:
        check_picture(args.picture)
    first, second = read_side(args.first), read_side(args.second)
    both = ((name, difference(first[name], second[name])) for name in first if name in second)
    found = {name: each for name, each in both if each is not None}
    if not found:
        raise UsageError(f"{args.first} and {args.second} have no metric of the same data set, epsilon and seed.")
    print(f"{'metric':<40} {'A':>10} {'B':>10} {'A - B':>10} {'s.e.':>9} {'pairs':>5}")
    for name, each in found.items():
        error = "" if each.error is None else f"{each.error:.4g}"
        print(f"{name:<40} {each.first:>10.4g} {each.second:>10.4g} {each.mean:>+10.4g} {error:>9} {each.pairs:>5}")
    print(*(sentence(name, each) for name, each in found.items()), sep="\n")
    if args.picture is not None:
        draw(found, args.picture)


def read_side(name: str) -> dict[str, Number]:
    """
    Reads one side.

    Raises:
        UsageError: There are no rows or no report, or they cannot be read.
    """
    file, _, case = name.rpartition(":") if ".jsonl:" in name else (name, "", "")
    path = Path(file)
    try:
        if path.suffix == ".jsonl":
            rows = [parse_json(line) for line in read_bounded(path, MOST_BYTES).decode().splitlines() if line]
            return of_rows([row for row in rows if not case or row["case"] == case], name)
        places = [path] if path.suffix == ".json" else [each / end for each in (path, path.parent) for end in REPORTS]
        report = next((each for each in places if each.is_file()), None)
        if report is None:
            raise UsageError(f"{name} has no report: run `diffusers-dp evaluate --model {name} --real DATASET` first.")
        measured = parse_json(read_bounded(report, MOST_BYTES).decode())["measurements"]
        errors = [each["standard_error"] for each in measured]
        return {title_of(each): Number({(): bounded_number(each["value"])}, BETTER.get(each["metric"], ""),
                                       error if error is None else bounded_number(error, 0))
                for each, error in zip(measured, errors, strict=True)}  # fmt: skip
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"{name} cannot be read; give rows, a report, or a run that was evaluated.") from None


def title_of(measured: dict[str, Any]) -> str:
    """Names a measurement by its metric and what it was measured with."""
    protocol = measured["protocol"]
    names = (
        str(protocol[key])[:200] for key in ("extractor", "classifier", "trained_on", "num_train") if key in protocol
    )
    return " ".join([bounded_text(measured["metric"]), *names])


def of_rows(rows: list[dict[str, Any]], name: str) -> dict[str, Number]:
    """Groups rows of `benchmarks/rows.py` by metric. Raises `UsageError` where two rows are of one seed."""
    if not rows:
        raise UsageError(f"{name} names no row; give a case of that file after a colon.")
    found: dict[str, Number] = {}
    for row in rows:
        key = (row["data"], row["epsilon"], row["num_drawn"], row["scored_on"], row["seed"])
        for metric, value, better in metrics_of(row):
            values = found.setdefault(metric, Number({}, better)).values
            if values.setdefault(key, bounded_number(value)) != value:
                raise UsageError(f"{name} names several rows of one seed; give one case after a colon.")
    return found


def metrics_of(row: dict[str, Any]) -> Iterator[tuple[str, float, str]]:
    for classifier, value in row.get("accuracy", {}).items():
        yield f"accuracy {classifier}", value, HIGHER
    for metric, better in OF_ROWS.items():
        # Rows without `fld_fit` have the FLD of fits that always took 50 epochs.
        yield "fld of 50 epochs" if metric == "fld" and "fld_fit" not in row else metric, row[metric], better


@dataclass(frozen=True)
class Difference:
    """Means of both sides over their common pairs, and the standard error of the mean difference, if there is one."""

    first: float
    second: float
    pairs: int
    better: str
    error: float | None

    @property
    def mean(self) -> float:
        return self.first - self.second


def difference(first: Number, second: Number) -> Difference | None:
    """Compares a metric of both sides, seed by seed; `None` where nothing is common to them."""
    common = [key for key in first.values if key in second.values]
    if not common:
        return None
    apart, error = [first.values[key] - second.values[key] for key in common], None
    if len(common) > 1:
        error = statistics.stdev(apart) / math.sqrt(len(common))
    elif first.error is not None and second.error is not None:
        error = math.hypot(first.error, second.error)
    ours, theirs = (statistics.mean(side.values[key] for key in common) for side in (first, second))
    return Difference(ours, theirs, len(common), first.better, error)


def sentence(name: str, each: Difference) -> str:
    """Tells a difference in plain words."""
    if each.error is None:
        return f"{name}: one value on each side has no standard error, so nothing follows from {each.mean:+.4g}."
    if abs(each.mean) <= CLEAR * each.error:
        return f"{name}: no difference beyond {CLEAR} standard errors ({each.mean:+.4g}, s.e. {each.error:.2g})."
    words = "higher" if each.mean > 0 else "lower"
    if each.better:
        words = "better" if (each.mean > 0) == (each.better == HIGHER) else "worse"
    return f"{name}: A is {words} than B by {abs(each.mean):.4g} (s.e. {each.error:.2g})."


def check_picture(path: Path) -> None:
    """Checks the picture's name before anything is compared. Raises `UsageError`, also without matplotlib."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UsageError(f"--picture needs matplotlib: {install('plot')}, or leave it out.") from None
    if path.suffix.lower() != ".png":
        raise UsageError(f"--picture {path} is no PNG; give a name that ends in .png.")
    if path.exists() and not path.is_file() or not path.parent.is_dir():  # to write into a pipe waits
        raise UsageError(f"--picture {path} is no place for a file; give a name in a folder that exists.")


def draw(found: dict[str, Difference], path: Path) -> None:
    """Draws each difference in its own standard errors, to the right where A is better."""
    from matplotlib.figure import Figure

    shown = {name: each for name, each in found.items() if each.error}
    figure = Figure(figsize=(8, 1.2 + 0.35 * max(1, len(shown))), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    signs = [-1 if each.better == LOWER else 1 for each in shown.values()]
    places = [sign * each.mean / (each.error or 1) for sign, each in zip(signs, shown.values(), strict=True)]
    axes.axvspan(-CLEAR, CLEAR, color="#dddddd", label=f"within {CLEAR} standard errors")
    axes.errorbar(places, range(len(shown)), xerr=1, fmt="o", color="#4477aa", capsize=3)
    axes.set_yticks(range(len(shown)), list(shown))
    axes.invert_yaxis()
    axes.set_xlabel("difference in standard errors: right of 0, A is better")
    axes.legend(loc="best", fontsize="small")
    try:
        figure.savefig(path)
    except OSError as error:
        raise UsageError(f"--picture {path} cannot be written ({error.strerror}); give another file.") from None


if __name__ == "__main__":
    main()
