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
        computed="Computed: with one image among 20, a step ends in one of 10 states; without it, in one of 10 "
        "others, at least 0.00038 away. Whoever sees the weights knows which.",
    ),
    Method(
        "dpgen", "DPGEN", "Chen et al. 2022, Differentially Private Generative Energy-Guided Network", "no_guarantee",
        "Its randomised response chooses among images of the sensitive set itself, so that neighbours have different "
        "possible outputs (Dockhorn et al. 2023, Appendix B).",
        computed="Computed at a claimed epsilon of 1: the answer 'image b' has probability 0.15 where b is in the "
        "set, and 0 where it is not.",
    ),
    Method(
        "gs_wgan_published", "GS-WGAN (as published)",
        "Chen et al. 2020, Gradient-Sanitized Wasserstein GANs",
        "claim_refuted",
        "One image moves the gradients at all B images that a critic judges in a step, so the sensitivity is sqrt(B) "
        "times the one that is accounted; and critics keep what earlier steps taught them, so sampling them hides "
        "less than is assumed.",
        computed="Computed with the published noise multiplier 1.07, 1,000 critics, 20,000 steps, B = 32 and delta "
        "1e-5: epsilon 329 by PLD for the vectors of a step together, and 610 where each step tells which critic it "
        "took. The count of each image by itself says 4.45, the count of steps 0.79 (RDP).",
    ),
    Method(
        "g_pate_published", "G-PATE (as published)",
        "Long et al. 2021, Scalable Differentially Private Data Generator via PATE",
        "claim_refuted",
        "Its epsilon is the smaller of a bound that holds and of one that depends on private votes. So the number "
        "itself, and the time at which training stops, depend on the private images.",
        computed="Computed: by the bound that holds, the published noise pays for 34,034 answered dimensions at "
        "epsilon 1, and for 19,734 at 10, where it is smaller. Epsilon of 1,000 answers by votes of 1,400 and 600 "
        "is 0.0920, and 0.0924 if one image moves a vote: the published number depends on the images, without "
        "noise.",
    ),
    Method(
        "datalens_published", "DataLens (as published)",
        "Wang et al. 2021, DataLens: Scalable Privacy Preserving Training",
        "claim_refuted",
        "Its sum of signs has the sensitivity 2 sqrt(k) for each generated image; the smaller, data-dependent bound "
        "is about an argmax that is never taken.",
        "With the settings of epsilon 1 the data-dependent bound is never the smaller one.",
        computed="Computed: one private image changes the sum of signs of 200 entries by up to 28.3. So the "
        "published noise pays for 2,245 generated images at epsilon 1. At epsilon 10, with 300 entries and less "
        "noise, it pays for 2,134.",
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
        computed="Computed for a distance plus noise: with multipliers of 0, 1 and 100 its slope is 0.000329, "
        "0.000329 and 0.000329. A generator that follows the slope gets no noise.",
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
        computed="Computed: at a claimed epsilon of 1, 28 % of the noisy covariances cannot come out with one image "
        "more, so delta is at least that.",
    ),
)  # fmt: skip

_BUILT = [method for file in _FILES for method in import_module(f"{__package__}.{file}").METHODS]
METHODS: dict[str, Method] = {method.name: method for method in (*_BUILT, *_NOT_BUILT)}
