# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Every example runs, as a script and cell by cell as a notebook; the two are one text."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml


ROOT = Path(__file__).resolve().parents[1]
specification = importlib.util.spec_from_file_location("notebooks", ROOT / "examples" / "notebooks.py")
notebooks = importlib.util.module_from_spec(specification)
specification.loader.exec_module(notebooks)
SCRIPTS = {path.stem: path for path in notebooks.scripts()}

# Runs the code cells of a notebook one after the other, in one namespace, as a kernel would.
KERNEL = """
import json, sys
namespace = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), namespace)
"""
MADE = {
    "train_on_your_own_folder": "runs/scans/release/privacy_receipt.json",
    "sample_images": "image-3.png",
    "make_a_private_dataset": "mostly_one/README.md",
    "verify_a_stranger_s_model": "edited/privacy_receipt.json",
    "plan_a_budget": "budget.png",
}


def test_each_quickstart_is_there():
    assert set(SCRIPTS) == set(MADE)


@pytest.mark.parametrize("name", MADE)
def test_the_notebook_is_that_of_the_script(name):
    """`python examples/notebooks.py` writes them."""
    notebook = SCRIPTS[name].with_suffix(".ipynb")
    assert notebook.read_text(encoding="utf-8") == notebooks.to_text(notebooks.notebook_of(SCRIPTS[name].read_text()))


LONGEST = ("train_on_your_own_folder", "plan_a_budget", "make_a_private_dataset")
# A notebook is the script's text: one runs each time, the others with the slow tests, and with them the scripts that train and calibrate most.
RUNS = [pytest.param(name, "script", marks=pytest.mark.slow if name in LONGEST else []) for name in MADE] + [
    pytest.param(name, "notebook", marks=[] if name == "sample_images" else pytest.mark.slow) for name in MADE
]


@pytest.mark.parametrize(("name", "kind"), RUNS)
def test_it_runs(name, kind, honest, tmp_path):
    """In a folder with a release where `make demo` puts one."""
    shutil.copytree(honest, tmp_path / "runs" / "demo" / "release")
    (tmp_path / "training").symlink_to(ROOT / "training")
    script = SCRIPTS[name]
    command = [str(script)] if kind == "script" else ["-c", KERNEL, str(script.with_suffix(".ipynb"))]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / MADE[name]).is_file()


def test_the_space_is_complete():
    folder = ROOT / "examples" / "space"
    _, header, text = (folder / "README.md").read_text().split("---\n", 2)
    facts = yaml.safe_load(header)
    assert facts["sdk"] == "gradio" and facts["app_file"] == "app.py" and (ROOT / "app.py").is_file()
    pins = dict(
        line.split(" ;")[0].split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    assert facts["sdk_version"] == pins["gradio"] and facts["python_version"] == "3.11"
    assert "diffusers_dp[app]" in (folder / "requirements.txt").read_text()
    assert "DIFFUSERS_DP_RELEASES" in text


def test_notebooks_hold_no_outputs():
    for script in SCRIPTS.values():
        for cell in json.loads(script.with_suffix(".ipynb").read_text())["cells"]:
            assert not cell.get("outputs") and cell.get("execution_count") is None
