# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Checks of a stranger's model, before any class is looked up or built.

A model index may name any installed class, and a small configuration may describe a network of any size. This module
allows the classes of this library's models, and sizes that fit the weights. Reading loads no torch; building does.
"""

import contextlib
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from ..errors import IntegrityError, first_line
from ..files.untrusted_files import read_bounded, regular_size
from ..files.untrusted_values import leaves_of
from .allow_list import COMPONENT_FILES


if TYPE_CHECKING:
    from diffusers import UNet2DModel

#: All classes of Diffusers that a release may name. `DPImagePipeline` accepts no other scheduler.
UNET, EDM_SCHEDULERS, DDIM = "UNet2DModel", ("EDMDPMSolverMultistepScheduler", "EDMEulerScheduler"), "DDIMScheduler"
SCHEDULERS = (*EDM_SCHEDULERS, DDIM)
INDEX_KEYS = {"unet", "scheduler", "id2label", "patch_size", "privacy", "formulation"}
SCHEDULER_CONFIG, UNET_CONFIG, WEIGHTS = COMPONENT_FILES
LOADED_FILES = ("model_index.json", *COMPONENT_FILES)
FLOATS = ("F64", "F32", "F16", "BF16")
LARGEST_SIDE, MOST_CLASSES = 4_096, 100_000
MOST_JSON, MOST_HEADER, MOST_TENSORS, MOST_NOISE_LEVELS = 5_000_000, 5_000_000, 10_000, 100_000
LONGEST_NAME = 1_000
#: Numbers of a latent pipeline that no weight shows are at most that: classes, positions, tokens of known models.
LARGEST_NUMBER = 2**17
#: Keys that make Diffusers or transformers import other packages, or fetch code.
CODE = ("quantization_config", "auto_map", "attn_implementation", "_attn_implementation",
        "_attn_implementation_internal")  # fmt: skip
NOT_OURS = "it holds no model of this library"
#: Errors of reading, building or trying a stranger's configuration, without those of too little memory.
WRONG = (
    OSError, ValueError, TypeError, LookupError, AttributeError, NameError, ArithmeticError, RuntimeError,
    AssertionError, ImportError, SafetensorError,
)  # fmt: skip


class WrongModel(Exception):
    """A model is refused; the message is one clause with the reason."""


@contextlib.contextmanager
def refused(name: str) -> Iterator[None]:
    """What a stranger's model is refused for in here becomes an `IntegrityError` that names the model."""
    try:
        yield
    except WrongModel as error:
        raise IntegrityError(f"'{name}' is not opened: {error}.") from None
    except WRONG as error:
        raise IntegrityError(f"'{name}' is not opened: it cannot draw ({first_line(error)}).") from None


@dataclass(frozen=True)
class Components:
    """
    Args:
        class_names (tuple of `str`, *optional*): Class names by id, with the id for a missing name; `None` for a model
            without classes.
        unet_config (`dict`): Configuration of the `UNet2DModel`.
        scheduler (`str`): Class of the scheduler, one of `SCHEDULERS`.
        scheduler_config (`dict`): Configuration of the scheduler.
        shapes (`dict`): Shapes of the tensors of the weights, by name.
    """

    class_names: tuple[str, ...] | None
    unet_config: dict[str, Any]
    scheduler: str
    scheduler_config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]


def check_model(components: Components) -> None:
    """Builds the model on the meta device, compares the shapes of its weights, and draws with shapes only.

    Raises:
        WrongModel: The configuration does not describe the network of the weights, or that network cannot draw. Other
            errors are in `WRONG`.
    """
    import diffusers
    import torch

    unet = empty_unet(components.unet_config, components.shapes).eval()
    if {key: tuple(tensor.shape) for key, tensor in unet.state_dict().items()} != components.shapes:
        raise WrongModel(f"its weights are not those that {UNET_CONFIG} describes")
    side = unet.config.sample_size
    sides = (side, side) if isinstance(side, int) else side
    image = torch.empty(1, unet.config.in_channels, *sides, device="meta")
    labels = None if components.class_names is None else torch.empty(1, dtype=torch.int64, device="meta")
    with torch.no_grad():
        drawn = unet(image, torch.empty((), device="meta"), class_labels=labels).sample
    if drawn.shape != image.shape:
        raise WrongModel("its network makes images of another shape than it takes")
    try_scheduler(getattr(diffusers, components.scheduler).from_config(components.scheduler_config))


