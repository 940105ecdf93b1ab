# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Every example runs, as a script and cell by cell as a notebook; the two are one text."""

import json
import re
import shutil
from pathlib import Path

import pytest

from support import forked
from support.places import ROOT, module_of


notebooks = module_of(ROOT / "examples" / "notebooks.py")
SCRIPTS = {path.stem: path for path in notebooks.scripts()}

# A file that each writes; the plan of a budget writes none.
MADE = {
    "train_on_your_own_folder": "example_of_training/run/release/privacy_receipt.json",
    "sample_images": "example_of_sampling/image-3.png",
    "make_a_private_dataset": "example_of_a_dataset/mostly_one/README.md",
    "verify_a_stranger_s_model": "example_of_verifying/edited/privacy_receipt.json",
    "your_own_model": "example_of_own_model/run/release/privacy_receipt.json",
    "your_own_teachers": "example_of_own_teachers/run/release/images.safetensors",
    "patients": "example_of_patients/run/release/privacy_receipt.json",
    "fine_tune_a_hub_model": "example_of_fine_tuning/run/release/pytorch_lora_weights.safetensors",
    "photographs": "example_of_photographs/run/release/privacy_receipt.json",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_notebook_is_that_of_the_script(name):
    """`python examples/notebooks.py` writes them."""
    notebook = SCRIPTS[name].with_suffix(".ipynb")
    written = json.loads(notebook.read_text(encoding="utf-8"))
    kept = notebooks.notebook_of(SCRIPTS[name].read_text())
    notebooks.keep_outputs(kept, written)
    assert kept == written and notebook.read_text(encoding="utf-8") == notebooks.to_text(written)


LONGEST = (
    "train_on_your_own_folder", "plan_a_budget", "make_a_private_dataset", "patients", "fine_tune_a_hub_model",
    "photographs",
)  # fmt: skip
# A notebook is the script's text: one runs each time, the others with the slow tests, and with them the scripts that
# train and calibrate most.
RUNS = [pytest.param(name, "script", marks=pytest.mark.slow if name in LONGEST else []) for name in SCRIPTS] + [
    pytest.param(name, "notebook", marks=[] if name == "sample_images" else pytest.mark.slow) for name in SCRIPTS
]


@pytest.mark.parametrize(("name", "kind"), RUNS)
def test_it_runs(name, kind, honest, tmp_path, tmp_path_factory):
    """In a folder with a release where `make demo` puts one; a slow notebook in an empty one."""
    if kind == "script" or name == "sample_images":
        shutil.copytree(honest, tmp_path / "runs" / "demo" / "release")
    before = contents(tmp_path)
    done = run_example(name, kind, tmp_path, tmp_path_factory.mktemp("said"))
    assert done.returncode == 0, done.stderr[-3000:]
    made = Path(MADE.get(name, "nothing"))
    assert (tmp_path / made).is_file() == (name in MADE)
    assert {path: text for path, text in contents(tmp_path).items() if path.parts[0] != made.parts[0]} == before


@pytest.mark.parametrize("name", MADE)
def test_a_folder_that_is_there_is_not_touched(name, honest, tmp_path, tmp_path_factory):
    """Nor are the user's own images, which the README calls `scans`: here they have the names that an example gives to
    its own."""
    shutil.copytree(honest, tmp_path / "runs" / "demo" / "release")
    own = Path(MADE[name]).parts[0]
    for path in (f"{own}/scans/benign/0.png", "scans/benign/0.png", "edited/0.png", "image-0.png"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"a patient")
    before = contents(tmp_path)
    done = run_example(name, "script", tmp_path, tmp_path_factory.mktemp("said"))
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr[-3000:]
    assert last == f"{own} exists: this example writes into a folder of its own; move yours away, or run it elsewhere."
    assert contents(tmp_path) == before


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run_example(name, kind, folder, said):
    script = SCRIPTS[name]
    if kind == "script":
        return forked.run(script, folder=said, cwd=folder)
    (said / "kernel.py").write_text(notebooks.KERNEL)
    return forked.run(said / "kernel.py", script.with_suffix(".ipynb"), said / "said.json", folder=said, cwd=folder)


def test_notebooks_keep_outputs_and_no_path_of_ours():
    for script in SCRIPTS.values():
        text = script.with_suffix(".ipynb").read_text(encoding="utf-8")
        assert not re.search(r"/(home|root|tmp|work|Users)/", text), script.name
        for cell in notebooks.code_of(json.loads(text)):
            assert all(found["output_type"] in ("stream", "display_data") for found in cell["outputs"])
