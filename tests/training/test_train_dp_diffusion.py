# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`train_dp_diffusion.py`: from public images, from a pre-trained pipeline; resumed; and what is
refused."""

import hashlib
import json
import shlex
import shutil

import datasets
import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, UNet2DModel
from PIL import Image
from safetensors.torch import load_file

from diffusers_dp import load_verified
from diffusers_dp.data.public_images import refuse_the_same_files
from diffusers_dp.errors import UsageError
from diffusers_dp.methods.method_flags import DPDiffusionConfig
from diffusers_dp.models.denoiser import DDPMLoss
from diffusers_dp.models.row_augmentation import AugmentedLoss
from diffusers_dp.release.allow_list import RELEASE_FILES
from diffusers_dp.runs.pretrained import WEIGHTS
from support.flags import NUM_IMAGES, RESUME
from support.public_models import save
from support.runs import (
    PRETRAINING,
    files,
    independent_epsilon,
    read_ledger,
    receipt_of,
    status,
    write_public,
)


METHOD = "dp_diffusion"
FLAGS = (
    "--block_out_channels 8,16 --max_train_steps 2 --num_inference_steps 2 --train_batch_size 8 --class_names "
    f"left,empty,right --resolution 8 --num_channels 1 --num_train_images {NUM_IMAGES} --accountant rdp "
    "--target_epsilon 1 --noise_multiplicity 3 --skip_preflight --expert timestep_mixture="
    "0-200:0.05,200-800:0.9,800-1000:0.05 --augmentations flip,crop --checkpointing_steps 1"
).split()


def check_release(tmp_path):
    release = tmp_path / "run" / "release"
    assert files(release) == set(RELEASE_FILES)
    pipeline = load_verified(release)
    assert isinstance(pipeline.scheduler, DDIMScheduler) and pipeline.num_classes == 3
    _, rows = read_ledger(tmp_path / "run")
    assert [(row["stage"], row["state"], row["query"]["noise_multiplicity"]) for row in rows] == [
        ("dp_sgd", "executed", 3)
    ] * 2
    assert independent_epsilon(tmp_path / "run") <= 10
    assert len(pipeline(class_labels=["left", "empty"], num_inference_steps=2).images) == 2
    return pipeline


def test_from_public_images_to_release(script, flags, tmp_path, capsys):
    """The public images have labels of their own; they are in the receipt, and so is no path."""
    times = ["--expert", "public_timestep_mixture=0-30:.03,30-800:.77,800-1000:.2"]
    script.main([*flags, *write_public(tmp_path / "public"), *times])
    check_release(tmp_path)
    (origin,) = receipt_of(tmp_path / "run")["public_inputs"]
    facts = {"kind": "public images", "name": "local folder", "num_images": 6, "licence": "cc0-1.0", "steps": 3}
    assert origin | facts | {"batch_size": 4, "learning_rate": 1e-3} == origin
    assert str(tmp_path) not in (tmp_path / "run" / "release" / "privacy_receipt.json").read_text()
    out = capsys.readouterr().out
    assert "public pre-training" in out and "Released" in out
    assert status(tmp_path / "run") == {"exit_code": 0, "message": "done"}
    # What public images taught is a pipeline that another run may begin with, and not what was released.
    kept = load_file(tmp_path / "run" / "private" / "pretrained" / "unet" / WEIGHTS)
    released = load_file(tmp_path / "run" / "release" / "unet" / WEIGHTS)
    assert kept["class_embedding.weight"].shape == (4, 32)
    assert not torch.equal(kept["conv_in.weight"], released["conv_in.weight"])
    again = tmp_path / "again"
    kept = str(tmp_path / "run" / "private" / "pretrained")
    script.main([*flags, "--output_dir", str(again), "--pretrained_model_name_or_path", kept])
    (model,) = json.loads((again / "release" / "privacy_receipt.json").read_text())["public_inputs"]
    assert model["kind"] == "pre-trained model" and model["trained_on"] == origin


def test_the_published_network(script, flags, tmp_path):
    """Heads of a given width and adaptive group normalisation reach the release, and a run goes on with them alone.
    Their weights have the shapes of other heads, so only the run's flags can tell."""
    heads = "--attention_resolutions 4 --expert attention_head_dim=4,resnet_time_scale_shift=scale_shift".split()
    script.main([*flags, *heads])
    unet = check_release(tmp_path).unet
    (first, *_), attention = unet.down_blocks[1].resnets, unet.mid_block.attentions[0]
    assert first.time_emb_proj.out_features == 2 * 16 and first.time_embedding_norm == "scale_shift"
    assert (attention.heads, attention.group_norm.num_groups) == (4, unet.config.norm_num_groups)
    shutil.rmtree(tmp_path / "run" / "release")
    with pytest.raises(UsageError, match="expert attention_head_dim is None, and this run began with 4"):
        script.main([*flags, *heads[:-1], "resnet_time_scale_shift=scale_shift", *RESUME])
    script.main([*flags, *heads, *RESUME])
    check_release(tmp_path)


