# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The page of the papers' tables and figures:   python benchmarks/papers.py > docs/papers.md

`papers.yaml` says which commands make a table or a figure, and what differs. The recipes say their N, budget and
noise, and `results/rows.jsonl` what was run.
"""

import itertools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "training" / "recipes"
PAPERS: dict[str, Any] = yaml.safe_load((ROOT / "benchmarks" / "papers.yaml").read_text(encoding="utf-8"))
NOISE = re.compile(r"noise multiplier of (?:DP-SGD|a round) comes out at ([\d.]+) here")
BRACES = re.compile(r"\{([^}]*)\}")


def page() -> str:
    """The page in Markdown."""
    parts = [f"# The papers' tables and figures\n\n{PAPERS['head']}"]
    for paper in PAPERS["papers"]:
        rows = "\n".join(_row(place) for place in paper["places"])
        head = "| | shows | command | differs, or is missing | run here |\n|---|---|---|---|---|"
        parts.append(f"## {paper['name']}\n\n*{paper['title']}.* {paper['says']}\n\n{head}\n{rows}")
    return "\n\n".join([*parts, f"## The recipes\n\n{PAPERS['recipes']}\n\n{_recipes()}"]) + "\n"


def places() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each entry, with the name of its paper."""
    return ((paper["name"], place) for paper in PAPERS["papers"] for place in paper["places"])


def commands(place: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    """Method, recipe and flags of each command of an entry that trains or plans."""
    meant = itertools.chain.from_iterable(map(_spelled_out, [*place.get("train", ()), *place.get("plan", ())]))
    return [(method, recipe, flags) for method, recipe, *flags in map(shlex.split, meant)]


def without_command() -> list[str]:
    """Tables and figures that no entry is about, or whose entry has neither a command nor a reason."""
    missing = []
    for paper in PAPERS["papers"]:
        entries = {at: place for place in paper["places"] for at in place["at"]}
        numbered = [f"{kind}{n + 1}" for kind, many in (("T", "tables"), ("F", "figures")) for n in range(paper[many])]
        whole = [at for at in numbered if at in entries and {"train", "plan", "then", "none"} & entries[at].keys()]
        missing += [f"{paper['name']} {at}" for at in {*numbered, *entries} - {*whole}]
    return sorted(missing)


def _spelled_out(text: str) -> list[str]:
    groups = [each.split(",") for each in BRACES.findall(text)]
    return [BRACES.sub(lambda _, values=iter(choice): next(values), text) for choice in itertools.product(*groups)]


def _row(place: dict[str, Any]) -> str:
    kinds = {"Table": "T", "Figure": "F"}
    numbers = {word: [each[1:] for each in place["at"] if each[0] == letter] for word, letter in kinds.items()}
    at = "; ".join(f"{word}{'s' * (len(each) > 1)} {', '.join(each)}" for word, each in numbers.items() if each)
    lines = [_shown(f"diffusers-dp train {_with_config(each)}", each) for each in place.get("train", ())]
    lines += [_shown(f"diffusers-dp plan --method {_with_config(each)}", each) for each in place.get("plan", ())]
    lines += [f"`{each}`" for each in place.get("then", ())]
    none = f"{'missing' if lines else 'no command'}: {place['none']}" if "none" in place else ""
    differs = "; ".join(filter(None, [place.get("differs"), none]))
    cells = [at, place["shows"], "<br>".join(lines), differs, _run(place)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _with_config(text: str) -> str:
    method, recipe, *flags = text.split(" ")
    return " ".join([method, "--config", recipe, *flags])


def _shown(command: str, text: str) -> str:
    """The first command that is meant, and what the others have in its place."""
    first = BRACES.sub(lambda found: found[1].split(",")[0], command)
    others = "; ".join(", ".join(group.split(",")[1:]) for group in BRACES.findall(text))
    return f"`{first}`" + (f" ({others})" if others else "")


def _run(place: dict[str, Any]) -> str:
    """How far the recipes of an entry were run, and smaller ones of the same methods."""
    used = commands(place) if "train" in place else []
    measured = {(row["method"], row["recipe"]) for row in _rows() if row["recipe"]}
    small = {r if "/" in r else f"{m}/{r}" for m, r in measured for method, *_ in used if m == method and "_cpu" in r}
    if not used or all((method, recipe) in measured for method, recipe, _ in used):
        return "yes" if used else ""
    return "starts" + ("; smaller: " + ", ".join(f"`{each}`" for each in sorted(small)) if small else "")


def _rows() -> list[dict[str, Any]]:
    lines = (ROOT / "benchmarks" / "results" / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _recipes() -> str:
    """N, budget and noise of each recipe that an entry uses, and the published FID and accuracy."""
    lines = ["| recipe | N | epsilon | noise of DP-SGD | published |", "|---|---|---|---|---|"]
    used = {(method, recipe) for _, place in places() for method, recipe, _ in commands(place)}
    used |= {(method, recipe) for method, recipes in PAPERS["published"].items() for recipe in recipes}
    for method, recipe in sorted(used):
        text = (RECIPES / method / f"{recipe}.yaml").read_text(encoding="utf-8")
        said = yaml.safe_load(text)
        noise = NOISE.search(text.replace("\n# ", " "))
        epsilon = f"{said.get('target_epsilon', 10):g}"
        published = PAPERS["published"].get(method, {}).get(recipe, "")
        cells = [f"`{method}/{recipe}`", f"{said['num_train_images']:,}", epsilon, noise[1] if noise else ""]
        lines.append(f"| {' | '.join([*cells, published])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
