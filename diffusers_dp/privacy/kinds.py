# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The passage of each kind of mechanism: a new one is a line here."""

from ..mechanisms import Banded, Everyone, Mechanism, Poisson, Shares
from ..randomness.private_generator import PrivateGenerator
from .passages import Passage, Turns
from .records import PrivateRecords


#: The kinds that `SensitiveImages` answers to, and those that `Teachers` answer to.
AT_THE_DOOR: dict[type[Mechanism], type[Passage]] = {Everyone: Passage, Poisson: Passage, Banded: Turns}
OF_TEACHERS: dict[type[Mechanism], type[Passage]] = {Shares: Passage}


def passage_of(
    mechanism: Mechanism,
    records: PrivateRecords,
    generator: PrivateGenerator,
    kinds: dict[type[Mechanism], type[Passage]],
) -> Passage:
    """The passage of a mechanism. Raises `ValueError` where its kind has none here."""
    passage = kinds.get(type(mechanism))
    if passage is None:
        raise ValueError(f"A mechanism of kind {type(mechanism).__name__} has no passage here.")
    return passage(mechanism, records, generator)
