# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""DP-FETA, DPDM and DP-Diffusion, and the groups of flags that they share with other methods."""

from dataclasses import dataclass, fields
from typing import ClassVar

from ..errors import UsageError
from ..queries.central_images import MeanImages, ModeImages
from ..queries.query import Query
from ..queries.semantic import PublicClassifier, SemanticQuery
from .flag import RATE, expert, flag, parse_rate
from .flags import DiffusionConfig, OrdinaryTraining, TrainingConfig
from .judge import HasJudge
from .method import DIFFUSION, built
from .public_flags import LearnsPublicImages, PretrainedFlags, PretrainingFlags, PublicDataFlags


@dataclass
class SpatialFlags(TrainingConfig):
    """The noisy central images, and the warm-up that learns from them."""

    _argument_group_name = "central images (queries and warm-up)"

    query_defaults: ClassVar[dict[str, dict[str, float]]] = {"central_images": {"budget_share": 0.01}}
    num_central_images: int = flag(5, "Noisy central images per class, each its own query.")
    spatial_sample_rate: str = expert("0.1", "Poisson sample rate of one central-image query.", **RATE)
    spatial_steps: int = flag(200, "Warm-up steps on the central images.")
    spatial_batch_size: int = expert(50, "Batch size of the warm-up on the central images.")
    spatial_learning_rate: float = expert(1e-3, "Learning rate of the warm-up on the central images.")

    @property
    def spatial_rate(self) -> float:
        """`--expert spatial_sample_rate` as a number."""
        return float(parse_rate(self.spatial_sample_rate))

    @property
    def central_images_query(self) -> MeanImages:
        """The query for noisy mean images: Equation 7 of FETA-Pro, Algorithm 1 of DP-FETA."""
        return MeanImages(
            image_shape=self.image_shape, sample_rate=self.spatial_rate, repeats=self.num_central_images,
            **self.asked("central_images"),
        )  # fmt: skip


@dataclass
class PublicConfig(PretrainedFlags, LearnsPublicImages, DiffusionConfig):
    """What methods share that may begin with public images or a public model."""

    @property
    def starts_from(self) -> tuple[str | None, str | None]:
        return self.pretrained_model_name_or_path, self.pretrained_model_revision

    def check(self) -> None:
        if not (self.names_public_images or self.pretrained_model_name_or_path or self.dry_run):
            why = (
                "needs --public_dataset_name or --public_data_dir, or in its place --pretrained_model_name_or_path: "
                "without one of them there is no pre-training."
            )
            for each in (*fields(PublicDataFlags), *fields(PretrainingFlags)):
                if getattr(self, each.name) != each.default:
                    raise UsageError(why, field=each.name)


@dataclass
class SemanticConfig(PublicConfig):
    """What methods share that may learn those public images alone whose classes the sensitive ones look like
    (PrivImage)."""

    _argument_group_name = "semantic query"

    semantic_query_network: str | None = flag(
        None,
        "Folder or Hub id of a public classifier (safetensors) of the public images' classes; unset: the model "
        "learns all.",
        place=True,
    )  # fmt: skip
    semantic_resolution: int | None = expert(None, "Side length that images are resized to for it; unset: their own.")
    semantic_classes_per_class: int = expert(5, "Public classes that stand for each sensitive one.")
    query_defaults: ClassVar[dict[str, dict[str, float]]] = {"semantic_query": {"noise_multiplier": 50.0}}

    @property
    def semantic_query(self) -> SemanticQuery | None:
        """Which public classes the sensitive images look like, where that is asked before the model learns them."""
        network = self.semantic_query_network
        if network is None:
            return None
        return SemanticQuery(
            classifier=PublicClassifier(network, self.image_shape, self.semantic_resolution),
            classes_per_class=self.semantic_classes_per_class, **self.asked("semantic_query"),
        )  # fmt: skip

    @property
    def queries(self) -> tuple[Query, ...]:
        """PrivImage's, where it is asked."""
        return () if self.semantic_query is None else (self.semantic_query,)

    def check_facts(self, class_names: tuple[str, ...] | None) -> None:
        public = None if self.public_images is None else self.public_images.class_names
        if self.semantic_query is not None and public:
            self.semantic_query.check_classes(len(class_names or ("",)), len(public))

    def check(self) -> None:
        if self.semantic_query_network is not None and not (self.names_public_images or self.dry_run):
            raise UsageError(
                "--semantic_query_network chooses among public images, and there are none: add --public_dataset_name "
                "or --public_data_dir."
            )


@dataclass
class DPDMConfig(HasJudge, DiffusionConfig):
    """All flags of `training/train_dpdm.py`: those that every script has."""

    method: ClassVar[str] = "dpdm"

    @property
    def queries(self) -> tuple[Query, ...]:
        return self.judge


@dataclass
class DPDiffusionConfig(SemanticConfig):
    """All flags of `training/train_dp_diffusion.py`."""

    method: ClassVar[str] = "dp_diffusion"
    default_objective: ClassVar[str] = "ddpm"


@dataclass
class DPFETAConfig(HasJudge, SpatialFlags, PublicConfig):
    """All flags of `training/train_dp_feta.py`."""

    _argument_group_name = "central images (kind)"

    method: ClassVar[str] = "dp_feta"
    central_images: str = flag(
        "mean", "Central images: DP-FETA's Algorithm 1, or its Algorithm 2.", choices=("mean", "mode")
    )
    mix_public_images: bool = flag(
        False,
        "Pre-train on central and public images as one set, for --public_steps; public images have no label there.",
    )  # fmt: skip

    @property
    def queries(self) -> tuple[Query, ...]:
        """The central images, and a judge."""
        return (self.central_images_query, *self.judge)

    @property
    def central_images_query(self) -> MeanImages:
        """The mean images, as FETA-Pro's (Algorithm 1), or the mode images (Algorithm 2)."""
        mean = super().central_images_query
        if self.central_images == "mean":
            return mean
        # bins of the DP-FETA paper's Table 7
        return ModeImages(**vars(mean), num_bins=2 if self.image_shape[0] == 1 else 16)

    @property
    def ordinary_training(self) -> tuple[OrdinaryTraining, ...]:
        """A mixture trains in the steps of the public images."""
        if self.mix_public_images:
            return super().ordinary_training
        return (*super().ordinary_training, OrdinaryTraining(self.spatial_steps, self.spatial_batch_size))

    @property
    def told(self) -> tuple[str, ...]:
        """A mixture is the public pre-training, whose numbers stand with the public images."""
        spatial = () if self.mix_public_images else ("spatial_steps", "spatial_batch_size", "spatial_learning_rate")
        return ("central_images", "mix_public_images", *spatial)

    def check(self) -> None:
        if self.mix_public_images and not (self.names_public_images or self.dry_run):
            raise UsageError(
                "--mix_public_images needs --public_dataset_name or --public_data_dir, whose images are mixed with "
                "the central ones."
            )


@dataclass
class PGEDPSGDConfig(DiffusionConfig):
    """PGE with DP-SGD: DPDM's training without a judge, and a sampler of its own."""

    method: ClassVar[str] = "pge_dpsgd"
    solver: str = "hmc"


METHODS = (
    built(DPFETAConfig, train="diffusers_dp.training.train_dp_feta:train", **DIFFUSION),
    built(DPDMConfig, train="diffusers_dp.training.train_dpdm:train", **DIFFUSION),
    built(DPDiffusionConfig, train="diffusers_dp.training.train_dp_diffusion:train", **DIFFUSION),
    built(PGEDPSGDConfig, train="diffusers_dp.training.train_pge_dpsgd:train", **DIFFUSION),
)
