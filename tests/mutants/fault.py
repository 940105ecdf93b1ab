# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a planted fault is, and the files that most of them are in."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One wrong edit of one file.

    Args:
        name (`str`): What is wrong, in a few words.
        file (`str`): The file, from the root of the repository.
        old, new (`str`): What stands there, exactly once, and what the fault makes of it.
        tests (`tuple[str, ...]`): Tests that must catch it, as pytest names them below `tests/`. They run first.
        old_too, new_too (`str`, *optional*): A second place, where one does not make the fault.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    old_too: str = ""
    new_too: str = ""


DOOR, STEP, ENGINE = (
    "diffusers_dp/privacy/sensitive.py",
    "diffusers_dp/gradients/step.py",
    "diffusers_dp/gradients/per_example.py",
)
RULES, SAMPLING, RANDOMNESS = (
    "diffusers_dp/gradients/rules.py", "diffusers_dp/gradients/sampling.py",
    "diffusers_dp/randomness/private_generator.py",
)  # fmt: skip
PARTS, SUPPORTED = "diffusers_dp/gradients/parts.py", "diffusers_dp/gradients/supported.py"
LEDGER, ACCOUNTING, SCRIPT = (
    "diffusers_dp/accounting/ledger.py",
    "diffusers_dp/accounting/epsilon.py",
    "training/train_feta_pro.py",
)
CENTRAL_IMAGES, QUERY = "diffusers_dp/queries/central_images.py", "diffusers_dp/queries/query.py"
SEPARATE = "diffusers_dp/privacy/separate_records.py"
LEDGER_FILE, ROW = "diffusers_dp/accounting/ledger_file.py", "diffusers_dp/accounting/ledger_row.py"
PRIOR_RELEASE = "diffusers_dp/runs/prior_release.py"
MECHANISM, KINDS, GROUPS = (
    "diffusers_dp/mechanisms/mechanism.py", "diffusers_dp/mechanisms/kinds.py", "diffusers_dp/mechanisms/groups.py",
)  # fmt: skip
POISSON, BANDED, SHARES = (
    "diffusers_dp/mechanisms/poisson.py", "diffusers_dp/mechanisms/banded.py", "diffusers_dp/mechanisms/shares.py",
)  # fmt: skip
PASSAGES, RECORDS = "diffusers_dp/privacy/passages.py", "diffusers_dp/privacy/records.py"
NOISE_OF_STEPS, KEPT_NOISE = "diffusers_dp/runs/noise.py", "diffusers_dp/runs/noise.py"
