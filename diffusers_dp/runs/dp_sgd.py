# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The one loop of DP-SGD: it reserves steps, asks for noisy gradients, steps, averages, and writes checkpoints."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from torch import nn

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import DP_SGD, TEACHERS, LedgerRow
from ..distributed.interruption import stop_now, stop_requested, uninterrupted
from ..errors import BudgetExceeded, UsageError
from ..gradients.physical_batch import largest_physical_batch
from ..gradients.step import Gradients, RowLoss
from ..methods.dp_sgd_flags import LoopFlags
from ..privacy.kept_state import PLAIN
from ..privacy.sensitive import SensitiveImages
from ..privacy.teachers import Teachers
from .checkpoints import load_checkpoint, position_of, save_checkpoint
from .rest_of_plan import NO_STEP


#: What a person calls the steps of the loop.
WORDS = {DP_SGD: "DP-SGD", TEACHERS: "Rounds of teachers"}


@dataclass(frozen=True)
class Trained:
    """What DP-SGD trains.

    Args:
        module (`nn.Module`): Its weights are trained, averaged and stored.
        model (`nn.Module`): What the loss is called with: the module itself, or what holds it and no other weights.
        loss (`RowLoss`): See `SensitiveImages.noisy_gradient`.
        backward (`Callable`, *optional*): From the noisy gradient of the model to that of the module, where they are
            two: sets `grad` of the module's parameters. It looks at noisy gradients and public data alone.
        row_shape (`tuple[int, int, int]`, *optional*): Shape of a row that is not an image.
        optimizer (`torch.optim.Optimizer`, *optional*): Its optimizer; unset: AdamW with the run's flags.
            Its state is tensors only.
        opened (`Any`, *optional*): Parts of a model to audit that take long to open. The run takes them, as they were.
    """

    module: nn.Module
    model: nn.Module
    loss: RowLoss
    backward: Callable[[Gradients], None] | None = None
    row_shape: tuple[int, int, int] | None = None
    optimizer: torch.optim.Optimizer | None = None
    opened: Any = None

    @property
    def num_noisy(self) -> int:
        """The number of weights that noise reaches as it is; 0 where `backward` has the noisy gradient first."""
        return 0 if self.backward is not None else sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def kind(self) -> list[str]:
        """Names the loss, its plain settings and all classes of layers: so a run knows what its pre-flight tried."""
        layers = {type(layer) for layer in (*self.module.modules(), *self.model.modules())}
        loss: Any = self.loss
        named: list[str] = []
        while isinstance(loss, functools.partial):
            named += [repr(value) for value in (*loss.args, *loss.keywords.values()) if type(value) in PLAIN]
            loss = loss.func
        if not hasattr(loss, "__qualname__"):
            named += [f"{name} {value!r}" for name, value in vars(loss).items() if type(value) in PLAIN]
            loss = type(loss)
        return sorted([*named, *(f"{each.__module__}.{each.__qualname__}" for each in (*layers, loss))])


