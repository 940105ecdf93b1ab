# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The states that a run kept on its way to the release, in its private folder, and images of them, which show the
progress of each stage.

All of them depend only on noisy answers and gradients that the run's ledger counts, so the release's guarantee covers
them, too. It does not cover measurements of them against real images, as for every number of an evaluation.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..data.decoding import decode_as_it_is
from ..distributed.worker_pool import WorkerPool
from ..errors import UsageError
from ..evaluation.images import Shape, fit_to_shape
from ..queries.perceptual import hash_weights
from ..sampling.shards import Drawer
from .checkpoints import checkpoints, load_averaged_weights
from .pretrained import load_saved


WARMED_UP_PREFIX = "warmed_up_"


@dataclass(frozen=True)
class EarlierState:
    """A saved state of the model.

    Args:
        name (`str`): Name for display.
        step (`int`, *optional*): Step of DP-SGD; 0 is its initial state, `None` an earlier state.
        folder (`Path`): Checkpoint, or pipeline saved after a stage of the warm-up.
    """

    name: str
    step: int | None
    folder: Path


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
        IntegrityError: A file is damaged or missing, or of another model.
        UsageError: A checkpoint is of another model.
    """
    if state.folder.name.startswith(WARMED_UP_PREFIX):
        load_saved(state.folder, unet)
    else:
        load_averaged_weights(state.folder, unet)


def curve_of(release: str | Path) -> Callable[..., Iterator[tuple[dict[str, Any], Callable[[], np.ndarray]]]]:
    """Returns `curve_points` of the states beside a release. Raises what `kept_states` raises."""
    return partial(curve_points, kept_states(release))


def curve_points(
    states: Sequence[EarlierState], drawer: Drawer, shape: Shape, most: int, pool: WorkerPool
) -> Iterator[tuple[dict[str, Any], Callable[[], np.ndarray]]]:
    """Loads the states one after the other in the place of the release's weights, whose images must have been drawn.

    Args:
        states (sequence of `EarlierState`): See `kept_states`.
        drawer (`Drawer`): Drawer of the release.
        shape (`tuple[int, int, int]`): Shape of the images, (C, H, W).
        most (`int`): Images of each state, at most.
        pool (`WorkerPool`): Processes that share the drawing.

    Yields:
        `tuple`: What determines the images (JSON values), and a function that draws them: uint8, `[n, C, H, W]`.
    """
    drawing = replace(drawer.drawing, num_images=min(most, drawer.drawing.num_images))
    unet = drawer.release.pipeline.unet
    for state in states:
        load_state(state, unet)
        facts = {"drawing": drawing.facts, "weights_sha256": hash_weights(unet)}
        work = StateImages(replace(drawer, drawing=drawing), state, shape)
        yield {"state": state.name, "dp_sgd_step": state.step, **facts}, partial(_images_of, work, pool)


@dataclass(frozen=True)
class StateImages:
    """Draws images of a state, whose weights it puts into the pipeline, also that of another process."""

    drawer: Drawer
    state: EarlierState
    shape: Shape

    def __call__(self, indices: range) -> np.ndarray:
        """Draws images, uint8, shape `[n, C, H, W]`."""
        load_state(self.state, self.drawer.release.pipeline.unet)
        arrays = [decode_as_it_is(image) for image in self.drawer.images(indices)]
        return np.stack([fit_to_shape(each, self.shape) for each in arrays if each is not None])


def _images_of(work: StateImages, pool: WorkerPool) -> np.ndarray:
    return np.concatenate(list(pool.map(work, work.drawer.drawing.parts())))
