# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Every method, and whether its guarantee is proven. No torch.

A status belongs to a method as it is, or will be, implemented here: with the door's sums, this library's accounting,
and the assumptions that a receipt lists. A method whose published proof does not hold is listed as well, so that
nobody has to find out again. `docs/guarantee.md` has the proofs.
"""

from importlib import import_module

from .method import Method


#: Files of methods that are built, in the order in which they are listed.
_FILES = (
    "feta_pro",
    "method_flags",
    "latents",
    "mean_embedding",
    "private_evolution",
    "moments",
    "psg",
    "dp_gan",
    "teachers",
    "pge_dpsgd",
)
_NOT_BUILT = (
    Method(
        "pge", "PGE", "Private Gradient Estimation, Theorem 1", "no_guarantee",
        "Randomised response protects a random projection vector, while images enter the loss without clipping or "
        "noise: one step can reach a state that is impossible without a certain image, so no finite epsilon holds.",
        "The paper claims 96.1 % on MNIST at epsilon 1 and 97.5 % at 10. An attack on benchmarks/pge.py at a claimed "
        "epsilon of 1 shows that it is at least 2.88.",
        check="diffusers_dp.audit.published:pge",
    ),
    Method(
        "dpgen", "DPGEN", "Chen et al. 2022, Differentially Private Generative Energy-Guided Network", "no_guarantee",
        "Its randomised response chooses among images of the sensitive set itself, so that neighbours have different "
        "possible outputs (Dockhorn et al. 2023, Appendix B).",
        check="diffusers_dp.audit.published:dpgen",
    ),
    Method(
        "gs_wgan_published", "GS-WGAN (as published)",
        "Chen et al. 2020, Gradient-Sanitized Wasserstein GANs",
        "claim_refuted",
        "One image moves the gradients at all B images that a critic judges in a step, so the sensitivity is sqrt(B) "
        "times the one that is accounted; and critics keep what earlier steps taught them, so sampling them hides "
        "less than is assumed.",
        check="diffusers_dp.audit.published:gs_wgan",
    ),
    Method(
        "g_pate_published", "G-PATE (as published)",
        "Long et al. 2021, Scalable Differentially Private Data Generator via PATE",
        "claim_refuted",
        "Its epsilon is the smaller of a bound that holds and of one that depends on private votes. So the number "
        "itself, and the time at which training stops, depend on the private images.",
        check="diffusers_dp.audit.published:g_pate",
    ),
    Method(
        "datalens_published", "DataLens (as published)",
        "Wang et al. 2021, DataLens: Scalable Privacy Preserving Training",
        "claim_refuted",
        "Its sum of signs has the sensitivity 2 sqrt(k) for each generated image; the smaller, data-dependent bound "
        "is about an argmax that is never taken.",
        "With the settings of epsilon 1 the data-dependent bound is never the smaller one.",
        check="diffusers_dp.audit.published:datalens",
    ),
    Method(
        "pate_gan_published", "PATE-GAN (as published)",
        "Jordon et al. 2019; audited by Ganev et al. 2024 (arXiv 2406.13985)",
        "claim_refuted",
        "None of the public programs is what was proven: partitions that are given to every teacher, and counts of "
        "queries that are too small, among others.",
        "The audit found 17 violations in six implementations.",
    ),
    Method(
        "dp_kernel_published", "DP-Kernel (as published)", "Jiang et al. 2023, Functional Renyi DP: its public code",
        "no_guarantee",
        "Its noise has no gradient, and the generator is moved by gradients alone, so that no noise reaches it. It is "
        "also given the labels of private batches.",
        "Its published 94.0 and 93.6 % on MNIST at epsilon 1 and 10 hardly differ.",
        check="diffusers_dp.audit.published:dp_kernel",
    ),
    Method(
        "dp_sinkhorn", "DP-Sinkhorn", "Cao et al. 2021, Differentially Private Data Generation with Optimal Transport",
        "holds_elsewhere",
        "The gradient of a whole batch is clipped and noised as one vector, which the published accounting covers; it "
        "is no sum over images, so the door has no answer for it.",
        "Published on MNIST at epsilon 10: 83 %.",
    ),
    Method(
        "p3gm", "P3GM", "Takagi et al. 2021, Private Mixture of Generative Models", "claim_refuted",
        "The Wishart noise of its principal components is not the Gaussian noise that is accounted, and is known to "
        "leak; its newer code adds Gaussian noise in its place.",
        "Published on MNIST at epsilon 1 and 10: 73.7 and 79.8 %.",
        check="diffusers_dp.audit.published:p3gm",
    ),
)  # fmt: skip

_BUILT = [method for file in _FILES for method in import_module(f"{__package__}.{file}").METHODS]
METHODS: dict[str, Method] = {method.name: method for method in (*_BUILT, *_NOT_BUILT)}
