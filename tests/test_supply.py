# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What comes from elsewhere: hashes for the versions of the constraints, pinned actions, no pass without an audit."""

import configparser
import importlib.util
import re
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.places import ROOT


HASHED = (ROOT / "requirements-hashed.txt").read_text()
PINNED_BY_TORCH = re.compile(r"nvidia-.*|cuda-.*|triton")  # CUDA packages, which torch names itself
MACHINES = [
    {"python_version": version, "python_full_version": f"{version}.1", "sys_platform": system, "platform_machine": cpu}
    for version in ("3.10", "3.11", "3.12", "3.13")
    for system, cpu in (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))
]  # fmt: skip


def installed(lines, machine):
    """Version by name, of the lines that count on a machine."""
    found = map(Requirement, lines)
    return {
        canonicalize_name(one.name): str(one.specifier)
        for one in found
        if one.marker is None or one.marker.evaluate({**machine, "extra": ""})
    }


def hashed(machine):
    return installed([line.removesuffix(" \\") for line in HASHED.splitlines() if line[0] not in "# "], machine)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: "-".join(machine.values()))
def test_hashed_requirements_name_the_versions_of_the_constraints(machine):
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = installed([line for line in lines if not line.startswith("#")], machine)
    found = hashed(machine)
    assert {name: version for name, version in found.items() if not PINNED_BY_TORCH.fullmatch(name)} == {
        name: version for name, version in pinned.items() if name in found
    }


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: "-".join(machine.values()))
def test_hashed_requirements_hold_all_that_the_library_and_its_extras_for_users_need(machine):
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    wanted = [
        config["options"]["install_requires"],
        *(extras[name] for name in ("app", "plot")),
    ]
    lines = [line for text in wanted for line in text.splitlines() if line and not line.startswith("#")]
    found = hashed(machine)
    for name, range_ in installed(lines, machine).items():
        assert name in found and Requirement(f"x{range_}").specifier.contains(found[name].removeprefix("=="))


def test_every_hashed_requirement_has_hashes_and_the_file_names_no_index():
    for entry in re.split(r"\n(?=\S)", HASHED.strip()):
        assert entry.startswith("#") or re.search(r"--hash=sha256:[0-9a-f]{64}$", entry), entry
    assert "://" not in HASHED and "--index" not in HASHED and "--find-links" not in HASHED


def test_actions_are_pinned_by_commit():
    for path in (ROOT / ".github" / "workflows").iterdir():
        for line in re.findall(r"uses:.*", path.read_text()):
            assert re.fullmatch(r"uses: [\w.-]+/[\w.-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", line), line


def test_the_container_is_pinned_and_what_it_installs_has_hashes():
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE=python:\S+@sha256:[0-9a-f]{64}\nFROM \$\{BASE\}$", dockerfile, re.MULTILINE)
    installs = re.findall(r"pip install (.*)", dockerfile)
    assert len(installs) == 2 and all("--require-hashes" in line or "--no-deps" in line for line in installs)
    assert "index" not in " ".join(installs)


def test_the_workflow_runs_lint_and_tests():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert {"make lint", "make test"} <= set(re.findall("run: (.*)", workflow))


@pytest.mark.skipif(
    importlib.util.find_spec("pip_audit") is not None, reason="pip-audit is installed here, and may pass"
)
def test_an_audit_that_cannot_be_done_does_not_pass():
    done = subprocess.run([sys.executable, ROOT / ".ci" / "audit_deps.py"], capture_output=True, text=True)
    assert done.returncode == 1 and "NOT passed" in done.stderr and "NOT audited: diffusers-dp" in done.stdout
