# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The planted faults fit the code as it is now, and `make mutants` says which are caught and fails for those that are
not."""

import ast
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutants import FAULTS
from mutants.__main__ import ROOT, CannotPlant, planted


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault):
    """What it replaces is there once, and what becomes of it is Python."""
    ast.parse(planted(fault, ROOT))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_tests_named_for_a_fault_exist(fault):
    assert fault.tests
    for test in fault.tests:
        file, *path = test.partition("[")[0].split("::")
        scope = ast.parse((ROOT / "tests" / file).read_text()).body
        for name in path:
            name = name.partition("[")[0]  # without parameters
            found = [node for node in scope if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name]
            assert found, test
            scope = found[0].body


def test_faults_have_names_of_their_own():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


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
BY_ANOTHER = ("the wrong question", "question = 'why'", "question = 'how'")
SURVIVES = ("another comment", "# a remark", "# a word")


@pytest.fixture
def repository(tmp_path):
    for name in ("diffusers_dp", "tests"):
        (tmp_path / name).mkdir()
    (tmp_path / "diffusers_dp" / "__init__.py").write_text("answer = 42\nquestion = 'why'\n# a remark\n")
    (tmp_path / "tests" / "test_it.py").write_text(
        "from diffusers_dp import answer, question\n\n"
        "def test_answer():\n    assert answer == 42\n\n"
        "def test_question():\n    assert question == 'why'\n"
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
    code, said = make_mutants(repository, CAUGHT, BY_ANOTHER)
    assert code == 0 and "All 2 are caught." in said, said
    assert any(
        "/2  the wrong answer" in line and line.endswith("test_it.py::test_answer") for line in said.splitlines()
    )
    assert "test_it.py::test_question (not named for it)" in said
    assert (repository / "diffusers_dp" / "__init__.py").read_text() == before


def test_a_survivor_fails_the_run(repository):
    """This file is no test of what was planted: it notices every fault."""
    (repository / "tests" / "test_mutants.py").write_text("def test_faults_fit():\n    raise AssertionError\n")
    code, said = make_mutants(repository, CAUGHT, SURVIVES)
    assert code == 1 and "1 of 2 survive: another comment." in said, said


def test_faults_prove_nothing_where_the_tests_fail_without_them(repository):
    (repository / "diffusers_dp" / "__init__.py").write_text(
        "answer = 43\nquestion = 'why'\n# a remark\nanswer = 42 + 1\n"
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
    ends = ("no package", "question = 'why'", "raise SystemExit")
    code, said = make_mutants(repository, CAUGHT, SURVIVES, ends, flags=["--jobs", "1"])
    assert code == 1 and "3 faults, 0 of them decided before" in said and "neither passed nor failed" in said, said
    kept = repository / "build" / "mutants.jsonl"
    with open(kept, "a") as file:
        file.write('{"key": "half')
    code, said = make_mutants(repository, CAUGHT, SURVIVES, BY_ANOTHER)
    assert code == 1 and "3 faults, 2 of them decided before (--fresh forgets that), 1 left." in said, said
    assert "on an unchanged copy" not in said and "3/3  the wrong question" in said, said
    assert "1 of 3 survive: another comment." in said, said
    code, said = make_mutants(repository, CAUGHT, BY_ANOTHER)
    assert code == 0 and "2 of them decided before" in said and "All 2 are caught." in said, said
    for name, flags in ((None, ["--fresh"]), ("diffusers_dp/__init__.py", []), ("tests/test_it.py", [])):
        if name is not None:
            with open(repository / name, "a") as file:
                file.write("# changed\n")
        code, said = make_mutants(repository, CAUGHT, flags=flags)
        assert code == 0 and "1 faults, 0 of them decided before" in said, said
    other = (CAUGHT[0], CAUGHT[1], "answer = 40")
    assert "0 of them decided before" in make_mutants(repository, other)[1]
