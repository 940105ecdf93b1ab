"""Evolve public images towards sensitive ones by noisy votes, under one total (epsilon, delta), and release them as a
data set.

    accelerate launch training/train_private_evolution.py
    accelerate launch training/train_private_evolution.py --dataset_name ylecun/mnist \\
        --config training/recipes/pe/mnist_cpu.yaml
    accelerate launch training/train_private_evolution.py --train_data_dir scans --class_names benign,malignant \\
        --generator public_images --public_data_dir drawings --target_epsilon 5

In each generation every sensitive image votes for the candidate of its class that is nearest to it. The noisy
histogram of the votes says which candidates have children; children are variations of them. Only the votes touch the
images, through `SensitiveImages`; each query writes its row to the ledger first. No network is trained on the way.

The release is a data set, `datasets.load_dataset("runs/pe/release")`. With `--train_on_result` there is
a second one, `model/release/`: a diffusion model of these images, which cost no more.

Stages (Lin et al. 2024, Algorithm 1): (votes for captions ->) candidates -> (votes, parents, children) for each
generation -> release/ (-> model/release/). `docs/methods/private_evolution.md` has more.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from diffusers_dp.runs.launch import launch
from diffusers_dp.training.script import main_of


if TYPE_CHECKING:
    import torch

    from diffusers_dp.methods.private_evolution import PrivateEvolutionConfig
    from diffusers_dp.models.variations import CandidateGenerator
    from diffusers_dp.queries.mean_features import FeatureMap
    from diffusers_dp.queries.votes import PooledPixels
    from diffusers_dp.runs.run import TrainingRun

    Run = TrainingRun[PrivateEvolutionConfig]

PURPOSE = "They are variations of what is public, chosen by noisy votes of the sensitive images."


def train(run: "Run") -> None:
    from diffusers_dp.queries.votes import PooledPixels
    from diffusers_dp.release.artefacts import DatasetArtefact
    from diffusers_dp.runs.evolution import proposer_of
    from diffusers_dp.runs.result_model import model_of_images
    from diffusers_dp.runs.warm_up import LabelledImages

    config, names = run.config, run.facts.class_names

    # 1. Who proposes candidates, and where they are compared with images.
    proposer, network = proposer_of(run), config.perceptual
    embed = PooledPixels(config.embedding_pool) if network is None else network
    run.note_public_inputs([*proposer.public_inputs, *([] if network is None else network.public_inputs)])

    # 2. Generations.
    images, labels = evolve(run, proposer, embed)
    run.done("images")

    # 3. A model of them, which looks at nothing else.
    pipeline = model_of_images(run, LabelledImages(images, labels)) if config.train_on_result else None

    # 4. The releases.
    facts = {**config.training_facts, **proposer.facts}
    release = run.release(DatasetArtefact(images, None if names is None else labels, names, PURPOSE), facts)
    if pipeline is not None and release is not None:
        run.release_derived(release, pipeline, facts)


def evolve(
    run: "Run", proposer: "CandidateGenerator", embed: "FeatureMap | PooledPixels"
) -> "tuple[torch.Tensor, torch.Tensor]":
    """The children of the last generation, uint8 `[m, C, H, W]`, and their classes, int64 `[m]`."""
    from diffusers_dp.queries.votes import NearestCandidates
    from diffusers_dp.runs.evolution import Population, embedded_captions, embedded_images, vote_for_captions

    config = run.config
    device = "cpu" if config.is_exact else run.processes.device  # candidates are embedded where the images are
    captions = embedded_captions(run, proposer)  # first: what cannot be is refused before images are looked at
    images, see = (run.images, embed) if config.perceptual is None else embedded_images(run, embed)
    vote_for_captions(run, proposer, captions, images, see, device)
    population = Population(run, proposer, config.candidates_per_class, len(run.facts.class_names or ("",)))
    generations = list(zip(config.votes, config.strengths, strict=True))
    for query, strength in run.processes.bar(generations, desc="Generations", unit="generation"):
        candidates, sha256 = population.embedded(embed, config.lookahead, strength, device)
        asked = replace(query, candidates_sha256=sha256, embedding=embed.facts)
        votes = run.ask(asked, NearestCandidates(see, candidates, config.num_votes), images=images)
        last = query.generation == len(config.votes)
        number = (config.images_per_class or config.candidates_per_class) if last else config.candidates_per_class
        population = population.children(votes, number, strength)
    return population.images(), population.labels


main = main_of("pe", train=train)


if __name__ == "__main__":
    launch(main)
