# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Each kind of release is a type: its files, its classes, its base, and how it is loaded."""

import pickle

import pytest
import torch

from diffusers_dp.errors import IntegrityError
from diffusers_dp.release.allow_list import ADAPTER_FILES
from diffusers_dp.release.artefacts import DatasetArtefact
from diffusers_dp.release.build import build_release
from diffusers_dp.release.loading import (
    ImagesRelease,
    LatentRelease,
    ModelRelease,
    open_release,
    release_in,
)
from diffusers_dp.release.receipt import RunRecord
from support.latent_releases import change_index, latent_release
from support.latents import stable_diffusion
from support.releases import made_up, make_ledger, make_release


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    base = stable_diffusion(folder / "base")
    (folder / "images").mkdir()
    images = DatasetArtefact(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]), ["a", "b"])
    record = RunRecord(ledger=make_ledger(folder / "images"), method=made_up())
    return {
        "model": make_release(folder / "model", patch_size=2),
        "adapters": latent_release(folder / "adapters", base),
        "merged": latent_release(folder / "merged", base, merge=True),
        "images": build_release(folder / "images", images, record),
        "base": base,
    }


@pytest.mark.parametrize(
    ("place", "kind", "classes"),
    [
        ("model", ModelRelease, ("class 0", "class 1", "class 2")),
        ("adapters", LatentRelease, ("cat", "dog")),
        ("merged", LatentRelease, ("cat", "dog")),
        ("images", ImagesRelease, ("a", "b")),
    ],
)
def test_a_release_of_each_kind(places, place, kind, classes):
    found = open_release(places[place], base=places["base"] if place == "adapters" else None)
    assert type(found) is kind and found.problems == () and found.card_agrees
    assert found.described_classes(512, 10) == classes
    assert set(found.files) | {"README.md", "privacy_receipt.json"} == {
        path.relative_to(found.folder).as_posix() for path in found.folder.rglob("*") if path.is_file()
    }
    assert (found.stated_base is not None) == (place == "adapters") == (found.files == ADAPTER_FILES)
    assert pickle.loads(pickle.dumps(found)) == found
    if place == "images":
        assert found.repo_type == "dataset" and [image.size for image in found.pick((1, 0), 2, 0)[0]] == [(8, 8)] * 2
        return
    assert found.image_shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"id2label": {}}, "names no classes"),
        ({"id2label": {"1": "a"}}, "does not have"),
        ({"id2label": {"0": 1}}, "id2label.0 must"),
        ({"class_prompts": "a"}, "class_prompts must"),
        ({"base": None}, "base must"),
    ],
)
def test_an_index_of_adapters_is_read_with_care(places, tmp_path, fields, words):
    release = latent_release(tmp_path / "run", places["base"])
    change_index(release, **fields)
    with pytest.raises(IntegrityError, match=f"'mine' is not opened: .*{words}"):
        release_in(release, "mine").described_classes(512, 10)
