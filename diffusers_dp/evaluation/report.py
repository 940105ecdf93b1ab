# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`report.json`: every number with its protocol, its image sets, and its release. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..verify import FORMAT, RECEIPT_NAME, Unreadable, read_receipt, receipt_digest
from .images import ImageSet
from .measurement import Measurement


REPORT_NAME, PAGE_NAME = "report.json", "report.html"
PRIVATE = "PRIVATE: this evaluation read private images, outside of any privacy guarantee. It stays in the house."
PUBLIC = "The real images were declared public by whoever ran this evaluation."


@dataclass
class Evaluation:
    """Results of an evaluation.

    Args:
        read_private_data (`bool`): Whether the real images are private, which marks the whole report.
        settings (`dict`): Flags that affect numbers: JSON values, no path of this machine.
        image_sets (`dict[str, ImageSet]`): Compared sets: `synthetic`, `real training`, `real test`, ...
        release (`dict`, *optional*): Result of `release_facts`.
        measurements (`list[Measurement]`): All numbers, each finite.
        confusion (`dict`): Counts `[true class][predicted class]` on the real test images, by classifier.
        warnings (`list[str]`): Warnings for the reader, one sentence each.
    """

    read_private_data: bool
    settings: dict[str, Any]
    image_sets: dict[str, ImageSet]
    release: dict[str, Any] | None = None
    measurements: list[Measurement] = field(default_factory=list)
    confusion: dict[str, list[list[int]]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Class names of the synthetic images, matched with the real ones; empty without labels."""
        return self.image_sets["synthetic"].class_names or ()

    @property
    def best_classifier(self) -> str:
        """Name of the classifier that is right about most real test images."""
        return max(self.confusion, key=lambda name: int(np.trace(self.confusion[name])))

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "marking": PRIVATE if self.read_private_data else PUBLIC,
            "read private data": "yes" if self.read_private_data else "no",
            "library": {"name": "diffusers_dp", "version": __version__},
            "versions": library_versions(),
            "settings": self.settings,
            "image_sets": {name: _facts(images) for name, images in self.image_sets.items()},
            "release": self.release,
            "warnings": self.warnings,
            "measurements": [found.as_json() for found in self.measurements],
            "confusion": {
                name: {
                    "rows": "true class, real test images",
                    "counts": counts,
                    "per_class": class_rates(counts, self.class_names),
                }
                for name, counts in self.confusion.items()
            },
        }


def library_versions() -> dict[str, str]:
    """Returns the versions of libraries that affect numbers."""
    return {name: version(name) for name in ("numpy", "scikit-learn", "scipy", "torch")}


def class_rates(counts: Sequence[Sequence[int]], class_names: Sequence[str]) -> list[dict[str, Any]]:
    """Computes accuracy (recall) and precision of each class; `None` if the divisor is 0.

    Args:
        counts (shape `[classes, classes]`): Confusion counts; rows are true classes.
        class_names (sequence of `str`): Names of the classes.
    """
    matrix = np.asarray(counts)
    right, real, predicted = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    return [
        {
            "class": name,
            "real_test_images": int(real[i]),
            "accuracy": int(right[i]) / int(real[i]) if real[i] else None,
            "precision": int(right[i]) / int(predicted[i]) if predicted[i] else None,
        }
        for i, name in enumerate(class_names)
    ]


def release_facts(folder: Path) -> dict[str, Any] | None:
    """Returns the guarantee in the receipt of `folder` and the receipt's hash, or `None` without a receipt.

    The folder is a verified release, or the output of `diffusers-dp sample`, which contains a copy of the receipt.
    """
    path = folder / RECEIPT_NAME
    try:
        receipt = read_receipt(folder)
        return {
            "epsilon": receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"],
            "delta": receipt["delta"],
            "accountant": receipt["accountant"],
            "num_images": receipt["public_facts"].get("num_images"),
            "unit_of_privacy": receipt["unit_of_privacy"],
            "held_out": receipt["public_facts"].get("held_out"),
            "trained_on": {
                name: receipt["public_facts"].get(name) for name in ("image_shape", "class_names", "grey_range")
            }
            | receipt["public_facts"].get("reading", {}),
            "status": receipt["status"],
            "method": receipt["method"]["name"],
            "paid_for": [Measurement(**found).as_json() for found in receipt.get("evaluation", [])],
            "receipt_sha256": receipt_digest(path),
        }
    except (Unreadable, OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _facts(images: ImageSet) -> dict[str, Any]:
    channels, height, width = images.images.shape[1:]
    names = None if images.class_names is None else list(images.class_names)
    return {
        **images.origin,
        "num_images": len(images),
        "image_shape": [channels, height, width],
        "class_names": names,
        "images_per_class": None
        if images.labels is None or names is None
        else np.bincount(images.labels, minlength=len(names)).tolist(),
    }
