# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The definition of a query to the sensitive images, which plan, picture, audit, receipt and stored answers read. No
torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ..accounting.ledger_row import LedgerRow
from ..mechanisms import Mechanism, sampled


if TYPE_CHECKING:
    import torch

    from ..privacy.sensitive import SensitiveImages
    from ..privacy.separate_records import Features

#: Map from an answer `[repeats, classes, d]`, the number of units and the noise multiplier to the stored tensor.
Finish = Callable[["torch.Tensor", int, float], "torch.Tensor"]


@dataclass(frozen=True, kw_only=True)
class Query:
    """
    One noisy sum of features over the sensitive images, asked once per run.

    Subclasses define a name, a clip norm, features and the post-processing of an answer. The fields define the
    sampling and the noise.

    Args:
        noise_multiplier (`float`, *optional*): Noise multiplier from a flag; `None`: calibrated to the share.
        budget_share (`float`, *optional*): Share of the composed RDP; `None`: the remainder, in a method without
            DP-SGD. Several such queries get the same noise multiplier and must have the same sampling.
        called (`str`): Its name in `--noise_multiplier` and `--budget`; unset: they do not name it.
        sample_rate (`float`, defaults to 1): Rate q of each Poisson sample; 1 uses all images.
        repeats (`int`, defaults to 1): Number of times it is asked.

    Attributes:
        name (`str`): Name of the ledger row and of the stored answer, unique within a run.
        title (`str`): Name for display.
        by_label (`bool`): Whether there is one sum per class instead of one for all.
        by_channel (`bool`): Whether each channel of an image has `num_values` values.
    """

    by_label: ClassVar[bool] = True
    by_channel: ClassVar[bool] = False

    noise_multiplier: float | None = None
    budget_share: float | None = None
    called: str = ""
    sample_rate: float = 1.0
    repeats: int = 1

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def title(self) -> str:
        raise NotImplementedError

    @property
    def clip_norm(self) -> float:
        """Bound on the L2 norm of one record's features: the sensitivity. Longer rows are clipped to it."""
        return 1.0

    @property
    def facts(self) -> dict[str, Any]:
        """Public JSON facts for the ledger row."""
        return {}

    @property
    def meaning(self) -> dict[str, Any]:
        """JSON facts that determine the meaning of a stored answer, such as a public seed."""
        return self.facts

    @property
    def num_values(self) -> int | None:
        """Number of values per class, for the plan's signal-to-noise ratio and memory; `None`: the plan omits it."""
        return None

    @property
    def public_inputs(self) -> list[dict[str, Any]]:
        """Origins of external weights in its features, for the receipt; no paths."""
        return []

    def needs(self, num_classes: int, num_units: int, noise_multiplier: float, unit: str) -> str:
        """Returns what the plan says of how much its answer needs to show anything; empty: its signal to noise alone.

        Args:
            num_classes, num_units, noise_multiplier: Number of classes, 1 without; N; sigma.
            unit (`str`): What N counts: image or unit.
        """
        return ""

    def normaliser(self, num_units: int, num_classes: int) -> float | None:
        """Returns the public divisor of an answer, for the ledger, or `None`.

        Args:
            num_units (`int`): Declared number N of units.
            num_classes (`int`): Number of classes with separate sums; 1 without classes.
        """
        return None

    def features(self, images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] and labels, int64 `[b]` or `None`, to features `[b, d]`. Each row
        depends only on its own record."""
        raise NotImplementedError(f"{type(self).__name__} defines no features; pass them to `ask`.")

    def finish(self, answer: "torch.Tensor", num_units: int, noise_multiplier: float) -> "torch.Tensor":
        """Post-processes an answer `[repeats, classes, d]`, with public numbers only."""
        return answer

    def stand_in(self) -> "Features":
        """Returns public features for pre-flight and audit. A query whose features are defined later returns similar
        ones."""
        return self.features

    def timed(self) -> "Features":
        """Returns public features that take about as long as the run's, for a forecast."""
        return self.stand_in()

    def mechanism(self, noise_multiplier: float = 1.0, **facts: Any) -> Mechanism:
        """Who takes part, with this noise multiplier; `facts` as of `Mechanism`."""
        return sampled(self.sample_rate, noise_multiplier, **facts)

    def at(self, num_units: int) -> Self:
        """The query with what follows from the declared number of units."""
        return self

    def row(self, noise_multiplier: float, **facts: Any) -> LedgerRow:
        """The row of a plan, which states no other facts of the query yet."""
        return LedgerRow(
            self.name, self.mechanism(noise_multiplier, **facts), self.repeats, {"clip_norm": self.clip_norm}
        )

    def ask(self, images: "SensitiveImages", features: "Features", *, noise_multiplier: float) -> "torch.Tensor":
        """
        Puts the query to the door, which writes its ledger first.

        Args:
            images (`SensitiveImages`): The door.
            features (`Features`): As `features` above.
            noise_multiplier (`float`): sigma.

        Returns:
            `torch.Tensor` of shape `[repeats, classes, d]`, float32: noisy sums before post-processing.

        Raises:
            BudgetExceeded: The answer would exceed the budget; nothing was asked.
            UsageError: The features mix records.
        """
        classes = len(images.class_names) if self.by_label and images.class_names is not None else 1
        normaliser = self.normaliser(images.num_units, classes)
        return images.noisy_sum(
            features,
            self.mechanism(noise_multiplier, by_label=self.by_label),
            clip_norm=self.clip_norm,
            name=self.name,
            repeats=self.repeats,
            query={**({} if normaliser is None else {"normaliser": normaliser}), **self.facts},
        )

    def answer(
        self,
        images: "SensitiveImages",
        *,
        noise_multiplier: float,
        features: "Features | None" = None,
        finish: Finish | None = None,
    ) -> "torch.Tensor":
        """
        Asks the door for the noisy sums and post-processes them on the CPU.

        Args:
            images, noise_multiplier: As for `ask`.
            features (`Features`, *optional*): In the place of the query's own.
            finish (`Finish`, *optional*): In the place of the query's own; it may use public numbers only.

        Raises:
            BudgetExceeded, UsageError: See `ask`.
        """
        sums = self.ask(images, features or self.features, noise_multiplier=noise_multiplier).cpu()
        return (finish or self.finish)(sums, images.num_units, noise_multiplier)
