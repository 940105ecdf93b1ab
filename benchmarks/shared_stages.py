"""What precedes DP-SGD, made once per seed and budget: noisy answers, auxiliary generator, warmed-up weights.

A training run that is prepared here finds them in its own folder, with its noisy answers charged to its own ledger,
and a checkpoint at step 0: the training script, unchanged, goes on from there. One noisy answer may serve several
releases: each of them is a function of that answer and of its own DP-SGD, and its ledger counts both, so that each
guarantee holds by itself. Publishing several of them costs no more than the sum of their ledgers says.
"""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from accelerate.utils import set_seed
from diffusers import UNet2DModel
from diffusers.training_utils import EMAModel

from diffusers_dp import FrequencyWarmupScheduler, PrivacyLedger, SensitiveImages
from diffusers_dp.accounting.ledger_row import LedgerRow
from diffusers_dp.data.images import load_images, public_facts
from diffusers_dp.distributed.processes import Processes
from diffusers_dp.errors import UsageError
from diffusers_dp.methods.config import FETAProConfig
from diffusers_dp.models import EDMDenoiser, FeatureGenerator
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.privacy.stored_answers import NoisyAnswers
from diffusers_dp.queries.query import Query
from diffusers_dp.release.unreleased import save_unreleased
from diffusers_dp.runs.checkpoints import find_checkpoint, position_of, save_checkpoint
from diffusers_dp.runs.diffusion_run import build_denoiser, build_pipeline, starting_model
from diffusers_dp.runs.folder import RunFolder
from diffusers_dp.runs.identity import read_identity, save_identity
from diffusers_dp.runs.plan import new_ledger, plan_run
from diffusers_dp.runs.warm_up import curriculum_batch, fit_generator, warm_up
from diffusers_dp.runs.warm_up_images import AuxiliaryImages, CentralImages


WARMED_UP = "warmed_up"  # the folder, in a run's private folder, of the pipeline before DP-SGD


class SharedStages:
    """A run folder that stops before DP-SGD; use it in a `with` statement, which holds the folder's lock.

    Args:
        config (`FETAProConfig`): Of a curriculum that asks both questions; its `output_dir` is the shared folder.
        device (`str`): Where the warm-up runs.
    """

    def __init__(self, config: FETAProConfig, device: str):
        if config.pretrains or config.pretrained_model_name_or_path is not None:
            raise UsageError(
                "Shared stages begin from nothing; leave out public images and --pretrained_model_name_or_path."
            )
        self.config, self.device = config, device
        self.facts = public_facts(config.data)
        self.plan = plan_run(config, self.facts)
        self.folder = RunFolder(config.output_dir)
        self._images: SensitiveImages | None = None

    def __enter__(self) -> "SharedStages":
        config, private = self.config, self.folder.private
        self.folder.create(resume=private.exists())
        save_identity(private, read_identity(private, config.dataset_id, config.ledger_path))
        self.ledger = new_ledger(self.config.ledger_path, self.config, self.facts)
        self.answers = NoisyAnswers(self.folder.private / "answers")
        return self

    def __exit__(self, *_) -> None:
        self._images = None  # a door has its ledger from construction, and the next entry opens another
        self.ledger.close()
        self.folder.close()

    def answer(self, query: Query) -> torch.Tensor:
        """The noisy answer; it is asked for the first time only."""
        row = self.plan.rows[query.name]
        return self.answers.ask(
            row, self.ledger,
            lambda: {"answer": query.answer(self._door(), noise_multiplier=row.noise_multiplier)},
            **query.meaning,
        )["answer"]  # fmt: skip

    def denoiser_after(self, stages: tuple[str, ...]) -> EDMDenoiser:
        """The denoiser after these stages of warm-up; curricula that begin alike share what they begin with."""
        set_seed(self.config.seed)
        denoiser, loss = build_denoiser(self.config, self.facts, self.device)
        if stages:
            path = self.folder.private / f"{WARMED_UP}_{'_'.join(stages)}"
            if not path.exists():
                before = self.denoiser_after(stages[:-1])
                self._warm_up(before, loss, stages[-1])
                _save(self.pipeline(before.unet), path, self.ledger)
            denoiser.unet.load_state_dict(UNet2DModel.from_pretrained(path / "unet").state_dict())
        return denoiser

    def pipeline(self, unet: UNet2DModel) -> DPImagePipeline:
        """With the flags' noise levels."""
        return build_pipeline(replace(starting_model(self.config, self.facts), unet=unet), self.facts)

    def _warm_up(self, denoiser: EDMDenoiser, loss: torch.nn.Module, name: str) -> None:
        set_seed(self.config.seed)  # a stage draws the same, whether those before it were made in this process or not
        flags = {key: getattr(self.config, key) for key in FrequencyWarmupScheduler().config if key[0] != "_"}
        scheduler = FrequencyWarmupScheduler(**{**flags, "curriculum": name})
        sources = {}
        if scheduler.needs("spatial"):
            central = self.answer(self.config.central_images_query)
            sources["spatial"] = CentralImages(central, self.facts.image_shape, self.config.seed)
        if scheduler.needs("frequency"):
            sources["frequency"] = AuxiliaryImages(self._generator(), self.config.num_auxiliary_images)
        stage, alone = scheduler.stages[0], Processes()
        warm_up(
            denoiser, loss, lambda: curriculum_batch(scheduler, sources, alone), num_steps=stage.num_steps,
            learning_rate=stage.learning_rate, ema_decay=self.config.ema_decay, processes=alone,
            title=f"Warm-up ({name})",
        )  # fmt: skip

    def _generator(self) -> FeatureGenerator:
        path = self.folder.private / "auxiliary_generator"
        if not path.exists():
            query = self.config.frequency_query
            embedding = self.answer(query).to(self.device)
            set_seed(self.config.seed)
            generator = FeatureGenerator(self.facts.image_shape, len(embedding), self.config.generator_channels)
            fit_generator(
                generator.to(self.device), query.embedding, embedding, num_steps=self.config.generator_steps,
                batch_size=self.config.generator_batch_size, learning_rate=self.config.generator_learning_rate,
                processes=Processes(),
            )  # fmt: skip
            _save(generator, path, self.ledger)
        set_seed(self.config.seed)
        return FeatureGenerator.from_pretrained(path).to(self.device)

    def _door(self) -> SensitiveImages:
        if self._images is None:
            arrays = load_images(self.config.data, self.facts, self.folder.private / "cache")
            self._images = SensitiveImages(
                arrays.images, arrays.labels, arrays.readable,
                num_images=self.facts.num_images, image_shape=self.facts.image_shape, ledger=self.ledger,
                class_names=self.facts.class_names, device=self.device,
            )  # fmt: skip
        return self._images


