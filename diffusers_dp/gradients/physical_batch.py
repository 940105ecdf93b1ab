"""How many images fit into memory at once. Only blank images are looked at."""

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from ..distributed.memory import free_bytes, peak_bytes
from ..randomness.private_generator import PrivateGenerator
from .step import Gradients, RowLoss, clipped_gradient_sum


# Of the memory that is free now: the rest of a CPU's is for noise, the optimizer's step, and whoever else is there;
# that of a GPU is lost between its blocks.
USABLE = {"cpu": 0.5, "cuda": 0.85}
# Times the size of trained parameters, held back on a GPU: noise, gradient, Adam's two moments and their average.
RESERVE = 6
# Images of the largest batch that is measured: that takes long on a CPU, and kernels of a GPU ask for other workspaces
# where there are more images.
MEASURED = {"cpu": 2, "cuda": 256}


def blank_images(
    number: int, image_shape: Sequence[int], labelled: bool, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Blank images, labels of the first class, and which images count: all but one."""
    labels = torch.zeros(number, dtype=torch.long, device=device) if labelled else None
    return torch.zeros(number, *image_shape, device=device), labels, torch.arange(number, device=device) > 0


def blank_step(
    model: nn.Module, row_loss: RowLoss, number: int, *, image_shape: Sequence[int], labelled: bool,
    noise_multiplicity: int, device: torch.device,
) -> Gradients:  # fmt: skip
    """The clipped gradient sum of so many blank images. Arguments are those of `largest_physical_batch`."""
    images, labels, counted = blank_images(number, image_shape, labelled, device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        return clipped_gradient_sum(
            model, row_loss, [(images, labels, counted, None)],
            max_grad_norm=1.0, noise_multiplicity=noise_multiplicity, generator=PrivateGenerator(),
        )  # fmt: skip


def largest_physical_batch(
    model: nn.Module, row_loss: RowLoss, *, image_shape: Sequence[int], labelled: bool, noise_multiplicity: int,
    at_most: int, at_least: int = 1, device: torch.device | str = "cpu", processes_here: int = 1,
) -> int:  # fmt: skip
    """The largest number of images whose clipped gradients can be summed at once.

    No allocation has to fail for that: on a CPU it would end in a killed process, and on a GPU leave memory in pieces.
    The memory of few images is measured, and as many are taken as fit by its growth.

    Args:
        model, row_loss, noise_multiplicity: As for `SensitiveImages.noisy_gradient`.
        image_shape (`tuple[int, int, int]`): (C, H, W).
        labelled (`bool`): Whether `row_loss` is given labels.
        at_most (`int`): The number of images of a whole step.
        at_least (`int`, defaults to 1): Images of a unit, which are never parted.
        processes_here (`int`, defaults to 1): How many share the memory of a CPU.

    Returns:
        `int`: From `at_least` to `at_most`, or `at_least` where that is more.
    """
    device = torch.device(device)

    def step(images: int) -> None:
        blank_step(
            model, row_loss, images, image_shape=image_shape, labelled=labelled,
            noise_multiplicity=noise_multiplicity, device=device,
        )  # fmt: skip

    def peak(images: int) -> int:
        return peak_bytes(functools.partial(step, images), device)

    step(1)  # what is allocated once and kept
    if device.type == "cuda":
        torch.cuda.empty_cache()  # blocks that torch keeps count as taken
        held_back = RESERVE * sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        usable = USABLE["cuda"] * free_bytes(device) - held_back
        return max(at_least, largest_by_growth(peak, usable, at_most, MEASURED["cuda"]))
    usable = USABLE["cpu"] * free_bytes(device) / processes_here
    return max(at_least, largest_by_growth(peak, usable, at_most, MEASURED["cpu"]))


def largest_by_growth(peak: Callable[[int], int], usable: float, at_most: int, measured: int) -> int:
    """The most images that fit by the growth between the two largest batches that were measured. Each is twice as
    large as the one before, and none is measured that would not fit by the growth so far.

    Args:
        peak (`Callable`): Bytes that a number of images takes.
        usable (`float`): Bytes that there are.
        at_most (`int`): The most images that are of use.
        measured (`int`): The most that are measured.
    """
    size, before, now = 1, 0, peak(1)
    while True:
        # A kernel that needs less for more images would hide all growth.
        growth = (now - before) / (size - size // 2) if now > before else now / size
        fits = max(1, min(at_most, size + math.floor((usable - now) / max(1, growth))))
        if 2 * size > min(fits, max(2, measured)):
            return fits
        try:
            size, before, now = 2 * size, now, peak(2 * size)
        except torch.OutOfMemoryError:  # somebody else took what was free
            return size
