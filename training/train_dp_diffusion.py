"""Train a diffusion model on sensitive images with DP-Diffusion, after public pre-training, and release it.

    accelerate launch training/train_dp_diffusion.py
    accelerate launch training/train_dp_diffusion.py --config cifar10_eps10 --public_data_dir imagenet32
    accelerate launch training/train_dp_diffusion.py --pretrained_model_name_or_path google/ddpm-cifar10-32 \\
        --train_data_dir scans --class_names benign,malignant --augmentations flip,crop

Stages: public pre-training, or a pre-trained pipeline, or neither -> DP-SGD on the sensitive images -> release/. The
K draws of an image are of diffusion time (by `--expert timestep_mixture`), noise, flips and crops. Only DP-SGD and the
query of `--evaluation_reserve` touch the sensitive images, through `SensitiveImages`. Each writes its row to the
ledger first.

Paper: "Differentially Private Diffusion Models Generate Useful Synthetic Images" (Ghalebikesabi et al. 2023).
"""

from typing import TYPE_CHECKING

from diffusers_dp.runs.launch import launch
from diffusers_dp.training.script import main_of


if TYPE_CHECKING:
    from diffusers_dp.methods.method_flags import DPDiffusionConfig
    from diffusers_dp.runs.diffusion_run import DiffusionRun


def train(run: "DiffusionRun[DPDiffusionConfig]") -> None:
    run.pretrain()
    run.dp_sgd()
    run.release_model()


main = main_of("dp_diffusion", train=train)


if __name__ == "__main__":
    launch(main)
