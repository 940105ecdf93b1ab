# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What public images teach a model before DP-SGD: learned once, kept in private/, and found by a later start."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffusers import DiffusionPipeline, UNet2DConditionModel, UNet2DModel

from ..data.public_images import PublicImages, load_public_images
from ..errors import IntegrityError, UsageError
from ..files.canonical import canonical_json
from ..files.journal import put_in_place
from ..release.unreleased import UNRELEASED_PRIVACY
from .pretrained import ORIGIN_NAME, WEIGHTS
from .prior_release import cost_of_public_images


if TYPE_CHECKING:
    from .run import TrainingRun


KEPT_NAME = "pretrained"


def learned_or_public(
    run: "TrainingRun[Any]", unet: UNet2DModel | UNet2DConditionModel, *, mixes: bool = False
) -> tuple[dict[str, Any] | None, PublicImages | None]:
    """The origin of what public images taught a network at an earlier start, which it gets, or the images that are to
    teach it.

    Args:
        run (`TrainingRun`): Run whose flags have `public_training`.
        unet (`UNet2DModel` or `UNet2DConditionModel`): The network.
        mixes (`bool`): Whether the network learns from public images and from central images together.

    Raises:
        UsageError: See `load_public_images` and `cost_of_public_images`; or an earlier start without
            `--mix_public_images` has taught the model public images alone.
    """
    config, private, public = run.config, run.folder.private, run.config.public_training
    origin = None if public is None else kept_pretrained(private, unet)
    if mixes and run.checkpoint is None and origin is not None:
        raise UsageError(
            "--mix_public_images was not given at this run's first start, which has taught its model public images "
            "already; leave it out, or start anew."
        )
    if public is None or origin is not None or run.checkpoint is not None:
        return origin, None
    facts = {**public.facts, **cost_of_public_images(public.images, run.facts, **config.ledger_options)}
    return None, load_public_images(public.images, config.data, private / "cache", training=facts)


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
        index = json.loads((folder / "model_index.json").read_bytes())
        (folder / "model_index.json").write_text(canonical_json({**index, "privacy": UNRELEASED_PRIVACY}))
    (folder / ORIGIN_NAME).write_text(canonical_json(origin), encoding="utf-8")
    put_in_place(folder, private / KEPT_NAME)


def kept_pretrained(private: Path, unet: UNet2DModel | UNet2DConditionModel) -> dict[str, Any] | None:
    """Loads what `keep_pretrained` saved into a model of the run, and returns the origin; `None` where nothing was
    saved yet.

    Raises:
        IntegrityError: It is damaged, or of another model.
    """
    folder = private / KEPT_NAME
    if not folder.is_dir():
        return None
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        unet.load_state_dict(load_file(folder / "unet" / WEIGHTS))
        return dict(json.loads((folder / ORIGIN_NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise IntegrityError(
            f"{folder} is damaged or of another model ({type(error).__name__}): resume with the flags of the first "
            "start, or start anew."
        ) from None
