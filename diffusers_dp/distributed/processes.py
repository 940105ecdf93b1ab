# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The processes of one run: what the first does for all, what all add up or share, and what stops them together.

Accelerate starts them, torch.distributed carries their sums. Models are never wrapped in `DistributedDataParallel`:
its hooks average gradients at every backward, and wait for each other where processes have different numbers of
batches, as Poisson samples always do.
"""

import contextlib
import functools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list, is_bf16_available
from torch import distributed, nn
from tqdm.auto import tqdm

from ..errors import DiffusersDPError, ProcessLost, UsageError
from .interruption import GO_ON
from .launcher import LOCAL_SIZES, SIZES, number_of
from .memory import keep_freed_memory


T = TypeVar("T")
Part = TypeVar("Part")
Tensors = dict[str, torch.Tensor]

# The others wait while the first reads images. A process that ends is noticed at once, a machine that vanishes after
# this.
LONGEST_WAIT = timedelta(days=1)
BUCKET = 2**25  # numbers that are sent at once
LOST = f"Another process of this run ended, see what it said: {GO_ON}"
_REWRITERS = {"DEEPSPEED": "DeepSpeed", "FSDP": "FSDP", "MEGATRON_LM": "Megatron-LM"}


class Processes:
    """The processes of a run as one of them sees them; without a launcher, one alone, for which nothing here does
    anything.

    All must call the methods below in the same order.

    Args:
        accelerator (`Accelerator` or `PartialState`, *optional*): Of the run.
        lost (`str`): What is said where another process ended.

    Attributes:
        count, index (`int`): How many there are, and which this one is. The first, 0, writes and prints.
        local_count (`int`): How many of them share this machine.
        device (`torch.device`): Of this one.
    """

    def __init__(self, accelerator: Accelerator | PartialState | None = None, *, lost: str = LOST):
        self.accelerator, self.lost = accelerator, lost
        self.count: int = 1 if accelerator is None else accelerator.num_processes
        self.index: int = 0 if accelerator is None else accelerator.process_index
        self.local_count: int = number_of(LOCAL_SIZES, 1) if self.count > 1 else 1
        self.device: torch.device = torch.device("cpu") if accelerator is None else accelerator.device
        self._alone = self.count == 1  # nobody else is to be asked

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def print(self, text: Any) -> None:
        """Once, not once for each process."""
        if self.is_first:
            print(text)

    def bar(self, *arguments: Any, **options: Any) -> tqdm:
        """A progress bar of the first process."""
        return tqdm(*arguments, **(options if self.is_first else {**options, "disable": True}))

    def note_start(self, starts: list[int]) -> None:
        """Adds to the list of how many processes a run had at each start, and says it where that changes."""
        if starts and starts[-1] != self.count:
            self.print(
                f"This run had {starts[-1]} process(es) and goes on with {self.count}: samples and noise are as "
                "before."
            )
        starts.append(self.count)

    def on_first(self, work: Callable[[], T]) -> T:
        """What `work` returns in the first process, for all (pickled). The others do not call it. Where it calls
        `on_first` itself, that is its own affair.

        Raises:
            DiffusersDPError: What `work` raised, in all processes.
            ProcessLost: Another process ended.
        """
        if self._alone:
            return work()
        outcome: list[Any] = [None]
        if self.is_first:
            self._alone = True
            try:
                outcome = [(work(), None)]
            except DiffusersDPError as refusal:
                outcome = [(None, refusal)]
            finally:
                self._alone = False
        with self._together():
            broadcast_object_list(outcome)
        result, error = outcome[0]
        if error is not None:
            error.is_told = not self.is_first
            raise error
        return result

    def share(self, work: Callable[[Part], T], parts: Sequence[Part]) -> list[T]:
        """What `work` returns for each part, in their order, for all (pickled). Part i is done in process i modulo
        `count`, where `work` asks the others for nothing.

        Raises:
            DiffusersDPError: What `work` raised in one of them, in all.
            ProcessLost: Another process ended.
        """
        if self._alone:
            return [work(part) for part in parts]
        own: tuple[list[T], DiffusersDPError | None]
        self._alone = True
        try:
            own = [work(part) for part in parts[self.index :: self.count]], None
        except DiffusersDPError as refusal:
            own = [], refusal
        finally:
            self._alone = False
        outcomes: list[Any] = [None] * self.count
        with self._together():
            distributed.all_gather_object(outcomes, own)
        for _, error in outcomes:
            if error is not None:
                error.is_told = not self.is_first
                raise error
        return [outcomes[i % self.count][0][i // self.count] for i in range(len(parts))]

    def sum(self, tensors: Tensors) -> Tensors:
        """The sum over all processes of each tensor, the same bits everywhere. Added up in float32, or in
        float64 where one has it, and returned in the type that they had."""
        if self._alone:
            self._refuse_half()
            return tensors
        wide = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()), torch.float32)
        flat = torch.cat([tensor.detach().flatten().to(wide) for tensor in tensors.values()])
        with self._together():
            for bucket in flat.split(BUCKET):
                distributed.all_reduce(bucket)
        parts = flat.split([tensor.numel() for tensor in tensors.values()])
        return {
            name: part.view(tensor.shape).to(tensor.dtype)
            for (name, tensor), part in zip(tensors.items(), parts, strict=True)
        }

    def any(self, answer: bool) -> bool:
        """Whether one of all processes says yes."""
        return (
            answer if self._alone else bool(self.sum({"": torch.tensor([float(answer)], device=self.device)})[""] > 0)
        )

    def mean(self, tensors: Tensors, rows: int) -> Tensors:
        """The mean over the rows of all processes of what each has as a mean over its own `rows`."""
        if self._alone:
            self._refuse_half()
            return tensors
        weight = torch.full((1,), float(rows), device=self.device)
        weighted = [tensor.detach() * rows for tensor in tensors.values()]
        *sums, total = self.sum({str(i): tensor for i, tensor in enumerate([*weighted, weight])}).values()
        return {name: value / total for name, value in zip(tensors, sums, strict=True)}

    def mean_of_all(self, value: torch.Tensor, rows: int) -> torch.Tensor:
        """As `mean`, with the gradient of this process's own part: what follows has, after `average_gradients`, the
        gradient that it has in one process."""
        if self._alone:
            return value
        return self.mean({"": value}, rows)[""] + (value - value.detach())

    def average_gradients(self, model: Any, rows: int) -> None:
        """For ordinary training: each process took the gradient of the mean loss of its own `rows`, and gets that of
        all rows.

        Not for DP-SGD, whose sums are clipped, noised and divided by a public constant (`SensitiveImages`).
        """
        if self._alone:
            return
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        own = {str(i): torch.zeros_like(p) if p.grad is None else p.grad for i, p in enumerate(trained)}
        for parameter, gradient in zip(trained, self.mean(own, rows).values(), strict=True):
            parameter.grad = gradient

    def same_weights(self, model: Any) -> None:
        """Gives the model of every process the weights (and buffers) of the first one's."""
        if self._alone:
            return
        tensors = [*model.parameters(), *(model.buffers() if isinstance(model, nn.Module) else ())]
        with self._together(), torch.no_grad():
            for tensor in tensors:
                sent = tensor.detach().contiguous()
                distributed.broadcast(sent, src=0)
                tensor.copy_(sent)

    def share_size(self, total: int) -> int:
        """How many of `total` images (or units) are this process's: every `count`-th one, from `index` on."""
        return len(range(self.index, total, self.count))

    def part(self, batch_size: int) -> int:
        """How many rows of a batch of ordinary training are this process's, at least one."""
        return max(1, self.share_size(batch_size))

    def rows(self, batch_size: int) -> torch.Tensor:
        """Which ones they are, `[part(batch_size)]`, one after the other: where classes take turns in a batch, each
        process has all of them, and so has its batch normalisation."""
        before = sum(len(range(index, batch_size, self.count)) for index in range(self.index))
        return before + torch.arange(self.part(batch_size), device=self.device)

    def wait(self) -> None:
        """Until all have come here."""
        if not self._alone:
            with self._together():
                distributed.barrier()

    def first_goes_on(self) -> bool:
        """The end of what is done together: true in the first process, which asks the others nothing from here on;
        they may end."""
        if not self._alone:
            self.wait()
            distributed.destroy_process_group()
            self._alone = self.is_first
        return self.is_first

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # gloo and NCCL say in many words that the other side is gone
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher hurries: it would take the exit code away
            raise ProcessLost(self.lost) from error

    def _refuse_half(self) -> None:
        if self.count > 1:
            raise RuntimeError("A sum over all processes was asked for where the first one is at work alone.")


