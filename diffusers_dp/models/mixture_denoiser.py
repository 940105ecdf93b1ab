# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The ideal denoiser of images whose low frequencies are a mixture of Gaussians: a teacher in closed form."""

import torch

from .denoiser import EDMLoss
from .gaussian_mixture import GaussianMixture


class MixtureDenoiser:
    """
    `D(x; sigma) = sum_j p_j(x) (m_j + S_j (S_j + sigma^2 I)^-1 (x - m_j))`, over the parts j of the image's class.

    A part has the mean m_j, the covariance S_j and the weight w_j; `p_j(x)` is in proportion to
    `w_j N(x; m_j, S_j + sigma^2 I)`. D is the mean of the clean image, given the noisy one. Frequencies that the
    mixture does not have are 0, which is grey.

    Args:
        mixture (`GaussianMixture`): The mixture of each class, of weighted coefficients about grey 1/2.
        waves (`torch.Tensor` of shape `[D, C * H * W]`), weights (`torch.Tensor` of shape `[D]`): See
            `queries.moments.Frequencies`.
        device (`torch.device` or `str`): Device of the images.
    """

    def __init__(
        self, mixture: GaussianMixture, waves: torch.Tensor, weights: torch.Tensor, device: torch.device | str = "cpu"
    ):
        scale = 2 / weights.double()  # to coefficients without weights, of images in [-1, 1]
        covariances = mixture.covariances.double() * scale[:, None] * scale
        variances, directions = torch.linalg.eigh(covariances)
        self.waves = waves.to(device)
        self.means = (mixture.means.double() * scale).float().to(device)
        self.variances, self.directions = variances.clamp_min(0).float().to(device), directions.float().to(device)
        self.shares = (mixture.shares / mixture.shares.sum(1, keepdim=True)).to(device)

    @property
    def num_classes(self) -> int:
        return len(self.shares)

    def draw(self, labels: torch.Tensor, image_shape: tuple[int, ...]) -> torch.Tensor:
        """Clean images `[b, *image_shape]` of the mixture, about [-1, 1], from torch's seeded source."""
        parts = torch.multinomial(self.shares[labels], 1)[:, 0]
        drawn = torch.randn(len(labels), self.means.shape[2], device=self.means.device)
        drawn = drawn * self.variances[labels, parts].sqrt()
        for label, part in torch.stack([labels, parts], 1).unique(dim=0).tolist():
            own = (labels == label) & (parts == part)
            drawn[own] = drawn[own] @ self.directions[label, part].T + self.means[label, part]
        return (drawn @ self.waves).unflatten(1, image_shape)

    @torch.no_grad()
    def __call__(self, noisy: torch.Tensor, sigma: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        """
        Args:
            noisy (`torch.Tensor` of shape `[b, C, H, W]`): Images in [-1, 1] plus noise.
            sigma (`torch.Tensor` of shape `[b]`): Standard deviation of the noise.
            labels (`torch.Tensor` of int64, shape `[b]`, *optional*): Classes; K, which is none of them, is the
                mixture of all.
        """
        coefficients = noisy.flatten(1) @ self.waves.T
        if labels is None:
            labels = torch.zeros(len(noisy), dtype=torch.int64, device=noisy.device)
        clean = torch.empty_like(coefficients)
        for label in labels.unique().tolist():
            own = labels == label
            which = slice(label, label + 1) if label < self.num_classes else slice(None)
            clean[own] = self._mean(coefficients[own], sigma[own, None, None] ** 2, which)
        return (clean @ self.waves).view_as(noisy)

    def _mean(self, coefficients: torch.Tensor, noise: torch.Tensor, which: slice) -> torch.Tensor:
        """Mean of the clean coefficients `[b, D]`, given the noisy ones and the noise's variance `[b, 1, 1]`."""
        means, variances, directions = (
            values[which].flatten(0, 1) for values in (self.means, self.variances, self.directions)
        )
        along = torch.einsum("pij,bpi->bpj", directions, coefficients[:, None] - means)
        whole = variances + noise
        likelihood = -0.5 * (along.square() / whole + whole.log()).sum(2)
        weights = (self.shares[which].flatten().log() + likelihood).softmax(1)
        clean = means + torch.einsum("pij,bpj->bpi", directions, along * variances / whole)
        return torch.einsum("bp,bpi->bi", weights, clean)


class DistillationLoss(EDMLoss):
    """
    EDM's loss against a teacher's estimate of the clean image in place of the image. The estimate has no noise of its
    own, so fewer steps are needed.

    Args:
        teacher (`MixtureDenoiser`): The teacher.
        like (`EDMLoss`): Its noise levels and label dropout are taken.
    """

    def __init__(self, teacher: MixtureDenoiser, like: EDMLoss):
        super().__init__(like.label_dropout, like.p_mean, like.p_std, like.mixture)
        self.teacher = teacher

    def target(
        self, images: torch.Tensor, noisy: torch.Tensor, sigma: torch.Tensor, labels: torch.Tensor | None
    ) -> torch.Tensor:
        return self.teacher(noisy, sigma, labels)
