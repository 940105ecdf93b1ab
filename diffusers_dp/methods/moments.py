# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Moments: a few queries about the low frequencies of the images of each class, and images drawn from Gaussians that
have these moments. The release is a data set. No torch."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from ..data.records import DataSource
from ..errors import UsageError
from ..queries.moments import ClassMoments, GreyLevels, PartCovariances, PartMeans
from ..queries.query import Query
from ..queries.random_networks import BLOCKS, NetworkMeans, RandomNetworkFeatures
from .flag import by_name, expert, flag
from .flags import OrdinaryTraining, TrainingConfig
from .generator_flags import ResultFlags
from .judge import DRAWN, JUDGE, HasJudge
from .method import built
from .public_flags import PublicDataFlags


#: Most values of an answer about covariances, of all classes, and most values of all waves.
MOST_VALUES, MOST_WAVE_VALUES = 5_000_000, 200_000_000
#: What each query about moments may spend of what all of them may.
SHARES = {"grey_levels": 0.05, "class_moments": 0.1, "part_means": 0.1, "covariances": 0.75}
#: Rules for the numbers of parts and of frequencies: see `MomentFlags.parts` and `MomentFlags.frequencies`.
IMAGES_OF_A_PART = 300.0
FEWEST_FREQUENCIES, MOST_FREQUENCIES, FREQUENCIES_OF_ONE_IMAGE = 16, 144, 22
PART_ROUNDS = 3  # of noisy k-means: each further one has less of the budget for all
#: Longest difference of an image to the centre of its part that counts in full, in root mean squares.
MOMENT_CLIP = 1.4
#: Images of a class that are moved together, and steps that move each: as in the trials that chose the learning rate.
MATCHED_IMAGES, MATCHING_STEPS = 50, 30


