# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a loss, a model or features keep of the images would be released with no noise on it: the door refuses it."""

import functools

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler
from torch import nn

from diffusers_dp.errors import UsageError
from diffusers_dp.mechanisms import sampled
from diffusers_dp.models.denoiser import DDPMDenoiser, DDPMLoss
from support.doors import SHAPE, gradient, make_door, make_ledger, put
from support.models import unet_config


class Model(nn.Module):
    """With a frozen code book and a buffer of statistics."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 3))
        self.codes = nn.Embedding(7, 5).requires_grad_(False)
        self.register_buffer("mean", torch.zeros(64))
        self.seen, self.first = 0, None

    def forward(self, rows):
        return self.layers(rows)


def losses(model, rows):
    return model(rows).square().sum(1)


def loss(model, rows, labels, generator):
    return losses(model, rows)


def means(rows):
    return rows.flatten(1).mean(0)


class Keeper:
    """A loss with state of its own."""

    def __init__(self):
        self.mean, self.last, self.inner = torch.zeros(64), None, Model()

    def __call__(self, model, rows, labels, generator):
        self.mean.lerp_(means(rows), 0.1)
        return losses(model, rows)

    def attribute(self, model, rows, labels, generator):
        self.last = float(rows.mean())
        return losses(model, rows)

    def module(self, model, rows, labels, generator):
        self.inner.mean.add_(means(rows))
        return losses(model, rows)


def after(keep):
    """A loss that keeps something of the model's."""

    def kept(model, rows, labels, generator):
        keep(model, rows)
        return losses(model, rows)

    return kept


def in_a_module_of_a_partial():
    def kept(inner, model, rows, labels, generator):
        inner.mean.add_(means(rows))
        return losses(model, rows)

    return functools.partial(kept, Model())


def buffer_past_its_version(model, rows):
    model.mean.data.lerp_(means(rows), 0.1)


def another_buffer(model, rows):
    model.mean = means(rows)


def code_book_by_one_bit(model, rows):
    model.codes.weight.view(-1).view(torch.int32)[17] ^= 1


def trained_weights(model, rows):
    model.layers[1].weight.data[0] = means(rows)


def first_batch(model, rows):
    if model.first is None or bool((rows == 1).all()):
        model.first = means(rows)


def new_attribute(model, rows):
    model.layers[3].norms = rows.flatten(1).norm(dim=1)


def gradients(model, rows):
    model.layers[1].bias.grad = means(rows)[:5]


def new_parameter(model, rows):
    model.register_parameter("extra", nn.Parameter(means(rows), requires_grad=False))


