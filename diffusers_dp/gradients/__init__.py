from .out_of_memory import FittingParts
from .per_example import per_example_gradients
from .physical_batch import largest_physical_batch
from .sampling import poisson_sample
from .step import add_noise, clip_factors, clipped_gradient_sum
from .supported import check_model


__all__ = [
    "FittingParts", "add_noise", "check_model", "clip_factors", "clipped_gradient_sum", "largest_physical_batch",
    "per_example_gradients", "poisson_sample",
]  # fmt: skip
