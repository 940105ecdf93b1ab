# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The page of all flags, from what they say: `make docs` makes it, and `python docs/flag_page.py` prints it."""

from collections.abc import Iterator
from typing import Any, get_type_hints

from diffusers_dp.methods.command_line import groups_of, value_type
from diffusers_dp.methods.config import CONFIGS
from diffusers_dp.methods.flag import flags_of


HEAD = """# All flags

Every flag of the training scripts, once for each of its meanings: `--name value` on the command line, or `name: value`
in a recipe. The command line wins over the recipe, and the recipe over the default. Several items of one flag are
comma-separated, or a list in a recipe. A method with another default is named beside its own.
`--help` of a script shows the flags that most runs need, `--help_all` shows all of its method."""
#: What a default of a query is, by the fields of a query.
FIELDS = {
    "noise_multiplier": "noise multiplier {:g}",
    "budget_share": "share {:g}",
    "of_moments": "{:g} of the share of `moments`",
}
EXPERT = "settings of experts: `--expert name=value`, or under `expert:` in a recipe"
COLUMNS = "| flag | default | range | methods | meaning |\n|---|---|---|---|---|"


def page() -> str:
    """The page in Markdown: a table for each group of flags, in the order of the help."""
    tables: dict[str, list[str]] = {}
    experts: list[str] = []
    told: set[tuple[str, ...]] = set()
    for config_class in CONFIGS.values():
        for title, group in groups_of(config_class).items():
            for each in group:
                if (meaning := _meaning(each.name, config_class)) not in told:
                    told.add(meaning)
                    is_expert = flags_of(config_class)[each.name].expert
                    rows = experts if is_expert else tables.setdefault(title, [])
                    rows.append(_row(meaning))
    tables[EXPERT] = experts
    sections = (f"## {name}\n\n{COLUMNS}\n" + "\n".join(rows) for name, rows in tables.items())
    return "\n\n".join([HEAD, *sections, _queries()]) + "\n"


def _queries() -> str:
    """What `--noise_multiplier` and `--budget` may name, and the default of each."""
    rows: dict[str, dict[str, list[str]]] = {}
    for method, config in CONFIGS.items():
        for name, default in config.known_queries().items():
            words = " ".join(FIELDS[field].format(value) for field, value in default.items()) or "unset"
            rows.setdefault(name, {}).setdefault(words, []).append(method)
    lines = [
        f"| `{name}` | {words} | {', '.join(methods)} |"
        for name, each in rows.items()
        for words, methods in each.items()
    ]
    return "\n".join(["## queries", "", "| name | default | methods |", "|---|---|---|", *lines])


def _meaning(name: str, config_class: type[Any]) -> tuple[str, ...]:
    """Name, range and help of a flag, by which methods that share it agree."""
    said = flags_of(config_class)[name]
    words = said.in_words(value_type(get_type_hints(config_class)[name]))
    return f"{'' if said.expert else '--'}{name}", words, said.help


def _row(meaning: tuple[str, ...]) -> str:
    shown, words, text = meaning
    name = shown.removeprefix("--")
    having = {method: config for method, config in CONFIGS.items()
              if name in flags_of(config) and _meaning(name, config) == meaning}  # fmt: skip
    cells = [f"`{shown}`", ", ".join(_defaults(name, having)), words, _methods(list(having)), text]
    cells = [cell.replace(" | ", ", ").replace("|", "\\|").replace("*", "\\*") for cell in cells]
    return f"| {' | '.join(cells)} |"


def _defaults(name: str, having: dict[str, type[Any]]) -> Iterator[str]:
    """The default of most methods, then those of others."""
    defaults: dict[str, list[str]] = {}
    for method, config in having.items():
        default = getattr(config, name)
        word = "unset" if default in (None, "") else f"`{default}`"
        defaults.setdefault(word, []).append(method)
    for number, (word, methods) in enumerate(sorted(defaults.items(), key=lambda item: -len(item[1]))):
        yield word if number == 0 else f"{word} ({', '.join(methods)})"


def _methods(names: list[str]) -> str:
    others = [method for method in CONFIGS if method not in names]
    if len(others) < len(names) and len(others) < 5:
        return f"all but {', '.join(others)}" if others else "all"
    return ", ".join(names)


if __name__ == "__main__":
    print(page(), end="")
