"""Flags, recipes and their refusals: one sentence that names the flag, exit code 2, nothing written."""

from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path

import pytest

from diffusers_dp.errors import UsageError
from diffusers_dp.methods.config import CONFIGS, chosen_method, load_config, resolve, sampling_of
from diffusers_dp.methods.feta_pro import FETAProConfig
from diffusers_dp.methods.flag import parse_rate, validate
from diffusers_dp.methods.flags import TrainingConfig
from diffusers_dp.methods.method_flags import DPDiffusionConfig, DPDMConfig
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.schedulers.curricula import CURRICULA
from support.places import ROOT


ALL_RECIPES = sorted((ROOT / "training/recipes").glob("*/*.yaml"))
RECIPES = [path for path in ALL_RECIPES if not path.stem.startswith("folder_")]  # these name no data


def recipe_name(path):
    return f"{path.parent.name}/{path.stem}"


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
    assert (config.seed, config.max_train_steps, config.noise_multiplicity) == (
        4,
        7,
        FETAProConfig().noise_multiplicity,
    )
    # A flag that is given with its default value is given all the same.
    assert load_config([*recipe("max_train_steps: 7\n"), "--max_train_steps", "100"]).max_train_steps == 100


def test_recipe_takes_lists_fractions_and_exponents_without_a_dot():
    config = load_config(
        recipe("block_out_channels: [16, 32]\nsample_rate: 1/14\nlearning_rate: 1e-3\ntarget_epsilon: 1\n")
    )
    assert config.channels_per_level == (16, 32)
    assert parse_rate(config.sample_rate) == Fraction(1, 14)
    assert (config.learning_rate, config.target_epsilon) == (1e-3, 1.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("noise_multiplicty: 3\n", ["noise_multiplicty", "noise_multiplicity"]),
        ("max_train_steps: many\n", ["max_train_steps", "int"]),
        ("max_train_steps: 1.5\n", ["max_train_steps"]),
        ("max_train_steps: true\n", ["max_train_steps"]),
        ("max_train_steps:\n", ["max_train_steps"]),
        ("learning_rate: fast\n", ["learning_rate", "float"]),
        ("dry_run: 1\n", ["dry_run", "bool"]),
        ("class_names: [no, yes]\n", ["class_names"]),
        ("config: other.yaml\n", ["config"]),
        ('class_names: ["a, b", c]\n', ["class_names", "'a, b'", "comma"]),
        ("class_names: [null, c]\n", ["class_names", "of type str"]),
        ("- seed\n", ["--config"]),
        ("seed: [1\n", ["--config", "line"]),
    ],
)
def test_recipe_refusals(text, words):
    message = refusal(recipe(text))
    assert all(word in message for word in words), message


def test_absent_recipe_is_refused():
    assert "--config nowhere.yaml" in refusal(["--config", "nowhere.yaml"])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--noise_multiplicty", "3"], ["--noise_multiplicty", "--noise_multiplicity"]),
        (["--max_train_step=3"], ["--max_train_step ", "--max_train_steps"]),
        (["stray"], ["stray"]),
        (["--seed", "abc"], ["--seed"]),
        (["--seed"], ["--seed"]),
        (["--lr_warmup_steps", "5"], ["--lr_warmup_steps", "--lr_scheduler constant_with_warmup"]),
        (["--lr_warmup_steps", "20", "--lr_scheduler", "linear"], ["--lr_warmup_steps", "--max_train_steps 20"]),
        (["--sample_rate", "0"], ["--sample_rate"]),
        (["--sample_rate", "1.5"], ["--sample_rate"]),
        (["--sample_rate", "1/0"], ["--sample_rate"]),
        (["--sample_rate", "often"], ["--sample_rate"]),
        (["--spatial_sample_rate", "1e-400"], ["--spatial_sample_rate"]),
        (["--spatial_sample_rate", "often"], ["--spatial_sample_rate"]),
        (["--spatial_sample_rate", "2"], ["--spatial_sample_rate"]),
        (["--num_frequency_features", "3"], ["--num_frequency_features", "even"]),
        (["--mixed_precision", "fp16"], ["--mixed_precision", "fp16", "clipped", "bf16"]),
        (["--mixed_precision", "fp8"], ["--mixed_precision", "fp8", "bf16"]),
        (["--max_physical_batch_size", "0"], ["--max_physical_batch_size", "auto"]),
        (["--max_physical_batch_size", "many"], ["--max_physical_batch_size", "many", "auto"]),
        (["--noise_bands", "8", "--max_train_steps", "7"], ["--noise_bands 8", "--max_train_steps 7"]),
        (["--noise_bands", "4", "--target_epsilon", "inf"], ["--noise_bands 4", "--target_epsilon inf"]),
        (["--curriculum", "mix", "--frequency_batch_size", "1"], ["--frequency_batch_size", "mix", "2"]),
        (["--value_range", "4095"], ["--value_range", "0,4095"]),
        (["--value_range", "9,0"], ["--value_range"]),
        (["--value_range", "0,inf"], ["--value_range"]),
        (["--window", "40"], ["--window", "40,400"]),
        (["--window", "40,0"], ["--window", "width"]),
        (["--window", "40,400", "--value_range", "0,4095"], ["--window", "--value_range"]),
        (["--image_suffixes", ".exe", "--train_data_dir", "b", "--class_names", "a"], ["--image_suffixes", ".dcm"]),
        (["--train_data_dir", "b"], ["--train_data_dir", "--class_names"]),
        (["--class_names", "a,b"], ["--class_names", "--train_data_dir"]),
        (["--train_data_dir", "b", "--class_names", "a,a"], ["--class_names"]),
        (["--train_data_dir", "b", "--class_names", ","], ["--class_names"]),
        (["--resolution", "9"], ["--resolution", "10"]),
        (["--resolution", "10", "--patch_size", "4"], ["--resolution", "--patch_size"]),
        (["--block_out_channels", "32,x"], ["--block_out_channels"]),
        (["--attention_resolutions", "5"], ["--attention_resolutions", "8, 4"]),
        (["--attention_resolutions", "all"], ["--attention_resolutions"]),
    ],
)
def test_refusals_name_the_flag(argv, words):
    message = refusal(argv)
    assert all(word in message for word in words), message


