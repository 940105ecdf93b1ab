# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A public latent pipeline of Diffusers, as the base of a release: looked through, read from safetensors alone, and
named so that anybody finds the same one.

No code of it is run: its components are classes of Diffusers and transformers that are known here.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline, DiTPipeline, StableDiffusion3Pipeline, StableDiffusionPipeline
from diffusers.utils import logging
from transformers.utils import logging as transformers_logging

from ..data.public_images import licence_of
from ..errors import IntegrityError, UsageError, first_line
from ..models.latent_denoiser import LatentDenoiser, fit_label_tables, training_scheduler
from ..models.latent_pipeline import LatentImagePipeline
from ..models.unet import latent_unet
from ..verify import BASE_FILE, RECEIPT_NAME, check_base
from .components import WRONG, WrongModel, read_json, these_alone
from .hub import fetch_release


WEIGHTS = "diffusion_pytorch_model.safetensors"
#: All that is fetched of a component.
FILES = ("*.json", "*.txt", "*.model", WEIGHTS, "diffusion_pytorch_model-*-of-*.safetensors", "model.safetensors",
         "model-*-of-*.safetensors")  # fmt: skip
#: What transformers would put onto a text encoder by itself. It is no part of a base.
ADAPTER = "adapter_config.json"
TEXT_ENCODERS = ("CLIPTextModel", "CLIPTextModelWithProjection", "T5EncoderModel")
TOKENIZERS = ("CLIPTokenizer", "CLIPTokenizerFast", "T5Tokenizer", "T5TokenizerFast")
LAYER_COUNTS = ("layers_per_block", "transformer_layers_per_block", "num_layers", "num_hidden_layers",
                "num_decoder_layers", "num_single_layers")  # fmt: skip
MOST_POSITIONS = 2**29  # SD3.5's have 2**28
DDPM_STEPS = (
    "DDIMScheduler", "DDPMScheduler", "DPMSolverMultistepScheduler", "EulerAncestralDiscreteScheduler",
    "EulerDiscreteScheduler", "LMSDiscreteScheduler", "PNDMScheduler", "UniPCMultistepScheduler",
)  # fmt: skip
FLOW_STEPS = ("FlowMatchEulerDiscreteScheduler",)
#: The pipelines that are known, and the classes of what is used of them.
KINDS: dict[str, tuple[type[DiffusionPipeline], str, dict[str, tuple[str, ...]]]] = {
    "StableDiffusionPipeline": (StableDiffusionPipeline, "unet", {
        "unet": ("UNet2DConditionModel",), "vae": ("AutoencoderKL",), "scheduler": DDPM_STEPS,
        "text_encoder": TEXT_ENCODERS, "tokenizer": TOKENIZERS,
    }),
    "StableDiffusion3Pipeline": (StableDiffusion3Pipeline, "transformer", {
        "transformer": ("SD3Transformer2DModel",), "vae": ("AutoencoderKL",), "scheduler": FLOW_STEPS,
        **{f"text_encoder{number}": TEXT_ENCODERS for number in ("", "_2", "_3")},
        **{f"tokenizer{number}": TOKENIZERS for number in ("", "_2", "_3")},
    }),
    "DiTPipeline": (DiTPipeline, "transformer", {
        "transformer": ("DiTTransformer2DModel",), "vae": ("AutoencoderKL",), "scheduler": DDPM_STEPS,
    }),
}  # fmt: skip


