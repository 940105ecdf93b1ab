# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Moves drawn images until random networks see in them what they saw in the sensitive ones, on average."""

from dataclasses import dataclass

import torch
from diffusers.optimization import get_scheduler

from ..distributed.processes import Processes
from ..queries.random_networks import RandomNetworkFeatures
from .gaussian_mixture import shrunk


@dataclass(frozen=True)
class Matching:
    """
    Distribution matching (Zhao & Bilen 2023, Equation 4) with noisy means in place of batches of real images: it is
    post-processing.

    Args:
        feature_map (`RandomNetworkFeatures`): The networks.
        means (`torch.Tensor` of shape `[classes, networks, d]`): Noisy mean features of the sensitive images.
        deviations (`torch.Tensor` of shape `[classes]`): Standard deviation of the noise in each value of `means`.
        num_steps, num_images (`int`): Steps of each group, and images in one.
        learning_rate (`float`): Of Adam at first, for pixels in [0, 1]; it falls to 0.
        processes (`Processes`): Each makes the same images.
    """

    feature_map: RandomNetworkFeatures
    means: torch.Tensor
    deviations: torch.Tensor
    num_steps: int
    num_images: int
    learning_rate: float
    processes: Processes

    def move(self, images: torch.Tensor, labels: torch.Tensor, seed: int) -> torch.Tensor:
        """
        Moves groups of images of a class by gradients of the squared distance between the shift of their mean features
        and the shift that is wanted. A group is compared with itself as it was drawn, so one that differs from its
        class by chance does not make images alike. A class whose shift noise explains is left as it is.

        Args:
            images (`torch.Tensor`): uint8 `[m, C, H, W]`.
            labels (`torch.Tensor`): int64 `[m]`.
            seed (`int`): Public; it chooses the groups.

        Returns:
            Other images of the same shape and type.
        """
        places = {label: (labels == label).nonzero()[:, 0] for label in labels.unique().tolist()}
        wanted = {label: self._shift(label, images[place]) for label, place in places.items()}
        generator = torch.Generator().manual_seed(seed)
        groups = [
            (label, places[label][group])
            for label, shift in wanted.items() if bool(shift.any())
            for group in torch.randperm(len(places[label]), generator=generator).split(self.num_images)
        ]  # fmt: skip
        images = images.clone()
        for label, group in self.processes.bar(groups, desc="Mean features of random networks", unit="group"):
            images[group] = self._moved(images[group], wanted[label])
        return images

    def _moved(self, images: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Images of one class, uint8, after a shift of their mean features, `[networks, d]`."""
        pixels, wanted = self._pixels(images), wanted.to(self.processes.device)
        with torch.no_grad():
            drawn = [self._mean(number, pixels) for number in range(len(wanted))]
        optimizer = torch.optim.Adam([pixels.requires_grad_(True)], lr=self.learning_rate)
        lr_scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=self.num_steps)
        for step in range(self.num_steps):
            number = step % len(wanted)
            optimizer.zero_grad()
            (self._mean(number, pixels) - drawn[number] - wanted[number]).square().sum().backward()
            optimizer.step()
            lr_scheduler.step()
            with torch.no_grad():
                pixels.clamp_(0, 1)
        return pixels.detach().mul(255).round().byte().cpu()

    @torch.no_grad()
    def _shift(self, label: int, images: torch.Tensor) -> torch.Tensor:
        """How far the mean features of the drawn images of a class are from the noisy means, less what noise explains,
        `[networks, d]`."""
        groups = [self._pixels(group) for group in images.split(self.num_images)]
        sums = [
            [self._mean(number, each).cpu() * len(each) for each in groups] for number in range(len(self.means[label]))
        ]
        here = torch.stack([torch.stack(each).sum(0) for each in sums]) / len(images)
        return shrunk(self.means[label] - here, self.deviations[label])

    def _pixels(self, images: torch.Tensor) -> torch.Tensor:
        return images.to(self.processes.device).float().div(255)

    def _mean(self, number: int, pixels: torch.Tensor) -> torch.Tensor:
        return self.feature_map.of_network(number, pixels).mean(0)
