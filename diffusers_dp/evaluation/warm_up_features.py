# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Features of a run's curriculum before DP-SGD. They are noisy answers that its ledger counts, so no private image is
read."""

import json
from pathlib import Path

import numpy as np
import torch

from ..errors import IntegrityError
from ..files.sealed_folder import open_sealed
from ..models.feature_generator import FeatureGenerator
from ..models.one_step import generate
from ..queries.central_images import MeanImages, ModeImages, restore_central_images
from ..words import RECEIPT_NAME
from .images import ImageSet, Shape


SPATIAL, FREQUENCY = "spatial features", "frequency features"
GENERATED_IMAGES = 1000


def warm_up_features(release: Path, image_shape: Shape, *, seed: int) -> dict[str, ImageSet]:
    """Loads the restored noisy central images and draws 1,000 images of the auxiliary generator, if `private/` beside
    a release contains them.

    Args:
        release (`Path`): Verified release, `RUN/release`.
        image_shape (`tuple[int, int, int]`): (channels, height, width) of its images.
        seed (`int`): Seed of the generator's latents.

    Raises:
        IntegrityError: A file is damaged, or the receipt does not count the answer.
    """
    private, found = release.resolve().parent / "private", {}
    generator = private / "auxiliary_generator"
    for query in (MeanImages, ModeImages):
        answer = private / "answers" / query.name
        if answer.is_dir():
            origin = {"made_of": f"noisy {query.title}"}
            found[SPATIAL] = ImageSet(_central_images(answer, release, image_shape), origin=origin)
    if generator.is_dir():
        found[FREQUENCY] = ImageSet(
            _generated(generator, seed), origin={"made_of": "the auxiliary generator", "seed": seed}
        )
    return found


def _central_images(answer: Path, release: Path, image_shape: Shape) -> np.ndarray:
    state, tensors = open_sealed(answer)
    events = json.loads((release / RECEIPT_NAME).read_text(encoding="utf-8"))["events"]
    noise = [event["noise_multiplier"] for event in events if event["stage"] == answer.name]
    if state["query"]["noise_multiplier"] not in noise:
        raise IntegrityError(f"{answer} is not in the receipt of {release}: it is of another run.")
    return restore_central_images(tensors["answer"]["answer"].flatten(0, 1), image_shape).numpy()


def _generated(folder: Path, seed: int) -> np.ndarray:
    from safetensors import SafetensorError

    try:
        generator = FeatureGenerator.from_pretrained(folder, use_safetensors=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise IntegrityError(f"{folder} is damaged ({type(error).__name__}).") from None
    with torch.random.fork_rng(devices=[]):  # keeps the caller's random state
        torch.manual_seed(seed)
        return generate(generator, torch.arange(GENERATED_IMAGES) % generator.num_classes).numpy()