def test_same_level_contradiction_is_refused_in_a_recipe_too():
    text = "spatial_noise_multiplier: 5\nspatial_budget_share: 0.1\n"
    assert "--spatial_noise_multiplier" in refusal(recipe(text))


def test_command_line_replaces_the_recipe_s_other_way_to_say_it():
    argv = recipe("spatial_noise_multiplier: 5\nsample_rate: 0.1\ndataset_name: some/thing\n")
    config = load_config(
        [*argv, "--spatial_budget_share", "0.1", "--train_batch_size", "9", "--train_data_dir", "x", "--class_names=a"]
    )
    assert config.spatial_noise_multiplier is None and config.spatial_budget_share == 0.1
    assert config.sample_rate is None and config.train_batch_size == 9
    assert config.dataset_name is None and config.train_data_dir == "x"


@pytest.mark.parametrize("curriculum", CURRICULA)
def test_every_curriculum_says_what_it_asks(curriculum):
    config = load_config(["--curriculum", curriculum])
    assert config.asks_spatial == (curriculum == "mix" or "spatial" in curriculum)
    assert config.asks_frequency == (curriculum == "mix" or "frequency" in curriculum)


@pytest.mark.parametrize("path", RECIPES, ids=recipe_name)
def test_every_recipe_loads(path):
    flags = ["--config", str(path), "--dry_run"]
    config = load_config(flags, chosen_method(flags))
    assert config.method == path.parent.name.removesuffix("_plus"), "a recipe of another method than FETA-Pro names it"
    assert config.num_train_images is not None
    sampling_of(config, config.num_train_images)


@pytest.mark.parametrize(
    ("name", "num_images", "rate", "normaliser", "delta"),
    [
        ("mnist", 55_000, 1 / 14, 3928, 1.666e-6),
        ("fashion_mnist", 55_000, 1 / 14, 3928, 1.666e-6),
        ("cifar10", 45_000, 1 / 11, 4090, 2.074e-6),
        ("celeba", 145_064, 1 / 36, 4029, 5.800e-7),
        ("camelyon", 269_538, 1 / 66, 4083, 2.967e-7),
    ],
)
@pytest.mark.parametrize("epsilon", [1, 10])
def test_recipes_of_published_rows(name, num_images, rate, normaliser, delta, epsilon):
    """Of DPImageBench's protocol."""
    family, stem = ("feta_pro", "dp_feta", "dpdm", "dp_gan"), f"{name}_eps{epsilon}"
    paths = [path for path in RECIPES if path.stem == stem and path.parent.name in family]
    paths += [path for path in RECIPES if path.stem == f"privimage_{stem}"]
    assert len(paths) > 3
    for path in paths:
        flags = ["--config", str(path), "--dry_run"]
        config = load_config(flags, chosen_method(flags))
        facts = resolve(config, config.num_train_images)
        assert (config.target_epsilon, config.accountant) == (epsilon, "rdp")
        assert (facts.num_units, facts.normaliser) == (num_images, normaliser)
        assert facts.sample_rate == pytest.approx(rate)
        assert facts.target_delta == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "num_images", "batch", "steps"),
    [("mnist_eps10", 50_000, 4_096, 4_000), ("camelyon_eps10", 302_436, 16_384, 200)]
    + [(f"cifar10_eps{epsilon}", 50_000, 16_384, 20 * epsilon) for epsilon in (1, 5, 10, 32)],
)
def test_recipes_of_published_rows_of_dp_diffusion(name, num_images, batch, steps):
    """Ghalebikesabi et al. 2023, Table 3; Camelyon's delta is that of the text, for Table 3's is above 1/N."""
    path = next(path for path in RECIPES if path.stem == name and path.parent.name == "dp_diffusion")
    config = load_config(["--config", str(path), "--dry_run"], DPDiffusionConfig)
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


