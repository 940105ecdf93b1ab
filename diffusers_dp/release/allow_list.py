# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The files of a release. No other file enters the folder or is uploaded."""

import json
import re
from pathlib import Path
from typing import Any

from ..files.untrusted_files import read_bounded
from ..verify import CARD_NAME, RECEIPT_NAME


COMPONENT_FILES = ("scheduler/scheduler_config.json", "unet/config.json", "unet/diffusion_pytorch_model.safetensors")
PIPELINE_FILES = ("model_index.json", "pipeline.py", "samples.png", *COMPONENT_FILES)  # for a `PipelineArtefact`
CARD_AND_RECEIPT = (CARD_NAME, RECEIPT_NAME)  # for every release
RELEASE_FILES = (*CARD_AND_RECEIPT, *PIPELINE_FILES)

DATASET_CLASS = "DPImageDataset"  # `_class_name` in the `model_index.json` of a release of images
MOST_SHARDS = 1_000
MOST_INDEX = 10_000_000  # bytes


def shard_names(number: int) -> tuple[str, ...]:
    """Names the parquet files of a release of images as `datasets` does."""
    return tuple(f"data/train-{i:05d}-of-{number:05d}.parquet" for i in range(number))


JUDGE_FILE, JUDGED = "judge.safetensors", "judged"  # of draws that a judge labelled: weights, and a key of the index


def dataset_files(num_shards: int, judged: bool = False) -> tuple[str, ...]:
    """Lists the files of a `DatasetArtefact`."""
    return ("model_index.json", "samples.png", *((JUDGE_FILE,) if judged else ()), *shard_names(num_shards))


def read_index(release: str | Path) -> dict[str, Any]:
    """Reads `model_index.json`; an unreadable one counts as empty."""
    try:
        index = json.loads(read_bounded(Path(release, "model_index.json"), MOST_INDEX))
    except (OSError, ValueError, RecursionError):
        return {}
    return index if isinstance(index, dict) else {}


def kind_of(release: str | Path) -> Any:
    """Reads the class that a release states in its `model_index.json`; `None` if there is none."""
    return read_index(release).get("_class_name")


def dataset_index(release: str | Path) -> dict[str, Any] | None:
    """Reads the `model_index.json` of a release of images; returns `None` for a model or an unreadable release."""
    index = read_index(release)
    shards = index.get("num_shards") if index.get("_class_name") == DATASET_CLASS else None
    return index if type(shards) is int and 0 < shards <= MOST_SHARDS else None


#: Of adapters by reference, see `latent_artefacts`, in Diffusers' own format.
LORA_FILE = "pytorch_lora_weights.safetensors"
ADAPTER_FILES = ("model_index.json", "samples.png", LORA_FILE)
#: Pipelines that can be released whole: the used components as Diffusers saves them, and nothing executable.
LATENT_PIPELINES = ("StableDiffusionPipeline", "StableDiffusionXLPipeline")
MERGED = re.compile(
    r"model_index\.json|samples\.png|scheduler/scheduler_config\.json|(unet|vae)/(config\.json|"
    r"diffusion_pytorch_model\.safetensors)|text_encoder(?:_2)?/(config\.json|model\.safetensors)|"
    r"tokenizer(?:_2)?/(tokenizer\.json|tokenizer_config\.json|vocab\.json|merges\.txt|special_tokens_map\.json|"
    r"spiece\.model)"
)


def merged_files(release: str | Path) -> tuple[str, ...]:
    """Lists the files of a latent pipeline that is released whole."""
    there = (path.relative_to(release).as_posix() for path in Path(release).rglob("*") if path.is_file())
    return tuple(sorted(name for name in there if MERGED.fullmatch(name)))
