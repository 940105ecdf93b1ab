"""Train a generator on sensitive images with DP-GAN, under one total (epsilon, delta). Release it, or a diffusion
model of its images.

    accelerate launch training/train_dp_gan.py
    accelerate launch training/train_dp_gan.py --dataset_name ylecun/mnist --config mnist_cpu
    accelerate launch training/train_dp_gan.py --train_data_dir scans --class_names benign,malignant --target_epsilon 5

Stages: (judge) -> DP-SGD on a discriminator, from which a generator learns -> release/. Only DP-SGD and the query of
`--evaluation_reserve` touch the images, through `SensitiveImages`; each writes its row to the ledger first. The
discriminator's gradient on real images is clipped and noised; that on generated images is added outside, with the same
weight. The generator learns from the discriminator alone.

Papers: "Differentially Private Generative Adversarial Network" (Xie et al. 2018); "Private GANs, Revisited" (Bie et
al. 2023), with many discriminator steps for each of the generator.
"""

from typing import TYPE_CHECKING, Any

from diffusers_dp.methods.config import resolve
from diffusers_dp.runs.launch import launch
from diffusers_dp.training.script import main_of


if TYPE_CHECKING:
    from diffusers_dp.methods.dp_gan import DPGANConfig
    from diffusers_dp.runs.dp_sgd import Trained
    from diffusers_dp.runs.run import TrainingRun

    Run = TrainingRun[DPGANConfig]


def train(run: "Run") -> None:
    from diffusers_dp.runs.result_model import model_of_generator, new_generator

    config = run.config
    pipeline, generator = new_generator(config, run.facts, run.processes.device)
    trained = adversaries(config, run.facts, generator, run.processes)

    # 1. Noisy gradients move the discriminator, and every few steps it moves the generator.
    run.dp_sgd(trained)

    # 2. The release: the generator, with averaged weights, or a model of its images.
    run.release_pipeline(pipeline or model_of_generator(run, generator), config.training_facts)


def adversaries(config: Any, facts: Any, generator: Any, processes: Any) -> "Trained":
    """Both networks as what is trained; the loss is that of the discriminator's real rows."""
    import torch

    from diffusers_dp.models.adversary import AdversarialStep, Adversaries, Discriminator
    from diffusers_dp.runs.dp_sgd import Trained

    classes = facts.num_classes
    discriminator = Discriminator(facts.image_shape, classes, config.discriminator_channels)
    network = getattr(generator, "unet", generator)
    gan = Adversaries(network, discriminator, config.discriminator_steps).to(processes.device)
    step = AdversarialStep(
        gan, generator, classes, processes, kind=config.gan_loss, input_noise=config.input_noise,
        mode_seeking=config.mode_seeking, max_grad_norm=config.max_grad_norm,
        normaliser=resolve(config, facts.num_units).normaliser, generator_batch_size=config.generator_batch_size,
        accuracy_floor=config.fake_accuracy_floor,
        physical_batch_size=config.physical_batch_size or config.generator_batch_size,
    )  # fmt: skip
    rates = {gan.discriminator: config.learning_rate, gan.generator: config.generator_learning_rate}
    groups = [{"params": each.parameters(), "lr": rate} for each, rate in rates.items()]
    optimizer = torch.optim.AdamW(groups, **config.adam)
    return Trained(gan, gan.discriminator, step.real_loss, step, optimizer=optimizer)


def build(config: Any, facts: Any, device: Any) -> "Trained":
    """New networks, for the pre-flight and `diffusers-dp audit run`."""
    from diffusers_dp.distributed.processes import Processes
    from diffusers_dp.runs.result_model import new_generator

    return adversaries(config, facts, new_generator(config, facts, device)[1], Processes(device=device))


main = main_of("dp_gan", train=train, build=build)


if __name__ == "__main__":
    launch(main)
