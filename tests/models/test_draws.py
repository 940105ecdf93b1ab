# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a loss draws: from the door's secret source, on a card as well, and the same whatever the images show."""

from types import SimpleNamespace

import pytest
import torch
from diffusers import DDPMScheduler

from diffusers_dp.models.denoiser import DDPMLoss, EDMLoss
from diffusers_dp.models.draws import Draws
from diffusers_dp.models.latent_denoiser import LatentLoss
from diffusers_dp.randomness.private_generator import PrivateGenerator
from diffusers_dp.randomness.timestep_mixture import TimestepMixture
from support.doors import KEY


ROWS, NULL = 60, 3
CUDA = torch.device("cuda")


class Secret(PrivateGenerator):
    """Notes the arguments of each draw, and answers on the CPU: no card is here."""

    def __init__(self):
        super().__init__(KEY)
        self.asked = []

    def normal(self, shape, std, device="cpu"):
        self.asked.append(("normal", tuple(shape), std, device))
        return super().normal(shape, std)

    def uniform(self, size):
        self.asked.append(("uniform", size))
        return super().uniform(size)


@pytest.mark.parametrize("device", [torch.device("cpu"), CUDA])
def test_draws_come_from_the_secret_source_on_every_device(device, monkeypatch):
    """Torch's own generators, of a card too, follow the public `--seed`."""
    for name in ("randn", "rand", "randn_like", "rand_like"):
        monkeypatch.setattr(torch, name, lambda *arguments, **options: pytest.fail("drawn under the public seed"))
    source, same = Secret(), PrivateGenerator(KEY)
    draws = Draws(source, device)
    assert torch.equal(draws.normal(4, 2), same.normal((4, 2), 1.0))
    assert draws.uniform(5).tolist() == same.uniform(5).tolist()
    dropped = draws.drop_labels(torch.zeros(ROWS, dtype=torch.long), 0.5, NULL)
    assert (dropped == NULL).tolist() == (same.uniform(ROWS) < 0.5).tolist()
    assert source.asked == [("normal", (4, 2), 1.0, device), ("uniform", 5), ("uniform", ROWS)]


class Noting:
    """In the place of a denoiser: notes noise levels or times, and labels."""

    null_label, sigma_data, scheduler = NULL, 0.5, DDPMScheduler()

    def __init__(self, of_latents):
        self.of_latents, self.seen = of_latents, None

    def __call__(self, noisy, level, labels):
        self.seen = level.tolist(), labels.tolist()
        return SimpleNamespace(sample=noisy) if self.of_latents else noisy


MIXTURE = TimestepMixture([0.0, 300.0, 1000.0], [0.2, 0.8])
LOSSES = {
    f"{kind.__name__}{', mixture' * (mixture is not None)}": kind(0.4, mixture=mixture)
    for kind in (EDMLoss, DDPMLoss, LatentLoss)
    for mixture in (None, MIXTURE)
}


def batches():
    noise = torch.rand(ROWS, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    one_white, one_black = noise.clone(), noise.clone()
    one_white[5], one_black[5] = 1.0, -1.0
    return {
        "noise": noise, "nearly white": 1 - noise.abs() / 50, "white": torch.ones_like(noise),
        "nearly black": noise.abs() / 50 - 1, "grey": noise / 1000, "one white": one_white, "one black": one_black,
        "not finite": noise / 0.0, "out of range": 100 * noise,
    }  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_levels_and_dropped_labels_do_not_follow_from_what_images_show(name):
    """A dropout that knows how bright an image is, or its batch, tells it to whoever reads the weights."""
    found = {}
    for kind, images in batches().items():
        source, denoiser = Secret(), Noting(name.startswith("Latent"))
        LOSSES[name](denoiser, images, torch.arange(ROWS) % 3, source)
        found[kind] = (*denoiser.seen, source.asked)
    wanted = found["noise"]
    assert 0.2 * ROWS < wanted[1].count(NULL) < 0.6 * ROWS
    assert [kind for kind, seen in found.items() if seen != wanted] == []
