# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""PGE with DP-SGD: DPDM's training, and a sampler of its own. No torch."""

from dataclasses import dataclass
from typing import ClassVar

from .method import DIFFUSION, DP_SGD, Method
from .method_flags import DiffusionConfig


@dataclass
class PGEDPSGDConfig(DiffusionConfig):
    """All flags of `training/train_pge_dpsgd.py`: those of DPDM without a judge, and another solver."""

    method: ClassVar[str] = "pge_dpsgd"
    solver: str = "hmc"


METHODS = (
    Method(
        "pge_dpsgd", "PGE with DP-SGD", "Private Gradient Estimation, its sampler; DPDM's training",
        "proven_with_assumptions",
        "Scores of noisy images are learned by DP-SGD, exactly as DPDM learns them; Hamiltonian sampling from them is "
        "post-processing. Nothing of PGE's own claim is used.",
        mechanisms=(DP_SGD,), config=PGEDPSGDConfig, train="diffusers_dp.training.train_pge_dpsgd:train", **DIFFUSION,
    ),
)  # fmt: skip
