# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Groups of units, each by its id and a public key; see `randomness.keyed_hash.group_of`."""

import re
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from .mechanism import Mechanism


IDS = ("path", "row", "column")


@dataclass(frozen=True, kw_only=True)
class Grouped(Mechanism):
    """A mechanism with groups of units.

    Args:
        group_key (`str`): Key of the hash that assigns a unit to a group by its id, 16 bytes in hexadecimal.
        ids (`str`, defaults to `"row"`): What an id is: the `"path"` of an image relative to the data folder, the
            number of its `"row"`, or its value in a `"column"`.

    Raises:
        UsageError: A value lies outside its range.
    """

    group_key: str
    ids: str = "row"

    def __post_init__(self) -> None:
        super().__post_init__()
        keyed = isinstance(self.group_key, str) and re.fullmatch(r"[0-9a-f]{32}", self.group_key)
        if not keyed or self.ids not in IDS:
            raise UsageError(
                "Groups of units need a key of 16 bytes in hexadecimal and the kind of ids. "
                f"Found: key {self.group_key!r}, ids {self.ids!r}."
            )

    @property
    def own_facts(self) -> dict[str, Any]:
        return {"group_key": self.group_key, "ids": self.ids}
