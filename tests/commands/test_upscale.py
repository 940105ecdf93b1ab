# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp upscale`: larger images, with the receipt and the card of those that they were made of."""

import json

import numpy as np
import pytest
import torch
from diffusers import UNet2DModel

from diffusers_dp import cli, verify
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.release.build import build_release
from diffusers_dp.release.dataset_release import DatasetArtefact
from diffusers_dp.release.receipt import RunRecord
from diffusers_dp.sampling.upscaler import Upscaler
from support.releases import make_ledger
from support.sampling import read, run


NAMES = ["left", "right"]


def images_of(channels):
    return torch.randint(256, (6, channels, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def released(folder, channels, labelled=True):
    """A release of images."""
    folder.mkdir(parents=True)
    labels, names = (torch.arange(6) % 2, NAMES) if labelled else (None, None)
    record = RunRecord(ledger=make_ledger(folder), method=METHODS["moments"])
    return build_release(folder, DatasetArtefact(images_of(channels), labels, names, "They are a test."), record)


def network(folder, channels, side=16):
    """One that makes an image brighter by a tenth of the range."""
    upscaler = Upscaler.new(channels, side, (8, 8))
    torch.nn.init.constant_(upscaler.unet.conv_out.bias, 0.2)
    upscaler.unet.save_pretrained(folder)
    return upscaler.sha256


def upscale(images, output, *flags):
    cli.main(["upscale", str(images), "--output_dir", str(output), *flags])
    return read(output)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_release_of_images(channels, tmp_path):
    release = released(tmp_path / "run", channels)
    pixels, labels, features = upscale(release, tmp_path / "large", "--resolution", "20")
    assert pixels.shape[:3] == (6, 20, 20) and labels == [0, 1] * 3 and features["label"].names == NAMES
    small = np.moveaxis(images_of(channels).numpy(), 1, -1).reshape(6, 8, 8, -1).astype(float)
    assert np.allclose(pixels.reshape(6, 20, 20, -1).mean((1, 2)), small.mean((1, 2)), atol=6)
    receipt, card = (release / "privacy_receipt.json").read_bytes(), (tmp_path / "large" / "README.md").read_text()
    assert (tmp_path / "large" / "privacy_receipt.json").read_bytes() == receipt
    assert verify.guarantee(json.loads(receipt)) in card and "samples.png" not in card
    assert "enlarged them to 20 bilinearly" in card


def test_drawn_images_and_a_network(honest, tmp_path, capsys):
    """Of a model, with `sample` before it; the network is named by its hash."""
    drawn, before, _ = run(honest, tmp_path / "drawn")
    channels = 1 if drawn.ndim == 3 else 3
    sha256 = network(tmp_path / "network", channels)
    large, labels, _ = upscale(tmp_path / "drawn", tmp_path / "large", "--upscaler", str(tmp_path / "network"))
    assert large.shape[1] == 16 and labels == before
    told = json.loads((tmp_path / "large" / "sampling.json").read_text())
    assert told["upscaler_sha256"] == sha256 and told["num_images"] == len(drawn)
    assert sha256 in (tmp_path / "large" / "README.md").read_text()
    plain, _, _ = upscale(tmp_path / "drawn", tmp_path / "plain", "--resolution", "16")
    difference = large.astype(int) - plain
    assert difference[plain < 220] == pytest.approx(25.5, abs=1)
    upscale(tmp_path / "large", tmp_path / "larger", "--resolution", "32")  # what it wrote can be enlarged again


def test_images_without_classes_in_two_files(tmp_path, monkeypatch):
    monkeypatch.setattr("diffusers_dp.commands.upscale.IMAGES_PER_SHARD", 4)
    pixels, labels, _ = upscale(released(tmp_path / "run", 1, labelled=False), tmp_path / "large", "--resolution", "9")
    assert len(pixels) == 6 and labels is None and len(list((tmp_path / "large" / "data").iterdir())) == 2


def test_what_cannot_be_is_one_sentence(honest, tmp_path, capsys):
    release = released(tmp_path / "run", 1)
    network(tmp_path / "colour", 3)
    UNet2DModel(
        sample_size=16, in_channels=1, out_channels=2, block_out_channels=(8,), down_block_types=("DownBlock2D",),
        up_block_types=("UpBlock2D",), norm_num_groups=8, add_attention=False,
    ).save_pretrained(tmp_path / "other")  # fmt: skip
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    for images, flags, message, code in (
        (release, "", "Give either --resolution", 2),
        (release, f"--resolution 16 --upscaler {tmp_path / 'colour'}", "Give either --resolution", 2),
        (release, "--resolution 8", "--resolution makes images of 8 pixels", 2),
        (release, "--resolution 100000", "at most", 2),
        (release, f"--upscaler {tmp_path / 'colour'}", "--upscaler takes images of 3 channels", 2),
        (release, f"--upscaler {tmp_path / 'other'}", "--upscaler is not a network that enlarges", 2),
        (release, f"--upscaler {tmp_path / 'none'}", "is no network of Diffusers in safetensors", 2),
        (release, f"--resolution 16 --output_dir {full}", "is not an empty folder", 2),
        (honest, "--resolution 64", "holds no images: draw some from a model", 2),
        (full, "--resolution 64", "holds no images", 2),
    ):  # fmt: skip
        with pytest.raises(SystemExit) as stopped:
            upscale(images, tmp_path / "large", *flags.split())
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1 and stopped.value.code == code, said
    assert not (tmp_path / "large").exists() and not list(tmp_path.glob(".upscale-*"))


def test_a_forged_release_is_not_enlarged(tmp_path, capsys):
    release = released(tmp_path / "run", 1)
    receipt = json.loads((release / "privacy_receipt.json").read_text())
    receipt["events"][0]["noise_multiplier"] = 0.01
    (release / "privacy_receipt.json").write_text(json.dumps(receipt))
    with pytest.raises(SystemExit) as stopped:
        upscale(release, tmp_path / "large", "--resolution", "16")
    assert stopped.value.code not in (0, 2) and not (tmp_path / "large").exists()
