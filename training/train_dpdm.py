"""Train a diffusion model on sensitive images with DPDM, under one total (epsilon, delta), and release it.

    accelerate launch training/train_dpdm.py
    accelerate launch training/train_dpdm.py --dataset_name ylecun/mnist --config mnist_eps1
    accelerate launch training/train_dpdm.py --train_data_dir scans --class_names benign,malignant --target_epsilon 5

Stages: (judge) -> DP-SGD on the sensitive images, from scratch and with noise multiplicity -> release/. Only
DP-SGD and the query of `--evaluation_reserve` touch the images, through `SensitiveImages`; each writes its row to the
ledger first. Label dropout trains the null label that classifier-free guidance needs: the released pipeline takes a
`guidance_scale`.

Paper: "Differentially Private Diffusion Models".
"""

from typing import TYPE_CHECKING

from diffusers_dp.runs.launch import launch
from diffusers_dp.training.script import main_of


if TYPE_CHECKING:
    from diffusers_dp.methods.method_flags import DPDMConfig
    from diffusers_dp.runs.diffusion_run import DiffusionRun


def train(run: "DiffusionRun[DPDMConfig]") -> None:
    run.dp_sgd()
    run.release_model(run.config.training_facts)


main = main_of("dpdm", train=train)


if __name__ == "__main__":
    launch(main)
