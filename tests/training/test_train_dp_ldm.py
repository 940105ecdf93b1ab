# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""DP-LoRA, DP-LDM and DP-SAPF from their command line: latents, DP-SGD on what is trained, and a release that
Diffusers alone can load."""

import json
import resource
import shutil

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline, StableDiffusionXLPipeline, UNet2DConditionModel
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from transformers import CLIPTextModel

from diffusers_dp import SensitiveImages, load_verified, verify
from diffusers_dp.cli import main as cli
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.release.allow_list import ADAPTER_FILES, CARD_AND_RECEIPT
from diffusers_dp.release.latent_base import load_base
from diffusers_dp.release.push import files_to_push
from support.few import few
from support.flags import NUM_IMAGES
from support.latents import stable_diffusion, stable_diffusion_xl
from support.runs import files, independent_epsilon, load, read_ledger, status, write_images


METHOD = "dp_lora"
FLAGS = (
    "--max_train_steps 2 --train_batch_size 6 --noise_multiplicity 2 --skip_preflight --num_inference_steps 2 "
    f"--class_names left,empty,right --resolution 8 --num_channels 1 --num_train_images {NUM_IMAGES} --accountant rdp "
    "--target_epsilon 1 --lora_rank 2 --learning_rate 0.1"
).split()
LORA = "pytorch_lora_weights.safetensors"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(stable_diffusion(tmp_path_factory.mktemp("base") / "base"))


def base_flag(base):
    return ["--pretrained_model_name_or_path", base]


def drawn(pipeline, **arguments):
    generator = torch.Generator().manual_seed(0)
    return pipeline(class_labels=[0, 2], generator=generator, num_inference_steps=2, output_type="np", **arguments)


def test_adapters_from_images_to_a_stranger(base, script, flags, tmp_path, capsys, untrained_judge):
    """With a reserve for evaluation. `load_lora_weights` of Diffusers takes what is released, and our own loader draws
    the same as the run did."""
    script.main([*flags, *base_flag(base), "--evaluation_reserve", "0.2", "--num_evaluation_images", "6"])
    run, release = tmp_path / "run", tmp_path / "run" / "release"
    header, rows = read_ledger(run)
    assert {row["stage"] for row in rows} == {"dp_sgd", "evaluation_reserve"}
    assert 0.6 < independent_epsilon(run) <= header["target_epsilon"] + 1e-3
    assert files(release) == {*ADAPTER_FILES, *CARD_AND_RECEIPT} and status(run)["exit_code"] == 0
    receipt = json.loads((release / "privacy_receipt.json").read_text())
    assert receipt["method"]["name"] == "DP-LoRA" and receipt["curriculum"]["lora_rank"] == 2 and receipt["evaluation"]
    assert receipt["public_inputs"][0]["saw_training_images"] == "unknown"
    assert set(files_to_push(release)) == files(release)
    card = " ".join((release / "README.md").read_text().split())
    assert "adapters of local folder, a StableDiffusionPipeline" in card
    assert "Whether it has seen images of the training set: unknown" in card
    assert "load_lora_weights" in card and "custom_pipeline" not in card

    pipe = StableDiffusionPipeline.from_pretrained(base)
    pipe.load_lora_weights(release)
    loaded = {name.replace("default_0", "default"): each for name, each in pipe.unet.state_dict().items()}
    released = load_file(release / LORA)
    assert released and all(torch.equal(loaded[name.split(".", 1)[1].replace(".weight", ".default.weight")], each)
                            for name, each in released.items())  # fmt: skip
    assert all(each.abs().max() > 0 for name, each in released.items() if "lora_B" in name)  # it learned something

    ours = load_verified(release, base=base)
    adapters = [each for each in ours.unet.network.modules() if isinstance(each, LoraLayer)]
    assert adapters and all(each.merged for each in adapters)  # so that drawing costs what it costs of the base
    assert ours.num_classes == 3 and ours.config.id2label[1] == "empty" and ours.image_shape == (1, 8, 8)
    plain = load_verified(release, base=base)
    plain.unet.network.disable_lora()
    assert drawn(ours).images.shape == (2, 8, 8, 1) and not np.allclose(drawn(ours).images, drawn(plain).images)
    assert not np.allclose(drawn(ours, guidance_scale=4.0).images, drawn(ours).images)
    capsys.readouterr()
    assert verify.report(release) == 0 and "base not checked" in capsys.readouterr().out
    assert verify.report(release, base=base) == 0 and "files are the stated ones" in capsys.readouterr().out


@pytest.mark.parametrize("trained", few(["lora", "all", "attention"]))
def test_a_merged_release_is_a_pipeline_of_diffusers(trained, base, script, flags, tmp_path):
    merge = ["--merge"] if trained == "lora" else []
    script.main([*flags, *base_flag(base), "--train", trained, *merge])
    release = tmp_path / "run" / "release"
    assert verify.report(release) == 0 and set(files_to_push(release)) == files(release)
    said = "".join(path.read_text() for path in release.rglob("*.json"))
    assert str(base) not in said and "_name_or_path" not in said
    StableDiffusionPipeline.from_pretrained(release)
    ours = load_verified(release)
    assert drawn(ours).images.shape == (2, 8, 8, 1)
    frozen, before = ours.vae.state_dict(), load_file(f"{base}/vae/diffusion_pytorch_model.safetensors")
    assert all(torch.equal(frozen[name], before[name]) for name in before)
    weights = [load_file(f"{folder}/unet/diffusion_pytorch_model.safetensors") for folder in (base, release)]
    changed = {name for name in weights[0] if weights[1][name].shape != weights[0][name].shape
               or not torch.equal(weights[0][name], weights[1][name])}  # fmt: skip
    assert changed and (trained == "all" or trained == "lora" or all("attn" in name for name in changed))


@pytest.mark.parametrize("trained", ["lora", *few(["salient", "attention", "merged"], 9)])
def test_the_layout_of_xl(trained, script, flags, tmp_path, monkeypatch):
    """Two text encoders, pooled prompts and sizes: what is released is drawn from as in the run, and by Diffusers."""
    base = str(stable_diffusion_xl(tmp_path / "xl"))
    given = ["--train", "lora", "--merge"] if trained == "merged" else ["--train", trained]
    load({"salient": "dp_sapf", "attention": "dp_ldm"}.get(trained, METHOD), monkeypatch).main(
        [*flags, *base_flag(base), *given, "--num_channels", "3", *(["--num_salient", "2"] * (trained == "salient"))]
    )
    release = tmp_path / "run" / "release"
    assert verify.report(release) == 0 and set(files_to_push(release)) == files(release)
    stranger = StableDiffusionXLPipeline.from_pretrained(release if trained in ("attention", "merged") else base)
    if trained in ("lora", "salient"):
        stranger.load_lora_weights(release)
        assert "StableDiffusionXLPipeline" in (release / "README.md").read_text()
    else:
        assert {"text_encoder_2/model.safetensors", "tokenizer_2/tokenizer.json"} <= files(release)
    ours = load_verified(release, base=None if trained in ("attention", "merged") else base)
    assert drawn(ours, guidance_scale=2.0).images.shape == (2, 8, 8, 3)
    latents, times = torch.randn(2, 2, 4, 4), torch.tensor([300, 700])
    tokens, _, pooled, _ = stranger.encode_prompt(["left", "right"], device="cpu", do_classifier_free_guidance=False)
    sizes = torch.tensor([[8.0, 8, 0, 0, 8, 8]] * 2)
    added = {"text_embeds": pooled, "time_ids": sizes}
    with torch.no_grad():
        expected = stranger.unet(latents, times, tokens, added_cond_kwargs=added).sample
        found = ours.unet(latents, times, torch.tensor([0, 2])).sample
        of_others = ours.unet(latents, times, torch.tensor([2, 0])).sample
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(of_others, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture
def loaded(monkeypatch):
    """The parts of base that are loaded, by name."""
    loaded = []
    for kind in (UNet2DConditionModel, AutoencoderKL, CLIPTextModel):

        def counted(*given, take=kind.from_pretrained, **more):
            loaded.append(take.__self__.__name__)
            return take(*given, **more)

        monkeypatch.setattr(kind, "from_pretrained", counted)
    return loaded


def test_a_base_that_is_a_release_is_counted(base, script, flags, tmp_path):
    """Of the same images it is refused; of others its epsilon stands in the receipt. What has none is refused."""
    script.main([*flags, *base_flag(base), "--merge"])
    release = tmp_path / "run" / "release"
    begin = ["--pretrained_model_name_or_path", str(release)]
    again = [*flags, *begin, "--output_dir", str(tmp_path / "again")]
    with pytest.raises(UsageError, match="is a release trained on as many images of the same classes"):
        script.main(again)
    script.main([*again, "--num_train_images", "31"])
    receipt = json.loads((tmp_path / "again" / "release" / "privacy_receipt.json").read_text())
    assert receipt["public_inputs"][0]["kind"] == "release of diffusers_dp" and receipt["public_inputs"][0]["epsilon"]
    (release / "privacy_receipt.json").unlink()
    with pytest.raises(UsageError, match="missing or damaged"):
        script.main([*again, "--num_train_images", "31", "--output_dir", str(tmp_path / "third")])


def test_a_noisy_answer_chooses_the_layers(base, script, flags, tmp_path, monkeypatch):
    """DP-SAPF's query has its row and its share, and is asked once, of latents."""
    given = [*flags, *base_flag(base), "--train", "salient", "--num_salient", "3", "--budget", "saliency=0.1"]
    load("dp_sapf", monkeypatch).main(given)
    _, rows = read_ledger(tmp_path / "run")
    assert [row["stage"] for row in rows][0] == "saliency" and rows[0]["query"]["sensitivity"] == 1.0
    receipt = json.loads((tmp_path / "run" / "release" / "privacy_receipt.json").read_text())
    targets = receipt["curriculum"]["lora_targets"]
    assert len(targets) == 3 and receipt["method"]["name"] == "DP-SAPF"
    trained = {
        name.split(".", 1)[1].rpartition(".lora_")[0] for name in load_file(tmp_path / "run" / "release" / LORA)
    }
    assert trained == set(targets)
    answer = tmp_path / "run" / "private" / "answers" / "saliency"
    assert answer.is_dir()
    monkeypatch.setattr(SensitiveImages, "noisy_sum", lambda *_, **__: pytest.fail("asked again"))
    script.main([*given, "--resume_from_checkpoint", "latest"])


