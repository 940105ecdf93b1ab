# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a release consists of. Nothing else enters the folder, and nothing else is uploaded."""

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
