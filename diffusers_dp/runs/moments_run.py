# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Queries about moments, in their order, and images that are drawn from what the answers tell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..data.public_images import images_by_class, public_field
from ..data.records import DataSource
from ..distributed.processes import Processes
from ..errors import UsageError
from ..methods.moments import MATCHED_IMAGES, MATCHING_STEPS, MOMENT_CLIP, MomentsConfig
from ..models.denoiser import Denoiser, TrainingLoss
from ..models.feature_matching import Matching
from ..models.gaussian_mixture import GaussianMixture, denoised, in_levels, shrunk, symmetric
from ..models.mixture_denoiser import DistillationLoss, MixtureDenoiser
from ..models.moved_images import FEWEST_IMAGES, moved
from ..queries.class_counts import ENOUGH
from ..queries.moments import COUNT, Frequencies, MomentQuery, PartQuery
from ..queries.votes import hash_tensor
from ..sampling.drawing import balanced_labels
from .pretrained import priced_images
from .run import TrainingRun
from .warm_up import warm_up


Run = TrainingRun[Any]

#: Of Adam, on pixels. On training images of CIFAR-10, 0.01 and 0.05 were worse (docs/methods/statistics.md).
MATCHING_RATE = 0.02
FIRST_SPREAD = 0.7  # of centres around the mean of their class, in standard deviations of an image
LEAST_ENERGY = 0.1  # of an image about its centre, as a share of what is left without the parts
RARE = 2  # a class with fewer images than a mean class, divided by this, is rare
BORROWED = 150  # images that a part borrows of its class, and a rare class of all, for a noise multiplier of 1


class MomentsRun(TrainingRun[MomentsConfig]):
    """
    Attributes:
        public (list of `torch.Tensor` of uint8, shape `[n, C, H, W]`): Public images of each class that are moved to
            its moments, where flags name some.
    """

    public: Sequence[torch.Tensor] = ()

    def _begin(self) -> list[dict[str, Any]]:
        source = self.config.public_images
        if source is None:
            return super()._begin()
        self.public, origin = self.processes.on_first(lambda: self._read_public(source))
        return [*super()._begin(), origin]

    def _read_public(self, source: DataSource) -> tuple[list[torch.Tensor], dict[str, Any]]:
        images = priced_images(self, source, {})
        found = images_by_class(images, self.facts.class_names)
        if (fewest := min(map(len, found))) < FEWEST_IMAGES:
            raise UsageError(
                f"holds {fewest} images for a class, and {FEWEST_IMAGES} are needed: add some, such as crops.",
                field=public_field(source),
            )
        return found, images.origin


