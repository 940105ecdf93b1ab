# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which modules of the house import which."""

import ast
from pathlib import Path


LIBRARY = ("diffusers_dp", "pipelines", "training", "app.py")


def sources(root: Path, *places: str) -> list[Path]:
    """Python files at these places, in order."""
    found = [root / place for place in places]
    return sorted(path for each in found for path in (each.rglob("*.py") if each.is_dir() else [each]))


def imports(path: Path, root: Path) -> set[str]:
    """Modules of the library that a file imports when it runs, by dotted name."""
    package = ["diffusers_dp", *path.relative_to(root).with_suffix("").parts[1:]][:-1]
    typing = [
        child for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) for child in ast.walk(node)
    ]  # fmt: skip
    skipped = {(node.lineno, node.col_offset) for node in typing if isinstance(node, ast.ImportFrom)}
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.lineno, node.col_offset) not in skipped:
            start = package[: len(package) - node.level + 1] if node.level else []
            module = [*start, *(node.module or "").split(".")] if node.module else start
            found |= {".".join([*module, alias.name]) for alias in node.names} | {".".join(module)}
    return found


def circles(root: Path) -> list[list[str]]:
    """Modules that import each other, directly or not."""
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts): path
        for path in sources(root, "diffusers_dp") if path.stem != "__init__"
    }  # fmt: skip
    arrows = {name: imports(path, root) & files.keys() - {name} for name, path in files.items()}

    def reached(name: str) -> set[str]:
        seen, pending = set(), [name]
        while pending:
            new = arrows[pending.pop()] - seen
            seen |= new
            pending += new
        return seen

    behind = {name: reached(name) for name in arrows}
    rings = {tuple(sorted(other for other in behind[name] if name in behind[other])) for name in arrows}
    return [list(ring) for ring in sorted(rings) if ring]
