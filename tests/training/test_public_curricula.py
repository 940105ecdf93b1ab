# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Public images or a public model before the warm-up: PDP-Diffusion-Pro, DP-FETA after or mixed with public images;
resumed; refused."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from diffusers import DDIMScheduler

from diffusers_dp.data.public_images import PublicImages
from diffusers_dp.errors import UsageError
from diffusers_dp.methods.method_flags import DPFETAConfig
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.runs.pretrained import WEIGHTS, keep_pretrained, learned_or_public
from diffusers_dp.runs.warm_up import CentralImages, MixedImages
from diffusers_dp.verify import verify
from support.flags import TINY_RUN
from support.public_models import make_unet
from support.runs import PowerCut, cut_power_at, independent_epsilon, load, read_ledger, write_images, write_public


OWN = {
    "feta_pro": (
        "--spatial_steps 2 --num_central_images 3 --frequency_steps 2 --generator_steps 2 --expert "
        "num_auxiliary_images=20 "
        "--num_frequency_features 50 --expert generator_channels=4,frequency_batch_size=8"
    ).split(),
    "dp_feta": "--spatial_steps 2 --num_central_images 3".split(),
}
ASKED = {"feta_pro": ["central_images", "frequency_features"], "dp_feta": ["central_images"]}


@pytest.fixture(params=OWN)
def method(request):
    return request.param


@pytest.fixture
def script(method, monkeypatch):
    return load(method, monkeypatch)


@pytest.fixture
def flags(method, tmp_path):
    data = write_images(tmp_path / "images")
    return [*TINY_RUN, *OWN[method], *data, "--checkpointing_steps", "1", "--output_dir", str(tmp_path / "run")]


def check_release(tmp_path, method):
    receipt, problems = verify(tmp_path / "run" / "release")
    header, rows = read_ledger(tmp_path / "run")
    assert problems == [] and [row["stage"] for row in rows] == [*ASKED[method], "dp_sgd", "dp_sgd"]
    assert independent_epsilon(tmp_path / "run") <= header["target_epsilon"] + 1e-3
    return receipt


@pytest.mark.parametrize("method", ["feta_pro"], indirect=True)
def test_resuming_in_the_warm_up(method, script, flags, tmp_path, monkeypatch):
    """Public images are not learned, nor read, twice; the warm-up goes on from what they taught."""
    flags += write_public(tmp_path / "public")
    with monkeypatch.context() as patch:
        cut_power_at(patch, script, 4)
        with pytest.raises(PowerCut):
            script.main(flags)
    kept = (tmp_path / "run" / "private" / "pretrained" / "unet" / WEIGHTS).read_bytes()
    shutil.rmtree(tmp_path / "public")
    script.main([*flags, "--resume_from_checkpoint", "latest"])
    assert check_release(tmp_path, method)["public_inputs"][0]["num_images"] == 6
    assert (tmp_path / "run" / "private" / "pretrained" / "unet" / WEIGHTS).read_bytes() == kept


@pytest.mark.parametrize("method", ["dp_feta"], indirect=True)
def test_central_and_public_images_in_one_set(method, script, flags, tmp_path, monkeypatch):
    """DP-FETA's Table 3. What it taught is not kept as if it were public, and a resumed run still tells what it began
    with."""
    flags += [*write_public(tmp_path / "public"), "--mix_public_images", "--central_images", "mode"]
    with monkeypatch.context() as patch:
        cut_power_at(patch, script, 5)  # three steps of pre-training, and the second of DP-SGD
        with pytest.raises(PowerCut):
            script.main(flags)
    assert not (tmp_path / "run" / "private" / "pretrained").exists()
    shutil.rmtree(tmp_path / "public")
    script.main([*flags, "--resume_from_checkpoint", "latest"])
    receipt, problems = verify(tmp_path / "run" / "release")
    assert problems == []
    settings = {"central_images": "mode", "mix_public_images": True, "expert": {"public_batch_size": 4}}
    assert receipt["curriculum"] == settings
    assert (receipt["public_inputs"][0]["num_images"], receipt["public_inputs"][0]["steps"]) == (6, 3)
    assert receipt["resumes"] == [{"step": 1, "fresh_entropy": True}]
    assert receipt["events"][0]["stage"] == "mode_images"


def test_a_mixture_cannot_follow_public_images_alone(tmp_path):
    """The first start had no --mix_public_images and was interrupted after its pre-training: no images would be left
    to mix."""
    config = DPFETAConfig(public_data_dir="public", mix_public_images=True)
    run = SimpleNamespace(config=config, folder=SimpleNamespace(private=tmp_path), checkpoint=None)
    keep_pretrained(tmp_path, DPImagePipeline(make_unet(), DDIMScheduler()), {"kind": "public images"}, chosen=False)
    with pytest.raises(UsageError, match="--mix_public_images was not given at this run's first start"):
        learned_or_public(run, make_unet(), mixes=True)


def test_each_image_of_the_mixed_set_is_as_likely():
    """Public images have no label, central ones their class."""
    torch.manual_seed(0)
    central = CentralImages(torch.rand(2, 3, 1, 8, 8), (1, 8, 8), seed=0)
    central.images[:] = 120  # which no augmentation makes black
    public = PublicImages(torch.zeros(18, 1, 8, 8, dtype=torch.uint8), torch.zeros(18, dtype=torch.long), 1, {})
    mixed = MixedImages(central, public, null_label=3)
    batches = [mixed.batch(40) for _ in range(50)]
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert images.shape == (2000, 1, 8, 8) and images.min() == -1 and images.max() <= 1
    from_public = labels == 3
    assert torch.all(images[from_public] == -1) and torch.all(images[~from_public].flatten(1).amax(1) > -1)
    assert abs(from_public.float().mean() - 0.75) < 0.05 and set(labels.unique().tolist()) == {0, 1, 2, 3}
    assert mixed.batch(1)[0].shape == (1, 1, 8, 8)