def test_from_a_pretrained_pipeline_to_release(script, flags, tmp_path):
    """A `DDPMPipeline` without classes, as Diffusers' own training example makes it."""
    name = save(tmp_path / "model", in_channels=1, out_channels=1)
    script.main([*flags, "--pretrained_model_name_or_path", name])
    pipeline = check_release(tmp_path)
    assert pipeline.unet.config.block_out_channels == [4, 8]  # the model's, not the flags'
    (origin,) = receipt_of(tmp_path / "run")["public_inputs"]
    weights = (tmp_path / "model" / "unet" / WEIGHTS).read_bytes()
    assert origin["weights_sha256"] == hashlib.sha256(weights).hexdigest() and origin["licence"] == "apache-2.0"
    assert "licence: apache-2.0" in (tmp_path / "run" / "release" / "README.md").read_text()
    before = UNet2DModel.from_pretrained(tmp_path / "model" / "unet").conv_in.weight
    moved = (pipeline.unet.conv_in.weight - before).norm() / before.norm()
    assert 0 < moved < 0.5  # it went on from there


@pytest.mark.usefixtures("watching")
def test_labels_of_the_pretraining(script, flags, tmp_path, monkeypatch):
    """Public classes while it lasts, the null label where there are none; then the sensitive images' own. And
    `--augmentations` are of the sensitive images' draws: Table 3 has none in the pre-training."""
    tables, call = [], DDPMLoss.__call__
    augmented, augment = [], AugmentedLoss.augment

    def watched_augment(self, images, generator=None):
        augmented.append(generator is not None)
        return augment(self, images, generator)

    def watched(self, denoiser, images, labels, generator=None):
        tables.append((denoiser.unet.config.num_class_embeds, labels.max().item(), generator is None))
        return call(self, denoiser, images, labels, generator)

    monkeypatch.setattr(DDPMLoss, "__call__", watched)
    monkeypatch.setattr(AugmentedLoss, "augment", watched_augment)
    classes = tuple("abcdef")
    script.main([*flags, *write_public(tmp_path / "public", classes), "--expert", "public_batch_size=40"])
    assert tables[:3] == [(7, 5, True)] * 3 and {table[0] for table in tables[3:]} <= {4}
    assert augmented and all(augmented)
    tables.clear()
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, path in enumerate((tmp_path / "public").glob("*/*.png")):
        shutil.copy(path, flat / f"{number}.png")
    script.main([*flags, "--public_dataset_name", str(flat), *PRETRAINING, "--output_dir", str(tmp_path / "other")])
    assert tables[:3] == [(4, 3, True)] * 3


# What is refused: one sentence, nothing written.


def refusal(script, flags, tmp_path):
    with pytest.raises(UsageError) as stop:
        script.main(flags)
    assert "\n" not in str(stop.value) and not list(tmp_path.glob("run/*"))
    return str(stop.value)


SAME_FILES = "--public_data_dir holds data files of the sensitive images, under another name"


