"""What the flags that training scripts share mean; the flags are in `flag_groups.py` and `dp_sgd_flags.py`."""

import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..data.records import DataSource
from ..errors import UsageError
from ..mechanisms import Banded, Mechanism, Shares, sampled
from ..mechanisms.band_coefficients import Workload, best_coefficients
from ..queries.class_counts import ClassCounts
from ..queries.query import Query
from ..queries.semantic import SemanticQuery
from ..randomness.timestep_mixture import TimestepMixture
from .data_flags import DataFlags, refuse_sensitive_as_public, refuse_writing_among_images
from .dp_sgd_flags import LoopFlags
from .flag import by_name, flags_of, named_numbers
from .flag_groups import HubFlags, ModelFlags, NetworkFlags, PrivacyFlags, RunFlags, SolverFlags


#: Flags that say something of each query by its name.
OF_QUERIES = ("noise_multiplier", "budget")
TRIED = (4, 8, 16)  # by `--noise_bands auto`, beside independent noise


@dataclass(frozen=True)
class PublicTraining:
    """
    Ordinary training on public images, before DP-SGD.

    Args:
        images (`DataSource`): In the shape of the sensitive ones.
        num_steps, batch_size (`int`), learning_rate (`float`), lr_warmup_steps (`int`): Settings of Adam.
        mixture (`TimestepMixture`, *optional*): Distribution of diffusion times.
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
        num_steps, batch_size (`int`): Settings of Adam.
        generator_channels (`int`, *optional*): Channels of a generator that draws in one call.
        network (`dict`, *optional*): Settings of another model, for `models.unet_config`. With neither, it is
            the model that DP-SGD trains, or the pixels themselves where there is none.
        query (`Query`, *optional*): Query whose features of the images of a step the gradient goes through.
    """

    num_steps: int
    batch_size: int
    generator_channels: int | None = None
    network: dict[str, Any] | None = None
    query: Query | None = None


