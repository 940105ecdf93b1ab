"""What survives a crash: checkpoints.

Everything that must be whole or absent is written to a temporary sibling, synced, and renamed. Tensors are safetensors
and the rest is JSON; nothing is pickled. **No state of a random generator is ever written**: noise that is drawn twice
can be subtracted, so a run that resumes draws from fresh entropy (Poisson sampling has no memory, hence nothing to
restore). The ledger is not restored either, for steps lost in a crash stay spent; a checkpoint only remembers how long
the ledger was.
"""

import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from diffusers.training_utils import EMAModel

from ..accounting.ledger import PrivacyLedger
from ..distributed.processes import Processes
from ..errors import IntegrityError, UsageError
from ..files.sealed_folder import open_sealed, seal


logger = logging.getLogger(__name__)

CHECKPOINT_PREFIX = "checkpoint-"


def position_of(ledger: PrivacyLedger) -> dict[str, int]:
    """How long a ledger is: `{"rows": ..., "steps_reserved": ...}`."""
    rows = ledger.rows
    return {"rows": len(rows), "steps_reserved": sum(row["steps_reserved"] for row in rows)}


def refuse_shorter(ledger_position: dict[str, int], saved: dict[str, int], folder: Path) -> None:
    """Raises `IntegrityError` where the ledger lacks something that it held when `folder` was written."""
    for name, number in saved.items():
        if ledger_position[name] < number:
            raise IntegrityError(
                f"The ledger is shorter than {folder} says ({name}: {ledger_position[name]} < {number}): put back the "
                "whole ledger.jsonl of this run, for what was spent stays spent."
            )


def save_checkpoint(
    folder: str | Path, step: int, *, unet: torch.nn.Module, ema: EMAModel, optimizer: torch.optim.Optimizer,
    ledger_position: dict[str, int], keep: int = 2,
) -> Path:  # fmt: skip
    """
    Write `folder/checkpoint-{step}`, atomically, then remove what is no longer needed: checkpoints of later steps (the
    run went back behind them) and all but the last `keep`.

    Args:
        folder (`str` or `Path`): The private folder of the run.
        step (`int`): Number of training steps taken.
        unet, ema, optimizer: What is in training. The optimiser is Adam, or another one whose state is tensors only.
        ledger_position (`dict[str, int]`): How long the ledger is, `{"rows": ..., "steps_reserved": ...}`.
        keep (`int`, defaults to 2): Number of checkpoints that stay, at least 1.

    Returns:
        `Path`: The checkpoint.
    """
    folder = Path(folder)
    ema_state, optimizer_state = ema.state_dict(), optimizer.state_dict()
    shadows = {str(index): shadow for index, shadow in enumerate(ema_state.pop("shadow_params"))}
    moments = {f"{index}.{name}": m for index, parts in optimizer_state["state"].items() for name, m in parts.items()}
    tensors = {"unet": unet.state_dict(), "ema": shadows, "optimizer": moments}
    state = {"step": step, "ledger_position": ledger_position, "ema": ema_state}
    state["optimizer"] = optimizer_state["param_groups"]
    checkpoint = folder / f"{CHECKPOINT_PREFIX}{step}"
    _clear_leftovers(folder)
    seal(checkpoint, tensors, state, replace=True)
    _clear_leftovers(folder)
    there = checkpoints(folder)
    for needless in set(there) - set([past for past in there if past <= step][-keep:]):
        shutil.rmtree(there[needless])
    return checkpoint


