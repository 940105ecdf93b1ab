# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Private Set Generation: images follow noisy gradients alone, and are released as a data set."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from diffusers_dp import SensitiveImages, load_verified, verify
from diffusers_dp.data.images import PublicFacts
from diffusers_dp.errors import UsageError
from diffusers_dp.methods import psg
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.psg import PSGConfig
from diffusers_dp.models import private_set
from diffusers_dp.models.private_set import ConvNet, GradientMatching, SyntheticImages, gradient_distance
from support.few import few
from support.flags import NUM_IMAGES
from support.runs import files, independent_epsilon, read_ledger, write_images


METHOD = "psg"
FLAGS = (
    "--images_per_class 2 --expert classifier_width=8 --steps_per_network 3 --network_steps 1 --max_train_steps 4 "
    "--train_batch_size 8 --checkpointing_steps 2 --skip_preflight --class_names left,empty,right --resolution 8 "
    f"--num_channels 1 --num_train_images {NUM_IMAGES} --accountant rdp --target_epsilon 1"
).split()
WIDTH = 16  # with one channel in each group of the normalisation next to nothing is learned
PATTERNS = torch.full((2, 1, 8, 8), -1.0)
PATTERNS[0, :, :4], PATTERNS[1, :, 4:] = 1.0, 1.0


@pytest.mark.parametrize(("layers", "optimizer"), few([("all", "adam"), ("last", "adam"), ("all", "sgd")]))
def test_a_small_data_set_is_released(layers, optimizer, script, flags, tmp_path):
    """With the pre-flight audit; as many images of each class, the absent one too; epsilon recomputed."""
    script.main([*(flag for flag in flags if flag != "--skip_preflight"), "--matched_layers", layers,
                 "--expert", f"image_optimizer={optimizer}"])  # fmt: skip
    run, release = tmp_path / "run", tmp_path / "run" / "release"
    header, rows = read_ledger(run)
    assert {row["stage"] for row in rows} == {"dp_sgd"} and sum(row["steps_reserved"] for row in rows) == 4
    assert 0.7 < independent_epsilon(run) <= header["target_epsilon"] + 1e-3
    assert verify.report(release) == 0
    images = load_verified(release)
    assert images["label"] == [0, 1, 2] * 2 and images[0]["image"].size == (8, 8)
    assert "not to look real" in (release / "README.md").read_text()
    receipt = json.loads((release / "privacy_receipt.json").read_text())
    assert receipt["method"]["name"] == "PSG" and receipt["curriculum"]["images_per_class"] == 2
    assert receipt["curriculum"]["image_optimizer"] == optimizer


def test_images_follow_noisy_gradients_alone(script, flags, tmp_path, monkeypatch):
    """Given the noisy gradients, no other number of the sensitive images reaches the release."""
    torch.manual_seed(0)
    gradients = []

    def replayed(door, model, *others, **options):
        draws = torch.Generator().manual_seed(len(gradients))
        gradients.append({name: torch.randn(p.shape, generator=draws) for name, p in model.named_parameters()})
        return gradients[-1]

    seen = []
    for last in ("good", "absent"):
        gradients.clear()
        monkeypatch.setattr(SensitiveImages, "noisy_gradient", replayed)
        output = tmp_path / f"run_{last}"
        images = write_images(tmp_path / last, last)
        script.main([*flags, *images, "--output_dir", str(output)])
        found = load_verified(output / "release", require_dp=False)  # no step was paid for
        seen.append((files(output / "release"), [image.tobytes() for image in found["image"]], found["label"]))
    assert seen[0] == seen[1] and len(gradients) == 4


def test_settings_of_adamw_are_refused_beside_another_optimizer():
    with pytest.raises(UsageError, match="^--adam_beta2 has no effect with --expert image_optimizer=sgd; leave it"):
        load_config("--expert image_optimizer=sgd --adam_beta2 0.9".split(), PSGConfig)


def test_a_finished_run_is_not_released_again_with_other_words(script, flags, tmp_path):
    """The receipt would say of all steps what holds of none."""
    script.main(flags)
    before = files(tmp_path / "run" / "release")
    with pytest.raises(UsageError, match="--image_steps is 3, and this run began with 5: give 5, or start another"):
        script.main([*flags, "--resume_from_checkpoint", "latest", "--image_steps", "3"])
    assert files(tmp_path / "run" / "release") == before


