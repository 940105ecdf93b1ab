# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Writes the notebook beside each example:

    python examples/notebooks.py              with the outputs that are still those of its cells
    python examples/notebooks.py NAME ...     and runs these first, each in an empty folder, for their outputs

The scripts are the source. `# %%` begins a cell of code, `# %% [markdown]` one of words.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


HERE = Path(__file__).resolve().parent
# Runs the code cells one after the other, in one namespace, as a kernel would: what they and their programs print to
# the standard output, and what the last line of a cell is.
KERNEL = """
import ast, base64, json, os, sys, tempfile
cells, said = json.load(open(sys.argv[1], encoding="utf-8"))["cells"], []
namespace = {"__name__": "__main__"}
for cell in cells:
    if cell["cell_type"] != "code":
        continue
    tree, last, outputs = ast.parse("".join(cell["source"])), None, []
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    with tempfile.TemporaryFile() as printed:
        kept = os.dup(1)
        os.dup2(printed.fileno(), 1)
        try:
            exec(compile(tree, cell["id"], "exec"), namespace)
            value = None if last is None else eval(compile(last, cell["id"], "eval"), namespace)
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
            os.close(kept)
        printed.seek(0)
        text = printed.read().decode("utf-8", "replace")
    if text:
        outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).replace(sys.executable, "python").splitlines(keepends=True)}
        if hasattr(value, "_repr_png_"):
            data = {"image/png": base64.b64encode(value._repr_png_()).decode(), "text/plain": ["a picture"]}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    said.append(outputs)
json.dump(said, open(sys.argv[2], "w", encoding="utf-8"))
"""


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


def code_of(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def keep_outputs(notebook: dict[str, Any], earlier: dict[str, Any]) -> None:
    """Those of the earlier notebook, down to the first cell of code that differs."""
    for number, (cell, old) in enumerate(zip(code_of(notebook), code_of(earlier))):
        if cell["source"] != old["source"] or old["execution_count"] is None:
            return
        cell.update(execution_count=number + 1, outputs=old["outputs"])


def run(notebook: dict[str, Any]) -> None:
    """Runs the cells in an empty folder, and puts in what they print."""
    with tempfile.TemporaryDirectory() as elsewhere:
        place = Path(elsewhere, "empty")
        place.mkdir()
        program, cells, said = (Path(elsewhere, name) for name in ("kernel.py", "cells.json", "said.json"))
        program.write_text(KERNEL)
        cells.write_text(to_text(notebook), encoding="utf-8")
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        subprocess.run([sys.executable, str(program), str(cells), str(said)], cwd=place, check=True, env=environment)
        text = said.read_text(encoding="utf-8").replace(f"{place}{os.sep}", "").replace(str(place), ".")
    for number, (cell, outputs) in enumerate(zip(code_of(notebook), json.loads(text), strict=True)):
        cell.update(execution_count=number + 1, outputs=outputs)


def to_text(notebook: dict[str, Any]) -> str:
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main(names: list[str]) -> None:
    known = {path.stem: path for path in scripts()}
    if unknown := sorted(set(names) - set(known)):
        sys.exit(f"There is no example {', '.join(unknown)}; there are: {', '.join(known)}.")
    for name, path in known.items():
        written, notebook = path.with_suffix(".ipynb"), notebook_of(path.read_text())
        if written.exists():
            keep_outputs(notebook, json.loads(written.read_text(encoding="utf-8")))
        if name in names:
            run(notebook)
        written.write_text(to_text(notebook), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
