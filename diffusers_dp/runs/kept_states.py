# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The states that a run kept on its way to the release, in its private folder."""

from pathlib import Path
from typing import Any

from ..errors import IntegrityError, UsageError
from ..evaluation.training_curve import EarlierState
from .checkpoints import checkpoints, load_averaged_weights


WARMED_UP_PREFIX = "warmed_up_"


def kept_states(release: str | Path) -> list[EarlierState]:
    """What lies in `private/` beside a release: pipelines after each stage of the warm-up, then checkpoints.

    Args:
        release (`str` or `Path`): `RUN/release`.

    Raises:
        UsageError: Nothing was kept, or the release is not where a run put it.
    """
    private = Path(release).resolve().parent / "private"
    found = _warmed_up(private)
    found += [EarlierState(f"step {step} of DP-SGD", step, folder) for step, folder in checkpoints(private).items()]
    if not found:
        raise UsageError(
            f"--training_curve found no checkpoint and no warmed-up model in {private}: give the release inside of "
            "the folder of its run, or leave --training_curve out."
        )
    return found


def _warmed_up(private: Path) -> list[EarlierState]:
    from ..schedulers import FrequencyWarmupScheduler

    try:
        stages = FrequencyWarmupScheduler.from_pretrained(private / "warmup_scheduler").stages
    except OSError:  # a run without a warm-up, or none at all
        return []
    return [
        EarlierState(f"warm-up ({stage.name})", 0 if stage is stages[-1] else None, folder)
        for stage in stages
        if (folder := private / f"{WARMED_UP_PREFIX}{stage.name}").is_dir()
    ]


def load_state(state: EarlierState, unet: Any) -> None:
    """Puts the averaged weights of a state into a `UNet2DModel` of the run.

    Raises:
        IntegrityError: A file is damaged or missing.
        UsageError: The weights are of another model.
    """
    if not state.folder.name.startswith(WARMED_UP_PREFIX):
        load_averaged_weights(state.folder, unet)
        return
    from diffusers import UNet2DModel
    from safetensors import SafetensorError

    try:
        weights = UNet2DModel.from_pretrained(state.folder / "unet", use_safetensors=True).state_dict()
    except (OSError, ValueError, SafetensorError) as error:
        raise IntegrityError(f"{state.folder} is damaged ({type(error).__name__}).") from None
    try:
        unet.load_state_dict(weights)
    except RuntimeError:
        raise UsageError(
            f"{state.folder} is a model of another shape than the release: it is of another run."
        ) from None