def test_resolve_rate_is_exact():
    # 0.07 * 100 is 7.000000000000001 and 0.29 * 100 is 28.999999999999996 in floating point.
    assert resolve(load_config(["--sample_rate", "0.29"]), 100).normaliser == 29


def test_help_shows_groups_and_defaults(capsys):
    with pytest.raises(SystemExit) as stop:
        load_config(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "DP-SGD:" in text and "privacy:" in text and "(default: 10.0)" in text


def test_validate_takes_a_configuration_made_in_python():
    with pytest.raises(UsageError, match="--noise_multiplicity"):
        validate(FETAProConfig(noise_multiplicity=0))


def test_loading_a_configuration_needs_no_torch():
    import subprocess
    import sys

    code = (
        "import sys; from diffusers_dp.methods.config import load_config; load_config([]); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_precision_is_what_the_launcher_was_told(monkeypatch):
    assert load_config([]).precision == "no"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert load_config([]).precision == "bf16" and load_config(["--mixed_precision", "no"]).precision == "no"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    with pytest.raises(UsageError, match="--mixed_precision fp16"):
        load_config([])


def test_physical_batch_sizes():
    assert load_config([]).physical_batch_size == 64
    assert load_config(["--max_physical_batch_size", "auto"]).physical_batch_size is None


# Methods.


def help_of(config_class, capsys):
    with pytest.raises(SystemExit) as stop:
        load_config(["--help_all"], config_class)
    assert stop.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("config_class", CONFIGS.values(), ids=CONFIGS)
def test_a_method_has_flags_of_its_own_and_the_common_ones(config_class, capsys):
    """Defaults are valid, the help is that of its script, and every flag that all share is there."""
    config = load_config([], config_class)
    assert type(config) is config_class and CONFIGS[config.method] is config_class
    assert config.output_dir == f"runs/{config.method}"
    text = help_of(config_class, capsys)
    assert (
        text.startswith(f"usage: {Path(str(METHODS[config.method].script)).name}")
        and f"(default: runs/{config.method})" in text
    )
    for flag in (*fields(TrainingConfig), *fields(config_class)):
        assert f"--{flag.name} " in text


def test_dpdm_knows_no_flag_of_a_curriculum(capsys):
    text = help_of(DPDMConfig, capsys)
    assert not [word for word in ("spatial", "frequency", "curriculum", "generator", "central") if word in text]
    with pytest.raises(UsageError, match="--spatial_steps is not a flag"):
        load_config(["--spatial_steps", "3"], DPDMConfig)
    assert load_config([], DPDMConfig).queries == ()


def test_a_recipe_may_say_its_method():
    argv = recipe("method: dpdm\nmax_train_steps: 7\n")
    assert load_config(argv, DPDMConfig).max_train_steps == 7
    assert "recipe of 'dpdm', and this is 'feta_pro'" in refusal(argv)


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


def test_a_recipe_of_another_folder_is_found_by_both_names():
    assert load_config(["--config", "feta_pro_plus/mnist_cpu"]).train_batch_size == 1024


def test_a_recipe_s_name_says_its_method():
    """Of those that share it, FETA-Pro; and --method has the last word."""
    assert chosen_method(["--config", "cifar10_eps32"]).config is DPDiffusionConfig
    assert chosen_method(["--config", "mnist_cpu"]).config is FETAProConfig
    assert chosen_method(["--config", "mnist_cpu"], "dpdm").config is DPDMConfig


def test_a_file_of_that_name_wins():
    file = Path("mnist_cpu")
    file.write_text("method: dpdm\nmax_train_steps: 7\n")
    assert chosen_method(["--config", "mnist_cpu"]).config is DPDMConfig
    assert load_config(["--config", "mnist_cpu"], DPDMConfig).max_train_steps == 7
    file.unlink()
    file.mkdir()  # a run's, say
    assert load_config(["--config", "mnist_cpu"], DPDMConfig).max_train_steps != 7
    file.rmdir()


@pytest.mark.parametrize("name", ["mnist", "mnist_eps", "cifar10_eps32", ".."])
def test_an_unknown_name_is_told_which_ones_there_are(name):
    """Those of the method."""
    said = refusal(["--config", name])
    assert f"--config {name} is neither a file here nor a recipe of feta_pro (" in said
    assert "folder_cpu, mnist_cpu" in said and said.count("cifar10_eps32") == (name == "cifar10_eps32")
    if name != "cifar10_eps32":
        with pytest.raises(UsageError, match="is neither a file here nor a recipe of feta_pro"):
            chosen_method(["--config", name])


@pytest.mark.parametrize("path", ["mnist_cpu.yaml", "mnist_cpu.yml", "./mnist_cpu", "mine/mnist_cpu"])
def test_a_path_is_not_taken_for_a_name(path):
    assert f"--config {path} cannot be read (No such file or directory)" in refusal(["--config", path])
