# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the source code itself says."""

import ast


def handlers(path):
    """Every `except` of a file, with what it catches and what it ends in; `suppress(...)` counts as one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler):
            caught = "everything" if node.type is None else ast.unparse(node.type)
            yield caught, isinstance(node.body[-1], ast.Raise)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            yield f"suppress({ast.unparse(node)})", False
