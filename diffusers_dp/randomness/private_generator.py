"""The private source of randomness: noise and Poisson draws.

Anybody who can replay these draws can subtract the noise. They therefore never depend on `--seed`, and are never
serialised or replayed. Torch's CPU generator is not used because it keeps only 32 bits of a seed: an attacker can try
all its streams in a few hours. The stream is numpy's Philox 4x64 counter generator under a 128-bit key of
operating-system entropy. With `exact`, what the guarantee rests on (noise, Poisson samples) comes from the operating
system, word by word, and is free of rounding.
"""

import math
import os

import numpy as np
import torch

from ..errors import IntegrityError
from .rounded_gaussian import rounded_gaussian


KEY_BYTES = 16

RNG_FACTS = {
    "kind": "numpy Philox 4x64, 128-bit key; on CUDA torch's Philox 4x32, a fresh 64-bit seed per draw",
    "os_entropy": True,
    "seed_published": False,
}
EXACT_RNG_FACTS = RNG_FACTS | {
    "kind": "the operating system's generator for noise and samples; numpy Philox 4x64, 128-bit key, for losses"
}


class PrivateGenerator:
    """Draws Gaussian and uniform numbers from a keyed stream.

    Args:
        key (`bytes`, *optional*): Key of 16 bytes, for tests only; defaults to fresh operating-system entropy.
        exact (`bool`, defaults to `False`): Whether words come from the operating system itself. With a key they do
            not.
    """

    def __init__(self, key: bytes | None = None, exact: bool = False):
        self._injected, self._process, self.exact = key is not None, os.getpid(), exact
        key = os.urandom(KEY_BYTES) if key is None else key
        if len(key) != KEY_BYTES:
            raise ValueError(f"The key must have {KEY_BYTES} bytes, got {len(key)}.")
        self._generator = np.random.Generator(np.random.Philox(key=np.frombuffer(key, dtype=np.uint64)))

    def normal(self, shape: tuple[int, ...], std: float, device: torch.device | str = "cpu") -> torch.Tensor:
        """Draws independent `N(0, std^2)` numbers, float32, of shape `shape`.

        On CUDA every call reseeds the device's generator with 64 fresh bits of operating-system entropy, unless a key
        was injected.

        Raises:
            IntegrityError: This process was forked from the one that made the generator.
        """
        self._refuse_another_process()
        device = torch.device(device)
        if device.type == "cuda" and not self._injected:
            generator = torch.Generator(device).manual_seed(int.from_bytes(os.urandom(8), "little", signed=True))
            return torch.randn(shape, generator=generator, device=device).mul_(std)
        noise = self._generator.standard_normal(tuple(shape), dtype=np.float32)
        return torch.from_numpy(np.asarray(noise)).mul_(std).to(device)

    def rounded_normal(self, shape: tuple[int, ...], std: float, device: torch.device | str = "cpu") -> torch.Tensor:
        """Draws independent `N(0, std^2)` numbers, each rounded to a whole number: float64, of shape `shape`. See
        `rounded_gaussian`. Raises `IntegrityError` in a forked process."""
        return torch.from_numpy(rounded_gaussian(math.prod(shape), std, self.words)).view(*shape).to(device)

    def uniform(self, size: int) -> np.ndarray:
        """Draws `size` independent numbers from [0, 1), multiples of 2^-53 in float64. Raises `IntegrityError` in a
        forked process."""
        self._refuse_another_process()
        if self.exact:
            return (self.words(size) >> np.uint64(11)) * 2.0**-53
        return self._generator.random(size)

    def words(self, size: int) -> np.ndarray:
        """Draws `size` independent words of 64 bits, uint64. Raises `IntegrityError` in a forked process."""
        self._refuse_another_process()
        if self.exact and not self._injected:
            return np.frombuffer(os.urandom(8 * size), dtype=np.uint64)
        return np.atleast_1d(self._generator.bit_generator.random_raw(size))

    def _refuse_another_process(self) -> None:
        """A fork has the same stream: the difference of two answers would have no noise."""
        if os.getpid() != self._process:
            raise IntegrityError("This source of noise belongs to another process: open a door in this one.")

    def __reduce__(self):
        raise TypeError("A PrivateGenerator is never serialised: anybody who has its state can subtract the noise.")
