"""Train a diffusion model on sensitive images with FETA-Pro, under one total (epsilon, delta), and release it.

    accelerate launch training/train_feta_pro.py
    accelerate launch training/train_feta_pro.py --dataset_name ylecun/mnist --config mnist_eps1
    accelerate launch training/train_feta_pro.py --train_data_dir scans \\
        --class_names benign,malignant --target_epsilon 5
    accelerate launch training/train_feta_pro.py --config pretrained_mnist_cpu

Stages, in the paper's order:

    noisy central images -> noisy frequency features -> warm-up on the central images
    -> one-step generator fitted to the features -> warm-up on its images
    -> (judge) -> DP-SGD on the sensitive images -> release/

With `--auxiliary_features moments`, noisy moments replace the features, and images drawn from them the generator's.
`--expert distillation_steps` teaches the network their ideal denoiser first.
Public pre-training, or a pre-trained pipeline, comes first where one is named. Only the queries, DP-SGD and the
query of `--evaluation_reserve` touch the images, through `SensitiveImages`. Each writes its row to the ledger
first.

Paper: "From Easy to Hard++: Promoting Differentially Private Image Synthesis Through Spatial-Frequency Curriculum".
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from diffusers_dp.runs.launch import launch
from diffusers_dp.training.script import main_of


if TYPE_CHECKING:
    import torch

    from diffusers_dp.methods.feta_pro import FETAProConfig
    from diffusers_dp.queries.mean_features import Embedding
    from diffusers_dp.runs.diffusion_run import DiffusionRun
    from diffusers_dp.runs.warm_up import AuxiliaryImages
    from diffusers_dp.schedulers.scheduling_frequency_warmup import FrequencyWarmupScheduler

    Run = DiffusionRun[FETAProConfig]

AUXILIARY_INFERENCE_STEPS = 50  # of DDIM, for an image that a diffusion model is fitted by: the paper's


def train(run: "Run") -> None:
    # 1. What the model learns from public images, and its curriculum.
    run.pretrain()
    scheduler = curriculum_of(run)

    # 2. Two queries, each answered once, and a warm-up that reads their noisy answers only.
    if not run.resumes_dp_sgd:
        warm_up(run, scheduler)

    # 3. DP-SGD on the sensitive images, and the release.
    run.dp_sgd()
    run.release_model({**scheduler.config, **run.config.training_facts})


def curriculum_of(run: "Run") -> "FrequencyWarmupScheduler":
    from diffusers_dp.schedulers.scheduling_frequency_warmup import FrequencyWarmupScheduler

    config = run.config
    return FrequencyWarmupScheduler(
        curriculum=config.curriculum, spatial_steps=config.spatial_steps,
        spatial_batch_size=config.spatial_batch_size, spatial_learning_rate=config.spatial_learning_rate,
        frequency_steps=config.frequency_steps, frequency_batch_size=config.frequency_batch_size,
        frequency_learning_rate=config.frequency_learning_rate,
    )  # fmt: skip


def warm_up(run: "Run", scheduler: "FrequencyWarmupScheduler") -> None:
    """The stages of the curriculum, in its order; the auxiliary images are made when the first stage needs them."""
    import torch

    from diffusers_dp.models.one_step import DDIMGenerator
    from diffusers_dp.runs.moments_run import ask_for_moments, distil
    from diffusers_dp.runs.warm_up import CentralImages, LabelledImages, curriculum_batch, fit_generator

    config, sources = run.config, {}
    weights = run.ask(config.class_counts[0]) if config.class_counts else torch.ones(1, 1)
    if scheduler.needs("spatial"):
        central = run.ask(config.central_images_query) * weights[..., None, None]
        sources["spatial"] = CentralImages(central, run.facts.image_shape, config.seed + run.processes.index)
    if config.asks_moments:
        moments = ask_for_moments(run)
        sources["frequency"] = LabelledImages(*moments.draw(config.num_auxiliary_images, "uniform", config.seed))
        run.done("auxiliary images")
    elif scheduler.needs("frequency"):
        query = config.frequency_query
        features, embedding = query.feature_map, (run.ask(query) * weights).to(run.processes.device)
    first_step = 0
    for stage in scheduler.stages:
        scheduler.train_step, first_step = first_step, first_step + stage.num_steps
        settings = {"batch_size": stage.batch_size, "learning_rate": stage.learning_rate}
        if stage.name != "spatial" and config.distillation_steps:
            settings_of_moments = {**settings, "num_steps": config.distillation_steps, "ema_decay": config.ema_decay}
            teach = partial(distil, *run.diffusion, moments, processes=run.processes, **settings_of_moments)
            run.learn("moments", run.diffusion[0].unet, teach, settings_of_moments)
            run.done("warm-up (moments)")
        if stage.name != "spatial" and config.auxiliary == "none":
            sampler = DDIMGenerator(run.diffusion[0], run.facts.image_shape, AUXILIARY_INFERENCE_STEPS)
            settings["num_steps"] = stage.num_steps
            teach = partial(fit_generator, sampler, features, embedding, processes=run.processes, **settings)
            run.learn(stage.name, run.diffusion[0].unet, teach, settings)
        else:
            if stage.name != "spatial" and "frequency" not in sources and not run.has_learned(stage.name):
                sources["frequency"] = auxiliary_images(run, features, embedding)
            run.warm_up(
                stage.name,
                lambda: curriculum_batch(scheduler, sources, run.processes),
                num_steps=stage.num_steps,
                learning_rate=stage.learning_rate,
            )
        run.done(f"warm-up ({stage.name})")


def auxiliary_images(run: "Run", features: "Embedding", embedding: "torch.Tensor") -> "AuxiliaryImages":
    """Images of a one-step generator, or of another diffusion model, fitted to the noisy frequency features."""
    from diffusers_dp.models.feature_generator import FeatureGenerator
    from diffusers_dp.models.one_step import DDIMGenerator
    from diffusers_dp.runs.diffusion_run import build
    from diffusers_dp.runs.warm_up import AuxiliaryImages, fit_generator

    config = run.config
    if config.auxiliary == "diffusion":
        from_nothing = replace(config, pretrained_model_name_or_path=None)
        denoiser = build(from_nothing, run.facts, embedding.device).model
        generator = DDIMGenerator(denoiser, run.facts.image_shape, AUXILIARY_INFERENCE_STEPS)
    else:
        generator = FeatureGenerator(run.facts.image_shape, len(embedding), config.generator_channels)
        generator = generator.to(embedding.device)
    settings = {
        "num_steps": config.generator_steps, "batch_size": config.generator_batch_size,
        "learning_rate": config.generator_learning_rate,
    }  # fmt: skip
    teach = partial(fit_generator, generator, features, embedding, processes=run.processes, **settings)
    module = generator if config.auxiliary == "generator" else generator.denoiser.unet
    run.learn("auxiliary_generator", module, teach, {**settings, "auxiliary": config.auxiliary})
    if config.auxiliary == "generator":
        run.keep("auxiliary_generator", generator)
    images = AuxiliaryImages(generator, config.num_auxiliary_images)
    run.done("auxiliary generator")
    return images


main = main_of("feta_pro", train=train)


if __name__ == "__main__":
    launch(main)
