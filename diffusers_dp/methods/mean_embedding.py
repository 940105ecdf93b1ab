# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Mean embeddings: queries about features of the images, and a generator that is fitted to the noisy answers. The
features make the method. No torch."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from ..errors import UsageError
from ..queries.efficientnet import EFFICIENTNET, PYRAMID, EfficientNetFeatures, refuse_missing_network
from ..queries.frequency import FrequencyFeatures, RandomFourierFeatures
from ..queries.hermite import HermiteFeatures
from ..queries.mean_features import FeatureMap, MeanFeatures, SecondMoments, StoppingFeatures1, StoppingFeatures2
from ..queries.perceptual import PerceptualFeatures
from ..queries.query import Query
from ..queries.tangent import MeanTangents, TangentFeatures
from .flag import expert, flag, numbers, split_list
from .flag_groups import ScatteringFlags, length_scale_of, refuse_odd
from .flags import CountsClasses, OrdinaryTraining
from .generator_flags import GeneratorFlags
from .judge import HasJudge
from .method import built


#: What `--features` may be, and whose they are.
FEATURES = {
    "rff": "dp_merf",
    "rff_mixture": "dp_kernel",
    "ntk": "dp_ntk",
    "hermite": "dp_hp",
    "perceptual": "dp_mepf",
    "scattering": "dp_scattering",
}
#: Highest degree of the two pixels' polynomials that are multiplied: that of all recipes.
HERMITE_PRODUCT_ORDER = 20
#: Of DP-HP's kernel, whose length scale is sqrt((1 - rho^2) / (2 rho)), for [0, 1].
HERMITE_RHO = 0.5


@dataclass
class MeanEmbeddingConfig(HasJudge, CountsClasses, GeneratorFlags):
    """What the methods of `training/train_mean_embedding.py` share."""

    _argument_group_name = "mean embedding"

    features: str = flag("rff", "Features of an image, which make the method.", choices=tuple(FEATURES))
    query_defaults: ClassVar[dict[str, dict[str, float]]] = {"mean_features": {}}
    generator_steps: int = flag(500, "Steps that fit the generator to the noisy mean embedding.")
    generator_batch_size: int = expert(200, "Images that the generator draws per step.")
    generator_learning_rate: float = expert(3e-3, "Learning rate of the generator; falls to 0 linearly.")
    moving_average_learning_rate: float | None = expert(
        None, "Adam's learning rate of a moving average of differences to fit to (GFMN); unset: those of each batch."
    )

    @property
    def feature_map(self) -> FeatureMap:
        """phi."""
        raise NotImplementedError

    @property
    def matched(self) -> tuple[MeanFeatures, ...]:
        """The queries whose answers the generator is fitted to, one for each moment."""
        return (MeanFeatures(feature_map=self.feature_map, **self.asked("mean_features")),)

    @property
    def stopping(self) -> tuple[MeanFeatures, ...]:
        """The queries whose answers choose among generators, one for each moment."""
        return ()

    @property
    def queries(self) -> tuple[Query, ...]:
        return (*self.class_counts, *self.matched, *self.stopping, *self.judge)

    @property
    def ordinary_training(self) -> tuple[OrdinaryTraining, ...]:
        steps, batch, query = self.generator_steps, self.generator_batch_size, self.matched[0]
        if self.generator == "one_step":
            return (OrdinaryTraining(steps, batch, network=self.network, query=query),)
        return (OrdinaryTraining(steps, batch, self.generator_channels, query=query), *super().ordinary_training)


@dataclass
class FourierFlags:
    """Random Fourier features."""

    _argument_group_name = "random features"

    num_features: int = flag(4000, "Random Fourier features: half cosines, half sines, so an even number.", at_least=2)

    @property
    def num_kernels(self) -> int:
        """Kernels that the features are of."""
        return 1

    def check(self) -> None:
        refuse_odd("num_features", self.num_features, self.num_kernels)


@dataclass
class LengthScaleFlags:
    """Of one kernel."""

    _argument_group_name = "random features (scale)"

    length_scale: float | None = flag(
        None, "Frequencies are drawn from N(0, 1/scale^2); unset: sqrt(channels * height * width) / 4."
    )


@dataclass
class DPMERFConfig(LengthScaleFlags, FourierFlags, MeanEmbeddingConfig):
    """With random Fourier features."""

    method: ClassVar[str] = "dp_merf"
    query_defaults: ClassVar[dict[str, dict[str, float]]] = {"frequency_features": {}}

    @property
    def feature_map(self) -> FeatureMap:
        scale = self.length_scale or length_scale_of(self.image_shape)
        return RandomFourierFeatures(self.image_shape, self.num_features, scale, self.seed)

    @property
    def matched(self) -> tuple[MeanFeatures, ...]:
        """The mean embedding of each class (Harder et al. 2021, Section 4)."""
        return (FrequencyFeatures(feature_map=self.feature_map, **self.asked("frequency_features")),)


