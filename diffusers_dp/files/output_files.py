# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Results beside a run: each file is written atomically, and only its owner can read it or its folder. No torch."""

import os
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..verify import RECEIPT_NAME
from .canonical import canonical_json
from .file_modes import private_files
from .journal import replace_file


def refuse_in_release(output_dir: Path) -> None:
    """Raises `UsageError` for a folder in a release: what is written there is released, and the release is changed."""
    place = Path(os.path.realpath(output_dir))
    if any(os.path.exists(each / RECEIPT_NAME) for each in (place, *place.parents)):  # `Path`'s raises for long names
        reason = f"{output_dir} lies in a release, which holds nothing else; give another folder."
        raise UsageError(reason, field="output_dir")


def write_json(content: dict[str, Any], path: Path) -> None:
    """Writes `content` to `path`, see `write_text`. Raises `ValueError` if a number is not finite."""
    write_text(canonical_json(content), path)


def write_text(content: str, path: Path) -> None:
    """Writes `content` to `path` atomically, in a folder that only its owner can read.

    Raises:
        UsageError: `--output_dir` cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        with private_files():
            replace_file(path, content.encode())
    except OSError as error:
        reason = f"{path} cannot be written ({error.strerror}); give another folder."
        raise UsageError(reason, field="output_dir") from None
