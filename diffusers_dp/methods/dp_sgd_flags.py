# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The flags of DP-SGD: its steps, samples, noise and weights, and what it leaves behind on its way."""

import os
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from .flag import RATE, expert, flag


#: Of Diffusers' `get_scheduler`, those that need no other number.
LR_SCHEDULERS = ("constant", "constant_with_warmup", "linear", "cosine")
ADAM = ("adam_beta1", "adam_beta2", "adam_weight_decay", "adam_epsilon")


@dataclass
class CheckpointFlags:
    """What DP-SGD leaves behind on its way."""

    _argument_group_name = "run of DP-SGD"

    checkpointing_steps: int | None = flag(
        None, "DP-SGD steps between two checkpoints, reserved together; unset: a tenth of --max_train_steps."
    )
    checkpoints_total_limit: int = flag(2, "Checkpoints of DP-SGD that stay in private/.")


@dataclass
class LoopFlags(CheckpointFlags):
    """The private training, and how its weights are averaged."""

    _argument_group_name = "DP-SGD"

    max_train_steps: int = flag(20, "DP-SGD steps.")
    restart_slack: int = flag(
        0, "Steps that the noise is calibrated for beyond --max_train_steps, because interruptions may lose some.",
        rare=True, at_least=0,
    )  # fmt: skip
    train_batch_size: int | None = flag(
        None, "Expected batch size B: sample rate B/N, gradient sum divided by B; unset: min(2048, N).",
        excludes=("sample_rate",),
    )  # fmt: skip
    sample_rate: str | None = flag(
        None, "Poisson sample rate q in place of --train_batch_size; the gradient sum is divided by floor(qN).",
        rare=True, **RATE,
    )  # fmt: skip
    noise_bands: str = flag(
        "1",
        "Steps over which DP-SGD's noise is correlated, so that it cancels in their sum, or 'auto' for the least "
        "computed error. As many groups of images take turns; b bands keep b - 1 vectors like the model in memory.",
        rare=True, choices=("1", "auto", "4", "8", "16"),
    )  # fmt: skip
    noise_multiplicity: int = flag(
        6, "K: draws of diffusion time and noise per image, averaged before its gradient is clipped."
    )
    max_grad_norm: float = flag(1e-3, "Clip norm of one image's gradient.")
    learning_rate: float = flag(4e-3, "Learning rate of the optimizer during DP-SGD.")
    lr_scheduler: str = flag("constant", "Its course over --max_train_steps.", rare=True, choices=LR_SCHEDULERS)
    lr_warmup_steps: int = flag(0, "DP-SGD steps in which it rises to --learning_rate from 0.", rare=True, at_least=0)
    adam_beta1: float = flag(
        0.9, "Decay of the mean of gradients in DP-SGD's AdamW, also in that of a generator beside it.",
        rare=True, at_least=0, below=1,
    )  # fmt: skip
    adam_beta2: float = flag(0.999, "Decay of the mean of squared gradients.", rare=True, at_least=0, below=1)
    adam_weight_decay: float = flag(
        0.0, "Part of each weight that a step takes off, times --learning_rate.", rare=True, at_least=0
    )
    adam_epsilon: float = flag(1e-8, "Number that the root of the mean of squares is raised by.", rare=True, above=0)
    ema_decay: float = flag(
        0.999, "Decay of the averaged weights, warmed up; restarted at every stage.", rare=True, at_least=0, below=1
    )
    max_physical_batch_size: str = flag(
        "64", "Images that are computed at once, or 'auto' for as many as fit; memory only.",
        read=int, or_else="auto", range="an integer of at least 1, or auto",
    )  # fmt: skip
    mixed_precision: str | None = flag(
        None,
        "'bf16' (norms, sums and noise stay float32) or 'no', also of the run's own images; unset: what Accelerate "
        "is configured to, else no, but bf16 in warm-ups on a CPU that has it.",
    )
    allow_tf32: bool = expert(False, "A GPU multiplies matrices in TF32; norms, sums and noise stay float32.")

    @property
    def counted_steps(self) -> int:
        """DP-SGD steps that the noise is calibrated for: those that are trained, and those that may be lost."""
        return self.max_train_steps + self.restart_slack

    @property
    def reserved_together(self) -> int:
        """Steps between two checkpoints: a crash can lose as many."""
        return self.checkpointing_steps or max(1, self.max_train_steps // 10)

    @property
    def adam(self) -> dict[str, Any]:
        """Settings of `torch.optim.AdamW` besides the learning rate; by default those of Adam."""
        betas = (self.adam_beta1, self.adam_beta2)
        return {"betas": betas, "weight_decay": self.adam_weight_decay, "eps": self.adam_epsilon}

    @property
    def changed_adam(self) -> dict[str, float]:
        """Settings of AdamW that are not at their default."""
        return {name: value for name in ADAM if (value := getattr(self, name)) != getattr(type(self), name)}

    @property
    def physical_batch_size(self) -> int | None:
        """`--max_physical_batch_size` as a number, `None` for `auto`."""
        return None if self.max_physical_batch_size == "auto" else int(self.max_physical_batch_size)

    @property
    def precision(self) -> str | None:
        """`--mixed_precision`, or what Accelerate's launcher was told, if anything."""
        return self.mixed_precision or os.environ.get("ACCELERATE_MIXED_PRECISION")

    def check(self) -> None:
        if self.lr_warmup_steps and self.lr_scheduler == "constant":
            raise UsageError(
                "--lr_warmup_steps has no effect with --lr_scheduler constant; give --lr_scheduler "
                "constant_with_warmup."
            )
        if self.lr_warmup_steps >= self.max_train_steps:
            raise UsageError(
                f"--lr_warmup_steps is {self.lr_warmup_steps}; give fewer than --max_train_steps "
                f"{self.max_train_steps}."
            )
        if self.precision not in (None, "no", "bf16"):
            raise UsageError(
                f"--mixed_precision {self.precision} is neither (fp16 needs loss scaling, which changes gradients "
                "before they are clipped); give bf16 or no."
            )
