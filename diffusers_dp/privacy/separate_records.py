# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Whether features keep records apart, which the sensitivity of a noisy sum rests on, and whether losses keep nothing
of them: tried on records of noise, before anything is asked."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from ..distributed.processes import Processes, one_thread
from ..errors import UsageError
from ..gradients.grid import ROWS
from ..gradients.out_of_memory import FittingParts
from ..gradients.step import RowLoss, clipped_gradient_sum
from ..randomness.private_generator import KEY_BYTES, PrivateGenerator
from .kept_state import KeptState
from .padded_batches import padded_size


#: Images `[b, C, H, W]` in [0, 1] and labels, int64 `[b]` or `None`, to features `[b, d]`, each row of its own record.
Features = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]

NUM_TRIED, FEW = 8, 3  # records of a batch, and of a smaller one
ROUNDING = 3e-3  # of a row's norm: batches of other sizes are computed in another order, and TF32 keeps ten bits
CLIP_OF_TRIAL = 1e-3  # short, so that every gradient is scaled
#: Lowest and highest level of images of noise, in turn: if each had every level, what follows from the brightest or
#: the darkest one of a batch would not show.
RANGES = ((0, 170), (85, 255))
NEGLIGIBLE = 1e-3  # of the clip norm: a row that is shorter is compared as if it had this length


