"""Learn scores of sensitive images under one total (epsilon, delta), and release them; the samples shown are drawn by
Hamiltonian dynamics.

    accelerate launch training/train_pge_dpsgd.py
    accelerate launch training/train_pge_dpsgd.py --dataset_name ylecun/mnist --config mnist_cpu

Stages: DP-SGD on a denoiser, from scratch and with noise multiplicity -> release/. This is DPDM's training, word for
word: a denoiser is a score, (D(x; s) - x) / s^2 at each noise level s. What is PGE's is the sampler, which
`DPImagePipeline` offers for every release: `pipeline(..., sampler="hmc")`, `diffusers-dp sample --solver hmc`.

Paper: "Private Gradient Estimation is Useful for Generative Modeling". Its own mechanism has no guarantee, and nothing
of it is here (docs/methods/diffusion.md#pge-with-dp-sgd).
"""

from typing import TYPE_CHECKING

from diffusers_dp.runs.launch import launch
from diffusers_dp.training.script import main_of


if TYPE_CHECKING:
    from diffusers_dp.methods.method_flags import PGEDPSGDConfig
    from diffusers_dp.runs.diffusion_run import DiffusionRun


def train(run: "DiffusionRun[PGEDPSGDConfig]") -> None:
    run.dp_sgd()
    run.release_pipeline(run.pipeline, {"sampler": "hmc"})


main = main_of("pge_dpsgd", train=train)


if __name__ == "__main__":
    launch(main)
