"""Train a diffusion model on sensitive images with DP-FETA, under one total (epsilon, delta), and release it.

    accelerate launch training/train_dp_feta.py
    accelerate launch training/train_dp_feta.py --dataset_name ylecun/mnist --config mnist_eps1
    accelerate launch training/train_dp_feta.py --train_data_dir scans \\
        --class_names benign,malignant --central_images mode

Stages, in the paper's order: noisy central images (`--central_images`: the mean, or the mode from histograms) ->
warm-up on them -> (judge) -> DP-SGD on the sensitive images -> release/. Public images or a pre-trained
pipeline may come first, or public images be mixed with the central ones (`--mix_public_images`). Only the query,
DP-SGD and the query of `--evaluation_reserve` touch the images, through `SensitiveImages`; each writes its row to the
ledger first.

Paper: "From Easy to Hard: Building a Shortcut for Differentially Private Image Synthesis".
"""

from typing import TYPE_CHECKING

from diffusers_dp.runs.launch import launch
from diffusers_dp.training.script import main_of


if TYPE_CHECKING:
    import torch

    from diffusers_dp.methods.method_flags import DPFETAConfig
    from diffusers_dp.runs.diffusion_run import DiffusionRun

    Run = DiffusionRun[DPFETAConfig]


def train(run: "Run") -> None:
    # 1. What the model learns from public images alone.
    if not run.config.mix_public_images:
        run.pretrain()

    # 2. One query, answered once, and a warm-up that reads its noisy answer only.
    if not run.resumes_dp_sgd:
        central = run.ask(run.config.central_images_query)
        warm_up(run, central)
        run.done("warm-up (spatial)")

    # 3. DP-SGD on the sensitive images, and the release.
    run.dp_sgd()
    run.release_model(run.config.training_facts)


def warm_up(run: "Run", noisy: "torch.Tensor") -> None:
    """Ordinary training on the central images, or on them and the public images as one set."""
    from diffusers_dp.runs.warm_up import CentralImages, MixedImages

    central = CentralImages(noisy, run.facts.image_shape, run.config.seed + run.processes.index)
    if run.config.mix_public_images:
        mixed = MixedImages(central, run.public, len(run.facts.class_names or ()))
        run.learn("spatial", run.model.unet, lambda: run.learn_from(mixed), run.config.public_training.facts)
        return
    size = run.processes.part(run.config.spatial_batch_size)
    run.warm_up(
        "spatial", lambda: central.batch(size), num_steps=run.config.spatial_steps,
        learning_rate=run.config.spatial_learning_rate,
    )  # fmt: skip


main = main_of("dp_feta", train=train)


if __name__ == "__main__":
    launch(main)