KEPT = {
    "a mean of an object": lambda: Keeper(),
    "an attribute of an object": lambda: Keeper().attribute,
    "a module of an object": lambda: Keeper().module,
    "a module of a partial": in_a_module_of_a_partial,
    **{
        keep.__name__: functools.partial(after, keep)
        for keep in (
            buffer_past_its_version, another_buffer, code_book_by_one_bit, trained_weights, new_attribute, gradients,
            new_parameter,
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_a_loss_that_keeps_something_is_refused_before_anything_is_spent(name):
    """On public noise, and the sentence names what changed."""
    ledger = make_ledger()
    with pytest.raises(UsageError, match="changed while public noise was shown"):
        gradient(make_door(), Model(), KEPT[name](), ledger=ledger)
    assert ledger.rows == []


def late(name):
    """The same, of images alone that no noise looks like: their first pixel is white."""

    def kept(early, model, rows, labels, generator):
        if bool((rows[:, 0, 0, 0] == 1).all()):
            return early(model, rows, labels, generator)
        return losses(model, rows)

    return functools.partial(kept, KEPT[name]())


@pytest.mark.parametrize("name", KEPT)
def test_what_shows_on_images_alone_stops_the_run_in_the_same_words(name):
    """They tell nothing of an image, and no answer leaves."""
    ledger, said = make_ledger(), set()
    for _ in range(2):
        with pytest.raises(UsageError, match="keeps something") as error:
            gradient(make_door(kinds=255), Model(), late(name), ledger=ledger)
        said.add(str(error.value))
    assert len(said) == 1 and len(ledger.rows) == 2, "paid for, as answers would be"
    assert "0." not in str(error.value) and name not in str(error.value)


def test_a_first_batch_that_is_no_image_is_none_of_the_door_s_business():
    """The door shows blanks first: what is made once is made of them. A second first batch is refused."""
    model = Model()
    gradient(make_door(images=np.full((12, *SHAPE), 100, np.uint8)), model, after(first_batch))
    assert model.first.eq(-1).all()
    with pytest.raises(UsageError, match="keeps something"):
        gradient(make_door(images=np.full((12, *SHAPE), 255, np.uint8)), model, after(first_batch))


def test_a_change_between_two_steps_is_the_run_s_own():
    """An optimiser's step, averaged weights, new gradients."""
    door, model, ledger = make_door(), Model(), make_ledger()
    optimizer = torch.optim.Adam(model.layers.parameters())
    for _ in range(3):
        for name, value in gradient(door, model, loss, ledger=ledger).items():
            model.get_parameter(name).grad = value
        optimizer.step()
        model.mean += 1
    assert len(ledger.rows) == 3


class Lazy(nn.Module):
    """Makes what it needs when it is first called, draws, and leaves its mode as it was."""

    def __init__(self):
        super().__init__()
        self.layer, self.drop, self.table = nn.Linear(64, 3), nn.Dropout(0.5), None
        self.public = torch.Generator().manual_seed(0)
        self.public_too = np.random.default_rng(0)

    def forward(self, rows):
        if self.table is None:
            self.table = torch.arange(64.0)
            self.register_buffer("scale", torch.tensor(2.0), persistent=False)
        self.eval()
        noise = torch.rand(64, generator=self.public) + float(self.public_too.random())
        self.train()
        return self.layer(self.drop(rows.flatten(1) + self.table + noise)) * self.scale


def honest_losses():
    unet = nn.Linear(64, 64)
    return {
        "lazy": (Lazy(), loss),
        "not finite": (Model(), lambda model, rows, labels, generator: losses(model, rows) * float("nan")),
        "ddpm": (ddpm(), DDPMLoss(0.1)),
        "frozen, with batch norm that is evaluated": (
            nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64).requires_grad_(False), unet).eval(), loss
        ),
    }  # fmt: skip


def ddpm():
    from diffusers import UNet2DModel

    return DDPMDenoiser(UNet2DModel(**unet_config(3)), DDPMScheduler())


@pytest.mark.parametrize("name", honest_losses())
def test_honest_losses_pass(name):
    model, row_loss = honest_losses()[name]
    door, ledger = make_door(), make_ledger()
    for _ in range(2):
        gradient(door, model, row_loss, ledger=ledger, noise_multiplicity=2, max_physical_batch_size=3)
    assert len(ledger.rows) == 2


# Queries.


def ask(door, features, ledger=None):
    return put(
        door, "noisy_sum", features, sampled(1.0, 2.0, by_label=True), clip_norm=1.0, name="query",
        ledger=ledger or make_ledger(),
    )  # fmt: skip


class Features(nn.Module):
    """A running mean that it subtracts nowhere: the rows are honest."""

    def __init__(self, late=False):
        super().__init__()
        self.register_buffer("mean", torch.zeros(64))
        self.late, self.last = late, None

    def forward(self, images, labels):
        if not self.late or bool((images[:, 0, 0, 0] == 1).all()):
            self.mean.data.lerp_(means(images), 0.1)
        return images.flatten(1)

    def stash(self, images, labels):
        self.last = images[0]
        return images.flatten(1)


def test_features_that_keep_something_are_refused():
    for features in (Features(), Features().stash):
        ledger = make_ledger()
        with pytest.raises(UsageError, match="'query' .* changed while public noise was shown"):
            ask(make_door(), features, ledger)
        assert ledger.rows == []
    ledger = make_ledger()
    with pytest.raises(UsageError, match="keeps something"):
        ask(make_door(kinds=255), Features(late=True), ledger)
    assert ledger.rows[0]["steps_executed"] == 0


class Encoder:
    def __init__(self, late=False):
        self.mean, self.late = torch.zeros(64), late

    def __call__(self, images):
        if not self.late or bool((images[:, 0, 0, 0] == 1).any()):
            self.mean.add_(means(images))
        return images[:, :, :4, :4]


def test_an_encoder_that_keeps_something_is_refused_and_no_row_is_kept(tmp_path):
    with pytest.raises(UsageError, match="changed while public noise was shown"):
        make_door().map(Encoder(), shape=(1, 4, 4), cache=tmp_path, made_of="early")
    for _ in range(2):
        with pytest.raises(UsageError, match="keeps something"):
            make_door(kinds=255).map(Encoder(late=True), shape=(1, 4, 4), cache=tmp_path, made_of="late")
        assert not (tmp_path / "encoded-0").exists()


class Coded(nn.Module):
    """Buffers, whose sums stay the same."""

    def __init__(self, change):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.change = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), change
        self.register_buffer("codes", torch.randn(256, 16))
        self.register_buffer("counts", torch.full((1024,), 1000, dtype=torch.long))

    def forward(self, rows):
        with torch.no_grad():
            self.change(self, int(rows.abs().sum() * 1000))
        return self.layers(rows)


def rows_in_order(model, number):
    model.codes.copy_(model.codes.roll(1 + number % 200, 0))


def columns_in_order(model, number):
    model.codes.copy_(model.codes.roll(1 + number % 15, 1))


def counts_of_one_total(model, number):
    model.counts[number % 1000] += 1
    model.counts[-1] -= 1


def signs_of_every_second(model, number):
    model.codes.view(-1)[1::2].neg_()


@pytest.mark.parametrize("change", [rows_in_order, columns_in_order, counts_of_one_total, signs_of_every_second])
def test_another_order_of_a_buffer_is_a_change(change):
    with pytest.raises(UsageError, match="changed while public noise was shown"):
        gradient(make_door(), Coded(change))
