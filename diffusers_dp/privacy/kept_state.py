# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Whether a model, a loss or features keep something of the images that they are shown: a running mean, a code book,
rows in a list. It would leave the door without noise, in a `state_dict()` for instance."""

import ctypes
import functools
import itertools
import mmap
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from ..accounting.ledger import PrivacyLedger
from ..distributed.processes import Processes
from ..errors import UsageError
from ..randomness.private_generator import PrivateGenerator


#: Types of values that are compared as they are.
PLAIN = frozenset({int, float, complex, bool, str, bytes, type(None), range, torch.dtype, torch.device})
CONTAINERS = frozenset({dict, OrderedDict, list, tuple, set, frozenset})
#: Packages whose globals and plain objects are not followed. Their modules (`nn.Module`) are.
TRUSTED = sys.stdlib_module_names | {
    "accelerate", "datasets", "diffusers", "dp_accounting", "huggingface_hub", "numpy", "peft", "PIL", "safetensors",
    "scipy", "sklearn", "torch", "torchvision", "tqdm", "transformers",
}  # fmt: skip
#: In the paths of installed packages, whose functions and classes are not followed; their objects are.
INSTALLED = ("site-packages", "dist-packages")


class Door:
    """A class whose objects hold private images; `KeptState` never looks into them."""


#: The library's own objects that draw or count.
OWN = (Door, PrivacyLedger, PrivateGenerator, Processes)
MOST_ITEMS = 10_000  # of a container of plain values that are named one by one
SMALL = 2**12  # bytes of a tensor that are hashed; of a larger one weighted sums of its words are compared
WIDTH = 2**10  # words of a row, for these sums
WEIGHT = 0x9E3779B97F4A7C15 - 2**64  # odd, so that no word is lost, and 2^64 over the golden ratio

#: Names, and values of any kind.
Named = list[tuple[str, Any]]
#: A named value, and where what is compared of it is added; returns what hangs from it.
Way = Callable[[str, Any, Named], Iterable[tuple[str, Any]]]
Storages = dict[int, tuple[str, torch.UntypedStorage]]
_ways: dict[type, Way] = {}


class KeptState:
    """
    All that can be reached from a model, a loss or features, as it is now.

    Plain values are compared, and the contents of tensors and arrays, however they were written: parameters, buffers
    and attributes of modules, and what hangs from them. Attributes, items, closures, defaults, bound objects, partials
    and hooks are followed. Globals, classes, slots, files and plain objects of well-known packages are not: that a
    function keeps nothing there is its author's word.

    Args:
        *roots (`Any`): A module, a function or any other object.
    """

    def __init__(self, *roots: Any):
        self.roots, self.before = roots, _contents(roots)

    def changed(self) -> str | None:
        """Returns the name of the first attribute, item or variable that is not as it was."""
        now = _contents(self.roots)
        if now == self.before:
            return None
        for before, after in itertools.zip_longest(_spelt_out(self.before), _spelt_out(now), fillvalue=("", None)):
            if before != after and not (before[1] != before[1] and after[1] != after[1]):  # NaN stays NaN
                return after[0] or before[0] or "a value"
        return None

    def refuse_public(self, who: str) -> None:
        """
        Refuses what changed while public noise was shown.

        Args:
            who (`str`): Who was shown it, for the message.

        Raises:
            UsageError: Names what changed.
        """
        name = self.changed()
        if name is not None:
            raise UsageError(
                f"{who} must keep nothing, but {name!r} changed while public noise was shown: nothing was asked. Put "
                "layers that keep statistics into evaluation mode, and compute each row from its arguments alone."
            )

    def refuse_private(self) -> None:
        """
        Refuses what changed while sensitive images were shown, in words that do not depend on them.

        Raises:
            UsageError: Something changed.
        """
        if self.changed() is not None:
            raise UsageError(
                "A model, a loss or a feature keeps something of the images that it is shown: the run stops, and no "
                "answer was given. Compute each row from its arguments alone, and keep nothing between calls."
            )


def _spelt_out(found: Named) -> Iterator[tuple[str, Any]]:
    """Attributes one by one."""
    for name, value in found:
        yield from value if isinstance(value, list) else [(name, value)]


def _contents(roots: tuple[Any, ...]) -> Named:
    """What is compared of all that can be reached, in an order that follows from it alone."""
    found: Named = []
    reached: dict[int, tuple[int, Any]] = {}  # with the objects, so that no other takes the identity of one
    storages: Storages = {}
    to_follow: Named = [("", root) for root in roots]
    while to_follow:
        name, value = to_follow.pop()
        kind = type(value)
        if kind in PLAIN:
            found.append((name, value))
        elif id(value) in reached:
            found.append((name, reached[id(value)][0]))
        else:
            reached[id(value)] = len(reached), value
            to_follow += (_ways.get(kind) or _way_of(kind))(name, value, found)
            if isinstance(value, torch.Tensor) and _has_digest(value):
                storage = value.untyped_storage()
                storages.setdefault(storage.data_ptr(), (name, storage))
    return found + _digests(storages)


def _way_of(kind: type) -> Way:
    """For values of a type. What has no name of its own has that of the value from which it hangs."""
    apart = issubclass(kind, OWN) or (_is_trusted(kind) and not issubclass(kind, nn.Module))
    ways = (way for kinds, way in WAYS if issubclass(kind, kinds))
    _ways[kind] = next(ways, _type_alone if apart else _attributes)
    return _ways[kind]


def _type_alone(name: str, value: Any, found: Named) -> Named:
    found.append((name, type(value).__qualname__))
    return []


def _attributes(name: str, value: Any, found: Named) -> Named:
    plain: Named = [(name, type(value).__qualname__)]
    parts: Named = []
    for item in getattr(value, "__dict__", {}).items():
        kind = type(item[1])
        if kind in PLAIN:
            plain.append(item)
        elif kind not in CONTAINERS or item[1]:  # an empty one is named as soon as it is filled
            parts.append(item)
    found.append((name, plain))
    return parts


def _tensor(name: str, value: torch.Tensor, found: Named) -> Named:
    gradient = value.grad if value.is_leaf else None
    written = None if gradient is None else (gradient.data_ptr(), gradient._version)
    place = value.storage_offset() if _has_digest(value) else value._version
    found.append((name, (value.shape, value.dtype, place, written)))
    return list(vars(value).items())


def _has_digest(value: torch.Tensor) -> bool:
    if value.device.type not in ("cpu", "cuda") or value.layout != torch.strided:
        return False
    try:
        value.untyped_storage()
    except NotImplementedError:  # of what `torch.func` wraps
        return False
    return True


def _array(name: str, value: Any, found: Named) -> Named:
    contents = None if value.dtype == object or _maps_a_file(value) else hash(value.tobytes())
    found.append((name, (value.shape, value.dtype.str, contents)))
    return [(name, item) for item in value.ravel().tolist()] if value.dtype == object else []


def _maps_a_file(value: Any) -> bool:
    """Whether an array is a read-only view of a file, which may be large."""
    while isinstance(value, np.ndarray) and not value.flags.writeable:
        if isinstance(value, np.memmap):
            return True
        value = value.base
    return isinstance(value, mmap.mmap)


def _dict(name: str, value: dict, found: Named) -> Named:
    found.append((name, len(value)))
    parts: Named = []
    if len(value) > MOST_ITEMS and PLAIN.issuperset(map(type, itertools.chain(value, value.values()))):
        found.append((name, tuple(value.items())))
    else:
        parts += [(name, key) for key in value if type(key) not in PLAIN]
        parts += [(str(key) if type(key) in PLAIN else name, item) for key, item in value.items()]
    return parts if _is_trusted(type(value)) else parts + _attributes(name, value, found)


def _items(name: str, value: Any, found: Named) -> Named:
    parts: Named = []
    if PLAIN.issuperset(map(type, value)):
        found.append((name, tuple(value)))
    else:
        found.append((name, len(value)))
        parts += [(name, item) for item in value]
    return parts if _is_trusted(type(value)) else parts + _attributes(name, value, found)


def _bytes(name: str, value: bytearray, found: Named) -> Named:
    found.append((name, bytes(value)))
    return []


def _method(name: str, value: types.MethodType, found: Named) -> Named:
    return [(name, value.__self__), (name, value.__func__)]


def _partial(name: str, value: functools.partial, found: Named) -> Named:
    return [(name, value.func), (name, value.args), (name, value.keywords)]


def _function(name: str, function: types.FunctionType, found: Named) -> Named:
    found.append((name, function.__qualname__))
    parts: Named = [(name, part) for part in (function.__defaults__, function.__kwdefaults__, vars(function)) if part]
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # not an empty one
            parts.append((variable, cell.cell_contents))
    return parts


def _is_trusted(kind: type) -> bool:
    return str(kind.__module__).partition(".")[0] in TRUSTED


#: For types and those that are made from them.
WAYS: tuple[tuple[Any, Way], ...] = (
    (torch.Tensor, _tensor), ((np.ndarray, np.generic), _array), (dict, _dict),
    ((list, tuple, set, frozenset, deque), _items), (bytearray, _bytes), (types.FunctionType, _function),
    (types.MethodType, _method), (functools.partial, _partial), ((type, types.ModuleType), _type_alone),
    (types.SimpleNamespace, _attributes),
)  # fmt: skip


def _digests(storages: Storages) -> Named:
    """Contents of tensors. The sums of a device are read together, because each read would wait for it."""
    found: Named = []
    sums: dict[torch.device, Named] = {}
    for start, (name, storage) in storages.items():
        size = storage.nbytes()
        if storage.device.type == "cpu" and size <= SMALL:
            found.append((name, hash(ctypes.string_at(start, size)) if size else 0))
        else:
            sums.setdefault(storage.device, []).append((name, _weighted_sum(storage)))
    for each in sums.values():
        values = torch.stack([value for _, value in each]).tolist()
        found += [(name, value) for (name, _), value in zip(each, values, strict=True)]
    return found


def _weighted_sum(storage: torch.UntypedStorage) -> torch.Tensor:
    """Adds up the words of a storage, modulo 2^64, in rows of `WIDTH`: sums of rows and of columns with a weight for
    each place, so that words that change places change the result. No copy of the storage is made."""
    words = storage.nbytes() // 4  # of 32 bits: the signs of an even number of longer ones would cancel
    rows = words // WIDTH
    matrix = _view(storage, torch.int32, 0, rows * WIDTH).view(rows, WIDTH)
    parts = [matrix.sum(0), matrix.sum(1), _view(storage, torch.int32, rows * WIDTH * 4, words % WIDTH).long()]
    parts.append(_view(storage, torch.uint8, words * 4, storage.nbytes() % 4).long())
    joined = torch.cat(parts)
    return (joined * _weights(len(joined), storage.device)).sum()


@functools.lru_cache(maxsize=64)
def _weights(number: int, device: torch.device) -> torch.Tensor:
    """Odd numbers that look random, int64 `[number]`."""
    numbers = torch.arange(1, number + 1, device=device) * WEIGHT
    return (numbers ^ (numbers >> 29)) * WEIGHT | 1


def _view(storage: torch.UntypedStorage, dtype: torch.dtype, start: int, size: int) -> torch.Tensor:
    """`size` numbers from the byte `start` on."""
    first = start // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, first, (size,), (1,))