def test_latents_of_other_images_are_encoded_anew(base, script, flags, tmp_path, monkeypatch):
    """A run that was interrupted before its first step goes on with the images as they are then."""
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr("diffusers_dp.runs.latent_run.make_trained", lambda *_, **__: 1 / 0)
        script.main([*flags, *base_flag(base)])
    first = tmp_path / "run" / "private" / "cache" / "encoded-0" / "images.npy"
    before = np.load(first)
    shutil.rmtree(tmp_path / "images")
    write_images(tmp_path / "images", "broken")
    script.main([*flags, *base_flag(base), "--resume_from_checkpoint", "latest"])
    assert (np.load(first) == before).all(axis=(1, 2, 3)).sum() == len(before) - 1


@pytest.fixture
def release(base, script, flags, tmp_path):
    script.main([*flags, *base_flag(base)])
    return tmp_path / "run" / "release"


def test_another_base_is_refused_by_name(base, release, tmp_path, capsys):
    with pytest.raises(UsageError, match="adapters of a base that lay in a folder"):
        load_verified(release)
    other = tmp_path / "other"
    shutil.copytree(base, other)
    place = other / "vae" / "diffusion_pytorch_model.safetensors"
    weights = load_file(place)
    weights[next(iter(weights))].add_(1e-3)
    save_file(weights, place)
    with pytest.raises(IntegrityError, match=r"vae/diffusion_pytorch_model.safetensors of the base is another file"):
        load_verified(release, base=other)
    assert verify.report(release, base=other) == 4
    place.unlink()
    with pytest.raises(IntegrityError, match=r"vae/diffusion_pytorch_model.safetensors of the base is missing"):
        load_verified(release, base=other)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli(["verify", str(release), "--base", str(other)])
    assert ended.value.code == 4 and "is missing" in capsys.readouterr().out
    (other / "text_encoder" / "pytorch_model.bin").write_bytes(b"beside, and never read")
    shutil.copy(f"{base}/vae/diffusion_pytorch_model.safetensors", place)
    load_verified(release, base=other)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"revision": "main"}, "whole commit"),
        ({"files": [{"name": "unet/weights.bin", "sha256": "0" * 64}]}, "safetensors"),
        ({"files": [{"name": "../secret.json", "sha256": "0" * 64}]}, "safetensors"),
        ({"files": []}, "safetensors"),
    ],
)
def test_a_base_without_commit_or_hashes_is_refused(change, said):
    reference = {"name": "a/b", "revision": "0" * 40, "files": [{"name": "unet/config.json", "sha256": "0" * 64}]}
    assert list(verify.check_reference(reference)) == []
    (problem,) = verify.check_reference({**reference, **change})
    assert said in problem


