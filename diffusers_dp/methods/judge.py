# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The judge: a small classifier that part of the budget trains, and that says how probable each class of a drawn image
is. No torch.

It trains by DP-SGD on public features of the sensitive images, which see no more of an image than the draws can show.
A method whose configuration has `HasJudge` lists `judge` last among its queries. Where it ends with DP-SGD and
`release_pipeline`, the run does the rest.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..errors import UsageError
from ..queries.efficientnet import EFFICIENTNET, EfficientNetFeatures, efficientnet_origin, refuse_missing_network
from ..queries.moments import all_frequencies
from ..queries.scattering import SCATTERING
from .dp_sgd_flags import LoopFlags
from .flag import by_name, flag
from .flags import TrainingConfig
from .private_training import PrivateTraining


JUDGE = "judge"  # name of its row, and of the query in --budget
DRAWN = "drawn"  # or `JUDGE`: whose classes the column `label` has
#: Steps, expected batch and clip norm: chosen on training images of Fashion-MNIST, where they were best at epsilon 1
#: and 10.
STEPS, BATCH_SIZE, CLIP_NORM, MOMENTUM = 350, 4096, 3.0, 0.9
#: Standard deviation of the noise that all steps together leave in a weight, by which the learning rate is found; and
#: the largest rate. For colour it was chosen on training images of CIFAR-10.
WEIGHT_NOISE, WEIGHT_NOISE_IN_COLOUR, LARGEST_RATE = 0.13, 0.065, 8.0
#: The most images of a physical batch, and the most values of their gradients, which are half a gigabyte.
IMAGES_AT_ONCE, VALUES_AT_ONCE = 512, 2**27
WAVELETS_OF_A_VALUE = 5  # coefficients for each value of an image
SUPPOSED_CLASSES = 100  # where no flag names the classes


@dataclass(frozen=True, kw_only=True)
class JudgeTraining(PrivateTraining):
    """
    The training of the judge.

    Args:
        num_frequencies (`int`): Lowest frequencies that are left of an image, see `queries.moments.Frequencies`.
        kind (`str`): See `models.judge.JudgeFeatures`.
    """

    name = JUDGE
    build: ClassVar[str] = "diffusers_dp.runs.judge:build"

    num_frequencies: int
    kind: str = SCATTERING

    @property
    def title(self) -> str:
        return JUDGE if self.kind == SCATTERING else f"{JUDGE} through {self.kind}"

    @property
    def facts(self) -> dict[str, Any]:
        return {"judge_frequencies": self.num_frequencies, "judge_features": self.kind}

    @property
    def public_inputs(self) -> list[dict[str, Any]]:
        return [] if self.kind == SCATTERING else [efficientnet_origin("network of the judge")]

    def at_rate(self, noise_multiplier: float, channels: int) -> "JudgeTraining":
        """With the learning rate that follows from the noise, so that its logits are no louder than it is sure."""
        wanted = WEIGHT_NOISE if channels == 1 and self.kind == SCATTERING else WEIGHT_NOISE_IN_COLOUR
        noise = CLIP_NORM * noise_multiplier * math.sqrt(self.settings.max_train_steps) / self.batch_size
        rate = min(LARGEST_RATE, wanted * (1 - MOMENTUM) / noise) if noise else LARGEST_RATE
        return replace(self, settings=replace(self.settings, learning_rate=rate))

    def timed(self) -> Any:
        from ..models.judge import JudgeFeatures

        return lambda images, labels: JudgeFeatures(tuple(images.shape[1:]), self.num_frequencies, self.kind)(images)


@dataclass
class HasJudge(TrainingConfig):
    """Of a method whose drawn images a judge can label, where `--budget` or `--noise_multiplier` names it."""

    _argument_group_name = "judge"

    judge_features: str = flag(
        SCATTERING, "What it sees of an image: wavelets, or a public network of diffusers_dp[features], for colour.",
        choices=(SCATTERING, EFFICIENTNET),
    )  # fmt: skip
    query_defaults: ClassVar[dict[str, dict[str, float]]] = {JUDGE: {}}

    @property
    def judge_frequencies(self) -> int:
        """The lowest frequencies that the draws have: all, where a network draws."""
        return all_frequencies(self.image_shape)

    @property
    def has_judge(self) -> bool:
        return JUDGE in by_name(f"{self.noise_multiplier},{self.budget}")

    @property
    def judge_share(self) -> float:
        """Its share of the budget, where that was given."""
        return self.asked(JUDGE).get("budget_share", 0.0) if self.has_judge else 0.0

    @property
    def judge(self) -> tuple[JudgeTraining, ...]:
        """Its training, where it is asked for."""
        if not self.has_judge:
            return ()
        features = EfficientNetFeatures(self.image_shape).num_features
        if self.judge_features == SCATTERING:
            features = WAVELETS_OF_A_VALUE * math.prod(self.image_shape)
        classes = len(self.declared_class_names or ()) or SUPPOSED_CLASSES
        at_once = max(1, min(IMAGES_AT_ONCE, VALUES_AT_ONCE // (features * classes)))
        settings = LoopFlags(
            max_train_steps=STEPS, train_batch_size=BATCH_SIZE, noise_multiplicity=1, max_grad_norm=CLIP_NORM,
            lr_scheduler="cosine", ema_decay=0.0, max_physical_batch_size=str(at_once),
        )  # fmt: skip
        seen, asked = self.judge_frequencies, self.asked(JUDGE)
        return (JudgeTraining(settings=settings, num_frequencies=seen, kind=self.judge_features, **asked),)

    @property
    def is_exact(self) -> bool:
        return super().is_exact and not (self.has_judge and self.noise is None)

    def check(self) -> None:
        if self.judge_features == EFFICIENTNET:
            if not self.has_judge:
                raise UsageError("--judge_features needs a judge: add --budget judge=0.3, or leave it out.")
            refuse_missing_network()
        if self.has_judge and self.is_exact:
            raise UsageError(
                "--budget judge and --noise exact exclude each other, because the features of the judge have no proof "
                "to the bit: give --noise float, or leave the other out."
            )

    @property
    def training_facts(self) -> dict[str, Any]:
        return super().training_facts | {name: value for each in self.judge for name, value in each.facts.items()}

    def check_facts(self, class_names: tuple[str, ...] | None) -> None:
        """Refuses a judge of images without classes, or of one, too."""
        super().check_facts(class_names)
        if self.has_judge and len(class_names or ()) < 2:
            have = "no classes" if not class_names else "one class"
            raise UsageError(
                f"--budget judge needs images of two classes at least, and these have {have}: declare --class_names, "
                "or leave it out."
            )
