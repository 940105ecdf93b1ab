"""From the command line and a recipe to one checked configuration. Nothing here reads an image or writes a file."""

import argparse
import math
import re
import sys
import types
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from ..accounting.epsilon import largest_sample
from ..data.values import is_unicode
from ..distributed.launcher import has_gpu
from ..errors import UsageError
from ..files.untrusted_values import read_yaml_file
from ..mechanisms.poisson import rate_of_coins
from .advice import Situation
from .automatic import AUTO, INDEPENDENT, OF_A_NEW_MODEL, OWN, automatic
from .command_line import dash_remedy, nearest_flag, parser_of, value_type
from .feta_pro import FETAProConfig
from .flag import (
    Flag,
    by_name,
    check_values,
    excluding,
    flags_of,
    parse_rate,
    plain_flags,
    refuse_two_ways,
    refuse_without_effect,
    validate,
)
from .flags import OF_QUERIES, DPSGDConfig, TrainingConfig
from .latents import TRAINED
from .mean_embedding import FEATURES
from .method import Method
from .public_flags import PretrainingFlags
from .recipes import find_recipe, method_of_recipe, read_as, refuse_another_data_set
from .registry import METHODS
from .teachers import AGGREGATIONS


#: The configuration of each method that has a training script.
CONFIGS = {name: method.config for name, method in METHODS.items() if method.config is not None}
#: Flags that choose a method by their value.
CHOOSERS = {"features": FEATURES, "train": TRAINED, "aggregation": AGGREGATIONS}
_UNSET = object()
MOST_ASKED = 0.95  # of the budget, by all but DP-SGD
MOST_RECIPE = 200_000  # bytes


@dataclass(frozen=True)
class SamplingFacts:
    """
    The public numbers of DP-SGD's Poisson sampling, which follow from the flags and N.

    Args:
        num_units (`int`): N, the declared number of units: images, or what `--unit_column` tells apart.
        sample_rate (`float`): q, the probability with which each unit joins a step.
        normaliser (`int`): The constant that divides a sum of clipped gradients.
        expected_batch_size (`float`): qN.
        target_delta (`float`): delta of the guarantee.
        images_per_unit (`int`): The most images of a unit in a step.
    """

    num_units: int
    sample_rate: float
    normaliser: int
    expected_batch_size: float
    target_delta: float
    images_per_unit: int = 1

    @property
    def largest_batch_size(self) -> int:
        """The number of images that a step hardly ever exceeds."""
        return largest_sample(self.num_units, self.sample_rate) * self.images_per_unit


def load_config(argv: list[str] | None = None, of: type[TrainingConfig] | Method = FETAProConfig) -> TrainingConfig:
    """
    Reads the flags: the command line wins over the recipe of `--config`, and that over the defaults.

    Args:
        argv (`list[str]`, *optional*): The command line without the program's name. Defaults to `sys.argv[1:]`.
        of (`type[TrainingConfig]` or `Method`): A registered configuration, or a method that has one.

    Returns:
        `TrainingConfig`: The validated configuration, of that class.

    Raises:
        `UsageError`: A flag or a key of the recipe is unknown, contradicts another, or has a value that cannot be; or
            the recipe is of another method.
    """
    method, config_class = (of, of.config) if isinstance(of, Method) else (METHODS[of.method], of)
    assert config_class is not None  # of a method that is built
    parser = parser_of(
        config_class, prog=Path(METHODS.get(method.name, method).script or sys.argv[0]).name,
        description=f"Trains an image model on sensitive images with {method.title}, under one total epsilon.",
    )  # fmt: skip
    given = _read_command_line(sys.argv[1:] if argv is None else argv, parser, flags_of(config_class))
    recipe: dict[str, Any] = {}
    if given.get("config") == AUTO:
        recipe = _by_rules(config_class, given)
    elif given.get("config"):
        recipe = _read_recipe(given["config"], parser, config_class, given.get("target_epsilon"))
    if "minutes" in given and given.get("config") != AUTO:
        raise UsageError(f"--minutes has no effect without --config {AUTO}; add that, or leave it out.")
    for source in (given, recipe):
        refuse_two_ways(config_class, source)
    if recipe and given["config"] != AUTO:
        refuse_another_data_set(given["config"], config_class.method, recipe, given)
    for first, second in excluding(config_class):
        for chosen, dropped in ((first, second), (second, first)):
            if chosen in given:
                recipe.pop(dropped, None)
    config = config_class(**{**recipe, **given, **_of_queries(recipe, given)})
    for flag, methods in CHOOSERS.items():
        if (makes := methods.get(getattr(config, flag, ""))) not in (None, config_class.method):
            raise UsageError(
                f"--{flag} {getattr(config, flag)} makes {makes}, and this is {config_class.method}: give one method, "
                f"or --{flag} alone."
            )
    validate(config)
    refuse_without_effect(config, given)
    config.refuse_unasked({name: flag for flag in OF_QUERIES for name in by_name(given.get(flag, ""))})
    return config


