# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a question to the sensitive images is, in one place: plan, picture, audit, receipt and stored answers read it.
No torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar


if TYPE_CHECKING:
    import torch

    from ..privacy.sensitive import SensitiveImages
    from ..privacy.separate_records import Features

    #: An answer `[repeats, classes, d]`, the number of units and the noise multiplier, to what is stored.
    Finish = Callable[[torch.Tensor, int, float], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Query:
    """
    One noisy sum of features over the sensitive images, asked once in a run.

    A subclass gives it a name, a clip norm and features, and says what follows from an answer. Its fields say how it
    is asked.

    Args:
        noise_multiplier (`float`, *optional*): As a flag gave it; `None`: calibrated to the share.
        budget_share (`float`, *optional*): Share of the composed RDP; `None`: what all others leave, of a method
            without DP-SGD. Several such queries get one noise multiplier, so they are asked alike.
        flags (`str`): What its flags begin with: `--{flags}_noise_multiplier` and `--{flags}_budget_share`.
        sample_rate (`float`, defaults to 1): q of each Poisson sample; 1 takes all images.
        repeats (`int`, defaults to 1): How often it is asked.

    Attributes:
        name (`str`): Of the ledger's row and of the stored answer; each query of a run has its own.
        title (`str`): For people.
        by_label (`bool`): One sum for each class instead of one for all.
    """

    by_label: ClassVar[bool] = True

    noise_multiplier: float | None = None
    budget_share: float | None = None
    flags: str = ""
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
        """Bound on the L2 norm of one record's features; the sensitivity."""
        raise NotImplementedError

    @property
    def facts(self) -> dict[str, Any]:
        """Public facts for the ledger's row: JSON values."""
        return {}

    @property
    def meaning(self) -> dict[str, Any]:
        """What else decides how a stored answer is to be read, a public seed for instance: JSON values."""
        return {}

    @property
    def num_values(self) -> int | None:
        """Values of a class's answer, whose signal to noise a plan tells; `None`: it tells none."""
        return None

    @property
    def public_inputs(self) -> list[dict[str, Any]]:
        """Origins of weights from elsewhere that its features are made of, for the receipt; no paths."""
        return []

    def normaliser(self, num_units: int, num_classes: int) -> float | None:
        """The public divisor of an answer, for the ledger; `None` where there is none.

        Args:
            num_units (`int`): The declared N.
            num_classes (`int`): Classes that are asked apart; 1 where there are none.
        """
        return None

    def features(self, images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
        """Images `[b, C, H, W]` in [0, 1] and labels, int64 `[b]` or `None`, to features `[b, d]`, each row of its own
        record."""
        raise NotImplementedError(f"{type(self).__name__} has no features of its own; give them to `ask`.")

    def finish(self, answer: "torch.Tensor", num_units: int, noise_multiplier: float) -> "torch.Tensor":
        """Post-processing of an answer `[repeats, classes, d]`, by public numbers alone."""
        return answer

    def stand_in(self) -> "Features":
        """Public features for pre-flight and audit. A query whose features are known only later gives others of their
        kind."""
        return self.features

    def ask(self, images: "SensitiveImages", features: "Features", *, noise_multiplier: float) -> "torch.Tensor":
        """
        Puts the question to the door, which writes its ledger first.

        Args:
            images (`SensitiveImages`): The door.
            features (`Features`): As `features` above.
            noise_multiplier (`float`): sigma.

        Returns:
            `torch.Tensor` of shape `[repeats, classes, d]`, float32: sums, not finished.

        Raises:
            BudgetExceeded: The answer would exceed the budget; nothing was asked.
            UsageError: The features mix records.
        """
        classes = len(images.class_names) if self.by_label and images.class_names is not None else 1
        normaliser = self.normaliser(images.num_units, classes)
        return images.noisy_sum(
            features,
            clip_norm=self.clip_norm,
            noise_multiplier=noise_multiplier,
            sample_rate=self.sample_rate,
            by_label=self.by_label,
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
        finish: "Finish | None" = None,
    ) -> "torch.Tensor":
        """
        Puts the question to the door, and finishes the answer.

        Args:
            images, noise_multiplier: As for `ask`.
            features (`Features`, *optional*): In the place of the query's own.
            finish (`Finish`, *optional*): In the place of the query's own; it may use public numbers only.

        Raises:
            BudgetExceeded, UsageError: As `ask`.
        """
        sums = self.ask(images, features or self.features, noise_multiplier=noise_multiplier)
        return (finish or self.finish)(sums, images.num_units, noise_multiplier)
