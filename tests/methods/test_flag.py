# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What every flag of every method keeps of what its metadata say."""

import math
from dataclasses import fields, replace
from typing import get_type_hints

import pytest

from diffusers_dp.errors import UsageError, fields_named
from diffusers_dp.methods.command_line import value_type
from diffusers_dp.methods.config import CONFIGS, load_config
from diffusers_dp.methods.flag import LARGEST, MOST, SMALLEST, flag, flags_of, validate
from diffusers_dp.methods.flag_page import page
from support.places import ROOT


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
            assert refusal(replace(config, **{name: value})).startswith(f"--{name} is "), value
    for value in [*inside, *([] if said.or_else is None else [said.or_else])]:
        assert said.takes(value), value
    assert said.takes(getattr(config, name)), "the default"


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("sample_rate", ["0", "1.5", "1/0", "often", "1e-400", "nan"], ["1", "1/14", "0.29"]),
        ("max_physical_batch_size", ["0", "many", "1.5"], ["1", "auto"]),
        ("block_out_channels", ["32,x", ",", "0", "8,-8"], ["8,16"]),
        ("attention_resolutions", ["all", "0"], ["", "8,4"]),
        ("augmentations", ["mixup", "flip,cutmix"], ["", "flip", "flip,crop"]),
        ("class_names", [","], ["a", "a,b"]),
        ("length_scales", [",", "0", "2,nan", "2,x"], ["2", "0.5,1"]),
        ("saliency_times", [",", "0", "0.5,1"], ["0.5"]),
        ("variation_strengths", [",", "nan", "1.1"], ["0", "1,0.5"]),
        ("variations", ["blur", ","], ["affine"]),
    ],
)
def test_a_text_of_numbers_or_words(name, wrong, right):
    said = next(said for known, said in FLAGS if known == name)
    assert [said.takes(text) for text in (*wrong, *right)] == [False] * len(wrong) + [True] * len(right)


@EACH
def test_a_flag_that_needs_another_names_it(name, said, config_class):
    for other in said.needs:
        given = {each: kind(config_class, each)(7) for each in (name, *said.needs) if each != other}
        config = config_class(**given, **TEXT.get(config_class.method, {}))
        assert f"--{name} needs --{other}" in refusal(config)
    if said.only_with:
        value = str(max(7, int(said.at_least or 0))) if kind(config_class, name) is int else "0.5"
        with pytest.raises(UsageError, match=f"--{name} needs --{said.only_with}"):
            load_config([f"--{name}", value, "--dry_run", *_given(config_class)], config_class)


@EACH
def test_two_ways_to_say_the_same_exclude_each_other(name, said, config_class, tmp_path):
    """On the command line and in a recipe; the command line's way replaces the recipe's."""
    for other in said.excludes:
        values = {each: "1" if kind(config_class, each) is int else "0.5" for each in (name, other)}
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text("".join(f"{each}: {value}\n" for each, value in values.items()))
        for given in ([f"--{each}={value}" for each, value in values.items()], ["--config", str(recipe)]):
            with pytest.raises(UsageError, match=f"--{name} and --{other} exclude each other"):
                load_config([*given, *_given(config_class)], config_class)
        for first, second in ((name, other), (other, name)):
            recipe.write_text(f"{first}: {values[first]}\n")
            more = ["--class_names", "a"] if second == "train_data_dir" else []
            more += ["--generator", "public_images"] if config_class.method == "pe" and "public" in second else []
            if config_class.method == "pe" and "pretrained" in second:
                more += ["--generator", "pipeline"]
            given = ["--config", str(recipe), f"--{second}={values[second]}", "--dry_run", *more]
            found = load_config(given, config_class)
            default = next(each.default for each in fields(config_class) if each.name == first)
            assert getattr(found, first) == default and str(getattr(found, second)) == values[second]


def _given(config_class):
    return [word for name, value in TEXT.get(config_class.method, {}).items() for word in (f"--{name}", value)]


def test_the_page_of_all_flags_is_what_they_say():
    text = (ROOT / "docs" / "flags.md").read_text(encoding="utf-8")
    assert text == page(), "run: python -m diffusers_dp.methods.flag_page > docs/flags.md"
    rows = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == len(set(rows)) == len({f"--{name}" for name, _ in FLAGS})


def test_a_misspelt_word_about_a_flag_is_an_error():
    with pytest.raises(TypeError):
        flag(1, "Steps.", at_lest=0)


def test_flags_name_flags():
    for config_class in CONFIGS.values():
        said = flags_of(config_class)
        assert said.keys() == {each.name for each in fields(config_class)}
        for each in said.values():
            assert {*each.needs, *filter(None, [each.only_with])} <= said.keys()


def test_an_error_carries_a_field_that_a_caller_renames():
    with pytest.raises(UsageError, match="^--public_split 'x' does not exist$") as caught:
        with fields_named({"train_split": "public_split"}):
            raise UsageError("'x' does not exist", field="train_split")
    assert caught.value.field == "public_split"
    with pytest.raises(UsageError, match="^nothing of a flag$"), fields_named({"train_split": "public_split"}):
        raise UsageError("nothing of a flag")
