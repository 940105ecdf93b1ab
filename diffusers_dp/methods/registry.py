# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Every method, and whether its guarantee is proven. No torch.

A status belongs to a method as it is, or will be, implemented here: with the door's sums, this library's accounting,
and the assumptions that a receipt lists. A method whose published proof does not hold is listed as well, so that
nobody has to find out again. `docs/guarantee.md` has the proofs.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath


STATUSES = {
    "proven": "the proof covers the program as it runs, floating point and its random generator included",
    "proven_with_assumptions": "proven for real numbers and perfect randomness; the receipt lists all assumptions",
    "holds_elsewhere": "its guarantee holds as published; it is not built here",
    "claim_refuted": "the published epsilon does not hold; it is not built here",
    "no_guarantee": "no finite epsilon holds, or none was proven",
}
PROVEN = ("proven", "proven_with_assumptions")  # of what is, or will be, built here


@dataclass(frozen=True)
class Method:
    """One method of image synthesis.

    Args:
        name (`str`): How it is called in commands and file names.
        title (`str`): How papers call it.
        paper (`str`): Where it was published, and what of it is followed.
        status (`str`): One of `STATUSES`.
        script (`str` or `None`): The training script; `None` while there is none.
        mechanisms (`tuple[str, ...]`): What looks at the sensitive images, as headings of `docs/guarantee.md`. All
            else that the method does is post-processing.
        note (`str`): What the status rests on, or why there is no guarantee; one sentence.
        figures (`str`): The numbers that show it, where there are some.
    """

    name: str
    title: str
    paper: str
    status: str
    script: str | None
    mechanisms: tuple[str, ...]
    note: str
    figures: str = ""

    @property
    def script_name(self) -> str:
        """Of the training script, without folder and suffix. Raises `ValueError` while there is none."""
        if self.script is None:
            raise ValueError(f"{self.title} has no training script.")
        return PurePosixPath(self.script).stem


_EMBEDDING, _LATENT = "training/train_mean_embedding.py", "training/train_dp_ldm.py"
_SUM, _SAMPLED_SUM, _DP_SGD = "Noisy sum", "Poisson-sampled noisy sum", "DP-SGD"

