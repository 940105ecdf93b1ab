# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The process of a model: loads it, then draws orders until the other end of the pipe closes.

Importing this module imports torch, which the fork server does once for all models.
"""

import contextlib
import math
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import psutil
import torch

from ..distributed.memory import free_bytes, is_out_of_memory
from ..errors import DiffusersDPError, IntegrityError, UsageError
from ..pipelines import DPImagePipeline
from ..release.hub import load_verified
from ..sampling.seeds import generators
from .drawing import PREVIEWS, Order, Preview, preview_sheet, to_png


SHARE_OF_FREE_MEMORY = 0.8


class Stopped(Exception):
    """The visitor left."""


def serve(
    pipe: Connection, name: str, folder: Path, require_dp: bool, memory: int | None, base: Path | None = None
) -> None:
    """Answers `None` when the model is loaded, then each order with previews and the PNG files; what cannot be with an
    error. Nothing is fetched here: the page did that, by its rules.

    Args:
        pipe (`Connection`): Pipe for orders with labels; any message during a drawing stops it.
        name (`str`): Name of the model, for messages.
        folder (`Path`): Folder of its files.
        require_dp (`bool`): See `load_verified`.
        memory (`int`, *optional*): Bytes that this process may take beside what it has; unset: most of what is free.
        base (`Path`, *optional*): Folder of the base, where the release is adapters of one.
    """
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    with contextlib.suppress(EOFError, OSError):  # the page has ended
        try:
            pipeline = _load(name, folder, require_dp, memory, base)
        except DiffusersDPError as error:
            pipe.send(error)
            return
        pipe.send(None)
        while True:
            pipe.send(_answer(pipe, pipeline, name, *pipe.recv()))


@dataclass(frozen=True)
class Pictures:
    """A release of images, which are shown unchanged.

    Args:
        images (`datasets.Dataset`): Images from `load_verified`.
    """

    images: Any

    def pick(self, order: Order, labels: tuple[int, ...] | None) -> tuple[bytes, ...]:
        """Picks images of these classes in an order that depends on the seed; repeats one only after all others."""
        mixed = np.random.default_rng(order.seed).permutation(len(self.images))
        of_mixed = np.zeros(len(mixed), int) if labels is None else np.array(self.images["label"])[mixed]
        turns: Counter[int] = Counter()
        found = []
        for label in labels or [0] * order.count:
            places = mixed[of_mixed == label]
            if not len(places):
                raise ValueError("There is no image of that class.")
            found.append(to_png(self.images[int(places[turns[label] % len(places)])]["image"]))
            turns[label] += 1
        return tuple(found)


def _load(
    name: str, folder: Path, require_dp: bool, memory: int | None, base: Path | None
) -> DPImagePipeline | Pictures:
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        _limit_memory(memory)
    try:
        pipeline = load_verified(folder, require_dp=require_dp, base=base)
    except DiffusersDPError as error:  # a visitor sees no path of ours
        said = str(error).replace(f"'{folder}'", f"'{name}'").replace(str(folder), f"'{name}'")
        raise type(error)(said if base is None else said.replace(str(base), f"the base of '{name}'")) from None
    except Exception as error:  # a stranger's files, which nothing vouches for beyond their hashes
        raise IntegrityError(f"'{name}' cannot be loaded: {_reason(error)}.") from None
    if not isinstance(pipeline, DPImagePipeline):
        return Pictures(pipeline)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.unet.eval()
    return pipeline.to("cuda" if on_gpu else "cpu")


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


def _answer(
    pipe: Connection, pipeline: DPImagePipeline | Pictures, name: str, order: Order, labels: tuple[int, ...] | None
) -> Any:
    try:
        if isinstance(pipeline, Pictures):
            return pipeline.pick(order, labels)
        return draw(pipeline, order, labels, pipe.send, pipe.poll)
    except Stopped as stopped:
        pipe.recv()
        return stopped
    except ValueError as error:  # a message of the pipeline about an unsupported order
        return UsageError(str(error).replace("`", ""))
    except Exception as error:
        return UsageError(f"'{name}' cannot draw this: {_reason(error)}. Ask for fewer images, or another model.")


def _reason(error: Exception) -> str:
    if is_out_of_memory(error):
        return "it takes more memory than there is for it"
    return f"{type(error).__name__} in its files"


def draw(
    pipeline: DPImagePipeline,
    order: Order,
    labels: tuple[int, ...] | None,
    show: Callable[[Preview], None],
    is_stopped: Callable[[], bool],
) -> tuple[bytes, ...]:
    """Draws the PNG files of an order.

    Args:
        show: Callback for previews.
        is_stopped: Callback after each step that tells whether to stop.

    Raises:
        Stopped: `is_stopped` returned True.
    """
    every = math.ceil(order.steps / PREVIEWS)

    def on_step_end(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if is_stopped():
            raise Stopped
        if step % every == 0 and step + 1 < order.steps:
            show(Preview(step + 1, order.steps, to_png(preview_sheet(pipe, step, kwargs["latents"]))))
        return kwargs

    with torch.no_grad():
        images = pipeline(
            batch_size=order.count,
            class_labels=None if labels is None else list(labels),
            generator=generators(order.seed, range(order.count)),
            num_inference_steps=order.steps,
            solver=order.solver,
            callback_on_step_end=on_step_end,
        ).images
    return tuple(to_png(image) for image in images)
