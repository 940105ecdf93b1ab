# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The owner of a run: it holds folder, lock, ledger, door, processes and checkpoints, and lets a method ask questions,
run DP-SGD and release. `launch.py` has what comes before."""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from accelerate.utils import set_seed

from ..data.images import PublicFacts, load_images
from ..data.public_images import PublicImages
from ..data.shares import load_share
from ..distributed.processes import Processes
from ..distributed.shared_ledger import shared_ledger
from ..evaluation.charged import charged_evaluation
from ..methods.config import TrainingConfig
from ..methods.registry import METHODS
from ..models import Denoiser, TrainingLoss, build_objective
from ..pipelines import DPImagePipeline
from ..privacy.sensitive import SensitiveImages
from ..privacy.separate_records import Features
from ..privacy.stored_answers import NoisyAnswers
from ..queries.query import Query
from ..randomness.leaky_log import LEAKY_OUTPUT, LeakyLog
from ..release.build import build_release, sample_grid
from ..release.no_guarantee import save_without_guarantee
from ..release.push import push_finished
from ..release.unreleased import save_unreleased
from .checkpoints import find_checkpoint
from .dp_sgd import DPSGDSettings, Trained, run_dp_sgd
from .folder import RunFolder
from .identity import read_identity, save_identity
from .plan import Plan, dp_sgd_row, new_ledger
from .pretrained import StartingModel, fit_class_table, keep_pretrained, starting_model, starting_point
from .stages import StageTable
from .trackers import Tracker
from .warm_up import warm_up
from .warm_up_images import MixedImages


if TYPE_CHECKING:
    from ..queries.query import Finish

Config = TypeVar("Config", bound=TrainingConfig)


class TrainingRun(Generic[Config]):
    """One run of a method, from the first image that is read to the release.

    Args:
        config (`TrainingConfig`): The flags.
        facts (`PublicFacts`): What is public of the sensitive images.
        plan (`Plan`): What is asked, and what it costs.
        processes (`Processes`): Of the run.
        folder (`RunFolder`): Created, and locked.

    Attributes:
        images (`SensitiveImages`): The door.
        ledger (`PrivacyLedger`): The run's own, or that of `--dataset_id`.
        answers (`NoisyAnswers`): What was asked once and stored.
        model (`StartingModel`): The diffusion model that training begins with, on the run's device.
        public (`PublicImages`, *optional*): Public images that are to teach it, unless an earlier start did.
        resumes_dp_sgd (`bool`): Whether a checkpoint is there: all that comes before DP-SGD is over.
    """

    def __init__(self, config: Config, facts: PublicFacts, plan: Plan, processes: Processes, folder: RunFolder):
        self.config, self.facts, self.plan, self.processes, self.folder = config, facts, plan, processes, folder
        self.stages = StageTable()
        # All that is not private; the door draws noise, samples and the loss's draws from its own source.
        set_seed(config.seed, device_specific=True)
        with folder.discarded_on_error():
            self._open()

    def _open(self) -> None:
        config, processes, private = self.config, self.processes, self.folder.private
        self.checkpoint = processes.on_first(lambda: find_checkpoint(private, config.resume_from_checkpoint))
        self.model, origin, self.public = processes.on_first(
            lambda: starting_point(config, starting_model(config, self.facts), private, self.checkpoint)
        )
        cache = private / "cache"
        arrays = load_share(processes, lambda: load_images(config.data, self.facts, cache), cache)
        self.identity = processes.on_first(lambda: read_identity(private, config.dataset_id, config.ledger_path))
        self.ledger = shared_ledger(
            processes, lambda: new_ledger(config.ledger_path, config, self.facts, self.identity)
        )
        if self.ledger.rows:
            self.identity.resumes.append(
                0 if self.checkpoint is None else int(self.checkpoint.name.rpartition("-")[2])
            )
        self.identity.leaky_logs |= config.leaky_logs
        processes.note_start(self.identity.processes)
        if self.checkpoint is None:
            origin = origin if self.public is None else self.public.origin
            self.identity.public_inputs = [] if origin is None else [origin]
        processes.on_first(lambda: save_identity(private, self.identity))
        self.tracker = Tracker(config.report_to, private)
        processes.on_first(self.tracker.start)
        self.answers = NoisyAnswers(private / "answers", processes)
        self.images = SensitiveImages(
            arrays.images, arrays.labels, arrays.readable,
            num_images=self.facts.num_images, image_shape=self.facts.image_shape, class_names=self.facts.class_names,
            units=arrays.units, num_units=self.facts.declared_units, max_images_per_unit=config.images_per_unit,
            leaky_log=LeakyLog(private, config.max_grad_norm) if config.leaky_logs else None,
            device=processes.device, processes=processes,
        )  # fmt: skip
        self.model.unet.to(processes.device)

    @property
    def resumes_dp_sgd(self) -> bool:
        return self.checkpoint is not None

    @cached_property
    def diffusion(self) -> tuple[Denoiser, TrainingLoss]:
        """The denoiser around the model's UNet, and the loss of its training rows."""
        return build_objective(
            self.model.unet, self.model.scheduler, self.model.patch_size, **self.config.row_settings
        )

    @property
    def pipeline(self) -> DPImagePipeline:
        """The model as it is now."""
        return build_pipeline(self.model, self.facts)

    def pretrain(self) -> None:
        """Teaches the model the public images, where flags name some, and keeps what came of it in `private/pretrained`."""
        if self.public is None:
            return
        self.learn_from(self.public)
        origin = self.public.origin
        self.processes.on_first(lambda: keep_pretrained(self.folder.private, self.pipeline, origin))
        self.public = None
        self.done("public pre-training")

    def learn_from(self, images: PublicImages | MixedImages) -> None:
        """Ordinary training on public images, with their own classes, by the flags of the pre-training. The averaged weights
        go on, with the sensitive images' classes."""
        config, unet, labelled = self.config, self.model.unet, self.facts.class_names is not None
        public = config.public_training
        assert public is not None
        if labelled and images.num_classes is not None:
            fit_class_table(unet, images.num_classes)
        settings = {**config.row_settings, "mixture": public.mixture}
        denoiser, loss = build_objective(unet, self.model.scheduler, self.model.patch_size, **settings)
        size = self.processes.part(public.batch_size)
        warm_up(
            denoiser, loss, lambda: images.batch(size), num_steps=public.num_steps,
            learning_rate=public.learning_rate, lr_warmup_steps=public.lr_warmup_steps, ema_decay=config.ema_decay,
            processes=self.processes, title="Public pre-training",
        )  # fmt: skip
        fit_class_table(unet, None if self.facts.class_names is None else len(self.facts.class_names))

    def warm_up(self, stage: str, batch: Callable[[], Any], *, num_steps: int, learning_rate: float) -> None:
        """Ordinary training on images made from noisy answers, see `warm_up.warm_up`."""
        denoiser, loss = self.diffusion
        warm_up(
            denoiser, loss, batch, num_steps=num_steps, learning_rate=learning_rate,
            ema_decay=self.config.ema_decay, processes=self.processes, title=f"Warm-up ({stage})",
        )  # fmt: skip

    def ask(self, query: Query, features: Features | None = None, finish: "Finish | None" = None) -> torch.Tensor:
        """
        What a query's answer tells: the stored one or, the first time, that of the sensitive images. SIGTERM waits for it.

        Args:
            query (`Query`): One of the plan.
            features (`Callable`, *optional*): Of images and labels; by default the query's own.
            finish (`Callable`, *optional*): Post-processing, see `Query.answer`; by default the query's own.

        Returns:
            `torch.Tensor`: As `finish` made it, on the CPU.

        Raises:
            BudgetExceeded: The question would exceed the budget; nothing was asked.
            IntegrityError, UsageError: As `NoisyAnswers.get`; or the features mix records.
        """
        row = self.plan.rows[query.name]
        stored = self.answers.ask(
            row, self.ledger, lambda: {"answer": query.answer(
                self.images, noise_multiplier=row.noise_multiplier, ledger=self.ledger, features=features, finish=finish
            )}, **query.meaning,
        )  # fmt: skip
        self.done(query.title)
        return stored["answer"]

    def keep(self, name: str, model: Any) -> None:
        """Saves what noisy answers taught a model before DP-SGD, in the private folder: it is no release."""
        self.processes.on_first(lambda: save_unreleased(model, self.folder.private / name, self.ledger))

    def done(self, stage: str) -> None:
        """Notes the end of a stage, for the table that a run ends with."""
        self.stages.done(stage, self.ledger)

    def dp_sgd(self) -> None:
        """DP-SGD on the sensitive images, from the last checkpoint on."""
        denoiser, loss = self.diffusion
        config, plan = self.config, self.plan
        row = self.processes.on_first(lambda: dp_sgd_row(config, plan, self.ledger))
        run_dp_sgd(
            self.images, Trained(denoiser.unet, denoiser, loss), row, DPSGDSettings(**config.dp_sgd_settings),
            ledger=self.ledger, private=self.folder.private, largest_batch_size=plan.sampling.largest_batch_size,
            expected_batch_size=plan.sampling.expected_batch_size, checkpoint=self.checkpoint, tracker=self.tracker,
        )  # fmt: skip
        self.done("DP-SGD")

    def release(self, curriculum: dict[str, Any] | None = None) -> None:
        """Asks what was set aside for evaluation, and publishes the model. Of a run without noise there is no release, for it
        would claim a guarantee.

        Args:
            curriculum (`dict`, *optional*): Public facts about the warm-up, for the receipt.
        """
        config, processes, ledger = self.config, self.processes, self.ledger
        self.model.unet.eval()
        pipeline, evaluation = self.pipeline, []
        if config.evaluation_reserve is not None:
            evaluation = charged_evaluation(
                pipeline, self.images, self.plan.rows["evaluation_reserve"], ledger, self.answers,
                num_images=config.num_evaluation_images, num_inference_steps=config.num_inference_steps,
                seed=config.seed,
            )  # fmt: skip
            self.done("evaluation")
        if not processes.first_goes_on():
            return
        method = METHODS[config.method]
        if not ledger.has_guarantee:
            saved = save_without_guarantee(self.folder.output_dir, pipeline, method)
            print(self.stages, f"Saved {saved}, trained WITHOUT any privacy guarantee.", sep="\n")
            return
        samples = sample_grid(pipeline, 10, config.seed, config.num_inference_steps)
        release = build_release(
            self.folder.output_dir,
            unet=self.model.unet.to("cpu"),
            scheduler=pipeline.scheduler,
            ledger=ledger,
            id2label=pipeline.config.id2label,
            patch_size=self.model.patch_size,
            method=method,
            curriculum=curriculum,
            samples=samples,
            resumes=self.identity.resumes,
            leaky_outputs=[LEAKY_OUTPUT] if self.identity.leaky_logs else [],
            evaluation=evaluation,
            processes=self.identity.processes,
            public_inputs=self.identity.public_inputs,
        )
        self.done("samples and release")
        print(self.stages)
        print(f"Released {release} with epsilon {ledger.epsilon():.4f} at delta {ledger.target_delta:.3e}.")
        if config.push_to_hub:
            print(f"Pushed to {push_finished(config, release)}")


def build_denoiser(
    config: TrainingConfig, facts: PublicFacts, device: torch.device | str = "cpu"
) -> tuple[Denoiser, TrainingLoss]:
    """The model that a run with these flags begins with, and the loss of its training rows."""
    model = starting_model(config, facts)
    return build_objective(model.unet.to(device), model.scheduler, model.patch_size, **config.row_settings)


def build_pipeline(model: StartingModel, facts: PublicFacts) -> DPImagePipeline:
    id2label = None if facts.class_names is None else dict(enumerate(facts.class_names))
    pipeline = DPImagePipeline(model.unet, model.scheduler, id2label=id2label, patch_size=model.patch_size)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
