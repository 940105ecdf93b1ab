# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Votes: how many sensitive images of a class each public candidate is the nearest to (Private Evolution, Lin et al.
2024, Algorithm 2).

Nothing here loads torch before it is used.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .one_image import largest, one_by_one
from .query import Query


if TYPE_CHECKING:
    import torch

    from ..privacy.separate_records import Features
    from .mean_features import Embedding


STAND_INS = 20  # candidates of the stand-in: how many there are changes nothing of what one image adds
STAND_IN_SIDE = 32  # about its images' side: nor does what they are compared by
SIGNIFICAND = 53  # bits of a whole number that float64 holds
MARGIN = 4  # times as far from the centre as any coordinate of a candidate, the grid ends
SMALLEST_SPREAD = 1e-12  # of candidates that are all the same
OF_UNIT_VECTORS = 2.0  # the most by which coordinates of two vectors of norm 1 differ
FALSE_SHARE = 0.01  # of N: expected noisy votes of captions that no image voted for
SURELY = 1.645  # standard deviations of the noise, below which it is 19 times in 20


class NearestCandidates:
    """
    Features of an image: its votes for the candidates of its class.

    The k candidates with the nearest embeddings get 1 / sqrt(k) each, of equally near ones the first, so each row has
    the norm 1. An image whose embedding is no number votes for none.

    A vote follows from its own image to the last bit. Images are embedded one by one. Embeddings are rounded to a
    grid that the public candidates decide, so that products and sums of coordinates are whole numbers below 2^53,
    which float64 holds exactly, in whatever order and in whatever batch they are added up.

    Args:
        embed (`Embedding`): Images `[b, C, H, W]` in [0, 1] to `[b, D]`.
        candidates (`torch.Tensor` of shape `[classes, n, D]`): Embeddings of the candidates, public. Those of a single
            class stand for all.
        num_votes (`int`): k, at most n.
        spread (`float`, *optional*): How far a coordinate of a candidate may be from the centre; unset: as far as one
            is. CLIP's texts are close together, and images far from them: texts alone do not tell where a grid ends.
    """

    def __init__(
        self, embed: "Embedding", candidates: "torch.Tensor", num_votes: int = 1, spread: float | None = None
    ):  # fmt: skip
        from ..gradients.parts import widened

        self.embed, self.num_votes = embed, num_votes
        candidates = widened(candidates)
        self.centre = candidates.mean((0, 1))
        # D products of two whole numbers up to `limit`, and D squares of numbers up to a quarter of it.
        self.limit = 2.0 ** ((SIGNIFICAND - math.ceil(math.log2(candidates.shape[2]))) // 2)
        found = (candidates - self.centre).abs().max().clamp_min(SMALLEST_SPREAD)
        self.step = MARGIN * (found if spread is None else spread) / self.limit
        self.candidates = self._on_grid(candidates)
        self.squares = self.candidates.square().sum(2)

    def __call__(self, images: "torch.Tensor", labels: "torch.Tensor | None") -> "torch.Tensor":
        """Images `[b, C, H, W]` in [0, 1] and labels, int64 `[b]` or `None`, to votes `[b, n]`."""
        import torch

        from ..gradients.parts import widened

        rows = self._on_grid(widened(one_by_one(self.embed, images)).to(self.candidates.device))
        if labels is None or len(self.candidates) == 1:
            labels = torch.zeros(len(rows), dtype=torch.long)
        labels = labels.to(rows.device)
        votes = torch.zeros(len(rows), self.candidates.shape[1], device=rows.device)
        for label in labels.unique():
            own = labels == label
            # |x|^2 - |x - c|^2
            nearness = (2 * rows[own] @ self.candidates[label].T).sub_(self.squares[label])
            votes[own] = largest(nearness, self.num_votes) / math.sqrt(self.num_votes)
        return votes.to(images.device)

    def _on_grid(self, embedded: "torch.Tensor") -> "torch.Tensor":
        """Embeddings `[..., D]` in whole steps of the grid, float64; what is beyond its ends is moved there."""
        return ((embedded - self.centre) / self.step).round().clamp(-self.limit, self.limit)


@dataclass(frozen=True, kw_only=True)
class Votes(Query):
    """
    `sum_i votes(x_i) + N(0, sigma^2)`, a histogram for each class over its own candidates. Sensitivity: 1.

    The candidates of a generation follow from the answers of those before. So they are given when it is asked.

    Args:
        generation (`int`): From 1 on.
        num_candidates (`int`): n, of each class; public, and the same for all classes.
        num_votes (`int`): k.
        threshold (`float`): H, in standard deviations of the noise.
        image_shape (`tuple[int, int, int]`): (C, H, W), for the stand-in.
        candidates_sha256 (`str`, *optional*): Hash of the candidates, when known: a stored answer is about these.
        embedding (`dict`, *optional*): What decides what is near, when it is known: JSON values. The same holds.
    """

    generation: int = 0
    num_candidates: int
    num_votes: int = 1
    threshold: float = 0.0
    image_shape: tuple[int, ...]
    candidates_sha256: str | None = None
    embedding: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        return f"votes_{self.generation}"

    @property
    def title(self) -> str:
        return f"votes of generation {self.generation}"

    @property
    def num_values(self) -> int | None:
        return self.num_candidates

    @property
    def facts(self) -> dict[str, Any]:
        return {"num_candidates": self.num_candidates, "num_votes": self.num_votes}

    @property
    def meaning(self) -> dict[str, Any]:
        about = {"candidates_sha256": self.candidates_sha256, "embedding": self.embedding}
        return {**self.facts, "threshold": self.threshold, **about}

    def finish(self, answer: "torch.Tensor", num_units: int, noise_multiplier: float) -> "torch.Tensor":
        """`max(votes - H sigma, 0)`, `[classes, n]`."""
        return (answer[0] - self.threshold * noise_multiplier).clamp_min(0)

    def stand_in(self) -> "Features":
        import torch

        number, size = max(STAND_INS, self.num_votes), max(1, max(self.image_shape[1:]) // STAND_IN_SIDE)
        images = torch.rand(number, *self.image_shape, generator=torch.Generator().manual_seed(0))
        pooled = PooledPixels(size)
        return NearestCandidates(pooled, pooled(images)[None], self.num_votes)


@dataclass(frozen=True, kw_only=True)
class CaptionVotes(Votes):
    """
    The same over public captions, before the first generation: each image votes for the caption whose embedding is the
    nearest to its own (of CLIP, which has one space for both). Sensitivity: 1. SPTI (arXiv 2506.07555) is related: it
    votes on images of captions, over generations.
    """

    name = "captions"
    title = "captions"
    num_values = None  # most captions get no vote, so that a signal to noise over all of them says little

    @property
    def facts(self) -> dict[str, Any]:
        return {"num_captions": self.num_candidates}

    def least_votes(self, num_classes: int, num_units: int, noise_multiplier: float) -> float:
        """
        Computes the threshold T: noisy votes up to it count as none.

        A caption without votes has the noisy vote Z ~ N(0, sigma^2), and `E[Z; Z > T] = sigma phi(T / sigma)`, with
        phi the normal density. T is the least one at which these are at most `FALSE_SHARE` of N together, of all
        captions of all classes.

        Args:
            num_classes (`int`): Number of histograms.
            num_units (`int`): N.
            noise_multiplier (`float`): sigma.
        """
        loudest = self.num_candidates * num_classes * noise_multiplier / math.sqrt(2 * math.pi)  # at T = 0
        return noise_multiplier * math.sqrt(2 * math.log(max(1.0, loudest / (FALSE_SHARE * num_units))))

    def finish(self, answer: "torch.Tensor", num_units: int, noise_multiplier: float) -> "torch.Tensor":
        """Noisy votes, `[classes, n]`, and 0 in the place of those up to the threshold."""
        votes = answer[0]
        return votes.where(votes > self.least_votes(len(votes), num_units, noise_multiplier), 0.0)

    def needs(self, num_classes: int, num_units: int, noise_multiplier: float, unit: str) -> str:
        classes = num_classes if self.by_label else 1
        least = self.least_votes(classes, num_units, noise_multiplier) + SURELY * noise_multiplier
        number, whose = max(1, math.ceil(least)), " of a class" if classes > 1 else ""
        lost = "; that is more than there are: give fewer captions, or raise --budget captions"
        return (
            f"{self.title}: one of {self.num_candidates:,} is seen, 19 times in 20, if it is the nearest to "
            f"{number:,} {unit}s{whose}{lost if number * classes > num_units else ''}"
        )


@dataclass(frozen=True, kw_only=True)
class SharedCaptionVotes(CaptionVotes):
    """With one histogram for the images of all classes."""

    name = "shared_captions"
    title = "captions for all classes"
    by_label = False


def draw_parents(votes: "torch.Tensor", num_drawn: int, generator: "torch.Generator") -> "torch.Tensor":
    """
    Candidates drawn by their votes, with replacement. A class whose votes are all 0 draws each with the same
    probability, and on the same path.

    Args:
        votes (`torch.Tensor` of shape `[classes, n]`): At least 0; noisy.
        num_drawn (`int`): Number of images of each class.
        generator (`torch.Generator`): Public.

    Returns:
        `torch.Tensor` of int64, shape `[classes, num_drawn]`: Places among the candidates of the class.
    """
    import torch

    empty = votes.sum(1, keepdim=True) <= 0
    return torch.multinomial(torch.where(empty, 1.0, votes), num_drawn, replacement=True, generator=generator)


def embed_all(
    embed: "Embedding", images: "torch.Tensor", device: "torch.device | str" = "cpu", batch_size: int = 500
) -> "torch.Tensor":
    """Public images of uint8, shape `[m, C, H, W]`, to `[m, D]`, on the device."""
    import torch

    with torch.no_grad():
        return torch.cat([embed(part.to(device).float() / 255).float() for part in images.split(batch_size)])


def hash_tensor(tensor: "torch.Tensor") -> str:
    """SHA-256 of the bytes of public numbers, and of their shape."""
    return hashlib.sha256(f"{tuple(tensor.shape)}".encode() + tensor.contiguous().numpy().tobytes()).hexdigest()


class PooledPixels:
    """
    Pixels, averaged over squares.

    Args:
        size (`int`): Side length of a square in pixels.
    """

    def __init__(self, size: int):
        self.size = size

    @property
    def facts(self) -> dict[str, Any]:
        """JSON values that tell two embeddings apart, for stored answers."""
        return {"pixels": self.size}

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Images `[b, C, H, W]` to `[b, D]`."""
        import torch.nn.functional as F

        return F.avg_pool2d(images, self.size, ceil_mode=True).flatten(1)
