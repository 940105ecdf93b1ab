# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The saliency of the attention's matrices, as a map of latents (DP-SAPF, arXiv 2605.30312)."""

import torch

from ..gradients.per_example import per_example_gradients
from ..queries.saliency import shares
from .adapters import attention_matrices
from .latent_denoiser import LatentDenoiser, LatentLoss


class Saliency:
    """Latents and labels to each record's shares of its squared gradient norm over the attention's matrices, at the
    weights as they are now. Noise is the same for all, from a public seed.

    Args:
        denoiser (`LatentDenoiser`): With the network of the base.
        times (`tuple[float, ...]`): Diffusion times of the gradients of a record, which are added up.
        seed (`int`): Public.
        at_once (`int`): Records whose gradients are in memory, however many the door gives.
    """

    def __init__(self, denoiser: LatentDenoiser, times: tuple[float, ...], seed: int, *, at_once: int):
        self.denoiser, self.times, self.seed = denoiser, times, seed
        self.names, self.at_once = attention_matrices(denoiser.network), at_once

    def __call__(self, latents: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        rows = latents.split(self.at_once)
        classes = [None] * len(rows) if labels is None else labels.split(self.at_once)
        return torch.cat([self._shares(*part) for part in zip(rows, classes, strict=True)])

    def _shares(self, latents: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        network, denoiser = self.denoiser.network, self.denoiser
        network.requires_grad_(False)
        for name in self.names:
            network.get_submodule(name).weight.requires_grad_(True)
        generator = torch.Generator().manual_seed(self.seed)
        with torch.enable_grad(), per_example_gradients(denoiser, group_size=len(self.times)) as gradients:
            rows = latents.repeat_interleave(len(self.times), 0)
            noise = torch.randn(len(self.times), *latents.shape[1:], generator=generator).to(latents)
            noise = noise.repeat(len(latents), 1, 1, 1)
            times = torch.tensor(self.times).repeat(len(latents))
            row_labels = None if labels is None else labels.repeat_interleave(len(self.times))
            LatentLoss().at(denoiser, rows, row_labels, noise, times).sum().backward()
        each = gradients.per_example
        squares = [each[f"network.{name}.weight"].flatten(1).double().square().sum(1) for name in self.names]
        network.requires_grad_(False)
        return shares(torch.stack(squares, 1)).float()
