# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Settings by rules: they plan, for any images and every method, and follow what is declared."""

import pytest
import torch
from diffusers import DDIMScheduler
from torch.utils.flop_counter import FlopCounterMode

from diffusers_dp.data.images import public_facts
from diffusers_dp.distributed import launcher
from diffusers_dp.errors import UsageError
from diffusers_dp.methods import automatic
from diffusers_dp.methods.config import CONFIGS, load_config
from diffusers_dp.methods.public_flags import PretrainingFlags
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.runs.diffusion_run import build, starting_model
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


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("number", [1500, 10_000, 60_000])
def test_a_judge_beside_the_moments_leaves_some_of_the_budget_to_dp_sgd(share, number):
    facts = [*MNIST[2:], "--num_train_images", str(number), "--budget", f"judge={share}"]
    config = configured("feta_pro", *facts)
    shares = config.asked_shares
    assert shares["--budget judge"] == share and sum(shares.values()) <= 0.96
    assert share > 0.3 or config.moments_share in (0.1, 0.5), "as much as without a judge, where that can be"
    with pytest.raises(UsageError, match="of the budget together"):
        configured("feta_pro", *facts[:-1], f"moments={1.2 - share:g},judge={share}")


@pytest.mark.parametrize("method", ["dp_merf", "dp_kernel", "dp_ntk", "dp_hp"])
def test_few_minutes_are_few_steps_of_a_generator(method):
    steps = [configured(method, *MNIST, "--minutes", minutes).generator_steps for minutes in ("8", "1", "0.1")]
    assert steps == [600, 120, 12]


def test_rules_give_way_to_few_steps():
    for steps, warm_up, bands in ((2, 0, "1"), (10, 0, "1"), (16, 10, "16")):
        config = configured("feta_pro", *MNIST, "--max_train_steps", str(steps))
        assert (config.lr_warmup_steps, config.noise_bands) == (warm_up, bands)
        assert config.learning_rate == (3e-3 if bands == "1" else 2.5e-2)
    assert configured("dpdm", *MNIST, "--train_batch_size", "6000").noise_bands == "1", "16 groups are too small"


@pytest.mark.parametrize("method", ["dpdm", "dp_gan", "gs_wgan", "psg"])
@pytest.mark.parametrize("flags", ["--lr_scheduler constant", "--target_epsilon inf", "--minutes 0.1"])
def test_rules_give_way_to_a_flag(method, flags):
    config = configured(method, *MNIST, *flags.split())
    assert config.lr_warmup_steps < max(1, config.max_train_steps)


def test_shares_of_more_than_all_are_refused_by_a_sentence():
    with pytest.raises(UsageError, match="of the budget together"):
        configured("moments", *MNIST, "--budget", "judge=0.99", "--matched_networks", "2")


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


def on_gpu(minutes, *flags, method="feta_pro"):
    return configured(method, *MNIST, "--minutes", str(minutes), "--expert", "minutes_on=gpu", *flags)


def counted(config):
    """Seconds of DP-SGD by the rule's own numbers."""
    width = int(config.block_out_channels.split(",")[0]) // 16
    of_a_draw = automatic.FLOPS * width**2 * automatic.places(28) / automatic.FLOPS_A_SECOND
    of_an_image = automatic.OWN_GRADIENT_SECONDS + config.noise_multiplicity * of_a_draw
    return config.max_train_steps * config.train_batch_size * of_an_image


def test_minutes_of_a_gpu_buy_batches_then_draws_and_a_wider_network():
    runs = {minutes: on_gpu(minutes) for minutes in (1, 5, 10, 20, 60, 1000)}
    for minutes, config in runs.items():
        allowed = 60 * minutes * automatic.DP_SGD_PART
        assert counted(config) <= 1.01 * allowed and config.max_physical_batch_size == "auto"
        assert minutes > 60 or counted(config) > 0.5 * allowed
    seconds = [counted(config) for config in runs.values()]
    batches = [config.train_batch_size for config in runs.values()]
    assert seconds == sorted(seconds) and batches == sorted(batches) and batches[-1] == 60_000 // 16
    core = configured("feta_pro", *MNIST, "--minutes", "10", "--expert", "minutes_on=core")
    ten, most = runs[10], runs[1000]
    assert ten.train_batch_size > core.train_batch_size and ten.noise_multiplicity > core.noise_multiplicity
    assert ten.frequency_steps == 3000 > core.frequency_steps and ten.max_train_steps == 600 > core.max_train_steps
    assert (most.block_out_channels, most.noise_multiplicity) == ("32,64", 32)
    assert on_gpu(10, "--noise_multiplicity", "2").noise_multiplicity == 2, "what is given wins"


def test_a_gpu_gives_other_methods_the_steps_of_some_cores():
    for method in ("dp_gan", "psg", "gs_wgan"):
        config, core = (
            on_gpu(2, method=method),
            configured(method, *MNIST, "--minutes", "8", "--expert", "minutes_on=core"),
        )
        assert config.max_train_steps == core.max_train_steps


@pytest.mark.parametrize("minutes", [10, 20])
def test_the_operations_of_a_row_are_those_that_the_rule_counts(minutes):
    config = on_gpu(minutes)
    trained = build(config, public_facts(config.data), "cpu")
    with FlopCounterMode(display=False) as counter:
        trained.loss(trained.model, torch.zeros(2, 1, 28, 28), torch.zeros(2, dtype=torch.long)).sum().backward()
    width = int(config.block_out_channels.split(",")[0]) // 16
    assert counter.get_total_flops() / 2 == pytest.approx(automatic.FLOPS * width**2 * 196, rel=0.25)


def test_minutes_are_of_a_gpu_where_torch_would_find_one(tmp_path, monkeypatch):
    assert not launcher.has_gpu() or torch.cuda.is_available()
    monkeypatch.setattr(launcher, "DEVICE", str(tmp_path))
    monkeypatch.setattr(launcher, "version", lambda name: "2.13.0+cu130")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert configured("feta_pro", *MNIST).noise_multiplicity == 16
    assert configured("feta_pro", *MNIST, "--minutes", "20", "--expert", "minutes_on=core").noise_multiplicity == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert configured("feta_pro", *MNIST).noise_multiplicity == 1
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(launcher, "version", lambda name: "2.13.0+cpu")
    assert not launcher.has_gpu()


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


@pytest.mark.parametrize(
    "wrong", ["num_train_images=0", "num_train_images=-5", "target_epsilon=-1", "minutes=nan", "minutes=inf"]
)
@pytest.mark.parametrize("method", ["feta_pro", "moments", "gs_wgan"])
def test_rules_follow_from_values_that_can_be(method, wrong):
    name, _, value = wrong.partition("=")
    with pytest.raises(UsageError, match=f"--{name} is {value}.*; give a"):
        configured(method, "--num_train_images", "600", f"--{name}", value)
