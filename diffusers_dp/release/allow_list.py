# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a release consists of. Nothing else enters the folder, and nothing else is uploaded."""

import json
import re
from pathlib import Path

from ..verify import CARD_NAME, SIGNATURE_NAME
from .receipt import RECEIPT_NAME


COMPONENT_FILES = (
    "scheduler/scheduler_config.json",
    "unet/config.json",
    "unet/diffusion_pytorch_model.safetensors",
)
PIPELINE_FILES = ("model_index.json", "pipeline.py", "samples.png", *COMPONENT_FILES)  # of a `PipelineArtefact`
CARD_AND_RECEIPT = (CARD_NAME, RECEIPT_NAME)  # of every release
RELEASE_FILES = (*CARD_AND_RECEIPT, *PIPELINE_FILES)
OPTIONAL_FILES = (SIGNATURE_NAME,)  # may be added later
#: Of adapters by reference, see `latent_artefacts`, in Diffusers' own format.
ADAPTERS, LORA_FILE = "DPLatentAdapters", "pytorch_lora_weights.safetensors"
ADAPTER_FILES = ("model_index.json", "samples.png", LORA_FILE)
#: Of a whole latent pipeline: what these classes of Diffusers save of what is used of them, and nothing executable.
LATENT_PIPELINES = ("StableDiffusionPipeline", "StableDiffusion3Pipeline", "DiTPipeline")
MERGED = re.compile(
    r"model_index\.json|samples\.png|scheduler/scheduler_config\.json|(unet|transformer|vae)/(config\.json|"
    r"diffusion_pytorch_model\.safetensors)|text_encoder(_[23])?/(config\.json|model\.safetensors)|"
    r"tokenizer(_[23])?/(tokenizer\.json|tokenizer_config\.json|vocab\.json|merges\.txt|special_tokens_map\.json|"
    r"spiece\.model)"
)


def files_of(folder: Path) -> tuple[str, ...]:
    """The allow-list of the kind of release that a folder says to hold, of those that this library makes."""
    try:
        kind = json.loads((folder / "model_index.json").read_bytes())["_class_name"]
    except (OSError, ValueError, KeyError, TypeError):
        return PIPELINE_FILES
    if kind == ADAPTERS:
        return ADAPTER_FILES
    if kind in LATENT_PIPELINES:
        there = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        return tuple(sorted(name for name in there if MERGED.fullmatch(name)))
    return PIPELINE_FILES
