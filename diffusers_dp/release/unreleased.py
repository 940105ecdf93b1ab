# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Models that a run's noisy answers trained before DP-SGD: they stay in the run's private folder and are marked. No
torch.

Such a model is not a release: only that run's ledger records its share of the budget. Another run must not start from
it as from a public model. A model that public images taught (`private/pretrained`) may be such a start, unless a noisy
answer chose these images or they are a release.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..accounting.ledger import PrivacyLedger
from ..errors import UsageError
from .no_guarantee import PRIVACY


if TYPE_CHECKING:
    from ..models.feature_generator import FeatureGenerator
    from ..pipelines import DPImagePipeline

UNRELEASED, LEARNED = (
    "unreleased",
    "learned from noisy answers about sensitive images, and no receipt says what that cost",
)
#: What such a model says of itself.
UNRELEASED_PRIVACY = {"status": UNRELEASED, "statement": LEARNED}


def save_unreleased(model: "DPImagePipeline | FeatureGenerator", folder: Path, ledger: PrivacyLedger) -> None:
    """Saves a model, marked in its configuration, which its copies keep.

    Args:
        model (`DPImagePipeline` or `FeatureGenerator`): Model; the statement is added to it.
        folder (`Path`): Folder within the run's private folder.
        ledger (`PrivacyLedger`): Ledger of the run; without guarantee, the statement says so.
    """
    model.register_to_config(privacy=UNRELEASED_PRIVACY if ledger.has_guarantee else PRIVACY)
    model.save_pretrained(folder)


def refuse_unreleased(index: dict[str, Any], name: str, flag: str, remedy: str) -> None:
    """Refuses a marked model, for functions that accept public models.

    Args:
        index (`dict`): The pipeline's `model_index.json`.

    Raises:
        UsageError: The model is marked as not released.
    """
    privacy = index.get("privacy")
    if isinstance(privacy, dict) and privacy.get("status") == UNRELEASED:
        raise UsageError(f"{flag} {name} {LEARNED}; {remedy}.")
