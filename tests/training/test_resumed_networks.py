# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A run that goes on keeps what its queries saw: another network, other public images or another base are refused,
for the receipt would name the second alone."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from diffusers_dp import SensitiveImages, verify
from diffusers_dp.errors import UsageError
from diffusers_dp.queries.perceptual import PREPROCESSOR, PerceptualFeatures
from diffusers_dp.queries.semantic import PublicClassifier, SemanticQuery
from support.feature_networks import save_classifier, save_resnet
from support.few import few
from support.flags import NUM_IMAGES, RESUME, TINY_RUN
from support.latents import stable_diffusion
from support.public_models import edit_weights
from support.public_models import save as save_pipeline
from support.runs import PowerCut, cut_power_at, load, write_images, write_public


IMAGES = f"--class_names left,empty,right --resolution 8 --num_channels 1 --num_train_images {NUM_IMAGES}".split()
BUDGET = ["--accountant", "rdp", "--target_epsilon", "1", "--skip_preflight"]
EVOLUTION = [*IMAGES, *BUDGET, *"--candidates_per_class 6 --variation_strengths 0.5,0.2 --images_per_class 4".split()]
MEPF = [*IMAGES, *BUDGET, *"--block_out_channels 8,16 --generator_steps 2 --expert generator_batch_size=6".split()]
LATENT = [
    *IMAGES, *BUDGET,
    *"--max_train_steps 3 --train_batch_size 6 --noise_multiplicity 1 --num_inference_steps 2 --lora_rank 2".split(),
    *"--checkpointing_steps 1 --restart_slack 3".split(),
]  # fmt: skip


CLASSES = ("left", "right", "empty")


def normalise(folder, mean, std=0.5):
    (folder / PREPROCESSOR).write_text(json.dumps({"image_mean": [mean] * 3, "image_std": [std] * 3}))


