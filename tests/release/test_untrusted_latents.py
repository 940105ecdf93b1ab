# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A stranger's latent release, whose hashes and numbers are all right: it is loaded and draws, or is refused in one
sentence, in seconds and with little memory."""

import re
import resource
import shutil
import signal

import pytest
import torch

from diffusers_dp import load_verified, verify
from diffusers_dp.errors import DiffusersDPError
from diffusers_dp.release.components import WrongModel, bounded
from support.hostile_latents import ADAPTER_TRAPS, HARMLESS, MERGED_TRAPS, index
from support.latent_releases import latent_release
from support.latents import stable_diffusion


#: The telling ones, for each run of the tests; `test_hostile.py` takes all.
TELLING = [name for name in (*MERGED_TRAPS, *ADAPTER_TRAPS) if re.search(
    r"reverse_.* 1000000|reverse_.*\[\[|quantization_config.*(bitsandbytes|gptq)|model_max_length 1000000000|"
    r"num_train_timesteps 1000000000|prompts|base|scalar|thousand|milliard|shards|sample_size 1.*|evil/kernels|"
    r"integers|three dim|half of|latent_channels 4|numbers", name,
)]  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return stable_diffusion(tmp_path_factory.mktemp("bases") / "base")


@pytest.fixture(scope="module")
def releases(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("latents")
    return {merge: latent_release(folder / str(merge), base, merge) for merge in (True, False)}


@pytest.fixture
def a_minute():
    def end(*_):
        raise TimeoutError("It takes longer than a minute.")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def draw(release, base):
    pipeline = load_verified(release, base=base)
    return pipeline(class_labels=[0, 1], num_inference_steps=1)


@pytest.mark.parametrize("trap", TELLING)
def test_a_trap_is_refused_in_one_sentence(trap, releases, base, tmp_path, a_minute):
    merged = trap in MERGED_TRAPS
    release = shutil.copytree(releases[merged], tmp_path / "release")
    (MERGED_TRAPS if merged else ADAPTER_TRAPS)[trap](release)
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DiffusersDPError) as refusal:
        draw(release, None if merged else base)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 2_000 and trap not in HARMLESS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start < 2**19  # KiB


@pytest.mark.parametrize("merged", [True, False])
def test_what_is_honest_draws(merged, releases, base):
    assert len(draw(releases[merged], None if merged else base).images) == 2
    assert verify.verify(releases[merged])[1] == []


@pytest.mark.parametrize(
    "fields",
    [
        *({"base": value} for value in (..., None, "text", 3, [], {})), {"class_prompts": 3}, {"class_prompts": [1]},
        {"class_prompts": "text"}, {"id2label": []}, {"id2label": {"0": 3}}, {"num_shards": "x"}, {"num_images": 1.5},
        {"class_names": 3}, {"class_names": [None]}, {"image_shape": [3, 8]}, {"image_shape": "x"},
        {"patch_size": "2"},
    ],
)  # fmt: skip
def test_verify_checks_the_type_of_what_it_knows(fields, releases, tmp_path, capsys):
    release = shutil.copytree(releases[False], tmp_path / "release")
    index(**fields)(release)
    assert verify.report(release) == 4
    said = capsys.readouterr().out
    assert "model_index.json says" in said or "The base is not named" in said


def test_building_ends_with_the_weights_that_there_are():
    """Whatever a configuration is called that asks for more layers, or for larger ones."""
    built = []
    with pytest.raises(WrongModel, match="more weights than there are"), bounded(tensors=4, numbers=10**6):
        for _ in range(10**6):
            built.append(torch.nn.Linear(2, 2, device="meta"))
    assert len(built) <= 12
    with pytest.raises(WrongModel, match="more weights than there are"), bounded(tensors=4, numbers=100):
        torch.nn.Linear(100, 100, device="meta")
    with pytest.raises(WrongModel, match="more layers than there are"), bounded(tensors=4, numbers=100):
        torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(10_000)))
    with bounded(tensors=4, numbers=10):
        torch.nn.Linear(2, 2)
    torch.nn.Linear(100, 100)  # the bound is gone
