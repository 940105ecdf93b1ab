# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What every flag of every method keeps of what its metadata say."""

import math
import re
from dataclasses import replace
from typing import get_type_hints

import pytest

from diffusers_dp.errors import UsageError
from diffusers_dp.methods.command_line import parser_of, value_type
from diffusers_dp.methods.config import CONFIGS
from diffusers_dp.methods.flag import LARGEST, MOST, SMALLEST, flags_of, plain_flags, validate
from support.places import ROOT, module_of


#: Each flag once: of the first method that has it, or that says other bounds.
FLAGS = {
    (name, flag): config_class for config_class in reversed(CONFIGS.values())
    for name, flag in flags_of(config_class).items()
}  # fmt: skip
EACH = pytest.mark.parametrize(
    ("name", "said", "config_class"), [(*key, FLAGS[key]) for key in FLAGS],
    ids=[f"{each.method}-{name}" for (name, _), each in FLAGS.items()],
)  # fmt: skip
#: What a method's defaults lack.
TEXT = {"pe": {"generator": "text"}}


def kind(config_class, name):
    return value_type(get_type_hints(config_class)[name])


def bounds(said, kind):
    """Values at the ends of a range, then values outside of it."""
    if said.choices:
        wrong = [-1, 10**6] if kind is int else ["no such", said.choices[0] + " ", *[""] * (said.default != "")]
        return list(said.choices), wrong
    step = (lambda value, to: value + (1 if to > value else -1)) if kind is int else math.nextafter
    low, high = (1, MOST) if kind is int else (SMALLEST, LARGEST)
    low = low if said.at_least is None else said.at_least
    high = high if said.at_most is None else said.at_most
    inside = [step(said.above, math.inf) if said.above is not None else low]
    outside = [said.above if said.above is not None else step(low, -math.inf)]
    inside.append(step(said.below, -math.inf) if said.below is not None else high)
    outside.append(said.below if said.below is not None else step(high, math.inf))
    return inside, outside + ([10**30] if kind is int else [math.nan, math.inf, -math.inf, 1e300])


def refusal(config):
    with pytest.raises(UsageError) as caught:
        validate(config)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)
    return str(caught.value)


@EACH
def test_a_flag_refuses_what_lies_outside_of_its_range_and_takes_its_bounds(name, said, config_class):
    config, what = config_class(**TEXT.get(config_class.method, {})), kind(config_class, name)
    if what is bool:
        return
    if what is str and not (said.choices and said.read is None):
        inside, outside = [], [] if said.default == "" else ["", " "]
    else:
        inside, outside = bounds(said, what)
    for value in outside:
        if value != said.or_else:
            assert refusal(replace(config, **{name: value})).startswith(f"--{'expert ' * said.expert}{name} is "), (
                value
            )
    for value in [*inside, *([] if said.or_else is None else [said.or_else])]:
        assert said.takes(value), value
    assert said.takes(getattr(config, name)), "the default"


@pytest.mark.parametrize("name", ["feta_pro", "dp_gan"])
def test_the_long_help_shows_settings_of_experts_as_they_are_given(name):
    parser = parser_of(CONFIGS[name], prog="train", description="A method.")
    shown = re.findall(r"^  --(expert (?!NAME))?(\w+)", parser.format_help(), re.MULTILINE)
    said = flags_of(CONFIGS[name])
    assert {each for expert, each in shown if expert} == {each for each, flag in said.items() if flag.expert} != set()
    assert {each for expert, each in shown if not expert} == {
        "expert",
        "help_all",
        *(each for each, flag in said.items() if not flag.expert),
    }


def test_the_page_of_all_flags_is_what_they_say():
    text = module_of(ROOT / "docs" / "flag_page.py").page()
    named = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `--")}
    assert named == {f"--{name}" for name, flag in FLAGS if not flag.expert} and len(named) <= 160
    assert all(len(plain_flags(config)) <= 93 for config in CONFIGS.values())
