# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a judge learns, and from what: its noisy gradients, seen where they leave the door of a run."""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file

from diffusers_dp.methods import judge as method
from diffusers_dp.models.judge import JudgeFeatures, load_judge, new_network
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.randomness.private_generator import PrivateGenerator
from diffusers_dp.release.loading import load_verified
from support.flags import NUM_IMAGES
from support.judges import FLAGS, SHAPE, few_steps
from support.runs import read_ledger, write_images


METHOD = "moments"


@pytest.fixture(autouse=True)
def few_judged(monkeypatch):
    few_steps(monkeypatch)


@dataclass
class Asked:
    """Noisy gradients of the judge, and the secret draws of each: shape and standard deviation."""

    gradients: list[dict[str, torch.Tensor]] = field(default_factory=list)
    draws: list[list[Any]] = field(default_factory=list)


@pytest.fixture
def asked(monkeypatch):
    found, ask, plain, draws = Asked(), SensitiveImages.noisy_gradient, dict(vars(PrivateGenerator)), []

    def noted(door, *arguments, **options):
        draws.clear()
        answer = ask(door, *arguments, **options)
        if options["name"] == "judge":
            found.gradients.append({name: each.clone() for name, each in answer.items()})
            found.draws.append(list(draws))
        return answer

    def normal(self, shape, std, device="cpu"):
        draws.extend([(tuple(shape), std)] * (not self._injected))
        return plain["normal"](self, shape, std, device)

    def uniform(self, size):
        draws.extend([(size, None)] * (not self._injected))
        return plain["uniform"](self, size)

    monkeypatch.setattr(SensitiveImages, "noisy_gradient", noted)
    monkeypatch.setattr(PrivateGenerator, "normal", normal)
    monkeypatch.setattr(PrivateGenerator, "uniform", uniform)
    return found


def row_of(run):
    return next(row for row in read_ledger(run)[1] if row["stage"] == "judge")


def test_its_weights_follow_from_noisy_gradients_alone(asked, script, tmp_path):
    """They begin at zero, and the rate follows from the noise: no image chose a weight, a rate, a scale or a stop."""
    script.main([*FLAGS, *write_images(tmp_path / "images", "broken"), "--output_dir", str(tmp_path / "run")])
    row = row_of(tmp_path / "run")
    noise = method.CLIP_NORM * row["noise_multiplier"] * method.STEPS**0.5 / row["query"]["normaliser"]
    rate, network = method.WEIGHT_NOISE * (1 - method.MOMENTUM) / noise, new_network(JudgeFeatures(SHAPE, 20), 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=method.MOMENTUM)
    for number, gradients in enumerate(asked.gradients):
        optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * number / method.STEPS)) / 2
        for name, parameter in network.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
    found = load_file(tmp_path / "run" / "release" / "judge.safetensors")
    for name, parameter in network.named_parameters():
        assert torch.allclose(found[name], parameter.detach(), rtol=1e-4, atol=1e-6), name


def test_each_step_draws_one_sample_and_one_noise(asked, script, tmp_path):
    """Both come from the secret source, and the noise has the standard deviation of the ledger."""
    script.main([*FLAGS, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")])
    std = row_of(tmp_path / "run")["noise_multiplier"] * method.CLIP_NORM
    width = math.prod(JudgeFeatures(SHAPE, 20).shape)
    wanted = [(NUM_IMAGES, None), ((3, width), pytest.approx(std)), ((3,), pytest.approx(std))]
    assert asked.draws == [wanted] * method.STEPS


def test_a_step_is_a_sum_of_clipped_gradients_of_public_features(asked, script, tmp_path, monkeypatch):
    """Images of the Poisson sample that can be read count, each by itself, and the divisor is declared. No noise."""
    monkeypatch.setattr(PrivateGenerator, "normal", lambda self, shape, std, device="cpu": torch.zeros(shape))
    monkeypatch.setattr(PrivateGenerator, "uniform", lambda self, size: 0.9 * (1 - np.arange(size) % 2))
    folder = tmp_path / "images"
    script.main([*FLAGS, *write_images(folder, "broken"), "--output_dir", str(tmp_path / "run")])
    paths = sorted(folder.rglob("*.png"))[:-1]  # the last one is broken
    pixels = torch.from_numpy(np.stack([np.asarray(Image.open(path))[None] for path in paths]))
    labels = torch.tensor([("left", "empty", "right").index(path.parent.name) for path in paths])
    rows = JudgeFeatures(SHAPE, 20)(pixels.float() / 127.5 - 1).half().float().flatten(1)  # as they are stored
    rows = torch.cat([rows, torch.ones(len(rows), 1)], 1)  # and the bias
    each = (1 / 3 - F.one_hot(labels, 3))[:, :, None] * rows[:, None]  # of weights that are zero
    clipped = each * (method.CLIP_NORM / each.flatten(1).norm(dim=1)).clamp(max=1)[:, None, None]
    wanted = clipped[1::2].sum(0) / method.BATCH_SIZE  # every second image: not as many as are expected
    found = asked.gradients[0]
    assert torch.allclose(torch.cat([found["weight"], found["bias"][:, None]], 1), wanted, atol=1e-4)


def test_other_images_change_no_word_of_a_run(script, tmp_path, capfd):
    """What the judge learned and how many images can be read shows nowhere."""
    said = []
    for kind in ("good", "broken"):
        run, images = tmp_path / f"run_{kind}", tmp_path / kind
        flags = [*FLAGS, *write_images(images, kind), "--output_dir", str(run)]
        for path in images.rglob("*.png") if kind == "broken" else ():
            if path.stat().st_size > 60:  # not the one that is cut
                Image.fromarray(np.full((8, 8), 250 if path.parent.name == "left" else 3, np.uint8)).save(path)
        script.main(flags)
        words = re.sub(r" +\d+\.\d$", "", capfd.readouterr().out, flags=re.MULTILINE)  # seconds
        said.append(words.replace(str(run), "RUN"))
        assert {path.name for path in run.iterdir()} == {"private", "release"}
    assert said[0] == said[1]


def test_biases_are_those_of_the_released_images(script, tmp_path):
    """Whoever has them finds the biases again: no private image and no private count moved one."""
    script.main([*FLAGS, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")])
    release = tmp_path / "run" / "release"
    drawn, judge = load_verified(release), load_judge(release / "judge.safetensors", SHAPE, 3)
    images = torch.from_numpy(np.stack([np.asarray(image)[None] for image in drawn["image"]]))
    found = judge.balanced(images, torch.tensor(drawn["label"])).biases
    assert torch.allclose(found, judge.biases, atol=1e-4)
