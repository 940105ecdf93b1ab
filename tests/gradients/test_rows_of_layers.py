# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""One squared norm for each image and one loss for each row. A model that folds windows or frames into its rows, or a
loss of another shape, is refused by name, whatever the size of a physical batch."""

import re

import numpy as np
import pytest
import torch
from diffusers import UNet3DConditionModel
from PIL import Image
from torch import nn

from diffusers_dp.audit.preflight import preflight
from diffusers_dp.data.images import PublicFacts
from diffusers_dp.errors import UsageError
from diffusers_dp.gradients import rules
from diffusers_dp.gradients.physical_batch import largest_physical_batch
from diffusers_dp.gradients.supported import UnsupportedModel
from diffusers_dp.methods.config import load_config
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.runs.dp_sgd import Trained
from diffusers_dp.runs.plan import plan_run
from support.doors import KEY, Noiseless, gradient, make_door, make_ledger, squares
from support.few import few
from support.images import folder_config, read_images


class Windows(nn.Module):
    """Four windows of each image, each a row of its layer."""

    def __init__(self, order="rows first"):
        super().__init__()
        torch.manual_seed(0)
        self.order, self.window = order, nn.Linear(16, 1, bias=False)

    def forward(self, x):
        windows = x.unfold(2, 4, 4).unfold(3, 4, 4).reshape(len(x), 4, 16)
        if self.order == "rows first":
            return self.window(windows.flatten(0, 1)).view(len(x), 4)
        return self.window(windows.transpose(0, 1).flatten(0, 1)).view(4, len(x)).T


class Positions(nn.Module):
    """A layer that is given positions, which are as many as the rows of some batches."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.out(x.flatten(1, 2) + self.table(torch.arange(8))).squeeze(2)


def pull(model, rows, labels, generator):
    """Each window pulls the same way, harder than the clip norm."""
    return 1000 * model(rows).sum(1)


def lookup(model, rows, labels, generator):
    return model(rows).sum(1)


def frames(rank):
    """LoRA of a video network, which folds frames into the rows of its convolutions and pixels into those of its
    attention."""
    torch.manual_seed(0)
    unet = UNet3DConditionModel(
        sample_size=4, in_channels=1, out_channels=1, block_out_channels=(4, 4), layers_per_block=1,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"), up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
        cross_attention_dim=4, attention_head_dim=2, norm_num_groups=2,
    )  # fmt: skip
    peft = pytest.importorskip("peft")
    unet.requires_grad_(False)
    targets = r".*\.attentions\.0\..*\.to_[qkv]"
    peft.inject_adapter_in_model(peft.LoraConfig(r=rank, target_modules=targets, init_lora_weights=False), unet)
    return unet


def video_loss(model, rows, labels, generator):
    clips = rows.view(len(rows), 1, 4, 4, 4)  # four frames
    tokens = rows.new_ones(len(rows), 3, 4)
    return 1000 * squares(lambda x: model(x, rows.new_zeros(len(x)), encoder_hidden_states=tokens).sample, clips, 0, 0)


@pytest.mark.parametrize("damaged", [False, True])
def test_windows_of_one_image_are_no_records(damaged, tmp_path):
    """Through the real loader. In batches of one image, one record moved the sum by four clip norms."""
    (tmp_path / "images" / "dog").mkdir(parents=True)
    for number in range(3):
        Image.new("L", (8, 8), 250).save(tmp_path / "images" / "dog" / f"{number}.png")
    if damaged:
        (tmp_path / "images" / "dog" / "1.png").write_bytes(b"no image")
    facts, arrays = read_images(folder_config(tmp_path / "images", num_channels=1), tmp_path)
    door = SensitiveImages(
        arrays.images, arrays.labels, arrays.readable, num_images=facts.num_images, image_shape=facts.image_shape,
        ledger=make_ledger(facts.num_images), class_names=facts.class_names,
    )  # fmt: skip
    with pytest.raises(UnsupportedModel, match=r"Linear \('window'\) was given another number of rows than the loss"):
        gradient(door, Windows(), pull, max_physical_batch_size=1, generator=Noiseless(KEY))