@dataclass(frozen=True)
class LatentBase:
    """
    Args:
        kind (`str`): Of `KINDS`.
        pipeline (`DiffusionPipeline`): In float32, on the CPU.
        name (`str`): Hub id, or "local folder".
        revision (`str`, *optional*): The commit; `None` of a local folder.
        files (`list[dict]`): `{"name": ..., "sha256": ...}` of all that was read.
        licence (`str`): As its card states it.
        folder (`Path`): Where it lies.
        is_new (`bool`): Whether the network is another one, which knows nothing.
    """

    kind: str
    pipeline: Any
    name: str
    revision: str | None
    files: list[dict[str, str]]
    licence: str
    folder: Path
    is_new: bool = False

    @property
    def network_name(self) -> str:
        """`unet` or `transformer`."""
        return KINDS[self.kind][1]

    @property
    def network(self) -> Any:
        return getattr(self.pipeline, self.network_name)

    @property
    def reference(self) -> dict[str, Any]:
        """By which a release names it."""
        return {"class": self.kind, "name": self.name, "revision": self.revision, "files": self.files}

    @property
    def origin(self) -> dict[str, Any]:
        """For the receipt."""
        content = "".join(f"{file['sha256']}  {file['name']}\n" for file in self.files)
        return {
            "kind": "latent pipeline", "name": self.name, "revision": self.revision, "licence": self.licence,
            "files_sha256": hashlib.sha256(content.encode()).hexdigest(),
            **({"used": "autoencoder and text encoder"} if self.is_new else {}),
        }  # fmt: skip

    def with_new_network(self, latent_shape: tuple[int, int, int], seed: int, **network: Any) -> "LatentBase":
        """The same around a new UNet, whose weights come from a public seed.

        Args:
            latent_shape (`tuple[int, int, int]`), network: As for `models.unet.latent_unet`.

        Raises:
            UsageError: The pipeline has no text encoder that one UNet takes, or there is no such UNet.
        """
        if self.kind != "StableDiffusionPipeline":
            raise UsageError(
                "Public images teach a new UNet, which needs the text encoder of a StableDiffusionPipeline, and "
                f"--pretrained_model_name_or_path is a {self.kind}: name another, or leave the public images out."
            )
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            try:
                unet = latent_unet(latent_shape, self.pipeline.text_encoder.config.hidden_size, **network)
            except ValueError as error:
                raise UsageError(
                    f"--block_out_channels and --attention_resolutions ask for {first_line(error)}; give others."
                ) from None
        self.pipeline.register_modules(unet=unet.requires_grad_(False))
        return replace(self, is_new=True)

    def denoiser(
        self, id2label: dict[int, str] | None, prompts: Sequence[str] | None, bf16: bool = False
    ) -> LatentDenoiser:
        """The network as it is trained and drawn from.

        Args:
            id2label (`dict`, *optional*): The classes; `None`: unconditional.
            prompts (sequence of `str`, *optional*): One for each class, or a single one without; `None`: the classes'
                names, or nothing. Without effect on a DiT.
            bf16 (`bool`): Whether the network runs in mixed precision.

        Raises:
            UsageError: There are classes and not a prompt for each, or a DiT and no classes.
        """
        num_classes = None if id2label is None else len(id2label)
        dtype = torch.bfloat16 if bf16 else None
        scheduler = training_scheduler(self.pipeline.scheduler)
        if self.kind == "DiTPipeline":
            if num_classes is None:
                raise UsageError(
                    "--pretrained_model_name_or_path is a DiT, which needs classes, and your images have none; name "
                    "their column with --label_column, or choose another model."
                )
            fit_label_tables(self.network, num_classes)
            return LatentDenoiser(self.network, scheduler, num_classes, None, dtype)
        texts = list(prompts if prompts is not None else (id2label or {0: ""}).values())
        if len(texts) != (num_classes or 1):
            raise UsageError(f"--class_prompts are {len(texts)}, and there are {num_classes or 1}; give one for each.")
        return LatentDenoiser(self.network, scheduler, num_classes, self._encoded(texts, num_classes), dtype)

    @torch.no_grad()
    def _encoded(self, texts: list[str], num_classes: int | None) -> dict[str, torch.Tensor]:
        texts = texts if num_classes is None else [*texts, ""]
        if self.kind == "StableDiffusion3Pipeline":
            tokens, _, pooled, _ = self.pipeline.encode_prompt(
                texts, texts, texts, device="cpu", do_classifier_free_guidance=False
            )
            return {"tokens": tokens.float(), "pooled": pooled.float()}
        return {"tokens": self.pipeline.encode_prompt(texts, "cpu", 1, False)[0].float()}