@dataclass
class MomentFlags(TrainingConfig):
    """The moments."""

    _argument_group_name = "moments"

    num_frequencies: int | None = flag(
        None,
        "Lowest frequencies that are asked about; chroma has a quarter of them; unset: 16 to 144, by the images of a "
        "class and epsilon.",
        at_least=4,
    )  # fmt: skip
    num_parts: int | None = flag(
        None,
        "Parts of each class, each with a mean and a covariance; unset: one for 300 images at epsilon 10, at most 8; "
        "1 where all drawn images are public ones.",
        at_most=64,
    )  # fmt: skip
    covariance_noise: str | None = expert(
        None, "The noise in covariances, as far as it is known; unset: removed beside public images, and from colour "
        "images whose labels are a judge's.", choices=("kept", "removed"),
    )  # fmt: skip
    #: In a method without DP-SGD the covariances have what the others leave.
    query_defaults: ClassVar[dict[str, dict[str, float]]] = {
        name: {} if name == "covariances" else {"budget_share": share} for name, share in SHARES.items()
    }

    @property
    def moments_share(self) -> float | None:
        """Share of the composed RDP of all moments together; `None`: all that there is."""
        return None

    @property
    def other_share(self) -> float:
        """Share that a query beside the moments has, where there is no DP-SGD."""
        return 0.0

    @property
    def removes_covariance_noise(self) -> bool:
        """Whether draws are from covariances without the noise that they are known to have."""
        return self.covariance_noise == "removed"

    @property
    def judge_share(self) -> float:
        """Share of a judge, beside which defaults are shares of the rest."""
        return 0.0

    @property
    def parts(self) -> int:
        """`--num_parts` with its default filled in, from declared numbers. The noise on a covariance is proportional
        to 1 / (epsilon n), so fewer parts are left at a smaller epsilon."""
        if self.num_parts is not None:
            return self.num_parts
        return max(1, min(8, int(self._images_at_10 / IMAGES_OF_A_PART)))

    @property
    def frequencies(self) -> int:
        """`--num_frequencies` with its default filled in, from declared numbers: noise is the same on all pairs of
        frequencies, and the highest have least to tell."""
        if self.num_frequencies is not None:
            return self.num_frequencies
        if self.num_train_images is None:
            return MOST_FREQUENCIES
        number = round(FREQUENCIES_OF_ONE_IMAGE * self._images_at_10**0.25)
        return max(FEWEST_FREQUENCIES, min(MOST_FREQUENCIES, number))

    @property
    def _images_at_10(self) -> float:
        """Number of images of a class that would have as much noise at epsilon 10."""
        per_class = (self.num_train_units or self.num_train_images or 0) / len(self.declared_class_names or ("",))
        share = (self.moments_share or 1) * max(0.0, 1 - self.other_share)
        return per_class * min(self.target_epsilon, 10.0) * math.sqrt(share) / 10

    @property
    def class_moments(self) -> ClassMoments:
        return ClassMoments(**self._spectrum, **self._of_moments("class_moments"))

    @property
    def grey_levels(self) -> GreyLevels:
        return GreyLevels(**self._of_moments("grey_levels"))

    @property
    def part_means(self) -> tuple[PartMeans, ...]:
        """One for each round."""
        rounds = PART_ROUNDS if self.parts > 1 else 0
        return tuple(
            PartMeans(number=number, num_parts=self.parts, **self._spectrum, **self._of_moments("part_means", rounds))
            for number in range(1, rounds + 1)
        )

    @property
    def covariances(self) -> PartCovariances:
        return PartCovariances(num_parts=self.parts, **self._spectrum, **self._of_moments("covariances"))

    @property
    def moment_queries(self) -> tuple[Query, ...]:
        return (self.grey_levels, self.class_moments, *self.part_means, self.covariances)

    @property
    def moment_facts(self) -> dict[str, Any]:
        """What the receipt says of the moments."""
        asked = {"num_parts": self.parts, "num_frequencies": self.frequencies, "part_rounds": PART_ROUNDS}
        return asked | {"moment_clip": MOMENT_CLIP, "covariance_noise_removed": self.removes_covariance_noise}

    @property
    def _spectrum(self) -> dict[str, Any]:
        return {"image_shape": self.image_shape, "num_frequencies": self.frequencies}

    def _of_moments(self, name: str, among: int = 1) -> dict[str, Any]:
        """`asked`, where all moments may have one share together, and a default is a share of what a judge leaves."""
        if self.moments_share is not None and name not in by_name(f"{self.noise_multiplier},{self.budget}"):
            return self.asked("moments") | {"budget_share": self.moments_share * SHARES[name] / among}
        found = self.asked(name, among)
        if "budget_share" in found and name not in by_name(self.budget):
            found["budget_share"] *= 1 - self.judge_share
        return found

    def check_moments(self) -> None:
        """Refuses moments that do not fit into memory."""
        dimensions, classes = self.covariances.num_dimensions, len(self.declared_class_names or ("",))
        if classes * self.parts * dimensions * (dimensions + 1) // 2 > MOST_VALUES:
            raise UsageError(
                f"--num_parts {self.parts} of {dimensions} coefficients in {classes} classes have more than "
                f"{MOST_VALUES:,} covariances: lower --num_frequencies or --num_parts."
            )
        if dimensions * math.prod(self.image_shape) > MOST_WAVE_VALUES:
            raise UsageError(
                f"{dimensions} waves of images of {'x'.join(map(str, self.image_shape))} take too much memory: lower "
                "--num_frequencies or --resolution."
            )

    def check_parts(self, class_names: tuple[str, ...] | None) -> None:
        """The rule for parts does not know what metadata alone tell."""
        known = self.num_train_images is not None and (class_names is None or self.class_names is not None)
        if self.num_parts is None and not known and not self.uses_digits:
            raise UsageError(
                "--num_parts is not given, and what it is then follows from --num_train_images and --class_names: "
                "give both, or --num_parts."
            )