_ALL = (
    Method(
        "feta_pro", "FETA-Pro", "From Easy to Hard++ (arXiv 2601.06368), Algorithm 2", "proven_with_assumptions",
        "training/train_feta_pro.py", (_SUM, _SAMPLED_SUM, _DP_SGD),
        "Two clipped sums and DP-SGD, composed; its warm-up reads noisy answers only.",
    ),
    Method(
        "dp_feta", "DP-FETA", "Li et al. 2025, From Easy to Hard, Algorithm 3", "proven_with_assumptions",
        "training/train_dp_feta.py", (_SAMPLED_SUM, _DP_SGD),
        "Mean or mode images are clipped sums, divided by an expected count and not, as in the public code, by the "
        "observed one.",
    ),
    Method(
        "dpdm", "DPDM", "Dockhorn et al. 2023, Differentially Private Diffusion Models", "proven_with_assumptions",
        "training/train_dpdm.py", (_DP_SGD,),
        "The K draws of an image are averaged before they are clipped, so K does not enter the sensitivity.",
    ),
    Method(
        "dp_diffusion", "DP-Diffusion", "Ghalebikesabi et al. 2023, Algorithm 1", "proven_with_assumptions",
        "training/train_dp_diffusion.py", (_DP_SGD,),
        "With Poisson samples, which its accounting assumes and its Algorithm 1 does not take; pre-training data must "
        "be public.",
    ),
    Method(
        "dp_ldm", "DP-LDM", "Liu et al. 2024, Differentially Private Latent Diffusion Models",
        "proven_with_assumptions", _LATENT, (_SAMPLED_SUM, _DP_SGD),
        "DP-SGD on some of the weights, after DP-FETA's central images where they are asked; autoencoder and "
        "pre-training data must be public.",
    ),
    Method(
        "dp_lora", "DP-LoRA", "Tsai et al. 2024, Differentially Private Fine-Tuning of Diffusion Models",
        "proven_with_assumptions", _LATENT, (_DP_SGD,),
        "DP-SGD on low-rank matrices; autoencoder, pre-training data and prompts must be public.",
    ),
    Method(
        "dp_sapf", "DP-SAPF", "arXiv 2605.30312, with shares of squared gradient norms", "proven_with_assumptions",
        _LATENT, (_SUM, _DP_SGD),
        "One noisy sum of shares, of norm 1 at most, chooses layers; then DP-SGD on low-rank matrices beside them.",
    ),
    Method(
        "dp_merf", "DP-MERF", "Harder et al. 2021, Differentially Private Mean Embeddings", "proven_with_assumptions",
        _EMBEDDING, (_SUM,),
        "One noisy sum of random features of norm 1; the generator is fitted to the answer.",
    ),
    Method(
        "dp_kernel", "DP-Kernel (random features)", "Jiang et al. 2023, Functional Renyi DP, with a finite kernel",
        "proven_with_assumptions", _EMBEDDING, (_SUM,),
        "One noisy sum of random features of several kernels, whose noise is their Gaussian process; the public "
        "code's noise has no gradient, so that code is not private (dp_kernel_published).",
    ),
    Method(
        "dp_ntk", "DP-NTK", "Yang et al. 2023, Differentially Private Neural Tangent Kernels",
        "proven_with_assumptions", _EMBEDDING, (_SUM,),
        "One noisy sum of gradients of an untrained network, scaled to norm 1; its weights come from a public seed.",
    ),
    Method(
        "dp_hp", "DP-HP", "Vinaroz et al. 2022, Hermite Polynomial Features", "proven_with_assumptions",
        _EMBEDDING, (_SUM,),
        "One noisy sum of Hermite features of norm 1, of its sum kernel and of one product kernel together.",
    ),
    Method(
        "dp_mepf", "DP-MEPF", "Harder et al. 2023, Pre-trained Perceptual Features", "proven_with_assumptions",
        _EMBEDDING, (_SUM,),
        "Noisy sums of features of norm 1, sensitivity 1 each where an image is zeroed out; the feature network must "
        "be public. Unlike in the public code, stopping answers are noised and no count divides.",
    ),
    Method(
        "dp_scattering", "DP-Scattering", "ours: DP-MERF on wavelet coefficients", "proven_with_assumptions",
        _EMBEDDING, (_SUM,),
        "One noisy sum of random features of wavelet coefficients and of pixels, of norm 1; nothing is learned from "
        "public data.",
    ),
    Method(
        "pe", "Private Evolution", "Lin et al. 2024, Images via Foundation Model APIs, Algorithm 1",
        "proven_with_assumptions", "training/train_private_evolution.py", (_SUM,),
        "A noisy histogram of votes in each generation, one vote an image, for candidates of its class; all classes "
        "have as many candidates. What proposes candidates must be public.",
    ),
    Method(
        "psg", "PSG", "Chen et al. 2022, Private Set Generation, Algorithm 1", "proven_with_assumptions",
        "training/train_psg.py", (_DP_SGD,),
        "DP-SGD's noisy gradients of random networks; synthetic images follow them, and no test image is looked at.",
    ),
    Method(
        "dp_gan", "DP-GAN", "Xie et al. 2018; Bie et al. 2023, Private GANs, Revisited", "proven_with_assumptions",
        "training/train_dp_gan.py", (_DP_SGD,),
        "DP-SGD on the discriminator's real rows; generated rows and the generator are post-processing, and the "
        "discriminator's scores of real images leave the door nowhere.",
    ),
    Method(
        "pge_dpsgd", "PGE with DP-SGD", "Private Gradient Estimation, its sampler; DPDM's training",
        "proven_with_assumptions", "training/train_pge_dpsgd.py", (_DP_SGD,),
        "Scores of noisy images are learned by DP-SGD, exactly as DPDM learns them; Hamiltonian sampling from them is "
        "post-processing. Nothing of PGE's own claim is used.",
    ),
    Method(
        "pge", "PGE", "Private Gradient Estimation, Theorem 1", "no_guarantee",
        None, (),
        "Randomised response protects a random projection vector, while images enter the loss in the clear, without "
        "clipping or noise: one step can end where it cannot end without a certain image, so no finite epsilon holds.",
        "The paper claims 96.1 % on MNIST at epsilon 1 and 97.5 % at 10. An attack on benchmarks/pge.py at a claimed "
        "epsilon of 1 shows that it is at least 2.88.",
    ),
    Method(
        "dpgen", "DPGEN", "Chen et al. 2022, Differentially Private Generative Energy-Guided Network", "no_guarantee",
        None, (),
        "Its randomised response chooses among images of the sensitive set itself, so that neighbours have different "
        "possible outputs (Dockhorn et al. 2023, Appendix B).",
    ),
    Method(
        "gs_wgan", "GS-WGAN", "Chen et al. 2020, Gradient-Sanitized Wasserstein GANs", "claim_refuted", None, (),
        "One image moves the gradients at all B images that a critic judges in a step, so the sensitivity is sqrt(B) "
        "times the one that is accounted; and critics keep what earlier steps taught them, so sampling them hides "
        "less than is assumed.",
        "With the published noise multiplier 1.07, 1,000 critics, 20,000 steps, B = 32 and delta 1e-5: epsilon 329 by "
        "PLD, or 610 by what holds even where each step tells which critic it took. The count of each image by itself "
        "says 4.45, the count of steps 0.79 (RDP).",
    ),
    Method(
        "g_pate", "G-PATE", "Long et al. 2021, Scalable Differentially Private Data Generator via PATE",
        "claim_refuted", None, (),
        "Its epsilon is the smaller of a bound that holds and of one that depends on private votes; so the number "
        "itself, and when training stops, tell of the images.",
        "Counted by generated images and dimensions, which holds, the published MNIST noise pays for 34,034 answered "
        "dimensions at epsilon 1 and for 19,734 at epsilon 10. The published runs stop by the other bound, so how "
        "many they answer depends on the images.",
    ),
    Method(
        "datalens", "DataLens", "Wang et al. 2021, DataLens: Scalable Privacy Preserving Training", "claim_refuted",
        None, (),
        "Its sum of signs has the sensitivity 2 sqrt(k) for each generated image; the smaller, data-dependent bound "
        "is about an argmax that is never taken.",
        "Counted by generated images, which holds, the published MNIST noise pays for 2,245 images at epsilon 1 and "
        "for 2,134 at epsilon 10. With the settings of epsilon 1 the data-dependent bound is never the smaller one.",
    ),
    Method(
        "pate_gan", "PATE-GAN", "Jordon et al. 2019; audited by Ganev et al. 2024 (arXiv 2406.13985)",
        "claim_refuted", None, (),
        "None of the public programs is what was proven: partitions that are given to every teacher, and counts of "
        "queries that are too small, among others.",
        "The audit found 17 violations in six implementations.",
    ),
    Method(
        "dp_kernel_published", "DP-Kernel (as published)", "Jiang et al. 2023, Functional Renyi DP: its public code",
        "no_guarantee", None, (),
        "Its noise has no gradient, and the generator is moved by gradients alone, so that no noise reaches it; it is "
        "also given the labels of private batches.",
        "At each noise multiplier the gradient of its generator is the same number, that of the images in the clear. "
        "Its published 94.0 and 93.6 % on MNIST at epsilon 1 and 10 therefore hardly differ.",
    ),
    Method(
        "dp_sinkhorn", "DP-Sinkhorn", "Cao et al. 2021, Differentially Private Data Generation with Optimal Transport",
        "holds_elsewhere", None, (),
        "The gradient of a whole batch is clipped and noised as one vector, which the published accounting covers; it "
        "is no sum over images, so the door has no answer for it.",
        "Published on MNIST at epsilon 10: 83 %.",
    ),
    Method(
        "p3gm", "P3GM", "Takagi et al. 2021, Private Mixture of Generative Models", "claim_refuted", None, (),
        "The Wishart noise of its principal components is not the Gaussian noise that is accounted, and is known to "
        "leak; its newer code adds Gaussian noise in its place.",
        "Published on MNIST at epsilon 1 and 10: 73.7 and 79.8 %.",
    ),
)  # fmt: skip

METHODS = {method.name: method for method in _ALL}