def run_dp_sgd(
    images: SensitiveImages | Teachers, trained: Trained, row: LedgerRow, settings: LoopFlags, *, private: Path,
    largest_batch_size: int, checkpoint: Path | None = None, beside: Sequence[LedgerRow] = (), title: str = "",
) -> None:  # fmt: skip
    """DP-SGD: Adam on noisy sums of clipped gradients, over Poisson samples of the sensitive images (Abadi et al.
    2016, Algorithm 1), or on what teachers say. The averaged weights go on.

    Args:
        images (`SensitiveImages` or `Teachers`): Whose `noisy_gradient` each step asks.
        settings (`LoopFlags`): How it goes on between two noisy gradients.
        row (`LedgerRow`): One step, see `gradient_row`: mechanism, clip norm, divisor, K.
        private (`Path`): The run's private folder, where checkpoints lie.
        largest_batch_size (`int`): Images of a step, which it hardly ever exceeds.
        checkpoint (`Path`, *optional*): Where an earlier start came to.
        beside (sequence of `LedgerRow`): What the plan asks later, for which budget is left.
        title (`str`): What a person calls the steps; unset: that of `WORDS`.

    Raises:
        BudgetExceeded: No step is left.
        UsageError: The checkpoint is of another learning rate.
        Interrupted: SIGTERM came; a checkpoint was written.
    """
    module, processes, ledger = trained.module, images.processes, images.ledger
    processes.same_weights(module)
    optimizer = trained.optimizer or torch.optim.AdamW(module.parameters(), lr=settings.learning_rate, **settings.adam)
    ema = EMAModel(module.parameters(), decay=settings.ema_decay)
    step, rate = 0, optimizer.param_groups[0]["lr"]
    if checkpoint is not None:
        saved = load_checkpoint(
            checkpoint, unet=module, ema=ema, optimizer=optimizer, ledger_position=position_of(ledger),
            processes=processes,
        )  # fmt: skip
        step, began_with = saved["step"], saved["optimizer"][0]["initial_lr"]
        if rate != began_with:
            raise UsageError(
                f"--learning_rate is {rate}, and this run began with {began_with}: give {began_with}, or start "
                "another --output_dir."
            )
    lr_scheduler = get_scheduler(
        settings.lr_scheduler, optimizer, num_warmup_steps=settings.lr_warmup_steps,
        num_training_steps=settings.max_train_steps, last_epoch=step - 1,
    )  # fmt: skip
    last_step = processes.on_first(
        lambda: last_affordable_step(ledger, row, step, settings.max_train_steps, beside=beside)
    )
    physical_batch_size = settings.physical_batch_size or largest_physical_batch(
        trained.model, trained.loss,
        image_shape=images.image_shape, labelled=images.class_names is not None, device=images.device,
        noise_multiplicity=row.facts["noise_multiplicity"], at_most=largest_batch_size,
        at_least=row.mechanism.max_images_per_unit or 1, processes_here=processes.local_count,
    )  # fmt: skip
    how: dict[str, Any] = {} if isinstance(images, Teachers) else {
        "noise_multiplicity": row.facts["noise_multiplicity"], "max_physical_batch_size": physical_batch_size,
        "name": row.name,
    }  # fmt: skip
    together = settings.reserved_together
    desc = title or WORDS[row.name]
    with processes.bar(total=last_step, initial=step, desc=desc, unit="step") as bar, uninterrupted():
        while step < last_step:
            gradients = images.noisy_gradient(
                trained.model,
                trained.loss,
                row.mechanism,
                max_grad_norm=row.facts["clip_norm"],
                normaliser=row.facts["normaliser"],
                reserve_steps=min(together - step % together, last_step - step),
                **how,
            )
            if trained.backward is not None:
                trained.backward(gradients)
            else:
                for name, parameter in trained.model.named_parameters():
                    parameter.grad = gradients.get(name)  # none of a frozen one
            optimizer.step()
            lr_scheduler.step()
            ema.step(module.parameters())
            step += 1
            bar.update()
            stopping = processes.any(stop_requested())
            if step % together == 0 or step == last_step or stopping:
                ledger.flush_executed()
                if isinstance(images, Teachers):
                    images.save()
                processes.on_first(lambda: save_checkpoint(
                    private, step, unet=module, ema=ema, optimizer=optimizer, ledger_position=position_of(ledger),
                    keep=settings.checkpoints_total_limit,
                ))  # fmt: skip
                if stopping:
                    stop_now(is_told=not processes.is_first)
    ema.copy_to(module.parameters())


def last_affordable_step(
    ledger: PrivacyLedger, row: LedgerRow, step: int, max_train_steps: int, beside: Sequence[LedgerRow] = ()
) -> int:
    """The step at which DP-SGD ends. Steps that a crash lost stay spent: what is left may be fewer than were planned,
    and then the run says so.

    Args:
        ledger (`PrivacyLedger`): With all that was reserved before.
        row (`LedgerRow`): One step of DP-SGD.
        step (`int`): Steps taken so far.
        max_train_steps (`int`): As planned.
        beside (sequence of `LedgerRow`): What is to be asked later.

    Raises:
        BudgetExceeded: None is left.
    """
    last_step = step + ledger.affordable_steps(row, max_train_steps - step, beside=beside)
    if last_step == 0:
        raise BudgetExceeded(NO_STEP)
    if last_step < max_train_steps:
        print(f"Steps that an interruption lost stay spent: this run ends after {last_step} of {max_train_steps}.")
    return last_step
