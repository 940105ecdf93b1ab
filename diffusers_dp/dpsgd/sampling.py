"""Which images take part in a step."""

import torch

from ..randomness import PrivateGenerator


def poisson_sample(num_records: int, sample_rate: float, generator: PrivateGenerator) -> torch.Tensor:
    """Poisson sampling: each record takes part with probability `sample_rate`, independently of all others and of all other
    steps. This is what the accountant's amplification by subsampling assumes; shuffling does not have it.

    Args:
        num_records (`int`): N.
        sample_rate (`float`): q in (0, 1].
        generator (`PrivateGenerator`): The private source of randomness.

    Returns:
        `torch.LongTensor`: Ascending indices below `num_records`; possibly none.
    """
    if not 0 < sample_rate <= 1:
        raise ValueError(f"sample_rate must lie in (0, 1], got {sample_rate}.")
    return torch.from_numpy(generator.uniform(num_records) < sample_rate).nonzero().squeeze(1)


def truncate(sample: torch.Tensor, batch_size: int, generator: PrivateGenerator) -> torch.Tensor:
    """Cuts a sample down to a uniformly random `batch_size` of its records (truncated Poisson sampling).

    Args:
        sample (`torch.LongTensor`): Ascending indices, from `poisson_sample`.
        batch_size (`int`): The most that may remain.
        generator (`PrivateGenerator`): The private source of randomness. How much is drawn from it depends on the sample's size.

    Returns:
        `torch.LongTensor`: Ascending indices, at most `batch_size`.
    """
    if len(sample) <= batch_size:
        return sample
    kept = generator.uniform(len(sample)).argsort()[:batch_size]
    return sample[torch.from_numpy(kept)].sort().values
