# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Teachers that judge images, and the student that learns from noisy sums of their judgements (GS-WGAN, PATE-GAN,
DataLens, G-PATE). A teacher is small, because the door trains hundreds of them."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..distributed.processes import Processes
from ..gradients.step import Gradients
from ..privacy.teachers import ANSWER, Teacher, Teaching
from .adversary import SMALLEST_DISTANCE


MEMORY = 50  # rounds whose votes the student's critic keeps learning from
SMALLEST = 1e-12  # added to norms
LARGEST_BIN = 1.0  # bins cover [-1, 1]; a value outside gets the last one


class Critic(nn.Module):
    """Scores images: one hidden layer, and one output for each class.

    Args:
        values (`int`): Values of an image.
        num_classes (`int`): Number of classes; 1 for unlabelled images.
        width (`int`): Hidden units.
    """

    def __init__(self, values: int, num_classes: int, width: int):
        super().__init__()
        self.hidden, self.scores = nn.Linear(values, width), nn.Linear(width, num_classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        """Scores images `[B, C, H, W]` in [-1, 1] with labels `[B]`; the scores `[B]` are high for real images."""
        scores = self.scores(F.leaky_relu(self.hidden(images.flatten(1)), 0.2))
        if labels is None:
            return scores[:, 0]
        return (scores * (labels[:, None] == torch.arange(scores.shape[1], device=labels.device))).sum(1)


def critic_loss(
    teacher: Teacher, real: torch.Tensor, real_labels: Any, fake: torch.Tensor, labels: Any
) -> torch.Tensor:
    """Logistic loss of real images and fakes."""
    return F.softplus(-teacher(real, real_labels)).mean() + F.softplus(teacher(fake, labels)).mean()


def gradients(teacher: Teacher, fake: torch.Tensor, labels: Any) -> torch.Tensor:
    """Gradient at each fake of the generator's loss, `[n, C * side * side]` (GS-WGAN, Section 3)."""
    return torch.func.grad(lambda images: F.softplus(-teacher(images, labels)).sum())(fake).flatten(1)


def signs(teacher: Teacher, fake: torch.Tensor, labels: Any, *, kept: int) -> torch.Tensor:
    """Signs of the `kept` largest entries of each fake's gradient, zero elsewhere (DataLens, Algorithm 2)."""
    found = gradients(teacher, fake, labels)
    least = found.abs().topk(kept, dim=1).values[:, -1:]
    return torch.where(found.abs() >= least, found.sign(), 0.0)


def votes(teacher: Teacher, fake: torch.Tensor, labels: Any) -> torch.Tensor:
    """Scores for fake and for real, `[n, 2]`. A fake counts as real if the teacher scores it above the mean of the
    round: judged by their sign, nearly all fakes get the same vote."""
    scores = teacher(fake, labels)
    scores = scores - scores.mean()
    return torch.stack([-scores, scores], 1)


def bins(teacher: Teacher, fake: torch.Tensor, labels: Any, *, projection: torch.Tensor, number: int) -> torch.Tensor:
    """Scores of the bins of each projected value of the gradient, `[n, p, bins]`: the nearest centre is highest
    (G-PATE, Algorithm 1)."""
    found = gradients(teacher, fake, labels)
    found = torch.einsum("nv,nvp->np", found / (found.norm(dim=1, keepdim=True) + SMALLEST), projection.to(found))
    return -(found[:, :, None] - centres(number, found.device)).abs()


def centres(number: int, device: torch.device) -> torch.Tensor:
    """Centres of the bins of [-1, 1]."""
    return (torch.arange(number, device=device) + 0.5) * (2 * LARGEST_BIN / number) - LARGEST_BIN


def reduced(images: torch.Tensor, side: int) -> torch.Tensor:
    """Averages square blocks of images `[B, C, H, W]`, so that they have this side."""
    factor = images.shape[-1] // side
    return F.avg_pool2d(images, factor) if factor > 1 else images


class Student(nn.Module):
    """A generator, whose images teachers judge, and what it makes of their noisy answers. It uses nothing private.

    Args:
        network (`nn.Module`): The generator's weights.
        draw (`Callable`): Labels `[n]` to images `[n, C, H, W]` in [0, 1], with gradients.
        follow (`Callable`): Student, images at the teachers' size, labels and answer, to the loss of the generator.
        optimizer (`Callable`): Parameters to an optimizer.
        side (`int`), number (`int`), steps (`int`): Side of the images that teachers see, images of a round, and
            generator steps for each.
        input_noise (`float`): Standard deviation of noise on these images.
        mode_seeking (`float`): Weight of the inverse mean distance of two images of one class (Mao et al. 2019).
        num_classes (`int`, *optional*): Number of classes; `None` for unlabelled images.
        processes (`Processes`): Processes of the run.
        critic (`Critic`, *optional*): The student's own, where teachers vote.
    """

    def __init__(
        self, network: nn.Module, draw: Callable[[torch.Tensor], torch.Tensor],
        follow: Callable[["Student", torch.Tensor, torch.Tensor | None, torch.Tensor], torch.Tensor],
        optimizer: Callable[[Any], torch.optim.Optimizer], *, side: int, number: int, steps: int, input_noise: float,
        mode_seeking: float, num_classes: int | None, processes: Processes, critic: Critic | None = None,
    ):  # fmt: skip
        super().__init__()
        self.network, self.critic = network, critic
        self.draw, self.follow, self.side, self.number, self.steps = draw, follow, side, number, steps
        self.input_noise, self.mode_seeking = input_noise, mode_seeking
        self.num_classes, self.processes = num_classes, processes
        self.optimizer = optimizer(self.parameters())
        self.memory: deque[tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]] = deque(maxlen=MEMORY)
        self.seed = 0

    def inputs(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Draws the images of a round, `[n, C, side, side]` in [-1, 1], the same in every process."""
        self.seed = self.processes.on_first(lambda: int(torch.randint(2**31, ())))
        with torch.no_grad():
            images, labels = self._drawn()
            noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(self.seed))
        return images + self.input_noise * noise.to(images), labels

    def learn(self, answers: Gradients) -> None:
        """Follows the noisy answer of a round, in all steps but the last, whose gradient it leaves to the loop."""
        for step in range(self.steps):
            self.zero_grad()
            images, labels = self._drawn()
            loss = self.follow(self, images, labels, answers[ANSWER].to(images))
            if self.mode_seeking and len(images) > (classes := self.num_classes or 1):
                distance = (images[classes:] - images[:-classes]).abs().flatten(1).mean(1)  # of one class
                loss = loss + self.mode_seeking * (1 / (distance + SMALLEST_DISTANCE)).mean()
            loss.backward()
            if step + 1 < self.steps:
                self.optimizer.step()

    def _drawn(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        device = self.processes.device
        labels = torch.arange(self.number, device=device) % (self.num_classes or 1)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            images = reduced(2 * self.draw(labels) - 1, self.side)
        return images, None if self.num_classes is None else labels


def follow_gradient(
    student: Student, images: torch.Tensor, labels: torch.Tensor | None, answer: torch.Tensor
) -> torch.Tensor:
    """Moves images against a noisy gradient. Its length says nothing: noise is most of it."""
    return (images.flatten(1) * answer).sum() / (answer.norm() + SMALLEST)


def follow_bins(
    student: Student, images: torch.Tensor, labels: torch.Tensor | None, answer: torch.Tensor,
    *, projection: torch.Tensor, number: int,
) -> torch.Tensor:  # fmt: skip
    """Takes the mean of the bins' centres under the noisy votes for each value, and projects back."""
    values = answer.view(len(answer), -1, number) @ centres(number, answer.device)
    return follow_gradient(student, images, labels, torch.einsum("np,nvp->nv", values, projection.to(answer)))


def follow_votes(
    student: Student, images: torch.Tensor, labels: torch.Tensor | None, answer: torch.Tensor
) -> torch.Tensor:
    """Teaches the student's critic the noisy votes of the last rounds, and raises its scores (PATE-GAN, Section 4)."""
    critic, memory = student.critic, student.memory
    assert critic is not None
    real = (0.5 + (answer[:, 1] - answer[:, 0]) / 2).clamp(0, 1)  # noisy parts of the teachers
    if not memory or not torch.equal(memory[-1][2], real):  # the first step of a round
        memory.append((images.detach(), labels, real))
    loss = sum(
        F.binary_cross_entropy_with_logits(critic(seen, classes), wanted) for seen, classes, wanted in memory
    ) / len(memory)
    frozen = {name: weight.detach() for name, weight in critic.named_parameters()}
    return loss + F.softplus(-torch.func.functional_call(critic, frozen, (images, labels))).mean()


def teaching_of(config: Any, image_shape: tuple[int, int, int], num_classes: int | None) -> tuple[Teaching, Any]:
    """What a method's teachers do, and how its student follows.

    Args:
        config (`TeacherConfig`): The flags.
        image_shape (`tuple[int, int, int]`): (C, H, W).
        num_classes (`int`, *optional*): Number of classes; `None` for unlabelled images.
    """
    values, projection = image_shape[0] * config.side**2, torch.empty(0)
    if config.aggregation == "bins":  # public: projected values of a gradient of norm 1 are about N(0, 1/4)
        # A matrix for each image of a round: one for all would hide the same directions in each round.
        size = (config.generated_per_round, values, config.projected_values)
        projection = torch.randn(size, generator=torch.Generator().manual_seed(config.seed)) / 2
    in_bins = {"projection": projection, "number": config.bins_per_value}
    blame: dict[str, Any] = {
        "gradients": gradients, "votes": votes, "signs": partial(signs, kept=config.signs_per_image),
        "bins": partial(bins, **in_bins),
    }  # fmt: skip
    follow: dict[str, Any] = {"votes": follow_votes, "bins": partial(follow_bins, **in_bins)}
    teaching = Teaching(
        partial(Critic, values, num_classes or 1, config.teacher_width), critic_loss,
        blame[config.aggregation], config.teacher_steps, config.teacher_batch_size, config.teacher_learning_rate,
        config.first_teacher_steps, partial(reduced, side=config.side), config.teacher_noise,
        votes=config.num_votes is not None,
    )  # fmt: skip
    return teaching, follow.get(config.aggregation, follow_gradient)
