# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Refuses modules that keep something of the images that they are shown, such as a running mean or a code book. It
would leave the door without noise, in a `state_dict()` for instance."""

import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..errors import UsageError


#: Types of values that are compared as they are.
PLAIN = frozenset({int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device})
WIDTH = 2**10  # words of a row, in the sums of a tensor
WEIGHT = 0x9E3779B97F4A7C15 - 2**64  # odd, so that no word is lost, and 2^64 over the golden ratio
WORDS = {1: torch.int8, 2: torch.int16}  # by the bytes of an element; int32 for larger ones


class KeptState:
    """
    The state of the modules of a model, a loss or features, as it is now.

    Contents of parameters and buffers are compared, however they were written, and attributes of modules that are
    plain values or tensors. So are those of a loss, an encoder or features that are no module, and of the modules and
    bound methods that are its attributes, in a tuple of them, or arguments of a partial. A function's closure, other
    containers, hooks, globals and files are not compared: that nothing is kept there is the author's word.

    Args:
        *roots (`Any`): A module, a function or any other object.
    """

    def __init__(self, *roots: Any):
        self.roots, self.before = roots, _contents(roots)

    def changed(self) -> str | None:
        """Returns the name of the first parameter, buffer or attribute that is not as it was."""
        now = _contents(self.roots)
        names = dict.fromkeys((*now, *self.before))
        return next((name for name in names if now.get(name) != self.before.get(name)), None)

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


def _contents(roots: tuple[Any, ...]) -> dict[str, Any]:
    """Named values and digests of tensors. The sums of a device are read together, because each read waits for it."""
    found: dict[str, Any] = {}
    sums: dict[torch.device, dict[str, torch.Tensor]] = {}
    for place, root in enumerate(holder for root in roots for holder in _holders(root)):
        for name, value in _state(root):
            key = f"{name} of {type(root).__name__} {place + 1}"
            if not isinstance(value, torch.Tensor):
                found[key] = repr(value)  # because NaN is not equal to itself
            elif _has_contents(value):
                found[f"{key}, in its form"] = value.shape, value.dtype
                sums.setdefault(value.device, {})[key] = _weighted_sum(value.detach())
            else:
                found[key] = id(value), value._version
    for each in sums.values():
        found |= zip(each, torch.stack([*each.values()]).tolist(), strict=True)
    return found


def _has_contents(value: torch.Tensor) -> bool:
    """False for a meta tensor, and one that `torch.func` wraps."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(value)
    return value.layout == torch.strided and value.device.type in ("cpu", "cuda") and not wrapped


def _holders(root: Any) -> Iterator[Any]:
    """Objects whose state is compared: a root, what it is bound to, and modules among its arguments or attributes."""
    if isinstance(root, functools.partial):
        for part in (root.func, *root.args, *root.keywords.values()):
            yield from _holders(part)
    elif isinstance(root, types.MethodType):
        yield from _holders(root.__self__)
    else:
        yield root
        if not isinstance(root, nn.Module):
            for value in getattr(root, "__dict__", {}).values():
                for part in value if isinstance(value, tuple) else (value,):
                    if isinstance(part, (nn.Module, types.MethodType, functools.partial)):
                        yield from _holders(part)


def _state(holder: Any) -> Iterator[tuple[str, Any]]:
    modules = holder.named_modules() if isinstance(holder, nn.Module) else [("", holder)]
    for path, module in modules:
        for name, value in getattr(module, "__dict__", {}).items():
            if type(value) in PLAIN or isinstance(value, torch.Tensor):
                yield f"{path}.{name}".lstrip("."), value
    if isinstance(holder, nn.Module):
        yield from holder.state_dict(keep_vars=True).items()
        yield from holder.named_buffers()  # also those that are not saved
        for name, weight in holder.named_parameters():
            gradient = weight.grad
            yield f"{name}.grad", None if gradient is None else f"{gradient.data_ptr()}, {gradient._version}"


def _weighted_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Adds up the words of a tensor, modulo 2^64, in rows of `WIDTH`: sums of rows and of columns with a weight for
    each place, so that words that change places change the result. Words have at most 32 bits: the signs of an even
    number of longer ones would cancel."""
    words = tensor.contiguous().reshape(-1).view(WORDS.get(tensor.element_size(), torch.int32))
    rows = len(words) // WIDTH
    matrix = words[: rows * WIDTH].view(rows, WIDTH)
    joined = torch.cat([matrix.sum(0), matrix.sum(1), words[rows * WIDTH :].long()])
    return (joined * _weights(len(joined), tensor.device)).sum()


@functools.lru_cache(maxsize=64)
def _weights(number: int, device: torch.device) -> torch.Tensor:
    """Odd numbers that look random, int64 `[number]`."""
    numbers = torch.arange(1, number + 1, device=device) * WEIGHT
    return (numbers ^ (numbers >> 29)) * WEIGHT | 1
