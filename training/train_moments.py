"""Ask for noisy moments of the sensitive images, under one total (epsilon, delta), and release images that are drawn
from Gaussians with these moments, as a data set.

    accelerate launch training/train_moments.py
    accelerate launch training/train_moments.py --dataset_name ylecun/mnist \\
        --config training/recipes/moments/mnist_cpu.yaml
    accelerate launch training/train_moments.py --train_data_dir scans --class_names benign,malignant \\
        --num_train_images 1500 --resolution 64 --target_epsilon 5

An image is described by its low frequencies. The queries are counts and means of each class, rounds of k-means that
split a class into parts, covariances of the parts, and how many pixels have which value. With `--matched_networks` one
more is about mean features of random networks. With `--public_data_dir`, public images are moved to the moments, and
take the place of Gaussian draws. Only queries touch the sensitive images, through `SensitiveImages`; each writes its
row to the ledger first. With `--budget judge=SHARE` DP-SGD trains a linear classifier: it says how probable each class
of a drawn image is. A run takes a minute or a few.

Stages: (mean features of random networks) -> grey levels -> counts and means -> (means of parts) for each round ->
covariances -> (judge) -> images -> release/ (-> model/release/, with `--train_on_result`).
`docs/methods/statistics.md` has more.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from diffusers_dp.runs.launch import launch
from diffusers_dp.training.script import main_of


if TYPE_CHECKING:
    from diffusers_dp.runs.moments_run import MomentsRun

PURPOSE = "They are drawn from Gaussians that have noisy moments of the sensitive images; fine detail is not there."
JUDGED = " `label_probabilities` is what a judge says of each, a classifier that was trained under the same epsilon."
MOST_PROBABLE = " `label` is its most probable class."
MATCHED = " Gaussian draws were moved to mean features of random networks, to teach classifiers and not to look real."

MOVED = "{} are public images that were moved to noisy moments of the sensitive images."
OTHERS = " Gaussians with these moments drew the others."
DEFORMED = " Each was turned, scaled, shifted and bent at random, to teach classifiers."


def train(run: "MomentsRun") -> None:
    from diffusers_dp.methods.judge import JUDGE
    from diffusers_dp.models.augmentation import deformed
    from diffusers_dp.release.artefacts import DatasetArtefact
    from diffusers_dp.runs.judge import train_judge
    from diffusers_dp.runs.moments_run import ask_for_moments
    from diffusers_dp.runs.result_model import model_of_images
    from diffusers_dp.runs.warm_up import LabelledImages
    from diffusers_dp.sampling.drawing import generators

    config, names = run.config, run.facts.class_names

    # 1. The queries, and images that are drawn from the answers.
    num_images = config.images_per_class * len(names or ("",))
    moments, judge = ask_for_moments(run), train_judge(run)
    moments = replace(moments, public=run.public, public_share=config.public_share)
    # A judge then sees images more like those it learned from. In colour it changed nothing.
    levels_twice = judge is not None and run.facts.image_shape[0] == 1
    images, labels = moments.draw(num_images, config.class_balance, config.seed, levels_twice)
    if config.deformation:
        images = deformed(images, config.deformation, generators(config.seed, range(len(images))))
    if judge is not None:
        judge = judge.balanced(images, labels)
        labels = judge.label(images).argmax(1) if config.labels == JUDGE else labels
    run.done("images")

    # 2. A model of them, which looks at nothing else.
    changed = moments.matching or run.public or config.deformation > 0  # of which the Gaussians know nothing
    ideal = None if changed else moments
    pipeline = model_of_images(run, LabelledImages(images, labels), ideal) if config.train_on_result else None

    # 3. The releases.
    facts = config.training_facts
    moved = MOVED.format("They") if config.public_share == 1 else MOVED.format("Some of them") + OTHERS
    purpose = moved if run.public else PURPOSE
    purpose += ("" if moments.matching is None else MATCHED) + (DEFORMED if config.deformation else "")
    if judge is not None:
        purpose += JUDGED + (MOST_PROBABLE if config.labels == JUDGE else "")
    release = run.release(DatasetArtefact(images, None if names is None else labels, names, purpose, judge), facts)
    if pipeline is not None and release is not None:
        run.release_derived(release, pipeline, facts)


main = main_of("moments", train=train)


if __name__ == "__main__":
    launch(main)
