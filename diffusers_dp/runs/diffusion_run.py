# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A run that trains a diffusion model: what it begins with, what it learns from public images and from noisy answers,
and DP-SGD."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from diffusers import DDIMScheduler

from ..data.images import PublicFacts
from ..data.public_images import PublicImages, of_classes
from ..errors import UsageError
from ..methods.flag_groups import ModelFlags
from ..methods.flags import DiffusionConfig
from ..models.denoiser import DDPMDenoiser, DDPMLoss, Denoiser, EDMDenoiser, EDMLoss, TrainingLoss
from ..models.row_augmentation import AugmentedLoss
from ..models.unet import fit_class_table
from ..pipelines import DPImagePipeline
from ..privacy.sensitive import SensitiveImages
from ..privacy.teachers import Teachers
from ..queries.semantic import semantic_classes
from ..randomness.timestep_mixture import TimestepMixture
from .dp_sgd import Trained
from .pretrained import FLAG, StartingModel, keep_pretrained, learned_or_public, load_pretrained, new_model
from .run import TrainingRun
from .warm_up import MixedImages, warm_up


Config = TypeVar("Config", bound=DiffusionConfig)


class DiffusionRun(TrainingRun[Config]):
    """One run of a method that ends with DP-SGD on a diffusion model.

    Attributes:
        model (`StartingModel`): The diffusion model that training begins with, on the run's device.
        public (`PublicImages`, *optional*): Public images that are to teach it, unless an earlier start did.
    """

    def _begin(self) -> list[dict[str, Any]]:
        config = self.config

        def begin() -> tuple[StartingModel, dict[str, Any] | None, PublicImages | None]:
            model = starting_model(config, self.facts)
            return model, *learned_or_public(self, model.unet, mixes=config.mix_public_images)

        self.model, learned, self.public = self.processes.on_first(begin)
        self.model.unet.to(self.processes.device)
        origin = self.model.origin if config.public_training is None else learned
        return [*([] if origin is None else [origin]), *super()._begin()]

    @cached_property
    def diffusion(self) -> tuple[Denoiser, TrainingLoss]:
        """The denoiser around the model's UNet, and the loss of its training rows."""
        return objective_of_rows(self.model, self.config)

    @property
    def pipeline(self) -> DPImagePipeline:
        """The model as it is now."""
        return build_pipeline(self.model, self.facts)

    def pretrain(self) -> None:
        """Teaches the model the public images, where flags name some, and keeps what came of it in
        `private/pretrained`."""
        query = self.config.semantic_query
        if self.public is None:
            if query is not None:  # raises where the stored answer is that of another network
                self.answers.get(self.plan.rows[query.name], self.ledger, **query.meaning)
            return
        self.learn_from(self._alike(self.public))
        origin, chosen = self.public.origin, query is not None
        self.processes.on_first(lambda: keep_pretrained(self.folder.private, self.pipeline, origin, chosen=chosen))
        self.public = None
        self.done("public pre-training")

    def _alike(self, public: PublicImages) -> PublicImages:
        """The public images of the classes that the sensitive ones look like, with the labels of these, where that is
        asked (PrivImage, Li et al. 2024)."""
        query = self.config.semantic_query
        if query is None:
            return public
        if public.num_classes != query.classifier.num_classes:
            raise UsageError(
                f"--semantic_query_network tells {query.classifier.num_classes} classes apart, and the public images "
                f"are of {public.num_classes or 'unknown'}: give a classifier of their classes, in their order."
            )
        names = self.facts.class_names
        query.check_classes(len(names or ("",)), query.classifier.num_classes)  # before anything is asked
        return of_classes(public, semantic_classes(self.ask(query), query.classes_per_class), names is not None)

    def learn_from(self, images: PublicImages | MixedImages) -> None:
        """Ordinary training on public images, not augmented, with their own classes, by the flags of the pre-training.
        The averaged weights go on, with the sensitive images' classes."""
        config, unet, labelled = self.config, self.model.unet, self.facts.class_names is not None
        public = config.public_training
        assert public is not None
        if labelled and images.num_classes is not None:
            fit_class_table(unet, images.num_classes)
        denoiser, loss = objective_of(self.model, config, public.mixture, bf16=config.precision == "bf16")
        size = self.processes.part(public.batch_size)
        warm_up(
            denoiser, loss, lambda: images.batch(size), num_steps=public.num_steps,
            learning_rate=public.learning_rate, lr_warmup_steps=public.lr_warmup_steps, ema_decay=config.ema_decay,
            processes=self.processes, title="Public pre-training",
        )  # fmt: skip
        fit_class_table(unet, self.facts.num_classes)

    def warm_up(self, stage: str, batch: Callable[[], Any], *, num_steps: int, learning_rate: float) -> None:
        """Ordinary training on images made from noisy answers, once, see `warm_up.warm_up` and `learn`."""
        denoiser, loss = self.diffusion
        settings: dict[str, Any] = {"num_steps": num_steps, "learning_rate": learning_rate}
        settings["ema_decay"] = self.config.ema_decay

        def teach() -> None:
            warm_up(denoiser, loss, batch, processes=self.processes, title=f"Warm-up ({stage})", **settings)

        self.learn(stage, denoiser.unet, teach, settings)

    def dp_sgd(self, trained: Trained | None = None, *, images: SensitiveImages | Teachers | None = None) -> None:
        """DP-SGD on the sensitive images, from the last checkpoint on; of the diffusion model, unless something else
        is given."""
        denoiser, loss = self.diffusion
        super().dp_sgd(trained or Trained(denoiser.unet, denoiser, loss), images=images)

    def release_model(self, curriculum: dict[str, Any] | None = None) -> None:
        """Publishes the diffusion model, see `release_pipeline`."""
        self.release_pipeline(self.pipeline, curriculum)


