"""Make a few images of each class that train a classifier as the sensitive ones do, under one total (epsilon, delta),
and release them as a data set.

    accelerate launch training/train_psg.py
    accelerate launch training/train_psg.py --dataset_name ylecun/mnist --config training/recipes/psg/mnist_cpu.yaml

The images are made to train classifiers, not to look real. DP-SGD gives a noisy gradient of a random network on the
sensitive images, through `SensitiveImages`; each step is in the ledger first. Synthetic images are moved until their
gradient has its direction. The network then learns from them, and is drawn anew from time to time.

Stages (Chen et al. 2022, Private Set Generation, Algorithm 1): noisy gradients -> release/. The one loop of DP-SGD
runs them, so checkpoints and resuming are those of every method.
"""

from typing import TYPE_CHECKING, Any

from diffusers_dp.runs.launch import launch
from diffusers_dp.training.script import main_of


if TYPE_CHECKING:
    from diffusers_dp.methods.psg import PSGConfig
    from diffusers_dp.runs.dp_sgd import Trained
    from diffusers_dp.runs.run import TrainingRun

    Run = TrainingRun[PSGConfig]

PURPOSE = "They are made to train classifiers, not to look real: to the eye most of them are noise."


def train(run: "Run") -> None:
    from diffusers_dp.release.artefacts import DatasetArtefact

    # 1. Noisy gradients, which synthetic images follow.
    trained = build(run.config, run.facts, run.processes.device, run.processes.same_weights)
    run.dp_sgd(trained)

    # 2. The release.
    images: Any = trained.module
    artefact = DatasetArtefact(images.rounded(), images.labels.cpu(), run.facts.class_names, PURPOSE)
    run.release(artefact, run.config.training_facts)


def build(config: Any, facts: Any, device: Any, same_weights: Any = lambda network: None) -> "Trained":
    """The images as what is trained, and a random network as what the loss is called with."""
    import torch

    from diffusers_dp.errors import UsageError
    from diffusers_dp.methods.psg import IMAGE_MOMENTUM
    from diffusers_dp.models.private_set import ConvNet, GradientMatching, SyntheticImages, classification_loss
    from diffusers_dp.runs.dp_sgd import Trained

    if facts.class_names is None:
        raise UsageError("These images have no classes to tell apart: name their column with --label_column.")
    classes = len(facts.class_names)
    images = SyntheticImages(config.images_per_class, classes, facts.image_shape).to(device)
    network = ConvNet(facts.image_shape, classes, config.classifier_width).to(device)
    if config.matched_layers == "last":
        network.train_last_layer_alone()
    if config.image_optimizer == "sgd":
        optimizer: Any = torch.optim.SGD(images.parameters(), lr=config.learning_rate, momentum=IMAGE_MOMENTUM)
    else:
        optimizer = torch.optim.AdamW(images.parameters(), lr=config.learning_rate, **config.adam)
    matching = GradientMatching(
        images, network, optimizer, same_weights, config.seed, steps_per_network=config.steps_per_network,
        image_steps=config.image_steps, remembered_gradients=config.remembered_gradients,
        network_steps=config.network_steps, network_learning_rate=config.network_learning_rate,
    )  # fmt: skip
    return Trained(images, network, classification_loss, matching, optimizer=optimizer)


main = main_of("psg", train=train, build=build)


if __name__ == "__main__":
    launch(main)
