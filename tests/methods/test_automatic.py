# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Settings by rules: they plan, for any images and every method, and follow what is declared."""

import pytest
from diffusers import DDIMScheduler

from diffusers_dp.data.images import public_facts
from diffusers_dp.errors import UsageError
from diffusers_dp.methods.automatic import PATCHES, network
from diffusers_dp.methods.config import CONFIGS, load_config
from diffusers_dp.methods.public_flags import PretrainingFlags
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.methods.teachers import AGGREGATIONS
from diffusers_dp.runs.diffusion_run import starting_model
from diffusers_dp.runs.plan import plan_run
from support.public_models import save


MNIST = "--num_train_images 60000 --resolution 28 --num_channels 1 --class_names 0,1,2,3,4,5,6,7,8,9".split()
#: What a method cannot be planned without.
NEEDS = {
    "dp_mepf": ["--feature_network", "{net}"], "dp_lora": ["--pretrained_model_name_or_path", "{net}"],
    "dp_ldm": ["--pretrained_model_name_or_path", "{net}"], "dp_sapf": ["--pretrained_model_name_or_path", "{net}"],
    "pe": ["--public_data_dir", "{net}"],
}  # fmt: skip


def configured(method, *flags):
    return load_config(["--config", "auto", "--dry_run", *flags], METHODS[method])


@pytest.mark.parametrize("method", CONFIGS)
def test_every_method_plans_any_images(method, tmp_path):
    needs = [word.format(net=tmp_path) for word in NEEDS.get(method, ())]
    for number, side, channels, names in ((30, 25, 1, "a"), (1500, 32, 3, "a,b"), (200_000, 64, 3, "a,b,c")):
        facts = ["--num_train_images", str(number), "--resolution", str(side), "--num_channels", str(channels)]
        if method in ("dp_lora", "dp_ldm", "dp_sapf"):
            facts[3] = "64"
        config = configured(
            method, *facts, "--class_names", names, "--target_epsilon", "5", "--accountant", "rdp", *needs
        )
        if config.dp_sgd is not None and config.num_shares is not None:
            assert 1 <= config.num_shares <= number
        elif config.dp_sgd is not None:
            assert 1 <= config.train_batch_size <= number
        if number == 30 and method not in ("dp_lora", "dp_ldm", "dp_sapf"):  # whose shape the pipeline tells
            assert plan_run(config, public_facts(config.data)).epsilon <= 5


def test_they_follow_what_is_declared():
    whole, few = configured("feta_pro", *MNIST), configured("feta_pro", *MNIST[2:], "--num_train_images", "1500")
    assert (whole.train_batch_size, few.train_batch_size) == (1024, 93)
    hasty = configured("feta_pro", *MNIST, "--minutes", "2")
    assert hasty.max_train_steps < whole.max_train_steps and hasty.frequency_steps < whole.frequency_steps
    assert hasty.distillation_steps > whole.distillation_steps == 0, "which takes fewer steps"
    for method in ("dp_gan", "psg"):
        known, half = configured(method, *MNIST), configured(method, *MNIST, "--minutes", "10")
        assert 2 * half.max_train_steps == known.max_train_steps == configured(
            method, *MNIST, "--minutes", "40"
        ).max_train_steps, "no more than were measured"  # fmt: skip
    sizes = [configured("pe", *MNIST, "--public_data_dir", "x", "--target_epsilon", str(eps)).candidates_per_class
             for eps in (0.01, 0.1, 10)]  # fmt: skip
    assert sizes == [25, 50, 500]
    assert configured("feta_pro", *MNIST, "--max_train_steps", "70").max_train_steps == 70, "what is given wins"


@pytest.mark.parametrize("method", ["feta_pro", "dp_gan", "psg"])
def test_a_step_of_units_of_several_images_takes_longer(method):
    patients = [*MNIST, "--dataset_name", "x", "--unit_column", "patient", "--num_train_units"]
    steps = [configured(method, *patients, *of, "--minutes", "2").max_train_steps
             for of in (("60000",), ("30000",), ("20000", "--max_images_per_unit", "2"))]  # fmt: skip
    assert steps[1:] == pytest.approx([steps[0] / 2] * 2, abs=1)


@pytest.mark.parametrize("method", AGGREGATIONS.values())
def test_teachers_have_what_was_measured_of_them(method):
    """Above all a handful of steps of the generator in a round: that flag has this name elsewhere, too."""
    for epsilon, recipe in (("10", "mnist_cpu"), ("1", "mnist_cpu_eps1")):
        measured = load_config(["--config", f"{method}/{recipe}", "--dry_run"], METHODS[method])
        ruled = configured(method, *MNIST, "--target_epsilon", epsilon)
        assert ruled.training_facts == measured.training_facts
        assert (ruled.max_train_steps, ruled.image_shape) == (measured.max_train_steps, measured.image_shape)
    hasty = configured(method, *MNIST, "--minutes", "2")
    assert hasty.max_train_steps < 25 and hasty.diffusion_steps < 700
    assert configured(method, *MNIST[2:], "--num_train_images", "3000").max_train_steps < 25, "of 60 teachers"


def test_the_largest_map_is_small_on_every_side():
    for side in range(4, 129):
        found = network(side)
        patch, halved = found["patch_size"], 2 ** found["block_out_channels"].count(",")
        assert side % (patch * halved) == 0
        assert side // patch <= 16 or all(side % (larger * halved) for larger in PATCHES if larger > patch)


def test_what_is_not_declared_is_asked_for():
    with pytest.raises(UsageError, match="--num_train_images"):
        configured("moments", "--class_names", "a,b")
    with pytest.raises(UsageError, match="--minutes has no effect without --config auto"):
        load_config(["--minutes", "5"], METHODS["moments"])


def test_a_pretrained_model_keeps_its_objective_and_its_noise_levels(tmp_path):
    """Rules say how a new one learns, also from public images."""
    name = save(tmp_path / "model", DDIMScheduler(), in_channels=1, out_channels=1)
    facts = ["--num_train_images", "600", "--resolution", "8", "--num_channels", "1", "--class_names", "a,b"]
    for method in ("dp_diffusion", "feta_pro"):
        config = configured(method, *facts, "--pretrained_model_name_or_path", name)
        assert starting_model(config, public_facts(config.data)).objective == "ddpm"
    new = configured("dp_diffusion", *facts, "--public_data_dir", "x")
    assert starting_model(new, public_facts(new.data)).objective == "edm"
    assert new.public_learning_rate == 2e-3 and new.public_steps > 1000
    flags = [*facts, "--config", "auto", "--train_data_dir", str(tmp_path)]
    none = load_config(flags, METHODS["feta_pro"])
    assert none.public_steps == PretrainingFlags.public_steps, "which would be refused without public images"
    assert configured("dp_diffusion", *facts, "--objective", "ddpm").objective == "ddpm", "what is given wins"
