"""What the flags that training scripts share mean; the flags themselves are in `flag_groups.py`."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..data.decoding import ValueRange
from ..data.source import DataSource
from ..queries.query import Query
from ..randomness.timestep_mixture import TimestepMixture
from .flag_groups import (
    DEFAULT_RESOLUTION,
    DIGITS_RESOLUTION,
    CheckpointFlags,
    DataFlags,
    DPSGDFlags,
    HubFlags,
    ModelFlags,
    NetworkFlags,
    PrivacyFlags,
    RunFlags,
    split_list,
)
from .grey_values import parse_range, parse_suffixes


@dataclass(frozen=True)
class PublicTraining:
    """
    Ordinary training on public images, before DP-SGD.

    Args:
        images (`DataSource`): In the shape of the sensitive ones.
        num_steps, batch_size (`int`), learning_rate (`float`), lr_warmup_steps (`int`): Of Adam.
        mixture (`TimestepMixture`, *optional*): Of diffusion times.
    """

    images: DataSource
    num_steps: int
    batch_size: int
    learning_rate: float
    lr_warmup_steps: int
    mixture: TimestepMixture | None

    @property
    def facts(self) -> dict[str, Any]:
        """For the receipt."""
        return {"steps": self.num_steps, "batch_size": self.batch_size, "learning_rate": self.learning_rate}


@dataclass(frozen=True)
class OrdinaryTraining:
    """
    Training before or after DP-SGD, for the time that it takes.

    Args:
        num_steps, batch_size (`int`): Of Adam.
        generator_channels (`int`, *optional*): Of a generator that draws in one call.
        network (`dict`, *optional*): Of a separate diffusion model, as `models.unet_config` takes it. With neither,
            it is the model that DP-SGD trains.
    """

    num_steps: int
    batch_size: int
    generator_channels: int | None = None
    network: dict[str, Any] | None = None


@dataclass
class TrainingConfig(DataFlags, PrivacyFlags, HubFlags, RunFlags):
    """
    The flags of every training script. Fields are the flags as given; properties are what they mean. A method's own
    configuration adds its groups of flags (`method_flags.py`).
    """

    #: Name of the method, and of the folder of its recipes.
    method: ClassVar[str]

    @property
    def dp_sgd(self) -> "DPSGDConfig | None":
        """The same flags, where the method ends with DP-SGD."""
        return None

    @property
    def queries(self) -> tuple[Query, ...]:
        """What is asked, and paid for, in this order, and before DP-SGD where the method has it."""
        return ()

    @property
    def takes_rest(self) -> str:
        """What gets the budget that all else leaves, in words."""
        rest = [query.title for query in self.queries if query.noise_multiplier is None and query.budget_share is None]
        return f"the {rest[0]}" if rest else "anything else"

    @property
    def drawn_by_class(self) -> tuple[str, ...]:
        """Flags of numbers of images that need one for each class at least."""
        return ()

    @property
    def made_by_class(self) -> tuple[str, ...]:
        """Flags of numbers of images of each class that are made and kept in memory."""
        return ()

    @property
    def training_facts(self) -> dict[str, Any]:
        """What the receipt says of the training, by flags. A run that goes on keeps them."""
        return {}

    def check(self) -> None:
        """Refuses what the method's own flags cannot be together. Raises `UsageError`."""

    def check_facts(self, class_names: tuple[str, ...] | None) -> None:
        """Refuses what does not fit the classes, which may be known by the data set's metadata alone. Raises
        `UsageError`."""

    @property
    def asked_shares(self) -> dict[str, float]:
        """Shares of the budget, by their flags, of two questions with one flag both; `takes_rest` gets the rest."""
        shares: dict[str, float] = {}
        for asked in self.queries:
            if asked.noise_multiplier is None and asked.budget_share is not None:
                name = f"--{asked.flags}_budget_share"
                shares[name] = shares.get(name, 0.0) + asked.budget_share
        return shares | ({} if self.evaluation_reserve is None else {"--evaluation_reserve": self.evaluation_reserve})

    @property
    def public_training(self) -> PublicTraining | None:
        """What the model learns from public images, where the method can and flags name some."""
        return None

    @property
    def ordinary_training(self) -> tuple[OrdinaryTraining, ...]:
        """What is trained before and after DP-SGD."""
        public = self.public_training
        return () if public is None else (OrdinaryTraining(public.num_steps, public.batch_size),)

    @property
    def public_images(self) -> DataSource | None:
        """Images that everybody may see and that the method begins with, looked for before anything is planned."""
        return None if self.public_training is None else self.public_training.images

    @property
    def has_guarantee(self) -> bool:
        """False with `--target_epsilon inf`, and with nothing else."""
        return self.target_epsilon != math.inf

    @property
    def unit_of_privacy(self) -> str:
        """What is protected as a whole: an image, or what `--unit_column` tells apart."""
        return self.unit_column or "image"

    @property
    def images_per_unit(self) -> int:
        """`--max_images_per_unit` with its default filled in; 1 where each image is a unit."""
        return 1 if self.unit_column is None else self.max_images_per_unit or 8

    @property
    def ledger_path(self) -> Path:
        """The file of the run's ledger; with `--dataset_id` that of all releases of the data set."""
        folder = Path(self.output_dir, "private") if self.ledger_dir is None else Path(self.ledger_dir).expanduser()
        return folder / f"{self.dataset_id or 'ledger'}.jsonl"

    @property
    def books(self) -> dict[str, Any]:
        """Where the run's questions are counted, as `runs.prior_release` takes it."""
        return {
            "private": Path(self.output_dir, "private"), "ledger_path": self.ledger_path,
            "dataset_id": self.dataset_id, "unit_of_privacy": self.unit_of_privacy,
        }  # fmt: skip

    @property
    def hub_name(self) -> str:
        """`--hub_model_id` with its default filled in."""
        return self.hub_model_id or Path(self.output_dir).resolve().name

    @property
    def uses_digits(self) -> bool:
        """True where no flag names or describes other images: the embedded digits."""
        return self.dataset_name is None and self.train_data_dir is None and self.class_names is None

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of the images that the model sees, with defaults filled in."""
        side = self.resolution or (DIGITS_RESOLUTION if self.uses_digits else DEFAULT_RESOLUTION)
        channels = self.num_channels or (1 if self.uses_digits else 3)
        return channels, side, side

    @property
    def declared_class_names(self) -> tuple[str, ...] | None:
        """`--class_names` as a tuple, `None` where not given."""
        return None if self.class_names is None else split_list(self.class_names)

    @property
    def declared_range(self) -> ValueRange | None:
        """What is black and what is white, of images with more than 8 bits."""
        return parse_range(self.value_range, self.window)

    @property
    def data(self) -> DataSource:
        """The sensitive images."""
        names = (
            "dataset_name", "dataset_config_name", "train_data_dir", "train_split", "image_column", "label_column",
            "unit_column", "key_column", "image_shape", "num_train_images", "num_train_units", "validation_size",
            "max_image_pixels",
        )  # fmt: skip
        return DataSource(
            **{name: getattr(self, name) for name in names},
            class_names=self.declared_class_names,
            value_range=self.declared_range,
            image_suffixes=parse_suffixes(self.image_suffixes),
            declared_only=self.dry_run and self.num_train_images is not None,
        )

    # Of a method without DP-SGD.

    @property
    def precision(self) -> str:
        """Of what is computed for the door."""
        return "no"

    @property
    def tunes_engine(self) -> bool:
        """Whether gradients per image are formed in the way that is fastest on the machine."""
        return False

    @property
    def has_leaky_logs(self) -> bool:
        """Whether something is written that no guarantee covers."""
        return False

    @property
    def tracker(self) -> str | None:
        """Who is told how DP-SGD goes on."""
        return None


@dataclass
class DPSGDConfig(DPSGDFlags, CheckpointFlags, TrainingConfig):
    """The flags of a method that ends with DP-SGD, on whatever network."""

    @property
    def dp_sgd(self) -> "DPSGDConfig":
        return self

    @property
    def names_model(self) -> bool:
        """Whether the flags say which model is trained."""
        return True

    @property
    def model_key(self) -> str:
        """A text that differs where the trained model can differ."""
        return repr(self)

    @property
    def takes_rest(self) -> str:
        return "DP-SGD"

    @property
    def counted_steps(self) -> int:
        """DP-SGD steps that the noise is calibrated for: those that are trained, and those that may be lost."""
        return self.max_train_steps + self.restart_slack

    @property
    def bands(self) -> int | None:
        """`--noise_bands` as a number, `None` for `auto`; without noise there is nothing to choose, and it is 1."""
        if self.noise_bands == "auto":
            return None if self.has_guarantee else 1
        return int(self.noise_bands)

    @property
    def physical_batch_size(self) -> int | None:
        """`--max_physical_batch_size` as a number, `None` for `auto`. Raises `ValueError` where it is neither."""
        return None if self.max_physical_batch_size == "auto" else int(self.max_physical_batch_size)

    @property
    def dp_sgd_settings(self) -> dict[str, Any]:
        """How DP-SGD goes on between noisy gradients, as `DPSGDSettings` takes it."""
        names = (
            "max_train_steps", "learning_rate", "lr_scheduler", "lr_warmup_steps", "ema_decay", "checkpointing_steps",
            "checkpoints_total_limit", "physical_batch_size",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    @property
    def forecast_settings(self) -> dict[str, Any]:
        """What decides how long it takes, as `runs.forecast` takes it."""
        return {
            "stages": self.ordinary_training,
            "physical_batch_size": self.physical_batch_size,
            "checkpoints_total_limit": self.checkpoints_total_limit,
        }

    @property
    def precision(self) -> str:
        """`--mixed_precision`, or what Accelerate's launcher was told."""
        return self.mixed_precision or os.environ.get("ACCELERATE_MIXED_PRECISION", "no")

    @property
    def tunes_engine(self) -> bool:
        """Not `--no_engine_tuning`."""
        return not self.no_engine_tuning

    @property
    def has_leaky_logs(self) -> bool:
        """`--leaky_logs`."""
        return self.leaky_logs

    @property
    def tracker(self) -> str | None:
        """`--report_to`."""
        return self.report_to


class TimesOfRows:
    """Of a configuration with `--timestep_mixture`."""

    timestep_mixture: str | None

    @property
    def mixture(self) -> TimestepMixture | None:
        """`--timestep_mixture`, read. Raises `UsageError` where it is none."""
        if self.timestep_mixture is None:
            return None
        return TimestepMixture.parse(self.timestep_mixture, "timestep_mixture")


@dataclass
class DiffusionConfig(TimesOfRows, NetworkFlags, ModelFlags, DPSGDConfig):
    """The flags of a method that ends with DP-SGD on a diffusion model."""

    #: Where neither `--objective` nor a pre-trained model says one.
    default_objective: ClassVar[str] = "edm"

    @property
    def row_settings(self) -> dict[str, Any]:
        """What befalls a training row, as `models.build_objective` takes it."""
        return {
            "label_dropout": self.label_dropout,
            "p_mean": self.p_mean,
            "p_std": self.p_std,
            "mixture": self.mixture,
            "augmentations": self.augmentation_names,
            "bf16": self.precision == "bf16",
        }

    @property
    def augmentation_names(self) -> tuple[str, ...]:
        """`--augmentations`, one by one."""
        return split_list(self.augmentations)
