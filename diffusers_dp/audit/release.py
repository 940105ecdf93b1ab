# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tier C: what a finished release lets an attacker see of its training images. **Reads private data.**

Two attacks, both loose at the epsilons of most releases, so that silence proves nothing: they are evidence of leakage,
and light up on a model that was over-fitted without privacy. The result is as private as the images.
"""

import math
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import DDIMScheduler
from scipy import stats
from tqdm.auto import tqdm

from ..errors import UsageError
from ..evaluation.images import ImageSet, Source, count_common, validation_split
from ..files.file_modes import private_files, public_files
from ..files.output_files import refuse_in_release, write_json
from ..models.denoiser import DDPMImageDenoiser, Denoiser, EDMDenoiser
from ..pipelines import DPImagePipeline
from ..release.loading import ModelRelease, open_model
from ..release.plain_words import claimed
from ..sampling.drawing import Drawing, class_names, draw, pixels_of
from ..verify import settled_digest
from .bounds import clopper_pearson
from .flags import ReleaseAudit
from .random_split import CONFIDENCE as BOUND_CONFIDENCE
from .random_split import conclusion, fair_coins, lower_bound, stated_coin


NOISE_LEVELS = (0.1, 0.2, 0.5, 1.0)  # for images in [-1, 1]
CONFIDENCE = 0.99
BATCH_SIZE = 250
FALSE_POSITIVES = 0.01
#: Of a model that tells nothing; the rate of true positives has room.
WITHOUT_LEAKS = {"auc": 0.5, "true_positive_rate_at_1_percent": 0.05, "samples_nearer_to_a_member": 0.5}


@dataclass(frozen=True)
class Interval:
    """A number and its limits at 99 %."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def membership_scores(
    denoiser: Denoiser, images: np.ndarray, labels: np.ndarray | None, *, num_draws: int, seed: int = 0
) -> np.ndarray:
    """How well the model denoises each image: minus the logarithm of its squared error, summed over four noise levels
    (loss threshold, Yeom et al. 2018; on diffusion models Carlini et al. 2023, Section 5.1).

    Every image is given the same noise, so that differences between images are those of the model.

    Args:
        images (`np.ndarray` of uint8, shape `[n, C, H, W]`).
        labels (`np.ndarray` of int64, shape `[n]`, *optional*): For a class-conditional model; `None`: the null label.
        num_draws (`int`): Noises per level.

    Returns:
        `np.ndarray` of shape `[n]`: Higher for a likelier member.
    """
    unet, generator = denoiser.unet, torch.Generator().manual_seed(seed)
    clean = torch.from_numpy(images).float() / 127.5 - 1
    classes = None
    if unet.config.num_class_embeds is not None:
        null = np.full(len(images), unet.config.num_class_embeds - 1)
        classes = torch.from_numpy(null if labels is None else labels)
    scores = torch.zeros(len(images), dtype=torch.float64)
    with torch.no_grad():
        for level in NOISE_LEVELS:
            errors = torch.zeros(len(images), dtype=torch.float64)
            for _ in range(num_draws):
                noise = torch.randn(clean.shape[1:], generator=generator) * level
                for rows in torch.arange(len(images)).split(BATCH_SIZE):
                    x = clean[rows].to(unet.device)
                    sigma = torch.full((len(rows),), level, device=unet.device)
                    given = None if classes is None else classes[rows].to(unet.device)
                    found = denoiser(x + noise.to(unet.device), sigma, given)
                    errors[rows] += (found - x).square().flatten(1).mean(1).double().cpu()
            scores -= errors.clamp_min(1e-30).log()
    return scores.numpy()


def auc(members: np.ndarray, others: np.ndarray) -> Interval:
    """Area under the ROC curve: the probability that a member scores higher; limits by Hanley & McNeil (1982)."""
    n, m = len(members), len(others)
    area = float(stats.mannwhitneyu(members, others).statistic) / (n * m)
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    variance = (area * (1 - area) + (n - 1) * (q1 - area**2) + (m - 1) * (q2 - area**2)) / (n * m)
    reach = stats.norm.ppf(0.5 + CONFIDENCE / 2) * math.sqrt(max(variance, 0.0))
    return Interval(area, max(0.0, area - reach), min(1.0, area + reach))


def true_positive_rate(members: np.ndarray, others: np.ndarray) -> Interval:
    """Share of the members above the threshold that one in a hundred others exceeds (Carlini et al. 2022, Section
    3)."""
    return _share(int((members > np.quantile(others, 1 - FALSE_POSITIVES, method="higher")).sum()), len(members))


def copies(samples: np.ndarray, members: np.ndarray, others: np.ndarray) -> Interval:
    """Share of the samples that are nearer to a member than to any of as many other images: a half unless samples copy
    members.

    Args:
        samples, members, others (`np.ndarray` of uint8, shape `[n, C, H, W]`).
    """
    size = min(len(members), len(others))
    points = torch.from_numpy(samples).flatten(1).float()
    nearest = [
        torch.cdist(points, torch.from_numpy(images[:size]).flatten(1).float()).amin(1) for images in (members, others)
    ]
    return _share(int((nearest[0] < nearest[1]).sum()), len(samples))


def _share(hits: int, trials: int) -> Interval:
    return Interval(hits / trials, *clopper_pearson(hits, trials, 0.5 + CONFIDENCE / 2))


