"""Ask for noisy moments of the sensitive images, under one total (epsilon, delta), and release images that are drawn
from Gaussians with these moments, as a data set.

    accelerate launch training/train_moments.py
    accelerate launch training/train_moments.py --dataset_name ylecun/mnist \\
        --config training/recipes/moments/mnist_cpu.yaml
    accelerate launch training/train_moments.py --train_data_dir scans --class_names benign,malignant \\
        --num_train_images 1500 --resolution 64 --target_epsilon 5

An image is described by its low frequencies. The questions are counts and means of each class, rounds of k-means that
split a class into parts, covariances of the parts, and how many pixels have which value. Only they touch the images,
through `SensitiveImages`; each writes its row to the ledger first. No network is trained, and a run takes a minute.

Stages: grey levels -> counts and means -> (means of parts) for each round -> covariances -> images -> release/ (->
model/release/, with `--train_on_result`). `docs/moments.md` has more.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from diffusers_dp.audit.preflight import preflight
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.queries.class_counts import ENOUGH
from diffusers_dp.runs.launch import launch, run_method


if TYPE_CHECKING:
    import torch

    from diffusers_dp.methods.moments import MomentsConfig
    from diffusers_dp.models.gaussian_mixture import GaussianMixture
    from diffusers_dp.queries.moments import MomentQuery, PartQuery
    from diffusers_dp.runs.run import TrainingRun

    Run = TrainingRun[MomentsConfig]

PURPOSE = "They are drawn from Gaussians that have noisy moments of the sensitive images; fine detail is not there."
FIRST_SPREAD = 0.7  # of centres around the mean of their class, in standard deviations of an image
LEAST_ENERGY = 0.1  # of an image about its centre, as a share of what is left without the parts
BORROWED = 150  # images with the covariance of its class that a part is given, for a noise multiplier of 1


def train(run: "Run") -> None:
    from diffusers_dp.release.dataset_release import DatasetArtefact
    from diffusers_dp.runs.result_model import model_of_release

    config, names = run.config, run.facts.class_names

    # 1. The questions.
    levels = run.ask(config.grey_levels)
    mixture, counts = ask_for_mixture(run)

    # 2. Images.
    images, labels = draw_release(run, mixture, counts, levels)
    run.done("images")

    # 3. A model of them, which looks at nothing else.
    pipeline = model_of_release(run, images, labels)

    # 4. The releases.
    facts = config.training_facts
    release = run.release(DatasetArtefact(images, None if names is None else labels, names, PURPOSE), facts)
    if pipeline is not None and release is not None:
        run.release_derived(release, pipeline, facts)


def ask_for_mixture(run: "Run") -> "tuple[GaussianMixture, torch.Tensor]":
    """The mixture of each class, and the noisy numbers of images, `[classes]`. Each question begins where the noisy
    answers before it end."""
    import torch

    from diffusers_dp.models.gaussian_mixture import GaussianMixture, shrunk, symmetric

    config, sums = run.config, run.ask(run.config.class_moments)
    counts = sums[:, -2].clamp_min(least_count(run, config.class_moments))
    means = (sums[:, :-2] / counts[:, None])[:, None]  # [classes, 1, D]
    between = float((counts * means.square().sum((1, 2))).sum() / counts.sum())
    energy = max(float(sums[:, -1].sum() / counts.sum()) - between, LEAST_ENERGY * between)

    centres = means.repeat(1, config.parts, 1)
    if config.part_means:
        generator, spectrum = torch.Generator().manual_seed(config.seed), config.class_moments.spectrum
        spread = (energy / float(spectrum.weights.pow(-2).sum())) ** 0.5 / spectrum.weights
        centres = centres + FIRST_SPREAD * spread * torch.randn(centres.shape, generator=generator)
        for query in config.part_means:
            sums, sizes, noise = ask_about_parts(run, query, centres, config.moment_clip * energy**0.5)
            centres = centres + shrunk(sums / sizes[..., None], noise / sizes)
        apart = (sizes / sizes.sum())[..., None] * (centres - means).square()
        energy = max(energy - float(apart.sum()), LEAST_ENERGY * energy)
    sums, sizes, _ = ask_about_parts(run, config.covariances, centres, config.moment_clip * energy**0.5)
    of_class = sums.sum(1, keepdim=True) / sizes.sum(1)[:, None, None]
    borrowed = BORROWED * run.plan.rows[config.covariances.name].noise_multiplier
    pairs = (sums + borrowed * of_class) / (sizes + borrowed)[..., None]
    return GaussianMixture(sizes, centres, symmetric(pairs)), counts


def ask_about_parts(
    run: "Run", query: "PartQuery", centres: "torch.Tensor", clip: float
) -> "tuple[torch.Tensor, torch.Tensor, float]":
    """Noisy sums `[classes, P, d]` of the rows of each part, noisy numbers of images `[classes, P]`, and the standard
    deviation of the noise in a sum of differences."""
    import math

    import torch

    from diffusers_dp.queries.moments import COUNT
    from diffusers_dp.queries.votes import hash_tensor

    query = replace(query, centres_sha256=hash_tensor(torch.cat([centres.flatten(), torch.tensor([clip])])))
    counts, sums = query.parts_of(run.ask(query, query.rows(centres, clip)), clip)
    noise = run.plan.rows[query.name].noise_multiplier * math.hypot(1, COUNT)
    return sums, counts.clamp_min(least_count(run, query)), noise * clip


def least_count(run: "Run", query: "MomentQuery") -> float:
    """The least number of images that an answer is divided by."""
    from diffusers_dp.queries.moments import COUNT

    return max(1.0, ENOUGH * run.plan.rows[query.name].noise_multiplier / COUNT)


def draw_release(
    run: "Run", mixture: "GaussianMixture", counts: "torch.Tensor", levels: "torch.Tensor"
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Images of the release, uint8 `[m, C, H, W]`, and their classes, int64 `[m]`."""
    import torch

    from diffusers_dp.models.gaussian_mixture import in_levels
    from diffusers_dp.sampling.class_balance import balanced_labels

    config = run.config
    shares = counts if config.class_balance == "released" else torch.ones_like(counts)
    shares = tuple((shares / shares.sum()).tolist())
    labels = torch.from_numpy(balanced_labels(shares, config.images_per_class * len(counts)).copy())
    coefficients = mixture.draw(labels, torch.Generator().manual_seed(config.seed))
    spectrum, images = config.class_moments.spectrum, torch.empty(len(labels), *config.image_shape, dtype=torch.uint8)
    for label in labels.unique():
        drawn = spectrum.images(coefficients[labels == label])
        for channel, found in enumerate(levels[label]):
            drawn[:, channel] = in_levels(drawn[:, channel], found)
        images[labels == label] = drawn.mul(255).round().byte()
    return images, labels


def main(argv: list[str] | None = None) -> None:
    run_method(replace(METHODS["moments"], train=train), preflight, argv)


if __name__ == "__main__":
    launch(main)
