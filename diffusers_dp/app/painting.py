# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The process of a model: loads it, then draws orders until the other end of the pipe closes.

Importing this module imports torch, which the fork server does once for all models.
"""

import contextlib
import sys
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import psutil
import torch
from PIL import Image

from ..distributed.interruption import is_memory_error
from ..distributed.memory import free_bytes
from ..errors import DiffusersDPError, IntegrityError, UsageError
from ..release.image_tables import to_png
from ..release.loading import AnyRelease, ImagesRelease, open_release
from ..sampling.drawing import Drawing, draw, pixels_of
from .drawing import Step


SHARE_OF_FREE_MEMORY = 0.8


def serve(pipe: Connection, released: AnyRelease, require_dp: bool, memory: int | None) -> None:
    """Answers `None` when the release is loaded, then each drawing with its steps and the PNG files. Errors are sent,
    too. Nothing is fetched here: the page did that, by its rules.

    Args:
        pipe (`Connection`): Pipe for drawings.
        released (`AnyRelease`): Release as the page opened it; it is verified again.
        require_dp (`bool`): See `load_verified`.
        memory (`int`, *optional*): Additional bytes for this process; defaults to most of the free memory.
    """
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    with contextlib.suppress(EOFError, OSError):  # the page has ended
        try:
            loaded = _load(released, require_dp, memory)
        except DiffusersDPError as error:
            pipe.send(error)
            return
        pipe.send(None)
        while True:
            pipe.send(_answer(pipe, loaded, released.name, pipe.recv()))


def _load(released: AnyRelease, require_dp: bool, memory: int | None) -> AnyRelease:
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        _limit_memory(memory)
    name, folder, base = f"'{released.name}'", str(released.folder), released.base
    try:
        found = open_release(folder, require_dp, base=base)
        if isinstance(found, ImagesRelease):
            found.images  # noqa: B018
        else:
            found.pipeline.to("cuda" if on_gpu else "cpu").unet.eval()
        return found
    except DiffusersDPError as error:  # visitors must not see paths of this machine
        said = str(error).replace(f"'{folder}'", name).replace(folder, name)
        raise type(error)(said if base is None else said.replace(str(base), f"the base of {name}")) from None
    except Exception as error:  # a stranger's files, which nothing vouches for beyond their hashes
        raise IntegrityError(f"{name} cannot be loaded: {_reason(error)}.") from None


def _limit_memory(memory: int | None) -> None:
    """Limits private memory on Linux; elsewhere the system decides."""
    if not sys.platform.startswith("linux"):
        return
    import resource

    limit = memory if memory is not None else int(free_bytes(torch.device("cpu")) * SHARE_OF_FREE_MEMORY)
    limit += psutil.Process().memory_info().data
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    with contextlib.suppress(OSError):  # so that the kernel kills this process before the page's
        Path("/proc/self/oom_score_adj").write_text("1000")


def _answer(pipe: Connection, loaded: AnyRelease, name: str, drawing: Drawing) -> Any:
    """Returns the PNG files of a drawing and their soft labels, or an error."""
    try:
        pictures, soft = paint(loaded, drawing, callback_on_step_end=partial(_on_step_end, pipe, drawing))
        return tuple(map(to_png, pictures)), soft
    except ValueError as error:  # a message of the pipeline about an unsupported order
        return UsageError(str(error).replace("`", ""))
    except Exception as error:
        return UsageError(f"'{name}' cannot draw this: {_reason(error)}. Ask for fewer images, or another release.")


def paint(loaded: AnyRelease, drawing: Drawing, **more: Any) -> tuple[list[Image.Image], np.ndarray | None]:
    """Images, and the soft labels of a judge that can be opened here, float32 `[n, classes]`; `more` as of `draw`."""
    if isinstance(loaded, ImagesRelease):
        return loaded.pick(drawing.class_labels, drawing.num_images, drawing.seed)
    pictures, judge = draw(loaded.pipeline, drawing, **more), None
    with contextlib.suppress(UsageError):  # its network is not installed
        judge = loaded.judge
    return pictures, None if judge is None else judge.label(torch.from_numpy(pixels_of(pictures))).numpy()


def _on_step_end(
    pipe: Connection, drawing: Drawing, _: Any, step: int, timestep: Any, tensors: dict[str, Any]
) -> dict[str, Any]:
    pipe.send(Step(step + 1, drawing.num_inference_steps))
    return tensors


def _reason(error: Exception) -> str:
    if is_memory_error(error):
        return "it takes more memory than there is for it"
    return f"{type(error).__name__} in its files"
