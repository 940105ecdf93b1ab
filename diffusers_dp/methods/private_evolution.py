# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Private Evolution: candidates of a public generator, for which the sensitive images vote. The release is a data set.
No torch."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from ..data.records import DataSource
from ..errors import UsageError
from ..queries.efficientnet import LAST, seen_by
from ..queries.mean_features import FeatureMap
from ..queries.votes import Votes
from .flag import expert, flag, numbers, split_list
from .generator_flags import ResultFlags
from .method import SUM, Method
from .public_flags import PretrainedFlags, PublicDataFlags


#: Classes of the embedded digits, and the letters of a class that is written where no `--generator` is given.
DIGITS, LETTERS = "0123456789", 2
#: What `--variations` may name; `models.variations` has them.
VARIATION_NAMES = ("affine", "elastic", "stroke", "contrast", "brightness", "flip")


@dataclass
class PrivateEvolutionConfig(PretrainedFlags, ResultFlags, PublicDataFlags):
    """All flags of `training/train_private_evolution.py`."""

    _argument_group_name = "evolution"

    method: ClassVar[str] = "pe"
    releases_images: ClassVar[bool] = True
    can_be_timed: ClassVar[bool] = False  # it varies public images
    query_defaults: ClassVar[dict[str, dict[str, float]]] = {"votes": {}}

    generator: str | None = flag(
        None,
        "Who proposes candidates: names of classes in fonts (text), changes of public images, or a public diffusion "
        "model (pipeline); unset: text, of letters and digits alone.",
        choices=("text", "public_images", "pipeline"),
    )  # fmt: skip
    candidates_per_class: int = flag(500, "Candidates of each class in a generation.")
    variation_strengths: str = flag(
        "0.7,0.5,0.4,0.3,0.2,0.15", "How far the children of each generation go; as many queries are asked.",
        read=numbers, at_least=0, at_most=1, range="a number from 0 to 1 for each generation, such as 0.6,0.4,0.2",
    )  # fmt: skip
    num_votes: int = flag(1, "Nearest candidates that an image votes for, with 1 / sqrt of their number each.")
    lookahead: int = flag(0, "Variations of a candidate whose mean embedding counts; 0: its own.", at_least=0)
    vote_threshold: float = flag(2.0, "Standard deviations of the noise that are taken off every vote.", at_least=0)
    images_per_class: int | None = flag(None, "Images of each class in the release; unset: --candidates_per_class.")
    embedding: str = flag(
        "pixels", "'pixels': averaged over squares; 'network': what a public network sees.",
        choices=("pixels", "network"),
    )  # fmt: skip
    embedding_pool: ClassVar[int] = 2  # side length of such a square in pixels
    embedding_network: str | None = flag(
        None, "Folder or Hub id of a public vision network (safetensors), such as DINOv2's, or efficientnet_lite0.",
        place=True,
    )  # fmt: skip
    embedding_layers: str = expert("", "Its layers, comma-separated (a list in a recipe); unset: all convolutions.")
    embedding_resolution: int | None = expert(None, "Side length that images are resized to for it; unset: their own.")
    variations: str = flag(
        "affine,elastic,stroke,contrast", "Changes of public images, in this order.",
        read=split_list, choices=VARIATION_NAMES, range=f"some of {', '.join(VARIATION_NAMES)}",
    )  # fmt: skip
    public_margin: int = flag(
        0, "Black pixels around each public image, for digits that fill their frame.", rare=True, at_least=0
    )
    font_dir: str | None = flag(
        None, "Folder of fonts (.ttf, .otf) for --generator text; unset: those of Python's packages.", place=True
    )

    @property
    def proposer(self) -> str:
        """`--generator` with its default filled in."""
        return self.generator or "text"

    @property
    def strengths(self) -> tuple[float, ...]:
        """`--variation_strengths` as numbers."""
        return numbers(self.variation_strengths)

    @property
    def queries(self) -> tuple[Votes, ...]:
        """One for each generation; they share the budget."""
        return tuple(
            Votes(
                generation=number + 1, num_candidates=self.candidates_per_class, num_votes=self.num_votes,
                threshold=self.vote_threshold, image_shape=self.image_shape, pool=self.embedding_pool,
                **self.asked("votes", among=len(self.strengths)),
            )
            for number in range(len(self.strengths))
        )  # fmt: skip

    @cached_property
    def perceptual(self) -> FeatureMap | None:
        """What `--embedding_network` sees; `None` of pixels."""
        if self.embedding_network is None:
            return None
        layers, flag = split_list(self.embedding_layers), "embedding_network"
        return seen_by(self.embedding_network, self.image_shape, self.embedding_resolution, flag, layers, LAST)

    @property
    def public_images(self) -> DataSource | None:
        """The images that candidates begin with: the embedded digits, where no flag names others."""
        if self.proposer != "public_images":
            return None
        channels, height, width = self.image_shape
        shape = channels, height - 2 * self.public_margin, width - 2 * self.public_margin
        return self.public_source(shape, self.max_image_pixels, self.declared_range)

    @property
    def made_by_class(self) -> tuple[str, ...]:
        return ("candidates_per_class", "images_per_class")

    @property
    def told(self) -> tuple[str, ...]:
        space = ("embedding_pool",) if self.embedding == "pixels" else ("embedding_layers", "embedding_resolution")
        return ("candidates_per_class", "num_votes", "lookahead", "vote_threshold", "embedding", "seed", *space)

    @property
    def training_facts(self) -> dict[str, Any]:
        own = {"generator": self.proposer, "variation_strengths": list(self.strengths)}
        return super().training_facts | own

    def check_facts(self, class_names: tuple[str, ...] | None) -> None:
        """Digits and words are candidates for images of such."""
        public, named = self.public_images, ", ".join((class_names or ("no classes",))[:3])
        others = "name public images that look like yours with --public_dataset_name or --public_data_dir"
        is_colour = self.image_shape[0] != 1
        if public is not None and public.uses_digits and (is_colour or not set(class_names or " ") <= set(DIGITS)):
            raise UsageError(
                "--generator public_images begins with the embedded grey digits where no others are named, and these "
                f"images are {'in colour' if is_colour else f'of {named}'}: {others}, or give --generator pipeline."
            )
        if self.generator is None and any(len(name) > LETTERS for name in class_names or ()):
            raise UsageError(
                f"--generator is not given, and what it is then writes the names of the classes ({named}): add "
                f"--generator text if the images show these words; else --generator public_images, and {others}."
            )

    def check(self) -> None:
        if self.num_votes > self.candidates_per_class:
            raise UsageError(
                f"--num_votes {self.num_votes} is more than --candidates_per_class {self.candidates_per_class}: lower "
                "the one or raise the other."
            )
        public = self.proposer == "public_images"
        if self.names_public_images and not public:
            raise UsageError("--public_dataset_name and --public_data_dir need --generator public_images.")
        if public and self.uses_digits and not self.names_public_images:
            raise UsageError(
                "--generator public_images begins with the embedded digits, which are the sensitive images here: "
                "name public ones with --public_dataset_name or --public_data_dir."
            )
        if public and 2 * self.public_margin >= min(self.image_shape[1:]):
            raise UsageError(
                f"--public_margin {self.public_margin} leaves nothing of images of {self.image_shape[1]} pixels a "
                "side; give a smaller one."
            )
        if (self.embedding == "network") != (self.embedding_network is not None):
            raise UsageError("--embedding network and --embedding_network need each other: give both, or neither.")
        if (self.proposer == "pipeline") != (self.pretrained_model_name_or_path is not None):
            raise UsageError(
                "--generator pipeline and --pretrained_model_name_or_path need each other: give both, or neither."
            )


METHODS = (
    Method(
        "pe", "Private Evolution", "Lin et al. 2024, Images via Foundation Model APIs, Algorithm 1",
        "proven_with_assumptions",
        "A noisy histogram of votes in each generation, one vote an image, for candidates of its class; all classes "
        "have as many candidates. What proposes candidates must be public.",
        mechanisms=(SUM,), config=PrivateEvolutionConfig, train="diffusers_dp.training.train_private_evolution:train",
    ),
)  # fmt: skip
