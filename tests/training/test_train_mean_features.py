# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The other methods of `train_mean_embedding.py`: each from its command line to a release; DP-MEPF's second moments
and early stopping."""

import json

import pytest
import torch

from diffusers_dp import verify
from diffusers_dp.files.sealed_folder import open_sealed
from support.feature_networks import save_resnet
from support.flags import NUM_IMAGES
from support.runs import files, independent_epsilon, read_ledger, receipt_of


METHOD = "dp_merf"
FLAGS = (
    "--block_out_channels 8,16 --generator_steps 4 --expert generator_batch_size=6 --skip_preflight "
    f"--class_names left,empty,right --resolution 8 --num_channels 1 --num_train_images {NUM_IMAGES} --accountant rdp "
    "--target_epsilon 1"
).split()
STOPPING = "--moments 2 --expert stopping_steps=2,num_stopping_images=6,moving_average_learning_rate=0.1".split()
QUERIES = ["mean_features", "second_moments", "stopping_features_1", "stopping_features_2"]


@pytest.fixture
def perceptual(tmp_path, flags):
    networks = [save_resnet(tmp_path / name, seed) for seed, name in enumerate(("features", "stopping"))]
    return [
        *flags, *STOPPING, "--features", "perceptual", "--feature_network", networks[0], "--feature_layers", "pooler",
        "--stopping_network", networks[1], "--expert", "stopping_layers=pooler",
    ]  # fmt: skip


def test_dp_mepf_whole(script, perceptual, tmp_path):
    """Four queries under one budget; two networks with hash and licence; a choice among two generators."""
    script.main(perceptual)
    run = tmp_path / "run"
    header, rows = read_ledger(run)
    assert [row["stage"] for row in rows] == QUERIES
    assert {row["query"]["sensitivity"] for row in rows} == {1.0}
    assert 0.7 < independent_epsilon(run) <= header["target_epsilon"] + 1e-3
    first, second, *stopping = [row["noise_multiplier"] for row in rows]
    assert stopping[0] == stopping[1] > 5 * first and 0.8 < first / second < 1.25
    receipt = receipt_of(run)
    assert receipt["method"]["name"] == "DP-MEPF" and receipt["curriculum"]["chosen_step"] in (2, 4)
    assert [origin["licence"] for origin in receipt["public_inputs"]] == ["apache-2.0"] * 2
    assert len({origin["weights_sha256"] for origin in receipt["public_inputs"]}) == 2
    assert all("was public" in text for text in receipt["assumptions"] if "public_inputs" in text)
    assert str(tmp_path) not in (run / "release" / "privacy_receipt.json").read_text()
    compared = [json.loads(line) for line in (run / "private" / "snapshots.jsonl").read_text().splitlines()]
    assert [each["step"] for each in compared] == [2, 4]
    best = min(compared, key=lambda each: each["distance"])["step"]
    assert receipt["curriculum"]["chosen_step"] == best
    assert "snapshot" not in " ".join(files(run / "release")) and verify.report(run / "release") == 0


def test_stopping_answers_of_equal_data_differ(script, perceptual, tmp_path):
    """By their own noise, of the standard deviation that the ledger says: the public code asks them without any."""
    answers = []
    for name in ("first", "second"):
        script.main([*perceptual, "--output_dir", str(tmp_path / name)])
        folders = [tmp_path / name / "private" / "answers" / query for query in QUERIES]
        answers.append([open_sealed(folder)[1]["answer"]["answer"] for folder in folders])
    rows = read_ledger(tmp_path / "second")[1]
    for row, one, other in zip(rows, *answers, strict=True):
        spread = (one - other).std().item() * NUM_IMAGES / (2**0.5 * row["noise_multiplier"])
        assert spread == pytest.approx(1, abs=0.5), row["stage"]


def test_a_moving_average_goes_where_the_differences_go():
    """GFMN: for small batches, v tracks the difference, and its gradient is that of the distance but for length."""
    from diffusers_dp.models.feature_generator import MovingAverage, frequency_matching_loss

    target, labels = torch.tensor([[1.0, -2.0], [0.5, 0.0]]), torch.tensor([0, 1])
    images = torch.zeros(2, 2, requires_grad=True)
    arguments = (lambda rows: rows, images, labels, target, lambda own, rows: own)
    loss = MovingAverage(target, 0.05)
    for _ in range(200):
        images.grad = None
        loss(*arguments).backward()
    own = images.grad.clone()
    images.grad = None
    frequency_matching_loss(*arguments).backward()
    assert torch.allclose(loss.average, target, atol=0.05) and torch.allclose(own, images.grad / 2, atol=0.05)
