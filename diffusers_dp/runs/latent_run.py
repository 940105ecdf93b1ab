# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A run that fine-tunes a public latent pipeline: its images are encoded once, and DP-SGD sees latents."""

import copy
from dataclasses import replace
from typing import Any, TypeVar

import torch

from ..data.images import PublicFacts
from ..errors import UsageError
from ..methods.latents import LatentConfig
from ..models.adapters import choose_trained, trained_parameters
from ..models.latent_denoiser import LatentDenoiser, LatentLoss
from ..models.latents import LatentEncoder
from ..release.latent_artefacts import LatentArtefact
from ..release.latent_base import LatentBase, drawing_pipeline, load_base
from ..sampling.drawing import sample_grid
from .dp_sgd import Trained
from .pretrained import FLAG, origin_kept_in
from .prior_release import cost_of_start
from .run import TrainingRun


Config = TypeVar("Config", bound=LatentConfig)
Opened = tuple[LatentBase, LatentEncoder, LatentDenoiser]


class LatentRun(TrainingRun[Config]):
    """One run of a method that ends with DP-SGD on a network of latents.

    Attributes:
        base (`LatentBase`): The public pipeline.
        latents (`SensitiveImages`): The door to the latents of the images. `images` is the one to the images.
    """

    def _begin(self) -> list[dict[str, Any]]:
        config = self.config
        opened: Opened = self.opened or open_base(self.facts, config)
        self.base, self.encoder, self.denoiser = opened
        what = f"{FLAG} {config.pretrained_model_name_or_path}"
        cost = cost_of_start(self.base.folder, what, self.facts, **config.ledger_options)
        self.denoiser.to(self.processes.device)
        overlap = "unknown" if config.base_overlap == "unknown" else "no, as the trainer states"
        base = {**self.base.origin, "saw_training_images": overlap, **cost, **origin_kept_in(self.base.folder)}
        return [*super()._begin(), base]

    def _open(self, public_inputs: list[dict[str, Any]]) -> None:
        super()._open(public_inputs)
        self.latents = self.images.map(
            self.encoder, shape=self.encoder.shape(self.facts.image_shape), cache=self.folder.private / "cache",
            made_of=[self.made_of, self.encoder.facts], batch_size=self.config.encoding_batch_size,
        )  # fmt: skip
        self.done("encoding")

    def dp_sgd_on_latents(self, targets: tuple[str, ...]) -> None:
        """DP-SGD, from the last checkpoint on.

        Args:
            targets (`tuple[str, ...]`): The layers that get low-rank matrices; empty: those of the attention.
        """
        trained = make_trained(self.denoiser, targets, self.config)
        self.denoiser.to(self.processes.device)
        self.dp_sgd(trained, images=self.latents)

    def release_model(self, curriculum: dict[str, Any] | None = None) -> None:
        """Publishes adapters, or with `--merge` the whole pipeline."""
        config, classes = self.config, self.facts.id2label
        evaluation = self.evaluate(drawing_pipeline(self.base, classes, config.prompts, self.denoiser))
        artefact = LatentArtefact(
            self.base, self.denoiser, id2label=classes, prompts=config.prompts, merge=config.merges,
            draw_samples=lambda pipeline: sample_grid(pipeline, self.drawing),
        )  # fmt: skip
        self.release(artefact, curriculum, evaluation)


def open_base(facts: PublicFacts, config: LatentConfig) -> Opened:
    """The public pipeline, what encodes, and what denoises under the condition of the classes; nothing is trained yet.

    Raises:
        UsageError: See `load_base`; or the pipeline is one of other images.
    """
    name = config.pretrained_model_name_or_path
    if not name:
        raise UsageError(f"{FLAG} is needed: the Hub id or folder of a public latent pipeline.")
    base = load_base(name, config.pretrained_model_revision)
    encoder, taken = LatentEncoder(base.pipeline.vae), base.pipeline.vae.config.in_channels
    if facts.image_shape[0] not in (1, taken) or facts.image_shape[1:] != base.sides:
        raise UsageError(
            f"{FLAG} {name} takes images of {taken} channels and {base.sides[0]} pixels a side: give --resolution "
            f"{base.sides[0]} and --num_channels {taken}."
        )
    denoiser = base.denoiser(facts.id2label, config.prompts, bf16=config.precision == "bf16")
    denoiser.requires_grad_(False)
    if config.gradient_checkpointing:
        denoiser.network.enable_gradient_checkpointing()
    return base, encoder, denoiser


def make_trained(denoiser: LatentDenoiser, targets: tuple[str, ...], config: LatentConfig) -> Trained:
    """The trained parameters, newly made, and the loss of rows of latents."""
    kind = "lora" if config.has_adapters else config.train
    choose_trained(denoiser.network, kind, rank=config.lora_rank, targets=targets)
    return Trained(trained_parameters(denoiser), denoiser, LatentLoss(mixture=config.mixture))


def build(config: LatentConfig, facts: PublicFacts, device: torch.device | str) -> Trained:
    """What DP-SGD will train: other layers around the very weights of the base, which an audit leaves as they are. The
    run takes the base, to which no adapter was added."""
    base, encoder, denoiser = opened = open_base(facts, config)
    weights = {id(each): each for each in (*denoiser.parameters(), *denoiser.buffers())}
    trained = make_trained(copy.deepcopy(denoiser, weights), config.targets, config)
    trained.model.to(device)
    return replace(trained, row_shape=encoder.shape(facts.image_shape), opened=opened)
