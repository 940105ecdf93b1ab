# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The house: imports run downwards only, and what must not load torch does not."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import diffusers_dp
from support.house import LIBRARY, circles, sources
from support.places import ROOT


#: From the ground up: a room imports what stands before it, and itself.
ROOMS = (
    "errors files mechanisms accounting distributed randomness gradients data privacy queries models schedulers "
    "methods release sampling evaluation runs audit dossier training commands app"
).split()
#: What anybody may import; `verify.py` and the pipelines import nothing of the package.
GROUND = ("errors", "verify", "pipelines", "__version__")
#: What each command, page and script has under one name.
PROTOCOL_NAMES = ("add_arguments", "run", "main", "train", "build", "draw", "serve", "warm_up")
#: Names that still have two meanings, none of them in `evaluation/`, `models/` or `queries/`. The verifier stands
#: alone and has names of its own for what other rooms do, too.
KNOWN_NAMES = (
    "epsilon", "guarantee", "widened", "grid_of", "check_model", "labels_of", "load_images",
    "open_images", "write_text",
)  # fmt: skip


def imported(path: Path, package: list[str]) -> set[str]:
    """The rooms that a file names in its imports, also in those inside of functions and for types alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = [*start, *(node.module or "").split(".")] if node.module else start
            names = [[*module, alias.name] for alias in node.names]
        else:
            continue
        found |= {name[1] for name in names if name[0] == "diffusers_dp" and len(name) > 1}
    return found


def upward(root: Path) -> list[str]:
    """Imports that do not run downwards, as `file: room`."""
    wrong = []
    for place in ("diffusers_dp", "training"):
        for path in sorted((root / place).rglob("*.py")):
            parts = ["diffusers_dp", *path.relative_to(root / place if place == "diffusers_dp" else root).parts]
            room = parts[1].removesuffix(".py")
            if room in ("__init__", "__main__", "cli"):
                continue
            allowed = {*GROUND, *ROOMS[: ROOMS.index(room) + 1]} if room in ROOMS else set()
            wrong += [f"{'/'.join(parts)}: {name}" for name in sorted(imported(path, parts[:-1]) - allowed)]
    return wrong


def test_imports_run_downwards_only(tmp_path):
    assert upward(ROOT) == []
    (tmp_path / "diffusers_dp" / "files").mkdir(parents=True)
    (tmp_path / "diffusers_dp" / "files" / "journal.py").write_text("if True:\n    from .. import runs\n")
    assert upward(tmp_path) == ["diffusers_dp/files/journal.py: runs"]


def test_what_counts_privacy_and_reads_flags_loads_no_torch():
    rooms = ("mechanisms", "accounting", "methods")
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for room in rooms
        for path in sorted((ROOT / "diffusers_dp" / room).glob("[!_]*.py"))
    ]
    modules += ["diffusers_dp.verify", "diffusers_dp.cli", "diffusers_dp.runs.plan", "diffusers_dp.release.receipt"]
    modules += ["diffusers_dp.dossier.write", "diffusers_dp.evaluation.flags", "diffusers_dp.commands.dossier"]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_every_name_of_the_package_loads():
    assert all(getattr(diffusers_dp, name) is not None for name in diffusers_dp.__all__)


def test_the_verifier_and_the_pipelines_import_nothing_of_the_package():
    for path in (ROOT / "diffusers_dp" / "verify.py", *(ROOT / "pipelines").glob("pipeline_*.py")):
        assert imported(path, ["diffusers_dp"]) == set()


def names_of_two_meanings(root: Path) -> dict[str, list[str]]:
    """Public classes and functions that several modules of the library define under one name."""
    found: dict[str, list[str]] = {}
    for path in sources(root, *LIBRARY):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(path.relative_to(root).as_posix())
    return {name: places for name, places in sorted(found.items()) if len({*places}) > 1}


def test_a_name_has_one_meaning():
    assert names_of_two_meanings(ROOT).keys() <= {*PROTOCOL_NAMES, *KNOWN_NAMES}


HELD = ("_generator", "_ledger", "_records")


def other_doors(place: Path) -> list[str]:
    """Where the private source, the ledger or the records of another object are read or set, as `file: line`."""
    found = []
    for path in sorted(place.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        methods = [node.func for node in nodes if isinstance(node, ast.Call)]
        for node in nodes:
            named = isinstance(node, ast.Attribute) and node.attr in HELD and node not in methods
            if named and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                found.append(f"{path.relative_to(ROOT)}: {node.lineno}")
    return found


@pytest.mark.parametrize("place", ["diffusers_dp", "training", "pipelines", "examples", "benchmarks"])
def test_nobody_but_an_audit_puts_another_source_behind_a_door(place):
    """A door draws from the operating system's entropy, writes one ledger and holds the records: all are its own, and
    of the teachers behind it."""
    found = other_doors(ROOT / place)
    assert all(each.startswith(("diffusers_dp/audit/", "diffusers_dp/privacy/teachers")) for each in found) and bool(
        found
    ) == (place == "diffusers_dp")


def test_no_modules_import_each_other():
    assert circles(ROOT) == []