def find_checkpoint(folder: str | Path, which: str | None) -> Path | None:
    """
    Args:
        folder (`str` or `Path`): The private folder of the run.
        which (`str`): `--resume_from_checkpoint`: `"latest"` (a damaged one is passed over with a warning), or the
            name or path of a checkpoint in `folder`; `None` for a run that is not resumed.

    Returns:
        `Path`, *optional*: The checkpoint, verified; `None` if there is none yet and `which` is `"latest"`, or `None`.

    Raises:
        UsageError: The named checkpoint does not exist or belongs to another run.
        IntegrityError: The named checkpoint is damaged, or all are.
    """
    folder = Path(folder)
    if which is None:
        return None
    if which != "latest":
        checkpoint = folder / Path(which).name
        elsewhere = len(Path(which).parts) > 1 and Path(which).resolve() != checkpoint.resolve()
        if elsewhere or not checkpoint.is_dir():
            raise UsageError(
                f"--resume_from_checkpoint {which} is no checkpoint of this run: give 'latest', or a name in {folder}."
            )
        open_sealed(checkpoint)
        return checkpoint
    damage = None
    for checkpoint in reversed(checkpoints(folder).values()):
        try:
            open_sealed(checkpoint)
            return checkpoint
        except IntegrityError as error:
            logger.warning("%s The checkpoint before it is tried.", error)
            damage = error
    if damage is not None:
        raise damage
    return None


def checkpoints(folder: str | Path) -> dict[int, Path]:
    """The checkpoints in the private folder of a run, by training step, ascending; they are not looked into."""
    names = [path.name.removeprefix(CHECKPOINT_PREFIX) for path in Path(folder).glob(f"{CHECKPOINT_PREFIX}*")]
    steps = sorted(int(name) for name in names if name.isascii() and name.isdigit())
    return {step: Path(folder) / f"{CHECKPOINT_PREFIX}{step}" for step in steps}


def load_checkpoint(
    checkpoint: str | Path, *, unet: torch.nn.Module, ema: EMAModel, optimizer: torch.optim.Optimizer,
    ledger_position: dict[str, int], processes: Processes | None = None,
) -> dict[str, Any]:  # fmt: skip
    """
    Verify a checkpoint against its hashes and the ledger, then restore the model, its moving average and the optimiser
    in place. Nothing is changed unless everything fits.

    Args:
        checkpoint (`str` or `Path`): As returned by [`find_checkpoint`].
        unet, ema, optimizer: Built as for the run that saved them, on any device.
        ledger_position (`dict[str, int]`): How long the ledger is **now**: longer than the checkpoint says (steps lost
            in a crash stay spent) or as long, never shorter.
        processes (`Processes`, *optional*): Processes of the run; the first one reads and compares for all.

    Returns:
        `dict[str, Any]`: `step`, the saved `ledger_position`, and the scalars of `ema` and `optimizer`.

    Raises:
        IntegrityError: A file is damaged or missing (named), or the ledger is shorter than the checkpoint says.
        UsageError: The model has other weights.
    """
    processes = processes or Processes()
    state, tensors = processes.on_first(lambda: _open_checkpoint(Path(checkpoint), unet, ledger_position))
    unet.load_state_dict(tensors["unet"])
    ema.load_state_dict(state["ema"])
    for index, shadow in enumerate(ema.shadow_params):
        shadow.copy_(tensors["ema"][str(index)])
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for key, moment in tensors["optimizer"].items():
        parameter, name = key.split(".", 1)
        moments.setdefault(int(parameter), {})[name] = moment
    optimizer.load_state_dict({"state": moments, "param_groups": state["optimizer"]})
    return state


def _open_checkpoint(
    checkpoint: Path, unet: torch.nn.Module, ledger_position: dict[str, int]
) -> tuple[dict[str, Any], dict[str, dict[str, torch.Tensor]]]:
    state, tensors = open_sealed(checkpoint)
    refuse_shorter(ledger_position, state["ledger_position"], checkpoint)
    expected, found = ({name: w.shape for name, w in ws.items()} for ws in (unet.state_dict(), tensors["unet"]))
    if found != expected:
        raise UsageError(f"{checkpoint} was made by a model of another shape: resume with the flags of that run.")
    return state, tensors


def _clear_leftovers(folder: Path) -> None:
    """Remove what a crash in the middle of `save_checkpoint` leaves, and a checkpoint that was replaced."""
    for leftover in folder.glob(f".{CHECKPOINT_PREFIX}*"):
        shutil.rmtree(leftover)