def doors():
    """One to images, one to units of two."""
    images = np.random.default_rng(0).integers(0, 256, (8, 1, 8, 8), dtype=np.uint8)
    units = {"units": np.arange(8) // 2, "num_units": 4}
    return [
        SensitiveImages(images, num_images=8, image_shape=(1, 8, 8), ledger=make_ledger(count), **parts)
        for count, parts in ((8, {}), (4, units))
    ]


@pytest.mark.parametrize("noise_multiplicity", [1, 2, 4])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("order", ["rows first", "windows first"])
def test_windows_are_refused_by_name(order, size, noise_multiplicity):
    """Also where the images of a batch, or the draws of an image, are as many as its windows."""
    for door in doors():
        with pytest.raises(UnsupportedModel, match=r"Linear \('window'\).*dimension 0.*must be the rows") as refused:
            gradient(door, Windows(order), pull, max_physical_batch_size=size, noise_multiplicity=noise_multiplicity)
        assert refused.value.exit_code == 2
        assert not re.search("[1-9]", str(refused.value))  # how many rows a batch has is secret


@pytest.mark.parametrize("size", [1, 2])
def test_frames_are_refused_by_name(size):
    """Every trained layer of Diffusers' video network sees the same folded rows."""
    door = make_door(class_names=None, count=2, num_images=2)
    with pytest.raises(UnsupportedModel, match=r"Linear \('.*'\).*must be the rows"):
        gradient(door, frames(2), video_loss, max_physical_batch_size=size)


def test_positions_are_refused():
    """A batch may happen to have as many rows; the next one has not."""
    with pytest.raises(UnsupportedModel, match=r"Embedding \('table'\).*must be the rows"):
        gradient(make_door(), Positions(), lookup, max_physical_batch_size=8)


def test_windows_are_refused_before_anything_is_spent():
    """Where the pre-flight is left out, the size of a physical batch is found on blank images."""
    with pytest.raises(UnsupportedModel, match="must be the rows"):
        largest_physical_batch(Windows(), pull, image_shape=(1, 8, 8), labelled=False, noise_multiplicity=1, at_most=4)


@pytest.mark.parametrize("noise_multiplicity", few([1, 2], 1))
@pytest.mark.parametrize(
    ("model", "loss", "layer"),
    [(Windows, pull, "Linear"), (Positions, lookup, "Embedding")],
    ids=["windows", "positions"],
)
def test_the_preflight_refuses_them(model, loss, layer, noise_multiplicity):
    """Its batches have many sizes: positions that are as many as the rows of one are not as many as those of all."""
    flags = f"--max_train_steps 2 --train_batch_size 64 --accountant rdp --noise_multiplicity {noise_multiplicity}"
    config, facts, model = load_config(flags.split()), PublicFacts(500, (1, 8, 8), None), model()
    with pytest.raises(UnsupportedModel, match=rf"{layer} \('.*'\) was given another number of rows"):
        preflight(facts, plan_run(config, facts), Trained(model, model, loss))


WRONG_LOSSES = {
    "a mean": lambda losses: losses.mean(),
    "a column": lambda losses: losses[:, None],
    "one too few": lambda losses: losses[1:],
    "one for all": lambda losses: losses.sum()[None],
    "a number": lambda losses: losses.sum().item(),
}


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("wrong", WRONG_LOSSES)
def test_a_loss_gives_one_number_for_each_row(wrong, size):
    """Of images and of units, with two draws each. No message tells how many rows there are."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    for door in doors():
        with pytest.raises(
            UsageError, match=r"loss must return one number for each row, a tensor of shape \(rows,\)\.$"
        ):
            gradient(
                door, model, lambda *a: WRONG_LOSSES[wrong](squares(*a)), max_physical_batch_size=size,
                noise_multiplicity=2,
            )  # fmt: skip


def test_a_rule_that_miscounts_is_refused(monkeypatch):
    """Whatever a rule returns, no norm stands for two images and none for a part of one."""
    linear = rules._linear

    def twice(layer, x, grad, group_size):
        return [(parameter, parts * 2) for parameter, parts in linear(layer, x, grad, group_size)]

    monkeypatch.setitem(rules._RULES, nn.Linear, twice)
    for count in (1, 3):
        with pytest.raises(UnsupportedModel, match="not one gradient for each image"):
            gradient(make_door(count=count, num_images=count), nn.Sequential(nn.Flatten(), nn.Linear(64, 2)))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda layer, rows: layer.forward(rows), "no trained layer.*forward"),
        (lambda layer, rows: layer(input=rows), r"Linear 'layer' is called by keyword.*write layer\(x\)"),
    ],
    ids=["past the layer", "by keyword"],
)
def test_a_layer_that_is_called_otherwise_is_refused_in_a_sentence(call, words):
    class Otherwise(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 2)

        def forward(self, x):
            return call(self.layer, x.flatten(1))

    with pytest.raises(UnsupportedModel, match=words):
        gradient(make_door(), Otherwise())
