"""Train a generator with teachers on disjoint shares of sensitive images, under one total (epsilon, delta). Release a
model of its images.

    accelerate launch training/train_teachers.py
    accelerate launch training/train_teachers.py --dataset_name ylecun/mnist --config mnist_cpu
    accelerate launch training/train_teachers.py --aggregation votes --train_data_dir scans \\
        --class_names benign,malignant --target_epsilon 5

Stages: rounds in which all teachers judge generated images -> (a diffusion model of such images) -> release/. Only
the rounds touch the images, through `SensitiveImages.teachers`; each writes its row to the ledger first. One unit is
in one share, so one teacher may change arbitrarily; nothing is amplified.

What teachers say makes the method: GS-WGAN (`--aggregation gradients`), PATE-GAN (`votes`), DataLens (`signs`), G-PATE
(`bins`). `docs/methods/gans.md#teachers` has their papers, and what was changed to make their guarantees hold.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from diffusers_dp.methods.teachers import AGGREGATIONS, TeacherConfig
from diffusers_dp.runs.launch import launch
from diffusers_dp.training.script import main_of


if TYPE_CHECKING:
    from diffusers_dp.runs.dp_sgd import Trained
    from diffusers_dp.runs.run import TrainingRun

    Run = TrainingRun[TeacherConfig]


def train(run: "Run") -> None:
    from diffusers_dp.runs.result_model import model_of_generator, new_generator

    # 1. Rounds: teachers learn on their shares and judge images, and the generator follows the noisy answers.
    config = run.config
    pipeline, generator = new_generator(config, run.facts, run.processes.device)
    trained = student_of(config, run.facts, generator, run.processes)
    run.dp_sgd(trained, images=run.teachers(trained.loss))

    # 2. The release: the generator, with averaged weights, or a model of its images.
    run.release_pipeline(pipeline or model_of_generator(run, generator), config.training_facts)


def student_of(config: Any, facts: Any, generator: Any, processes: Any) -> "Trained":
    """The student as what is trained, and the teaching as its loss."""
    import torch

    from diffusers_dp.models.student import Critic, Student, teaching_of
    from diffusers_dp.runs.dp_sgd import Trained

    classes = facts.num_classes
    teaching, follow = teaching_of(config, facts.image_shape, classes)
    critic = None
    if config.aggregation == "votes":
        critic = Critic(facts.image_shape[0] * config.side**2, classes or 1, config.teacher_width)
    student = Student(
        getattr(generator, "unet", generator), generator.draw, follow,
        partial(torch.optim.AdamW, lr=config.learning_rate, **config.adam), side=config.side,
        number=config.generated_per_round, steps=config.generator_steps,
        input_noise=config.teacher_noise, mode_seeking=config.mode_seeking, num_classes=classes, processes=processes,
        critic=critic,
    ).to(processes.device)  # fmt: skip
    return Trained(student, student, teaching, student.learn, optimizer=student.optimizer)


def build(config: Any, facts: Any, device: Any) -> "Trained":
    """New networks, for the pre-flight."""
    from diffusers_dp.distributed.processes import Processes
    from diffusers_dp.runs.result_model import new_generator

    return student_of(config, facts, new_generator(config, facts, device)[1], Processes(device=device))


main = main_of(*AGGREGATIONS.values(), train=train, build=build)


if __name__ == "__main__":
    launch(main)