def audit_release(
    pipeline: DPImagePipeline, members: ImageSet, others: ImageSet, *, num_draws: int, drawing: Drawing
) -> tuple[dict[str, Interval], tuple[np.ndarray, np.ndarray]]:
    """Both attacks on a released model, with images and labels that were trained on and others of the same kind that
    were not.

    Returns:
        `tuple[dict, tuple]`: Each measure by its name, and the scores of members and of others.
    """
    pipeline.unet.eval()
    unet, scheduler, patch_size = pipeline.unet, pipeline.scheduler, pipeline.config.patch_size
    denoiser: Denoiser
    if isinstance(scheduler, DDIMScheduler):
        denoiser = DDPMImageDenoiser(unet, scheduler, patch_size=patch_size)
    else:
        denoiser = EDMDenoiser(unet, scheduler.config.sigma_data, patch_size=patch_size)
    inside, outside = (
        membership_scores(denoiser, each.images, each.labels, num_draws=num_draws) for each in (members, others)
    )
    with tqdm(total=drawing.num_images, desc="Sampling", unit="image") as bar:
        samples = pixels_of(draw(pipeline, drawing, bar=bar))
    measures = (
        auc(inside, outside),
        true_positive_rate(inside, outside),
        copies(samples, members.images, others.images),
    )
    return dict(zip(WITHOUT_LEAKS, measures, strict=True)), (inside, outside)


@private_files()
def main(args: ReleaseAudit, drawing: Drawing) -> None:
    """Runs `diffusers-dp audit release`. `drawing` has the samples that are compared with their neighbours."""
    here = Path(args.release)
    output_dir = args.output_dir or (here.resolve().parent if here.exists() else Path("runs/audit"))
    refuse_in_release(output_dir)
    model = open_model(args.release, require_dp=False)  # a model without a guarantee is worth an audit, too
    receipt = model.receipt or None
    drawing = drawing.of_model(model.pipeline, model.receipt)
    coin = stated_coin(receipt) if args.holdout is None else None
    unprotected = output_dir / "private" / "unprotected"
    with public_files():
        output_dir.mkdir(parents=True, exist_ok=True)
    unprotected.mkdir(parents=True, exist_ok=True)
    os.chmod(unprotected, 0o700)
    print(f"This reads private data: the result stays in {unprotected}.")
    members = _load("--members", args.members, model, args, unprotected / "cache", {} if coin is None else coin)
    if coin is None:
        others = _load("--holdout", str(args.holdout), model, args, unprotected / "cache", {})
    else:
        members, others = validation_split(members, coin["images"], coin["of"] - coin["images"])
    if common := count_common(others, members):
        raise UsageError(
            f"{common} of the {len(others)} images of --holdout are in --members as well: give a --holdout without "
            "images that were trained on, for the audit tells the two apart."
        )
    if coin is None:
        places = [np.arange(min(len(images), args.max_images)) for images in (members, others)]
    else:
        share = coin["images"] / coin["of"]
        places = [*fair_coins(len(members), len(others), share, args.max_images)]
        if min(map(len, places)) < 2:
            raise UsageError(
                f"A coin of probability {share:.4g} leaves fewer than two images on a side; give --holdout."
            )
    members, others = (images.subset(chosen) for images, chosen in zip((members, others), places, strict=True))
    found, scores = audit_release(model.pipeline, members, others, num_draws=args.num_draws, drawing=drawing)
    leaks = [name for name, interval in found.items() if interval.low > WITHOUT_LEAKS[name]]
    delta, claim = (0.0, None) if receipt is None else (receipt["delta"], claimed(receipt))
    bound = None if coin is None else lower_bound(*scores, delta)
    said = conclusion(bound, claim)
    result = {
        "tier": "release",
        "read_private_data": True,
        "confidence": CONFIDENCE,
        "num_members": len(members),
        "num_others": len(others),
        "num_samples": args.num_samples,
        "drawing": drawing.facts,
        "evidence_of_leakage": leaks,
        **{name: asdict(interval) for name, interval in found.items()},
        "split": "other" if coin is None else "random",
        "lower_bound": None if bound is None else {**asdict(bound), "confidence": BOUND_CONFIDENCE},
        "claimed_epsilon": claim,
        "conclusion": said,
        "receipt_sha256": None if receipt is None else settled_digest(receipt),
    }
    write_json(result, unprotected / "audit_release.json")
    for name, interval in found.items():
        print(f"{name.replace('_', ' '):<34} {interval}")
    shift = "" if coin is not None else " OR OF A SHIFT BETWEEN THE TWO SETS"
    evidence = f"EVIDENCE OF LEAKAGE{shift}: {', '.join(leaks).replace('_', ' ')}"
    print(evidence if leaks else "No evidence of leakage, which is no proof.", said, sep="\n")
    print(f"Written to {unprotected / 'audit_release.json'}; private data read: yes.")


def _load(
    flag: str, name: str, model: ModelRelease, args: ReleaseAudit, cache_dir: Path, coin: dict[str, Any]
) -> ImageSet:
    """Loads the readable images of a dataset as training does, with the ids by which the coin held images out."""
    names, stated = class_names(model.pipeline), (model.receipt or {}).get("public_facts", {})
    source = Source(
        flag, name, args.image_column, args.label_column, key_column=coin.get("column"),
        trained_on=stated.get("reading", {}) | {"class_names": names},
        value_range=None if stated.get("grey_range") is None else tuple(stated["grey_range"]),
    )  # fmt: skip
    found = source.load(args.train_split, model.image_shape, resize=True, cache_dir=cache_dir)
    if coin and found.ids_are != coin["ids"]:
        raise UsageError(
            f"--members {name} has ids by {found.ids_are}, and the training held images out by {coin['ids']}: give "
            "the data set of the training."
        )
    if len(found) < 2:
        raise UsageError(f"'{name}' holds fewer than two images that can be read; give another dataset.")
    return found if names is not None else replace(found, labels=None)
