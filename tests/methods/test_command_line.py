# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a training script says of its flags, and how it takes them."""

import re
from dataclasses import fields

import pytest

from diffusers_dp.errors import UsageError
from diffusers_dp.methods.config import CONFIGS, load_config
from diffusers_dp.methods.method_flags import DPDMConfig


def told(capsys, config_class, flag):
    with pytest.raises(SystemExit, match="0"):
        load_config([flag], config_class)
    return capsys.readouterr().out


def flags_of(text):
    return re.findall(r"^  (?:-h, )?--(\w+)", text, re.MULTILINE)


@pytest.mark.parametrize("method", CONFIGS)
def test_help_is_in_the_order_of_a_user_s_decisions(method, capsys):
    text = told(capsys, CONFIGS[method], "--help")
    sections = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert sections[:4] == ["options", "data", "privacy", "run"] and "Hub" not in sections
    shown, all_flags = flags_of(text), flags_of(told(capsys, CONFIGS[method], "--help_all"))
    assert len(all_flags) == len(set(all_flags)), "each flag is spelt in one way"
    assert set(all_flags) - {"help", "help_all"} == {flag.name for flag in fields(CONFIGS[method])}
    assert set(shown) < set(all_flags) and {"train_data_dir", "target_epsilon", "output_dir"} <= set(shown)


@pytest.mark.parametrize("method", CONFIGS)
def test_help_tells_the_method_s_own_defaults(method, capsys):
    text = " ".join(told(capsys, CONFIGS[method], "--help_all").split())
    for flag in fields(CONFIGS[method]):
        if flag.default not in (None, False, "") or flag.default == 0 and type(flag.default) is int:
            assert re.search(rf"--{flag.name} [^-].*?\(default: {re.escape(str(flag.default))}\)", text), flag.name


@pytest.mark.parametrize(
    ("given", "value"),
    [(["--dry_run"], True), (["--dry_run=false"], False), (["--dry_run", "yes"], True), (["--dry-run"], True)],
)
def test_truth(given, value):
    assert load_config(given, DPDMConfig).dry_run is value


def test_what_cannot_be_names_the_flag():
    for given, words in (["--seed", "many"], "--seed: invalid int value"), (["--dry_run", "perhaps"], "--dry_run: "):
        with pytest.raises(UsageError, match=words):
            load_config(given, DPDMConfig)
    with pytest.raises(UsageError, match="--class_names: expected one argument"):
        load_config(["--class_names"], DPDMConfig)