def _of_queries(recipe: dict[str, Any], given: dict[str, Any]) -> dict[str, str]:
    """`OF_QUERIES` of both. What the command line says of a query replaces what the recipe says of it."""
    said = {flag: by_name(given.get(flag, "")) for flag in OF_QUERIES}
    named = {name for items in said.values() for name in items}
    kept = {
        flag: [item for name, item in by_name(recipe.get(flag) or "").items() if name not in named]
        for flag in OF_QUERIES
    }
    return {flag: ",".join([*kept[flag], *said[flag].values()]) for flag in OF_QUERIES}


def chosen_method(argv: list[str], name: str | None = None, among: Sequence[str] = tuple(CONFIGS)) -> Method:
    """
    The method of a command line that names it with `--method`, or else by `--features`, `--train` or its recipe; the
    first of `among` where none does. The name of a shipped recipe says whose it is: of methods that share it, the
    first.

    Args:
        argv (`list[str]`): Training flags.
        name (`str`, *optional*): From `--method`.
        among (`Sequence[str]`): Methods that may be meant; by default all that have a script, FETA-Pro first.

    Raises:
        `UsageError`: There is no training script of that method, or the recipe cannot be read.
    """
    if name is None:
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--config", nargs="?")
        for flag in CHOOSERS:
            parser.add_argument(f"--{flag}", action="append")  # the first says the method, and `check` sees the last
        given = parser.parse_known_args(argv)[0]
        path, name = given.config, among[0]
        chosen = [methods[value[0]] for flag, methods in CHOOSERS.items()
                  if (value := getattr(given, flag)) and value[0] in methods]  # fmt: skip
        if chosen:
            name = chosen[0]
        elif path and path != AUTO:
            name = method_of_recipe(path, among) or _read_yaml(path, name).get("method", name)
        if str(name) not in CONFIGS:
            raise UsageError(f"--config {path}: method {name!r} is unknown; it is one of {', '.join(CONFIGS)}.")
    if name not in CONFIGS:
        raise UsageError(f"--method {name} has no training script; give one of {', '.join(CONFIGS)}.")
    return METHODS[name]


def _read_command_line(
    argv: list[str], parser: argparse.ArgumentParser, said: Mapping[str, Flag]
) -> dict[str, Any]:  # fmt: skip
    """Returns only the flags that were given, so that a recipe can supply the others."""
    experts = [name for name, each in said.items() if each.expert]
    if odd := next((word for word in argv if not is_unicode(word)), None):
        raise UsageError(f"'{odd}' is not UTF-8: rename it.")
    try:
        given, unknown = _parsed(parser, said, _spelt_out([underscored(word) for word in argv], experts))
    except argparse.ArgumentError as error:
        name = (error.argument_name or "The command line").split("/")[0]
        name = f"--expert {name[2:]}" if name[2:] in experts else name
        raise UsageError(f"{name}: {error.message}; {dash_remedy(error.message)}see --help.") from None
    if unknown:
        if not unknown[0].startswith("-"):
            remedy = f"write --method {unknown[0]}" if unknown[0] in CONFIGS else "see --help"
            raise UsageError(f"'{unknown[0]}' belongs to no flag; {remedy}.")
        name = unknown[0].split("=")[0]
        if others := [method for method, each in CONFIGS.items() if name[2:] in plain_flags(each)]:
            raise UsageError(f"{name} is a flag of {' or '.join(others[:2])}, not of this method; leave it out.")
        raise UsageError(f"{name} is not a flag; {nearest_flag(name, [*said.keys() - {*experts}])}.")
    return given


def _parsed(
    parser: argparse.ArgumentParser, said: Mapping[str, Flag], words: list[str]
) -> tuple[dict[str, Any], list[str]]:
    """What was given, by name, and what is no flag. Raises `argparse.ArgumentError`."""
    # argparse fills in a default only where the namespace has nothing: what is left _UNSET was not given.
    given = types.SimpleNamespace(**dict.fromkeys([*said, "expert"], _UNSET))
    unknown = parser.parse_known_args(words, given)[1]
    return {name: value for name, value in vars(given).items() if value is not _UNSET}, unknown


def underscored(word: str) -> str:
    """A flag with the dashes that some are used to, as it is spelt here."""
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value if name.startswith("--") else word


