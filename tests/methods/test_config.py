"""Flags, recipes and their refusals: one sentence that names the flag, exit code 2, nothing written."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest

from diffusers_dp.errors import UsageError
from diffusers_dp.methods.config import CONFIGS, chosen_method, load_config, resolve
from diffusers_dp.methods.feta_pro import FETAProConfig
from diffusers_dp.methods.method_flags import DPDiffusionConfig, DPDMConfig
from support.places import ROOT


UNIT = "--dataset_name some/data --unit_column patient --num_train_images 30 --num_train_units 6".split()
MOMENTS = ["--auxiliary_features", "moments"]


@pytest.fixture(autouse=True)
def nothing_written(tmp_path, monkeypatch):
    """Runs every test in an empty folder, and finds it without a run afterwards."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".yaml"]


def recipe(text: str) -> list[str]:
    Path("recipe.yaml").write_text(text)
    return ["--config", "recipe.yaml"]


def refusal(argv: list[str]) -> str:
    with pytest.raises(UsageError) as caught:
        load_config(argv)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults_are_valid_and_train_on_the_digits():
    config = load_config([])
    assert config == FETAProConfig()
    assert config.uses_digits and config.image_shape == (1, 8, 8)
    assert config.curriculum_stages == ("spatial", "frequency")


