# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Curricula: possible orders of a warm-up's stages. No torch."""

#: The stages of each curriculum: FETA-Pro's order first, then the ablations of its Figure 5.
CURRICULA: dict[str, tuple[str, ...]] = {
    "spatial,frequency": ("spatial", "frequency"),
    "frequency,spatial": ("frequency", "spatial"),
    "mix": ("mix",),
    "frequency": ("frequency",),
    "spatial": ("spatial",),
    "none": (),
}