def test_public_images_that_are_the_sensitive_ones_are_refused(script, flags, tmp_path):
    """By name, by folder, by files: copies under other names, links, also among others, and a part of them."""
    same = tmp_path / "images"
    assert "is the sensitive data itself" in refusal(script, [*flags, "--public_data_dir", str(same)], tmp_path)
    assert "is the sensitive data itself" in refusal(script, [*flags, "--public_data_dir", f"{same}/left"], tmp_path)
    copied, part = tmp_path / "copy", tmp_path / "part"
    for number, path in enumerate(sorted(same.glob("*/*.png"))):
        for folder in (copied, *([part] if number == 7 else [])):
            (folder / "all").mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / "all" / f"{number}.png")
    (tmp_path / "link").symlink_to(copied)
    for folder in (copied, part, tmp_path / "link"):
        assert SAME_FILES in refusal(script, [*flags, "--public_data_dir", str(folder)], tmp_path)
    write_public(copied, ("left",), count=NUM_IMAGES)
    assert SAME_FILES in refusal(script, [*flags, "--public_data_dir", str(copied)], tmp_path)
    for ids in (("ylecun/mnist", "YLeCun/MNIST"), ("ylecun/mnist", "mnist"), ("mnist", "ylecun/mnist ")):
        names = ["--dataset_name", ids[0], "--public_dataset_name", ids[1], "--output_dir", str(tmp_path / "run")]
        assert "is the sensitive data itself" in refusal(script, [*FLAGS, *names], tmp_path)


def write_shards(folder, *shards):
    """A data set of parquet files, each of as many images drawn from one seed; their names say nothing."""
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["left", "empty", "right"])}
    )
    folder.mkdir()
    for number, seed in enumerate(shards):
        pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 8), dtype=np.uint8)
        rows = {"image": [Image.fromarray(image) for image in pixels], "label": [0, 1, 2] * 2}
        name = f"train-{number:05}-of-{len(shards):05}.parquet"
        datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / name)
    return str(folder)


def shard_config(sensitive, public):
    names = {"dataset_name": sensitive, "public_dataset_name": public, "class_names": "left,empty,right"}
    config = DPDiffusionConfig(**names, resolution=8, num_channels=1)
    return config.public_training.images, config.data


def test_a_file_of_many_images_in_common_is_refused(tmp_path):
    sensitive = write_shards(tmp_path / "sensitive", 1, 2)
    other, one, saved = write_shards(tmp_path / "other", 3), write_shards(tmp_path / "one", 4, 2), tmp_path / "saved"
    refuse_the_same_files(*shard_config(sensitive, other))
    with pytest.raises(UsageError, match="--public_dataset_name holds data files of the sensitive images"):
        refuse_the_same_files(*shard_config(sensitive, one))
    datasets.load_dataset(other, split="train", cache_dir=str(tmp_path / "cache")).save_to_disk(saved)
    shutil.copytree(saved, tmp_path / "again")
    with pytest.raises(UsageError, match="--public_dataset_name holds"):
        refuse_the_same_files(*shard_config(str(saved), str(tmp_path / "again")))


def test_no_single_image_decides_whether_a_run_starts(script, flags, tmp_path):
    """All image files but one in common: with that one image, broken, or not there, the same happens."""
    public = tmp_path / "public"
    write_public(public, ("left",), count=3)
    first = sorted((tmp_path / "images").glob("*/*.png"))[0]
    shutil.copy(first, public / "left" / "one_in_common.png")
    config = DPDiffusionConfig(
        train_data_dir=str(tmp_path / "images"), class_names="left,empty,right", public_data_dir=str(public)
    )
    refuse_the_same_files(config.public_training.images, config.data)
    first.write_bytes(b"broken")
    refuse_the_same_files(config.public_training.images, config.data)
    first.unlink()
    refuse_the_same_files(config.public_training.images, config.data)
    first.symlink_to(tmp_path / "absent")
    refuse_the_same_files(config.public_training.images, config.data)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("--public_data_dir {tmp}/nothing", "--public_data_dir holds no image that can be read"),
        ("--public_data_dir {tmp}/a --pretrained_model_name_or_path b", "exclude each other"),
        ("--pretrained_model_name_or_path {tmp}/small", "makes images of 3x8x8"),
        ("--pretrained_model_name_or_path {tmp}/grey --objective edm", "--objective edm contradicts"),
        (
            "--expert timestep_mixture=0-200:.5,300-1000:.5",
            "--expert timestep_mixture is '0-200:.5,300-1000:.5'; give intervals that cover 0 to 1000",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(script, flags, tmp_path, monkeypatch, given, sentence):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "nothing" / "a").mkdir(parents=True)
    if "small" in given:
        save(tmp_path / "small")
    if "grey" in given:
        save(tmp_path / "grey", in_channels=1, out_channels=1)
    given = shlex.split(given.format(tmp=tmp_path))
    assert sentence.format(tmp=tmp_path) in refusal(script, [*flags, *given], tmp_path)
