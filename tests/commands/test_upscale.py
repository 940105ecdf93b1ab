# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp upscale`: larger images, with the receipt and the card of those that they were made of."""

import json

import numpy as np
import pytest
import torch
from diffusers import UNet2DModel

from diffusers_dp import cli, verify
from diffusers_dp.files.canonical import canonical_json
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
    assert verify.guarantee(json.loads(receipt)) in card and "enlarged from 8 to 20 pixels bilinearly" in card


def test_drawn_images_and_a_network(honest, tmp_path):
    """Of a model, with `sample` before it; the network is named by its hash, also where images are enlarged again."""
    drawn, before, _ = run(honest, tmp_path / "drawn")
    sha256 = network(tmp_path / "network", 1 if drawn.ndim == 3 else 3)
    large, labels, _ = upscale(tmp_path / "drawn", tmp_path / "large", "--upscaler", str(tmp_path / "network"))
    assert large.shape[1] == 16 and labels == before
    plain, _, _ = upscale(tmp_path / "drawn", tmp_path / "plain", "--resolution", "16")
    difference = large.astype(int) - plain
    assert difference[plain < 220] == pytest.approx(25.5, abs=1)
    upscale(tmp_path / "large", tmp_path / "larger", "--resolution", "32")
    told = json.loads((tmp_path / "larger" / "sampling.json").read_text())
    assert told["upscaler"] == "bilinear" and told["drawn"]["upscaler_sha256"] == sha256
    assert told["drawn"]["drawn"]["num_inference_steps"] == 2
    for name in ("large", "larger"):
        assert sha256 in (tmp_path / name / "README.md").read_text()


def test_an_interrupted_command_goes_on(tmp_path, monkeypatch):
    """Files are whole; a folder that is not finished is enlarged no further."""
    monkeypatch.setattr("diffusers_dp.commands.upscale.IMAGES_PER_SHARD", 4)
    release, large = released(tmp_path / "run", 1, labelled=False), tmp_path / "large"
    pixels, labels, _ = upscale(release, large, "--resolution", "9")
    first, second = sorted((large / "data").iterdir())
    assert len(pixels) == 6 and labels is None
    kept = first.stat().st_mtime_ns
    second.unlink()
    with pytest.raises(SystemExit):
        upscale(large, tmp_path / "larger", "--resolution", "18")
    again, _, _ = upscale(release, large, "--resolution", "9")
    assert np.array_equal(again, pixels) and first.stat().st_mtime_ns == kept
    with pytest.raises(SystemExit):
        upscale(release, large, "--resolution", "10")  # another command


def unet(folder, **changes):
    config = {
        "sample_size": 16, "in_channels": 1, "out_channels": 1, "block_out_channels": (8,), "norm_num_groups": 8,
        "down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",), "add_attention": False, **changes,
    }  # fmt: skip
    made = UNet2DModel(**config)
    made.save_pretrained(folder)
    return made


def test_what_cannot_be_is_one_sentence(honest, tmp_path, capsys):
    release = released(tmp_path / "run", 1)
    network(tmp_path / "colour", 3)
    unet(tmp_path / "two", out_channels=2)
    unet(tmp_path / "classes", num_class_embeds=3)
    unet(tmp_path / "odd", sample_size=17, block_out_channels=(8, 8), down_block_types=("DownBlock2D",) * 2,
         up_block_types=("UpBlock2D",) * 2)  # fmt: skip
    broken = unet(tmp_path / "broken")
    torch.nn.init.constant_(broken.conv_out.bias, torch.nan)
    broken.save_pretrained(tmp_path / "broken")
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    for images, flags, message in (
        (release, "", "Give either --resolution"),
        (release, f"--resolution 16 --upscaler {tmp_path / 'colour'}", "Give either --resolution"),
        (release, "--resolution 8", "--resolution makes images of 8 pixels"),
        (release, "--resolution 100000", "at most"),
        (release, f"--upscaler {tmp_path / 'colour'}", "--upscaler takes images of 3 channels"),
        (release, f"--upscaler {tmp_path / 'two'}", "as many channels out as in"),
        (release, f"--upscaler {tmp_path / 'classes'}", "it asks for classes"),
        (release, f"--upscaler {tmp_path / 'odd'}", "holds no network that enlarges images"),
        (release, f"--upscaler {tmp_path / 'broken'}", "its weights are no numbers"),
        (release, f"--upscaler {tmp_path / 'none'}", "is not opened"),
        (release, f"--resolution 16 --output_dir {full}", "is not an empty folder"),
        (release, f"--resolution 16 --output_dir {release / 'large'}", "lies in the release"),
        (honest, "--resolution 64", "holds no images: draw some from a model"),
        (full, "--resolution 64", "holds no images"),
    ):  # fmt: skip
        with pytest.raises(SystemExit) as stopped:
            upscale(images, tmp_path / "large", *flags.split())
        said = capsys.readouterr().err.splitlines()[-1:]
        assert message in said[0] and stopped.value.code == 2, said
    assert not (tmp_path / "large").exists() and verify.report(release) == 0


@pytest.mark.parametrize("drawn", [False, True])
def test_what_is_forged_is_not_enlarged(drawn, honest, tmp_path, capsys):
    """Also a receipt that agrees with itself, but not with how the images were drawn."""
    images = released(tmp_path / "run", 1)
    if drawn:
        images = tmp_path / "drawn"
        run(honest, images)
    path = images / "privacy_receipt.json"
    receipt = json.loads(path.read_text())
    forgeries = [{**receipt, "events": [{**receipt["events"][0], "noise_multiplier": 0.01}]}]
    for forged in [*forgeries, *([{**receipt, "created_utc": "2020-01-01"}] if drawn else [])]:
        path.write_text(canonical_json(forged))
        with pytest.raises(SystemExit) as stopped:
            upscale(images, tmp_path / "large", "--resolution", "16")
        assert stopped.value.code == 4 and "was not enlarged" in capsys.readouterr().err
    assert not (tmp_path / "large").exists()
