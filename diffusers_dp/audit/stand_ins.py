# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What takes the place of a run's images in an audit: records, doors, ledgers and a model. The mechanism, clip norm,
divisor and noise multiplicity are the run's own, as a row of the plan states them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import LedgerRow
from ..gradients.step import Gradients, RowLoss
from ..privacy.sensitive import SensitiveImages
from ..randomness.keyed_hash import digests_of
from ..randomness.private_generator import PrivateGenerator
from ..runs.dp_sgd import Trained
from .canaries import tag_images


Door = TypeVar("Door", bound=SensitiveImages)

NOISE_SCALES = (1.0, 0.0, 0.5)  # honest, off, halved
STAND_IN_SHAPE = (1, 8, 8)
ANY_EPSILON, ANY_DELTA = 1e6, 1e-5  # targets of a ledger that only counts


def step_options(row: LedgerRow, max_physical_batch_size: int, **changes: Any) -> dict[str, Any]:
    """Arguments of `noisy_gradient` for one step of a planned row of DP-SGD."""
    return {
        "mechanism": row.mechanism, "max_grad_norm": row.facts["clip_norm"], "normaliser": row.facts["normaliser"],
        "noise_multiplicity": row.facts["noise_multiplicity"], "max_physical_batch_size": max_physical_batch_size,
        "name": row.name,
    } | changes  # fmt: skip


def counting_ledger(num_images: int, delta: float = ANY_DELTA, accountant: str = "rdp") -> PrivacyLedger:
    """One that only counts; by RDP, because PLD takes a second where epsilon is large."""
    return PrivacyLedger(
        None, target_epsilon=ANY_EPSILON, target_delta=delta, num_images=num_images, accountant=accountant
    )


def audited_door(
    images: np.ndarray,
    labels: np.ndarray | None,
    readable: np.ndarray | None = None,
    *,
    generator: PrivateGenerator | None = None,
    units: np.ndarray | None = None,
    kind: Callable[..., Door] = SensitiveImages,  # type: ignore[assignment]
    **options: Any,
) -> Door:
    """The real door to stand-in records, with a ledger that only counts.

    Args:
        readable (`np.ndarray` of bool, *optional*): Records that are there; all of them by default.
        generator (`PrivateGenerator`, *optional*): In place of the real one.
        units (`np.ndarray`, *optional*): Unit of each record, from 0 on without a gap.
        options: As for `SensitiveImages`.
    """
    if units is not None:
        options |= {"units": units, "num_units": int(units.max()) + 1, "ids": digests_of(units.tolist())}
    options.setdefault("num_images", len(images))
    if "ledger" not in options:
        options["ledger"] = counting_ledger(options.get("num_units", options["num_images"]))
    door = kind(images, labels, readable, image_shape=images.shape[1:], **options)
    if generator is not None:
        door._generator = generator
    return door


def labels_of(class_names: tuple[str, ...] | None, numbers: np.ndarray) -> np.ndarray | None:
    """Classes that records with these numbers take in turn."""
    return None if class_names is None else numbers % len(class_names)


def tagged_noise(number: int, image_shape: tuple[int, ...], seed: int | None = 0) -> np.ndarray:
    """Records of noise that carry their numbers, uint8, `[number, C, H, W]`."""
    images = np.random.default_rng(seed).integers(0, 256, (number, *image_shape), dtype=np.uint8)
    tag_images(images, np.arange(number))
    return images


@dataclass(frozen=True)
class AuditedModel:
    """A model, its loss, and what it is shown.

    Args:
        model, row_loss: As for `SensitiveImages.noisy_gradient`.
        image_shape (`tuple[int, int, int]`): (C, H, W).
        class_names (`tuple[str, ...]`, *optional*): The label set.
    """

    model: nn.Module
    row_loss: RowLoss
    image_shape: tuple[int, ...]
    class_names: tuple[str, ...] | None

    @classmethod
    def of(cls, trained: Trained, image_shape: tuple[int, ...], class_names: tuple[str, ...] | None) -> "AuditedModel":
        """What a run trains, before it was trained."""
        return cls(trained.model, trained.loss, trained.row_shape or image_shape, class_names)

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def door(
        self, images: np.ndarray, labels: np.ndarray | None, *readable: np.ndarray, **options: Any
    ) -> SensitiveImages:
        """See `audited_door`; its records have the model's classes, and answers are computed where it is."""
        return audited_door(images, labels, *readable, class_names=self.class_names, device=self.device, **options)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}


def stand_in() -> AuditedModel:
    """Every record pulls at the same weights, harder than the clip norm, to a side that the row's own draw decides."""

    def loss(
        model: nn.Module, rows: torch.Tensor, labels: torch.Tensor | None, generator: PrivateGenerator
    ) -> torch.Tensor:
        return 1000 * model(rows).sum(1) * generator.normal((len(rows),), 1.0, rows.device)

    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(STAND_IN_SHAPE), 8))
    return AuditedModel(model, loss, STAND_IN_SHAPE, None)


def flat(gradients: Gradients, scale: float = 1.0) -> torch.Tensor:
    return torch.cat([gradients[name].detach().flatten().cpu() for name in sorted(gradients)]).double() * scale