def test_adapters_of_another_network_are_refused(base, release):
    tensors = load_file(release / LORA)
    moved = {name.replace("attn1.to_q", "attn1.to_nowhere", 1): each for name, each in tensors.items()}
    save_file(moved, release / LORA)
    with pytest.raises(IntegrityError, match=f"{LORA} is not the file"):
        load_verified(release, base=base)
    with pytest.raises(IntegrityError, match="no adapters of this base"):
        load_verified(release, require_dp=False, base=base)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--train", "lora", "--class_prompts", "one,two"], "--class_prompts are 2, and there are 3"),
        (["--resolution", "16"], "--resolution 8"),
        (["--num_channels", "3"], "--num_channels"),
        (["--lora_targets", "to_x"], "--lora_targets 'to_x'"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_spent(given, said, base, script, flags, tmp_path):
    with pytest.raises(UsageError, match=said):
        script.main([*flags, *base_flag(base), *given])
    assert not (tmp_path / "run" / "private" / "ledger.jsonl").exists()


def test_pickles_and_other_pipelines_are_refused(base, script, flags, tmp_path):
    place = tmp_path / "pickled"
    shutil.copytree(base, place)
    (place / "unet" / "diffusion_pytorch_model.safetensors").rename(place / "unet" / "diffusion_pytorch_model.bin")
    with pytest.raises(UsageError, match="unet: it has no safetensors, and pickles"):
        script.main([*flags, "--pretrained_model_name_or_path", str(place)])
    index = json.loads((place / "model_index.json").read_text())
    for changed, said in (
        ({"_class_name": "EvilPipeline"}, "is not taken.*it is a 'EvilPipeline'"),
        ({"unet": ["evil", "UNet"]}, "is not taken.*its unet is none of"),
        ({"vae": ["diffusers", "VQModel"]}, "is not taken.*its vae is none of"),
    ):
        (place / "model_index.json").write_text(json.dumps({**index, **changed}))
        with pytest.raises(UsageError, match=said):
            script.main([*flags, "--pretrained_model_name_or_path", str(place)])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("component", "given"),
    [
        ("unet", {"block_out_channels": [400_000, 800_000]}),
        ("unet", {"layers_per_block": 400_000}),
        ("vae", {"block_out_channels": [40_000, 80_000]}),
        ("text_encoder", {"vocab_size": 10**12}),
        ("text_encoder", {"num_hidden_layers": 400_000}),
        ("unet", {"sample_size": 400_000}),
    ],
)
def test_a_configuration_larger_than_its_weights_is_refused(component, given, base, tmp_path):
    """Before memory is taken, by a file of a few bytes."""
    place = tmp_path / "large"
    shutil.copytree(base, place)
    config = json.loads((place / component / "config.json").read_text())
    (place / component / "config.json").write_text(json.dumps({**config, **given}))
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match=rf"is not taken \({component}: "):
        load_base(str(place))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start < 2**19  # KiB
