# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Public latent pipelines of Diffusers as the base of a release: checked, read only from safetensors, and referenced
so that anybody finds the same one.

No code of theirs is run: components are known classes of Diffusers and transformers.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers import DiffusionPipeline, StableDiffusionPipeline, StableDiffusionXLPipeline
from huggingface_hub.errors import StrictDataclassError

from ..data.public_images import origin_of_model
from ..errors import IntegrityError, UsageError, first_line
from ..models.latent_denoiser import LatentDenoiser, training_scheduler
from ..models.latent_pipeline import LatentImagePipeline
from ..verify import BASE_FILE, RECEIPT_NAME, check_base, file_digest
from .components import WRONG, WrongModel, load_whole, quiet, read_json, these_alone
from .hub import fetch_release, fetch_snapshot
from .latent_checks import TEXT_ENCODERS, TOKENIZERS, check_component, check_loaded


WEIGHTS = "diffusion_pytorch_model.safetensors"
#: All files that are fetched for a component.
FILES = ("*.json", "*.txt", "*.model", WEIGHTS, "diffusion_pytorch_model-*-of-*.safetensors", "model.safetensors",
         "model-*-of-*.safetensors")  # fmt: skip
#: File that transformers would load onto a text encoder by itself. It is no part of a base.
ADAPTER = "adapter_config.json"
DDPM_STEPS = (
    "DDIMScheduler", "DDPMScheduler", "DPMSolverMultistepScheduler", "EulerAncestralDiscreteScheduler",
    "EulerDiscreteScheduler", "LMSDiscreteScheduler", "PNDMScheduler", "UniPCMultistepScheduler",
)  # fmt: skip
#: Known pipelines, which are fine-tuned and draw candidates.
XL = "StableDiffusionXLPipeline"
KINDS: dict[str, type[DiffusionPipeline]] = {
    "StableDiffusionPipeline": StableDiffusionPipeline, XL: StableDiffusionXLPipeline,
}  # fmt: skip
#: The classes of their used components.
COMPONENTS = {
    "unet": ("UNet2DConditionModel",), "vae": ("AutoencoderKL",), "scheduler": DDPM_STEPS,
    "text_encoder": TEXT_ENCODERS, "tokenizer": TOKENIZERS,
}  # fmt: skip
OF_XL = {"text_encoder_2": TEXT_ENCODERS, "tokenizer_2": TOKENIZERS}


