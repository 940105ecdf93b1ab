# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A run that fine-tunes a public latent pipeline: its images are encoded once, and DP-SGD sees latents."""

import copy
from dataclasses import replace
from typing import Any, TypeVar

import torch
from tqdm.auto import tqdm

from ..data.images import PublicFacts
from ..data.public_images import PublicImages
from ..errors import IntegrityError, UsageError
from ..gradients import per_example_gradients
from ..methods.latents import LatentConfig
from ..models.adapters import attention_matrices, choose_trained, trained_parameters
from ..models.latent_denoiser import LatentDenoiser, LatentLoss
from ..models.latents import LatentEncoder
from ..privacy.separate_records import Features
from ..queries.query import Query
from ..queries.saliency import shares
from ..release.components import read_json
from ..release.latent_artefacts import LatentArtefact, refuse_no_adapters
from ..release.latent_base import LatentBase, drawing_pipeline, load_base
from ..sampling.drawing import sample_grid
from .dp_sgd import Trained
from .pretrained import ORIGIN_NAME
from .prior_release import facts_of_release, receipt_of_start, refuse_the_same_images
from .public_pretraining import KEPT_NAME, keep_pretrained, learned_or_public
from .run import TrainingRun
from .warm_up import warm_up


Config = TypeVar("Config", bound=LatentConfig)
FLAG = "--pretrained_model_name_or_path"
Opened = tuple[LatentBase, LatentEncoder, LatentDenoiser]


class LatentRun(TrainingRun[Config]):
    """One run of a method that ends with DP-SGD on a network of latents.

    Attributes:
        base (`LatentBase`): The public pipeline.
        latents (`SensitiveImages`): The door to the latents of the images. `images` is the one to the images.
        public (`PublicImages`, *optional*): That are to teach a new network, unless an earlier start did.
    """

    def _begin(self) -> list[dict[str, Any]]:
        config = self.config
        opened: Opened = self.opened or open_base(self.facts, config)
        self.base, self.encoder, self.denoiser = opened
        what = f"{FLAG} {config.pretrained_model_name_or_path}"
        learned, self.public = self._public()
        index = read_json(self.base.folder / "model_index.json")
        receipt, cost = receipt_of_start(self.base.folder, index, FLAG, self.base.name), {}
        if receipt is not None:
            refuse_the_same_images(receipt, self.facts, what, **config.ledger_options)
            cost = facts_of_release(receipt)
        if not config.merges:
            refuse_no_adapters(self.base)
        self.denoiser.to(self.processes.device)
        if self.base.is_new:
            self.processes.same_weights(self.denoiser.network)
        learned = learned if self.public is None else self.public.origin
        overlap = "unknown" if config.base_overlap == "unknown" else "no, as the trainer states"
        base = {**self.base.origin, "saw_training_images": overlap, **cost}
        if (self.base.folder / ORIGIN_NAME).exists():  # of what an earlier run taught a new network
            base["trained_on"] = read_json(self.base.folder / ORIGIN_NAME)
        return [*super()._begin(), base, *([] if learned is None else [learned])]

    def _public(self) -> tuple[dict[str, Any] | None, PublicImages | None]:
        """See `learned_or_public`."""
        private, public = self.folder.private, self.config.public_training
        learned, images = self.processes.on_first(lambda: learned_or_public(self, self.denoiser.network))
        if public is None and (private / KEPT_NAME).exists():
            raise UsageError("This run's network learned public images: resume with the flags of the first start.")
        if public is not None and images is None and learned is None:  # a checkpoint has the trained weights alone
            raise IntegrityError(f"{private / KEPT_NAME} is missing: restore it, or start anew.")
        return learned, images

    def _open(self, public_inputs: list[dict[str, Any]]) -> None:
        super()._open(public_inputs)
        self.latents = self.images.map(
            self.encoder, shape=self.encoder.shape(self.facts.image_shape), cache=self.folder.private / "cache",
            made_of=[self.made_of, self.encoder.facts], batch_size=self.config.encoding_batch_size,
        )  # fmt: skip
        self.done("encoding")

    def pretrain(self) -> None:
        """Teaches a new network the latents of the public images, where flags name some, under their classes' names as
        prompts, and keeps what came of it in `private/pretrained`."""
        public, training, config = self.public, self.config.public_training, self.config
        if public is None or training is None:
            return
        device, images = self.processes.device, public.images
        rows = self.processes.on_first(lambda: latents_of(self.encoder, images, config.encoding_batch_size, device))
        names = None if public.class_names is None else dict(enumerate(public.class_names))
        denoiser = self.base.denoiser(names, None, bf16=config.precision == "bf16").to(device)
        taught, size = replace(public, images=rows), self.processes.part(training.batch_size)
        denoiser.requires_grad_(True)
        warm_up(
            denoiser, LatentLoss(mixture=training.mixture), lambda: taught.batch(size), title="Public pre-training",
            num_steps=training.num_steps, learning_rate=training.learning_rate,
            lr_warmup_steps=training.lr_warmup_steps, ema_decay=config.ema_decay, processes=self.processes,
        )  # fmt: skip
        denoiser.requires_grad_(False)
        private, pipeline = self.folder.private, self.base.pipeline
        origin = public.origin
        self.processes.on_first(lambda: keep_pretrained(private, pipeline, origin, chosen=False))
        self.public = None
        self.done("public pre-training")

    def ask_latents(self, query: Query, features: Features) -> torch.Tensor:
        """As `ask`, of the latents."""
        return self.ask(query, features, images=self.latents)

    def saliency(self, times: tuple[float, ...], seed: int) -> Features:
        """Latents and labels to each record's shares of its squared gradient norm over the attention's matrices, at
        the weights as they are now: those of the base. Noise is the same for all, from a public seed."""
        at_once = self.config.encoding_batch_size
        return Saliency(self.denoiser, times, seed, at_once=at_once)

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
        config, classes = self.config, classes_of(self.facts)
        evaluation = self.evaluate(drawing_pipeline(self.base, classes, config.prompts, self.denoiser))
        artefact = LatentArtefact(
            self.base, self.denoiser, id2label=classes, prompts=config.prompts, merge=config.merges,
            draw_samples=lambda pipeline: sample_grid(pipeline, config.seed, config.num_inference_steps),
        )  # fmt: skip
        self.release(artefact, curriculum, evaluation)