def prepare(shared: SharedStages, config: FETAProConfig) -> None:
    """Puts into a run's folder all that precedes DP-SGD, unless DP-SGD has begun there.

    Args:
        config (`FETAProConfig`): Of the run: as the shared one, but for `curriculum` and `output_dir`.
    """
    folder = RunFolder(config.output_dir)
    if find_checkpoint(folder.private, "latest") is not None:
        return
    # Without a checkpoint nothing was asked in this run's name: what lies there is a preparation that was interrupted.
    shutil.rmtree(config.output_dir, ignore_errors=True)
    folder.create()
    try:
        _fill(folder, shared, config)
    finally:
        folder.close()


def _fill(folder: RunFolder, shared: SharedStages, config: FETAProConfig) -> None:
    identity = read_identity(folder.private, config.dataset_id, config.ledger_path)
    save_identity(folder.private, identity)
    ledger = new_ledger(config.ledger_path, config, shared.facts, identity)
    answers = NoisyAnswers(folder.private / "answers")
    for query in config.queries:
        row, answer = shared.plan.rows[query.name], shared.answer(query)
        _charge(ledger, shared.ledger, query.name)
        answers.put(row, {"answer": answer}, **query.meaning)
        answers.get(row, ledger, **query.meaning)  # raises unless the run's own ledger holds what the answer cost
    unet = shared.denoiser_after(config.curriculum_stages).unet
    save_unreleased(shared.pipeline(unet), folder.private / WARMED_UP, ledger)
    save_checkpoint(
        folder.private, 0,
        unet=unet,
        ema=EMAModel(unet.parameters(), decay=config.ema_decay),
        optimizer=torch.optim.Adam(unet.parameters(), lr=config.learning_rate),
        ledger_position=position_of(ledger),
    )  # fmt: skip
    ledger.close()


def _charge(ledger: PrivacyLedger, asked: PrivacyLedger, stage: str) -> None:
    """Writes what was asked for a shared answer, with every fact, into the ledger of a run that uses it."""
    for row in asked.rows:
        if row["stage"] == stage:
            reservation = ledger.reserve(
                LedgerRow(
                    name=stage,
                    mechanism=row["mechanism"],
                    noise_multiplier=row["noise_multiplier"],
                    sampling_probability=row["sampling_probability"],
                    steps=row["steps_reserved"],
                    query=row["query"],
                    partition=row["partition"],
                    truncated_batch_size=row["truncated_batch_size"],
                )
            )
            ledger.executed(reservation, row["steps_executed"])


def _save(model: DPImagePipeline | FeatureGenerator, path: Path, ledger: PrivacyLedger) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    save_unreleased(model, temporary, ledger)
    os.replace(temporary, path)
