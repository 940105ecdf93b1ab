# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Public models to begin with: what is loaded, the class table that is added, and what is refused."""

import hashlib
import json
import os
import shutil

import huggingface_hub
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    EDMDPMSolverMultistepScheduler,
    UNet2DModel,
)
from safetensors.torch import load_file, save_file

from diffusers_dp.errors import UsageError
from diffusers_dp.runs.pretrained import FILES, WEIGHTS
from support.public_models import load, make_unet, save


def outputs(unet, labels=None):
    torch.manual_seed(1)
    with torch.no_grad():
        return unet(torch.randn(4, 3, 8, 8), torch.tensor([0, 3, 500, 999]), class_labels=labels).sample


@pytest.mark.parametrize("layout", ["folders", "one folder"])
def test_a_pipeline_with_its_scheduler_and_origin(tmp_path, layout):
    """Components in folders of their own, or beside each other as old ones on the Hub have them."""
    name = save(tmp_path / "model", DDPMScheduler(500, 2e-4, 0.03, prediction_type="v_prediction"))
    weights = (tmp_path / "model" / "unet" / WEIGHTS).read_bytes()
    if layout == "one folder":
        for path in [*tmp_path.glob("model/unet/*"), *tmp_path.glob("model/scheduler/*")]:
            shutil.move(path, tmp_path / "model" / path.name)
        (tmp_path / "model" / "unet").rmdir()
        (tmp_path / "model" / "scheduler").rmdir()
    model = load(name)
    assert model.objective == "ddpm" and model.patch_size == 1 and isinstance(model.scheduler, DDIMScheduler)
    kept = {key: model.scheduler.config[key] for key in ("num_train_timesteps", "beta_end", "prediction_type")}
    assert kept == {"num_train_timesteps": 500, "beta_end": 0.03, "prediction_type": "v_prediction"}
    assert torch.equal(outputs(model.unet), outputs(make_unet())) and model.unet.training
    assert model.origin == {
        "kind": "pre-trained model",
        "name": "local folder",
        "revision": None,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "licence": "apache-2.0",
    }