class Saliency:
    """See `LatentRun.saliency`. Only `at_once` records' gradients are in memory, however many the door gives."""

    def __init__(self, denoiser: LatentDenoiser, times: tuple[float, ...], seed: int, *, at_once: int):
        self.denoiser, self.times, self.seed = denoiser, times, seed
        self.names, self.at_once = attention_matrices(denoiser.network), at_once

    def __call__(self, latents: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        rows = latents.split(self.at_once)
        classes = [None] * len(rows) if labels is None else labels.split(self.at_once)
        return torch.cat([self._shares(*part) for part in zip(rows, classes, strict=True)])

    def _shares(self, latents: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        network, denoiser = self.denoiser.network, self.denoiser
        network.requires_grad_(False)
        for name in self.names:
            network.get_submodule(name).weight.requires_grad_(True)
        generator = torch.Generator().manual_seed(self.seed)
        with torch.enable_grad(), per_example_gradients(denoiser, group_size=len(self.times)) as gradients:
            rows = latents.repeat_interleave(len(self.times), 0)
            noise = torch.randn(len(self.times), *latents.shape[1:], generator=generator).to(latents)
            noise = noise.repeat(len(latents), 1, 1, 1)
            times = torch.tensor(self.times).repeat(len(latents))
            row_labels = None if labels is None else labels.repeat_interleave(len(self.times))
            LatentLoss().at(denoiser, rows, row_labels, noise, times).sum().backward()
        each = gradients.per_example
        squares = [each[f"network.{name}.weight"].flatten(1).double().square().sum(1) for name in self.names]
        network.requires_grad_(False)
        return shares(torch.stack(squares, 1)).float()


@torch.no_grad()
def latents_of(
    encoder: LatentEncoder, images: torch.Tensor, batch_size: int, device: torch.device | str
) -> torch.Tensor:
    """Rows `[n, *shape]`, float32 on the CPU, of public images `[n, C, H, W]`, uint8."""
    batches = tqdm(images.split(batch_size), desc="Encoding public images", unit="batch")
    return torch.cat([encoder(batch.to(device).float() / 127.5 - 1).to("cpu", torch.float32) for batch in batches])


def classes_of(facts: PublicFacts) -> dict[int, str] | None:
    return None if facts.class_names is None else dict(enumerate(facts.class_names))


def open_base(facts: PublicFacts, config: LatentConfig) -> Opened:
    """The public pipeline, what encodes, and what denoises under the condition of the classes; nothing is trained yet.
    Where public images are named, what denoises is new.

    Raises:
        UsageError: See `load_base` and `LatentBase.with_new_network`; or the pipeline is one of other images.
    """
    name, network = config.pretrained_model_name_or_path, config.new_network
    if not name:
        raise UsageError(f"{FLAG} is needed: the Hub id or folder of a public latent pipeline.")
    base = load_base(name, config.pretrained_model_revision)
    encoder = LatentEncoder(base.pipeline.vae)
    size = base.network.config.sample_size
    sides = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
    factor = 2 ** (len(encoder.vae.config.block_out_channels) - 1)
    try:
        taken = encoder.shape(facts.image_shape)[1:]
    except ValueError as error:
        raise UsageError(f"{FLAG} {name} takes {error}; change --resolution or --num_channels.") from None
    if network is not None:
        latent_shape = encoder.vae.config.latent_channels, *taken
        base = base.with_new_network(latent_shape, config.seed, **network)
    elif taken != sides:
        raise UsageError(
            f"{FLAG} {name} makes images of {sides[0] * factor} pixels a side, and yours have {facts.image_shape[1]}; "
            f"give --resolution {sides[0] * factor}."
        )
    denoiser = base.denoiser(classes_of(facts), config.prompts, bf16=config.precision == "bf16")
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
