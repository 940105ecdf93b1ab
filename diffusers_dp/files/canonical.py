# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""One way to write JSON, so that hashes of it can be compared. No torch."""

import json
from typing import Any


def canonical_json(value: Any) -> str:
    """The one way in which a value is written: keys sorted, indented by 2, ASCII, with a final newline.

    Raises:
        `ValueError`: If a number is not finite, for JSON has no word for it.
    """
    return json.dumps(value, sort_keys=True, indent=2, allow_nan=False) + "\n"
