# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""DP-GAN: a generator that learns from a discriminator, of which nothing but noisy gradients of real rows is seen."""

import json
import re

import pytest
import torch
import torch.nn.functional as F
from diffusers.training_utils import EMAModel

from diffusers_dp import SensitiveImages, load_verified, verify
from diffusers_dp.data.images import PublicFacts
from diffusers_dp.gradients.step import clip_factors
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.dp_gan import DPGANConfig
from diffusers_dp.models import adversary
from diffusers_dp.models.adversary import LOSSES, with_noise
from diffusers_dp.models.draws import Draws
from diffusers_dp.randomness.private_generator import PrivateGenerator
from diffusers_dp.release.allow_list import RELEASE_FILES
from diffusers_dp.runs.checkpoints import load_checkpoint, save_checkpoint
from support.few import few
from support.flags import NUM_IMAGES
from support.runs import files, independent_epsilon, read_ledger, write_images


METHOD = "dp_gan"
FLAGS = (
    "--block_out_channels 4,8 --expert discriminator_channels=4 --discriminator_steps 2 --expert "
    "generator_batch_size=6 "
    "--max_train_steps 4 --train_batch_size 8 --checkpointing_steps 2 --skip_preflight --resolution 8 "
    f"--num_channels 1 --class_names left,empty,right --num_train_images {NUM_IMAGES} --accountant rdp "
    "--target_epsilon 1"
).split()
FACTS = PublicFacts(NUM_IMAGES, (1, 8, 8), ("left", "empty", "right"))


def built(script, *given, facts=FACTS):
    """What is trained, and what follows from a noisy gradient."""
    torch.manual_seed(0)
    number = ["--num_train_images", str(facts.num_images)]
    config = load_config([*FLAGS, "--dry_run", *given, *number], DPGANConfig)
    trained = script.build(config, facts, "cpu")
    return trained, trained.backward


def silent(trained):
    """Noisy gradients of nothing."""
    return {name: torch.zeros_like(value) for name, value in trained.model.named_parameters()}


@pytest.mark.parametrize("generator", few(["one_step", "residual"]))
def test_a_generator_is_released(generator, script, flags, tmp_path):
    """With the pre-flight audit; epsilon recomputed; one call an image, or a model of the images."""
    more = "--expert fake_accuracy_floor=0.6 --patch_size 2 --expert input_noise=0.5,mode_seeking=0.1".split()
    more += f"--generator {generator} --expert generator_channels=4,num_generated_images=6 --diffusion_steps 2".split()
    script.main([*[flag for flag in flags if flag != "--skip_preflight"], *more])
    run, release = tmp_path / "run", tmp_path / "run" / "release"
    header, rows = read_ledger(run)
    assert {row["stage"] for row in rows} == {"dp_sgd"}
    assert 0.7 < independent_epsilon(run) <= header["target_epsilon"] + 1e-3
    assert files(release) == set(RELEASE_FILES) and verify.report(release) == 0
    receipt = json.loads((release / "privacy_receipt.json").read_text())
    assert receipt["method"]["name"] == "DP-GAN" and receipt["curriculum"]["discriminator_steps"] == 2
    pipeline = load_verified(release)
    assert pipeline.is_one_step == (generator == "one_step")
    assert pipeline(class_labels=["left", "right"], num_inference_steps=2, output_type="pt").images.shape[0] == 2


def test_nothing_but_noisy_answers_of_real_rows_is_used(script, flags, tmp_path, monkeypatch, capsys):
    """The door computes on the images as ever, but what it answers is replaced. Then everything else is the same for
    other images: weights, the number of discriminator steps, and what is said."""
    monkeypatch.setattr(adversary, "GRACE", 1)
    asked, original = [], SensitiveImages.noisy_gradient

    def replaced(door, model, *others, **options):
        original(door, model, *others, **options)
        draws = torch.Generator().manual_seed(len(asked))
        asked.append({name: torch.randn(p.shape, generator=draws).to(p) for name, p in model.named_parameters()})
        return asked[-1]

    monkeypatch.setattr(SensitiveImages, "noisy_gradient", replaced)
    seen = []
    for last in ("good", "absent"):
        asked.clear()
        run = tmp_path / f"run_{last}"
        images = write_images(tmp_path / last, last)
        if last == "absent":  # and all others but two
            for path in sorted((tmp_path / last).rglob("*.png"))[2:]:
                path.unlink()
        more = ["--expert", "fake_accuracy_floor=0.99", "--max_train_steps", "6"]
        script.main([*flags, *images, "--output_dir", str(run), *more])
        weights = load_verified(run / "release").unet.state_dict()
        lines = capsys.readouterr().out.splitlines()
        said = [re.sub(r"[\d.]+$", "", line) for line in lines if "run_" not in line]  # without seconds
        checkpoint = json.loads((run / "private" / "checkpoint-6" / "state.json").read_text())
        seen.append((weights, said, len(asked), checkpoint["step"]))
    for name, value in seen[0][0].items():
        assert torch.equal(value, seen[1][0][name]), name
    assert seen[0][1:] == seen[1][1:]


