# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Releases of latent models: adapters with a reference to their base, or the whole pipeline."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from PIL import Image

from ..errors import IntegrityError, UsageError, first_line, install
from ..files.canonical import canonical_json
from ..models.adapters import merge_lora
from ..models.latent_denoiser import LatentDenoiser
from ..models.latent_pipeline import LatentImagePipeline
from ..verify import ADAPTERS
from .allow_list import ADAPTER_FILES, merged_files
from .artefacts import without_path, write_text
from .cards import release_card
from .components import WRONG, WrongModel, read_shapes
from .latent_base import KINDS, LatentBase, drawing_pipeline


@dataclass
class LatentArtefact:
    """
    A latent model with its final weights.

    Args:
        base (`LatentBase`): Base from which training started; its network is the trained one.
        denoiser (`LatentDenoiser`): Denoiser of that network.
        id2label (`dict`, *optional*), prompts (sequence of `str`, *optional*): See `LatentBase.denoiser`.
        merge (`bool`): Whether the release contains the whole pipeline instead of LoRA matrices.
        draw_samples (`Callable`): Draws the picture in `samples.png` from the finished pipeline.
    """

    base: LatentBase
    denoiser: LatentDenoiser
    id2label: dict[int, str] | None
    prompts: Sequence[str] | None
    merge: bool
    draw_samples: Callable[[LatentImagePipeline], Image.Image]
    files: tuple[str, ...] = ADAPTER_FILES  # for a whole pipeline `save` replaces it by the saved files

    def save(self, release: Path) -> None:
        pipeline = drawing_pipeline(self.base, self.id2label, None, self.denoiser)
        samples = self.draw_samples(pipeline)
        pipeline.to("cpu")
        index: dict[str, Any] = {"_class_name": ADAPTERS, "base": self.base.reference}
        if self.merge:
            merge_lora(self.denoiser.network)
            self.base.pipeline.save_pretrained(release, safe_serialization=True, max_shard_size="100GB")
            for config in release.rglob("*config.json"):
                write_text(config, canonical_json(without_path(config)))
            index = without_path(release / "model_index.json")
        else:
            from peft.utils import get_peft_model_state_dict

            layers = get_peft_model_state_dict(self.denoiser.network)
            KINDS[self.base.kind].save_lora_weights(release, safe_serialization=True, unet_lora_layers=layers)
        classes = {"id2label": self.id2label, "class_prompts": None if self.prompts is None else list(self.prompts)}
        write_text(release / "model_index.json", canonical_json({**index, **classes}))
        samples.save(release / "samples.png")
        if self.merge:
            self.files = merged_files(release)

    def card(self, receipt: dict[str, Any]) -> str:
        base = self.base
        tags = ["differential-privacy", "dp-sgd", "image-generation", "synthetic", *([] if self.merge else ["lora"])]
        named = None if self.merge or base.revision is None else base.name
        data = ModelCardData(library_name="diffusers", pipeline_tag="text-to-image", tags=tags, base_model=named)
        facts = {"kind": base.kind, "name": base.name, "revision": base.revision}
        names = None if self.id2label is None else list(self.id2label.values())
        return release_card("model_card.md", data, receipt, names, latent={**facts, "merged": self.merge})


def load_adapters(base: LatentBase, path: Path) -> None:
    """Merges LoRA matrices into the weights of their base, so that drawing costs no more than from the base. Raises
    `IntegrityError` if they do not fit."""
    from safetensors.torch import load_file

    if importlib.util.find_spec("peft") is None:
        raise UsageError(f"Adapters need peft: {install('lora')}.")
    try:
        shapes = read_shapes(path)
        if not all(len(shape) in (2, 4) for shape in shapes.values()):
            raise ValueError("some are no matrices")
        tensors = load_file(path)
        if not tensors or not all(name.startswith("unet.") for name in tensors):
            raise ValueError("they are of another network")
        if not all(each.isfinite().all() for each in tensors.values()):
            raise ValueError("some are no numbers")
        base.network.load_lora_adapter(tensors, prefix="unet")
        loaded = sum(1 for name, _ in base.network.named_parameters() if "lora_" in name)
        if not loaded == sum("lora_" in name for name in tensors) == len(tensors):
            raise ValueError("some have no layer in the base, or no partner")
        base.network.fuse_lora()
    except (*WRONG, WrongModel) as error:
        raise IntegrityError(f"{path} are no adapters of this base ({first_line(error)}).") from None
