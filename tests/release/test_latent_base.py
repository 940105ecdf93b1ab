# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A base is loaded from the files whose hashes a release states, and from nothing else that lies beside them."""

import json
import shutil

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import CLIPTextModel

from diffusers_dp import load_verified, verify
from diffusers_dp.cli import main as cli
from diffusers_dp.errors import UsageError
from diffusers_dp.models.adapters import choose_trained
from diffusers_dp.release.build import build_release
from diffusers_dp.release.latent_artefacts import LatentArtefact
from diffusers_dp.release.latent_base import load_base
from diffusers_dp.release.receipt import RunRecord
from support.few import few
from support.latent_releases import draw_samples, latent_release
from support.latents import stable_diffusion
from support.releases import made_up, make_ledger


NAMES = {0: "a", 1: "b"}
WEIGHTS, SHARD = "diffusion_pytorch_model.safetensors", "diffusion_pytorch_model-00001-of-00001.safetensors"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return stable_diffusion(tmp_path_factory.mktemp("base") / "honest")


@pytest.fixture(scope="module")
def release(base, tmp_path_factory):
    """Adapters of the base."""
    folder = tmp_path_factory.mktemp("run")
    found = load_base(str(base))
    denoiser = found.denoiser(NAMES, None)
    choose_trained(denoiser.network, "lora", rank=2, targets=())
    origins = [{**found.origin, "saw_training_images": "unknown"}]
    artefact = LatentArtefact(found, denoiser, id2label=NAMES, prompts=None, merge=False, draw_samples=draw_samples)
    return build_release(
        folder,
        artefact,
        RunRecord(ledger=make_ledger(folder), method=made_up("dp_lora"), public_inputs=origins),
    )


@pytest.fixture
def swapped(base, tmp_path):
    return shutil.copytree(base, tmp_path / "swapped")


def test_no_safety_checker_is_fetched(base, tmp_path, monkeypatch):
    """Of a pipeline on the Hub, only what is used: a checker of Stable Diffusion alone has a gigabyte."""
    there = shutil.copytree(base, tmp_path / "there")
    shutil.copytree(there / "unet", there / "safety_checker")

    def snapshot_download(name, *, allow_patterns, **_):
        found = filter_repo_objects(
            [str(path.relative_to(there)) for path in there.rglob("*.*")], allow_patterns=allow_patterns
        )
        for file in found:
            (tmp_path / "here" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(there / file, tmp_path / "here" / file)
        return str(tmp_path / "here")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert load_base("someone/latents").files == load_base(str(base)).files
    assert not (tmp_path / "here" / "safety_checker").exists()


def other_weights(path):
    return {name: torch.zeros_like(value) for name, value in load_file(path).items()}


def index_of(weights, shard):
    size = sum(value.numel() * value.element_size() for value in weights.values())
    return json.dumps({"metadata": {"total_size": size}, "weight_map": dict.fromkeys(weights, str(shard))})


def shards_of(component):
    """An index file, which Diffusers takes for the weights, and what it names."""

    def add(base):
        place = base / component
        weights = other_weights(place / WEIGHTS)
        save_file(weights, place / SHARD, {"format": "pt"})
        (place / f"{WEIGHTS}.index.json").write_text(index_of(weights, SHARD))

    return add


def adapter_of_text(base):
    """Low-rank matrices that transformers puts onto the text encoder by itself."""
    place = base / "text_encoder"
    adapted = get_peft_model(
        CLIPTextModel.from_pretrained(place), LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    )
    adapted.save_pretrained(place)


def other_words(base):
    """Files that a tokenizer reads where they are there."""
    (base / "tokenizer" / "added_tokens.json").write_text(json.dumps({"a": 3, "b": 4}))
    (base / "tokenizer" / "special_tokens_map.json").write_text(json.dumps({"bos_token": "z", "eos_token": "z"}))


SWAPS = {
    "index of the network": shards_of("unet"), "index of the autoencoder": shards_of("vae"),
    "adapter of the text encoder": adapter_of_text, "other words": other_words,
}  # fmt: skip


def everything(pipeline):
    """All numbers of a model: of the network, of the conditions that were encoded from texts, of the autoencoder."""
    found = {f"vae.{key}": value for key, value in pipeline.vae.state_dict().items()}
    return found | dict(pipeline.unet.named_parameters()) | dict(pipeline.unet.named_buffers())


@pytest.mark.parametrize("swap", few(SWAPS))
def test_what_lies_beside_the_stated_files_changes_nothing(swap, base, swapped, release, tmp_path, capsys):
    """`verify` says that the files are the stated ones, and these alone are loaded and drawn from."""
    SWAPS[swap](swapped)
    assert verify.report(release, base=swapped) == 0 and "its files are the stated ones" in capsys.readouterr().out
    honest, found = (everything(load_verified(release, base=place)) for place in (base, swapped))
    assert honest.keys() == found.keys() and all(torch.equal(honest[name], found[name]) for name in honest)
    drawn = []
    for place in (base, swapped):
        folder = tmp_path / f"drawn from {place.name}"
        command = ["sample", str(release), "--num_images", "2", "--num_inference_steps", "1", "--seed", "3"]
        cli([*command, "--base", str(place), "--output_dir", str(folder)])
        drawn.append([path.read_bytes() for path in sorted(folder.rglob("*.png"))])
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(("component", "weights"), [("unet", WEIGHTS), ("text_encoder", "model.safetensors")])
@pytest.mark.parametrize("relative", [True, False])
def test_an_index_that_names_files_outside_is_refused(component, weights, relative, swapped, tmp_path):
    """Its own hash would be stated, and that of the weights nowhere."""
    place, outside = (
        swapped / component,
        "../../elsewhere.safetensors" if relative else tmp_path / "elsewhere.safetensors",
    )
    found = other_weights(place / weights)
    save_file(found, place / outside, {"format": "pt"})
    (place / f"{weights}.index.json").write_text(index_of(found, outside))
    (place / weights).rename(place / weights.replace(".", "-00001-of-00002."))
    with pytest.raises(UsageError, match=f"{component}: {weights}.index.json names weights that are not beside it"):
        load_base(str(swapped))


def test_adapters_in_a_base_are_neither_loaded_nor_stated(base, swapped):
    adapter_of_text(swapped)
    honest, found = load_base(str(base)), load_base(str(swapped))
    assert honest.files == found.files
    texts = [each.pipeline.text_encoder.state_dict() for each in (honest, found)]
    assert all(torch.equal(value, texts[1][name]) for name, value in texts[0].items()) and len(texts[1]) == len(
        texts[0]
    )


def test_a_base_may_be_a_release(base, tmp_path):
    """Its index carries a privacy statement, which the stated hash leaves out."""
    merged = latent_release(tmp_path / "merged", base, merge=True)
    adapters = latent_release(tmp_path / "adapters", merged)
    assert verify.report(adapters, base=merged) == 0 and load_verified(adapters, base=merged).num_classes == 2


def test_shards_that_are_all_stated_are_loaded(swapped):
    """As large bases have them: by an index, whose hash is stated, too."""
    shards_of("unet")(swapped)
    (swapped / "unet" / WEIGHTS).unlink()
    found = load_base(str(swapped))
    assert {f"unet/{WEIGHTS}.index.json", f"unet/{SHARD}"} <= {file["name"] for file in found.files}
    assert not any(np.any(value.numpy()) for value in found.network.state_dict().values())
