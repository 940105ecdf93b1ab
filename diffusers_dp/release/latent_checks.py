# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a latent pipeline says of itself, checked before a component of it is built or its weights are read. It may be
a stranger's."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch.nn.modules import module

from ..errors import first_line
from ..files.untrusted_files import is_own, read_bounded
from .components import (
    BYTES,
    LARGEST_SIDE,
    MOST_JSON,
    WRONG,
    WrongModel,
    check_schedule,
    read_json,
    read_shapes,
    refuse_large_numbers,
    whole,
    widest,
)


TEXT_ENCODERS = ("CLIPTextModel", "CLIPTextModelWithProjection", "T5EncoderModel")
TOKENIZERS = ("CLIPTokenizer", "CLIPTokenizerFast", "T5Tokenizer", "T5TokenizerFast")
#: Keys that make Diffusers or transformers import other packages, or fetch code.
CODE = ("quantization_config", "auto_map", "attn_implementation", "_attn_implementation",
        "_attn_implementation_internal")  # fmt: skip
#: Numbers of a configuration that no weight shows are at most that: classes, positions and tokens of known models.
LARGEST_NUMBER = 2**17
#: Numbers in a table of positions, which is no weight, where the weights are fewer.
LEAST_POSITIONS = 2**22
MOST_TOKENS = 4_096  # of a prompt
#: What building or loading a stranger's component can raise, beside what `WRONG` has.
WRONG_COMPONENT = (*WRONG, WrongModel, SafetensorError, StrictDataclassError)
BASE_BYTES = {**BYTES, "I64": 8, "I32": 4}  # of positions, which old text encoders hold as tensors
SHARDS = "*.safetensors.index.json"


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
        for path in place.glob("*.json"):  # a vocabulary may be a list
            if path.name.endswith("config.json") and "auto_map" in json.loads(read_bounded(path, MOST_JSON)):
                raise WrongModel("it names code")
        return None
    shapes: dict[str, tuple[int, ...]] = {}
    if not any(place.glob("*.safetensors")):
        raise WrongModel("it has no safetensors, and pickles are not loaded: save it again with safetensors")
    for path in place.glob("*.safetensors"):
        shapes.update(read_shapes(path, BASE_BYTES))
    _check_shards(place)
    config = read_json(place / "config.json")
    _check_config(config, shapes)
    numbers = sum(map(math.prod, shapes.values()))
    if _positions(config) > max(numbers, LEAST_POSITIONS):
        raise WrongModel("it has more positions than weights")
    with torch.device("meta"), _bounded(tensors=len(shapes), numbers=numbers):
        _build(kind, config)
    return None


def check_loaded(pipeline: Any) -> None:
    """What shows in a loaded pipeline alone. Raises `WrongModel`."""
    for name, part in pipeline.components.items():
        if name.startswith("tokenizer") and part is not None and not whole(part.model_max_length):
            raise WrongModel(f"{name} has no model_max_length")
        if name.startswith("tokenizer") and part is not None and part.model_max_length > MOST_TOKENS:
            raise WrongModel(f"{name} takes prompts of {part.model_max_length:.6g} tokens")
    config = pipeline.vae.config
    if not 0 < abs(config.scaling_factor) < math.inf or not math.isfinite(config.shift_factor or 0.0):
        raise WrongModel("the scale of its latents is no number")


@contextmanager
def _bounded(tensors: int, numbers: int) -> Iterator[None]:
    """Building a network in here ends as soon as it has more parameters, or many more modules, than there are weights.
    Raises `WrongModel`."""
    seen: dict[int, torch.nn.Parameter] = {}  # each once, though it may have several names
    found = {"modules": 0, "numbers": 0}

    def note_parameter(_: Any, __: str, parameter: Any) -> None:
        if parameter is None or id(parameter) in seen:
            return
        seen[id(parameter)] = parameter
        found["numbers"] += parameter.numel()
        # Twice: a file may lack some, and whoever loads it says which.
        if len(seen) > 2 * tensors + 16 or found["numbers"] > 2 * numbers:
            raise WrongModel("its configuration describes more weights than there are")

    def note_module(*_: Any) -> None:
        found["modules"] += 1
        if found["modules"] > 20 * tensors + 1_000:
            raise WrongModel("its configuration describes more layers than there are weights")

    hooks = (
        module.register_module_parameter_registration_hook(note_parameter),
        module.register_module_module_registration_hook(note_module),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _build(kind: str, config: dict[str, Any]) -> None:
    import diffusers
    import transformers

    try:
        if kind in TEXT_ENCODERS:
            getattr(transformers, kind)(getattr(transformers, kind).config_class.from_dict(config))
        else:
            getattr(diffusers, kind).from_config(config)
    except (*WRONG, StrictDataclassError) as error:
        raise WrongModel(f"its configuration describes no model: {first_line(error)}") from None


def _check_config(config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    for key in CODE:
        if config.get(key) is not None:
            raise WrongModel(f"{key} in its configuration asks for code or packages")
    refuse_large_numbers(config, max(widest(shapes), LARGEST_NUMBER), "in its configuration")
    for key in ("sample_size", "pos_embed_max_size"):
        value = config.get(key)
        sides: list[Any] = value if isinstance(value, list) else [value]
        if value is not None and not all(whole(side) and side <= LARGEST_SIDE for side in sides):
            raise WrongModel(f"{key} in its configuration is no number of up to {LARGEST_SIDE}")


def _check_shards(place: Path) -> None:
    """Checks that an index of shards names files of its own folder. Raises `WrongModel`."""
    here = {path.name for path in place.glob("*.safetensors")}
    for path in place.glob(SHARDS):
        named = read_json(path).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(file, str) and file in here for file in named.values()):
            raise WrongModel(f"{path.name} names weights that are not beside it")


def _positions(config: dict[str, Any]) -> int:
    """Numbers in a transformer's table of positions, which follow from its configuration and are no weights."""
    sides = [config.get(key) for key in ("sample_size", "pos_embed_max_size")]
    side, heads, width = (
        max((value for value in values if type(value) is int), default=1)
        for values in (sides, [config.get("num_attention_heads")], [config.get("attention_head_dim")])
    )
    return side**2 * heads * width
