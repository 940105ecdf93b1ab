# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The owner of a run: it holds folder, lock, ledger, door, processes and checkpoints, and lets a method ask queries,
run DP-SGD and release. `launch.py` has what comes before."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import torch
from accelerate.utils import set_seed
from torch import nn

from ..accounting.epsilon import largest_sample
from ..accounting.ledger_row import DP_SGD
from ..data.images import READING, PublicFacts, listing_of, load_images, open_images
from ..data.shares import load_share
from ..distributed.processes import Processes
from ..distributed.shared_ledger import shared_ledger
from ..errors import UsageError
from ..evaluation.charged import charged_evaluation
from ..files.sealed_folder import open_sealed, seal
from ..methods.flags import DPSGDConfig, TrainingConfig
from ..methods.method import Method
from ..methods.private_training import PrivateTraining
from ..models.judge import LabelJudge
from ..pipelines import DPImagePipeline
from ..privacy.sensitive import SensitiveImages
from ..privacy.separate_records import Features
from ..privacy.stored_answers import NoisyAnswers
from ..privacy.teachers import Teachers, Teaching
from ..queries.query import Finish, Query
from ..release.artefacts import Artefact, PipelineArtefact
from ..release.build import build_release
from ..release.marked import save_unreleased, save_without_guarantee
from ..release.push import push_finished
from ..release.receipt import RunRecord
from ..sampling.drawing import Drawing, sample_grid
from ..verify import RECEIPT_NAME, receipt_digest
from .checkpoints import find_checkpoint, position_of, refuse_shorter
from .dp_sgd import WORDS, Trained, run_dp_sgd
from .folder import DERIVED, RunFolder, read_identity, save_identity
from .judge import balanced_on_draws, train_judge
from .noise import noise_of, refuse_another_listing
from .plan import Plan, dp_sgd_row, plan_run
from .rest_of_plan import ANSWERS, LEARNED, TRAINED, refuse_what_cannot_be_finished, still_to_come
from .run_ledger import new_ledger
from .stages import StageTable


OTHER_FLAGS = "{} was made with other flags: resume with those of its run, or start another --output_dir."
Config = TypeVar("Config", bound=TrainingConfig)
AnyDoor = TypeVar("AnyDoor", bound=SensitiveImages | Teachers)