@dataclass(frozen=True)
class NoisyMoments:
    """
    What the noisy answers tell.

    Args:
        mixture (`GaussianMixture`): The distribution of weighted coefficients of `spectrum`.
        counts (`torch.Tensor` of shape `[classes]`): Images of each class.
        levels (`torch.Tensor` of shape `[classes, C, levels]`): Shares of values up to the end of each grey level.
        spectrum (`Frequencies`): The coefficients.
        matching (`Matching`, *optional*): Moves draws of Gaussians.
        public (list of `torch.Tensor` of uint8, shape `[n, C, H, W]`): Images for each class that are moved to its
            moments. Empty: none are.
        public_share (`float`): Share of the images of each class that they are.
    """

    mixture: GaussianMixture
    counts: torch.Tensor
    levels: torch.Tensor
    spectrum: Frequencies
    matching: Matching | None = None
    public: Sequence[torch.Tensor] = ()
    public_share: float = 1.0

    def draw(
        self, num_images: int, class_balance: str, seed: int, levels_twice: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Images with these moments.

        Args:
            num_images (`int`): Images of all classes together.
            class_balance (`str`): See `--class_balance`.
            seed (`int`): Public.
            levels_twice (`bool`): Whether Gaussian draws regain half of what the matching of grey levels took from
                their coefficients, and are then matched once more.

        Returns:
            Images, uint8 `[m, C, H, W]`, and their classes, int64 `[m]`.
        """
        shares = self.counts if class_balance == "released" else torch.ones_like(self.counts)
        labels = torch.from_numpy(balanced_labels(tuple((shares / shares.sum()).tolist()), num_images).copy())
        generator, shape = torch.Generator().manual_seed(seed), self.spectrum.image_shape
        images = torch.empty(len(labels), *shape, dtype=torch.uint8)
        gaussian = torch.ones_like(labels, dtype=torch.bool)
        if self.public:
            for label in labels.unique().tolist():
                places = (labels == label).nonzero()[:, 0]
                places = places[(torch.arange(len(places) + 1).double() * self.public_share).floor().diff() > 0]
                drawn = moved(
                    self.public[label], len(places), self.spectrum, *self.mixture.moments(label), generator
                )  # fmt: skip
                if shape[0] == 1:  # or black backgrounds would show waves
                    drawn = in_levels(drawn, self.levels[label])
                images[places], gaussian[places] = drawn.clamp(0, 1).mul(255).round().byte(), False
        coefficients = self.mixture.draw(labels[gaussian], generator)
        for label in labels[gaussian].unique():
            asked = coefficients[labels[gaussian] == label]
            drawn = in_levels(self.spectrum.images(asked), self.levels[label])
            if levels_twice:
                lost = self.spectrum.images(asked - self.spectrum(drawn)) - 0.5
                drawn = in_levels(drawn + lost / 2, self.levels[label])
            images[gaussian & (labels == label)] = drawn.mul(255).round().byte()
        if self.matching is not None:
            images[gaussian] = self.matching.move(images[gaussian], labels[gaussian], seed)
        return images, labels


def ask_for_matching(run: Run) -> Matching | None:
    """Asks the query of `MatchingFlags`, if there is one."""
    query = getattr(run.config, "network_means", None)
    if query is None:
        return None
    sums, number = run.ask(query), query.feature_map.num_networks
    noise = run.plan.rows[query.name].noise_multiplier * math.hypot(1, COUNT)
    counts = sums[:, 0].clamp_min(max(1.0, ENOUGH * noise / COUNT))
    means = (sums[:, 1:] / counts[:, None]).unflatten(1, (number, -1)) * math.sqrt(number)
    return Matching(
        query.feature_map, means, noise * math.sqrt(number) / counts, MATCHING_STEPS, MATCHED_IMAGES, MATCHING_RATE,
        run.processes,
    )  # fmt: skip


def ask_for_moments(run: Run) -> NoisyMoments:
    """Asks the queries of `MomentFlags`, which the run's flags include, and that of `MatchingFlags`, if they do."""
    config = run.config
    matching = ask_for_matching(run)
    levels = run.ask(config.grey_levels)
    mixture, counts = ask_for_mixture(run)
    levels = towards_all(levels, counts, run.plan.rows[config.grey_levels.name].noise_multiplier)
    return NoisyMoments(mixture, counts, levels, config.class_moments.spectrum, matching)


def towards_all(levels: torch.Tensor, counts: torch.Tensor, noise_multiplier: float) -> torch.Tensor:
    """Histograms of classes, moved towards that of all images as far as they are noise, whose variance falls with the
    square of the number of images. Else a class of few images could be all black."""
    of_all = torch.einsum("k,kcl->cl", counts / counts.sum(), levels)
    own = 1 / (1 + (BORROWED * noise_multiplier / counts).square())
    return of_all + own[:, None, None] * (levels - of_all)


def distil(
    denoiser: Denoiser, loss: TrainingLoss, moments: NoisyMoments, *, batch_size: int, processes: Processes,
    **training: Any,
) -> None:  # fmt: skip
    """
    Teaches a network the ideal denoiser of the moments.

    Args:
        denoiser (`EDMDenoiser`): It learns.
        loss (`EDMLoss`): Its noise levels are those of the rows. Augmentations are left out.
        batch_size (`int`): Images of a step, of all processes together.
        training: See `warm_up.warm_up`.
    """
    teacher = MixtureDenoiser(moments.mixture, moments.spectrum.waves, moments.spectrum.weights, processes.device)
    size = processes.part(batch_size)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(teacher.num_classes, (size,), device=processes.device)
        return teacher.draw(labels, moments.spectrum.image_shape), labels

    of_rows: Any = getattr(loss, "loss", loss)
    warm_up(
        denoiser,
        DistillationLoss(teacher, of_rows),
        batch,
        processes=processes,
        title="Ideal denoiser of the moments",
        **training,
    )


def ask_for_mixture(run: Run) -> tuple[GaussianMixture, torch.Tensor]:
    """The mixture of each class, and the noisy numbers of images, `[classes]`. Each query begins where the noisy
    answers before it end."""
    config, sums = run.config, run.ask(run.config.class_moments)
    counts = sums[:, -2].clamp_min(least_count(run, config.class_moments))
    means = (sums[:, :-2] / counts[:, None])[:, None]  # [classes, 1, D]
    between = float((counts * means.square().sum((1, 2))).sum() / counts.sum())
    energy = max(float(sums[:, -1].sum() / counts.sum()) - between, LEAST_ENERGY * between)

    used = parts_of_classes(counts, config.parts)
    centres = means.repeat(1, config.parts, 1)
    if config.part_means:
        generator, spectrum = torch.Generator().manual_seed(config.seed), config.class_moments.spectrum
        spread = (energy / float(spectrum.weights.pow(-2).sum())) ** 0.5 / spectrum.weights
        centres = centres + FIRST_SPREAD * spread * torch.randn(centres.shape, generator=generator)
        for query in config.part_means:
            centres = torch.where(used[..., None], centres, centres[:, :1])
            sums, sizes, noise = ask_about_parts(run, query, centres, MOMENT_CLIP * energy**0.5)
            centres = centres + shrunk(sums / sizes[..., None], noise / sizes)
        centres, sizes = torch.where(used[..., None], centres, centres[:, :1]), sizes * used
        apart = (sizes / sizes.sum())[..., None] * (centres - means).square()
        energy = max(energy - float(apart.sum()), LEAST_ENERGY * energy)
    clip = MOMENT_CLIP * energy**0.5
    sums, sizes, noise = ask_about_parts(run, config.covariances, centres, clip)
    sums, sizes = sums * used[..., None], sizes * used
    if config.removes_covariance_noise:
        pairs = denoised(sums, sizes, noise * clip, config.class_moments.spectrum.bands)
    else:
        borrowed = BORROWED * run.plan.rows[config.covariances.name].noise_multiplier
        from_all = borrowed * (RARE * counts < counts.mean())[:, None, None]
        of_class = sums.sum(1, keepdim=True) + from_all * sums.sum((0, 1)) / sizes.sum()
        of_class = of_class / (sizes.sum(1)[:, None, None] + from_all)
        pairs = (sums + borrowed * of_class) / (sizes + borrowed)[..., None]
    return GaussianMixture(sizes, centres, symmetric(pairs)), counts


def parts_of_classes(counts: torch.Tensor, parts: int) -> torch.Tensor:
    """Which parts a class has, bool `[classes, P]`, by its noisy count, `[classes]`. A rare class has fewer, because
    parts of few images would be noise. The other parts lie on the first, so no image is nearer to them."""
    allowed = (RARE * parts * counts / counts.mean()).floor().clamp(1, parts)
    return torch.arange(parts) < allowed[:, None]


def ask_about_parts(
    run: Run, query: PartQuery, centres: torch.Tensor, clip: float
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Noisy sums `[classes, P, d]` of the rows of each part, noisy numbers of images `[classes, P]`, and the standard
    deviation of the noise in a sum of differences."""
    query = replace(query, centres_sha256=hash_tensor(torch.cat([centres.flatten(), torch.tensor([clip])])))
    counts, sums = query.parts_of(run.ask(query, query.rows(centres, clip)), clip)
    noise = run.plan.rows[query.name].noise_multiplier * math.hypot(1, COUNT)
    return sums, counts.clamp_min(least_count(run, query)), noise * clip


def least_count(run: Run, query: MomentQuery) -> float:
    """The least number of images that an answer is divided by."""
    return max(1.0, ENOUGH * run.plan.rows[query.name].noise_multiplier / COUNT)
