# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a latent pipeline says of itself, checked before a component of it is built or its weights are read. It may be
a stranger's."""

import math
from pathlib import Path
from typing import Any

import diffusers
import transformers

from ..files.untrusted_files import is_own
from .components import FLOATS, LARGEST_SIDE, WrongModel, build_empty, check_schedule, read_json, read_shapes, whole


TEXT_ENCODERS = ("CLIPTextModel", "CLIPTextModelWithProjection", "T5EncoderModel")
TOKENIZERS = ("CLIPTokenizer", "CLIPTokenizerFast", "T5Tokenizer", "T5TokenizerFast")
MOST_TOKENS = 4_096  # of a prompt
OF_BASES = (*FLOATS, "I64", "I32")  # positions, which old text encoders hold as tensors


def check_component(folder: Path, name: str, kind: str, root: Path) -> None:
    """A configuration of a few bytes may describe any number of weights, and name packages. Memory is taken for the
    weights that are there.

    Args:
        folder (`Path`): Folder of the pipeline.
        name (`str`): Name of the component.
        kind (`str`): Its class, of Diffusers or transformers.
        root (`Path`): Where its files are, if `folder` holds links to them.

    Raises:
        WrongModel: It describes more than its weights, or what is no number, or names code.
    """
    place = folder / name
    if not all(is_own(root, path) for path in place.glob("*")):
        raise WrongModel("it has a link to elsewhere")
    if kind.endswith("Scheduler"):
        return check_schedule(read_json(place / "scheduler_config.json"))
    if kind in TOKENIZERS:
        for path in place.glob("*config.json"):
            if "auto_map" in read_json(path):
                raise WrongModel("it names code")
        return None
    weights = list(place.glob("*.safetensors"))
    if not weights:
        raise WrongModel("it has no safetensors, and pickles are not loaded: save it again with safetensors")
    shapes = {name: shape for path in weights for name, shape in read_shapes(path, OF_BASES).items()}
    for path in place.glob("*.safetensors.index.json"):
        named = read_json(path).get("weight_map")
        if not isinstance(named, dict) or not all(place / str(file) in weights for file in named.values()):
            raise WrongModel(f"{path.name} names weights that are not beside it")
    config = read_json(place / "config.json")
    _check_sides(config)
    if kind in TEXT_ENCODERS:
        text_encoder = getattr(transformers, kind)
        build_empty(lambda: text_encoder(text_encoder.config_class.from_dict(config)), config, shapes)
    else:
        build_empty(lambda: getattr(diffusers, kind).from_config(config), config, shapes)
    return None


def check_loaded(pipeline: Any) -> None:
    """What shows in a loaded pipeline alone. Raises `WrongModel`."""
    for name, part in pipeline.components.items():
        if name.startswith("tokenizer") and part is not None:
            most = part.model_max_length
            if not whole(most) or most > MOST_TOKENS:
                raise WrongModel(f"the model_max_length of its {name} is no number of up to {MOST_TOKENS:,}")
    config, taken = pipeline.vae.config, pipeline.unet.config.in_channels
    if taken != config.latent_channels:
        raise WrongModel(f"its network takes {taken} channels and its latents have {config.latent_channels}")
    if not 0 < abs(config.scaling_factor) < math.inf or not math.isfinite(config.shift_factor or 0.0):
        raise WrongModel("the scale of its latents is no number")


def _check_sides(config: dict[str, Any]) -> None:
    """Checks the sides of latents. Raises `WrongModel`."""
    size = config.get("sample_size")
    for side in size if isinstance(size, list) else [1 if size is None else size]:
        if not whole(side) or side > LARGEST_SIDE:
            raise WrongModel(f"sample_size in its configuration is no number of up to {LARGEST_SIDE}")
