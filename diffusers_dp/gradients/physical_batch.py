"""How many images fit into memory at once. Only blank images are looked at."""

import functools
from collections.abc import Callable, Sequence

import torch
from torch import nn

from ..distributed.memory import free_bytes, peak_bytes
from ..randomness.private_generator import PrivateGenerator
from .step import Gradients, RowLoss, clipped_gradient_sum


# Of a CPU's memory that is free now: the rest is for the noise, the optimiser's step, and whoever else is there.
USABLE = 0.5
# Times the size of the parameters, held back on a GPU: noise, gradient, Adam's two moments, and what is lost between
# blocks of memory.
RESERVE = 6


def blank_images(
    number: int, image_shape: Sequence[int], labelled: bool, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Blank images, labels of the first class, and which images count: all but one."""
    labels = torch.zeros(number, dtype=torch.long, device=device) if labelled else None
    return torch.zeros(number, *image_shape, device=device), labels, torch.arange(number, device=device) > 0


def blank_step(
    model: nn.Module,
    row_loss: RowLoss,
    number: int,
    *,
    image_shape: Sequence[int],
    labelled: bool,
    noise_multiplicity: int,
    device: torch.device,
) -> Gradients:
    """The clipped gradient sum of so many blank images. Arguments are those of `largest_physical_batch`."""
    images, labels, counted = blank_images(number, image_shape, labelled, device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        return clipped_gradient_sum(
            model, row_loss, [(images, labels, counted, None)],
            max_grad_norm=1.0, noise_multiplicity=noise_multiplicity, generator=PrivateGenerator(),
        )  # fmt: skip


def largest_physical_batch(
    model: nn.Module,
    row_loss: RowLoss,
    *,
    image_shape: Sequence[int],
    labelled: bool,
    noise_multiplicity: int,
    at_most: int,
    at_least: int = 1,
    device: torch.device | str = "cpu",
    processes_here: int = 1,
) -> int:
    """The largest number of images whose clipped gradients can be summed at once.

    On a CPU, where asking for too much ends in a killed process, the memory of one image and of two is measured, and
    half of what is free is divided by the difference. On a GPU it is tried: twice as many until memory runs out, then
    half-way between.

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

    if device.type == "cuda":
        reserve = [torch.empty(RESERVE, *p.shape, device=device) for p in model.parameters()]
        largest = _largest_that_runs(step, at_most)
        del reserve
        return max(at_least, largest)
    step(1)  # what is allocated once and kept
    one, two = (peak_bytes(functools.partial(step, images), device) for images in (1, 2))
    usable = USABLE * free_bytes(device) / processes_here - one
    return max(at_least, min(at_most, 1 + int(usable / max(two - one, 1))))


def _largest_that_runs(step: Callable[[int], None], at_most: int) -> int:
    """The largest number, to an eighth, with which `step` does not run out of memory; 1 is not tried."""
    fits, too_many = 1, at_most + 1
    while too_many - fits > max(1, fits // 8):
        size = min(2 * fits, at_most) if too_many > at_most else (fits + too_many) // 2
        try:
            step(size)
            fits = size
        except torch.OutOfMemoryError:
            too_many = size
        torch.cuda.empty_cache()
    return fits
