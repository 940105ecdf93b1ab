# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A reference: a classifier trained on the real images with DP-SGD, at the epsilon of the release (Ghalebikesabi et
al. 2023, Tables 1 and 5, after De et al. 2022).

It shows the accuracy of a released classifier instead of released images. It is another release about the same people:
publishing it, or its accuracy, would add its epsilon to that of the release. It has a separate ledger.
"""

from pathlib import Path

import torch
from diffusers.training_utils import EMAModel
from torch import nn
from tqdm.auto import tqdm

from ..accounting.ledger import PrivacyLedger
from ..mechanisms import sampled
from ..models.private_set import classification_loss
from ..privacy.sensitive import SensitiveImages
from .classifiers import network_scores
from .images import ImageSet
from .measurement import WITH_DP
from .utility import Utility, score_predictions


STEPS = 300
EXPECTED_BATCH_SIZE = 1024
MAX_GRAD_NORM = 1.0
LEARNING_RATE, MOMENTUM = 0.5, 0.9
EMA_DECAY = 0.9999
MAX_PHYSICAL_BATCH_SIZE = 256
FRESH_NOISE = "Noise is drawn afresh and from no seed: the same command in another folder gives other numbers."
HYPOTHETICAL = (
    "A separate release, for comparison only: its epsilon is not part of the budget of the release that is judged, "
    "and would add to it if the classifier or this number were published."
)


class DPNetwork(nn.Sequential):
    """A small CNN for DP-SGD: few parameters, so that little noise is added, and tanh, whose bounded activations keep
    gradients near the clip norm (Papernot et al. 2021). It has no normalisation, in particular no batch norm.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W), at least 8 pixels a side.
        num_classes (`int`): Number of logits.
    """

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int):
        super().__init__(
            nn.Conv2d(image_shape[0], 16, 5, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(2, stride=1),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(min(6, image_shape[1] // 4)),
            nn.Flatten(),
            nn.Linear(32 * min(6, image_shape[1] // 4) ** 2, 32), nn.Tanh(), nn.Linear(32, num_classes),
        )  # fmt: skip


def reference_dp(
    real_train: ImageSet,
    real_test: ImageSet,
    *,
    epsilon: float,
    delta: float,
    steps: int = STEPS,
    expected_batch_size: int = EXPECTED_BATCH_SIZE,
    seed: int = 0,
    ledger_path: Path | str | None = None,
    device: torch.device | str = "cpu",
) -> Utility:
    """Trains with DP-SGD on real images and tests on others. Uses SGD with momentum on noisy sums of gradients clipped
    to norm 1, over Poisson samples, and evaluates the averaged weights.

    Args:
        real_train (`ImageSet`): Sensitive images with labels; their declared number is public.
        real_test (`ImageSet`): Test images with labels.
        epsilon, delta (`float`): Privacy parameters of the release.
        steps (`int`, defaults to 300): Number of DP-SGD steps.
        expected_batch_size (`int`, defaults to 1024): Expected batch size qN, which is also the divisor; at most N.
        seed (`int`, defaults to 0): Seed of the initial weights. Noise and samples depend on no seed.
        ledger_path (`Path`, *optional*): Path of this classifier's ledger; defaults to memory.
        device (`str` or `torch.device`, defaults to `"cpu"`): Device of the training.

    Returns:
        `Utility`: Result like that of `measure_utility`, for one seed.

    Raises:
        UsageError: No noise reaches the budget.
    """
    class_names, (channels, height, width) = real_train.class_names or (), real_train.images.shape[1:]
    ledger = PrivacyLedger(
        ledger_path, target_epsilon=epsilon, target_delta=delta, num_images=real_train.public_size,
        public_facts={
            "image_shape": [channels, height, width], "use": "a DP classifier for comparison, a separate release",
        },
    )  # fmt: skip
    try:
        batch_size = min(expected_batch_size, real_train.public_size)
        sample_rate = batch_size / real_train.public_size
        mechanism = sampled(sample_rate)
        mechanism = mechanism.with_noise(ledger.calibrate(mechanism, steps))
        door = SensitiveImages(
            real_train.images, real_train.labels, num_images=real_train.public_size, capacity=real_train.capacity,
            image_shape=(channels, height, width), ledger=ledger, class_names=class_names, device=torch.device(device),
        )  # fmt: skip
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            network = DPNetwork((channels, height, width), len(class_names)).to(device)
        optimizer = torch.optim.SGD(network.parameters(), LEARNING_RATE, MOMENTUM)
        ema = EMAModel(network.parameters(), decay=EMA_DECAY)
        for _ in tqdm(range(steps), desc=f"DP classifier (seed {seed})", unit="step", leave=False):
            gradients = door.noisy_gradient(
                network, classification_loss, mechanism, max_grad_norm=MAX_GRAD_NORM,
                normaliser=batch_size, noise_multiplicity=1, max_physical_batch_size=MAX_PHYSICAL_BATCH_SIZE,
                reserve_steps=steps,
            )  # fmt: skip
            for name, parameter in network.named_parameters():
                parameter.grad = gradients[name]
            optimizer.step()
            ema.step(network.parameters())
        ema.copy_to(network.parameters())
        epsilon_spent = ledger.epsilon()
    finally:
        ledger.close()
    protocol = {
        "classifier": "dp_cnn", "trained_on": WITH_DP, "tested_on": "real", "num_train": real_train.public_size,
        "num_test": len(real_test), "seeds": [seed], "parameters": sum(p.numel() for p in network.parameters()),
        "epsilon": epsilon_spent, "delta": delta, "noise_multiplier": mechanism.noise_multiplier,
        "sample_rate": sample_rate, "steps": steps, "max_grad_norm": MAX_GRAD_NORM, "learning_rate": LEARNING_RATE,
        "momentum": MOMENTUM, "hypothetical": HYPOTHETICAL, "repetition": FRESH_NOISE,
    }  # fmt: skip
    predicted = network_scores(network, real_test.images, device).argmax(1)
    return score_predictions([predicted], real_test, protocol)
