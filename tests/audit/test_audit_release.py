# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The audit of a release: lights up on a model that learned its images by heart, and is silent on one that never saw
them."""

import json

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from diffusers_dp import cli
from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.audit.random_split import fair_coins
from diffusers_dp.audit.release import auc
from diffusers_dp.data.sources import load_digits_split
from diffusers_dp.models.denoiser import EDMDenoiser, EDMLoss, linear_schedule
from diffusers_dp.randomness.keyed_hash import digests_of, is_held_out
from diffusers_dp.verify import receipt_digest
from support.ledgers import row
from support.releases import RECEIPT, make_release, make_unet, reseal


def write_dataset(folder, images):
    folder.mkdir()
    pictures = [Image.fromarray(image[0]) for image in images]
    features = datasets.Features({"image": datasets.Image()})
    datasets.Dataset.from_dict({"image": pictures}, features=features).to_parquet(
        folder / "train-00000-of-00001.parquet"
    )


def run_audit(tmp_path, release, members, others, *flags):
    write_dataset(tmp_path / "members", members)
    write_dataset(tmp_path / "holdout", others)
    cli.main(
        ["audit", "release", str(release), "--members", str(tmp_path / "members"), "--holdout",
         str(tmp_path / "holdout"), "--num_samples", "60", *flags]
    )  # fmt: skip
    return json.loads((release.parent / "private" / "unprotected" / "audit_release.json").read_text())


@pytest.fixture(scope="module")
def digits():
    images, _ = load_digits_split(train=True)
    return np.asarray(images, dtype=np.uint8).reshape(-1, 1, 8, 8)[:240]


@pytest.mark.parametrize("scheduler", [None, linear_schedule()])
def test_an_untrained_model_tells_nothing(tmp_path, digits, capsys, scheduler):
    found = run_audit(tmp_path, make_release(tmp_path, None, scheduler=scheduler), digits[:120], digits[120:])
    assert abs(found["auc"]["value"] - 0.5) < 0.15 and found["auc"]["low"] < 0.5 < found["auc"]["high"]
    assert found["evidence_of_leakage"] == [] and found["read_private_data"] is True
    assert (tmp_path / "private" / "unprotected").stat().st_mode & 0o777 == 0o700
    said = capsys.readouterr().out
    assert "private data read: yes" in said and "no proof" in said
    assert found["split"] == "other" and found["lower_bound"] is None
    assert "measures a shift between the two sets" in said and "bounds no epsilon" in found["conclusion"]
    assert found["receipt_sha256"] == receipt_digest(tmp_path / "release" / RECEIPT)


def test_images_that_the_training_held_out_need_no_second_data_set(tmp_path, digits, capsys):
    """By the receipt's facts and the same public hash. The lower bound of an untrained model is 0, at the delta and
    beside the claim of its receipt; the dossier shows it for the house alone."""
    held_out = {"images": 60, "ids": "row", "column": None}
    ledger = PrivacyLedger(
        None, target_epsilon=10.0, target_delta=1e-5, num_images=180,
        public_facts={"image_shape": [1, 8, 8], "held_out": held_out},
    )  # fmt: skip
    ledger.reserve(row(2.0, 0.25, 40, "dp_sgd"))
    release = make_release(tmp_path, None, ledger=ledger)
    write_dataset(tmp_path / "all", digits)
    audit = ["audit", "release", str(release), "--members", str(tmp_path / "all"), "--num_samples", "20"]
    cli.main(audit)
    found = json.loads((tmp_path / "private/unprotected/audit_release.json").read_text())
    out = int(is_held_out(digests_of(range(240)), 60, 240).sum())
    members, others = fair_coins(240 - out, out, 0.25, 2000)
    assert (found["num_members"], found["num_others"]) == (len(members), len(others)) and len(others) == out > 30
    bound, receipt = found["lower_bound"], json.loads((release / RECEIPT).read_text())
    assert bound["epsilon"] == 0 and bound["confidence"] == 0.95 and bound["coins"] == len(members) + len(others)
    assert bound["delta"] == receipt["delta"]
    assert found["claimed_epsilon"] == receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"]
    assert "no lower bound on epsilon above 0" in capsys.readouterr().out and "shift" not in found["conclusion"]
    cli.main(["dossier", str(release)])
    annex = (tmp_path / "private/unprotected/dossier_annex.html").read_text(encoding="utf-8")
    assert found["conclusion"] in annex and found["conclusion"] not in (tmp_path / "dossier/dossier.html").read_text()
    by_path = {**held_out, "ids": "column", "column": "name"}
    reseal(release, lambda receipt: receipt["public_facts"].update(held_out=by_path))
    with pytest.raises(SystemExit) as stop:
        cli.main(audit)
    assert stop.value.code == 2 and "name" in capsys.readouterr().err
    make_release(tmp_path, 3)  # another one in the same place
    with pytest.raises(SystemExit) as stop:
        cli.main(["dossier", str(release)])
    assert stop.value.code == 2 and "measure this one, or remove the file" in capsys.readouterr().err


@pytest.mark.parametrize("common", [120, 1])
def test_images_on_both_sides_are_refused(tmp_path, digits, capsys, common):
    """Also beyond the images that are looked at: what was trained on is no holdout."""
    others = np.concatenate([digits[120 : 240 - common], digits[:common]])
    with pytest.raises(SystemExit) as stop:
        run_audit(tmp_path, make_release(tmp_path, None), digits[:120], others, "--max_images", "20")
    assert stop.value.code == 2
    assert f"{common} of the 120 images of --holdout are in --members as well" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_that_learned_its_images_by_heart_is_noticed(tmp_path, digits, capsys):
    """Ordinary training without privacy on 40 images."""
    members, others = digits[:40], digits[40:120]
    unet = make_unet(None).train()
    denoiser, loss = EDMDenoiser(unet), EDMLoss(0.0, -1.0, 1.0)
    optimizer = torch.optim.Adam(unet.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4000)
    rows = torch.from_numpy(members).float() / 127.5 - 1
    for _ in range(4000):
        optimizer.zero_grad()
        loss(denoiser, rows, None).mean().backward()
        optimizer.step()
        scheduler.step()
    found = run_audit(tmp_path, make_release(tmp_path, None, unet=unet.eval()), members, others)
    assert found["auc"]["value"] > 0.9 and "auc" in found["evidence_of_leakage"]
    assert "EVIDENCE OF LEAKAGE" in capsys.readouterr().out


def test_auc():
    assert auc(np.arange(10.0) + 100, np.arange(10.0)).value == 1
    same = auc(np.arange(100.0), np.arange(100.0))
    assert same.value == pytest.approx(0.5) and same.low < 0.5 < same.high
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(300):  # mean 1 apart: Phi(1 / sqrt 2) = 0.7602
        found = auc(rng.normal(size=60) + 1, rng.normal(size=80))
        missed += not found.low <= 0.7602 <= found.high
    assert missed <= 12