@dataclass
class TrainingConfig(DataFlags, PrivacyFlags, HubFlags, RunFlags):
    """
    The flags of every training script. Fields are the flags as given; properties are what they mean. A method's own
    configuration adds its groups of flags (`method_flags.py`).
    """

    #: Name of the method, and of the folder of its recipes.
    method: ClassVar[str]
    #: Whether the release is a data set, and no model.
    releases_images: ClassVar[bool] = False
    #: Whether asking and training take most of a run's time.
    can_be_timed: ClassVar[bool] = True
    #: Names of queries in `--noise_multiplier` and `--budget`, and what each has by default: a noise multiplier, a
    #: share, or nothing. Each group of flags adds its own.
    query_defaults: ClassVar[dict[str, dict[str, float]]] = {}
    #: Settings of experts that may change when a run goes on.
    changeable: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        self.output_dir = self.output_dir or f"runs/{self.method}"

    @property
    def dp_sgd(self) -> "DPSGDConfig | None":
        """The same flags, where the method ends with DP-SGD."""
        return None

    @property
    def queries(self) -> tuple[Query, ...]:
        """What is asked, and paid for, in this order, and before DP-SGD where the method has it."""
        return ()

    @property
    def is_exact(self) -> bool:
        """Whether sums and noise are whole numbers: `--noise` with its default filled in."""
        return self.noise == "exact" if self.noise is not None else self.dp_sgd is None and self.has_guarantee

    @classmethod
    def known_queries(cls) -> dict[str, dict[str, float]]:
        """`query_defaults` of all groups of flags."""
        groups = reversed(cls.__mro__)
        return {name: each for group in groups for name, each in vars(group).get("query_defaults", {}).items()}

    def asked(self, name: str, among: int = 1) -> dict[str, Any]:
        """
        What a `Query` is told of its noise, by the flags, or else by default.

        Args:
            name (`str`): Of `query_defaults`.
            among (`int`): Number of queries that share the name, and a share of the budget.
        """
        given = {"noise_multiplier": self.noise_multiplier, "budget_share": self.budget}
        found = {field: numbers[name] for field, text in given.items() if name in (numbers := named_numbers(text))}
        found = found or self.known_queries()[name]
        return {"called": name} | {each: x / among if each == "budget_share" else x for each, x in found.items()}

    @property
    def takes_rest(self) -> str:
        """What gets the budget that all else leaves, in words."""
        rest = [query.title for query in self.queries if query.noise_multiplier is None and query.budget_share is None]
        return f"the {rest[0]}" if rest else "anything else"

    @property
    def of_door(self) -> dict[str, Any]:
        """What the door makes of every mechanism, see `Mechanism.at`."""
        most = None if self.unit_column is None else self.images_per_unit
        return {"exact": self.is_exact, "max_images_per_unit": most}

    @property
    def drawn_by_class(self) -> tuple[str, ...]:
        """Flags of numbers of images that need one for each class at least."""
        return ()

    @property
    def made_by_class(self) -> tuple[str, ...]:
        """Flags of numbers of images of each class that are made and kept in memory."""
        return ()

    def num_made(self, num_classes: int) -> int:
        """Number of images of these flags together."""
        each = sum(getattr(self, name) or 0 for name in self.made_by_class)
        return num_classes * each + sum(getattr(self, name) for name in self.drawn_by_class)

    @property
    def told(self) -> tuple[str, ...]:
        """Flags that the receipt states."""
        return ()

    @property
    def training_facts(self) -> dict[str, Any]:
        """What the receipt says of the training, by flags. A run that goes on keeps them."""
        return {name: getattr(self, name) for name in self.told}

    @property
    def expert_settings(self) -> dict[str, Any]:
        """For the receipt: those of experts that are not at their default."""
        names = [name for name, each in flags_of(type(self)).items() if each.expert]
        return {name: value for name in names if (value := getattr(self, name)) != getattr(type(self), name)}

    @property
    def public_places(self) -> dict[str, str]:
        """Where public images are, by their flags."""
        return {}

    def check(self) -> None:
        """Refuses flags that cannot be together. The `check` of each group is called by itself, see `flag.validate`.

        Raises:
            UsageError: One sentence that names the flag and the remedy.
        """
        if not (self.uses_digits or self.dataset_name or self.train_data_dir or self.dry_run):
            raise UsageError("--class_names is given but no images are; add --train_data_dir or --dataset_name.")
        sensitive = {
            name: place for name in ("dataset_name", "train_data_dir") if (place := getattr(self, name)) is not None
        }
        refuse_sensitive_as_public(sensitive, self.public_places)
        self._check_names_of_queries()
        ledger_dir = None if self.ledger_dir is None else self.ledger_path.parent
        refuse_writing_among_images(sensitive | self.public_places, self.output_dir, ledger_dir, self.cache_dir)
        if self.releases_images and self.evaluation_reserve is not None:
            raise UsageError("--evaluation_reserve is about a finished model, and this releases images: leave it out.")
        if self.has_guarantee:
            self._check_sum_of_shares()
            return
        for name in ("push_to_hub", "evaluation_reserve", "dataset_id"):
            if getattr(self, name):
                raise UsageError(
                    f"--{name} and --target_epsilon inf exclude each other: a run without guarantee is not published, "
                    "and has no budget; leave one of them out."
                )

    def _check_names_of_queries(self) -> None:
        known, said = self.known_queries(), {flag: by_name(getattr(self, flag)) for flag in OF_QUERIES}
        for flag, items in said.items():
            if unknown := items.keys() - known.keys():
                raise UsageError(
                    f"--{flag} names '{min(unknown)}', and {self.method} asks {', '.join(known) or 'no query'}: "
                    "correct the name, or leave it out."
                )
        if both := set.intersection(*map(set, said.values())):
            raise UsageError(f"--noise_multiplier and --budget both name {min(both)}; give one of them.")

    def refuse_unasked(self, names: Mapping[str, str]) -> None:
        """Raises `UsageError` where a query that the command line names, by its flag, is not asked. A recipe may
        name it all the same, because the command line may have another `--curriculum`."""
        asked = dict.fromkeys(query.called for query in self.queries)
        for name, flag in names.items():
            if name not in asked:
                found = f"asks {', '.join(asked)}" if asked else "asks nothing beside DP-SGD"
                raise UsageError(f"--{flag} {name} has no effect, because this run {found}: leave it out.")

    def _check_sum_of_shares(self) -> None:
        """Shares are of one budget, the composed RDP at one order, and `takes_rest` gets the rest. A tighter
        accountant may find something left where their sum is 1 or more, but then none of them is the share that was
        asked for."""
        shares = self.asked_shares
        total = math.fsum(shares.values())
        if total >= 1:
            given = " and ".join(f"{flag} ({share:g})" for flag, share in shares.items())
            raise UsageError(
                f"{given} are {total:g} of the budget together, which leaves nothing to {self.takes_rest}: lower them "
                "to a sum below 1."
            )

    def check_facts(self, class_names: tuple[str, ...] | None) -> None:
        """Refuses what does not fit the classes, which may be known by the data set's metadata alone. Raises
        `UsageError`."""

    @property
    def asked_shares(self) -> dict[str, float]:
        """Shares of the budget, by their flags; `takes_rest` gets the rest."""
        shares: dict[str, float] = {}
        for asked in self.queries:
            if asked.noise_multiplier is None and asked.budget_share is not None:
                name = f"--budget {asked.called}"
                shares[name] = shares.get(name, 0.0) + asked.budget_share
        return shares | ({} if self.evaluation_reserve is None else {"--evaluation_reserve": self.evaluation_reserve})

    @property
    def public_training(self) -> PublicTraining | None:
        """What the model learns from public images, where the method can and flags name some."""
        return None

    @property
    def ordinary_training(self) -> tuple[OrdinaryTraining, ...]:
        """What is trained before and after DP-SGD, or after the queries."""
        public = self.public_training
        return () if public is None else (OrdinaryTraining(public.num_steps, public.batch_size),)

    @property
    def public_images(self) -> DataSource | None:
        """Images that everybody may see and that the method begins with, looked for before anything is planned."""
        return None if self.public_training is None else self.public_training.images

    @property
    def ledger_path(self) -> Path:
        """The file of the run's ledger; with `--dataset_id` that of all releases of the data set."""
        folder = (
            Path(self.output_dir, "private") if self.ledger_dir is None else Path(os.path.expanduser(self.ledger_dir))
        )
        return folder / f"{self.dataset_id or 'ledger'}.jsonl"

    @property
    def ledger_options(self) -> dict[str, Any]:
        """Where the run's queries are counted, as `runs.prior_release` takes it."""
        return {
            "private": Path(self.output_dir, "private"), "ledger_path": self.ledger_path,
            "dataset_id": self.dataset_id, "unit_of_privacy": self.unit_of_privacy,
        }  # fmt: skip

    @property
    def hub_name(self) -> str:
        """`--hub_model_id` with its default filled in."""
        return self.hub_model_id or Path(self.output_dir).resolve().name

    @property
    def data(self) -> DataSource:
        """The sensitive images."""
        names = (
            "dataset_name", "dataset_config_name", "train_data_dir", "train_split", "image_column", "label_column",
            "unit_column", "key_column", "delimiter", "image_shape", "num_train_images", "num_train_units",
            "validation_size", "max_image_pixels",
        )  # fmt: skip
        return DataSource(
            **{name: getattr(self, name) for name in names},
            class_names=self.declared_class_names,
            value_range=self.declared_range,
            image_suffixes=self.suffixes,
            num_workers=self.dataloader_num_workers,
            declared_only=self.dry_run and self.num_train_images is not None,
        )

    # What a method without DP-SGD has in the place of flags.

    @property
    def precision(self) -> str | None:
        """Precision of what is computed for the door."""
        return None


