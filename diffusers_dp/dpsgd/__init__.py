from .per_example import per_example_gradients
from .sampling import poisson_sample, truncate
from .step import add_noise, clip_factors, clipped_gradient_sum


__all__ = [
    "add_noise",
    "clip_factors",
    "clipped_gradient_sum",
    "per_example_gradients",
    "poisson_sample",
    "truncate",
]