def stop_before(monkeypatch, script, flags, query):
    """Everything before a query was asked and stored."""
    ask = SensitiveImages.noisy_sum

    def asked(door, *others, **options):
        if options["name"] == query:
            raise KeyboardInterrupt
        return ask(door, *others, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(SensitiveImages, "noisy_sum", asked)
        script.main(flags)


def forget(run, *kinds):
    """Candidates, or what stands for them in votes."""
    for kind in kinds:
        for folder in (run / "private").glob(f"{kind}_*"):
            shutil.rmtree(folder)


def refused(script, flags, words):
    """Neither asked nor released."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UsageError, match=words):
        patch.setattr(SensitiveImages, "noisy_sum", lambda *_, **__: pytest.fail("asked"))
        script.main([*flags, *RESUME])


@pytest.mark.parametrize("changed", few(["weights", "normalisation", "resolution"]))
def test_an_evolution_goes_on_with_its_network(changed, tmp_path, monkeypatch):
    """Votes of two networks, and a receipt that names the second one."""
    script = load("pe", monkeypatch)
    network = tmp_path / "network"
    flags = [
        *EVOLUTION, *write_images(tmp_path / "images"), *write_public(tmp_path / "public", CLASSES)[:2],
        "--generator", "public_images", "--embedding", "network", "--embedding_network", save_resnet(network),
        "--output_dir", str(tmp_path / "run"),
    ]  # fmt: skip
    stop_before(monkeypatch, script, flags, "votes_2")
    before = shutil.copytree(network, tmp_path / "before")
    given, words = [], "embedded_1/00000000 was made with other flags"
    if changed == "weights":
        save_resnet(network, seed=1)
    elif changed == "normalisation":
        normalise(network, 0.25)
    else:  # flags, which the run keeps anyway
        given = ["--expert", "embedding_resolution=16"]
        words = f"--{given[1].partition('=')[0]} is .*, and this run began with"
    refused(script, [*flags, *given], words)
    if not given:
        forget(tmp_path / "run", "embedded")
        refused(script, flags, "votes_1 was asked for with embedding = .* resume with the flags of that run")
        forget(tmp_path / "run", "embedded")
    shutil.rmtree(network)
    before.rename(network)
    script.main([*flags, *RESUME])
    receipt, problems = verify.verify(tmp_path / "run" / "release")
    kinds = [origin["kind"] for origin in receipt["public_inputs"]]
    assert problems == [] and kinds == ["public images", "feature network"]


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("generator", ["public_images", "pipeline"])
def test_an_evolution_goes_on_with_its_candidates_origin(generator, kept, tmp_path, monkeypatch):
    script = load("pe", monkeypatch)
    flags = [*EVOLUTION, *write_images(tmp_path / "images"), "--generator", generator]
    flags += ["--output_dir", str(tmp_path / "run")]
    if generator == "pipeline":
        flags += ["--pretrained_model_name_or_path"]
        first, second = (
            [save_pipeline(tmp_path / name, in_channels=1, out_channels=1, norm_eps=eps)]
            for name, eps in (("a", 1e-5), ("b", 1e-3))
        )
        edit_weights(tmp_path / "b", lambda tensors: tensors["conv_in.bias"].add_(1))
    else:
        first, second = (
            write_public(tmp_path / name, ("left", "right", "empty"), seed)[:2] for seed, name in ((1, "a"), (2, "b"))
        )
    stop_before(monkeypatch, script, [*flags, *first], "votes_2")
    if not kept:
        forget(tmp_path / "run", "candidates", "embedded")
    words = "candidates_1/00000000 was made with other flags" if kept else "was asked for with candidates_sha256"
    refused(script, [*flags, *second], words)
    if not kept:
        forget(tmp_path / "run", "candidates", "embedded")
    script.main([*flags, *first, *RESUME])
    assert verify.report(tmp_path / "run" / "release") == 0


def test_an_evolution_goes_on_with_smaller_batches_in_another_precision(tmp_path, monkeypatch):
    """As the sentences say where memory ran out, or a pixel is no number."""
    script, place = load("pe", monkeypatch), stable_diffusion(tmp_path / "pipeline", 3)
    flags = [*EVOLUTION, *write_images(tmp_path / "images"), "--generator", str(place)]
    flags += ["--output_dir", str(tmp_path / "run"), "--expert", "generator_inference_steps=5"]
    stop_before(monkeypatch, script, flags, "votes_2")
    script.main([*flags, "--expert", "generator_batch_size=2,generator_precision=bfloat16", *RESUME])
    receipt, problems = verify.verify(tmp_path / "run" / "release")
    assert problems == [] and receipt["curriculum"]["expert"] == {
        "generator_inference_steps": 5, "generator_precision": "bfloat16", "generator_batch_size": 2,
    }  # fmt: skip
    assert len(list((tmp_path / "run" / "private" / "candidates_2").iterdir())) > 1
    refused(script, [*flags, "--expert", "generator_guidance=2"], "guidance is 2.0, and this run began with None")


def test_a_networks_name_hash_mean_std_and_resolution_are_its_meaning(tmp_path):
    save_resnet(tmp_path / "network")
    normalise(tmp_path / "network", 0.25, 0.125)
    features = PerceptualFeatures(str(tmp_path / "network"), (1, 8, 8), 16, layers=("pooler",))
    classifier = PublicClassifier(save_classifier(tmp_path / "classifier", 4), (1, 8, 8), 16)
    query = SemanticQuery(classifier=classifier, classes_per_class=1, noise_multiplier=50.0)
    for facts, mean in ((features.facts, 0.25), (query.meaning, 0.5)):
        assert facts["mean"] == [mean] * 3 and facts["std"] == [0.125 if mean == 0.25 else 0.5] * 3
        assert (
            facts["network"] == "local folder"
            and facts["resolution"] == [16, 16, "bilinear"]
            and len(facts["weights_sha256"]) == 64
        )
    assert json.loads(json.dumps(query.meaning)) == query.meaning


@pytest.mark.parametrize("stop", [1, 4])
def test_the_semantic_query_goes_on_with_its_network(stop, tmp_path, monkeypatch):
    """Also after the model learned what it chose, which is kept."""
    script, network = load("dp_diffusion", monkeypatch), tmp_path / "classifier"
    flags = [
        *TINY_RUN, *write_images(tmp_path / "images"), *write_public(tmp_path / "public", CLASSES, count=6),
        "--objective", "edm", "--semantic_query_network", save_classifier(network, 3), "--expert",
        "semantic_classes_per_class=1", "--output_dir", str(tmp_path / "run"),
    ]  # fmt: skip
    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        cut_power_at(patch, script, stop)
        script.main(flags)
    assert (tmp_path / "run" / "private" / "pretrained").exists() is (stop == 4)
    normalise(network, 0.25)
    refused(script, flags, "semantic_query was asked for with mean = ")


@pytest.mark.parametrize(
    ("kind", "stop"), few([("lora", "checkpoint"), ("salient", "answer"), ("salient", "checkpoint")], 1)
)
def test_a_latent_run_goes_on_with_its_base(kind, stop, tmp_path, monkeypatch):
    """Its saliency is that of another network's layers; or its adapters were trained beside another network, which the
    receipt would still name."""
    first, second = stable_diffusion(tmp_path / "first"), stable_diffusion(tmp_path / "second")
    weights = tmp_path / "second" / "unet" / "diffusion_pytorch_model.safetensors"
    save_file({name: tensor + 0.01 for name, tensor in load_file(weights).items()}, weights)
    script = load("dp_lora" if kind == "lora" else "dp_sapf", monkeypatch)
    flags = [*LATENT, "--train", kind, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")]
    flags += ["--num_salient", "2"] if kind == "salient" else []
    flags += ["--pretrained_model_name_or_path"]
    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        cut_power_at(patch, script, 1 if stop == "answer" else 3)
        script.main([*flags, str(first)])
    assert bool(list((tmp_path / "run" / "private").glob("checkpoint-[1-9]*"))) is (stop == "checkpoint")
    refused(
        script, [*flags, str(second)], "saliency was asked for with base" if stop == "answer" else "began with another"
    )
    shutil.copytree(first, tmp_path / "moved")
    script.main([*flags, str(tmp_path / "moved"), *RESUME])
    assert verify.report(tmp_path / "run" / "release") == 0
