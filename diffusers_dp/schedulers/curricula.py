# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Curricula: possible orders of a warm-up's stages. No torch."""

#: The stages of each curriculum: FETA-Pro's order first, then the ablations of its Figure 5.
CURRICULA: dict[str, tuple[str, ...]] = {
    name: tuple(name.split(",")) for name in ("spatial,frequency", "frequency,spatial", "mix", "frequency", "spatial")
} | {"none": ()}
