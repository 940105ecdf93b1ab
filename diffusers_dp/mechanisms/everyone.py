# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""All units take part: the Gaussian mechanism (Dwork and Roth 2014, Appendix A)."""

from dataclasses import dataclass

from .mechanism import Mechanism


@dataclass(frozen=True, kw_only=True)
class Everyone(Mechanism):
    """Every unit takes part in every query."""

    kind = "gaussian"
