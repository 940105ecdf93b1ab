# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Models that are not releases, and say so in their configuration, which their copies keep. No torch.

Functions that expect a release refuse both kinds, and no run starts from one as from a public model:

- the output of a run without any guarantee, in `no_guarantee/`;
- models that noisy answers taught before DP-SGD, in the run's private folder. Only that run's ledger records their
  share of the budget. A model that public images taught (`private/pretrained`) is a public start, unless a noisy
  answer chose these images or they are a release.
"""

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from ..accounting.ledger import PrivacyLedger
from ..errors import UsageError
from ..files.journal import written_whole
from ..methods.method import Method
from ..verify import CARD_NAME, NO_GUARANTEE, WITHOUT
from .allow_list import read_index


if TYPE_CHECKING:
    from ..models.feature_generator import FeatureGenerator
    from ..pipelines import DPImagePipeline

FOLDER = "no_guarantee"
LEARNED = "learned from noisy answers about sensitive images, and no receipt says what that cost"
#: Privacy statements in the configuration of the two kinds, and what each is called in a refusal.
PRIVACY = {"status": NO_GUARANTEE, "epsilon": "infinite", "statement": WITHOUT}
UNRELEASED_PRIVACY = {"status": "unreleased", "statement": LEARNED}
MARKED = {NO_GUARANTEE: f"was {WITHOUT}", "unreleased": LEARNED}


def save_without_guarantee(output_dir: str | Path, pipeline: "DPImagePipeline", method: Method) -> Path:
    """Writes `output_dir/no_guarantee/`, mode 700: the pipeline and a card, both marked. The folder is complete or
    absent, like a release, and replaces an earlier one.

    Args:
        output_dir (`str` or `Path`): Folder of the run.
        pipeline (`DPImagePipeline`): Pipeline with the final (averaged) weights. The statement is added to it and to
            its copies.
        method (`Method`): Method from the registry.

    Returns:
        `Path`: Written folder.
    """
    pipeline.register_to_config(privacy=PRIVACY)
    with written_whole(Path(output_dir, FOLDER), mode=0o700) as folder:
        pipeline.save_pretrained(folder)
        card = files("diffusers_dp").joinpath("templates", "no_guarantee.md").read_text(encoding="utf-8")
        (folder / CARD_NAME).write_text(card.format(without=WITHOUT, title=method.title), encoding="utf-8")
    return Path(output_dir, FOLDER)


def save_unreleased(model: "FeatureGenerator", folder: Path, ledger: PrivacyLedger) -> None:
    """Saves a model, marked in its configuration, which its copies keep.

    Args:
        model (`FeatureGenerator`): Model; the statement is added to it.
        folder (`Path`): Folder within the run's private folder.
        ledger (`PrivacyLedger`): Ledger of the run; without guarantee, the statement says so.
    """
    model.register_to_config(privacy=UNRELEASED_PRIVACY if ledger.has_guarantee else PRIVACY)
    model.save_pretrained(folder)


def refuse_marked(folder: str | Path, named: str, remedy: str) -> None:
    """Refuses such a model, for functions that load pipelines without a receipt.

    Args:
        folder (`str` or `Path`): Folder of the pipeline.
        named (`str`): The flag and its value.
        remedy (`str`): What to do instead.

    Raises:
        UsageError: The pipeline is marked.
    """
    privacy = read_index(folder).get("privacy")
    mark = MARKED.get(str(privacy.get("status"))) if isinstance(privacy, dict) else None
    if mark is not None:
        raise UsageError(f"{named} {mark}; {remedy}.")
