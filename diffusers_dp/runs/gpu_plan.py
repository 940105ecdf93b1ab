# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a published pipeline takes on a GPU that is not here. Nothing of it is measured: `layouts.json` has tensors and
FLOPs, which `benchmarks/latent_memory.py` counts. No torch."""

import json
from datetime import timedelta
from importlib.resources import files
from typing import Any

from .. import methods
from ..data.images import PublicFacts
from ..errors import UsageError
from ..methods.latents import LatentConfig
from ..methods.private_evolution import PrivateEvolutionConfig
from .plan import Plan


#: 10^12 FLOP/s that private steps of other UNets reached on an H100 (benchmarks/results/gpu_h100.jsonl).
SPEED = {"no": 19, "bf16": 85}


def fine_tuning(config: LatentConfig, facts: PublicFacts, plan: Plan, gigabytes: float) -> str:
    """Memory and time of DP-SGD on the published layout whose images have this size, in words.

    Args:
        gigabytes (`float`): Memory of the GPU in 10^9 bytes.

    Raises:
        UsageError: No layout has images of this size, all weights are trained, or the physical batch does not fit.
    """
    layout, row, sampling = _layout(facts.image_shape[1]), plan.step, plan.sampling
    assert row is not None and sampling is not None
    kind = "lora" if config.has_adapters else config.train
    counts = layout.get(kind + (" checkpointed" if config.gradient_checkpointing else ""))
    if counts is None:
        raise UsageError(f"--gpu_memory counts no --train {config.train}: give lora or attention.")
    draws = row.facts["noise_multiplicity"]
    fixed, each = counts["fixed"], draws * counts["row"]
    fits, asked = max(0, int((gigabytes - fixed) / each)), config.physical_batch_size or 1
    if asked > fits:
        remedy = f"lower it to {fits}" if fits else "lower --noise_multiplicity, or raise --gpu_memory"
        remedy += "" if config.gradient_checkpointing else ", or add --gradient_checkpointing"
        raise UsageError(
            f"--max_physical_batch_size {asked} takes {fixed + asked * each:.0f} GB with {layout['name']} and "
            f"--noise_multiplicity {draws}, more than --gpu_memory {gigabytes:g}: {remedy}."
        )
    rows = draws * row.steps * sampling.expected_batch_size * sampling.images_per_unit
    return _said(
        layout, rows * counts["step"], config.precision or "no",
        f"{row.steps:,} steps of DP-SGD; each image is encoded once before\nmemory: {gigabytes:g} GB hold {fits} "
        f"images at once, in float32 with --noise_multiplicity {draws}: {fixed:.1f} GB, and {each:.1f} GB for each",
    )  # fmt: skip


def candidates(config: PrivateEvolutionConfig, facts: PublicFacts) -> str:
    """Time of the calls of a published pipeline, in words. Raises `UsageError` where none has images of this size."""
    layout = _layout(config.generator_resolution or facts.image_shape[1])
    steps, first, classes = config.generator_inference_steps, config.candidates_per_class, facts.num_classes or 1
    drawn = [(first, 1.0), *((first * (config.lookahead + 1), strength) for strength in config.strengths)]
    drawn.append(((config.images_per_class or first) - first, config.strengths[-1]))
    calls = classes * sum(number * int(strength * steps) for number, strength in drawn)
    guided = 2 if config.generator_guidance > 1 else 1
    images = classes * sum(number for number, _ in drawn)
    return _said(
        layout, calls * guided * layout["forward"], "bf16", f"{images:,} images; decoding and votes come on top"
    )


def _layout(side: int) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(files(methods).joinpath("layouts.json").read_text(encoding="utf-8"))
    if str(side) not in known:
        sides = " or ".join(f"{each} ({layout['name']})" for each, layout in known.items())
        raise UsageError(f"--gpu_memory knows pipelines of images of {sides} pixels a side, not {side}: leave it out.")
    return known[str(side)]


def _said(layout: dict[str, Any], teraflops: float, precision: str, of_what: str) -> str:
    time = timedelta(seconds=round(teraflops / SPEED[precision]))
    return (
        f"planned by FLOPs and tensors of {layout['name']}, not measured\n"
        f"time: {time} of an H100 at {SPEED[precision]} TFLOP/s for {of_what}"
    )
