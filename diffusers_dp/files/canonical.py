# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Canonical JSON, so that hashes can be compared. No torch."""

import json
from typing import Any


def canonical_json(value: Any) -> str:
    """Serialises a value with sorted keys, an indent of 2, in ASCII, with a final newline.

    Raises:
        ValueError: A number is not finite; JSON cannot represent it.
    """
    return json.dumps(value, sort_keys=True, indent=2, allow_nan=False) + "\n"