@dataclass
class MomentsConfig(PublicDataFlags, HasJudge, MomentFlags, ResultFlags):
    """All flags of `training/train_moments.py`."""

    _argument_group_name = "images of moments"

    method: ClassVar[str] = "moments"
    releases_images: ClassVar[bool] = True
    made_by_class = ("images_per_class",)
    #: Not varied in trials.
    query_defaults: ClassVar[dict[str, dict[str, float]]] = {"network_means": {"budget_share": 0.2}}
    images_per_class: int = flag(1000, "Images of each class in the release, or their mean number.")
    class_balance: str = flag(
        "uniform",
        "As many images of each class, or in the shares of the noisy counts.",
        choices=("uniform", "released"),
    )
    labels: str = flag(
        DRAWN, "The drawn class, or the judge's; colour images then lose covariance_noise.", choices=(DRAWN, JUDGE)
    )
    matched_networks: int = flag(
        0, "Random networks whose mean features of a class, by one more query, drawn images are moved to; 0: none.",
        at_least=0, at_most=100,
    )  # fmt: skip
    deformation: float = expert(
        0.0, "Strength of random turns, scalings, shifts and bends of drawn images; 0: none.", at_least=0, at_most=2
    )
    public_share: float = expert(
        1.0, "Share of images that are public ones, where some are named; Gaussians draw the others.", at_least=0.05,
        at_most=1,
    )  # fmt: skip

    @property
    def share_of_public_images(self) -> float:
        """`public_share`; 0 where no public images are named."""
        return self.public_share if self.names_public_images else 0.0

    @property
    def public_images(self) -> DataSource | None:
        """Images that are moved to the moments of each class."""
        if not self.names_public_images:
            return None
        return self.public_source(self.image_shape, self.max_image_pixels, self.declared_range)

    @property
    def parts(self) -> int:
        """One, where all images are public ones, which are moved to the moments of a class."""
        return 1 if self.share_of_public_images == 1 else super().parts

    @property
    def drawn_by(self) -> tuple[Query, ...]:
        """Queries beside the moments."""
        return () if self.network_means is None else (self.network_means,)

    @property
    def network_means(self) -> NetworkMeans | None:
        if not self.matched_networks:
            return None
        return NetworkMeans(  # 32 channels: not varied in trials
            feature_map=RandomNetworkFeatures(self.image_shape, self.matched_networks, 32, self.seed),
            **self.asked("network_means"),
        )

    @property
    def queries(self) -> tuple[Query, ...]:
        return self.moment_queries + self.drawn_by + self.judge

    @property
    def judge_frequencies(self) -> int:
        return self.frequencies

    @property
    def removes_covariance_noise(self) -> bool:
        unset = self.covariance_noise is None
        moved = self.names_public_images or self.labels == JUDGE and self.image_shape[0] > 1
        return unset and moved or super().removes_covariance_noise

    @property
    def ordinary_training(self) -> tuple[OrdinaryTraining, ...]:
        found = list(super().ordinary_training)
        if self.network_means is not None:
            of_class = self.images_per_class * (1 - self.share_of_public_images)
            groups = len(self.declared_class_names or ("",)) * math.ceil(of_class / MATCHED_IMAGES)
            # A step takes one network; before them, all look twice at each image.
            steps = math.ceil(groups * (MATCHING_STEPS / self.matched_networks + 1))
            found.insert(0, OrdinaryTraining(steps, MATCHED_IMAGES, query=self.network_means))
        return tuple(found)

    @property
    def other_share(self) -> float:
        return sum(query.budget_share or 0.0 for query in self.drawn_by) + self.judge_share

    @property
    def told(self) -> tuple[str, ...]:
        optional = ("labels", "matched_networks")
        given = (name for name in optional if getattr(self, name) != getattr(type(self), name))
        return ("images_per_class", "class_balance", "seed", *given)

    @property
    def training_facts(self) -> dict[str, Any]:
        deformed = {"deformation": self.deformation} if self.deformation else {}
        moved = {"moves_public_images": self.public_share} if self.names_public_images else {}
        return super().training_facts | self.moment_facts | deformed | moved

    def check_facts(self, class_names: tuple[str, ...] | None) -> None:
        if class_names is None and self.class_balance == "released":
            raise UsageError(f"--class_balance {self.class_balance} needs images with classes; leave it out.")
        super().check_facts(class_names)
        if self.share_of_public_images < 1:
            self.check_parts(class_names)

    def check(self) -> None:
        self.check_moments()
        if self.public_share != 1 and not self.names_public_images:
            raise UsageError("--expert public_share needs --public_dataset_name or --public_data_dir: leave it out.")
        if self.images_per_class * self.public_share < 1:
            raise UsageError(
                f"--expert public_share={self.public_share:g} of {self.images_per_class} images is none: raise it."
            )
        if self.share_of_public_images == 1 and self.matched_networks:
            raise UsageError(
                "--matched_networks moves draws of Gaussians, and all images are public ones: add --expert "
                "public_share=0.5, or leave it out."
            )
        if self.labels == JUDGE and not self.has_judge:
            raise UsageError("--labels judge needs a judge: add --budget judge=0.3, or leave it out.")
        if self.matched_networks and min(self.image_shape[1:]) < 2**BLOCKS:
            raise UsageError(
                f"--matched_networks needs images of at least {2**BLOCKS} pixels a side: leave it out, or raise "
                "--resolution."
            )


METHODS = (
    built(
        MomentsConfig, train="diffusers_dp.training.train_moments:train",
        run_class="diffusers_dp.runs.moments_run:MomentsRun",
    ),
)  # fmt: skip
