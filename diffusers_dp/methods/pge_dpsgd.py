# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""PGE with DP-SGD: DPDM's training, and a sampler of its own. No torch."""

from dataclasses import dataclass
from typing import ClassVar

from .method import DIFFUSION, built
from .method_flags import DiffusionConfig


@dataclass
class PGEDPSGDConfig(DiffusionConfig):
    """All flags of `training/train_pge_dpsgd.py`: those of DPDM without a judge, and another solver."""

    method: ClassVar[str] = "pge_dpsgd"
    solver: str = "hmc"


METHODS = (built(PGEDPSGDConfig, train="diffusers_dp.training.train_pge_dpsgd:train", **DIFFUSION),)