class TrainingRun(Generic[Config]):
    """One run of a method, from the first image that is read to the release.

    Args:
        method (`Method`): The method.
        config (`TrainingConfig`): The flags.
        facts (`PublicFacts`): What is public of the sensitive images.
        plan (`Plan`): What is asked, and what it costs.
        processes (`Processes`): Processes of the run.
        folder (`RunFolder`): Created, and locked.
        opened (`Any`, *optional*): See `Trained`.
        tried (`dict`): What the pre-flight tried, by the name of the row, see `Trained.kind`.

    Attributes:
        images (`SensitiveImages`): The door.
        ledger (`PrivacyLedger`): The run's own, or that of `--dataset_id`.
        answers (`NoisyAnswers`): What was asked once and stored.
        checkpoint (`Path`, *optional*): Checkpoint of DP-SGD from an earlier start: all that comes before is over.
        judge (`LabelJudge`, *optional*): What DP-SGD trained before the model, where the plan has one.
    """

    def __init__(
        self, method: Method, config: Config, facts: PublicFacts, plan: Plan, processes: Processes, folder: RunFolder,
        opened: Any = None, tried: Mapping[str, list[str]] = MappingProxyType({}),
    ):  # fmt: skip
        self.method, self.config, self.facts, self.plan = method, config, facts, plan
        self.processes, self.folder = processes, folder
        self.opened, self.tried, self._asked = opened, tried, set[str]()
        self.judge: LabelJudge | None = None
        self.stages = StageTable(folder.private if processes.is_first else None)
        # All that is not private; the door draws noise, samples and the loss's draws from its own source.
        set_seed((config.seed + processes.index) % 2**32)  # numpy's seeds are smaller
        with folder.discarded_on(BaseException):
            self.checkpoint = processes.on_first(
                lambda: find_checkpoint(folder.private, config.resume_from_checkpoint)
            )
            self._open(self._begin())

    def _begin(self) -> list[dict[str, Any]]:
        """What a kind of run makes before the images are read; returns the public inputs that it begins with."""
        origins: list[dict[str, Any]] = []
        for query in self.plan.queries:  # several may look through one network
            origins += [origin for origin in query.public_inputs if origin not in origins]
        return origins

    def _open(self, public_inputs: list[dict[str, Any]]) -> None:
        config, processes, private = self.config, self.processes, self.folder.private
        self.identity = processes.on_first(lambda: read_identity(private, config.dataset_id, config.ledger_path))
        self.ledger = shared_ledger(
            processes, lambda: new_ledger(config.ledger_path, config, self.facts, self.identity)
        )
        self._keep_plan()
        cache = private / "cache"
        arrays = load_share(processes, lambda: load_images(config.data, self.facts, cache), cache)
        self.made_of = arrays.made_of
        if config.dp_sgd is not None:
            self._keep_groups(config.dp_sgd)
        expert = {f"expert {name}": v for name, v in config.expert_settings.items() if name not in config.changeable}
        self.identity.keep_training_facts(config.training_facts | expert, began=bool(self.ledger.rows))
        if self.ledger.rows:
            self.identity.resumes.append(self._step_of_checkpoint or 0)
        processes.note_start(self.identity.processes)
        if self.checkpoint is None and not (private / LEARNED).exists():
            self.identity.public_inputs = public_inputs
        else:
            self.identity.refuse_other_inputs(public_inputs)
        processes.on_first(lambda: save_identity(private, self.identity))
        self.answers = NoisyAnswers(private / ANSWERS, processes)
        self.images = SensitiveImages(
            arrays.images, arrays.labels, arrays.readable,
            num_images=self.facts.num_images, image_shape=self.facts.image_shape, ledger=self.ledger,
            class_names=self.facts.class_names, units=arrays.units, num_units=self.facts.declared_units,
            ids=arrays.ids, capacity=self.facts.capacity,
            max_images_per_unit=config.images_per_unit, device=processes.device,
            processes=processes, exact=config.is_exact,
        )  # fmt: skip

    def _keep_plan(self) -> None:
        """Chooses no noise again, once anything was asked, and begins nothing that the budget does not finish."""
        identity, steps = self.identity, self.config.dp_sgd
        if not self.ledger.rows:
            identity.noise = noise_of(self.plan.rows, self.plan.queries, self.plan.exact)
            return
        if not identity.asked:  # a kill came between the first row and the note of it, and the plan was a new one
            identity.asked = True
            self.processes.on_first(lambda: save_identity(self.folder.private, identity))
            self.plan = self.processes.on_first(lambda: plan_run(self.config, self.facts))
        self.processes.on_first(
            lambda: refuse_what_cannot_be_finished(
                self.plan, self.ledger, self.folder.private, step=self._step_of_checkpoint,
                max_train_steps=0 if steps is None else steps.max_train_steps,
            )
        )  # fmt: skip

    @property
    def _step_of_checkpoint(self) -> int | None:
        return None if self.checkpoint is None else int(self.checkpoint.name.rpartition("-")[2])

    def _keep_groups(self, config: DPSGDConfig) -> None:
        """With `--noise_bands`, and for teachers, an image is in one group for as long as the release asks. Raises
        `UsageError`."""
        row = self.processes.on_first(lambda: dp_sgd_row(config, self.plan, self.ledger))
        if row.mechanism.num_groups > 1:
            found = self.processes.on_first(lambda: listing_of(config.data, self.facts))
            refuse_another_listing(self.identity.listing, found, self.ledger)
            self.identity.listing = found

    @property
    def resumes_dp_sgd(self) -> bool:
        return self.checkpoint is not None

    def ask(
        self, query: Query, features: Features | None = None, finish: Finish | None = None, *,
        images: SensitiveImages | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """
        What a query's answer tells: the stored one or, the first time, that of the sensitive images. SIGTERM waits for
        it.

        Args:
            query (`Query`): One of the plan.
            features (`Callable`, *optional*): Features of images and labels; by default the query's own.
            finish (`Callable`, *optional*): Post-processing, see `Query.answer`; by default the query's own.
            images (`SensitiveImages`, *optional*): A mapped door, in place of that to the images.

        Returns:
            `torch.Tensor`: As `finish` made it, on the CPU.

        Raises:
            BudgetExceeded: The query would exceed the budget; nothing was asked.
            IntegrityError, UsageError: As `NoisyAnswers.get`; or the features mix records, the query was asked
                already, or the door has another ledger.
        """
        if query.name in self._asked:
            raise UsageError(
                f"'{query.name}' was asked already, and has one answer: give a second query its own name."
            )
        row, door = self.plan.rows[query.name], self._door(images)
        stored = self.answers.ask(
            row, self.ledger, lambda: {"answer": query.answer(
                door, noise_multiplier=row.noise_multiplier, features=features, finish=finish,
            )}, **query.meaning,
        )  # fmt: skip
        self._asked.add(query.name)
        self.done(query.title)
        return stored["answer"]

    def _door(self, images: AnyDoor | None) -> SensitiveImages | AnyDoor:
        """The run's own, unless a mapped one is given. Raises `UsageError` where its answers would be charged to
        another ledger."""
        if images is not None and images.ledger is not self.ledger:
            raise UsageError("These images have another ledger than the run: make their door with `run.images.map`.")
        return images or self.images

    def _refuse_unasked(self) -> None:
        """A release is made of all answers that the plan says. What an earlier start asked has its row, too."""
        asked = {row["stage"] for row in self.ledger.rows}
        if missing := [query.name for query in self.plan.queries if query.name not in asked]:
            raise UsageError(
                f"{self.config.method} never asked what it planned: {', '.join(missing)}. Ask it with `run.ask`, or "
                "leave it out of the method's `queries`; nothing is released."
            )

    def keep(self, name: str, model: Any) -> None:
        """Saves what noisy answers taught a model before DP-SGD, in the private folder: it is no release."""
        self.processes.on_first(lambda: save_unreleased(model, self.folder.private / name, self.ledger))

    def note_public_inputs(self, origins: Sequence[dict[str, Any]]) -> None:
        """For the receipt: what from elsewhere the run begins with, known only after its flags. Before it asks."""
        known = self.identity.public_inputs
        self.identity.public_inputs = [*known, *(origin for origin in origins if origin not in known)]
        self.processes.on_first(lambda: save_identity(self.folder.private, self.identity))

    def kept(self, name: str, make: Callable[[], torch.Tensor], meaning: dict[str, Any]) -> torch.Tensor:
        """What the first process makes of noisy answers and public data, once: a run that goes on reads it again.

        Args:
            name (`str`): Name of its folder in `private/`.
            make (`Callable`): Returns it.
            meaning (`dict`): What it follows from: JSON values.

        Raises:
            IntegrityError: What is there is damaged.
            UsageError: It follows from something else.
        """
        folder = self.folder.private / name

        def read_or_make() -> torch.Tensor:
            if not folder.exists():
                self._seal(folder, {"kept": {"kept": make()}}, meaning)
            return self._reopened(folder, meaning)["kept"]["kept"]

        return self.processes.on_first(read_or_make)

    def has_learned(self, stage: str) -> bool:
        """Tells whether an earlier start finished this stage of a warm-up."""
        return self.processes.on_first(lambda: (self.folder.private / LEARNED / stage).exists())

    def learn(self, stage: str, module: nn.Module, teach: Callable[[], Any], meaning: dict[str, Any]) -> None:
        """Teaches a network noisy answers and public data, once: a run that goes on repeats no finished stage, but
        reads what it taught from `private/learned/`.

        Args:
            stage (`str`): Name of its folder.
            module (`nn.Module`): Whose weights and buffers are kept.
            teach (`Callable`): Trains it.
            meaning (`dict`): What else the weights follow from: JSON values.

        Raises:
            IntegrityError: What is there is damaged.
            UsageError: It was taught by other flags, or to a network of another shape.
        """
        folder = self.folder.private / LEARNED / stage
        meaning = json.loads(json.dumps(meaning))
        if not self.has_learned(stage):
            teach()
            self.processes.on_first(lambda: self._seal(folder, {"module": module.state_dict()}, meaning))
            return

        def read() -> None:
            try:
                module.load_state_dict(self._reopened(folder, meaning)["module"])
            except RuntimeError:  # of a network of another shape
                raise UsageError(OTHER_FLAGS.format(folder)) from None

        self.processes.on_first(read)
        self.processes.same_weights(module)

    def _seal(self, folder: Path, tensors: dict[str, dict[str, torch.Tensor]], meaning: dict[str, Any]) -> None:
        seal(folder, tensors, {"meaning": meaning, "ledger_position": position_of(self.ledger)})

    def _reopened(self, folder: Path, meaning: dict[str, Any]) -> dict[str, dict[str, torch.Tensor]]:
        """What an earlier start, or this one, sealed. Raises `UsageError` where it follows from something else, and
        `IntegrityError` where the ledger lacks what it cost."""
        state, tensors = open_sealed(folder)
        if state["meaning"] != meaning:
            raise UsageError(OTHER_FLAGS.format(folder))
        refuse_shorter(position_of(self.ledger), state.get("ledger_position", {}), folder)
        return tensors

    def done(self, stage: str) -> None:
        """Notes the end of a stage, for the table that a run ends with."""
        self.stages.done(stage, self.ledger)

    def teachers(self, teaching: Teaching) -> Teachers:
        """A teacher for each share of the units, behind the door, for `dp_sgd`; see `Teachers`.

        Args:
            teaching (`Teaching`): How a teacher is made, learns and judges.

        Raises:
            UsageError: There are more shares than units.
        """
        config = self.config.dp_sgd
        assert config is not None
        row = self.processes.on_first(lambda: dp_sgd_row(config, self.plan, self.ledger))
        records = None
        if self.processes.count > 1:
            records = open_images(self.folder.private / "cache", str(self.made_of))
        return Teachers(self.images, teaching, row.mechanism, records=records, folder=self.folder.private)

    def dp_sgd(self, trained: Trained, *, images: "SensitiveImages | Teachers | None" = None) -> None:
        """DP-SGD on the sensitive images, from the last checkpoint on; of a judge first, where the plan has one.

        Args:
            trained (`Trained`): What is trained, and the loss of its rows.
            images (`SensitiveImages`, *optional*): A mapped door, in place of that to the images.

        Raises:
            BudgetExceeded: No step is left.
            UsageError: The pre-flight tried another model or loss, or the door has another ledger.
        """
        self.train_judge()
        config, sampling = self.config.dp_sgd, self.plan.sampling
        assert config is not None and sampling is not None
        door, row = self._door(images), self.processes.on_first(lambda: dp_sgd_row(config, self.plan, self.ledger))
        self._refuse_untried(trained, DP_SGD)
        run_dp_sgd(
            door, trained, row, config, private=self.folder.private,
            largest_batch_size=sampling.largest_batch_size, checkpoint=self.checkpoint,
        )  # fmt: skip
        self.done(WORDS[row.name])

    def train(
        self, training: PrivateTraining, make: Callable[[], Trained], meaning: dict[str, Any] | None = None, *,
        images: Callable[[], SensitiveImages] | None = None,
    ) -> nn.Module:  # fmt: skip
        """A training of the plan beside DP-SGD, from its own last checkpoint on, or as an earlier start finished it.

        Args:
            training (`PrivateTraining`): One of the plan's queries.
            make (`Callable`): Returns what is trained, new, and the loss of its rows.
            meaning (`dict`, *optional*): What else the weights follow from: JSON values.
            images (`Callable`, *optional*): Makes a mapped door, where steps are left.

        Returns:
            `nn.Module`: Trained.

        Raises:
            BudgetExceeded: No step is left.
            UsageError: As of `dp_sgd`, or the training is over already, or was another one.
        """
        if training.name in self._asked:
            raise UsageError(f"'{training.name}' was trained already, and has its steps once: give another its name.")
        trained, private = make(), self.folder.private / TRAINED / training.name
        row = replace(self.plan.rows[training.name], steps=1)
        self._refuse_untried(trained, training.name)

        def steps() -> None:
            which = None if self.config.resume_from_checkpoint is None else "latest"
            most = largest_sample(self.images.num_units, row.sampling_probability)
            run_dp_sgd(
                self._door(None if images is None else images()), trained, row, training.settings, private=private,
                largest_batch_size=most * (row.mechanism.max_images_per_unit or 1), title=training.title,
                checkpoint=self.processes.on_first(lambda: find_checkpoint(private, which)),
                beside=still_to_come(self.plan, self.ledger, self.folder.private, but=training.name),
            )  # fmt: skip

        self.learn(training.name, trained.module, steps, {**training.facts, **(meaning or {})})
        self._asked.add(training.name)
        self.done(training.title)
        return trained.module

    def train_judge(self) -> None:
        """Trains the judge of a model's draws, where the plan has one; `dp_sgd` does so by itself."""
        self.judge = train_judge(self)

    def _refuse_untried(self, trained: Trained, name: str) -> None:
        if not self.config.skip_preflight and trained.kind != self.tried.get(name):
            raise UsageError(
                f"{self.config.method} is to train another model or loss than the pre-flight tried: let `build` "
                f"return what `run.{'dp_sgd' if name == DP_SGD else 'train'}` gets."
            )

    @property
    def drawing(self) -> Drawing:
        """How the run draws its own images, by its flags. A model of deformed images deforms none itself."""
        return Drawing.of(self.config, mixed_precision=self.config.precision or "no", deformation=0.0)

    def release_pipeline(self, pipeline: DPImagePipeline, curriculum: dict[str, Any] | None = None) -> None:
        """Asks what was set aside for evaluation, and publishes the pipeline, with the judge of its draws where there
        is one. Of a run without noise there is no release, for it would claim a guarantee.

        Args:
            pipeline (`DPImagePipeline`): With its final weights.
            curriculum (`dict`, *optional*): Public facts about the training, for the receipt.
        """
        evaluation, judge = self.evaluate(pipeline), None
        if self.judge is not None and self.ledger.has_guarantee:
            judge = balanced_on_draws(self.judge, pipeline, self.drawing, self.processes)
            self.done("balance of the judge")
        if not self.processes.first_goes_on():
            return
        if not self.ledger.has_guarantee:
            saved = save_without_guarantee(self.folder.output_dir, pipeline, self.method)
            self._say_last(f"Saved {saved}, trained WITHOUT any privacy guarantee.")
            return
        samples = sample_grid(pipeline, self.drawing)
        pipeline.unet.to("cpu")
        self._publish(PipelineArtefact(pipeline, samples=samples, judge=judge), curriculum, evaluation)

    def evaluate(self, pipeline: DPImagePipeline) -> Sequence[dict[str, Any]]:
        """Asks what `--evaluation_reserve` set aside, about a finished model, for the receipt; nothing without it.

        Raises:
            UsageError: A query of the plan was never asked.
        """
        self._refuse_unasked()
        config = self.config
        pipeline.unet.eval()
        if config.evaluation_reserve is None:
            return []
        found = charged_evaluation(
            pipeline, self.images, self.plan.rows["evaluation_reserve"], self.answers,
            replace(self.drawing, num_images=config.num_evaluation_images),
        )  # fmt: skip
        self.done("evaluation")
        return found

    def release(
        self, artefact: Artefact, curriculum: dict[str, Any] | None = None, evaluation: Sequence[dict[str, Any]] = ()
    ) -> Path | None:
        """Publishes an artefact of one's own, with the run's receipt. The first process does. Of a run without noise
        there is no release. What `--evaluation_reserve` set aside stays unspent, but for `evaluate`.

        Args:
            curriculum (`dict`, *optional*): Public facts about the training, for the receipt.
            evaluation (sequence of `dict`): Measurements of `evaluate`.

        Returns:
            `Path`: The release, if this process made one.

        Raises:
            UsageError: A query of the plan was never asked.
        """
        self._refuse_unasked()
        if not self.processes.first_goes_on():
            return None
        if self.ledger.has_guarantee:
            return self._publish(artefact, curriculum, evaluation)
        self._say_last("Nothing is released: this was trained WITHOUT any privacy guarantee.")
        return None

    def _say_last(self, saying: str) -> None:
        """After the table of stages; the same words, whatever could not be read."""
        path = self.folder.private / "cache" / READING
        print(
            self.stages, saying, "Private: `diffusers-dp data` says why images cannot be read; "
            f"{path} counts those of this run.", sep="\n",
        )  # fmt: skip

    def release_derived(
        self, parent: Path, pipeline: DPImagePipeline, curriculum: dict[str, Any] | None = None
    ) -> None:
        """Publishes a pipeline that was computed from a release of this run and from nothing else, in
        `model/release/`. It asked nothing: its receipt has the parent's events, and both releases together cost what
        they cost once.

        Args:
            parent (`Path`): The release.
            pipeline (`DPImagePipeline`): With its final weights.
            curriculum (`dict`, *optional*): As for `release`.
        """
        derived = self.folder.output_dir / DERIVED
        derived.mkdir(exist_ok=True)
        pipeline.unet.eval().to("cpu")
        record = self._record(curriculum, derived_from=receipt_digest(parent / RECEIPT_NAME))
        samples = sample_grid(pipeline, self.drawing)
        release = build_release(derived, PipelineArtefact(pipeline, samples=samples), record)
        print(f"Released {release}, computed from {parent} alone: both cost epsilon {self.ledger.epsilon():.4f} once.")

    def _publish(
        self, artefact: Artefact, curriculum: dict[str, Any] | None, evaluation: Sequence[dict[str, Any]] = ()
    ) -> Path:
        config, ledger = self.config, self.ledger
        release = build_release(self.folder.output_dir, artefact, self._record(curriculum, evaluation))
        self.done("samples and release")
        lines = [
            f"Released {release} with epsilon {ledger.epsilon():.4f} at delta {ledger.target_delta:.3e}.",
            f"next: diffusers-dp verify {shlex.quote(str(release))}",
        ]
        if isinstance(artefact, PipelineArtefact):
            images = release.with_name("images")
            lines.append(f"      diffusers-dp sample {release} --num_images 1000 --output_dir {images}")
        self._say_last("\n".join(lines))
        if config.push_to_hub:
            address = push_finished(release, config.hub_name, private=config.hub_private_repo, files=artefact.files)
            print(f"Pushed to {address}")
        return release

    def _record(
        self, curriculum: dict[str, Any] | None, evaluation: Sequence[dict[str, Any]] = (),
        derived_from: str | None = None,
    ) -> RunRecord:  # fmt: skip
        expert, dp_sgd = self.config.expert_settings, self.config.dp_sgd
        adam = {} if dp_sgd is None else dp_sgd.changed_adam
        return RunRecord(
            ledger=self.ledger,
            method=self.method,
            curriculum=(curriculum or {}) | adam | ({"expert": expert} if expert else {}),
            resumes=self.identity.resumes,
            evaluation=evaluation,
            processes=self.identity.processes,
            public_inputs=self.identity.public_inputs,
            derived_from=derived_from,
        )