def try_scheduler(scheduler: Any) -> None:
    """Draws a tiny image of ones. Raises `WrongModel`, or one of `WRONG`, where the scheduler cannot."""
    import torch

    scheduler.set_timesteps(min(2, scheduler.config.num_train_timesteps))
    sample = torch.ones(1, 1, 2, 2) * scheduler.init_noise_sigma
    for step in scheduler.timesteps:
        output = scheduler.scale_model_input(sample, step)
        sample = scheduler.step(output, step, sample).prev_sample
    if not torch.isfinite(sample).all():
        raise WrongModel("the noise levels of its scheduler are no numbers")


def empty_unet(config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> "UNet2DModel":
    """Calls `build_empty` for a `UNet2DModel`. Raises `WrongModel`."""
    from diffusers import UNet2DModel

    arguments = {key: value for key, value in config.items() if not key.startswith("_")}
    return build_empty(lambda: UNet2DModel(**arguments), config, shapes, most=0)


def build_empty(
    build: Callable[[], Any], config: dict[str, Any], shapes: dict[str, tuple[int, ...]], most: int = LARGEST_NUMBER
) -> Any:
    """Builds a network on the meta device, without memory. A configuration of a few bytes may describe any number of
    weights: its numbers are at most as large as the widest dimension of the weights, and building ends with them.

    Args:
        build (`Callable`): Builds the network.
        config (`dict`): Configuration that it reads.
        shapes (`dict`): Shapes of the tensors of its weights, by name.
        most (`int`): Largest number in the configuration, where no weight is as wide.

    Raises:
        WrongModel: The configuration describes no network, or more than its weights, or names code.
    """
    import torch
    from huggingface_hub.errors import StrictDataclassError

    for key in CODE:
        if config.get(key) is not None:
            raise WrongModel(f"{key} in its configuration asks for code or packages")
    most = max([most, *(side for shape in shapes.values() for side in shape)])
    refuse_large_numbers(config, most, "in its configuration", sample_size=LARGEST_SIDE)
    try:
        with torch.device("meta"), bounded(len(shapes), sum(map(math.prod, shapes.values()))):
            return build()
    except (*WRONG, StrictDataclassError) as error:
        raise WrongModel(f"its configuration describes no model: {first_line(error)}") from None


@contextlib.contextmanager
def bounded(tensors: int, numbers: int) -> Iterator[None]:
    """Building a network in here ends as soon as it has more parameters, or many more modules, than there are weights.
    Raises `WrongModel`."""
    from torch.nn.modules import module

    seen: dict[int, Any] = {}  # each parameter once, though it may have several names
    found = {"modules": 0, "numbers": 0}

    def note_parameter(_: Any, __: str, parameter: Any) -> None:
        if parameter is None or id(parameter) in seen:
            return
        seen[id(parameter)] = parameter
        found["numbers"] += parameter.numel()
        # Twice: a file may lack some, and whoever loads it says which.
        if len(seen) > 2 * tensors + 16 or found["numbers"] > 2 * numbers:
            raise WrongModel("its configuration describes more weights than there are")

    def note_module(*_: Any) -> None:
        found["modules"] += 1
        if found["modules"] > 20 * tensors + 1_000:
            raise WrongModel("its configuration describes more layers than there are weights")

    with contextlib.ExitStack() as hooks:
        hooks.callback(module.register_module_parameter_registration_hook(note_parameter).remove)
        hooks.callback(module.register_module_module_registration_hook(note_module).remove)
        yield


def check_components(folder: Path, largest_side: int = LARGEST_SIDE, most_classes: int = MOST_CLASSES) -> Components:
    """Reads index, configurations and the header of the weights, without importing or building anything.

    Args:
        folder (`Path`): Folder of a pipeline.
        largest_side (`int`): Maximum side of an image in pixels.
        most_classes (`int`): Maximum number of classes, because each gets a name.

    Raises:
        WrongModel: The model names another class, a size that does not fit its weights, or a value that is not a
            number.
    """
    index, config, schedule = (
        read_json(folder / file) for file in ("model_index.json", UNET_CONFIG, SCHEDULER_CONFIG)
    )
    keys = {key for key in index if not key.startswith("_")}
    kind = component(index, "scheduler")
    if (
        index.get("_class_name") != "DPImagePipeline"
        or not {"unet", "scheduler"} <= keys <= INDEX_KEYS
        or component(index, "unet") != UNET or kind not in SCHEDULERS
        or not all(isinstance(index.get(key), dict | None) for key in ("id2label", "privacy"))
    ):  # fmt: skip
        raise WrongModel(NOT_OURS)
    check_class_name(config, (UNET,), UNET_CONFIG)
    check_class_name(schedule, SCHEDULERS, SCHEDULER_CONFIG)
    side, rows, patch = config.get("sample_size"), config.get("num_class_embeds"), index.get("patch_size", 1)
    steps = "one_step" if schedule.get("num_train_timesteps") == 1 else "ddpm"
    formulation = "edm" if kind in EDM_SCHEDULERS else steps
    if index.get("formulation", formulation) != formulation or (kind == DDIM and "sigma_data" in schedule):
        raise WrongModel("its scheduler is not that of what its network was trained for")
    sides = side if isinstance(side, list) and len(side) == 2 else [side]
    channels = config.get("in_channels", 3)
    if not all(whole(value) for value in (*sides, patch, channels)) or not (rows is None or whole(rows, 2)):
        raise WrongModel(NOT_OURS)
    if max(sides) * patch > largest_side:
        raise WrongModel(f"its images have {max(sides) * patch} pixels a side, and {largest_side} is the most here")
    if rows is not None and rows - 1 > most_classes:
        raise WrongModel(f"it has {rows - 1:,} classes, and {most_classes:,} is the most here")
    if channels % patch**2 or channels // patch**2 not in (1, 2, 3, 4):
        raise WrongModel(f"its network has {channels} channels, which are no image in patches of {patch}")
    names = None if rows is None else class_names_of(index.get("id2label") or {}, rows - 1)
    check_schedule(schedule)
    return Components(names, config, kind, schedule, read_shapes(folder / WEIGHTS))


def component(index: dict[str, Any], name: str) -> str:
    """Returns the class name of a pipeline's component, if it is a class of Diffusers."""
    entry = index.get(name)
    if isinstance(entry, list) and len(entry) == 2 and entry[0] == "diffusers" and isinstance(entry[1], str):
        return entry[1]
    return "none of Diffusers"


def check_class_name(config: dict[str, Any], known: tuple[str, ...], file: str) -> None:
    """Checks the class that a configuration names, which Diffusers looks up in addition to that of the index. Raises
    `WrongModel`."""
    if config.get("_class_name", known[0]) not in known:
        raise WrongModel(f"{file} names another class than {' or '.join(known)}")


def refuse_large_numbers(config: dict[str, Any], most: int, place: str, **others: int) -> None:
    """Checks that each number of a configuration is finite and small enough to compute with.

    Args:
        config (`dict`): Configuration; its values may be nested.
        most (`int`): Largest absolute value.
        place (`str`): Where the configuration is, for the message.
        others (`int`): Largest absolute values of some keys.

    Raises:
        WrongModel: A number is larger, or not a number.
    """
    for key, value in config.items():
        largest = others.get(key, most)
        for number in leaves_of(value):
            if isinstance(number, int | float) and not abs(number) <= largest:  # NaN is not
                raise WrongModel(f"{key} {place} is {str(number)[:20]}, and there is room for {largest:,}")


def check_schedule(config: dict[str, Any]) -> None:
    """Checks the numbers of a scheduler's configuration. Raises `WrongModel`."""
    refuse_large_numbers(config, MOST_NOISE_LEVELS, "of its scheduler")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Diffusers and transformers print no warnings and no bars in here: what is wrong with a model is said once."""
    from diffusers.utils import logging
    from transformers.utils import logging as transformers_logging

    with contextlib.ExitStack() as before:
        for each in (logging, transformers_logging):
            before.callback(each.set_verbosity, each.get_verbosity())
            before.callback(each.enable_progress_bar)
            each.set_verbosity_error()
            each.disable_progress_bar()
        yield


def load_whole(kind: Any, folder: Path) -> Any:
    """Loads a model of Diffusers from safetensors.

    Args:
        kind (`type`): Its class.
        folder (`Path`): Folder with its configuration and its weights alone, see `these_alone`.

    Raises:
        WrongModel: Weights are missing, superfluous, or no numbers. Other errors are in `WRONG`.
    """
    model, report = kind.from_pretrained(
        folder, use_safetensors=True, low_cpu_mem_usage=False, output_loading_info=True
    )
    for found, what in (("missing_keys", "lacks"), ("unexpected_keys", "has, beyond its configuration,")):
        if keys := sorted(report.get(found, ())):
            raise WrongModel(f"it {what} weights ({len(keys)}, such as {keys[0]})")
    for key, tensor in model.state_dict().items():
        if not tensor.isfinite().all():
            raise WrongModel(f"it has weights that are no numbers ({key})")
    return model


@contextlib.contextmanager
def these_alone(folder: Path, files: Sequence[str]) -> Iterator[Path]:
    """A temporary folder of links to these files. Diffusers and transformers read what they find: an index of shards
    or an adapter beside the weights would replace them.

    Args:
        folder (`Path`): Where the files are.
        files (sequence of `str`): Their names below it.
    """
    with tempfile.TemporaryDirectory() as temporary:
        for name in files:
            link = Path(temporary, name)
            link.parent.mkdir(exist_ok=True)
            link.symlink_to((folder / name).resolve())
        yield Path(temporary)


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a regular file of bounded size. Raises `WrongModel`."""
    try:
        content = json.loads(read_bounded(path, MOST_JSON))
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise WrongModel(f"it has no {path.name} that can be read")
    return content


def read_shapes(path: Path, kinds: Sequence[str] = FLOATS) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a safetensors file, from its header alone. They fill the file, so that its size
    bounds them.

    Args:
        path (`Path`): Path of the file.
        kinds (sequence of `str`): Types that its tensors may have.

    Raises:
        WrongModel: The file is not a safetensors file, or has too many tensors.
    """
    try:
        regular_size(path)  # opening a pipe waits
        with open(path, "rb") as file:
            if int.from_bytes(file.read(8), "little") > MOST_HEADER:
                raise ValueError
        with safe_open(path, "numpy") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
        shapes = {name: tuple(each.get_shape()) for name, each in slices.items()}
        if any(0 in shape for shape in shapes.values()) or not all(
            each.get_dtype() in kinds for each in slices.values()
        ):
            raise ValueError
    except (OSError, ValueError, SafetensorError):
        raise WrongModel(f"it has no {path.name} that can be read") from None
    if len(shapes) > MOST_TENSORS:
        raise WrongModel(f"its weights are {len(shapes):,} tensors, and {MOST_TENSORS:,} is the most")
    return shapes


def class_names_of(id2label: dict[str, Any], count: int) -> tuple[str, ...]:
    """Checks class names by id, with the id for a missing name. Raises `WrongModel`."""
    numbers = {str(number) for number in range(count)}
    if not set(id2label) <= numbers:
        raise WrongModel("its id2label names classes that it does not have")
    names = tuple(id2label.get(str(number), str(number)) for number in range(count))
    for name in names:  # JSON can contain halves of characters
        if not isinstance(name, str) or len(name) > LONGEST_NAME or name != name.encode(errors="ignore").decode():
            raise WrongModel("its id2label holds a name that is no text")
    return names


def whole(value: Any, least: int = 1) -> bool:
    """Tells whether a value is an integer of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
