# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The page of the papers' tables and figures:   python benchmarks/papers.py > docs/papers.md

`papers.yaml` says which commands make a table or a figure, and what differs. The recipes say their noise, and
`results/rows.jsonl` what was run.
"""

import itertools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from diffusers_dp.methods.recipes import find_recipe


ROOT = Path(__file__).resolve().parents[1]
PAPERS: dict[str, Any] = yaml.safe_load((ROOT / "benchmarks" / "papers.yaml").read_text(encoding="utf-8"))
NOISE = re.compile(r"noise multiplier of (?:DP-SGD|a round) comes out at ([\d.]+) here")
BRACES = re.compile(r"\{([^}]*)\}")


def page() -> str:
    """The page in Markdown."""
    parts = [f"# The papers' tables and figures\n\n{PAPERS['head']}"]
    for paper in PAPERS["papers"]:
        rows = "\n".join(_row(place) for place in paper["places"] if _has_command(place))
        none = "\n".join(_line(place) for place in paper["places"] if not _has_command(place))
        head = "| | shows | command | differs, or is missing |\n|---|---|---|---|"
        parts.append(f"## {paper['name']}\n\n*{paper['title']}*\n\n{paper['says']}\n\n{head}\n{rows}")
        parts += [f"Without a command:\n\n{none}"] * bool(none)
    parts.append(f"## Checkpoints of DPDM and DPImageBench\n\n{PAPERS['checkpoints']}")
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


def _has_command(place: dict[str, Any]) -> bool:
    return bool({"train", "plan", "then"} & place.keys())


def _numbers(place: dict[str, Any]) -> str:
    kinds = {"Table": "T", "Figure": "F"}
    numbers = {word: [each[1:] for each in place["at"] if each[0] == letter] for word, letter in kinds.items()}
    return "; ".join(f"{word}{'s' * (len(each) > 1)} {', '.join(each)}" for word, each in numbers.items() if each)


def _line(place: dict[str, Any]) -> str:
    return f"- {_numbers(place)}: {place['none']}."


def _row(place: dict[str, Any]) -> str:
    lines = [_shown(f"diffusers-dp train {_with_config(each)}", each) for each in place.get("train", ())]
    lines += [_shown(f"diffusers-dp plan --method {_with_config(each)}", each) for each in place.get("plan", ())]
    lines += [f"`{each}`" for each in place.get("then", ())]
    missing = f"missing: {place['none']}" if "none" in place else None
    differs = "; ".join(filter(None, [place.get("differs"), missing, "**run here**" if _was_run(place) else None]))
    cells = [_numbers(place), place["shows"], "<br>".join(lines), differs]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _with_config(text: str) -> str:
    method, recipe, *flags = text.split(" ")
    return " ".join([method, "--config", recipe, *flags])


def _shown(command: str, text: str) -> str:
    """The first command that is meant, and what the others have in its place."""
    first = BRACES.sub(lambda found: found[1].split(",")[0], command)
    others = "; ".join(", ".join(group.split(",")[1:]) for group in BRACES.findall(text))
    return f"`{first}`" + (f" ({others})" if others else "")


def _was_run(place: dict[str, Any]) -> bool:
    """Whether all recipes of an entry have rows."""
    used = commands(place) if "train" in place else []
    measured = {(row["method"], row["recipe"]) for row in _rows()}
    return bool(used) and all((method, recipe) in measured for method, recipe, _ in used)


def _rows() -> list[dict[str, Any]]:
    lines = (ROOT / "benchmarks" / "results" / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def noise_of(method: str, recipe: str) -> str | None:
    """The noise multiplier that a recipe's comments state: those of its name before those of the file, and in each
    those of its epsilon first."""
    text = find_recipe(f"{method}/{recipe}", method).read_text(encoding="utf-8")
    short, _, epsilon = recipe.rpartition("_eps")
    head, _, named = text.partition("\nby_name:\n")
    own = re.search(rf"(?:^  #.*\n)*^  (?:{recipe}|{short}):.*\n(?:^(?: {{4}}.*)?\n)*", named, re.MULTILINE)
    for part in filter(None, (own and own[0], head)):
        of_all, _, blocks = part.partition("by_epsilon:\n")
        at = re.search(rf"(?:^ *#.*\n)*^ *{epsilon}:", blocks, re.MULTILINE)
        for comments in filter(None, (at and at[0], of_all)):
            if found := NOISE.search(re.sub(r"\n *# ", " ", comments)):
                return found[1]
    return None


def _recipes() -> str:
    """Noise, and published FID and accuracy, of recipes: a line for those that differ in epsilon alone."""
    used = {(method, recipe) for _, place in places() for method, recipe, _ in commands(place)}
    used |= {(method, recipe) for method, recipes in PAPERS["published"].items() for recipe in recipes}
    groups: dict[str, dict[str, tuple[str, str]]] = {}
    for method, recipe in sorted(used, key=lambda each: (*map(_without_epsilon, each), _epsilon(each[1]))):
        facts = noise_of(method, recipe) or "", PAPERS["published"].get(method, {}).get(recipe, "")
        if any(facts):
            groups.setdefault(f"{method}/{_without_epsilon(recipe)}", {})[
                recipe.removeprefix(_without_epsilon(recipe)).lstrip("_")
            ] = facts
    lines = ["| recipe | noise of DP-SGD | published |", "|---|---|---|"]
    for name, each in groups.items():
        noises, published = (
            " / ".join(value or "-" for value in values) if any(values) else ""
            for values in zip(*each.values(), strict=True)
        )
        lines.append(f"| `{'_'.join(filter(None, [name, ', '.join(each)]))}` | {noises} | {published} |")
    return "\n".join(lines)


def _without_epsilon(recipe: str) -> str:
    return re.sub(r"_eps\d+$", "", recipe)


def _epsilon(recipe: str) -> int:
    found = re.search(r"_eps(\d+)$", recipe)
    return int(found[1]) if found else 0


if __name__ == "__main__":
    print(page(), end="")
