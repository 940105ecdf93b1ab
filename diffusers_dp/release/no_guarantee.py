# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The output of a run without any guarantee: a pipeline and a card, both marked. No torch.

The folder is not a release, and functions that expect a release refuse it.
"""

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..files.journal import written_whole
from ..methods.method import Method
from ..verify import without_guarantee
from ..words import CARD_NAME, NO_GUARANTEE, WITHOUT


if TYPE_CHECKING:
    from ..pipelines import DPImagePipeline

FOLDER = "no_guarantee"
#: Privacy statement in the model's configuration.
PRIVACY = {"status": NO_GUARANTEE, "epsilon": "infinite", "statement": WITHOUT}


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


def refuse_without_guarantee(folder: str | Path, flag: str, remedy: str) -> None:
    """Refuses the output of a run without guarantee, for functions that load pipelines without a receipt.

    Raises:
        UsageError: The folder contains such output.
    """
    if without_guarantee(Path(folder)):
        raise UsageError(f"{flag} {folder} was {WITHOUT}; {remedy}.")
