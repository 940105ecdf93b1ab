# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The planted faults fit the code as it is now, and `make mutants` says which are caught and fails for those that are
not."""

import ast
import dataclasses
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mutants import FAULTS
from mutants.__main__ import ROOT, CannotPlant, planted


@pytest.mark.parametrize("file", sorted({fault.file for fault in FAULTS}))
def test_the_faults_of_a_file_can_be_planted(file):
    """What each replaces is there once, what becomes of it is Python, and the tests named for it exist."""
    for fault in FAULTS:
        if fault.file == file:
            ast.parse(planted(fault, ROOT))
            assert fault.tests, fault.name
            for test in fault.tests:
                name, *path = test.partition("[")[0].split("::")
                assert ".".join(path) in names_of(name) or not path, (fault.name, test)


@functools.cache
def names_of(file):
    """Tests of a file, those of a class after its name."""
    found = set()
    for node in ast.parse((ROOT / "tests" / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def test_faults_have_names_of_their_own():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_no_table_names_a_file_twice():
    """YAML keeps the last of two, and the faults of the first would be forgotten."""
    for table in (ROOT / "tests" / "mutants" / "faults").glob("*.yaml"):
        files = re.findall(r"^[^\s#-].*:$", table.read_text(), re.MULTILINE)
        assert len(set(files)) == len(files), table


@pytest.mark.parametrize("change", [{"old": "no such code"}, {"old": "import"}, {"new": FAULTS[0].old}])
def test_a_fault_that_does_not_fit_cannot_be_planted(change):
    with pytest.raises(CannotPlant, match="faults|tests/mutants"):
        planted(dataclasses.replace(FAULTS[0], **change), ROOT)


RUN = """
import sys
from mutants import __main__ as runner

runner.PRELOADED = ()
tests = ("test_it.py::test_answer",)
faults = [runner.Fault(name, "diffusers_dp/__init__.py", old, new, tests) for name, old, new in FAULTS]
sys.exit(runner.main(["--root", sys.argv[1], "--jobs", "2", *sys.argv[2:]], faults))
"""
CAUGHT = ("the wrong answer", "answer = 42", "answer = 41")
CAUGHT_TOO = ("a wrong answer too", "answer = 42", "answer = 43")
BY_ANOTHER = ("the wrong query", "query = 'why'", "query = 'how'")
SURVIVES = ("another comment", "# a remark", "# a word")


@pytest.fixture
def repository(tmp_path):
    for name in ("diffusers_dp", "tests"):
        (tmp_path / name).mkdir()
    (tmp_path / "diffusers_dp" / "__init__.py").write_text("answer = 42\nquery = 'why'\n# a remark\n")
    (tmp_path / "tests" / "test_it.py").write_text(
        "from diffusers_dp import answer, query\n\n"
        "def test_answer():\n    assert answer == 42\n\n"
        "def test_query():\n    assert query == 'why'\n"
    )
    return tmp_path


def make_mutants(repository, *faults, flags=()):
    done = subprocess.run(
        [sys.executable, "-c", RUN.replace("FAULTS", repr(faults)), str(repository), *flags],
        capture_output=True, text=True, cwd=Path(__file__).parent,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_what_is_caught_and_by_whom(repository):
    before = (repository / "diffusers_dp" / "__init__.py").read_text()
    code, said = make_mutants(repository, CAUGHT)
    assert code == 0 and "All 1 are caught." in said, said
    assert any(
        "1/1  the wrong answer" in line and line.endswith("test_it.py::test_answer") for line in said.splitlines()
    )
    assert (repository / "diffusers_dp" / "__init__.py").read_text() == before


@pytest.mark.parametrize("fault", [SURVIVES, BY_ANOTHER], ids=["of no test", "of another test"])
def test_a_survivor_fails_the_run(fault, repository):
    """A fault that only a test notices which is not named for it survives, too."""
    code, said = make_mutants(repository, CAUGHT, fault)
    assert code == 1 and f"1 of 2 survive: {fault[0]}." in said, said


def test_faults_prove_nothing_where_the_tests_fail_without_them(repository):
    (repository / "diffusers_dp" / "__init__.py").write_text(
        "answer = 43\nquery = 'why'\n# a remark\nanswer = 42 + 1\n"
    )
    code, said = make_mutants(repository, SURVIVES)
    assert code == 1 and "must pass before faults are planted" in said, said


def test_a_fault_that_ends_the_tests_is_not_taken_for_caught(repository):
    """An import that fails, for instance: that would be noticed anyhow, and says nothing about the tests."""
    code, said = make_mutants(repository, ("no package", "answer = 42", "raise SystemExit"))
    assert code == 1 and "neither passed nor failed" in said and "are caught" not in said, said


def test_a_second_call_decides_what_is_left(repository):
    """The first was ended by a fault that nobody can judge; what it found is written down, and holds for these files
    and faults alone. A line that a kill left half written is none."""
    ends = ("no package", "query = 'why'", "raise SystemExit")
    code, said = make_mutants(repository, CAUGHT, SURVIVES, ends, flags=["--jobs", "1"])
    assert code == 1 and "3 faults, 0 of them decided before" in said and "neither passed nor failed" in said, said
    kept = repository / "build" / "mutants.jsonl"
    with open(kept, "a") as file:
        file.write('{"key": "half')
    code, said = make_mutants(repository, CAUGHT, SURVIVES, CAUGHT_TOO)
    assert code == 1 and "3 faults, 2 of them decided before (--fresh forgets that), 1 left." in said, said
    assert "on an unchanged copy" not in said and "3/3  a wrong answer too" in said, said
    assert "1 of 3 survive: another comment." in said, said
    code, said = make_mutants(repository, CAUGHT, CAUGHT_TOO)
    assert code == 0 and "2 of them decided before" in said and "All 2 are caught." in said, said
    for name, flags in ((None, ["--fresh"]), ("diffusers_dp/__init__.py", []), ("tests/test_it.py", [])):
        if name is not None:
            with open(repository / name, "a") as file:
                file.write("# changed\n")
        code, said = make_mutants(repository, CAUGHT, flags=flags)
        assert code == 0 and "1 faults, 0 of them decided before" in said, said
    other = (CAUGHT[0], CAUGHT[1], "answer = 40")
    assert "0 of them decided before" in make_mutants(repository, other)[1]
