# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Honest releases of tiny latent models, without a training run, and what a forger does to them."""

import json

from diffusers_dp.files.canonical import canonical_json
from diffusers_dp.models.adapters import choose_trained
from diffusers_dp.release.build import build_release
from diffusers_dp.release.latent_artefacts import LatentArtefact
from diffusers_dp.release.latent_base import load_base
from diffusers_dp.release.receipt import RunRecord, hash_release
from diffusers_dp.sampling.drawing import Drawing, sample_grid
from diffusers_dp.verify import settled_digest
from support.releases import RECEIPT, made_up, make_ledger


NAMES = {0: "cat", 1: "dog"}


def draw_samples(pipeline):
    return sample_grid(pipeline, Drawing(num_inference_steps=1))


def latent_release(folder, base, merge=False):
    """Of fresh adapters of a base, or of the base as a whole."""
    folder.mkdir(parents=True)
    found = load_base(str(base))
    denoiser = found.denoiser(NAMES, None)
    choose_trained(denoiser.network, "all" if merge else "lora", rank=2)
    artefact = LatentArtefact(found, denoiser, id2label=NAMES, prompts=None, merge=merge, draw_samples=draw_samples)
    inputs = [{**found.origin, "saw_training_images": "unknown"}]
    record = RunRecord(ledger=make_ledger(folder), method=made_up("dp_lora"), public_inputs=inputs)
    return build_release(folder, artefact, record)


def change_index(release, **fields):
    """Fields of `model_index.json`, under hashes that fit. `...` takes a field out."""
    index = {**json.loads((release / "model_index.json").read_text()), **fields}
    seal_again(release, {name: value for name, value in index.items() if value is not ...})


def seal_again(release, index=None):
    """Makes the receipt agree with the files, and `model_index.json` with the receipt."""
    index = index or json.loads((release / "model_index.json").read_text())
    (release / "model_index.json").write_text(canonical_json(index))
    receipt = {**json.loads((release / RECEIPT).read_text()), "files": hash_release(release)}
    (release / RECEIPT).write_text(canonical_json(receipt))
    index["privacy"]["receipt_sha256"] = settled_digest(receipt)
    (release / "model_index.json").write_text(canonical_json(index))


def to_hub(hub, folder, name):
    """The files of a folder as a repository of the stand-in; returns its commit."""
    hub.repositories[f"models/{name}"] = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    return hub.sha(f"models/{name}")
