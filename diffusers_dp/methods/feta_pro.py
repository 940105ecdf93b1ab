# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""FETA-Pro: its curriculum, and its noisy frequency features beside the central images."""

from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import UsageError
from ..queries.frequency import FrequencyFeatures, RandomFourierFeatures
from ..queries.mean_features import MeanFeatures
from ..queries.query import Query
from ..schedulers.curricula import CURRICULA
from .flag import by_name, expert, flag
from .flag_groups import ScatteringFlags, length_scale_of, refuse_odd
from .flags import CountsClasses, OrdinaryTraining
from .judge import HasJudge
from .method import DIFFUSION, built
from .method_flags import SemanticConfig, SpatialFlags
from .moments import SHARES, MomentFlags


@dataclass
class FETAProConfig(HasJudge, SpatialFlags, ScatteringFlags, MomentFlags, CountsClasses, SemanticConfig):
    """
    All flags of `training/train_feta_pro.py`. Fields are the flags as given; properties are what they mean.

    Example:
        ```python
        >>> config = load_config(["--config", "mnist_eps1", "--seed", "1"])
        >>> config.curriculum_stages
        ('spatial', 'frequency')
        ```
    """

    _argument_group_name = "curriculum and frequency features"

    method: ClassVar[str] = "feta_pro"
    #: `moments` is the share of all of their queries together, but for those that are named by themselves; they have
    #: parts of it.
    query_defaults: ClassVar[dict[str, dict[str, float]]] = {
        **dict.fromkeys(("frequency_features", "moments"), {"budget_share": 0.02}),
        **{name: {"of_moments": part} for name, part in SHARES.items()},
    }
    curriculum: str = flag("spatial,frequency", "Order of the warm-up stages.", choices=tuple(CURRICULA))
    auxiliary_features: str = flag(
        "rff",
        "What auxiliary images are fitted to: random Fourier features of pixels ('rff', the paper's), those of "
        "wavelets beside them ('scattering'), or drawn from: noisy moments ('moments').",
        rare=True, choices=("rff", "scattering", "moments"),
    )  # fmt: skip
    num_frequency_features: int = flag(
        1000, "Random Fourier features: half cosines, half sines, so an even number.", at_least=2
    )
    frequency_length_scale: float | None = expert(
        None, "Frequencies are drawn from N(0, 1/scale^2); unset: sqrt(channels * height * width) / 4."
    )
    auxiliary: str = expert(
        "generator",
        "What is fitted to the frequency features: a one-step generator, another diffusion model, or the model "
        "itself (none).",
        choices=("generator", "diffusion", "none"),
    )  # fmt: skip
    distillation_steps: int = expert(
        0, "Warm-up steps that learn the ideal denoiser of the noisy moments, a closed form, before drawn images.",
        at_least=0,
    )  # fmt: skip
    frequency_steps: int = flag(400, "Warm-up steps on the auxiliary generator's images.")
    frequency_batch_size: int = expert(
        128, "Batch size of the warm-up on the auxiliary generator's images; --curriculum mix halves it.", at_least=2
    )
    frequency_learning_rate: float = expert(1e-3, "Learning rate of the warm-up on the auxiliary generator's images.")
    generator_steps: int = flag(500, "Steps that fit the auxiliary generator to the noisy frequency features.")
    generator_batch_size: int = expert(200, "Images that the auxiliary generator draws per step.")
    generator_learning_rate: float = expert(3e-3, "Learning rate of the auxiliary generator; falls to 0 linearly.")
    generator_channels: int = expert(32, "Base channels of the auxiliary generator.")
    num_auxiliary_images: int = expert(3000, "Images drawn from the fitted generator for the warm-up.")

    @property
    def curriculum_stages(self) -> tuple[str, ...]:
        """`--curriculum` as its stages, in order; empty for `none`."""
        return CURRICULA[self.curriculum]

    @property
    def ordinary_training(self) -> tuple[OrdinaryTraining, ...]:
        """Without the fits of `--expert auxiliary=diffusion` and `none`."""
        stages = [*super().ordinary_training]
        if self.asks_spatial:
            stages.append(OrdinaryTraining(self.spatial_steps, self.spatial_batch_size))
        if self.asks_frequency:
            steps = self.distillation_steps + self.frequency_steps
            stages.append(OrdinaryTraining(steps, self.frequency_batch_size))
            if self.auxiliary == "generator" and not self.asks_moments:
                channels = self.generator_channels
                stages.append(OrdinaryTraining(self.generator_steps, self.generator_batch_size, channels))
        return tuple(stages)

    @property
    def asks_spatial(self) -> bool:
        """Whether the curriculum asks for, and pays for, the central images."""
        return self.curriculum == "mix" or "spatial" in self.curriculum_stages

    @property
    def asks_frequency(self) -> bool:
        """Whether the curriculum asks for, and pays for, the frequency features."""
        return self.curriculum == "mix" or "frequency" in self.curriculum_stages

    @property
    def asks_moments(self) -> bool:
        """Whether the curriculum asks for moments in place of the frequency features."""
        return self.asks_frequency and self.auxiliary_features == "moments"

    @property
    def moments_share(self) -> float | None:
        return float(self.asked("moments").get("budget_share", 0.0))

    @property
    def queries(self) -> tuple[Query, ...]:
        """What the curriculum asks, and a judge."""
        counts = self.class_counts if self.curriculum_stages else ()
        spatial = (*super().queries, *counts, *((self.central_images_query,) if self.asks_spatial else ()))
        if self.asks_moments:
            return (*spatial, *self.moment_queries, *self.judge)
        return (*spatial, *((self.frequency_query,) if self.asks_frequency else ()), *self.judge)

    @property
    def told(self) -> tuple[str, ...]:
        return (
            "curriculum", "spatial_steps", "spatial_batch_size", "spatial_learning_rate", "frequency_steps",
            "frequency_batch_size", "frequency_learning_rate", "auxiliary",
            *(("distillation_steps",) if self.asks_moments else ()),
        )  # fmt: skip

    @property
    def training_facts(self) -> dict[str, Any]:
        return super().training_facts | (self.moment_facts if self.asks_moments else {})

    @property
    def needs_edm(self) -> str | None:
        if self.auxiliary == "none":
            return "--expert auxiliary=none draws by DDIM on EDM's noise levels"
        if self.distillation_steps:
            return "--expert distillation_steps teaches a denoiser at EDM's noise levels"
        return super().needs_edm

    @property
    def frequency_query(self) -> MeanFeatures:
        """Equations 5 and 6, or the same of scattering features."""
        shape, number = self.image_shape, self.num_frequency_features
        asked, scale = self.asked("frequency_features"), self.frequency_length_scale
        if self.auxiliary_features == "scattering":
            return MeanFeatures(feature_map=self.scattering(shape, number, scale, self.seed), **asked)
        phi = RandomFourierFeatures(shape, number, scale or length_scale_of(shape), self.seed)
        return FrequencyFeatures(feature_map=phi, **asked)

    @property
    def drawn_by_class(self) -> tuple[str, ...]:
        """Of what is fitted to the frequency features."""
        if not self.asks_frequency:
            return ()
        if self.asks_moments:
            return ("num_auxiliary_images",)
        if self.auxiliary == "none":
            return ("frequency_batch_size",)
        return ("generator_batch_size", "num_auxiliary_images")

    def check_facts(self, class_names: tuple[str, ...] | None) -> None:
        super().check_facts(class_names)
        if self.asks_moments:
            self.check_parts(class_names)

    def check(self) -> None:
        if self.asks_moments:
            self.check_moments()
            if self.auxiliary != "generator":
                raise UsageError(
                    f"--expert auxiliary={self.auxiliary} fits a model to features, and --auxiliary_features moments "
                    "draws images without one; leave --expert auxiliary out."
                )
            if "moments" in by_name(self.noise_multiplier):
                raise UsageError(
                    f"--noise_multiplier moments is about several queries: give --budget moments, or name one of "
                    f"{', '.join(SHARES)}."
                )
            if self.class_counts and not self.asks_spatial:
                raise UsageError("--noise_multiplier class_counts asks what moments ask already; leave it out.")
        elif self.distillation_steps:
            raise UsageError(
                "--expert distillation_steps teaches what moments tell, and none are asked for; give "
                "--auxiliary_features moments, or leave it out."
            )
        if self.auxiliary != "generator" and (self.objective or self.default_objective) != "edm":
            raise UsageError(
                f"--expert auxiliary={self.auxiliary} draws by DDIM on EDM's noise levels; give --objective edm, or "
                "--expert auxiliary=generator."
            )
        if self.curriculum == "mix" and self.auxiliary == "none":
            raise UsageError(
                "--expert auxiliary=none draws no images that --curriculum mix could mix; give another --curriculum, "
                "or --expert auxiliary=generator."
            )
        if self.auxiliary_features == "scattering":
            self.check_levels(self.image_shape)
        kernels = 2 if self.auxiliary_features == "scattering" else 1
        refuse_odd("num_frequency_features", self.num_frequency_features, kernels)


METHODS = (built(FETAProConfig, train="diffusers_dp.training.train_feta_pro:train", **DIFFUSION),)