def starting_model(config: DiffusionConfig, facts: PublicFacts) -> StartingModel:
    """The model that training begins with: `--pretrained_model_name_or_path`, where the method has it and it is given,
    else one from nothing as the flags describe it.

    Args:
        facts (`PublicFacts`): Public facts of the sensitive images.

    Raises:
        UsageError: As `load_pretrained`; or `--objective` or `--expert auxiliary`
            contradicts the pre-trained model.
    """
    name, revision = config.starts_from
    if name is None:
        objective = config.objective or config.default_objective
        return new_model(facts, config.network, objective=objective, sigma_min=config.sigma_min)
    model = load_pretrained(name, facts, revision=revision, **config.ledger_options)
    if config.objective not in (None, model.objective):
        raise UsageError(
            f"--objective {config.objective} contradicts {FLAG} {name}, which was trained for {model.objective}; "
            "leave it out."
        )
    if model.objective != "edm" and config.needs_edm is not None:
        raise UsageError(
            f"{config.needs_edm}, and {FLAG} {name} was trained for {model.objective}; leave it out, or give another "
            "model."
        )
    if config.sigma_min != ModelFlags.sigma_min:
        if model.objective != "edm":
            raise UsageError(
                f"--expert sigma_min has no effect on {FLAG} {name}, which was trained for {model.objective}; leave "
                "it out."
            )
        if config.sigma_min >= model.scheduler.config.sigma_max:
            raise UsageError(
                f"--expert sigma_min is {config.sigma_min}, and sampling of {FLAG} {name} begins at noise of "
                f"{model.scheduler.config.sigma_max:g}; give a smaller number."
            )
        scheduler = type(model.scheduler).from_config(model.scheduler.config, sigma_min=config.sigma_min)
        model = replace(model, scheduler=scheduler)
    return model


def objective_of_rows(model: StartingModel, config: DiffusionConfig) -> tuple[Denoiser, TrainingLoss]:
    """The denoiser, and the loss of DP-SGD's rows and of noisy images, which `--augmentations` change."""
    return objective_of(
        model, config, config.mixture, augmentations=config.augmentation_names, bf16=config.precision == "bf16"
    )


def objective_of(
    model: StartingModel,
    settings: ModelFlags,
    mixture: TimestepMixture | None,
    *,
    augmentations: Sequence[str] = (),
    bf16: bool,
) -> tuple[Denoiser, TrainingLoss]:
    """The denoiser around the model's UNet, and the loss of its training rows.

    Args:
        model (`StartingModel`): Its scheduler's type selects the objective, with its noise levels.
        settings (`ModelFlags`): Mean and standard deviation of ln(sigma), for EDM.
        mixture (`TimestepMixture`, *optional*): Distribution of diffusion times.
        augmentations (sequence of `str`): Augmentations applied to each row independently.
        bf16 (`bool`): Whether the UNet runs in mixed precision.
    """
    unet, scheduler, patch_size = model.unet, model.scheduler, model.patch_size
    autocast_dtype = torch.bfloat16 if bf16 else None
    denoiser: Denoiser
    loss: TrainingLoss
    if isinstance(scheduler, DDIMScheduler):
        denoiser = DDPMDenoiser(unet, scheduler, patch_size, autocast_dtype)
        loss = DDPMLoss(mixture=mixture)
    else:
        denoiser = EDMDenoiser(unet, scheduler.config.sigma_data, patch_size, autocast_dtype)
        loss = EDMLoss(p_mean=settings.p_mean, p_std=settings.p_std, mixture=mixture)
    return denoiser, AugmentedLoss(loss, tuple(augmentations)) if augmentations else loss


def build_pipeline(model: StartingModel, facts: PublicFacts) -> DPImagePipeline:
    pipeline = DPImagePipeline(model.unet, model.scheduler, id2label=facts.id2label, patch_size=model.patch_size)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def build(config: DiffusionConfig, facts: PublicFacts, device: torch.device | str) -> Trained:
    """The diffusion model that DP-SGD will train, see `Method`."""
    model = starting_model(config, facts)
    model.unet.to(device)
    denoiser, loss = objective_of_rows(model, config)
    return Trained(denoiser.unet, denoiser, loss)
