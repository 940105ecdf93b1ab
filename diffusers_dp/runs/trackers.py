# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a run tells TensorBoard or Weights & Biases: step, learning rate, epsilon spent, and how fast the whole of it
was.

Losses, gradient norms and batch sizes depend on the images and are covered by no guarantee; they cannot be passed
here. How long a single step took would tell the size of its sample, so that nothing is sent between two checkpoints,
nor are the machine's own figures.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..accounting.ledger import PrivacyLedger
from ..errors import UsageError, first_line


if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker

PROJECT = "diffusers_dp"


class Tracker:
    """One of Accelerate's trackers, or none, behind the little that may be told. One that was not started is told
    nothing.

    Args:
        name (`str`, *optional*): `--report_to`.
        private (`Path`): The run's private folder, where local files go.
    """

    def __init__(self, name: str | None, private: Path):
        self._name, self._private = name, private
        self._clock: tuple[int, float] | None = None
        self._tracker: GeneralTracker | None = None
        self._facts: dict[str, Any] = {}  # of each call

    def start(self) -> None:
        """Of several processes the first one does (`Processes.on_first`), so that all hear where it cannot.

        Raises:
            UsageError: It cannot be started.
        """
        if self._name is None:
            return
        from accelerate.tracking import TensorBoardTracker, WandBTracker

        if self._name == "tensorboard":
            # One time for all: the time of each call stays here.
            self._facts = {"walltime": time.time()}
            self._tracker = TensorBoardTracker(PROJECT, self._private / "tensorboard")
        else:
            self._tracker = WandBTracker(PROJECT, dir=str(self._private), settings=_silent_wandb())
        try:
            self._tracker.start()
        except Exception as error:
            reason = first_line(error)
            raise UsageError(
                f"--report_to {self._name} could not be started ({reason}): set it up, or leave it out."
            ) from None

    def log(self, step: int, *, learning_rate: float, ledger: PrivacyLedger) -> None:
        """At a checkpoint: `step` steps of DP-SGD were taken."""
        if self._tracker is None:
            return
        if self._clock is None:
            self._clock = (step, time.perf_counter())
        self._tracker.log({"learning_rate": learning_rate, "epsilon": ledger.epsilon()}, step=step, **self._facts)

    def finish(self, step: int, *, expected_batch_size: float) -> None:
        """At the end: one figure for the speed of the whole run, by the expected batch and from the first checkpoint
        on."""
        if self._tracker is None:
            return
        if self._clock is not None and step > self._clock[0]:
            seconds = max(time.perf_counter() - self._clock[1], 1e-9)
            throughput = float(f"{expected_batch_size * (step - self._clock[0]) / seconds:.2g}")
            self._tracker.log({"expected_images_per_second": throughput}, step=step, **self._facts)
        self._tracker.finish()


def _silent_wandb() -> Any:
    """No console output, code, git state, or figures of the machine."""
    import wandb

    return wandb.Settings(
        console="off", save_code=False, disable_code=True, disable_git=True, x_disable_stats=True, x_disable_meta=True,
        x_disable_machine_info=True, x_save_requirements=False, disable_job_creation=True,
    )  # fmt: skip