def load_base(
    name: str,
    revision: str | None = None,
    *,
    flag: str = "--pretrained_model_name_or_path",
    stated: Sequence[str] | None = None,
) -> LatentBase:
    """Fetches a latent pipeline, and loads what of it is used: the files whose hashes `LatentBase.files` has, and no
    other file of the folder.

    Args:
        name (`str`): Folder of `save_pretrained`, or Hub id.
        revision (`str`, *optional*): Branch, tag or commit on the Hub; the reference always names the commit.
        flag (`str`): That named it, for messages.
        stated (sequence of `str`, *optional*): Names of the files that are loaded; unset: all that are of use.

    Raises:
        UsageError: There is none, it is of another kind, or its weights are not safetensors or not whole.
    """
    patterns = ["model_index.json", "README.md", RECEIPT_NAME, *(f"*/{pattern}" for pattern in FILES)]
    folder = fetch_release(name, revision, kind="a latent pipeline", files=patterns, flag=flag)
    try:
        index = read_json(folder / "model_index.json")
        kind, components = _components(index)
    except WrongModel as error:
        raise UsageError(f"{flag} {name} is not taken: {error}; choose a pipeline of {', '.join(KINDS)}.") from None
    used = [file for file in _used_files(folder, components) if stated is None or file in stated]
    with these_alone(folder, used) as place:
        pipeline = _load(place, index, kind, components, f"{flag} {name}")
    for component in pipeline.components.values():
        if isinstance(component, torch.nn.Module):
            component.float().eval().requires_grad_(False)
    pipeline.set_progress_bar_config(disable=True)
    from huggingface_hub import ModelCard

    local = Path(name).exists()
    files = [{"name": file, "sha256": _sha256(folder / file)} for file in used]
    return LatentBase(
        kind, pipeline, "local folder" if local else name, None if local else folder.name,
        files, licence_of(ModelCard, folder / "README.md"), folder,
    )  # fmt: skip


def _load(folder: Path, index: dict[str, Any], kind: str, components: list[str], named: str) -> Any:
    """The pipeline, of a folder that holds nothing but the files of `LatentBase.files`. Raises `UsageError`."""
    for component in components:
        _refuse_without_weights(folder, component, index[component][1], named)
        _refuse_larger(folder, component, index[component][1], named)
    levels = [(each, each.get_verbosity()) for each in (logging, transformers_logging)]
    for each, _ in levels:
        each.set_verbosity_error()
        each.disable_progress_bar()
    from safetensors import SafetensorError

    try:
        given: dict[str, Any] = {
            key: None for key in index if isinstance(index[key], list) and key[0] != "_" and key not in components
        }
        for component in (KINDS[kind][1], "vae"):
            given[component] = _whole(folder, component, index[component][1], named)
        return KINDS[kind][0].from_pretrained(folder, use_safetensors=True, **given)
    except (*WRONG, SafetensorError) as error:
        raise UsageError(f"{named} could not be loaded ({first_line(error)}); choose another.") from None
    finally:
        for each, level in levels:
            each.set_verbosity(level)
            each.enable_progress_bar()


def referenced_base(reference: dict[str, Any], given: str | Path | None) -> LatentBase:
    """The base that a release names, and no other.

    Args:
        reference (`dict`): Of `LatentBase.reference`, from a release whose receipt was verified.
        given (`str` or `Path`, *optional*): Its folder, where it is at hand.

    Raises:
        UsageError: It is not here and not on the Hub.
        IntegrityError: It is not the one that the release was made with.
    """
    name, revision = reference.get("name"), reference.get("revision")
    if given is None and revision is None:
        raise UsageError("This release is adapters of a base that lay in a folder; give that folder (`base`, --base).")
    place, stated = str(given or name), [file["name"] for file in reference["files"]]
    if given is None:
        folder = fetch_release(place, revision, kind="the base", files=stated)
    else:
        folder = Path(given)
    problem = next(check_base(folder, reference), None)
    if problem is not None:
        raise IntegrityError(f"'{place}' is not the base of this release: {problem}")
    return load_base(str(folder), flag="the base", stated=stated)


def drawing_pipeline(
    base: LatentBase, id2label: dict[int, str] | None, prompts: Sequence[str] | None, denoiser: Any = None
) -> LatentImagePipeline:
    """What draws images of the classes."""
    denoiser = denoiser or base.denoiser(id2label, prompts)
    pipeline = LatentImagePipeline(denoiser, denoiser.scheduler, base.pipeline.vae, id2label=id2label)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _components(index: dict[str, Any]) -> tuple[str, list[str]]:
    """The kind of a pipeline, and the components that are used and there. Raises `WrongModel`."""
    kind = index.get("_class_name")
    if kind not in KINDS:
        raise WrongModel(f"it is a {kind!r}")
    found = []
    for name, classes in KINDS[kind][2].items():
        entry = index.get(name)
        if entry in (None, [None, None]):
            if name.endswith(("_2", "_3")):
                continue
            raise WrongModel(f"it has no {name}")
        library = "transformers" if classes in (TEXT_ENCODERS, TOKENIZERS) else "diffusers"
        if not isinstance(entry, list) or entry[:1] != [library] or entry[1:] not in [[each] for each in classes]:
            raise WrongModel(f"its {name} is none of {', '.join(classes)}")
        found.append(name)
    return kind, found