def features_of_zeros(
    features: Features, image_shape: Sequence[int], num_classes: int | None, *, device: torch.device | str,
    clip_norm: float, name: str,
) -> torch.Tensor:  # fmt: skip
    """
    Computes the features of one black image, after a trial on records of public noise.

    In batches of one shape, a row must be the same to the last bit whatever the other records are: blanks, as the
    door puts in the place of a record that does not count, other images, or the same images with other labels. In
    another order, in smaller batches and alone, a row may differ by rounding, but no choice may flip. Where there are
    classes, all of this is tried again with images of one class.

    A mixture that shows on none of them is not found.

    Args:
        features (`Features`): To try.
        image_shape (`Sequence[int]`), num_classes (`int`, *optional*): Shape and classes; `None`: no labels.
        device (`torch.device`): Where they are computed.
        clip_norm (`float`): Clip norm of the query: what is small against it is rounding.
        name (`str`): Name of the query, for the message.

    Returns:
        `torch.Tensor` of shape `[1, d]`.

    Raises:
        UsageError: A row changes with the other records of its batch, or from call to call, there is not one row a
            record, the rows are neither float32 nor float64, or the features keep something between calls.
    """
    images, own_labels = _public_noise(NUM_TRIED, image_shape, num_classes, device)

    def rows(images: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        found = features(images.clone(), None if labels is None else labels.clone())
        if found.dim() != 2 or len(found) != len(images):
            raise UsageError(
                f"The features of {name!r} have the shape {tuple(found.shape)} for {len(images)} images; return one "
                "row of numbers for each image."
            )
        if found.dtype not in (torch.float32, torch.float64):
            raise UsageError(
                f"The features of {name!r} are of type {found.dtype}, whose squares overflow before they are clipped: "
                "return float32."
            )
        found = found.detach().double()
        return torch.where(found.isfinite().all(1, keepdim=True), found, 0.0)  # as the door does

    def refuse(mixed: bool) -> None:
        if mixed:
            raise UsageError(
                f"The features of {name!r} are no function of one image alone: they change with the other images of "
                "a batch, or are random. Put its networks into evaluation mode, and compute each row from its own "
                "image; a choice between nearly equal numbers must come out the same in batches of any size."
            )

    kept: KeptState | None = None
    # Of one class, so that what mixes the images of a class shows however many classes there are.
    for labels in (own_labels,) if own_labels is None else (own_labels, torch.zeros_like(own_labels)):
        together = rows(images, labels)
        kept = kept or KeptState(features)  # after a first call, which may make what it needs
        limit = ROUNDING * together.norm(dim=1).clamp_min(NEGLIGIBLE * clip_norm)
        repeated = torch.equal(rows(images, labels), together)
        refuse(not repeated and images.device.type == "cpu")
        # Some kernels of a GPU add up in another order in each call. Nothing is the same to the last bit there.
        same_shape = torch.zeros_like(limit) if repeated else limit
        mates = [
            (torch.zeros_like(images), labels if labels is None else torch.zeros_like(labels)),
            (1 - images, labels),
        ]
        if labels is not None and num_classes is not None:
            mates.append((images, (labels + 1) % num_classes))
        for parity, (others, their_labels) in itertools.product((0, 1), mates):
            stays = torch.arange(NUM_TRIED, device=device) % 2 == parity
            beside = torch.where(stays.view(-1, *[1] * len(image_shape)), images, others)
            classes = None if labels is None or their_labels is None else torch.where(stays, labels, their_labels)
            moved = (rows(beside, classes) - together).norm(dim=1)
            refuse(bool((stays & (moved > same_shape)).any()))
        everybody = torch.arange(NUM_TRIED, device=device)
        for size, index in ((NUM_TRIED, everybody.flip(0)), (FEW, everybody), (1, everybody)):
            again = torch.cat(
                [rows(images[part], None if labels is None else labels[part]) for part in index.split(size)]
            )
            refuse(bool(((again - together[index]).norm(dim=1) > limit[index]).any()))
    assert kept is not None
    zeros = None if own_labels is None else torch.zeros(1, dtype=torch.long, device=device)
    row = features(torch.zeros(1, *image_shape, device=device), zeros)
    kept.refuse_public(f"The features of {name!r}")
    return row


def batch_invariant(
    features: Features, image_shape: Sequence[int], num_classes: int | None, *, size: int, device: torch.device | str,
    name: str, processes: Processes,
) -> tuple[Features, int]:  # fmt: skip
    """
    Finds, for `--noise exact`, a way to compute features whose rows have the same bits in each place of a batch and
    beside other images: as they are, in batches of `size` and of `grid.ROWS` records, or else on one thread of torch,
    in batches of `grid.ROWS`. Libraries share a product of matrices among many threads in ways that follow from its
    shape. Processes go the same way, because a missing record moves others from one process to the next.

    Args:
        features, image_shape, num_classes, device, name: As for `features_of_zeros`.
        size (`int`): The largest batch of the query, in every process.
        processes (`Processes`): Of this run.

    Returns:
        The features in the way that passed, and the largest batch for them.

    Raises:
        UsageError: A row changes in both ways.
    """
    for tried, most in ((features, size), (_on_one_thread(features), min(size, ROWS))):
        if not processes.any(not _bits_stay(tried, image_shape, num_classes, size=most, device=device)):
            return tried, most
    raise UsageError(
        f"The last bits of the features of {name!r} follow from an image's place in its batch or from the images "
        "beside it, so that --noise exact proves nothing: give --noise float."
    )


def _on_one_thread(features: Features) -> Features:
    def computed(images: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        with one_thread():
            return features(images, labels)

    return computed


def _bits_stay(
    features: Features, image_shape: Sequence[int], num_classes: int | None, *, size: int, device: torch.device | str
) -> bool:
    noise, classes_of_noise = _public_noise(2 * size, image_shape, num_classes, device)
    images, fresh = noise.split(size)
    labels = None if classes_of_noise is None else classes_of_noise[:size]

    def rows(images: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        found = features(images, labels).detach()
        return torch.where(found.isfinite().all(1, keepdim=True), found, 0.0)

    everybody = torch.arange(size, device=device)
    whole = rows(images.clone(), None if labels is None else labels.clone())
    black, white = torch.zeros_like(images[0]), torch.ones_like(images[0])
    # In each size, even and odd records and places are compared. By `RANGES`, black images beside the even records and
    # white ones beside the odd records change the brightest and the darkest level of a batch.
    for most, moved, parity, others in (
        (size, 1, 0, black), (size, 7, 1, white), (size, 0, 0, fresh),
        (ROWS, 0, 0, black), (ROWS, 2, 1, white), (ROWS, 5, 1, fresh),
    ):  # fmt: skip
        stays = everybody % 2 == parity
        beside = torch.where(stays.view(-1, *[1] * len(image_shape)), images, others)
        classes = None
        if labels is not None and num_classes is not None:
            theirs = torch.zeros_like(labels) if others is black else (labels + 1) % num_classes  # as of blanks
            classes = torch.where(stays, labels, theirs)
        order = everybody.roll(moved)
        again = torch.cat(
            [rows(beside[part], None if classes is None else classes[part]) for part in order.split(most)]
        )
        if again.shape != whole.shape or not torch.equal(again[stays[order]], whole[order][stays[order]]):
            return False
    return True


def try_loss(
    model: nn.Module, row_loss: RowLoss, image_shape: Sequence[int], num_classes: int | None, *,
    noise_multiplicity: int, at_most: int, fitting: FittingParts, device: torch.device | str, exact: bool = False,
) -> None:  # fmt: skip
    """
    Shows a model and its loss blanks, of which they may make what they need, and then public noise, of which they must
    keep nothing.

    With `exact`, the whole numbers that some images add up to must be the same in each place of a batch, beside blanks
    and other images, in batches of the largest size and of `grid.ROWS`, with the same draws for all rows.

    Args:
        model, row_loss, noise_multiplicity: As for `SensitiveImages.noisy_gradient`.
        image_shape (`Sequence[int]`), num_classes (`int`, *optional*): Shape and classes; `None`: no labels.
        at_most (`int`): Images at a time.
        fitting (`FittingParts`): Halves what does not fit into memory.
        device (`torch.device`): Where they are computed.
        exact (`bool`, defaults to `False`): `--noise exact`.

    Raises:
        UsageError: They keep something. With `exact`, a gradient follows from other images of its batch.
    """
    if exact:
        refuse_exact_steps(device)
    summed = functools.partial(
        clipped_gradient_sum, model, row_loss, max_grad_norm=1.0, noise_multiplicity=noise_multiplicity,
        generator=PrivateGenerator(bytes(KEY_BYTES)),
    )  # fmt: skip
    for most, brightness in ((FEW - 1, 0.0), (FEW, 1.0)):
        number, kept = min(most, at_most), KeptState(model, row_loss)
        images, labels = _public_noise(number, image_shape, num_classes, device)
        counted = torch.ones(number, dtype=torch.bool, device=device)
        fitting.total(summed, [(images * brightness * 2 - 1, labels, counted, None)])
    kept.refuse_public("A loss and its model")
    if exact:
        size = padded_size(at_most)
        _refuse_mixed_bits(model, row_loss, size, image_shape, num_classes, noise_multiplicity, fitting, device)


def refuse_exact_steps(device: torch.device | str) -> None:
    """Refuses DP-SGD with `--noise exact` on a GPU, which may add in another order each time: no trial shows that its
    bits stay."""
    if torch.device(device).type != "cpu":
        raise UsageError(
            "--noise exact has no proof for DP-SGD on a GPU: give --noise float, or hide the GPU "
            "(CUDA_VISIBLE_DEVICES=)."
        )


def _refuse_mixed_bits(
    model: nn.Module, row_loss: RowLoss, size: int, image_shape: Sequence[int], num_classes: int | None,
    noise_multiplicity: int, fitting: FittingParts, device: torch.device | str,
) -> None:  # fmt: skip
    batch = min(ROWS, size)
    watched, labels = _public_noise(1, image_shape, num_classes, device)
    wanted: dict[str, torch.Tensor] = {}
    for number in dict.fromkeys((batch, min(2 * batch, size), size)):
        for turn, place in enumerate(dict.fromkeys((0, number // 2, max(0, number - 2), number - 1))):
            images, classes = _public_noise(number, image_shape, num_classes, device)
            images = (torch.zeros_like(images), images, 1 - images)[turn % 3] * 2 - 1
            counted = torch.arange(number, device=device) == place
            images[place] = watched[0] * 2 - 1
            if classes is not None and labels is not None:
                classes[place] = labels[0]
            summed = functools.partial(  # in floating point: zeros beside it change no bit of one gradient
                clipped_gradient_sum, model, row_loss, max_grad_norm=CLIP_OF_TRIAL,
                noise_multiplicity=noise_multiplicity, generator=SameDraws(bytes(KEY_BYTES)),
            )  # fmt: skip
            found = fitting.total(summed, [(images, classes, counted, None)])
            wanted = wanted or found
            if any(not torch.equal(wanted[name], value) for name, value in found.items()):
                raise UsageError(
                    "The last bits of an image's gradient follow from its place in its batch or from the images "
                    "beside it, so that --noise exact proves nothing here: give --noise float."
                )


class SameDraws(PrivateGenerator):
    """Gives every row the draws of the first one."""

    def normal(self, shape: tuple[int, ...], std: float, device: torch.device | str = "cpu") -> torch.Tensor:
        return super().normal((1, *shape[1:]), std, device).expand(*shape).contiguous()

    def uniform(self, size: int) -> np.ndarray:
        return np.repeat(super().uniform(1), size)


def _public_noise(
    number: int, image_shape: Sequence[int], num_classes: int | None, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Images `[number, C, H, W]` in [0, 1], and labels if there are classes."""
    ranges = torch.tensor(RANGES)[torch.arange(number) % len(RANGES)]
    low, high = ranges.view(number, 2, *[1] * len(image_shape)).unbind(1)
    levels = _scrambled(number * math.prod(image_shape), 256).view(number, *image_shape)
    images = levels.mul_(high - low + 1).div_(256, rounding_mode="floor").add_(low).float().div_(255)
    return images.to(device), None if num_classes is None else _scrambled(number, num_classes).to(device)


def _scrambled(count: int, below: int) -> torch.Tensor:
    """Numbers that look random, without a generator, for the door draws from its private source alone: two rounds of a
    multiplicative hash on 32 bits."""
    word = torch.arange(1, count + 1)
    for _ in range(2):
        word = word * 2654435761 & 0xFFFFFFFF
        word ^= word >> 15
    return word % below
