# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Private Evolution, from its command line to a data set that anybody can load and check, and a model of it."""

import json
import shutil
from hashlib import sha256

import datasets
import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler, EDMDPMSolverMultistepScheduler
from PIL import Image

from diffusers_dp import SensitiveImages, load_verified, verify
from diffusers_dp.errors import UsageError
from diffusers_dp.files.sealed_folder import open_sealed
from diffusers_dp.models.pipeline_candidates import PipelineCandidates
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.queries.votes import hash_tensor
from diffusers_dp.release.push import files_to_push
from support import public_models
from support.flags import NUM_IMAGES
from support.public_models import save as save_pipeline
from support.runs import BITS_OF_A_CPU, files, independent_epsilon, read_ledger, write_images, write_public


METHOD = "pe"
TINY = (
    "--candidates_per_class 6 --variation_strengths 0.5,0.2 --images_per_class 4 --skip_preflight "
    f"--class_names left,empty,right --resolution 8 --num_channels 1 --num_train_images {NUM_IMAGES} --accountant rdp "
    "--target_epsilon 1 --generator public_images --public_margin 1"
).split()
MODEL = "--train_on_result --diffusion_steps 2 --block_out_channels 4,8 --num_inference_steps 1".split()


@pytest.fixture
def flags(tmp_path):
    public = write_public(tmp_path / "public", ("left", "right", "empty"))[:2]
    return [*TINY, *public, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")]


def answers(run):
    return [open_sealed(run / "private" / "answers" / f"votes_{t}")[1]["answer"]["answer"] for t in (1, 2)]


def candidates(run, generation):
    """Of a generation that was made at once."""
    return open_sealed(run / "private" / f"candidates_{generation}" / "00000000")[1]["kept"]["kept"]


def receipt_of(release):
    return json.loads((release / "privacy_receipt.json").read_text())


def test_a_data_set_is_released(script, flags, tmp_path):
    """A row for each generation under one noise multiplier; epsilon recomputed; images that `datasets` reads alone."""
    script.main(flags)
    run, release = tmp_path / "run", tmp_path / "run" / "release"
    header, rows = read_ledger(run)
    assert [(row["stage"], row["query"]["sensitivity"], row["steps_reserved"]) for row in rows] == [
        ("votes_1", 1.0, 1), ("votes_2", 1.0, 1)
    ]  # fmt: skip
    assert len({row["noise_multiplier"] for row in rows}) == 1
    assert 0.7 < independent_epsilon(run) <= header["target_epsilon"] + 1e-3
    assert verify.report(release) == 0
    images = load_verified(release)
    assert images.num_rows == 12 and images["label"] == [0, 1, 2] * 4, "as many of each class, whatever there is"
    assert images[0]["image"].size == (8, 8) and images.features["label"].names == ["left", "empty", "right"]
    alone = datasets.load_dataset(str(release), split="train", cache_dir=str(tmp_path / "cache"))
    assert alone.features == images.features and alone["image"][3].tobytes() == images["image"][3].tobytes()
    receipt = receipt_of(release)
    assert receipt["public_inputs"][0]["licence"] == "cc0-1.0" and receipt["public_inputs"][0]["num_images"] == 6
    assert receipt["curriculum"]["variation_strengths"] == [0.5, 0.2] and str(tmp_path) not in json.dumps(receipt)
    assert files_to_push(release) == ["README.md", "privacy_receipt.json", *sorted(
        files(release) - {"README.md", "privacy_receipt.json"}, key=lambda name: (name[0] != "m", name[0] != "s")
    )]  # fmt: skip
    assert "derived_from" not in receipt


def test_a_stopped_run_goes_on_from_its_answers(script, flags, tmp_path, monkeypatch):
    """Stopped after the first votes: these are not asked again, and the candidates are those that were voted for."""
    ask, asked = SensitiveImages.noisy_sum, []

    def second_fails(door, *others, **options):
        asked.append(options["name"])
        if options["name"] == "votes_2":
            raise KeyboardInterrupt
        return ask(door, *others, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(SensitiveImages, "noisy_sum", second_fails)
        script.main(flags)
    run = tmp_path / "run"
    before = {number: sha256(candidates(run, number).numpy()).hexdigest() for number in (1, 2)}
    again = []
    with monkeypatch.context() as patch:
        patch.setattr(
            SensitiveImages, "noisy_sum", lambda door, *o, **k: (again.append(k["name"]), ask(door, *o, **k))[1]
        )
        script.main([*flags, "--resume_from_checkpoint", "latest"])
    assert asked == ["votes_1", "votes_2"] and again == ["votes_2"]
    for number, digest in before.items():
        state, _ = open_sealed(run / "private" / "answers" / f"votes_{number}")
        assert state["query"]["candidates_sha256"] == digest
    assert verify.report(run / "release") == 0 and len(read_ledger(run)[1]) == 2
    with pytest.raises(UsageError, match="--vote_threshold is 0.5, and this run began with 2.0: give 2.0"):
        script.main([*flags, "--resume_from_checkpoint", "latest", "--vote_threshold", "0.5"])
    others = [*flags, "--resume_from_checkpoint", "latest", "--public_margin", "0"]
    with pytest.raises(UsageError, match="candidates_1/00000000 was made with other flags"):
        script.main(others)
    for kept in ("candidates_1", "embedded_1"):
        shutil.rmtree(run / "private" / kept)
    with pytest.raises(UsageError, match="candidates_sha256 .* start another --output_dir"):
        script.main(others)


def test_two_runs_of_one_seed_get_other_noise(script, flags, tmp_path):
    """The first candidates are equal, also where all images are of one class, and no answer is: the public code seeds
    its noise."""
    one_class = tmp_path / "one_class"
    shutil.copytree(tmp_path / "images" / "left", one_class / "left")
    given = {"one": [], "two": [], "other": ["--train_data_dir", str(one_class)]}
    for name, images in given.items():
        script.main([*flags, *images, "--output_dir", str(tmp_path / name), "--vote_threshold", "0"])
    kept = [candidates(tmp_path / name, 1) for name in given]
    assert torch.equal(kept[0], kept[1]) and torch.equal(kept[0], kept[2])
    assert not torch.equal(answers(tmp_path / "one")[0], answers(tmp_path / "two")[0])


@BITS_OF_A_CPU
def test_images_follow_noisy_votes_alone(script, flags, tmp_path, monkeypatch):
    """Given the noisy votes, no other number of the sensitive images reaches candidates or release: with others in
    their place, all are the same to the bit."""
    asked = []

    def replayed(door, *others, **options):
        asked.append(noisy_sum(door, *others, **options).shape)
        return torch.randn(asked[-1], generator=torch.Generator().manual_seed(len(asked)))

    noisy_sum = SensitiveImages.noisy_sum
    monkeypatch.setattr(SensitiveImages, "noisy_sum", replayed)
    seen = []
    for kind in ("as they are", "inverted"):
        asked.clear()
        given, run = write_images(tmp_path / kind), tmp_path / f"run, {kind}"
        for path in sorted((tmp_path / kind).rglob("*.png")) if kind == "inverted" else ():
            Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
        script.main([*flags, *given, *MODEL, "--output_dir", str(run)])
        kept = [hash_tensor(candidates(run, number)) for number in (1, 2, 3)]
        drawn = load_verified(run / "release")
        weights = (run / "model" / "release" / "unet" / "diffusion_pytorch_model.safetensors").read_bytes()
        seen.append((kept, [image.tobytes() for image in drawn["image"]], drawn["label"], weights))
        assert len(asked) == 2
    assert seen[0] == seen[1]


def test_a_model_of_the_result_costs_nothing_more(script, flags, tmp_path, monkeypatch):
    """It looks at nothing but the released images; its receipt names its parent, and has the parent's events once."""
    door = {}

    def keep(self, *others, **options):
        door["images"] = self
        return noisy_sum(self, *others, **options)

    noisy_sum = SensitiveImages.noisy_sum
    monkeypatch.setattr(SensitiveImages, "noisy_sum", keep)
    from diffusers_dp.runs import result_model

    def closed(*others, **options):
        for name in ("_records", "_generator"):
            delattr(door["images"], name)
        shutil.rmtree(tmp_path / "images")
        return model_of_images(*others, **options)

    model_of_images = result_model.model_of_images
    monkeypatch.setattr(result_model, "model_of_images", closed)
    script.main([*flags, *MODEL])
    parent, child = tmp_path / "run" / "release", tmp_path / "run" / "model" / "release"
    assert verify.report(parent) == verify.report(child) == 0
    assert isinstance(load_verified(child), DPImagePipeline)
    first, second = receipt_of(parent), receipt_of(child)
    assert second["derived_from"] == verify.receipt_digest(parent / "privacy_receipt.json")
    for fact in ("events", "claimed_epsilon", "delta", "public_inputs"):
        assert second[fact] == first[fact]
    assert [file["name"] for file in second["files"]] != [file["name"] for file in first["files"]]
    (child / "privacy_receipt.json").write_text(json.dumps({**second, "derived_from": ["none"]}))
    assert any("derived_from" in problem for problem in verify.verify(child)[1])


def test_text_needs_no_images_at_all(script, flags, tmp_path):
    """Rendered names of classes, which are words and so have to be asked for, look-ahead and several votes."""
    given = flags[: flags.index("--generator")] + flags[flags.index("--train_data_dir") :]
    script.main([*given, "--generator", "text", "--lookahead", "2", "--num_votes", "3"])
    receipt = receipt_of(tmp_path / "run" / "release")
    assert receipt["public_inputs"][0]["kind"] == "fonts" and receipt["curriculum"]["lookahead"] == 2
    assert verify.report(tmp_path / "run" / "release") == 0


@pytest.mark.parametrize("scheduler", [DDPMScheduler(), EDMDPMSolverMultistepScheduler(sigma_data=0.5)])
def test_a_public_model_proposes_and_varies(scheduler, script, flags, tmp_path, monkeypatch):
    """SDEdit of falling strength: the less noise, the nearer a child is; hash and licence are in the receipt."""
    model = save_pipeline(tmp_path / "model", scheduler, in_channels=1, out_channels=1)
    given = flags[: flags.index("--generator")] + flags[flags.index("--train_data_dir") :]
    pipeline = ["--generator", "pipeline", "--pretrained_model_name_or_path", model]
    script.main([*given, *pipeline])
    receipt = receipt_of(tmp_path / "run" / "release")
    assert receipt["public_inputs"][0]["licence"] == "apache-2.0" and verify.report(tmp_path / "run" / "release") == 0
    loaded = public_models.load(model, shape=(1, 8, 8))
    pipeline = DPImagePipeline(loaded.unet, loaded.scheduler)
    proposer = PipelineCandidates(pipeline, (1, 8, 8), 10, facts={}, public_inputs=[])
    labels, draws = torch.zeros(6, dtype=torch.long), torch.arange(6)
    first = proposer.initial(labels, draws)
    assert first.dtype == torch.uint8 and first.shape == (6, 1, 8, 8) and not torch.equal(first[0], first[1])
    far = [(proposer.vary(first, labels, strength, draws).float() - first).abs().mean() for strength in (0, 0.1, 0.9)]
    assert far[0] == 0 <= far[1] < far[2], "the noise of the last step may be less than half a level"
    alone = [proposer.initial(labels[:2], draws[part]) for part in (slice(0, 2), slice(2, 4), slice(4, 6))]
    assert (torch.cat(alone).float() - first).abs().max() <= 1, "rounding aside, whatever the batch"
