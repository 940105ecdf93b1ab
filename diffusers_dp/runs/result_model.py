# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A diffusion model of images that noisy answers were made into: ordinary training, for as long as one likes. And a
generator as a release can hold it."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..data.images import PublicFacts
from ..methods.flag_groups import ModelFlags
from ..methods.generator_flags import DIFFUSION_BATCH_SIZE
from ..models.denoiser import Denoiser, TrainingLoss
from ..models.feature_generator import FeatureGenerator
from ..models.one_step import OneStepGenerator, one_step_scheduler
from ..pipelines import DPImagePipeline
from .diffusion_run import build_pipeline, objective_of
from .moments_run import NoisyMoments, distil
from .pretrained import StartingModel, new_model
from .warm_up import AuxiliaryImages, LabelledImages, warm_up


if TYPE_CHECKING:
    from .run import TrainingRun


PART_OF_MOMENTS = 0.8  # of the steps; the rest learns the drawn images, which have the grey levels


def new_image_model(
    facts: PublicFacts, network: dict[str, Any], device: torch.device | str
) -> tuple[StartingModel, Denoiser, TrainingLoss]:
    """An untrained model of such images, its denoiser, and EDM's loss. `network` as `models.unet_config` takes it."""
    edm = ModelFlags()
    model = new_model(facts, network, objective="edm", sigma_min=edm.sigma_min)
    model.unet.to(device)
    return model, *objective_of(model, edm, None, bf16=False)


def model_of_images(
    run: "TrainingRun[Any]", images: LabelledImages, moments: NoisyMoments | None = None
) -> DPImagePipeline:
    """A diffusion model that learned images by EDM's loss. A release has no code of what made the images.

    Args:
        run (`TrainingRun`): Run whose flags have the network, steps, batch size and learning rate.
        images (`LabelledImages`): They follow from noisy answers alone.
        moments (`NoisyMoments`, *optional*): Moments that the images were drawn from. Most steps then learn their
            ideal denoiser, which takes fewer of them.
    """
    config, processes = run.config, run.processes
    model, denoiser, loss = new_image_model(run.facts, config.network, processes.device)
    size = processes.part(DIFFUSION_BATCH_SIZE)
    # The learning rate is that of all measured rows.
    settings: dict[str, Any] = {"learning_rate": 2e-3, "ema_decay": 0.999, "processes": processes}
    steps = config.diffusion_steps
    if moments is not None:
        of_moments = int(PART_OF_MOMENTS * steps)
        distil(denoiser, loss, moments, num_steps=of_moments, batch_size=DIFFUSION_BATCH_SIZE, **settings)
        steps -= of_moments
    warm_up(denoiser, loss, lambda: images.batch(size), num_steps=steps, title="Diffusion model", **settings)
    run.done("diffusion model")
    return build_pipeline(model, run.facts)


def model_of_generator(run: "TrainingRun[Any]", generator: FeatureGenerator) -> DPImagePipeline:
    """A diffusion model that learned a generator's images.

    Args:
        run (`TrainingRun`): Run whose flags are those of `GeneratorFlags`, and of a network.
        generator (`FeatureGenerator`): Trained on noisy answers alone. It stays in the private folder.
    """
    run.keep("generator", generator)
    return model_of_images(run, AuxiliaryImages(generator, run.config.num_generated_images))


def new_generator(
    config: Any, facts: PublicFacts, device: torch.device | str
) -> tuple[DPImagePipeline | None, OneStepGenerator | FeatureGenerator]:
    """A `OneStepGenerator` and the release of its network; or a `FeatureGenerator`, whose code no release has.

    Args:
        config (`GeneratorFlags` and `NetworkFlags`): Kind and size of the generator.
        facts (`PublicFacts`): The shape and the classes of the images.
    """
    if config.generator == "residual":
        return None, FeatureGenerator(facts.image_shape, facts.num_classes or 1, config.generator_channels).to(device)
    model = new_model(facts, config.network, objective="ddpm", sigma_min=0.0)
    model = replace(model, scheduler=one_step_scheduler())
    return build_pipeline(model, facts), OneStepGenerator(model.unet.to(device), model.patch_size)
