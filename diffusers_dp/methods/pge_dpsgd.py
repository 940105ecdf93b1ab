# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""PGE with DP-SGD: DPDM's training, and a sampler of its own. No torch."""

from dataclasses import dataclass
from typing import ClassVar

from ..errors import UsageError
from .method import DIFFUSION, DP_SGD, Method
from .method_flags import DPDMConfig


@dataclass
class PGEDPSGDConfig(DPDMConfig):
    """All flags of `training/train_pge_dpsgd.py`: those of DPDM, whose training it is."""

    method: ClassVar[str] = "pge_dpsgd"

    def check(self) -> None:
        if self.objective == "ddpm":
            raise UsageError("--objective ddpm has no scores at EDM's noise levels, which are sampled from: give edm.")


METHODS = (
    Method(
        "pge_dpsgd", "PGE with DP-SGD", "Private Gradient Estimation, its sampler; DPDM's training",
        "proven_with_assumptions",
        "Scores of noisy images are learned by DP-SGD, exactly as DPDM learns them; Hamiltonian sampling from them is "
        "post-processing. Nothing of PGE's own claim is used.",
        mechanisms=(DP_SGD,), config=PGEDPSGDConfig, train="diffusers_dp.training.train_pge_dpsgd:train", **DIFFUSION,
    ),
)  # fmt: skip
