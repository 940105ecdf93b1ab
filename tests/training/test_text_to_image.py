# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Private Evolution with public text-to-image pipelines and the embeddings of public networks, through the real
loaders: tiny ones, with weights of noise."""

import json
import shutil

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionImg2ImgPipeline, StableDiffusionPipeline
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPModel

from diffusers_dp import SensitiveImages, load_verified, verify
from diffusers_dp.errors import UsageError
from diffusers_dp.files.sealed_folder import open_sealed
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.models.pipeline_candidates import TextToImageCandidates, at_once
from diffusers_dp.queries.pooled import PooledFeatures
from diffusers_dp.release.latent_base import KINDS, load_base
from support.feature_networks import save_clip
from support.few import few
from support.flags import RESUME
from support.latents import stable_diffusion, stable_diffusion_xl
from support.places import ROOT
from support.processes import launch
from support.public_models import save as save_pipeline
from support.runs import read_ledger, receipt_of


METHOD = "pe"
CLASSES, NUMBER = ("left", "empty", "right"), 30
TINY = (
    "--candidates_per_class 5 --variation_strengths 0.8,0.4 --images_per_class 3 --skip_preflight --resolution 16 "
    f"--class_names left,empty,right --num_channels 3 --num_train_images {NUMBER} --accountant rdp --target_epsilon 1 "
    "--expert generator_inference_steps=3 --expert generator_batch_size=4"
).split()
XL = "StableDiffusionXLPipeline"


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipelines")
    made = stable_diffusion(folder / "1", 3), stable_diffusion_xl(folder / "xl")
    (made[1] / "README.md").write_text("---\nlicense: openrail++\n---\n")
    return dict(zip(KINDS, made, strict=True))


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return save_clip(tmp_path_factory.mktemp("networks") / "clip")


def colours(folder):
    """In two of three classes."""
    rng = np.random.default_rng(0)
    for number in range(NUMBER):
        path = folder / CLASSES[number % 2 * 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(path)
    (folder / "empty").mkdir()
    return ["--train_data_dir", str(folder)]


@pytest.fixture
def flags(tmp_path, pipelines):
    run = ["--output_dir", str(tmp_path / "run")]
    return [*TINY, *colours(tmp_path / "images"), *run, "--generator", str(pipelines["StableDiffusionPipeline"])]


def proposer(folder, side=8, shape=(3, 8, 8), prompts=("a {class}", "one {class}", "it")):
    base, settings = load_base(str(folder)), {"num_inference_steps": 4, "guidance_scale": 2.0}
    return TextToImageCandidates(
        base.pipeline, shape, ("cat", "dog"), prompts, side, settings, facts={}, public_inputs=[]
    )


def candidates(run, generation):
    folders = sorted((run / "private" / f"candidates_{generation}").iterdir())
    return torch.cat([open_sealed(folder)[1]["kept"]["kept"] for folder in folders])


@pytest.mark.parametrize("kind", few(KINDS))
def test_a_pipeline_and_a_vision_network_make_a_release(kind, script, flags, pipelines, clip, tmp_path):
    """In colour, of all classes alike; the receipt names both, and the prompts."""
    seen = ["--embedding", "network", "--embedding_network", clip, "--lookahead", "2"]
    script.main([*flags, "--generator", str(pipelines[kind]), *seen, "--prompts", "the {class} side"])
    run = tmp_path / "run"
    receipt, problems = verify.verify(run / "release")
    images = load_verified(run / "release")
    assert problems == [] and images["label"] == [0, 1, 2] * 3 and len(read_ledger(run)[1]) == 2
    pixels = np.stack(images["image"])
    assert pixels.shape == (9, 16, 16, 3) and (pixels[..., 0] != pixels[..., 1]).mean() > 0.5
    pipeline, network = receipt["public_inputs"]
    licence = "openrail++" if kind == XL else "not stated"
    assert {key: pipeline[key] for key in ("kind", "name", "revision", "licence")} == {
        "kind": "text-to-image pipeline", "name": "local folder", "revision": None, "licence": licence,
    }  # fmt: skip
    assert len(pipeline["files_sha256"]) == 64 and network["kind"] == "feature network"
    told = receipt["curriculum"]
    assert told["prompts"] == ["the {class} side"] and told["num_prompts"] == 1 and told["generator"] == "pipeline"
    assert (told["generator_resolution"], told["num_inference_steps"], told["guidance_scale"]) == (8, 3, 7.5)
    assert str(tmp_path) not in json.dumps(receipt) and str(pipelines[kind]) not in json.dumps(receipt)


@pytest.mark.parametrize("kind", KINDS)
def test_a_candidate_follows_from_its_seed_and_keeps_its_prompt(kind, pipelines):
    """Whatever the batch, but for rounding; children are as far as the strength, and shown as files are read."""
    made = proposer(pipelines[kind])
    labels, seeds = torch.arange(6) % 2, torch.randint(2**62, (6,), generator=torch.Generator().manual_seed(0))
    first = made.initial(labels, seeds)
    assert first.dtype == torch.uint8 and first.shape == (6, 2 + 8 * 8 * 3)
    numbers = first[:, :2].contiguous().view(torch.int16).flatten()
    assert numbers.tolist() == (seeds % 3).tolist() and len(set(numbers.tolist())) > 1
    for size in (1, 4):
        parts = [made.initial(own, part) for own, part in zip(labels.split(size), seeds.split(size), strict=True)]
        assert (torch.cat(parts).float() - first).abs().max() <= 1
    children = made.vary(first, labels, 0.5, seeds + 1)
    assert torch.equal(children[:, :2], first[:, :2]) and not torch.equal(children, first)
    alone = torch.cat([made.vary(first[i : i + 1], labels[i : i + 1], 0.5, seeds[i : i + 1] + 1) for i in range(6)])
    assert (alone.float() - children).abs().max() <= 1
    assert torch.equal(made.images(first, labels), made._pixels(first).permute(0, 3, 1, 2)), "of the same size"
    grey = proposer(pipelines[kind], shape=(1, 4, 4)).images(first, labels)
    assert grey.shape == (6, 1, 4, 4) and grey.dtype == torch.uint8


def test_pixels_that_are_no_numbers_end_in_a_sentence(pipelines):
    made = proposer(pipelines[XL])
    torch.nn.init.constant_(made.pipeline.vae.decoder.conv_out.bias, torch.nan)
    with pytest.raises(UsageError, match="no number .* --expert generator_precision=float32"):
        made.initial(torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long))


def test_a_batch_that_does_not_fit_is_drawn_in_halves(pipelines, monkeypatch):
    """And so are those after it; they are the same images."""
    made, call = proposer(pipelines["StableDiffusionPipeline"]), StableDiffusionPipeline.__call__
    labels, seeds = torch.arange(8) % 2, torch.arange(8)
    first = made.initial(labels, seeds)
    children = made.vary(first, labels, 0.5, seeds)

    def small(pipeline, prompts, **given):
        if len(prompts) > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return call(pipeline, prompts, **given)

    most = 2
    monkeypatch.setattr(StableDiffusionPipeline, "__call__", small)
    assert (made.initial(labels, seeds).float() - first).abs().max() <= 1 and made.batch_size == 2
    call = StableDiffusionImg2ImgPipeline.__call__
    monkeypatch.setattr(StableDiffusionImg2ImgPipeline, "__call__", small)
    assert (made.vary(first, labels, 0.5, seeds).float() - children).abs().max() <= 1
    most = 0
    with pytest.raises(torch.OutOfMemoryError):
        made.vary(first, labels, 0.5, seeds)


def test_batches_follow_from_free_memory(monkeypatch):
    """Unless flags say more: by rules, too."""
    given = "--config auto --generator OWNER/NAME --num_train_images 30 --resolution 512 --num_channels 3".split()
    config = load_config(given, METHODS[METHOD])
    assert config.generator_batch_size is config.generator_precision is config.generator_resolution is None
    monkeypatch.setattr("diffusers_dp.models.pipeline_candidates.free_bytes", lambda device: 22 * 10**9)
    sizes = [at_once(side, torch.float16, torch.device("cpu")) for side in (64, 512, 1024, 4096)]
    assert sizes == [16, 10, 2, 1]
    assert at_once(512, torch.float32, torch.device("cpu")) == 5


@pytest.mark.parametrize("calls", few([6, 2, 15], 0))
def test_a_kill_between_batches_costs_one_batch(calls, script, flags, tmp_path, monkeypatch):
    """Candidates, and what stands for them in a vote, stay; the rest is the same as without a kill."""
    flags = [*flags, "--lookahead", "1"]
    draw, drawn = TextToImageCandidates._drawn, []

    def dies(proposer, pipeline, numbers, *others, **given):
        drawn.append(len(numbers))
        if len(drawn) == calls:
            raise KeyboardInterrupt
        return draw(proposer, pipeline, numbers, *others, **given)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TextToImageCandidates, "_drawn", dies)
        script.main(flags)
    before, again = sum(drawn[:-1]), []
    with monkeypatch.context() as patch:
        patch.setattr(
            TextToImageCandidates,
            "_drawn",
            lambda *given, **more: (again.append(len(given[2])), draw(*given, **more))[1],
        )
        script.main([*flags, *(["--resume_from_checkpoint", "latest"] if calls > 8 else RESUME)])
    # Two generations, each with one child for the look-ahead, and the released images.
    assert before + sum(again) == 4 * 15 + 9
    assert verify.report(tmp_path / "run" / "release") == 0
    script.main([*flags, "--output_dir", str(tmp_path / "other")])
    assert torch.equal(candidates(tmp_path / "run", 1), candidates(tmp_path / "other", 1))


@pytest.mark.parametrize("noise", few(["exact", "float"]))
def test_a_network_sees_each_image_once_and_alone(noise, script, flags, clip, tmp_path, monkeypatch):
    """What it sees is kept, so that a vote follows from its own image to the last bit, in all generations."""
    see, seen = PooledFeatures.__call__, []

    def watched(network, images):
        seen.append(images)
        return see(network, images)

    monkeypatch.setattr(PooledFeatures, "__call__", watched)
    script.main([*flags, "--embedding", "network", "--embedding_network", clip, "--noise", noise])
    with Image.open(tmp_path / "images" / "left" / "0.png") as picture:
        own = torch.from_numpy(np.asarray(picture.resize((16, 16), Image.Resampling.LANCZOS))).permute(2, 0, 1) / 255
    of_own = [images for images in seen if any(torch.allclose(image, own, atol=1e-5) for image in images)]
    assert len(of_own) == 1 and len(of_own[0]) == 1
    assert {len(images) for images in seen} <= {1, 4, 3}, "candidates, which are public, in batches"
    assert receipt_of(tmp_path / "run")["status"] == ("proven" if noise == "exact" else "proven_with_assumptions")


def test_a_network_that_keeps_something_of_images_is_refused(script, flags, clip, monkeypatch):
    """What it made of one image would follow from those before."""
    see = CLIPModel.get_image_features

    def keeping(network, pixel_values):
        network.logit_scale.add_(pixel_values.mean())
        return see(network, pixel_values=pixel_values)

    monkeypatch.setattr(CLIPModel, "get_image_features", keeping)
    monkeypatch.setattr(SensitiveImages, "noisy_sum", lambda *_, **__: pytest.fail("the images were asked"))
    with pytest.raises(UsageError, match="must keep nothing, but 'logit_scale of CLIPModel .* nothing was asked"):
        script.main([*flags, "--embedding", "network", "--embedding_network", clip])


def test_a_network_that_sees_no_numbers_is_refused(script, flags, clip, tmp_path, monkeypatch):
    """One candidate of them would take the votes of all others."""
    monkeypatch.setattr(SensitiveImages, "noisy_sum", lambda *_, **__: pytest.fail("the images were asked"))
    shutil.copytree(clip, tmp_path / "network")
    weights = load_file(path := tmp_path / "network" / "model.safetensors")
    save_file({**weights, "visual_projection.weight": weights["visual_projection.weight"] * torch.inf}, path)
    with pytest.raises(UsageError, match="--embedding_network .* no numbers of a candidate"):
        script.main([*flags, "--embedding", "network", "--embedding_network", str(tmp_path / "network")])


@pytest.mark.slow
def test_two_processes(tmp_path, pipelines, clip):
    """The first one draws; both vote."""
    given = [*TINY, *colours(tmp_path / "images"), "--generator", pipelines[XL], "--output_dir", tmp_path / "run"]
    given += ["--embedding", "network", "--embedding_network", clip, "--noise", "float"]
    done = launch(2, "training/train_private_evolution.py", *given, patience=500)
    assert done.returncode == 0, done.stderr[-4000:]
    receipt, problems = verify.verify(tmp_path / "run" / "release")
    assert problems == [] and receipt["processes"] == [2]
    assert len(candidates(tmp_path / "run", 2)) == 15


def edited(folder, place, edit):
    copy = shutil.copytree(folder, place)
    edit(copy)
    return copy


def in_json(name, **values):
    def edit(folder):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return edit


def pickled(folder):
    for path in folder.rglob("*.safetensors"):
        path.rename(path.with_suffix(".bin"))


def nine_channels(folder):
    in_json("unet/config.json", in_channels=9)(folder)
    path = folder / "unet" / "diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    save_file({**weights, "conv_in.weight": torch.zeros(4, 9, 3, 3)}, path)


WRONG = {
    "a video": (in_json("model_index.json", _class_name="TextToVideoSDPipeline"), "it is a 'TextToVideoSDPipeline'"),
    "another video": (in_json("model_index.json", _class_name="WanPipeline"), "'WanPipeline'.* StableDiffusionXLPipe"),
    "inpainting": (in_json("model_index.json", _class_name="StableDiffusionInpaintPipeline"), "InpaintPipeline'"),
    "an inpainting network": (nine_channels, "network takes 9 channels and its latents have 2"),
    "pickles": (pickled, "no safetensors, and pickles are not loaded"),
    "no index": (lambda folder: (folder / "model_index.json").unlink(), "no model_index.json that can be read"),
    "no side": (in_json("unet/config.json", sample_size=None), "the sample_size of its unet is no whole number"),
    "two sides": (in_json("unet/config.json", sample_size=[4, 8]), "is not taken .the sample_size of its unet"),
    "unknown steps": (in_json("scheduler/scheduler_config.json", prediction_type="x"), "draws nothing .*given as x"),
    "its own code": (in_json("model_index.json", unet=["pipeline", "MyUNet"]), "its unet is none of UNet2DCondition"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_other_pipelines_are_refused_in_a_sentence(case, script, flags, pipelines, tmp_path, monkeypatch):
    monkeypatch.setattr(SensitiveImages, "noisy_sum", lambda *_, **__: pytest.fail("the images were asked"))
    edit, said = WRONG[case]
    wrong = edited(pipelines["StableDiffusionPipeline"], tmp_path / "wrong", edit)
    with pytest.raises(UsageError, match=said) as refusal:
        script.main([*flags, "--generator", str(wrong)])
    assert "\n" not in str(refusal.value) and not (tmp_path / "run").exists() and "--generator" in str(refusal.value)


def test_flags_that_cannot_be(script, flags, pipelines, tmp_path, monkeypatch):
    monkeypatch.setattr(SensitiveImages, "noisy_sum", lambda *_, **__: pytest.fail("the images were asked"))
    (tmp_path / "many").write_text("a\n" * 10_001)
    (tmp_path / "large").write_text("a" * 1_000_001)
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "latin").write_bytes(b"caf\xe9\n")
    unet = save_pipeline(tmp_path / "unet", sample_size=16)
    for given, said in (
        (["--variation_strengths", "0.8,0.3"], "--variation_strengths 0.3 of .*generator_inference_steps=3 is less"),
        (["--generator", "texts"], "--generator is 'texts'; give text, public_images, or the Hub id"),
        (["--expert", "generator_resolution=9"], "generator_resolution=9 is no multiple of 2"),
        (["--prompts", "no_such.txt"], "--prompts no_such.txt is no file here"),
        (["--prompts", str(tmp_path / "many")], "holds 10,001 lines; give 1 to 10,000"),
        (["--prompts", str(tmp_path / "large")], "more than 1,000,000 bytes"),
        (["--prompts", str(tmp_path / "empty")], "holds 0 lines"),
        (["--prompts", str(tmp_path / "latin")], "is not taken .*; give UTF-8 text"),
        (["--generator", "text", "--prompts", "a {class}"], "--prompts needs --pretrained_model_name_or_path"),
        (["--generator", unet, "--prompts", "a {class}"], "--prompts has no effect"),
        (["--prompts", "a caf\udce9"], "is not UTF-8: rename it"),
        (["--prompts", "a photo of a {Class}"], r"--prompts has {Class}; the one placeholder is {class}"),
        (["--prompts", "a {} photo of a {class}"], r"--prompts has {}; the one placeholder is {class}"),
        (["--generator", "pipeline"], "need each other"),
    ):
        with pytest.raises(UsageError, match=said) as refusal:
            script.main([*flags, *given])
        assert "\n" not in str(refusal.value) and not (tmp_path / "run").exists(), given


def test_a_folder_of_a_choice_s_name_is_not_the_choice(flags, tmp_path, monkeypatch):
    for name in ("text", "public_images", "pipeline", "mine"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    for given, wanted in (("text", ("text", None)), ("mine", ("pipeline", "mine")), ("./a", ("pipeline", "./a"))):
        config = METHODS[METHOD].config(generator=given)
        assert (config.generator, config.pretrained_model_name_or_path) == wanted


def test_prompts_of_a_file(script, flags, tmp_path):
    """One a line, in a receipt up to twenty; another file is not that of the run."""
    file = tmp_path / "prompts.txt"
    file.write_text("\ufeffa {class}\n\n  the {class} of a house \n" + "".join(f"{i}\n" for i in range(30)))
    script.main([*flags, "--prompts", str(file)])
    told = receipt_of(tmp_path / "run")["curriculum"]
    assert told["num_prompts"] == 32 and told["prompts"][:3] == ["a {class}", "the {class} of a house", "0"]
    assert len(told["prompts"]) == 20 and len(told["prompts_sha256"]) == 64
    config = load_config([*flags, "--prompts", "~/none of these"], METHODS[METHOD])
    assert config.read_prompts(CLASSES) == ["~/none of these"]
    config = load_config(flags, METHODS[METHOD])
    assert config.read_prompts(CLASSES) == ["a photo of a {class}"] and config.read_prompts(None) == ["a photo"]


def test_the_published_schedule_is_a_recipe():
    path = ROOT / "training" / "recipes" / "pe" / "stable_diffusion.yaml"
    config = load_config(["--config", str(path)], METHODS["pe"])
    assert config.strengths == tuple(
        round(strength / 100, 2) for strength in (*range(100, 91, -2), *range(88, 39, -4))
    )
    assert (config.lookahead, config.vote_threshold, config.candidates_per_class) == (8, 2, 100)
