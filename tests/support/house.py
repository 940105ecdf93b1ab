# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Counts the size and the order of the house:   PYTHONPATH=tests python -m support.house [ROOT]"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path


LIBRARY = ("diffusers_dp", "pipelines", "training", "app.py")
MOST_LINES = 400
#: Descriptions of arguments that begin with "Of".
BARE_OF = re.compile(r"^\s*[\w`*, ]+ \([^\n]*\):\s+Of\b", re.MULTILINE)
_LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER)


def sources(root: Path, *places: str) -> list[Path]:
    """Python files at these places, in order."""
    found = [root / place for place in places]
    return sorted(path for each in found for path in (each.rglob("*.py") if each.is_dir() else [each]))


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and type(first.value.value) is str
            ):
                yield first.value


def code_lines(path: Path) -> int:
    """Lines of code: no blank lines, comments or docstrings."""
    text = path.read_text(encoding="utf-8")
    prose = {line for each in docstrings(ast.parse(text)) for line in range(each.lineno, each.end_lineno + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {n for t in tokens if t.type not in _LAYOUT for n in range(t.start[0], t.end[0] + 1)}
    return len(lines - prose)


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


def matches(root: Path, pattern: str, *places: str, without: str = "") -> list[str]:
    """Lines that hold a pattern, as `file:line`."""
    return [
        f"{path.relative_to(root)}:{number}"
        for path in sources(root, *places)
        if not (without and path.relative_to(root).as_posix().startswith(without))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(pattern, line)
    ]


def counts(root: Path) -> dict[str, int]:
    library = sources(root, *LIBRARY)
    prose = [each.value for path in library for each in docstrings(ast.parse(path.read_text(encoding="utf-8")))]
    return {
        "lines of code of the library": sum(map(code_lines, library)),
        "lines of code of the tests": sum(map(code_lines, sources(root, "tests"))),
        "lines with Namespace outside commands/": len(
            matches(root, r"\bNamespace\b", *LIBRARY, without="diffusers_dp/commands/")
        ),
        "isinstance of a configuration outside methods/": len(
            matches(root, r"isinstance\((\w+\.)*config, ", *LIBRARY, without="diffusers_dp/methods/")
        ),
        "dictionaries named *_settings": len(matches(root, r"\bdef \w+_settings\b", *LIBRARY)),
        "circles of imports": len(circles(root)),
        "files of more than 400 lines": sum(
            len(path.read_text(encoding="utf-8").splitlines()) > MOST_LINES for path in library
        ),
        'descriptions of arguments that begin with "Of"': sum(len(BARE_OF.findall(text)) for text in prose),
    }


if __name__ == "__main__":
    for what, number in counts(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()).items():
        print(f"{number:>7,}  {what}")