class CountsClasses(TrainingConfig):
    """Of a method that asks for the number of images of each class, for classes of uneven sizes, where a flag names
    the query."""

    query_defaults: ClassVar[dict[str, dict[str, float]]] = {"class_counts": {}}

    @property
    def class_counts(self) -> tuple[ClassCounts, ...]:
        """The query, where it is asked."""
        given = "class_counts" in by_name(f"{self.noise_multiplier},{self.budget}")
        return (ClassCounts(**self.asked("class_counts")),) if given else ()


@dataclass
class DPSGDConfig(LoopFlags, TrainingConfig):
    """The flags of a method that ends with DP-SGD, on whatever network."""

    takes_rest = "DP-SGD"

    @property
    def dp_sgd(self) -> "DPSGDConfig":
        return self

    @property
    def training_facts(self) -> dict[str, Any]:
        return super().training_facts | self.changed_adam

    @property
    def num_shares(self) -> int | None:
        """Number of shares, where teachers on shares are asked in the place of gradients."""
        return None

    @property
    def num_votes(self) -> int | None:
        """Number of votes that a teacher casts in a round, where it votes."""
        return None

    @property
    def answer_norm(self) -> float:
        """Bound on the norm of what one teacher says in a round."""
        return self.max_grad_norm if self.num_votes is None else math.sqrt(self.num_votes)

    @property
    def names_model(self) -> bool:
        """Whether the flags say which model is trained."""
        return True

    @property
    def model_key(self) -> str:
        """A text that differs where the trained model can differ."""
        return repr(self)

    @property
    def bands(self) -> int | None:
        """`--noise_bands` as a number, `None` for `auto`; without noise there is nothing to choose, and it is 1."""
        if self.noise_bands == "auto":
            return None if self.has_guarantee else 1
        return int(self.noise_bands)

    @property
    def workload(self) -> Workload:
        """The sums into which the noise of DP-SGD goes."""
        return Workload(self.max_train_steps, self.lr_scheduler, self.lr_warmup_steps, self.ema_decay)

    def mechanisms(self, sample_rate: float, ids: str) -> tuple[Mechanism, ...]:
        """What a step can be, without its noise: of several, independent noise comes first. Groups have a fresh key.

        Args:
            sample_rate (`float`): q, of all units.
            ids (`str`): What the id of an image is, see `mechanisms.groups.Grouped`.
        """
        grouped = {"noise_multiplier": 1.0, "group_key": secrets.token_hex(16), "ids": ids, **self.of_door}
        if self.num_shares is not None:
            return (Shares(number=self.num_shares, votes=self.num_votes, **grouped),)
        tried = TRIED if self.bands is None else (self.bands,) if self.bands > 1 else ()
        correlated = (
            Banded(rate=sample_rate, coefficients=best_coefficients(number, self.workload), **grouped)
            for number in tried
            if number <= self.max_train_steps and number * sample_rate <= 1
        )
        return (sampled(sample_rate, **self.of_door), *correlated)

    def refuse_other_groups(self, began: Mechanism) -> None:
        """Groups hold for all steps of a release. Raises `UsageError` where a flag names another number than that of
        the first start; `--noise_bands auto` names none."""
        flag, asked = ("num_teachers", self.num_shares) if self.num_shares is not None else ("noise_bands", self.bands)
        if asked is not None and asked != began.num_groups:
            raise UsageError(
                f"--{flag} {asked} is not what this run began with, {began.num_groups}: resume with --{flag} "
                f"{began.num_groups}."
            )

    def check(self) -> None:
        if self.bands is not None and self.bands > self.max_train_steps:
            raise UsageError(
                f"--noise_bands {self.bands} is more than --max_train_steps {self.max_train_steps}: a band for each "
                "step is the most; lower the one or raise the other."
            )
        if not self.has_guarantee and self.bands != 1:
            raise UsageError(
                f"--noise_bands {self.noise_bands} and --target_epsilon inf exclude each other: without noise nothing "
                "is correlated; leave one of them out."
            )
        if self.is_exact and self.unit_column is not None:
            raise UsageError(
                "--noise exact and --unit_column exclude each other in DP-SGD, whose proof to the bit needs batches "
                "of a public shape, of one image a unit: give --noise float, or leave the other out."
            )
        size = self.physical_batch_size
        if self.unit_column is not None and size is not None and size < self.images_per_unit:
            raise UsageError(
                f"--max_images_per_unit {self.images_per_unit} is more than --max_physical_batch_size {size}, and a "
                "unit is never split: lower the one or raise the other."
            )


@dataclass
class DiffusionConfig(NetworkFlags, ModelFlags, SolverFlags, DPSGDConfig):
    """The flags of a method that ends with DP-SGD on a diffusion model."""

    #: Where neither `--objective` nor a pre-trained model says one.
    default_objective: ClassVar[str] = "edm"

    mix_public_images = False  # where the method has no such flag

    @property
    def semantic_query(self) -> SemanticQuery | None:
        """Which public classes the sensitive images look like, where the method asks."""
        return None

    @property
    def starts_from(self) -> tuple[str | None, str | None]:
        """Name and revision of a pre-trained pipeline, where the method can begin with one."""
        return None, None

    @property
    def needs_edm(self) -> str | None:
        """Why the model needs EDM's noise levels, as the beginning of a sentence."""
        return None if self.solver == "dpm" else f"--solver {self.solver} draws at EDM's noise levels"

    def check(self) -> None:
        unset = self.default_objective if self.starts_from[0] is None else "edm"  # the pre-trained model tells
        if (self.objective or unset) != "edm" and self.needs_edm is not None:
            raise UsageError(f"{self.needs_edm}; give --objective edm, or leave it out.")