@dataclass
class DPKernelConfig(FourierFlags, MeanEmbeddingConfig):
    """With random Fourier features of several length scales."""

    _argument_group_name = "random features (scales)"

    length_scales: str = flag(
        "0.5,1,2,4,8", "Length scales of the kernels, for images in [0, 1].",
        read=numbers, range="positive numbers, such as 2,4,8",
    )  # fmt: skip

    method: ClassVar[str] = "dp_kernel"
    features: str = "rff_mixture"

    @property
    def scales(self) -> tuple[float, ...]:
        """`--length_scales` as numbers."""
        return numbers(self.length_scales)

    @property
    def num_kernels(self) -> int:
        return len(self.scales)

    @property
    def feature_map(self) -> FeatureMap:
        return RandomFourierFeatures(self.image_shape, self.num_features, self.scales, self.seed)


@dataclass
class DPNTKConfig(MeanEmbeddingConfig):
    """With the gradient of an untrained network."""

    _argument_group_name = "tangent features"

    tangent_width: int = flag(64, "Hidden units of the untrained network; D is this times (pixels + 2).")

    method: ClassVar[str] = "dp_ntk"
    features: str = "ntk"

    @property
    def feature_map(self) -> TangentFeatures:
        return TangentFeatures(self.image_shape, self.tangent_width, self.seed)

    @property
    def matched(self) -> tuple[MeanFeatures, ...]:
        return (MeanTangents(feature_map=self.feature_map, **self.asked("mean_features")),)


@dataclass
class DPHPConfig(MeanEmbeddingConfig):
    """With Hermite polynomials."""

    _argument_group_name = "Hermite features"

    hermite_order: int = flag(100, "Highest degree of a single pixel's polynomials.")

    method: ClassVar[str] = "dp_hp"
    features: str = "hermite"

    @property
    def feature_map(self) -> FeatureMap:
        return HermiteFeatures(self.image_shape, self.hermite_order, HERMITE_PRODUCT_ORDER, HERMITE_RHO, self.seed)


@dataclass
class DPMEPFConfig(MeanEmbeddingConfig):
    """With what a public network sees."""

    _argument_group_name = "perceptual features"

    method: ClassVar[str] = "dp_mepf"
    features: str = "perceptual"
    #: `stopping_features` is the share of both queries together.
    query_defaults: ClassVar[dict[str, dict[str, float]]] = {
        "second_moments": {"budget_share": 0.5}, "stopping_features": {"budget_share": 0.02},
    }  # fmt: skip
    feature_network: str = flag(
        "microsoft/resnet-18",
        "Folder or Hub id of a public vision network (safetensors) that has not seen the sensitive images, or "
        "efficientnet_lite0, of diffusers_dp[features].",
        place=True,
    )  # fmt: skip
    feature_layers: str = flag("", "Its layers whose outputs are the features; unset: all convolutions.")
    feature_resolution: int | None = expert(None, "Side length that networks see images at; unset: their own.")
    moments: int = flag(1, "1: the mean of the features; 2: that of their squares as well.", choices=(1, 2))
    stopping_network: str | None = flag(
        None, "Another public network that chooses among generators on the way; unset: the last one.", place=True
    )
    stopping_layers: str = expert("", "Its layers, as --feature_layers.")
    stopping_steps: int = expert(100, "Steps between two generators to choose among.")
    num_stopping_images: int = expert(2000, "Images that each of them draws to be compared.")

    @cached_property
    def feature_map(self) -> FeatureMap:
        return self._seen_by(self.feature_network, self.feature_layers, "feature_network")

    @property
    def matched(self) -> tuple[MeanFeatures, ...]:
        first = super().matched
        if self.moments == 1:
            return first
        return (*first, SecondMoments(feature_map=self.feature_map, **self.asked("second_moments")))

    @cached_property
    def stopping(self) -> tuple[MeanFeatures, ...]:
        if self.stopping_network is None:
            return ()
        seen = self._seen_by(self.stopping_network, self.stopping_layers, "stopping_network")
        asked = self.asked("stopping_features", among=2)
        return StoppingFeatures1(feature_map=seen, **asked), StoppingFeatures2(feature_map=seen, **asked)

    @property
    def drawn_by_class(self) -> tuple[str, ...]:
        return (*super().drawn_by_class, *(("num_stopping_images",) if self.stopping_network else ()))

    def _seen_by(self, network: str, layers: str, flag: str) -> FeatureMap:
        named = split_list(layers)
        if network != EFFICIENTNET:
            return PerceptualFeatures(network, self.image_shape, self.feature_resolution, flag, named)
        if named:
            raise UsageError(f"{EFFICIENTNET} has layers of its own: leave out {', '.join(named)}.", field=flag)
        refuse_missing_network()
        return EfficientNetFeatures(self.image_shape, PYRAMID)


@dataclass
class DPScatteringConfig(ScatteringFlags, LengthScaleFlags, FourierFlags, MeanEmbeddingConfig):
    """With random Fourier features of wavelets beside those of pixels: perceptual features without public data."""

    method: ClassVar[str] = "dp_scattering"
    features: str = "scattering"

    @property
    def feature_map(self) -> FeatureMap:
        return self.scattering(self.image_shape, self.num_features, self.length_scale, self.seed)

    num_kernels = 2

    def check(self) -> None:
        self.check_levels(self.image_shape)


METHODS = tuple(
    built(config, train="diffusers_dp.training.train_mean_embedding:train")
    for config in (DPMERFConfig, DPKernelConfig, DPNTKConfig, DPHPConfig, DPMEPFConfig, DPScatteringConfig)
)