def _spelt_out(argv: list[str], experts: Collection[str]) -> list[str]:
    """Each `--expert NAME=VALUE` as `--NAME=VALUE`, which the parser alone knows."""
    words, found = iter(argv), []
    for word in words:
        flag, _, pairs = word.partition("=")
        if flag.removeprefix("--") in experts and flag.startswith("--"):
            raise UsageError(f"{flag} is a setting of experts: give --expert {flag[2:]}=VALUE.")
        if flag == "--expert":
            for pair in re.split(r",(?=\w+=)", pairs or next(words, "")):
                name, equals, _ = pair.partition("=")
                if name not in experts or not equals:
                    remedy = nearest_flag(name, experts)
                    raise UsageError(f"--expert '{pair}' is not NAME=VALUE of a setting; {remedy}.")
                found.append(f"--{pair}")
        else:
            found.append(word)
    return found


def _by_rules(config_class: type[TrainingConfig], given: dict[str, Any]) -> dict[str, Any]:
    facts = config_class(**given)
    check_values(facts)
    number = facts.num_train_units or facts.num_train_images
    if number is None:
        raise UsageError(
            f"--config {AUTO} follows from the number of images, which is public: declare it by --num_train_images."
        )
    classes = len(facts.declared_class_names or ("",))
    situation = Situation(facts.target_epsilon, number, classes, facts.image_shape)
    names = {each.name for each in fields(config_class)}
    if given.get("pretrained_model_name_or_path"):
        names -= OF_A_NEW_MODEL
    if not (given.get("public_dataset_name") or given.get("public_data_dir")):
        names -= {each.name for each in fields(PretrainingFlags)}
    images = min(facts.images_per_unit, (facts.num_train_images or number) / number)
    on_gpu = given.get("minutes_on", "gpu" if has_gpu() else "core") == "gpu"
    settings = automatic(config_class.method, situation, given.get("minutes"), max(1.0, images), on_gpu=on_gpu)
    settings = {name: value for name, value in settings.items() if name in names}
    steps = given.get("max_train_steps", settings.get("max_train_steps", 0))  # rules give way to flags
    if settings.get("lr_warmup_steps", -1) >= steps or given.get("lr_scheduler") == "constant":
        settings["lr_warmup_steps"] = 0
    bands = int(settings.get("noise_bands", 0))
    if bands > steps or bands * given.get("train_batch_size", 0) > number or facts.target_epsilon == math.inf:
        own = OWN.get(config_class.method, {})
        settings |= {name: value for name, value in INDEPENDENT.items() if name in {*settings} - {*own}}
    if "budget" in settings:
        with suppress(ValueError, ArithmeticError):  # refused later
            both: Any = config_class(**{**settings, **given, **_of_queries(settings, given)})
            shares = both.asked_shares
            if asked := shares.pop("--budget moments", 0.0):
                most = (MOST_ASKED - math.fsum(shares.values())) * both.moments_share / asked
                settings["budget"] = f"moments={max(0.01, min(both.moments_share, most)):g}"
    return settings


def _read_recipe(
    path: str, parser: argparse.ArgumentParser, config_class: type[TrainingConfig], epsilon: float | None
) -> dict[str, Any]:
    method = config_class.method
    recipe = read_as(_read_yaml(path, method), path, find_recipe(path, method), epsilon)
    if (other := recipe.pop("method", method)) != method:
        raise UsageError(
            f"--config {path} is a recipe of {other!r}, and this is {method!r}; give it to that method's script."
        )
    hints, said = get_type_hints(config_class), flags_of(config_class)
    expert = recipe.pop("expert", {})
    if not isinstance(expert, dict):
        raise UsageError(f"--config {path}: 'expert' holds no 'name: value' lines; give some, or leave it out.")
    for settings, is_expert in ((recipe, False), (expert, True)):
        names = [name for name, each in said.items() if each.expert == is_expert and name != "config"]
        for key in settings:
            if key in said and said[key].expert != is_expert:
                where = "outside of" if is_expert else "under"
                raise UsageError(f"--config {path}: '{key}' belongs {where} expert:, move it.")
            if key not in names:
                raise UsageError(f"--config {path}: '{key}' is not a flag; {nearest_flag(str(key), names)}.")
    found: dict[str, Any] = {}
    for key, value in {**recipe, **expert}.items():
        kind = value_type(hints[key])
        if value is None and kind is not hints[key]:
            found[key] = None
            continue
        text = _recipe_text(path, key, value, kind)
        try:
            found |= _parsed(parser, said, [f"--{key}={text}"])[0]
        except argparse.ArgumentError as error:
            raise UsageError(f"--config {path}: '{key}': {error.message}; correct the recipe.") from None
    return found


