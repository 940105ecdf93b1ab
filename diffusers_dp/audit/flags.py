# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The flags of `diffusers-dp audit release`. Loads no torch."""

from dataclasses import dataclass
from pathlib import Path

from ..methods.flag import flag


@dataclass(frozen=True, kw_only=True)
class ReleaseAudit:
    """What is audited, and with which images; each field but the first two is the flag of its name."""

    _argument_group_name = "membership inference"

    release: str
    members: str
    holdout: str | None = flag(
        None,
        "Dataset of the same kind that was not trained on; the result measures a shift, too. Unset: the images of "
        "--members that --validation_size of the training held out by a coin, which bounds epsilon from below.",
    )
    train_split: str = flag("train", "Split of both.")
    image_column: str = flag("image", "Column of the images.")
    label_column: str | None = flag(None, "Column of the classes; unset: 'label' if there is one.")
    max_images: int = flag(2000, "Of each dataset, from its start.")
    num_draws: int = flag(10, "Noises for each image and noise level.")
    num_samples: int = flag(500, "Images drawn for the comparison with neighbours.")
    output_dir: Path | None = flag(None, "Unset: the folder that holds the release.", metavar="DIR")