def start_processes(*, precision: str, seed: int, leaky_logs: bool) -> Processes:
    """The processes that `torchrun`, `accelerate launch` or MPI started, or this one alone; each gets its share of the
    cores.

    Args:
        precision (`str`): `"no"` or `"bf16"`.
        seed (`int`): `--seed`, to which each process adds its number.
        leaky_logs (`bool`): Whether losses and norms are written, which one process alone can.

    Raises:
        UsageError: Fewer started than were asked for, the device has no bf16, or Accelerate or a flag asks for what
            several processes, or DP-SGD, cannot do.
    """
    asked = number_of(SIZES, 1)
    _refuse(asked, precision, seed, leaky_logs)
    options: dict[str, Any] = {}
    if asked > 1:  # without `cpu` each would take itself for one alone, where there is no GPU
        options = {
            "cpu": not torch.cuda.is_available() or os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true",
            "kwargs_handlers": [InitProcessGroupKwargs(timeout=LONGEST_WAIT)],
        }
    accelerator = Accelerator(mixed_precision=precision, gradient_accumulation_steps=1, **options)
    if accelerator.num_processes != asked:
        raise UsageError(
            f"{asked} processes were asked for, and Accelerate sees {accelerator.num_processes}: start them by "
            f"`torchrun --nproc_per_node {asked} training/...`."
        )
    processes = Processes(accelerator)
    if processes.device.type == "cpu":
        keep_freed_memory()
        torch.set_num_threads(max(1, cores() // processes.local_count))  # launchers leave a process one thread
    return processes


def cores() -> int:
    """Of this machine, those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _refuse(asked: int, precision: str, seed: int, leaky_logs: bool) -> None:
    environment = os.environ
    for name, title in _REWRITERS.items():
        if environment.get(f"ACCELERATE_USE_{name}", "").lower() == "true":
            raise UsageError(
                f"Accelerate is configured for {title}, which takes over gradients and steps, and DP-SGD clips and "
                "noises its own: choose plain multi-GPU in `accelerate config`, or start by `torchrun`."
            )
    accumulation = environment.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    if accumulation != "1":
        raise UsageError(
            f"Accelerate is configured for gradient_accumulation_steps {accumulation}, which rescales gradients "
            "before they are clipped: set it to 1; --max_physical_batch_size bounds memory instead."
        )
    if precision == "bf16" and not is_bf16_available():
        raise UsageError("--mixed_precision bf16 is not supported by this device; give no.")
    if asked == 1:
        # `accelerate launch` names the address for several processes, and starts several on GPUs alone.
        if "MASTER_ADDR" in environment and "ACCELERATE_MIXED_PRECISION" in environment and "RANK" not in environment:
            raise UsageError(
                "Several processes were asked for, and `accelerate launch` started one, as it does on CPUs: start "
                "them by `torchrun --nproc_per_node N training/...`, or give --num_processes 1 (and unset "
                "MASTER_ADDR)."
            )
        return
    local, gpus = number_of(LOCAL_SIZES, 1), torch.cuda.device_count()
    if 0 < gpus < local and environment.get("ACCELERATE_USE_CPU", "").lower() != "true":
        raise UsageError(f"{local} processes were started on a machine with {gpus} GPU(s): start one for each GPU.")
    most = np.iinfo(np.uint32).max + 1 - asked  # numpy takes no larger seed
    if seed > most:
        raise UsageError(
            f"--seed {seed} is too large for {asked} processes, each of which adds its number to it: give an integer "
            f"from 0 to at most {most}."
        )
    if leaky_logs:
        raise UsageError(
            "--leaky_logs works with one process (each sees a part of a step): leave it out, or start a single "
            "process."
        )