def _read_yaml(path: str, method: str) -> dict[Any, Any]:
    place = find_recipe(path, method)
    recipe = read_yaml_file(place, f"--config {path}", "correct it, or give the path of a recipe", most=MOST_RECIPE)
    if not isinstance(recipe, dict):
        raise UsageError(f"--config {path} holds no 'flag: value' lines; see training/recipes/feta_pro for examples.")
    return recipe


def _recipe_text(path: str, key: str, value: Any, kind: type) -> str:
    """A YAML value as the command line has it: items are comma-separated."""
    if key in OF_QUERIES and isinstance(value, dict) and all(map(_is_text_or_number, value.values())):
        value = [f"{name}={number}" for name, number in value.items()]
    if kind is str and isinstance(value, list) and all(map(_is_text_or_number, value)):
        if apart := next((item for item in value if "," in str(item)), None):
            raise UsageError(
                f"--config {path}: {apart!r} in '{key}' contains a comma, which separates items; rename it."
            )
        return ",".join(map(str, value))
    if not (_is_text_or_number(value) or kind is bool and isinstance(value, bool)):
        raise UsageError(f"--config {path}: '{key}' must be of type {kind.__name__}, not {value!r}; correct it.")
    return str(value)


def _is_text_or_number(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def resolve(config: DPSGDConfig, num_units: int) -> SamplingFacts:
    """
    Works out the public numbers of DP-SGD's sampling.

    With `--train_batch_size` B the sample rate is B/N and the normaliser B; with `--sample_rate` q it is floor(qN).

    Args:
        config (`DPSGDConfig`): The configuration.
        num_units (`int`): N, the declared number of units: images, or what `--unit_column` tells apart.

    Returns:
        `SamplingFacts`: The numbers.

    Raises:
        `UsageError`: The expected batch is larger than N or smaller than one image, or N is too small for the
            default delta. Or a group of `--noise_bands` has fewer units than a step expects.
    """
    if config.num_shares is not None:  # all of them answer in each round
        if config.num_shares > num_units:
            raise UsageError(
                f"--num_teachers {config.num_shares} is more than the {num_units:,} {config.unit_of_privacy}s; give "
                f"at most {num_units}."
            )
        return SamplingFacts(num_units, 1.0, config.num_shares, config.num_shares, target_delta(config, num_units))
    if config.sample_rate is not None:
        rate = parse_rate(config.sample_rate)
        normaliser = math.floor(rate * num_units)
        if normaliser < 1:
            raise UsageError(
                f"--sample_rate {config.sample_rate} of {num_units} {config.unit_of_privacy}s is less than one "
                f"{config.unit_of_privacy} a step; give at least 1/{num_units}."
            )
        sample_rate, expected = float(rate), float(rate * num_units)
    else:
        normaliser = config.train_batch_size or min(2048, num_units)
        if normaliser > num_units:
            raise UsageError(
                f"--train_batch_size {normaliser} is more than the {num_units} {config.unit_of_privacy}s; give at "
                f"most {num_units}."
            )
        sample_rate, expected = normaliser / num_units, float(normaliser)
    if config.is_exact:
        sample_rate = rate_of_coins(sample_rate)
    if config.bands is not None and config.bands * sample_rate > 1:
        flag = "train_batch_size" if config.sample_rate is None else "sample_rate"
        raise UsageError(
            f"--noise_bands {config.bands} lets as many groups take turns, and each holds 1/{config.bands} of the "
            f"{num_units:,} {config.unit_of_privacy}s, fewer than the {expected:g} that a step expects: give at most "
            f"{math.floor(1 / sample_rate)}, auto, or a smaller --{flag}."
        )
    delta = target_delta(config, num_units)
    return SamplingFacts(num_units, sample_rate, normaliser, expected, delta, config.images_per_unit)


def sampling_of(config: TrainingConfig, num_units: int) -> SamplingFacts | None:
    """`resolve`; `None` of a method without DP-SGD."""
    return resolve(config, num_units) if isinstance(config, DPSGDConfig) else None


def target_delta(config: TrainingConfig, num_units: int) -> float:
    """`--target_delta` with its default filled in, 1/(N ln N).

    Raises:
        `UsageError`: N is too small for the default.
    """
    if config.target_delta is not None:
        return config.target_delta
    if num_units < 2:
        raise UsageError(f"--target_delta has no default for a single {config.unit_of_privacy}; give it.")
    return 1 / (num_units * math.log(num_units))
