# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The model that DP-SGD starts from: from nothing, from a public `UNet2DModel` pipeline in a folder or on the Hub, or
from what public images taught it, which is learned once, kept in private/, and found by a later start.

Nothing of a pipeline is run: weights are safetensors, its pipeline class is not loaded, and its scheduler is one that
this library knows.
"""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from diffusers import DDIMScheduler, DiffusionPipeline, EDMDPMSolverMultistepScheduler, UNet2DModel
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from ..data.images import PublicFacts
from ..data.public_images import PublicImages, load_public_images, origin_of_model
from ..data.records import DataSource
from ..errors import IntegrityError, UsageError, first_line
from ..files.canonical import canonical_json
from ..files.journal import put_in_place
from ..gradients.per_example import per_example_gradients
from ..models.denoiser import SIGMA_DATA, linear_schedule
from ..models.unet import fit_class_table, unet_config
from ..release import components
from ..release.components import DDIM, EDM_SCHEDULERS, UNET, WRONG, WrongModel, read_json
from ..release.hub import fetch_release
from ..release.marked import UNRELEASED_PRIVACY
from ..verify import RECEIPT_NAME
from .prior_release import cost_of_public_images, cost_of_start


if TYPE_CHECKING:
    from .run import TrainingRun


FLAG = "--pretrained_model_name_or_path"
ORIGIN_NAME, KEPT_NAME = "origin.json", "pretrained"  # in the folder of a model that public images taught; its name
WEIGHTS = "diffusion_pytorch_model.safetensors"
#: All that is fetched from the Hub: a pickle beside the weights never comes here.
FILES = ("model_index.json", "README.md", RECEIPT_NAME, "*config.json", f"unet/{WEIGHTS}", WEIGHTS)
DDPM_SCHEDULERS = ("DDPMScheduler", DDIM)  # the first is read as the second
Scheduler: TypeAlias = "DDIMScheduler | EDMDPMSolverMultistepScheduler"
PREDICTIONS = {"ddpm": ("epsilon", "sample", "v_prediction"), "edm": ("epsilon",)}


@dataclass(frozen=True)
class StartingModel:
    """A model that training begins with.

    Args:
        unet (`UNet2DModel`): In float32, on the CPU.
        scheduler (`DDIMScheduler` or `EDMDPMSolverMultistepScheduler`): To sample with: that of the pipeline, or the
            quicker one of the same noise levels.
        objective (`str`): `ddpm` or `edm`, which follows from the scheduler.
        patch_size (`int`): Patch size of a pipeline that folds patches into channels.
        origin (`dict`, *optional*): Id or "local folder", revision, hash of the weights and licence, and what a
            release cost, for the receipt; `None` of a model that begins from nothing.
    """

    unet: UNet2DModel
    scheduler: Scheduler
    objective: str
    patch_size: int
    origin: dict[str, Any] | None


def new_model(facts: PublicFacts, network: dict[str, Any], *, objective: str, sigma_min: float) -> StartingModel:
    """A model of such images that begins from nothing.

    Args:
        network (`dict`): As `models.unet_config` takes it.
        objective (`str`), sigma_min (`float`): See the flags; `ddpm` has no lowest noise level.
    """
    scheduler: Scheduler = linear_schedule()
    if objective != "ddpm":
        scheduler = EDMDPMSolverMultistepScheduler(sigma_min=sigma_min, sigma_data=SIGMA_DATA)
    unet = UNet2DModel(**unet_config(facts.image_shape, facts.num_classes, **network))
    return StartingModel(unet, scheduler, objective, network["patch_size"], None)


def load_pretrained(
    name: str, facts: PublicFacts, *, revision: str | None = None, **ledger_options: Any
) -> StartingModel:
    """Loads a pipeline of a `UNet2DModel` and gives it a class table that fits.

    Args:
        name (`str`): Folder of a saved pipeline, or Hub id.
        facts (`PublicFacts`): Public facts of the sensitive images.
        revision (`str`, *optional*): Branch, tag or commit on the Hub.
        ledger_options: Where the run's queries are counted, see `cost_of_release`.

    Raises:
        UsageError: There is none, or it is of another kind, size or number of channels. Its weights are not
            safetensors, are incomplete, or are no numbers. It mixes the images of a batch. It learned from sensitive
            images and is no whole release, or is one of probably the same images.
    """
    folder = fetch_release(name, revision, kind="a saved pipeline", files=FILES, flag=FLAG)
    try:
        index = read_json(folder / "model_index.json")
        cost = cost_of_start(folder, f"{FLAG} {name}", facts, **ledger_options)
        objective, scheduler = _scheduler(folder, index)
        unet, weights = _unet(folder, index)
        patch_size = index.get("patch_size", 1)
        check_size(unet, facts.image_shape, patch_size)
        per_example_gradients(unet.train())  # refuses layers without a rule, and statistics over a batch
        fit_class_table(unet, facts.num_classes)
    except (*WRONG, WrongModel) as error:
        raise UsageError(f"{FLAG} {name} is not taken: {first_line(error)}; choose another model.") from None
    for layer in unet.modules():
        if isinstance(layer, nn.Dropout):  # its masks would come from a seeded source, and draws must be secret
            layer.p = 0.0
    unet.register_to_config(dropout=0.0)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    origin = {"kind": "pre-trained model", **origin_of_model(name, folder), "weights_sha256": digest}
    return StartingModel(unet, scheduler, objective, patch_size, {**origin, **origin_kept_in(folder), **cost})


def check_size(unet: UNet2DModel, image_shape: tuple[int, int, int], patch_size: int) -> None:
    """Raises `WrongModel` where the model is not one of such images, or predicts more than one value per pixel."""
    config = unet.config
    size = config.sample_size if isinstance(config.sample_size, (list, tuple)) else [config.sample_size] * 2
    if None in size or not components.whole(patch_size) or config.in_channels % patch_size**2:
        raise WrongModel("it does not tell the size of its images")
    theirs = (config.in_channels // patch_size**2, *(side * patch_size for side in size))
    if theirs != tuple(image_shape):
        shapes = ["x".join(map(str, shape)) for shape in (theirs, image_shape)]
        raise WrongModel(
            f"it makes images of {shapes[0]} (channels, height, width) and yours are {shapes[1]}, where --resolution "
            f"{theirs[1]} --num_channels {theirs[0]} would fit"
        )
    if config.out_channels != config.in_channels:
        raise WrongModel(
            f"it has {config.out_channels} output channels for {config.in_channels} input channels (it learned "
            "variances as well)"
        )


def _scheduler(folder: Path, index: dict[str, Any]) -> tuple[str, Scheduler]:
    kind, known = components.component(index, "scheduler"), DDPM_SCHEDULERS + EDM_SCHEDULERS
    if kind not in known:
        raise WrongModel(f"it has the scheduler {kind}, which is none of {', '.join(known)}")
    path = folder / "scheduler" / "scheduler_config.json"
    config = read_json(path if path.exists() else folder / "scheduler_config.json")
    components.check_class_name(config, known, path.name)
    components.check_schedule(config)
    objective = "ddpm" if kind in DDPM_SCHEDULERS else "edm"
    if objective == "ddpm" and config.get("num_train_timesteps") == 1:
        raise WrongModel("it makes images in one step and is no diffusion model")
    if config.get("prediction_type", "epsilon") not in PREDICTIONS[objective]:
        raise WrongModel(f"it predicts {config['prediction_type']!r}, which is none of {PREDICTIONS[objective]}")
    if objective == "edm":
        return objective, EDMDPMSolverMultistepScheduler.from_config(config)
    # Few steps are taken from the last one on, where images are noise, as the sampler starts.
    return objective, DDIMScheduler.from_config(config, timestep_spacing="trailing")


def _unet(folder: Path, index: dict[str, Any]) -> tuple[UNet2DModel, Path]:
    if components.component(index, "unet") != UNET:
        raise WrongModel("it is no pipeline of a UNet2DModel, such as a DDPMPipeline")
    place = folder / "unet" if (folder / "unet").is_dir() else folder
    if not (place / WEIGHTS).is_file():
        raise WrongModel(f"it has no {WEIGHTS}, and pickles are not loaded: save it again with safetensors")
    config, shapes = read_json(place / "config.json"), components.read_shapes(place / WEIGHTS)
    components.check_class_name(config, (UNET,), "its config.json")
    components.empty_unet(config, shapes)
    with components.these_alone(place, ("config.json", WEIGHTS)) as alone, components.quiet():
        return components.load_whole(UNet2DModel, alone).float(), place / WEIGHTS


def origin_kept_in(folder: Path) -> dict[str, Any]:
    """What public images an earlier run taught a model that it kept; empty of other models."""
    return {"trained_on": read_json(folder / ORIGIN_NAME)} if (folder / ORIGIN_NAME).exists() else {}


def learned_or_public(
    run: "TrainingRun[Any]", unet: nn.Module, *, mixes: bool = False
) -> tuple[dict[str, Any] | None, PublicImages | None]:
    """The origin of what public images taught a network at an earlier start, which it gets; or their origin and the
    images that are to teach it.

    Args:
        run (`TrainingRun`): Run whose flags have `public_training`.
        unet (`nn.Module`): The network.
        mixes (`bool`): Whether the network learns from public images and from central images together.

    Raises:
        UsageError: See `priced_images`; or an earlier start without
            `--mix_public_images` has taught the model public images alone.
    """
    private, public = run.folder.private, run.config.public_training
    origin = None if public is None else kept_pretrained(private, unet)
    if mixes and run.checkpoint is None and origin is not None:
        raise UsageError(
            "--mix_public_images was not given at this run's first start, which has taught its model public images "
            "already; leave it out, or start anew."
        )
    if public is None or origin is not None or run.checkpoint is not None:
        return origin, None
    images = priced_images(run, public.images, public.facts)
    return images.origin, images


def keep_pretrained(private: Path, pipeline: DiffusionPipeline, origin: dict[str, Any], *, chosen: bool) -> None:
    """Saves what public images taught a model in `private/pretrained`, whole or not at all: a run that is interrupted
    later goes on from there. Other runs may take it as their `--pretrained_model_name_or_path`, unless it depends on
    sensitive images: then it says so of itself.

    Args:
        private (`Path`): The run's private folder.
        pipeline (`DiffusionPipeline`): The model.
        origin (`dict`): Origin of the images; those of a release have an epsilon.
        chosen (`bool`): Whether a noisy answer chose among the images.
    """
    folder = private / f".{KEPT_NAME}"
    shutil.rmtree(folder, ignore_errors=True)  # of a start that was interrupted here
    pipeline.save_pretrained(folder)
    if chosen or "epsilon" in origin:
        index = read_json(folder / "model_index.json")
        (folder / "model_index.json").write_text(canonical_json({**index, "privacy": UNRELEASED_PRIVACY}))
    (folder / ORIGIN_NAME).write_text(canonical_json(origin), encoding="utf-8")
    put_in_place(folder, private / KEPT_NAME)


def kept_pretrained(private: Path, unet: nn.Module) -> dict[str, Any] | None:
    """Loads what `keep_pretrained` saved into a model of the run, and returns the origin; `None` where nothing was
    saved yet.

    Raises:
        IntegrityError: It is damaged, or of another model.
    """
    folder = private / KEPT_NAME
    if not folder.is_dir():
        return None
    try:
        unet.load_state_dict(load_file(folder / "unet" / WEIGHTS))
        return read_json(folder / ORIGIN_NAME)
    except (OSError, ValueError, RuntimeError, SafetensorError, WrongModel) as error:
        raise IntegrityError(
            f"{folder} is damaged or of another model ({type(error).__name__}): resume with the flags of the first "
            "start, or start anew."
        ) from None


def priced_images(run: "TrainingRun[Any]", source: DataSource, training: dict[str, Any]) -> PublicImages:
    """Public images, with what a release cost that they are, and with these facts of their training, in their origin.
    Raises `UsageError`, see `load_public_images` and `cost_of_public_images`."""
    facts = {**training, **cost_of_public_images(source, run.facts, **run.config.ledger_options)}
    return load_public_images(source, run.config.data, run.folder.private / "cache", training=facts)