def _used_files(folder: Path, components: list[str]) -> list[str]:
    names = ["model_index.json"]
    for component in components:
        inside = sorted(path.name for path in (folder / component).glob("*") if path.is_file())
        wanted = [name for name in inside if any(fnmatch(name, pattern) for pattern in FILES) and name != ADAPTER]
        names += [f"{component}/{name}" for name in wanted]
    return [name for name in names if BASE_FILE.fullmatch(name)]


def _refuse_without_weights(folder: Path, component: str, kind: str, named: str) -> None:
    has_weights = kind not in TOKENIZERS and not kind.endswith("Scheduler")
    if has_weights and not any((folder / component).glob("*.safetensors")):
        raise UsageError(
            f"{named} has no safetensors in {component}/, and pickles are not loaded; save it again with safetensors."
        )
    for path in (folder / component).glob("*.safetensors.index.json"):
        try:
            shards = {path.parent / str(shard) for shard in read_json(path)["weight_map"].values()}
        except (WrongModel, LookupError, AttributeError):
            shards = {path.parent}
        if not shards <= set(path.parent.iterdir()):
            raise UsageError(f"{named}: {component}/{path.name} names weights that are not beside it; choose another.")


def _refuse_larger(folder: Path, component: str, kind: str, named: str) -> None:
    """A configuration of a few bytes may describe any number of weights; memory is taken for those that are there.
    Raises `UsageError`."""
    import diffusers
    import transformers
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, list[int]] = {}
    try:
        for path in (folder / component).glob("*.safetensors"):
            with safe_open(path, "pt") as file:
                shapes.update({key: file.get_slice(key).get_shape() for key in file.keys()})  # noqa: SIM118
        if not shapes:  # it has no weights
            return
        config = read_json(folder / component / "config.json")
        if max(map(_layers, config.items())) > len(shapes) or _positions(config) > MOST_POSITIONS:
            raise WrongModel("it has more layers or positions than weights")
        with torch.device("meta"):
            if kind in TEXT_ENCODERS:
                model = getattr(transformers, kind)(getattr(transformers, kind).config_class.from_dict(config))
            else:
                model = getattr(diffusers, kind).from_config(config)
        if sum(weight.numel() for weight in model.parameters()) > 2 * sum(map(math.prod, shapes.values())):
            raise WrongModel("its configuration describes more weights than there are")
    except (*WRONG, WrongModel, SafetensorError) as error:
        raise UsageError(f"{named} is not taken ({component}: {first_line(error)}); choose another.") from None


def _layers(entry: tuple[str, Any]) -> int:
    key, value = entry
    counts = value if isinstance(value, list) else [value]
    is_count = key in LAYER_COUNTS and all(type(count) is int for count in counts)
    return sum(counts) if is_count else 0


def _positions(config: dict[str, Any]) -> int:
    """Numbers in a transformer's table of positions, which follow from its configuration and are no weights."""
    sides = [config.get(key) for key in ("sample_size", "pos_embed_max_size")]
    side, heads, width = (
        max((value for value in values if type(value) is int), default=1)
        for values in (sides, [config.get("num_attention_heads")], [config.get("attention_head_dim")])
    )
    return side**2 * heads * width


def _whole(folder: Path, component: str, kind: str, named: str) -> Any:
    import diffusers

    loaded, report = getattr(diffusers, kind).from_pretrained(
        folder / component, use_safetensors=True, low_cpu_mem_usage=False, output_loading_info=True
    )
    if report["missing_keys"] or report["unexpected_keys"]:
        raise UsageError(f"{named} has other weights in {component}/ than its configuration says; choose another.")
    for key, tensor in loaded.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise UsageError(f"{named} has weights that are no numbers ({component}: {key}); choose another.")
    return loaded


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
