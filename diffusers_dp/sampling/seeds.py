# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The public initial noise of drawn images: image i of a seed is the same on any machine and in any batch. Torch is
loaded only when needed."""

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import torch


def generators(seed: int, indices: range) -> "list[torch.Generator]":
    """Returns a generator for each image. Torch's CPU generator has 2^32 seeds; consecutive images never share one."""
    import numpy as np
    import torch

    first = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return [torch.Generator().manual_seed((first + i) % 2**32) for i in indices]
