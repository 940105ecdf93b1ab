"""Fit a one-step generator to noisy mean features of sensitive images, under one total (epsilon, delta), and
release it.

    accelerate launch training/train_mean_embedding.py
    accelerate launch training/train_mean_embedding.py --dataset_name ylecun/mnist \\
        --config training/recipes/dp_scattering/mnist_cpu.yaml
    accelerate launch training/train_mean_embedding.py --train_data_dir scans --features perceptual \\
        --feature_network path/to/network --class_names benign,malignant --target_epsilon 5

Stages, in the papers' order: the noisy mean embedding, one sum of features for each class and moment -> a generator
whose images have nearly that mean (-> a diffusion model that learned them) -> release/. Only the queries touch the
images, through `SensitiveImages`; each writes its row to the ledger first. There is no DP-SGD: fitting is
post-processing, for as many steps as one likes, and so is the choice among generators, by noisy answers of its own.

The features make the method: DP-MERF (`--features rff`), DP-Kernel (`rff_mixture`), DP-NTK (`ntk`), DP-HP (`hermite`),
DP-MEPF (`perceptual`), and scattering, which is our own. `docs/methods/statistics.md` has their papers.
"""

from typing import TYPE_CHECKING

from diffusers_dp.methods.mean_embedding import FEATURES, MeanEmbeddingConfig
from diffusers_dp.runs.launch import launch
from diffusers_dp.training.script import main_of


if TYPE_CHECKING:
    import torch

    from diffusers_dp.models.feature_generator import FeatureGenerator
    from diffusers_dp.models.one_step import OneStepGenerator
    from diffusers_dp.runs.run import TrainingRun

    Run = TrainingRun[MeanEmbeddingConfig]


def train(run: "Run") -> None:
    import torch

    from diffusers_dp.runs.result_model import model_of_generator, new_generator

    # 1. The queries, each answered once.
    config = run.config
    weights = run.ask(config.class_counts[0]) if config.class_counts else torch.ones(1, 1)
    answers = {
        query.name: (run.ask(query) * weights).to(run.processes.device)
        for query in (*config.matched, *config.stopping)
    }
    run.train_judge()
    embedding = torch.cat([answers[query.name] for query in config.matched], 1)

    # 2. A generator whose images have nearly these features on average, or the best of those on the way.
    pipeline, generator = new_generator(config, run.facts, run.processes.device)
    chosen = fit(run, generator, embedding, answers)
    run.done("generator")

    # 3. The release: the generator, or a model of its images.
    facts = {**config.training_facts, "features": config.features, **config.matched[0].meaning, **chosen}
    run.release_pipeline(pipeline or model_of_generator(run, generator), facts)


def fit(
    run: "Run",
    generator: "OneStepGenerator | FeatureGenerator",
    embedding: "torch.Tensor",
    answers: "dict[str, torch.Tensor]",
) -> dict[str, int]:
    """Ordinary training, on the noisy answers alone; returns what was chosen on the way."""
    from diffusers_dp.models.feature_generator import MovingAverage, frequency_matching_loss
    from diffusers_dp.queries.mean_features import moments
    from diffusers_dp.runs.early_stopping import EarlyStopping
    from diffusers_dp.runs.warm_up import fit_generator

    config, stopping = run.config, None
    if config.stopping:
        stopping = EarlyStopping(
            generator, [answers[query.name] for query in config.stopping], config.stopping[0].feature_map,
            num_steps=config.stopping_steps, num_images=config.num_stopping_images,
            batch_size=config.generator_batch_size, processes=run.processes, private=run.folder.private,
        )  # fmt: skip
    phi, rate = config.matched[0].feature_map, config.moving_average_learning_rate
    fit_generator(
        generator, moments(phi, len(config.matched)), embedding, num_steps=config.generator_steps,
        batch_size=config.generator_batch_size, learning_rate=config.generator_learning_rate, processes=run.processes,
        loss=frequency_matching_loss if rate is None else MovingAverage(embedding, rate),
        after_step=stopping,
    )  # fmt: skip
    return {} if stopping is None else stopping.choose()


main = main_of(*FEATURES.values(), train=train)


if __name__ == "__main__":
    launch(main)
