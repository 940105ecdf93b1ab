# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Private Evolution: candidates of a public generator, for which the sensitive images vote. The release is a data set.
No torch."""

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from ..data.records import DataSource
from ..errors import UsageError
from ..queries.efficientnet import EFFICIENTNET, EfficientNetFeatures, refuse_missing_network
from ..queries.mean_features import FeatureMap
from ..queries.pooled import PooledFeatures
from ..queries.votes import CaptionVotes, SharedCaptionVotes, Votes
from .captions import MOST_LINES, noun_captions, read_lines
from .flag import expert, flag, numbers, split_list
from .generator_flags import ResultFlags
from .method import built
from .public_flags import PretrainedFlags, PublicDataFlags


#: Classes of the embedded digits, and the letters of a class that is written where no `--generator` is given.
DIGITS, LETTERS = "0123456789", 2
GENERATORS = ("text", "public_images", "pipeline")
CLASS = "{class}"  # in a prompt: the name of its class
#: What `--variations` may name; `models.variations` has them.
VARIATION_NAMES = ("affine", "elastic", "stroke", "contrast", "brightness", "flip")


@dataclass
class PrivateEvolutionConfig(PretrainedFlags, ResultFlags, PublicDataFlags):
    """All flags of `training/train_private_evolution.py`."""

    _argument_group_name = "evolution"

    method: ClassVar[str] = "pe"
    made_by_class = ("candidates_per_class", "images_per_class")
    releases_images: ClassVar[bool] = True
    can_be_timed: ClassVar[bool] = False  # it varies public images
    query_defaults: ClassVar[dict[str, dict[str, float]]] = {"captions": {"budget_share": 0.1}, "votes": {}}

    generator: str | None = flag(
        None, "Who proposes candidates: names of classes in fonts (text), changes of public images (public_images), "
        "or a public pipeline, by its Hub id or folder; unset: text, of letters and digits alone.",
        choices=GENERATORS,
        range="text, public_images, or the Hub id (OWNER/NAME) or folder of a public pipeline",
    )  # fmt: skip
    prompts: str | None = flag(
        None, "Prompt of a text-to-image pipeline, with {class} for the name of the class, or a text file of public "
        "ones, one a line; unset: a photo of a {class}.", needs=("pretrained_model_name_or_path",),
    )  # fmt: skip
    captions: str | None = flag(
        None, "Captions for which images vote before the first generation, whose prompts the winners are: a text file "
        "of public ones, one a line, or nouns, some thousand over common nouns.", place=True, excludes=("prompts",),
        needs=("pretrained_model_name_or_path", "embedding_network"),
    )  # fmt: skip
    captions_for_all: bool = flag(
        False, "Count the votes for captions of all classes together, which shows rarer captions.",
        only_with="captions",
    )  # fmt: skip
    generator_inference_steps: int = expert(20, "Steps of a pipeline from noise to an image.")
    generator_guidance: float = expert(7.5, "Guidance scale of a text-to-image pipeline.", at_least=0)
    generator_resolution: int | None = expert(None, "Side length of its images; unset: as it learned.", at_most=4096)
    generator_precision: str | None = expert(
        None, "Its precision; unset: float16 on a GPU, else float32.", choices=("float32", "bfloat16", "float16")
    )
    generator_batch_size: int | None = expert(None, "Candidates that a pipeline makes at once; unset: as many as fit.")
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
    changeable: ClassVar[tuple[str, ...]] = ("generator_batch_size", "generator_precision")
    embedding_pool: ClassVar[int] = 2  # side length of such a square in pixels
    embedding_network: str | None = flag(
        None, "Folder or Hub id of a public vision network (safetensors): CLIP, DINOv2 ..., or efficientnet_lite0.",
        place=True,
    )  # fmt: skip
    embedding_resolution: int | None = expert(None, "Side length of images for it; unset: as its processor resizes.")
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

    def __post_init__(self) -> None:
        super().__post_init__()
        place = self.generator or ""
        known = place in GENERATORS or self.pretrained_model_name_or_path is not None
        if not known and ("/" in place or os.path.isdir(place)):
            self.generator, self.pretrained_model_name_or_path = "pipeline", place

    @property
    def proposer(self) -> str:
        """`--generator` with its default filled in."""
        return self.generator or "text"

    def read_prompts(self, class_names: tuple[str, ...] | None) -> list[str]:
        """`--captions` or `--prompts`, one by one. Raises `UsageError`, see `read_lines`."""
        if self.captions is not None:
            return self.read_captions
        text = self.prompts or (f"a photo of a {CLASS}" if class_names else "a photo")
        is_file = os.path.isfile(os.path.expanduser(text))
        if not (is_file or " " in text or CLASS in text):
            raise UsageError(f"--prompts {text} is no file here, and no prompt, which has blanks; correct it.")
        return read_lines(text, "prompts", is_file)

    @cached_property
    def read_captions(self) -> list[str]:
        """`--captions`, each once, as it is first written: CLIP reads neither capitals nor blanks in a row."""
        found: dict[str, str] = {}
        for caption in noun_captions() if self.captions == "nouns" else read_lines(str(self.captions), "captions"):
            found.setdefault(" ".join(caption.split()).casefold(), caption)
        return list(found.values())

    @property
    def strengths(self) -> tuple[float, ...]:
        """`--variation_strengths` as numbers."""
        return numbers(self.variation_strengths)

    @property
    def queries(self) -> tuple[Votes, ...]:
        return (*self.caption_votes, *self.votes)

    @property
    def names_classes(self) -> bool:
        """Whether captions name the class of an image, so that each class has its own."""
        return self.captions is not None and any(CLASS in caption for caption in self.read_captions)

    @property
    def caption_votes(self) -> tuple[CaptionVotes, ...]:
        """The query about captions, with `--captions`."""
        if self.captions is None:
            return ()
        kind = SharedCaptionVotes if self.captions_for_all else CaptionVotes
        number = len(self.read_captions)
        return (kind(num_candidates=number, image_shape=self.image_shape, **self.asked("captions")),)

    @property
    def votes(self) -> tuple[Votes, ...]:
        """One for each generation; they share the budget."""
        return tuple(
            Votes(
                generation=number + 1, num_candidates=self.candidates_per_class, num_votes=self.num_votes,
                threshold=self.vote_threshold, image_shape=self.image_shape,
                **self.asked("votes", among=len(self.strengths)),
            )
            for number in range(len(self.strengths))
        )  # fmt: skip

    @cached_property
    def perceptual(self) -> FeatureMap | None:
        """What `--embedding_network` sees; `None` of pixels."""
        network, flag = self.embedding_network, "embedding_network"
        if network is None:
            return None
        if network != EFFICIENTNET:
            return PooledFeatures(network, self.image_shape, self.embedding_resolution, flag)
        refuse_missing_network()
        return EfficientNetFeatures(self.image_shape)

    @property
    def public_images(self) -> DataSource | None:
        """The images that candidates begin with: the embedded digits, where no flag names others."""
        if self.proposer != "public_images":
            return None
        channels, height, width = self.image_shape
        shape = channels, height - 2 * self.public_margin, width - 2 * self.public_margin
        return self.public_source(shape, self.max_image_pixels, self.declared_range)

    @property
    def told(self) -> tuple[str, ...]:
        space = ("embedding_pool",) if self.embedding == "pixels" else ("embedding_resolution",)
        return ("candidates_per_class", "num_votes", "lookahead", "vote_threshold", "embedding", "seed", *space)

    @property
    def training_facts(self) -> dict[str, Any]:
        return super().training_facts | {"generator": self.proposer, "variation_strengths": list(self.strengths)}

    def check_facts(self, class_names: tuple[str, ...] | None) -> None:
        """Digits and words are candidates for images of such; captions of each class are as many at most as a file may
        hold."""
        number = len(class_names or ("",)) * len(self.read_prompts(class_names))
        if self.names_classes and number > MOST_LINES:
            raise UsageError(
                f"--captions {self.captions} makes {number:,} captions, because {CLASS} is every class; give fewer "
                f"lines, for {MOST_LINES:,} at most."
            )
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
        if self.captions is not None and self.embedding_network == EFFICIENTNET:
            raise UsageError(f"--captions needs a CLIP model, and {EFFICIENTNET} reads no text: give another network.")
        place, steps = self.pretrained_model_name_or_path, self.generator_inference_steps
        if (self.proposer == "pipeline") != (place is not None):
            raise UsageError(
                "--generator pipeline and --pretrained_model_name_or_path need each other: give both, or neither."
            )
        if place is not None and int(min(self.strengths) * steps) < 1:
            least = f"--variation_strengths {min(self.strengths):g} of --expert generator_inference_steps={steps}"
            raise UsageError(f"{least} is less than one step: raise the one or the other.")


METHODS = (built(PrivateEvolutionConfig, train="diffusers_dp.training.train_private_evolution:train"),)
