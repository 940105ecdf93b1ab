# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`--config auto`: settings for images that have no recipe, by public rules from what is declared of them. No torch.

docs/guides/settings.md has the rules, and the rows of `benchmarks/results/` that they come from.
"""

import math
from importlib.resources import files
from typing import Any

import yaml

from .advice import Situation
from .teachers import AGGREGATIONS


AUTO = "auto"  # a value of `--config`
MINUTES = 20.0
#: Largest feature map of a UNet, and the sides of the patches that get it there.
LARGEST_MAP, PATCHES = 16, (1, 2, 4, 8, 16, 32)
#: Seconds of one core that an image takes in a step of DP-SGD, and in one of ordinary training, for each place of the
#: largest feature map; and the part of the minutes that DP-SGD has.
DP_SGD_SECONDS, TRAINING_SECONDS, DP_SGD_PART = 6e-6, 5e-6, 0.6
#: Steps, of DP-SGD, of a warm-up on drawn images, and on public images: the most that were measured.
MOST_STEPS, MOST_WARM_UP, MOST_PUBLIC, WARM_UP_BATCH = 600, 3000, 2000, 128
#: The same of a GPU, counted and **not measured by these rules on a card**. Operations of a row for each place of the
#: largest feature map of the narrowest network, and a second; seconds that a gradient of one image takes beside them,
#: and a step of ordinary training; cores that it stands for where a rule counts none of that.
FLOPS, FLOPS_A_SECOND, OWN_GRADIENT_SECONDS, TRAINING_STEP_SECONDS, CORES_OF_A_GPU = 4e5, 2e13, 3e-4, 0.05, 4
#: Its widest network, most draws of an image, and largest batch: those of the published recipes. K pays until draws
#: take as long as all else of an image. Twice the width has four times the weights: twice the batch bears their noise.
WIDTHS, MOST_DRAWS, LARGEST_BATCH_OF_A_GPU = (4, 2, 1), 32, 4096
#: epsilon times images from which correlated noise helps: at 600,000 it did, at 60,000 next to nothing came of it.
LITTLE_NOISE = 200_000
INDEPENDENT = {"noise_bands": "1", "learning_rate": 3e-3}  # noise, and its rate
#: With so much epsilon times images of a class for each candidate of Private Evolution, votes exceed their noise.
SIGNAL_OF_A_CANDIDATE, FEWEST_CANDIDATES, MOST_CANDIDATES = 12, 25, 500

#: Settings of one method, beside those of all: as recipes have them.
OWN: dict[str, dict[str, Any]] = yaml.safe_load(files(__package__).joinpath("rules.yaml").read_text(encoding="utf-8"))
#: Largest batches that were measured of methods that have others.
BATCHES = {"dp_gan": 256, "dp_lora": 256, "dp_sapf": 256, "dp_ldm": 256}
MOST_TEACHERS, IMAGES_OF_A_TEACHER = 1000, 50
#: Rounds at epsilon 1 and at 10, and the minutes that they take at most (PATE-GAN; all others three).
FEWEST_ROUNDS, MOST_ROUNDS, MINUTES_OF_TEACHERS = 8, 25, 8.0
#: Of `OWN`: numbers for `MINUTES`, which fewer minutes lower in proportion.
STEPS = ("max_train_steps", "generator_steps", "diffusion_steps")
LARGEST_BATCH, LEAST_BATCH, BATCHES_OF_ALL = 1024, 64, 16
#: What a pre-trained model brings along.
OF_A_NEW_MODEL = {"objective", "sigma_min"}


def automatic(
    method: str, facts: Situation, minutes: float | None = None, images_per_unit: float = 1.0, *, on_gpu: bool = False
) -> dict[str, Any]:
    """
    Settings for these images, as a recipe would have them.

    Args:
        method (`str`): Name of the method.
        facts (`Situation`): What is declared.
        minutes (`float`, *optional*): Minutes of one core, or of a GPU; defaults to `MINUTES`.
        images_per_unit (`float`): Images of a unit on average: a step of DP-SGD takes so much longer.
        on_gpu (`bool`, defaults to `False`): Whose minutes they are.

    Returns:
        `dict[str, Any]`: Values by flag, also of flags that the method does not have.
    """
    side, candidates = facts.image_shape[1], facts.signal / SIGNAL_OF_A_CANDIDATE
    minutes = minutes or MINUTES
    for_steps = minutes / images_per_unit
    faster = wide(method, facts, for_steps) if on_gpu else {}
    if on_gpu:
        minutes, for_steps = minutes * CORES_OF_A_GPU, for_steps * CORES_OF_A_GPU
    asks_teachers = method in AGGREGATIONS.values()
    return {
        "num_features": 4000, "generator_steps": max(1, round(min(600, 120 * minutes))),
        **network(side),
        **(teachers(method, facts, minutes) if asks_teachers else dp_sgd(method, facts, for_steps)),
        **warm_up(facts, minutes, on_gpu),
        **({"budget": f"moments={0.1 if has_little_noise(facts) else 0.5}"} if method == "feta_pro" else {}),
        "candidates_per_class": round(max(FEWEST_CANDIDATES, min(MOST_CANDIDATES, candidates))),
        **own(method, minutes, for_steps),
        **faster,
    }  # fmt: skip


def own(method: str, minutes: float, for_steps: float) -> dict[str, Any]:
    """Settings of `OWN`, with as many steps as the minutes, or those for DP-SGD, are of `MINUTES`."""
    times = dict.fromkeys(STEPS, minutes) | {"max_train_steps": for_steps}
    return {
        name: max(1, round(min(1.0, times[name] / MINUTES) * value)) if name in times else value
        for name, value in OWN.get(method, {}).items()
    }


def network(side: int) -> dict[str, Any]:
    """A UNet whose largest feature map has 16 places a side at most, or as few as the side can be divided into."""
    levels, halved = ("16,32", 2) if side % 2 == 0 else ("32", 1)
    patches = [patch for patch in PATCHES if side % (patch * halved) == 0]
    patch = next((patch for patch in patches if side // patch <= LARGEST_MAP), patches[-1])
    return {"patch_size": patch, "block_out_channels": levels}


def dp_sgd(method: str, facts: Situation, minutes: float) -> dict[str, Any]:
    """Batches of a sixteenth of the images, which leave least noise, up to those that were measured; and as many steps
    as there is time for. Correlated noise, with its higher rate, where there is little of it."""
    least = max(1, min(LEAST_BATCH, facts.num_units // 4))
    batch = min(BATCHES.get(method, LARGEST_BATCH), max(facts.num_units // BATCHES_OF_ALL, least))
    seconds = batch * DP_SGD_SECONDS * places(facts.image_shape[1])
    noise = {"noise_bands": "16", "learning_rate": 2.5e-2} if has_little_noise(facts) else INDEPENDENT
    return {
        "train_batch_size": batch, "noise_multiplicity": 1, **noise,
        "max_train_steps": max(20, min(MOST_STEPS, int(60 * minutes * DP_SGD_PART / seconds))),
        "max_physical_batch_size": "256", "lr_scheduler": "linear", "lr_warmup_steps": 10,
        "p_mean": 0.8, "p_std": 1.0, "sigma_min": 0.3,
    }  # fmt: skip


def wide(method: str, facts: Situation, minutes: float) -> dict[str, Any]:
    """What minutes of a GPU buy in DP-SGD of a UNet, by counting: all steps, then a batch of a sixteenth of the images
    with draws that cost next to nothing, a wider network where the batch bears its noise, and draws for the rest."""
    if "max_train_steps" in OWN.get(method, {}) or method in AGGREGATIONS.values():
        return {}
    least = dp_sgd(method, facts, minutes)["train_batch_size"]
    most = max(least, min(LARGEST_BATCH_OF_A_GPU, facts.num_units // BATCHES_OF_ALL))
    seconds = 60 * minutes * DP_SGD_PART / MOST_STEPS  # of a step

    def draws(of_a_draw: float, batch: int) -> int:
        """The power of two of draws that an image has time for."""
        spare = max(OWN_GRADIENT_SECONDS, seconds / batch - OWN_GRADIENT_SECONDS)
        return 2 ** int(math.log2(max(1, min(MOST_DRAWS, spare / of_a_draw))))

    for width in WIDTHS:
        of_a_draw = FLOPS * width**2 * places(facts.image_shape[1]) / FLOPS_A_SECOND
        of_an_image = OWN_GRADIENT_SECONDS + draws(of_a_draw, most) * of_a_draw
        batch = max(least, min(most, int(seconds / of_an_image)))
        if batch >= LARGEST_BATCH * width:
            break
    number = draws(of_a_draw, batch)
    in_time = 60 * minutes * DP_SGD_PART / (batch * (OWN_GRADIENT_SECONDS + number * of_a_draw))
    levels = network(facts.image_shape[1])["block_out_channels"].split(",")
    return {
        "train_batch_size": batch, "noise_multiplicity": number,
        "max_train_steps": max(20, min(MOST_STEPS, int(in_time))), "max_physical_batch_size": "auto",
        "block_out_channels": ",".join(str(width * int(channels)) for channels in levels),
    }  # fmt: skip


def teachers(method: str, facts: Situation, minutes: float) -> dict[str, Any]:
    """Shares of fifty images or more, whose teachers see images of a quarter of the side. Rounds and steps are those
    that were measured with a thousand teachers; rounds are fewer where their sum drowns in noise."""
    side = facts.image_shape[1]
    number = max(1, min(MOST_TEACHERS, facts.num_units // IMAGES_OF_A_TEACHER))
    in_proportion = FEWEST_ROUNDS * (facts.epsilon * number / MOST_TEACHERS) ** 0.5
    rounds = round(min(MOST_ROUNDS, max(FEWEST_ROUNDS, in_proportion)))
    votes, part = method == AGGREGATIONS["votes"], min(1.0, minutes / MINUTES_OF_TEACHERS)
    return {
        "num_teachers": number, "teacher_resolution": side // 4 if side % 4 == 0 and side >= 16 else None,
        "teacher_steps": 3, "max_train_steps": max(1, round(part * rounds)), "lr_scheduler": "linear",
        "lr_warmup_steps": 1, "generated_per_round": max(200 if votes else 60, facts.num_classes),
        "generator_steps": 30 if votes else 3 if rounds > 2 * FEWEST_ROUNDS else 6, "bins_per_value": 2,
        "diffusion_steps": max(1, round(part * 700)),
    }  # fmt: skip


def warm_up(facts: Situation, minutes: float, on_gpu: bool = False) -> dict[str, Any]:
    """What FETA-Pro begins with: noisy moments. Where there is no time for all steps on the drawn images, most learn
    the ideal denoiser, which takes fewer. Public images, where some are named, take as long at most."""
    seconds = WARM_UP_BATCH * TRAINING_SECONDS * places(facts.image_shape[1])
    if on_gpu:
        minutes, seconds = minutes / CORES_OF_A_GPU, TRAINING_STEP_SECONDS
    steps = min(MOST_WARM_UP, max(6, int(60 * minutes * (1 - DP_SGD_PART) / seconds)))
    taught = 0 if steps == MOST_WARM_UP else steps * 5 // 6
    return {
        "curriculum": "frequency", "auxiliary_features": "moments", "num_auxiliary_images": 20_000,
        "distillation_steps": taught, "frequency_steps": steps - taught, "frequency_learning_rate": 2e-3,
        "public_steps": min(MOST_PUBLIC, steps), "public_batch_size": WARM_UP_BATCH, "public_learning_rate": 2e-3,
        "public_lr_warmup_steps": min(100, steps // 10),
    }  # fmt: skip


def has_little_noise(facts: Situation) -> bool:
    return facts.epsilon * facts.num_units >= LITTLE_NOISE


def places(side: int) -> int:
    """Places of the largest feature map."""
    return (side // network(side)["patch_size"]) ** 2