def test_an_index_beside_the_weights_replaces_none(tmp_path):
    """The receipt has the hash of the weights, and of nothing that an index names."""
    place = tmp_path / "model" / "unet"
    name = save(tmp_path / "model")
    others = {key: torch.zeros_like(value) for key, value in load_file(place / WEIGHTS).items()}
    save_file(others, place / "others.safetensors", {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(others, "others.safetensors")}
    (place / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    assert torch.equal(outputs(load(name).unet), outputs(make_unet()))


def test_from_the_hub_only_what_is_needed_and_no_code(tmp_path, monkeypatch):
    asked = {}

    def snapshot_download(name, **arguments):
        asked.update(arguments, name=name)
        folder = tmp_path / "snapshots" / ("ab" * 20)
        save(folder)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    origin = load("someone/ddpm", revision="main").origin
    assert (origin["name"], origin["revision"]) == ("someone/ddpm", "ab" * 20)
    assert asked == {
        "name": "someone/ddpm", "repo_type": "model", "revision": "main", "allow_patterns": list(FILES), "token": None
    }  # fmt: skip
    assert not any(pattern.endswith((".py", ".bin", "*")) for pattern in FILES)


# The class table.


def test_a_missing_class_table_changes_nothing_and_is_saved(tmp_path):
    """For every label and for the null label; it learns, and a saved model has it."""
    before = outputs(make_unet())
    unet = load(save(tmp_path / "model"), 5).unet
    for labels in ([0, 1, 2, 3], [4, 5, 5, 5]):
        torch.testing.assert_close(outputs(unet, torch.tensor(labels)), before)
    outputs_now = unet(torch.randn(2, 3, 8, 8), torch.tensor([1, 2]), class_labels=torch.tensor([0, 5])).sample
    outputs_now.square().sum().backward()
    moved = unet.class_embedding.weight.grad.norm(dim=1) > 0
    assert moved.tolist() == [True, False, False, False, False, True]
    unet.save_pretrained(tmp_path / "saved")
    again = UNet2DModel.from_pretrained(tmp_path / "saved")
    assert again.config.num_class_embeds == 6 and again.class_embedding.weight.shape == (6, 16)


# What is refused.

REFUSED = {
    "another size": (
        {"sample_size": 16}, "makes images of 3x16x16 .* yours are 3x8x8, .* --resolution 16 --num_channels 3",
    ),
    "no size": ({"sample_size": None}, "does not tell the size"),
    "another number of channels": (
        {"in_channels": 1, "out_channels": 1}, "makes images of 1x8x8 .*--num_channels 1",
    ),
    "learned variances": ({"out_channels": 6}, "6 output channels for 3"),
    "another conditioning": ({"class_embed_type": "timestep"}, "conditioned on 'timestep'"),
    "classes without labels": (
        {"num_class_embeds": 11}, "needs labels, and your images have none .--label_column",
    ),
    "another prediction": (
        {"scheduler": EDMDPMSolverMultistepScheduler(prediction_type="v_prediction")}, "predicts 'v_prediction'"
    ),
    "other noise levels": (
        {"scheduler": DDPMScheduler(beta_schedule="sigmoid")},
        r"sigmoid.*; choose another model",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_does_not_fit_is_refused(tmp_path, case):
    changes, sentence = REFUSED[case]
    with pytest.raises(UsageError, match=sentence) as refusal:
        load(save(tmp_path, **changes))
    assert str(refusal.value).startswith("--pretrained_model_name_or_path") and "\n" not in str(refusal.value)


def test_batch_norm_is_refused(tmp_path, monkeypatch):
    """Its statistics are over the batch: one image would move every gradient. Diffusers saves none; another class of
    it might."""
    name, unet = save(tmp_path), make_unet().eval()
    unet.conv_norm_out = torch.nn.BatchNorm2d(4)
    monkeypatch.setattr(UNet2DModel, "from_pretrained", lambda *_, **__: (unet, {}))
    with pytest.raises(
        UsageError, match=r"BatchNorm2d \('conv_norm_out'\) computes statistics over a batch.*; choose another model\."
    ):
        load(name)


def only_a_pickle(folder):
    weights = folder / "unet" / WEIGHTS
    torch.save({"a": os.system}, weights.with_name("diffusion_pytorch_model.bin"))
    weights.unlink()


def edit_index(folder, **changes):
    path = folder / "model_index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


BROKEN = {
    "no scheduler": (lambda f: (f / "scheduler" / "scheduler_config.json").unlink(), "has no scheduler_config.json"),
    "only a pickle": (only_a_pickle, "pickles are not loaded: save it again with safetensors"),
    "no patches": (
        lambda f: edit_index(f, patch_size=0),
        "tell the size of its images; choose another model",
    ),
    "its own code": (lambda f: edit_index(f, unet=["own_code", "UNet2DModel"]), "no pipeline of a UNet2DModel"),
    "another network": (lambda f: edit_index(f, unet=["diffusers", "UNet2DConditionModel"]), "no pipeline of"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_folder_that_is_no_such_pipeline_is_refused(tmp_path, case):
    spoil, sentence = BROKEN[case]
    save(tmp_path)
    spoil(tmp_path)
    with pytest.raises(UsageError, match=sentence):
        load(str(tmp_path))


def test_dropout_is_switched_off(tmp_path):
    """Its masks would come from torch's seeded generator, and what decides over a gradient must be secret."""
    unet = load(save(tmp_path, dropout=0.5)).unet
    images, time = torch.randn(4, 3, 8, 8), torch.tensor([0, 3, 500, 999])
    with torch.no_grad():
        assert unet.training and torch.equal(unet(images, time).sample, unet(images, time).sample)
    assert unet.config.dropout == 0
