# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The public noise that a drawn image begins with: image i of a seed is the same, wherever and beside whichever others
it is drawn. No torch until it is needed."""

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import torch


def generators(seed: int, indices: range) -> "list[torch.Generator]":
    """A generator for each image. Torch's CPU generator has 2^32 seeds: neighbours in one run never share one."""
    import numpy as np
    import torch

    first = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return [torch.Generator().manual_seed((first + i) % 2**32) for i in indices]
