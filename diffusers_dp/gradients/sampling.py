"""Poisson samples of units."""

import numpy as np
import torch

from ..randomness.private_generator import PrivateGenerator


_CHUNK = 2**16  # uniform draws in memory at a time, half a MiB: they stay in the processor's cache


def poisson_sample(num_records: int, sample_rate: float, generator: PrivateGenerator) -> torch.Tensor:
    """Poisson sampling: each record takes part with probability `sample_rate`, independently of all others and of all
    other steps. This is what the accountant's amplification by subsampling assumes; shuffling does not have it.

    One uniform number is drawn for each record, a chunk of records at a time: memory is that of a chunk and of the
    sample, 8 bytes for each of qN records, and a sample of 10^8 records takes about a second. Chunks follow each other
    in one stream, so the sample does not depend on their size. To draw the gaps between sampled records instead, which
    are geometric, takes time for qN records only; but the gaps come from a logarithm in floating point, whose
    probabilities are only nearly those of the formula, and here a comparison is exact: a record is taken with
    probability q rounded up to a multiple of 2^-53.

    Args:
        num_records (`int`): N.
        sample_rate (`float`): q in (0, 1].
        generator (`PrivateGenerator`): The private source of randomness.

    Returns:
        `torch.LongTensor`: Ascending indices below `num_records`; possibly none.
    """
    if not 0 < sample_rate <= 1:
        raise ValueError(f"sample_rate must lie in (0, 1], got {sample_rate}.")
    chunks = []
    for start in range(0, max(num_records, 1), _CHUNK):
        taken = generator.uniform(min(_CHUNK, num_records - start)) < sample_rate
        chunks.append(start + np.flatnonzero(taken))
    return torch.from_numpy(np.concatenate(chunks))
