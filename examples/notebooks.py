# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Writes the notebook beside each example:   python examples/notebooks.py

The scripts are the source. `# %%` begins a cell of code, `# %% [markdown]` one of words.
"""

import json
from pathlib import Path
from typing import Any


HERE = Path(__file__).resolve().parent


def scripts() -> list[Path]:
    """The examples: scripts with cells."""
    return sorted(path for path in HERE.glob("*.py") if path.read_text().startswith("# %%"))


def cells_of(script: str) -> list[tuple[str, str]]:
    """Kind (`markdown` or `code`) and text of each cell."""
    cells = []
    for part in script.split("# %%")[1:]:
        head, _, body = part.partition("\n")
        if head.strip() == "[markdown]":
            cells.append(
                ("markdown", "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()))
            )
        else:
            cells.append(("code", body.strip()))
    return cells


def notebook_of(script: str) -> dict[str, Any]:
    """The notebook of a script, in version 4.5 of the format, without outputs."""
    cells: list[dict[str, Any]] = []
    for number, (kind, text) in enumerate(cells_of(script)):
        cell: dict[str, Any] = {
            "cell_type": kind,
            "id": f"cell-{number}",
            "metadata": {},
            "source": text.splitlines(keepends=True),
        }
        cells.append(cell if kind == "markdown" else {**cell, "execution_count": None, "outputs": []})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def to_text(notebook: dict[str, Any]) -> str:
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for path in scripts():
        path.with_suffix(".ipynb").write_text(to_text(notebook_of(path.read_text())), encoding="utf-8")