def test_command_line_wins_over_recipe_and_recipe_over_defaults():
    config = load_config([*recipe("seed: 3\nmax_train_steps: 7\n"), "--seed", "4"])
    assert (config.seed, config.max_train_steps) == (4, 7)
    assert config.noise_multiplicity == FETAProConfig().noise_multiplicity
    # A flag that is given with its default value is given all the same.
    assert load_config([*recipe("max_train_steps: 7\n"), "--max_train_steps", "100"]).max_train_steps == 100


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("noise_multiplicty: 3\n", ["noise_multiplicty", "noise_multiplicity"]),
        ("max_train_steps: 1.5\n", ["max_train_steps"]),
        ("class_names: [no, yes]\n", ["class_names"]),
        ("config: other.yaml\n", ["config"]),
        ("seed: [1\n", ["--config", "line"]),
    ],
)
def test_recipe_refusals(text, words):
    message = refusal(recipe(text))
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--noise_multiplicty", "3"], ["--noise_multiplicty", "--noise_multiplicity"]),
        (["--seed", "many"], ["--seed: 'many' is no whole number"]),
        (["--dry_run", "perhaps"], ["--dry_run: "]),
        (["--class_names"], ["--class_names: expected one argument"]),
        (["--sample_rate", "1.5"], ["--sample_rate"]),
        (["--expert", "spatial_sample_rate=1e-400"], ["--expert spatial_sample_rate"]),
        (["--mixed_precision", "fp16"], ["--mixed_precision", "fp16", "clipped", "bf16"]),
        (["--noise_bands", "4", "--target_epsilon", "inf"], ["--noise_bands 4", "--target_epsilon inf"]),
        (["--value_range", "0,inf"], ["--value_range"]),
        (["--train_batch_size", "64", "--sample_rate", "0.1"], ["--sample_rate"]),
        ([*UNIT, "--num_train_units", "31"], ["--num_train_units 31 is more than --num_train_images 30"]),
        (["--max_physical_batch_size", "3", *UNIT], ["--max_images_per_unit 8 is more than"]),
        ([*UNIT, "--noise", "exact"], ["--noise exact and --unit_column exclude each other in DP-SGD"]),
        (["--dataset_id", "scans"], ["--dataset_id needs --ledger_dir"]),
        (["--curriculum", "mix", "--expert", "auxiliary=none"], ["--expert auxiliary=none"]),
        ([*MOMENTS, "--noise_multiplier", "moments=5"], ["--noise_multiplier moments is about several"]),
        ([*MOMENTS, "--curriculum", "frequency", "--noise_multiplier", "class_counts=10"], ["moments ask already"]),
        (["--train_data_dir", "b", "--class_names", "a,a"], ["--class_names"]),
    ],
)
def test_refusals_name_the_flag(argv, words):
    message = refusal(argv)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("method", "flags", "words"),
    [
        ("psg", "--noise_bands 4", "--noise_bands cancels noise"),
        ("psg", "--evaluation_reserve 0.1", "--evaluation_reserve is about a finished model"),
        ("moments", "--num_parts 64 --num_frequencies 400 --class_names a,b,c --dry_run",
         "coefficients in 3 classes have more than"),
        ("gs_wgan", "--noise exact", "--noise exact has no proof for teachers"),
        ("pate_gan", "--max_grad_norm 2", "--max_grad_norm has no effect with --aggregation votes"),
    ],
)  # fmt: skip
def test_refusals_of_methods(method, flags, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        load_config(flags.split(), CONFIGS[method])


def test_command_line_replaces_the_recipe_s_other_way_to_say_it():
    argv = recipe(
        "noise_multiplier: {central_images: 5, frequency_features: 3}\nsample_rate: 0.1\ndataset_name: some/thing\n"
    )
    given = "--budget central_images=0.1 --train_batch_size 9 --train_data_dir x --class_names=a".split()
    config = load_config([*argv, *given])
    assert config.noise_multiplier == "frequency_features=3" and config.budget == "central_images=0.1"
    assert config.sample_rate is None and config.train_batch_size == 9
    assert config.dataset_name is None and config.train_data_dir == "x"


def test_what_the_command_line_says_of_a_query_joins_what_the_recipe_says_of_others():
    argv = recipe("noise_multiplier: {central_images: 5}\nbudget: {frequency_features: 0.3}\n")
    given = ["--noise_multiplier", "class_counts=9", "--noise_multiplier", "frequency_features=2,class_counts=8"]
    config = load_config([*argv, *given])
    assert config.budget == "" and {query.called: query.noise_multiplier for query in config.queries} == {
        "class_counts": 8.0, "central_images": 5.0, "frequency_features": 2.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config_class", "flags", "words"),
    [
        (FETAProConfig, "--budget pixels=0.1", "asks semantic_query, class_counts, "),
        (FETAProConfig, "--noise_multiplier spatial=5", "--noise_multiplier names 'spatial'"),
        (DPDMConfig, "--budget central_images=0.1", "dpdm asks judge:"),
        (FETAProConfig, "--budget covariances=0.1", "--budget covariances has no effect"),
        (FETAProConfig, "--curriculum frequency --noise_multiplier central_images=5", "central_images has no effect"),
        (FETAProConfig, "--budget central_images=0.1 --noise_multiplier central_images=5", "both name central_images"),
        (FETAProConfig, "--budget central_images=0.6,frequency_features=0.4", "--budget frequency_features (0.4)"),
        *((FETAProConfig, f"--budget {text}", "--budget is") for text in ("5", "central_images", "central_images=1")),
        *((FETAProConfig, f"--budget central_images={text}", "--budget is") for text in ("nan", "0", "1e-9", "-1")),
        *(
            (FETAProConfig, f"--noise_multiplier central_images={text}", "is 'cen")
            for text in ("inf", "0", "x", "1=2")
        ),
    ],
)
def test_a_share_or_noise_multiplier_of_no_query_is_refused(config_class, flags, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        load_config(flags.split(), config_class)


@pytest.mark.parametrize(
    "given",
    ["--expert p_mean=0.4,p_std=1.5", "--expert p_mean=0.4 --expert=p_std=1.5", "--expert p-mean=1,p_mean=0.4"],
)
def test_settings_of_experts_have_no_flag(given):
    argv = recipe("expert:\n  p_mean: 9\n  p_std: 1.5\n  timestep_mixture: [0-500:0.2, 500-1000:0.8]\n")
    if "p-mean" in given:
        assert "--expert 'p-mean=1'" in refusal([*argv, *given.split()])
        return
    config = load_config([*argv, *given.split()], DPDMConfig)
    assert config.expert_settings == {"p_mean": 0.4, "p_std": 1.5, "timestep_mixture": "0-500:0.2,500-1000:0.8"}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--p_mean", "0.4"], "--p_mean is a setting of experts: give --expert p_mean=VALUE."),
        (["--p-mean=0.4"], "give --expert p_mean=VALUE."),
        (["--expert", "p_mean"], "--expert 'p_mean' is not NAME=VALUE of a setting; the nearest is --p_mean."),
        (["--expert", "learning_rate=1"], "--expert 'learning_rate=1' is not NAME=VALUE"),
        (["--expert"], "--expert '' is not NAME=VALUE"),
        (["--expert", "p_std=-1"], "--expert p_std is -1"),
        (["--expert", "p_std=x"], "--expert p_std: 'x' is no number"),
        ("p_mean: 0.4", "'p_mean' belongs under expert:"),
        ("expert: {learning_rate: 1}", "'learning_rate' belongs outside of expert:"),
        ("expert: {p_maen: 1}", "'p_maen' is not a flag; the nearest is --p_mean"),
        ("expert: 5", "'expert' holds no 'name: value' lines"),
        ("expert: {p_mean: [1]}", "'p_mean' must be of type float"),
    ],
)
def test_settings_of_experts_in_the_wrong_place_are_refused(argv, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        load_config(recipe(argv) if isinstance(argv, str) else argv, DPDMConfig)


BY_EPSILON = (
    "max_train_steps: 9\nexpert: {p_mean: 1, p_std: 2}\nby_epsilon: {2: {max_train_steps: 5, expert: {p_std: 3}}}\n"
)


@pytest.mark.parametrize(("epsilon", "steps", "p_std"), [("2", 5, 3), ("2.0", 5, 3), ("3", 9, 2)])
def test_a_recipe_has_values_by_epsilon(epsilon, steps, p_std):
    config = load_config([*recipe(BY_EPSILON), "--target_epsilon", epsilon], DPDMConfig)
    assert (config.max_train_steps, config.p_mean, config.p_std) == (steps, 1, p_std)
    own = load_config([*recipe(f"target_epsilon: {epsilon}\n{BY_EPSILON}")], DPDMConfig)
    assert own.target_epsilon == float(epsilon) and (own.max_train_steps == 5) == (epsilon == "2")


BY_NAME = (
    "target_epsilon: 1\nmax_train_steps: 9\nlearning_rate: 1\nexpert: {p_mean: 1}\n"
    "by_epsilon: {2: {max_train_steps: 5, learning_rate: 2, expert: {p_mean: 2}}}\n"
    "by_name: {recipe: {learning_rate: 3, expert: {p_std: 3}, by_epsilon: {2: {expert: {p_std: 4}}}}}\n"
)


def test_a_file_has_values_by_name():
    """They come before those of the file, also of the file's `by_epsilon`; and their own `by_epsilon` before them."""
    for epsilon, steps, p_mean, p_std in (("1", 9, 1, 3), ("2", 5, 2, 4)):
        config = load_config([*recipe(BY_NAME), "--target_epsilon", epsilon], DPDMConfig)
        assert (config.max_train_steps, config.learning_rate) == (steps, 3)
        assert (config.p_mean, config.p_std) == (p_mean, p_std)
    assert "'by_name' holds mine; give one of these" in refusal(recipe("by_name: {mine: {seed: 1}}\n"))
    shipped = ROOT / "training" / "recipes" / "dpdm" / "published.yaml"
    assert "'by_name' holds mnist, fashion_mnist, " in refusal(["--config", str(shipped)])


def test_values_by_epsilon_and_name_are_mappings():
    for text in ("5", "[1]", "{1: 2}", "{1: }"):
        for key in ("epsilon", "name"):
            assert f"'by_{key}' holds no '{key}: {{flag: value}}' lines" in refusal(recipe(f"by_{key}: {text}\n"))


def test_an_epsilon_at_the_end_of_a_recipes_name():
    """Of shipped ones, which have values for it. The flag wins over it, and keeps the values of the name."""
    named = ("--config mnist_eps1", "--config mnist --target_epsilon 1")
    at_1, flag = (load_config(argv.split(), DPDMConfig) for argv in named)
    assert at_1.target_epsilon == 1 and vars(at_1) | {"config": ""} == vars(flag) | {"config": ""}
    pretrained = load_config("--config pretrained_mnist_eps1 --target_epsilon 10 --dry_run".split())
    assert pretrained.target_epsilon == 10 and "central_images=20" in pretrained.noise_multiplier
    other = load_config("--config cifar10_eps1 --target_epsilon 3 --dry_run".split(), DPDiffusionConfig)
    assert (other.target_epsilon, other.max_train_steps) == (3, 20)
    with pytest.raises(UsageError, match="mnist_eps7 is neither a file here nor a recipe of dpdm"):
        load_config(["--config", "mnist_eps7"], DPDMConfig)


def test_noise_multipliers_of_a_recipe_are_a_mapping_of_numbers():
    for text in ("{central_images: [5]}", "{central_images: true}", "{a: {b: 1}}", "[5]", "{1: 2}"):
        assert "noise_multiplier" in refusal(recipe(f"noise_multiplier: {text}\n"))


def test_recipes_of_published_rows():
    """They follow DPImageBench's protocol."""
    rows = {
        "mnist": (55_000, 1 / 14, 3928, 1.666e-6),
        "fashion_mnist": (55_000, 1 / 14, 3928, 1.666e-6),
        "cifar10": (45_000, 1 / 11, 4090, 2.074e-6),
        "celeba": (145_064, 1 / 36, 4029, 5.800e-7),
        "camelyon": (269_538, 1 / 66, 4083, 2.967e-7),
    }
    methods = ("feta_pro/", "dp_feta/", "dpdm/", "dp_gan/", "dp_diffusion/privimage_")
    for method, name, epsilon in itertools.product(methods, rows, (1, 10)):
        num_images, rate, normaliser, delta = rows[name]
        flags = ["--config", f"{method}{name}_eps{epsilon}", "--dry_run"]
        config = load_config(flags, chosen_method(flags))
        facts = resolve(config, config.num_train_images)
        assert (config.target_epsilon, config.accountant) == (epsilon, "rdp"), flags
        assert (facts.num_units, facts.normaliser) == (num_images, normaliser), flags
        assert (facts.sample_rate, facts.target_delta) == pytest.approx((rate, delta), rel=1e-3), flags


def test_recipes_of_published_rows_of_dp_diffusion():
    """Ghalebikesabi et al. 2023, Table 3; Camelyon's delta is that of the text, for Table 3's is above 1/N."""
    rows = [("mnist_eps10", 50_000, 4_096, 4_000), ("camelyon_eps10", 302_436, 16_384, 200)]
    rows += [(f"cifar10_eps{epsilon}", 50_000, 16_384, 20 * epsilon) for epsilon in (1, 5, 10, 32)]
    for row in rows:
        _is_of_dp_diffusion_s_table(*row)


def _is_of_dp_diffusion_s_table(name, num_images, batch, steps):
    config = load_config(["--config", name, "--dry_run"], DPDiffusionConfig)
    facts = resolve(config, config.num_train_images)
    assert (facts.num_units, facts.normaliser, config.max_train_steps) == (num_images, batch, steps)
    assert facts.sample_rate == batch / num_images and facts.target_delta < 1 / num_images
    assert facts.target_delta == (3e-6 if "camelyon" in name else 1e-5)
    assert (config.noise_multiplicity, config.ema_decay, config.max_grad_norm) == (128, 0.9999, 1e-3)
    mixture = (
        ([0, 200, 800, 1000], [0.05, 0.9, 0.05]) if "mnist" in name else ([0, 30, 600, 1000], [0.015, 0.785, 0.2])
    )
    assert (config.mixture.bounds, config.mixture.weights) == mixture
    assert config.augmentation_names == (() if "mnist" in name else ("flip",))
    assert config.network["attention_head_dim"] == 64
    assert config.network["resnet_time_scale_shift"] == "scale_shift"  # adaptive group normalisation


def test_heads_divide_the_channels():
    with pytest.raises(UsageError, match="attention_head_dim=64 does not divide --block_out_channels 96,192.* of 96"):
        load_config("--block_out_channels 96,192 --expert attention_head_dim=64".split())


def test_resolve_batch_size_is_both_rate_and_normaliser():
    facts = resolve(load_config(["--train_batch_size", "128"]), 1000)
    assert (facts.sample_rate, facts.normaliser, facts.expected_batch_size) == (0.128, 128, 128.0)
    assert resolve(load_config([]), 3000).normaliser == 2048
    assert resolve(load_config([]), 1437).normaliser == 1437
    assert resolve(load_config([]), 50).normaliser == 50


def test_resolve_refuses_impossible_batches():
    with pytest.raises(UsageError, match="--train_batch_size 2000 .* 1437"):
        resolve(load_config(["--train_batch_size", "2000"]), 1437)
    with pytest.raises(UsageError, match="--sample_rate"):
        resolve(load_config(["--sample_rate", "1/2000"]), 1437)
    with pytest.raises(UsageError, match="--target_delta"):
        resolve(load_config([]), 1)


def test_precision_is_what_the_launcher_was_told(monkeypatch):
    assert load_config([]).precision is None
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert load_config([]).precision == "bf16" and load_config(["--mixed_precision", "no"]).precision == "no"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    with pytest.raises(UsageError, match="--mixed_precision fp16"):
        load_config([])


# Methods.


def test_the_method_is_that_of_the_command_line_then_of_the_recipe_then_feta_pro():
    assert chosen_method([]).config is FETAProConfig
    assert chosen_method(["--config"]).config is FETAProConfig  # what is wrong there, `load_config` says
    assert chosen_method(recipe("max_train_steps: 7\n")).config is FETAProConfig
    assert chosen_method(["--seed", "1", *recipe("method: dpdm\n")]).config is DPDMConfig
    assert chosen_method(["--config=recipe.yaml"]).config is DPDMConfig
    assert chosen_method([], "dpdm").config is DPDMConfig
    with pytest.raises(UsageError, match="--method pge has no training script; give one of feta_pro, "):
        chosen_method([], "pge")
    for method in ("pge", "[1]"):
        with pytest.raises(UsageError, match="--config recipe.yaml: method .* is unknown"):
            chosen_method(recipe(f"method: {method}\n"))


# Recipes by name.


def test_a_shipped_recipe_is_found_by_its_name():
    for config_class in CONFIGS.values():
        path = ROOT / "training" / "recipes" / config_class.method / "mnist_cpu.yaml"
        by_name, by_path = (load_config(["--config", given], config_class) for given in ("mnist_cpu", str(path)))
        assert by_name == replace(by_path, config="mnist_cpu")


def test_a_recipe_s_name_says_its_method():
    """Of those that share it, FETA-Pro; and --method has the last word."""
    assert chosen_method(["--config", "cifar10_eps32"]).config is DPDiffusionConfig
    assert chosen_method(["--config", "mnist_cpu"]).config is FETAProConfig
    assert chosen_method(["--config", "mnist_cpu"], "dpdm").config is DPDMConfig
