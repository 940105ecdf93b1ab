# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a training script says of its flags, and how it takes them."""

import pytest

from diffusers_dp.errors import UsageError
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.method_flags import DPDMConfig


def test_what_cannot_be_names_the_flag():
    for given, words in (["--seed", "many"], "--seed: invalid int value"), (["--dry_run", "perhaps"], "--dry_run: "):
        with pytest.raises(UsageError, match=words):
            load_config(given, DPDMConfig)
    with pytest.raises(UsageError, match="--class_names: expected one argument"):
        load_config(["--class_names"], DPDMConfig)