@pytest.mark.parametrize("kind", LOSSES)
def test_a_real_row_is_judged_by_itself_and_leaves_no_trace(kind, script, capsys):
    """Its loss is of its own score: no fake is in it, and nothing of it is kept or said."""
    trained, step = built(script, "--gan_loss", kind)
    images, labels = torch.rand(5, 1, 8, 8) * 2 - 1, torch.tensor([0, 1, 2, 0, 1])
    step(silent(trained))  # from here on there are fakes
    before = {name: value.clone() for name, value in trained.module.state_dict().items()}
    attributes = [set(vars(module)) for module in trained.module.modules()]
    losses = trained.loss(trained.model, images, labels, PrivateGenerator())
    scores = trained.model(images, labels).double()
    expected = (-scores).exp().log1p() if kind == "logistic" else (1 - scores).clamp_min(0)
    assert torch.allclose(losses.double(), expected, atol=1e-6)
    alone = [trained.loss(trained.model, images[[i]], labels[[i]], PrivateGenerator()) for i in range(5)]
    assert torch.allclose(torch.cat(alone), losses, atol=1e-6)
    assert attributes == [set(vars(module)) for module in trained.module.modules()] and capsys.readouterr().out == ""
    assert all(torch.equal(value, before[name]) for name, value in trained.module.state_dict().items())


def test_noise_on_images_is_secret_and_has_many_levels(script):
    """Whoever knew the noise of a row could look for it; and an image is never seen without some."""
    trained, _ = built(script, "--expert", "input_noise=0.8")
    torch.nn.init.ones_(trained.model.by_class.weight)
    images, labels = torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    losses = []
    for seed, key in ((0, b"1" * 16), (1, b"1" * 16), (0, b"2" * 16)):
        torch.manual_seed(seed)
        losses.append(trained.loss(trained.model, images, labels, PrivateGenerator(key)))
    assert torch.equal(losses[0], losses[1]) and not torch.isclose(losses[0], losses[2]).any()
    draws = Draws(PrivateGenerator(), torch.device("cpu"))
    levels = with_noise(torch.zeros(2000, 1, 8, 8), 0.8, draws).flatten(1).std(1)
    assert 0.35 < levels.mean() < 0.45 and levels.min() < 0.05 and 0.7 < levels.max() < 1.1


def test_fakes_weigh_as_much_as_real_rows(script, monkeypatch):
    """As many as a step expects, each clipped to the norm of a real one, and divided by the same constant: once."""
    trained, step = built(script, "--max_grad_norm", "0.3")
    monkeypatch.setattr(torch, "randperm", torch.arange)
    real = {name: torch.randn_like(value) for name, value in trained.model.named_parameters()}
    step(real)
    images, labels = (every[:8] for every in step.drawn)  # half of what serves until the generator learns
    assert len(step.drawn[0]) == 16 and not images.requires_grad
    expected = {name: value.clone() for name, value in real.items()}
    for image, label in zip(images, labels, strict=True):
        loss = F.softplus(trained.model(image[None], label[None])).sum()
        own = torch.autograd.grad(loss, list(trained.model.parameters()))
        factor = clip_factors(sum(part.square().sum() for part in own), 0.3)
        for name, part in zip(expected, own, strict=True):
            expected[name] += factor * part / 8
    for name, parameter in trained.model.named_parameters():
        assert torch.allclose(parameter.grad, expected[name], atol=1e-6), name


def test_more_discriminator_steps_when_fakes_pass(script, monkeypatch):
    """Scores of fakes alone decide; a change is given time."""
    monkeypatch.setattr(adversary, "GRACE", 3)
    trained, step = built(script, "--discriminator_steps", "1", "--expert", "fake_accuracy_floor=0.9")
    gan, numbers = trained.module, []
    gan.fake_accuracy.fill_(0.5)
    for _ in range(7):
        step(silent(trained))
        numbers.append(int(gan.discriminator_steps))
    assert numbers == [1, 1, 2, 2, 2, 2, 2]
    gan.fake_accuracy.fill_(1.0)
    for _ in range(6):
        step(silent(trained))
    assert int(gan.discriminator_steps) == 2
    fixed, step = built(script, "--discriminator_steps", "1")
    fixed.module.fake_accuracy.fill_(0.0)
    for _ in range(6):
        step(silent(fixed))
    assert int(fixed.module.discriminator_steps) == 1


def test_a_checkpoint_holds_both_networks_and_how_far_they_are(script, tmp_path):
    """Restored, they go on as if nothing had happened, for the same coins."""

    def advance(trained, number):
        for index in range(number):
            torch.manual_seed(index)
            trained.backward({name: torch.randn_like(value) for name, value in trained.model.named_parameters()})
            trained.optimizer.step()

    first, _ = built(script, "--discriminator_steps", "2", "--expert", "fake_accuracy_floor=0.6")
    advance(first, 3)
    position = {"rows": 0, "steps_reserved": 0}
    averages = [EMAModel(trained.module.parameters(), decay=0.9) for trained in (first, first)]
    saved = save_checkpoint(
        tmp_path, 3, unet=first.module, ema=averages[0], optimizer=first.optimizer, ledger_position=position
    )
    second, _ = built(script, "--discriminator_steps", "2", "--expert", "fake_accuracy_floor=0.6")
    advance(second, 2)  # where the generator has just learned
    load_checkpoint(saved, unet=second.module, ema=averages[1], optimizer=second.optimizer, ledger_position=position)
    assert int(second.module.steps_since) == 1
    first.backward.drawn = second.backward.drawn = None  # fakes are drawn anew
    advance(first, 4)
    advance(second, 4)
    for name, value in first.module.state_dict().items():
        assert torch.equal(value, second.module.state_dict()[name]), name
