"""Cases of `rows.py`: runs that become rows, read from a file such as `cases.yaml`."""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml


NOT_COVERED = "chosen on these training images by hand: not covered by epsilon"


@dataclass(frozen=True)
class Case:
    """One run that becomes one row.

    Args:
        name (`str`): Name of the case in the file of cases.
        method (`str`): A method that `diffusers-dp train` knows.
        data (`str`): Name of a data set that `--data` gives a place.
        epsilon (`float`), seed (`int`): Of this run.
        recipe (`str`, *optional*): A shipped recipe, or a file.
        flags (`tuple[str, ...]`): Further training flags.
        num_images (`int`, defaults to 5000): Images drawn from the release.
        draw (`tuple[str, ...]`): Further flags of `diffusers-dp sample`. `{NAME}` in flags is the place of a data set
            or a model.
        minutes (`float`, defaults to 30): Minutes of one core that training may take.
        settings (`str`): On which images its settings were chosen.
    """

    name: str
    method: str
    data: str
    epsilon: float
    seed: int
    recipe: str | None = None
    flags: tuple[str, ...] = ()
    num_images: int = 5000
    draw: tuple[str, ...] = ()
    minutes: float = 30
    settings: str = NOT_COVERED

    @property
    def key(self) -> str:
        """A hash of all that decides about the row but the name."""
        facts = {name: value for name, value in asdict(self).items() if name not in ("name", "minutes", "settings")}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def training_key(self) -> str:
        """The key of the case that trains alike and draws in the usual way."""
        return replace(self, draw=(), num_images=Case.num_images).key

    def training_flags(self, places: dict[str, str]) -> list[str]:
        flags = ["--config", self.recipe] if self.recipe else []
        flags += ["--dataset_name", places[self.data], "--target_epsilon", f"{self.epsilon:g}"]
        return [*flags, "--seed", str(self.seed), *filled(self.flags, places)]


def filled(flags: Iterable[str], places: dict[str, str]) -> list[str]:
    """Flags with places in place of their names in braces."""
    return [re.sub(r"{(\w+)}", lambda name: places[name[1]], flag) for flag in flags]


def data_of(case: Case) -> set[str]:
    """Names of all data sets and models that a case needs."""
    return {case.data, *re.findall(r"{(\w+)}", " ".join((*case.flags, *case.draw)))}


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{path} is not a list of cases")
    return entries


def read_cases(path: Path) -> list[Case]:
    """
    Reads a file of cases: a list of mappings with the fields of `Case`, but `epsilons` and `seeds` in place of
    `epsilon` and `seed`, and flags as one text. `vary` maps training flags to lists of values. All first seeds come
    first.

    Raises:
        ValueError: A case has an unknown field, or lacks one.
    """
    grown: list[tuple[int, int, Case]] = []
    for place, entry in enumerate(_entries(path)):
        entry = dict(entry)
        epsilons, seeds = entry.pop("epsilons", [10]), entry.pop("seeds", [0])
        entry |= {name: tuple(str(entry[name]).split()) for name in ("flags", "draw") if name in entry}
        grid = [[(flag, str(value)) for value in values] for flag, values in entry.pop("vary", {}).items()]
        for (turn, seed), epsilon, point in product(enumerate(seeds), epsilons, list(product(*grid))):
            try:
                case = Case(**entry, epsilon=float(epsilon), seed=int(seed))
                name = " ".join([case.name, *(f"{flag}={value}" for flag, value in point)])
                varied = [word for flag, value in point for word in (f"--{flag}", value)]
                grown.append((turn, place, replace(case, name=name, flags=(*case.flags, *varied))))
            except TypeError as error:
                raise ValueError(f"{path}: case {entry.get('name', place)}: {error}.") from None
    return [case for _, _, case in sorted(grown, key=lambda item: item[:2])]
