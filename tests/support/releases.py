# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""An honest release, and ways to forge one."""

import hashlib
import json
from dataclasses import replace

import torch
from diffusers import EDMDPMSolverMultistepScheduler, UNet2DModel
from PIL import Image

from diffusers_dp import verify
from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.files.canonical import canonical_json
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.release.artefacts import PipelineArtefact
from diffusers_dp.release.build import build_release
from diffusers_dp.release.receipt import RunRecord
from support.ledgers import row
from support.models import unet_config


RECEIPT = "privacy_receipt.json"
WEIGHTS = "unet/diffusion_pytorch_model.safetensors"


def make_unet(num_classes, patch_size=1):
    torch.manual_seed(0)
    return UNet2DModel(**unet_config(num_classes, patch_size)).eval()


def make_ledger(folder):
    ledger = PrivacyLedger(
        folder / "private" / "ledger.jsonl",
        target_epsilon=10.0,
        target_delta=1e-5,
        num_images=1437,
        accountant="rdp",
        public_facts={"image_shape": [1, 8, 8]},
    )
    ledger.executed(ledger.reserve(row(8.0, name="frequency_features")), 1)
    for _ in range(2):
        ledger.executed(ledger.reserve(row(2.0, 0.25, 20, "dp_sgd")), 20)
    return ledger


def made_up(name="feta_pro"):
    """A method whose events `verify` does not know, so that a test may make up its queries."""
    return replace(METHODS[name], title=f"{METHODS[name].title} of a test")


def make_release(folder, num_classes=3, patch_size=1, unet=None, ledger=None, scheduler=None, method=None, **said):
    id2label = None if num_classes is None else {i: f"class {i}" for i in range(num_classes)}
    unet = unet or make_unet(num_classes, patch_size)
    scheduler = scheduler or EDMDPMSolverMultistepScheduler(sigma_data=0.577)
    pipeline = DPImagePipeline(unet, scheduler, id2label=id2label, patch_size=patch_size)
    record = RunRecord(
        ledger=ledger or make_ledger(folder), method=method or made_up(),
        **{"curriculum": {"curriculum": "spatial,frequency"}, **said},
    )  # fmt: skip
    return build_release(folder, PipelineArtefact(pipeline, samples=Image.new("L", (16, 16))), record)


def forge(release, change):
    """What the verifier says of a forgery."""
    reseal(release, change)
    return verify.verify(release)[1]


def add_audit(release, summary):
    """Puts a word into the one field of a receipt that no hash covers and no check reads."""
    receipt = json.loads((release / RECEIPT).read_text())
    (release / RECEIPT).write_text(canonical_json({**receipt, "audit": summary}))


def reseal(release, change):
    """Edits the receipt and makes `model_index.json` agree with it, as a forger would."""
    receipt = json.loads((release / RECEIPT).read_text())
    change(receipt)
    content = canonical_json(receipt)
    (release / RECEIPT).write_text(content)
    index = json.loads((release / "model_index.json").read_text())
    try:
        index["privacy"]["receipt_sha256"] = verify.settled_digest(receipt)
    except ValueError:  # it is larger than anybody reads
        index["privacy"]["receipt_sha256"] = hashlib.sha256(content.encode()).hexdigest()
    index["privacy"] |= {field: receipt.get(field) for field in verify.PRIVACY_FIELDS}
    try:
        index["privacy"]["epsilon"] = receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"]
    except (KeyError, TypeError):
        pass
    (release / "model_index.json").write_text(canonical_json(index))
