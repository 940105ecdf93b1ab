"""Fit a one-step generator to noisy mean features of sensitive images, under one total (epsilon, delta), and
release it.

    accelerate launch training/train_mean_embedding.py
    accelerate launch training/train_mean_embedding.py --dataset_name ylecun/mnist \\
        --config training/recipes/dp_merf/mnist_cpu.yaml
    accelerate launch training/train_mean_embedding.py --train_data_dir scans \\
        --class_names benign,malignant --target_epsilon 5

Stages, in the paper's order: the noisy mean embedding, one sum of features for each class -> a generator whose images
have nearly that mean -> release/. Only the question and that of `--evaluation_reserve` touch the images, through
`SensitiveImages`; each writes its row to the ledger first. There is no DP-SGD: fitting the generator is
post-processing, for as many steps as one likes.

Paper, with `--features rff`: "DP-MERF: Differentially Private Mean Embeddings with Random Features for Practical
Privacy-Preserving Data Generation".
"""

from typing import TYPE_CHECKING

from diffusers_dp.audit.preflight import preflight
from diffusers_dp.methods.mean_embedding import MeanEmbeddingConfig
from diffusers_dp.runs.launch import launch, run_method


if TYPE_CHECKING:
    import torch

    from diffusers_dp.pipelines import DPImagePipeline
    from diffusers_dp.runs.run import TrainingRun

    Run = TrainingRun[MeanEmbeddingConfig]


def train(run: "Run") -> None:
    # 1. One question, answered once (Section 4).
    query = run.config.embedding_query
    embedding = run.ask(query).to(run.processes.device)

    # 2. A generator whose images have nearly these features on average (Equation 7).
    pipeline = one_step_pipeline(run)
    fit(run, pipeline, embedding)
    run.done("generator")

    # 3. The release.
    run.release_pipeline(pipeline, {"features": run.config.features, **query.meaning})


def one_step_pipeline(run: "Run") -> "DPImagePipeline":
    """An untrained UNet that makes an image of noise in one call."""
    from diffusers import UNet2DModel

    from diffusers_dp.models import one_step_scheduler, unet_config
    from diffusers_dp.pipelines import DPImagePipeline

    names, network = run.facts.class_names, run.config.network
    unet = UNet2DModel(**unet_config(run.facts.image_shape, None if names is None else len(names), **network))
    pipeline = DPImagePipeline(
        unet.to(run.processes.device), one_step_scheduler(), patch_size=network["patch_size"],
        id2label=None if names is None else dict(enumerate(names)),
    )  # fmt: skip
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def fit(run: "Run", pipeline: "DPImagePipeline", embedding: "torch.Tensor") -> None:
    """Ordinary training, on the noisy answer alone."""
    from diffusers_dp.models import OneStepGenerator
    from diffusers_dp.runs.warm_up import fit_generator

    config = run.config
    fit_generator(
        OneStepGenerator(pipeline.unet, pipeline.config.patch_size), config.embedding_query.embedding, embedding,
        num_steps=config.generator_steps, batch_size=config.generator_batch_size,
        learning_rate=config.generator_learning_rate, processes=run.processes,
    )  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    run_method(MeanEmbeddingConfig, train, preflight, argv)


if __name__ == "__main__":
    launch(main)
