# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A public, pre-trained `UNet2DModel` pipeline as the start of DP-SGD, from a folder or the Hub.

Nothing of it is run: weights are safetensors, its pipeline class is not loaded, and its scheduler is one that this
library knows.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import DDIMScheduler, EDMDPMSolverMultistepScheduler, UNet2DModel
from torch import nn

from ..data.public_images import licence_of
from ..errors import UsageError, first_line
from ..files.file_modes import public_files
from ..gradients import per_example_gradients
from ..models.ddpm import linear_schedule
from ..models.denoiser import SIGMA_DATA
from ..models.objective import Scheduler
from ..models.unet import unet_config
from ..release.components import (
    DDIM,
    EDM_SCHEDULERS,
    UNET,
    WRONG,
    WrongModel,
    check_class_name,
    check_schedule,
    component,
    empty_unet,
    load_whole,
    quiet,
    read_json,
    read_shapes,
    these_alone,
    whole,
)  # fmt: skip
from ..release.hub import fetch_release
from ..words import RECEIPT_NAME
from .prior_release import facts_of_release, receipt_of_start


FLAG = "--pretrained_model_name_or_path"
ORIGIN_NAME = "origin.json"
WEIGHTS = "diffusion_pytorch_model.safetensors"
#: All that is fetched from the Hub: a pickle beside the weights never comes here.
FILES = ("model_index.json", "README.md", RECEIPT_NAME, "*config.json", f"unet/{WEIGHTS}", WEIGHTS)
DDPM_SCHEDULERS = ("DDPMScheduler", DDIM)  # the first is read as the second
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
        receipt (`dict`, *optional*): Receipt of a release of this library.
    """

    unet: UNet2DModel
    scheduler: Scheduler
    objective: str
    patch_size: int
    origin: dict[str, Any] | None
    receipt: dict[str, Any] | None = None


def new_model(
    image_shape: tuple[int, int, int],
    num_classes: int | None,
    network: dict[str, Any],
    *,
    objective: str,
    sigma_min: float,
) -> StartingModel:
    """A model that begins from nothing.

    Args:
        image_shape (`tuple[int, int, int]`), num_classes (`int`, *optional*): As for `load_pretrained`.
        network (`dict`): As `models.unet_config` takes it.
        objective (`str`), sigma_min (`float`): See the flags; `ddpm` has no lowest noise level.
    """
    edm = EDMDPMSolverMultistepScheduler(sigma_min=sigma_min, sigma_data=SIGMA_DATA)
    scheduler = linear_schedule() if objective == "ddpm" else edm
    unet = UNet2DModel(**unet_config(image_shape, num_classes, **network))
    return StartingModel(unet, scheduler, objective, network["patch_size"], None)


@public_files()  # what is downloaded is shared by all who use that cache
def load_pretrained(
    name: str, *, image_shape: tuple[int, int, int], num_classes: int | None, revision: str | None = None
) -> StartingModel:
    """Loads a pipeline of a `UNet2DModel` and gives it a class table that fits.

    Args:
        name (`str`): Folder of a saved pipeline, or Hub id.
        image_shape (`tuple[int, int, int]`): (C, H, W) of the sensitive images.
        num_classes (`int`, *optional*): Size of their label set; `None` for unlabelled images.
        revision (`str`, *optional*): Branch, tag or commit on the Hub.

    Raises:
        UsageError: There is none, or it is of another kind, size or number of channels. Its weights are not
            safetensors, are incomplete, or are no numbers. It mixes the images of a batch. Or it learned from
            sensitive images and is no whole release.
    """
    folder = fetch_release(name, revision, kind="a saved pipeline", files=FILES, flag=FLAG)
    try:
        index = read_json(folder / "model_index.json")
        receipt = receipt_of_start(folder, index, FLAG, name)
        objective, scheduler = _scheduler(folder, index)
        unet, weights = _unet(folder, index)
        patch_size = index.get("patch_size", 1)
        if not whole(patch_size):
            raise WrongModel(f"it has the patch size {patch_size!r}, which is none")
        check_size(unet, image_shape, patch_size)
        check_layers(unet)
        origin = _origin(name, folder, weights)
    except (*WRONG, WrongModel) as error:
        raise UsageError(f"{FLAG} {name} is not taken: {first_line(error)}; choose another model.") from None
    for layer in unet.modules():
        if isinstance(layer, nn.Dropout):  # its masks would come from a seeded source, and draws must be secret
            layer.p = 0.0
    unet.register_to_config(dropout=0.0)
    fit_class_table(unet, num_classes, name)
    origin |= {} if receipt is None else facts_of_release(receipt)
    return StartingModel(unet, scheduler, objective, patch_size, origin, receipt)


def check_size(unet: UNet2DModel, image_shape: tuple[int, int, int], patch_size: int) -> None:
    """Raises `WrongModel` where the model is not one of such images, or predicts more than one value per pixel."""
    config = unet.config
    size = config.sample_size if isinstance(config.sample_size, (list, tuple)) else [config.sample_size] * 2
    if None in size or config.in_channels % patch_size**2:
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


def check_layers(unet: UNet2DModel) -> None:
    """Raises `WrongModel` where a layer computes statistics over a batch (BatchNorm), or has no rule for per-example
    gradients."""
    unet.train()
    try:
        per_example_gradients(unet)
    except TypeError as error:
        raise WrongModel(f"it cannot be trained with DP-SGD: {str(error).rstrip('.')}") from None


def fit_class_table(unet: UNet2DModel, num_classes: int | None, name: str = "") -> None:
    """Gives a model a class table of `num_classes + 1` rows, the last for "no label".

    A table of that size stays. A missing one is added with rows of zeros, which change nothing of what the model
    computes; one of another size, for other classes, is replaced by rows that each are the mean of its rows.

    Raises:
        UsageError: The model is conditioned on something else, or needs labels and there are none.
    """
    rows = None if num_classes is None else num_classes + 1
    if unet.config.class_embed_type is not None:
        raise UsageError(
            f"{FLAG} {name} is conditioned on '{unet.config.class_embed_type}', not on a class table; choose another."
        )
    if unet.config.num_class_embeds == rows:
        return
    if rows is None:
        raise UsageError(
            f"{FLAG} {name} needs labels, and your images have none; name their column with --label_column."
        )
    table = nn.Embedding(rows, unet.time_embedding.linear_2.out_features, device=unet.device)
    with torch.no_grad():
        table.weight.copy_(unet.class_embedding.weight.mean(0) if unet.class_embedding is not None else torch.zeros(1))
    unet.class_embedding = table
    unet.register_to_config(num_class_embeds=rows)


def _scheduler(folder: Path, index: dict[str, Any]) -> tuple[str, Scheduler]:
    kind, known = component(index, "scheduler"), DDPM_SCHEDULERS + EDM_SCHEDULERS
    if kind not in known:
        raise WrongModel(f"it has the scheduler {kind}, which is none of {', '.join(known)}")
    path = folder / "scheduler" / "scheduler_config.json"
    config = read_json(path if path.exists() else folder / "scheduler_config.json")
    check_class_name(config, known, path.name)
    check_schedule(config)
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
    if component(index, "unet") != UNET:
        raise WrongModel("it is no pipeline of a UNet2DModel, such as a DDPMPipeline")
    place = folder / "unet" if (folder / "unet").is_dir() else folder
    if not (place / WEIGHTS).is_file():
        raise WrongModel(f"it has no {WEIGHTS}, and pickles are not loaded: save it again with safetensors")
    config, shapes = read_json(place / "config.json"), read_shapes(place / WEIGHTS)
    check_class_name(config, (UNET,), "its config.json")
    empty_unet(config, shapes)
    with these_alone(place, ("config.json", WEIGHTS)) as alone, quiet():
        return load_whole(UNet2DModel, alone).float(), place / WEIGHTS


def _origin(name: str, folder: Path, weights: Path) -> dict[str, Any]:
    """Id, commit, hash of the weights and licence; of a local folder no path."""
    from huggingface_hub import ModelCard

    local = Path(name).exists()
    kept = folder / ORIGIN_NAME  # of a model that an earlier run of `train_dp_diffusion.py` kept
    return {
        "kind": "pre-trained model",
        "name": "local folder" if local else name,
        "revision": None if local else folder.name,
        "weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "licence": licence_of(ModelCard, folder / "README.md"),
        **({"trained_on": read_json(kept)} if kept.exists() else {}),
    }