@dataclass(frozen=True)
class LatentBase:
    """
    Args:
        kind (`str`): Key of `KINDS`.
        pipeline (`DiffusionPipeline`): Pipeline on the CPU.
        name (`str`): Hub id, or "local folder".
        revision (`str`, *optional*): Commit; `None` for a local folder.
        files (`list[dict]`): `{"name": ..., "sha256": ...}` of all files that were read.
        licence (`str`): Licence that its card states.
        folder (`Path`): Folder of the pipeline.
    """

    kind: str
    pipeline: Any
    name: str
    revision: str | None
    files: list[dict[str, str]]
    licence: str
    folder: Path

    @property
    def network(self) -> Any:
        return self.pipeline.unet

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of its images in pixels."""
        size, factor = self.network.config.sample_size, self.pipeline.vae_scale_factor
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return factor * height, factor * width

    @property
    def reference(self) -> dict[str, Any]:
        """Reference to the base in a release."""
        return {"class": self.kind, "name": self.name, "revision": self.revision, "files": self.files}

    @property
    def origin(self) -> dict[str, Any]:
        """Origin of the base, for the receipt."""
        content = "".join(f"{file['sha256']}  {file['name']}\n" for file in self.files)
        return {
            "kind": "latent pipeline", "name": self.name, "revision": self.revision, "licence": self.licence,
            "files_sha256": hashlib.sha256(content.encode()).hexdigest(),
        }  # fmt: skip

    def denoiser(
        self, id2label: dict[int, str] | None, prompts: Sequence[str] | None, bf16: bool = False
    ) -> LatentDenoiser:
        """Returns the denoiser for training and sampling.

        Args:
            id2label (`dict`, *optional*): Classes; `None`: unconditional.
            prompts (sequence of `str`, *optional*): Prompts, one per class, or a single one without classes; `None`:
                the class names, or an empty prompt.
            bf16 (`bool`): Whether the network runs in mixed precision.

        Raises:
            UsageError: The number of prompts differs from that of classes.
        """
        num_classes = None if id2label is None else len(id2label)
        texts = list(prompts if prompts is not None else (id2label or {0: ""}).values())
        if len(texts) != (num_classes or 1):
            raise UsageError(f"--class_prompts are {len(texts)}, and there are {num_classes or 1}; give one for each.")
        texts += [] if num_classes is None else [""]
        with torch.no_grad():
            tokens, _, *pooled = self.pipeline.encode_prompt(
                texts, device="cpu", num_images_per_prompt=1, do_classifier_free_guidance=False
            )
        added = {}
        if self.kind == XL:  # Podell et al. 2023, Section 2.2: sizes of the file, of what was cut off, of the image
            sizes = torch.tensor([*self.sides, 0, 0, *self.sides], dtype=torch.float32)
            said = torch.tensor([text != "" for text in texts])
            if self.pipeline.config.force_zeros_for_empty_prompt:  # as the network learned
                tokens, pooled[0] = tokens * said[:, None, None], pooled[0] * said[:, None]
            added = {"text_embeds": pooled[0].float(), "time_ids": sizes.repeat(len(texts), 1)}
        scheduler, dtype = training_scheduler(self.pipeline.scheduler), torch.bfloat16 if bf16 else None
        return LatentDenoiser(self.network, scheduler, num_classes, tokens.float(), dtype, added)


def load_base(
    name: str,
    revision: str | None = None,
    *,
    flag: str = "--pretrained_model_name_or_path",
    stated: Sequence[str] | None = None,
    dtype: torch.dtype = torch.float32,
) -> LatentBase:
    """Fetches a latent pipeline and loads its used components: the files whose hashes `LatentBase.files` has, and no
    other file of the folder.

    Args:
        name (`str`): Folder of `save_pretrained`, or Hub id.
        revision (`str`, *optional*): Branch, tag or commit on the Hub; the reference always names the commit.
        flag (`str`): Flag that named it, for messages.
        stated (sequence of `str`, *optional*): Names of the files to load; defaults to all used files.
        dtype (`torch.dtype`): Type of the weights.

    Raises:
        UsageError: The pipeline does not exist, has an unknown kind, or its weights are not safetensors or incomplete.
    """
    used_files = (f"{part}/{pattern}" for part in (*COMPONENTS, *OF_XL) for pattern in FILES)
    patterns = ["model_index.json", "README.md", RECEIPT_NAME, *used_files]
    folder = fetch_release(name, revision, kind="a latent pipeline", files=patterns, flag=flag)
    part = "model_index.json"
    try:
        index = read_json(folder / part)
        kind, known = _checked_kind(index)
        used = [file for file in _used_files(folder, known) if stated is None or file in stated]
        listed = {key for key, entry in index.items() if isinstance(entry, list) and key[0] != "_"}
        parts: dict[str, Any] = dict.fromkeys(listed - set(known))  # which are not used
        with these_alone(folder, used) as place, quiet():
            for part in known:
                check_component(place, part, index[part][1], folder)
            for part in ("unet", "vae"):
                parts[part] = load_whole(getattr(diffusers, index[part][1]), place / part).to(dtype)
            part = "all"
            pipeline: Any = KINDS[kind].from_pretrained(place, use_safetensors=True, **parts)
            for component in pipeline.components.values():
                if isinstance(component, torch.nn.Module):
                    component.to(dtype).eval().requires_grad_(False)
        check_loaded(pipeline)
    except (*WRONG, WrongModel, StrictDataclassError) as error:
        reason = f"{flag} {name} is not taken ({part}: {first_line(error)})"
        raise UsageError(f"{reason}; choose a pipeline of {', '.join(KINDS)}.") from None
    pipeline.set_progress_bar_config(disable=True)
    files = [{"name": file, "sha256": file_digest(folder / file)} for file in used]
    return LatentBase(kind, pipeline, **origin_of_model(name, folder), files=files, folder=folder)


def referenced_base(reference: dict[str, Any], given: str | Path | None) -> LatentBase:
    """Loads exactly the base that a release references.

    Args:
        reference (`dict`): From a release, as `named_base` returns it.
        given (`str` or `Path`, *optional*): Its folder, where it is at hand. Without, the name is one of the Hub.

    Raises:
        UsageError: The base is neither local nor on the Hub.
        IntegrityError: It is not the base of the release.
    """
    name, revision = reference.get("name"), reference.get("revision")
    if given is None and revision is None:
        raise UsageError("This release is adapters of a base that lay in a folder; give that folder (`base`, --base).")
    place, stated = str(given or name), [file["name"] for file in reference["files"]]
    if given is None:  # whatever lies here under that name
        folder = fetch_snapshot(place, revision, kind="the base", files=stated, subject=f"the base {place}")
    else:
        folder = Path(given)
    problem = next(check_base(folder, reference), None)
    if problem is not None:
        raise IntegrityError(f"'{place}' is not the base of this release: {problem}")
    return load_base(str(folder), flag="the base", stated=stated)


def drawing_pipeline(
    base: LatentBase, id2label: dict[int, str] | None, prompts: Sequence[str] | None, denoiser: Any = None
) -> LatentImagePipeline:
    """Builds the pipeline that draws images of the classes."""
    denoiser = denoiser or base.denoiser(id2label, prompts)
    scheduler = denoiser.scheduler.from_config(denoiser.scheduler.config)  # training moved the tables of the other
    pipeline = LatentImagePipeline(denoiser, scheduler, base.pipeline.vae, id2label=id2label)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(denoiser.device)  # a resumed run, whose latents are there, has not moved the autoencoder


def _checked_kind(index: dict[str, Any]) -> tuple[str, dict[str, tuple[str, ...]]]:
    """Returns the kind of a pipeline, and the classes of its used components, if its own are among them. Raises
    `WrongModel`."""
    kind = index.get("_class_name")
    if kind not in KINDS:
        raise WrongModel(f"it is a {kind!r}")
    known = COMPONENTS | OF_XL if kind == XL else COMPONENTS
    for name, classes in known.items():
        library = "transformers" if classes in (TEXT_ENCODERS, TOKENIZERS) else "diffusers"
        if index.get(name) not in [[library, each] for each in classes]:
            raise WrongModel(f"its {name} is none of {', '.join(classes)}")
    return str(kind), known


def _used_files(folder: Path, components: Iterable[str]) -> list[str]:
    names = ["model_index.json"]
    for component in components:
        inside = sorted(path.name for path in (folder / component).glob("*") if path.is_file())
        wanted = [name for name in inside if any(fnmatch(name, pattern) for pattern in FILES) and name != ADAPTER]
        names += [f"{component}/{name}" for name in wanted]
    return [name for name in names if BASE_FILE.fullmatch(name)]
