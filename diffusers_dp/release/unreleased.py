# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a run's noisy answers taught a model before DP-SGD: it stays in the run's private folder, and says of itself
what it is. No torch.

It is no release: its share of the budget stands in that run's ledger alone. So it is no public model for another run
to begin with, as what public images taught is (`private/pretrained`), unless a noisy answer chose these or they are a
release.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..accounting.ledger import PrivacyLedger
from ..errors import UsageError
from .no_guarantee import PRIVACY


if TYPE_CHECKING:
    from ..models import FeatureGenerator
    from ..pipelines import DPImagePipeline

UNRELEASED, LEARNED = (
    "unreleased",
    "learned from noisy answers about sensitive images, and no receipt says what that cost",
)
#: What such a model says of itself.
UNRELEASED_PRIVACY = {"status": UNRELEASED, "statement": LEARNED}


def save_unreleased(model: "DPImagePipeline | FeatureGenerator", folder: Path, ledger: PrivacyLedger) -> None:
    """Saves a model, with what it is in its configuration, which its copies keep.

    Args:
        model (`DPImagePipeline` or `FeatureGenerator`): It carries the statement from here on.
        folder (`Path`): In the run's private folder.
        ledger (`PrivacyLedger`): Of the run: without guarantee, the statement says that.
    """
    model.register_to_config(privacy=UNRELEASED_PRIVACY if ledger.has_guarantee else PRIVACY)
    model.save_pretrained(folder)


def refuse_unreleased(index: dict[str, Any], name: str, flag: str, remedy: str) -> None:
    """For what takes models that are public.

    Args:
        index (`dict`): The pipeline's `model_index.json`.

    Raises:
        UsageError: It says of itself that it is not.
    """
    privacy = index.get("privacy")
    if isinstance(privacy, dict) and privacy.get("status") == UNRELEASED:
        raise UsageError(f"{flag} {name} {LEARNED}; {remedy}.")
