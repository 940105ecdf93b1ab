# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""PrivImage: one noisy query says which public classes the model learns from before DP-SGD."""

import json

import pytest
import torch

from diffusers_dp import verify
from diffusers_dp.data.public_images import PublicImages, of_classes
from diffusers_dp.errors import UsageError
from diffusers_dp.privacy.separate_records import features_of_zeros
from diffusers_dp.queries.semantic import PublicClassifier, SemanticQuery, largest, semantic_classes
from support.feature_networks import save_classifier
from support.few import few
from support.flags import TINY_RUN
from support.runs import independent_epsilon, load, read_ledger, write_images, write_public


SHAPE, KINDS = (1, 8, 8), ("cat", "dog", "fox", "owl")


@pytest.fixture
def flags(tmp_path):
    return [
        *TINY_RUN, *write_images(tmp_path / "images"), *write_public(tmp_path / "public", KINDS, count=8),
        "--semantic_query_network", save_classifier(tmp_path / "classifier", len(KINDS)),
        "--expert", "semantic_classes_per_class=1", "--output_dir", str(tmp_path / "run"),
    ]  # fmt: skip


def test_an_image_adds_w_ones_of_its_own(tmp_path):
    """Norm sqrt(w), each row of its own image; the counts are shared out without a class twice."""
    query = SemanticQuery(
        classifier=PublicClassifier(save_classifier(tmp_path / "classifier", len(KINDS)), SHAPE), classes_per_class=2,
        noise_multiplier=50.0,
    )  # fmt: skip
    for features in (query.features, query.stand_in()):
        rows = features(torch.rand(5, *SHAPE), None)
        assert rows.sum(1).tolist() == [2.0] * 5 and set(rows.unique().tolist()) == {0.0, 1.0}
        features_of_zeros(features, SHAPE, 3, device="cpu", clip_norm=query.clip_norm, name=query.name)
    assert query.clip_norm == pytest.approx(2**0.5)
    assert largest(torch.tensor([[3.0, 1.0, 2.0]]), 2).tolist() == [[1.0, 0.0, 1.0]]
    counts = torch.tensor([[5.0, 9.0, 1.0, 0.0, 2.0], [6.0, 8.0, -3.0, 1.0, 4.0]])
    assert semantic_classes(counts, 2) == [[1, 0], [4, 3]]


def test_public_images_get_the_labels_of_sensitive_classes():
    images, labels = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1), torch.tensor([0, 1, 2, 3, 4])
    public = PublicImages(images, labels, 4, {}, KINDS)  # the last image has no known class
    found = of_classes(public, [[2], [0]], labelled=True)
    assert found.images.flatten().tolist() == [0, 2] and found.labels.tolist() == [1, 0] and found.num_classes == 2
    assert of_classes(public, [[3]], labelled=False).labels is None
    with pytest.raises(UsageError, match="No public image is of the classes"):
        of_classes(PublicImages(images[:1], labels[:1], 4, {}, KINDS), [[3]], labelled=True)


def test_too_few_public_classes_are_refused_before_an_image_is_read(flags, tmp_path, monkeypatch):
    """Folders of public images say how many classes there are."""
    with pytest.raises(UsageError, match="semantic_classes_per_class=2 asks for 6 public classes, and there are 4"):
        load("dp_diffusion", monkeypatch).main([*flags, "--expert", "semantic_classes_per_class=2"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", few(["dp_diffusion", "feta_pro"]))
def test_a_run_asks_once_before_it_learns(method, flags, tmp_path, monkeypatch):
    """The row comes first, with the given noise; classifier and images are public inputs; nothing is asked twice."""
    script = load(method, monkeypatch)
    extra = "--spatial_steps 2 --frequency_steps 2 --generator_steps 2 --expert num_auxiliary_images=20".split()
    flags = [*flags, *(extra if method == "feta_pro" else ["--objective", "edm"])]
    script.main(flags)
    header, rows = read_ledger(tmp_path / "run")
    assert rows[0]["stage"] == "semantic_query" and rows[0]["noise_multiplier"] == 50.0
    assert rows[0]["query"]["sensitivity"] == 1.0 and sum(row["stage"] == "semantic_query" for row in rows) == 1
    assert independent_epsilon(tmp_path / "run") <= header["target_epsilon"] + 1e-3
    receipt = json.loads((tmp_path / "run" / "release" / "privacy_receipt.json").read_text())
    assert {origin["kind"] for origin in receipt["public_inputs"]} == {"public images", "semantic query network"}
    assert verify.report(tmp_path / "run" / "release") == 0
    if method == "dp_diffusion":  # what was learned depends on the answer
        second = [*flags[: flags.index("--public_data_dir")], "--output_dir", str(tmp_path / "second")]
        with pytest.raises(UsageError, match="learned from noisy answers about sensitive images"):
            script.main([*second, "--pretrained_model_name_or_path", str(tmp_path / "run" / "private" / "pretrained")])
