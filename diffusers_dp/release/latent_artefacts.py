# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Releases of latent models: adapters with a reference to their base, or the whole pipeline."""

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from ..errors import IntegrityError, UsageError
from ..files.canonical import canonical_json
from ..models.adapters import merge_lora
from ..models.latent_denoiser import LatentDenoiser
from ..models.latent_pipeline import LatentImagePipeline
from .allow_list import ADAPTER_FILES, ADAPTERS, LORA_FILE, files_of
from .artefacts import IMAGES_PER_CLASS, model_card, sample_grid, write_text
from .components import (
    LARGEST_SIDE,
    WRONG,
    WrongModel,
    class_prompts,
    latent_classes,
    named_base,
    read_shapes,
    try_scheduler,
)
from .latent_base import KINDS, LatentBase, drawing_pipeline, load_base, referenced_base
from .latent_checks import first_reason


class LatentArtefact:
    """
    A latent model with its final weights.

    Args:
        base (`LatentBase`): Base from which training started; its network is the trained one.
        denoiser (`LatentDenoiser`): Denoiser of that network.
        id2label (`dict`, *optional*), prompts (sequence of `str`, *optional*): See `LatentBase.denoiser`.
        merge (`bool`): Whether the release contains the whole pipeline instead of LoRA matrices.
        seed (`int`), num_inference_steps (`int`): Seed and number of steps of `samples.png`.
    """

    def __init__(
        self,
        base: LatentBase,
        denoiser: LatentDenoiser,
        *,
        id2label: dict[int, str] | None,
        prompts: Sequence[str] | None,
        merge: bool,
        seed: int = 0,
        num_inference_steps: int = 20,
    ):
        self.base, self.denoiser, self.merge = base, denoiser, merge
        self.classes: dict[str, Any] = {
            "id2label": id2label,
            "class_prompts": None if prompts is None else list(prompts),
        }
        self.seed, self.num_inference_steps = seed, num_inference_steps
        self.files: tuple[str, ...] = ADAPTER_FILES  # for a whole pipeline `save` replaces it by the saved files

    def save(self, release: Path) -> None:
        drawing = drawing_pipeline(self.base, self.classes["id2label"], None, self.denoiser.to("cpu"))
        samples = sample_grid(drawing, IMAGES_PER_CLASS, self.seed, self.num_inference_steps)
        index: dict[str, Any] = {"_class_name": ADAPTERS, "base": self.base.reference}
        if self.merge:
            merge_lora(self.denoiser.network)
            with tempfile.TemporaryDirectory(dir=release.parent) as saved:
                self.base.pipeline.save_pretrained(saved, safe_serialization=True, max_shard_size="100GB")
                shutil.copytree(saved, release, dirs_exist_ok=True)
            index = json.loads((release / "model_index.json").read_text())
            for config in release.rglob("*config.json"):  # these state the folder from which they were loaded
                content = json.loads(config.read_text())
                write_text(config, canonical_json({key: content[key] for key in content if key != "_name_or_path"}))
            index = {key: value for key, value in index.items() if key != "_name_or_path"}
        else:
            from peft.utils import get_peft_model_state_dict

            layers = {f"{self.base.network_name}_lora_layers": get_peft_model_state_dict(self.denoiser.network)}
            KINDS[self.base.kind][0].save_lora_weights(release, safe_serialization=True, **layers)
        write_text(release / "model_index.json", canonical_json({**index, **self.classes}))
        samples.save(release / "samples.png")
        if self.merge:
            self.files = files_of(release)

    def state_privacy(self, release: Path, statement: dict[str, Any]) -> None:
        index = json.loads((release / "model_index.json").read_text())
        write_text(release / "model_index.json", canonical_json({**index, "privacy": statement}))

    def card(self, receipt: dict[str, Any]) -> ModelCard:
        """The guarantee is in the verifier's words, which looks for them."""
        labels, base = self.classes["id2label"], self.base
        tags = ["differential-privacy", "dp-sgd", "image-generation", "synthetic", *([] if self.merge else ["lora"])]
        named = None if self.merge or base.revision is None else base.name
        data = ModelCardData(library_name="diffusers", pipeline_tag="text-to-image", tags=tags, base_model=named)
        latent = {
            "kind": base.kind,
            "name": base.name,
            "revision": base.revision,
            "merged": self.merge,
            "new": base.is_new,
        }
        return model_card(data, receipt, labels, latent=latent)


def load_latent(release: Path, base: str | Path | None = None) -> LatentImagePipeline:
    """Loads the pipeline of a latent model's release, whose receipt was verified.

    Args:
        release (`Path`): Folder of the release.
        base (`str` or `Path`, *optional*): Folder of the base of adapters; by default it is fetched from the Hub.

    Raises:
        IntegrityError: The adapters do not fit the base, or the base is another one.
        UsageError: The base is not available.
    """
    names, reference = latent_classes(release), named_base(str(release), release)
    labels, prompts = None if names is None else dict(enumerate(names)), class_prompts(release)
    if reference is None:
        found = load_base(str(release), flag="the release")
    else:
        found = referenced_base(reference, base)
        load_adapters(found, release / LORA_FILE)
    try:
        drawing = drawing_pipeline(found, labels, prompts)
        try_scheduler(drawing.scheduler)
        if max(drawing.image_shape[1:]) > LARGEST_SIDE:
            raise ValueError(f"its images have more than {LARGEST_SIDE} pixels a side")
    except (*WRONG, WrongModel) as error:
        raise IntegrityError(f"'{release}' is not opened: it cannot draw ({first_reason(error)}).") from None
    return drawing


def load_adapters(base: LatentBase, path: Path) -> None:
    """Merges LoRA matrices into the weights of their base, so that drawing costs no more than from the base. Raises
    `IntegrityError` if they do not fit."""
    from safetensors import SafetensorError, safe_open

    if importlib.util.find_spec("peft") is None:
        raise UsageError("Adapters need a package: pip install diffusers_dp[lora].")
    try:
        shapes = read_shapes(path)
        if not all(len(shape) in (2, 4) for shape in shapes.values()):
            raise ValueError("some are no matrices")
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        prefix = f"{base.network_name}."
        if not tensors or not all(name.startswith(prefix) for name in tensors):
            raise ValueError("they are of another network")
        if not all(each.isfinite().all() for each in tensors.values()):
            raise ValueError("some are no numbers")
        base.network.load_lora_adapter(tensors, prefix=base.network_name)
        loaded = sum(1 for name, _ in base.network.named_parameters() if "lora_" in name)
        if not loaded == sum("lora_" in name for name in tensors) == len(tensors):
            raise ValueError("some have no layer in the base, or no partner")
        base.network.fuse_lora()
    except (*WRONG, WrongModel, SafetensorError) as error:
        raise IntegrityError(f"{path} are no adapters of this base ({first_reason(error)}).") from None


def refuse_no_adapters(base: LatentBase) -> None:
    """Raises `UsageError` if the pipeline cannot load adapters."""
    if not hasattr(KINDS[base.kind][0], "load_lora_weights"):
        raise UsageError(f"{base.kind} has no load_lora_weights, so that nobody could load adapters; give --merge.")