def matched(steps, watch=lambda matching: None, image_steps=1, **settings):
    """The images after so many steps towards the gradients of two patterns without noise, and the distances."""
    torch.manual_seed(0)
    images, network = SyntheticImages(2, 2, (1, 8, 8)), ConvNet((1, 8, 8), 2, WIDTH)
    optimizer, distances = torch.optim.Adam(images.parameters(), 0.1), []
    matching = GradientMatching(
        images, network, optimizer, lambda _: None, 0, network_learning_rate=0.1, image_steps=image_steps,
        remembered_gradients=5, **settings,
    )  # fmt: skip
    watch(matching)
    for _ in range(steps):
        parameters = dict(network.named_parameters())
        loss = F.cross_entropy(network(PATTERNS), torch.tensor([0, 1]))
        real = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
        own = torch.autograd.grad(F.cross_entropy(network(images.pixels), images.labels), list(parameters.values()))
        distances.append(sum(gradient_distance(m, r).item() for m, r in zip(own, real.values(), strict=True)))
        matching(real)
        optimizer.step()
    return images, distances


def test_matching_goes_towards_the_gradients_of_real_images():
    """For one network the distance falls; images that followed many networks train others."""
    _, distances = matched(40, steps_per_network=1000, network_steps=0)
    assert distances[-1] < 0.8 * distances[0]
    images, _ = matched(60, steps_per_network=20, network_steps=5)
    bright = images.pixels.detach().mean(3).squeeze(1)  # of each row of an image: the patterns are bright halves
    difference = bright[:, :4].mean(1) - bright[:, 4:].mean(1)
    assert difference[images.labels == 0].mean() > 0.5 and difference[images.labels == 1].mean() < -0.5
    for seed in range(3):
        torch.manual_seed(seed)
        network = ConvNet((1, 8, 8), 2, WIDTH)
        optimizer = torch.optim.Adam(network.parameters(), 0.01)
        for _ in range(40):
            optimizer.zero_grad()
            F.cross_entropy(network(images.pixels.detach()), images.labels).backward()
            optimizer.step()
        assert network(PATTERNS).argmax(1).tolist() == [0, 1]
    parts = torch.randn(3, 4)
    assert gradient_distance(parts, 3 * parts).item() == pytest.approx(0, abs=1e-5)
    assert gradient_distance(parts, -parts).item() == pytest.approx(6) and private_set.GROUPS == psg.GROUPS


def test_of_the_last_layer_alone_nothing_else_is_asked(script, flags):
    """The door clips, and adds noise to, what is trained: with all layers most of the norm is of others."""
    config = load_config([*flags, "--matched_layers", "last"], PSGConfig)
    facts = PublicFacts(NUM_IMAGES, (1, 8, 8), ("left", "empty", "right"))
    trained = script.build(config, facts, "cpu")
    asked = {name: each for name, each in trained.model.named_parameters() if each.requires_grad}
    assert [each.shape for each in asked.values()] == [(3, 8), (3,)]
    before = trained.module.pixels.detach().clone()
    trained.backward({name: torch.randn_like(each) for name, each in asked.items()})
    trained.optimizer.step()
    assert not torch.isclose(trained.module.pixels, before).any()
    assert [each.requires_grad for each in trained.model.parameters()] == 9 * [False] + 2 * [True]


def test_a_gradient_is_used_again_with_the_weights_that_it_is_of():
    """Networks change from step to step: towards a gradient at other weights, images would go anywhere."""
    pairs = []

    def watch(matching):
        towards = matching._towards
        matching._towards = lambda *pair: (pairs.append(pair), towards(*pair))

    _, one = matched(12, steps_per_network=4, network_steps=2)
    _, several = matched(12, watch, image_steps=4, steps_per_network=4, network_steps=2)
    assert several[-1] < one[-1] and len(pairs) == 48
    newest = pairs[3::4]
    for step in range(12):
        remembered = {id(gradients) for _, gradients in newest[max(0, step - 4) : step + 1]}
        assert {id(gradients) for _, gradients in pairs[4 * step : 4 * step + 4]} <= remembered
    for weights, gradients in pairs:
        scores = functional_call(ConvNet((1, 8, 8), 2, WIDTH), weights, (PATTERNS,))
        real = torch.autograd.grad(F.cross_entropy(scores, torch.tensor([0, 1])), list(weights.values()))
        assert all(torch.allclose(each, gradients[name], atol=1e-5) for name, each in zip(weights, real, strict=True))
