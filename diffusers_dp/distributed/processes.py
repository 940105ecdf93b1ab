# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The processes of one run: work of the first one, sums and shares of all, and how they stop together.

Accelerate starts them and torch.distributed computes their sums. Models are never wrapped in
`DistributedDataParallel`. Its hooks average gradients at every backward pass and hang if processes have different
numbers of batches, as Poisson samples always do.
"""

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list, is_bf16_available
from torch import distributed, nn
from tqdm.auto import tqdm

from ..errors import DiffusersDPError, ProcessLost, UsageError
from .interruption import GO_ON
from .launcher import LOCAL_SIZES, SIZES, cores, number_of
from .memory import keep_freed_memory


T = TypeVar("T")
Part = TypeVar("Part")
Tensors = dict[str, torch.Tensor]

# The others wait while the first reads images. A process that ends is noticed at once, a lost machine after this time.
LONGEST_WAIT = timedelta(days=1)
BUCKET = 2**25  # numbers per message
LOST = f"Another process of this run ended, see its message: {GO_ON}"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_REWRITERS = {"DEEPSPEED": "DeepSpeed", "FSDP": "FSDP", "MEGATRON_LM": "Megatron-LM"}


class Processes:
    """The processes of a run, as seen by one of them. Without a launcher there is one, and nothing is communicated.

    All processes must call the methods below in the same order.

    Args:
        accelerator (`Accelerator` or `PartialState`, *optional*): Accelerate's state of the run.
        lost (`str`): Message of the error if another process ended.
        device (`torch.device`, *optional*): Device of a single process without Accelerate; defaults to the CPU.

    Attributes:
        count, index (`int`): Number of processes, and index of this one. The first, 0, writes and prints.
        local_count (`int`): Number of processes on this machine.
        device (`torch.device`): Device of this process.
    """

    def __init__(
        self,
        accelerator: Accelerator | PartialState | None = None,
        *,
        lost: str = LOST,
        device: torch.device | str | None = None,
    ):
        self.accelerator, self.lost = accelerator, lost
        self.count: int = 1 if accelerator is None else accelerator.num_processes
        self.index: int = 0 if accelerator is None else accelerator.process_index
        self.local_count: int = number_of(LOCAL_SIZES, 1) if self.count > 1 else 1
        self.device: torch.device = torch.device(device or "cpu") if accelerator is None else accelerator.device
        self.warm_up_type: torch.dtype | None = None  # see the function `warm_up_type`
        self._alone = self.count == 1  # whether to communicate with no other process

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def print(self, text: Any) -> None:
        """Prints once, from the first process."""
        if self.is_first:
            print(text)

    def bar(self, *arguments: Any, **options: Any) -> tqdm:
        """Returns a progress bar that only the first process shows."""
        return tqdm(*arguments, **(options if self.is_first else {**options, "disable": True}))

    def note_start(self, starts: list[int]) -> None:
        """Appends to the list of process counts of each start, and prints a change."""
        if starts and starts[-1] != self.count:
            self.print(
                f"This run had {starts[-1]} process(es) and continues with {self.count}: the distributions of samples "
                "and noise stay the same."
            )
        starts.append(self.count)

    def on_first(self, work: Callable[[], T]) -> T:
        """Calls `work` in the first process only and returns its (pickled) result in all. `work` may call `on_first`;
        such inner calls stay in the first process.

        Raises:
            DiffusersDPError: An error of `work`, raised in all processes.
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
        """Calls `work` on each part and returns the (pickled) results in order in all processes. Process i modulo
        `count` works on part i, without communication.

        Raises:
            DiffusersDPError: An error of `work` in one process, raised in all.
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
        """Sums each tensor over all processes, with the same bits everywhere. Sums in float32, or in float64 if one of
        the tensors has that type, and returns the original types and devices."""
        if self._alone:
            self._refuse_half()
            return tensors
        wide = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()), torch.float32)
        # On this process's device: NCCL sums nothing that is elsewhere.
        flat = torch.cat([tensor.detach().flatten().to(self.device, wide) for tensor in tensors.values()])
        with self._together():
            for bucket in flat.split(BUCKET):
                distributed.all_reduce(bucket)
        parts = flat.split([tensor.numel() for tensor in tensors.values()])
        return {
            name: part.view(tensor.shape).to(tensor.device, tensor.dtype)
            for (name, tensor), part in zip(tensors.items(), parts, strict=True)
        }

    def any(self, answer: bool) -> bool:
        """Tells whether the answer of at least one process is true."""
        return (
            answer if self._alone else bool(self.sum({"": torch.tensor([float(answer)], device=self.device)})[""] > 0)
        )

    def mean(self, tensors: Tensors, rows: int) -> Tensors:
        """Averages tensors over the rows of all processes, given each process's means over its own `rows`."""
        if self._alone:
            self._refuse_half()
            return tensors
        weight = torch.full((1,), float(rows), device=self.device)
        weighted = [tensor.detach() * rows for tensor in tensors.values()]
        *sums, total = self.sum({str(i): tensor for i, tensor in enumerate([*weighted, weight])}).values()
        return {name: value / total for name, value in zip(tensors, sums, strict=True)}

    def mean_of_all(self, value: torch.Tensor, rows: int) -> torch.Tensor:
        """Computes `mean` with the gradient of this process's part, so that `average_gradients` then yields the
        gradient of a single process."""
        return value if self._alone else self.mean({"": value}, rows)[""] + (value - value.detach())

    def average_gradients(self, model: Any, rows: int) -> None:
        """Replaces the gradient of the mean loss over this process's `rows` by that over all rows, in ordinary
        training.

        Do not use it for DP-SGD, whose sums are clipped, noised and divided by a public constant (`SensitiveImages`).
        """
        if self._alone:
            return
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        own = {str(i): torch.zeros_like(p) if p.grad is None else p.grad for i, p in enumerate(trained)}
        for parameter, gradient in zip(trained, self.mean(own, rows).values(), strict=True):
            parameter.grad = gradient

    def same_weights(self, model: Any) -> None:
        """Copies the weights and buffers of the first process's model to all processes."""
        if self._alone:
            return
        tensors = [*model.parameters(), *(model.buffers() if isinstance(model, nn.Module) else ())]
        with self._together(), torch.no_grad():
            for tensor in tensors:
                sent = tensor.detach().contiguous()
                distributed.broadcast(sent, src=0)
                tensor.copy_(sent)

    def share_size(self, total: int) -> int:
        """Returns the number of images (or units) of this process out of `total`: every `count`-th, from `index`."""
        return len(range(self.index, total, self.count))

    def part(self, batch_size: int) -> int:
        """Returns this process's number of rows in a batch of ordinary training, at least one."""
        return max(1, self.share_size(batch_size))

    def rows(self, batch_size: int) -> torch.Tensor:
        """Returns the indices of these rows, `[part(batch_size)]`. They are consecutive: if classes alternate in a
        batch, each process and its batch normalisation get all of them."""
        before = sum(len(range(index, batch_size, self.count)) for index in range(self.index))
        return before + torch.arange(self.part(batch_size), device=self.device)

    def first_goes_on(self) -> bool:
        """Ends the communication; returns True in the first process, which continues alone. The others may end."""
        if not self._alone:
            with self._together():
                distributed.barrier()
            distributed.destroy_process_group()
            self._alone = self.is_first
        return self.is_first

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # gloo and NCCL have many messages for a lost process
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's SIGTERM would replace the exit code
            raise ProcessLost(self.lost) from error

    def _refuse_half(self) -> None:
        if self.count > 1:
            raise RuntimeError("A sum over all processes was requested while one process works alone.")


def warm_up_type(precision: str | None, device: torch.device) -> torch.dtype | None:
    """What networks compute in during ordinary training, beside `--mixed_precision`: bf16 where that leaves the choice
    and the CPU has instructions for it, `benchmarks/warm_up_precision.py`."""
    asked = precision or os.environ.get("ACCELERATE_MIXED_PRECISION")
    measured = device.type == "cpu" and torch.cpu.get_capabilities().get("avx512_bf16")
    return torch.bfloat16 if asked is None and measured else None


def start_processes(*, precision: str | None, allow_tf32: bool = False) -> Processes:
    """Connects the processes that `torchrun`, `accelerate launch` or MPI started, or uses a single one; each gets its
    share of the cores.

    Args:
        precision (`str`, *optional*): `"no"` or `"bf16"`; `None`: "no", but for `warm_up_type`.
        allow_tf32 (`bool`, defaults to `False`): Whether products of matrices may be TF32 on a GPU, as convolutions
            are by PyTorch's default.

    Raises:
        UsageError: Too few processes started, the device has no bf16, or Accelerate's configuration or a flag does not
            work with several processes or DP-SGD.
    """
    asked = number_of(SIZES, 1)
    _refuse(asked, precision)
    options: dict[str, Any] = {}
    if asked > 1:  # without `cpu`, each process on a machine without GPUs would run as a single one
        options = {
            "cpu": not torch.cuda.is_available() or os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true",
            "kwargs_handlers": [InitProcessGroupKwargs(timeout=LONGEST_WAIT)],
        }
    accelerator = Accelerator(mixed_precision=precision or "no", gradient_accumulation_steps=1, **options)
    if accelerator.num_processes != asked:
        raise UsageError(
            f"{asked} processes were requested, but Accelerate sees {accelerator.num_processes}: start them with "
            f"`torchrun --nproc_per_node {asked} training/...`."
        )
    processes = Processes(accelerator)
    processes.warm_up_type = warm_up_type(precision, processes.device)
    torch.set_float32_matmul_precision("high" if allow_tf32 else "highest")
    torch.set_num_threads(max(1, cores() // processes.local_count))  # launchers set one thread per process
    if processes.device.type == "cpu":
        keep_freed_memory()
    return processes


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Lets torch compute on one thread."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(number)


def _refuse(asked: int, precision: str | None) -> None:
    environment = os.environ
    for name, title in _REWRITERS.items():
        if environment.get(f"ACCELERATE_USE_{name}", "").lower() == "true":
            raise UsageError(
                f"Accelerate is configured for {title}, which takes over gradients and steps; DP-SGD must clip and "
                "noise them itself: choose plain multi-GPU in `accelerate config`, or start with `torchrun`."
            )
    accumulation = environment.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    if accumulation != "1":
        raise UsageError(
            f"Accelerate is configured for gradient_accumulation_steps {accumulation}, which rescales gradients "
            "before they are clipped: set it to 1; --max_physical_batch_size bounds memory instead."
        )
    if precision == "bf16" and not is_bf16_available():
        raise UsageError("bf16 is not supported by this device; give --mixed_precision no.", field="mixed_precision")
    if asked == 1:
        # `accelerate launch` sets the address for several processes, but starts several only on GPUs.
        if "MASTER_ADDR" in environment and "ACCELERATE_MIXED_PRECISION" in environment and "RANK" not in environment:
            _take_one(environment["MASTER_ADDR"])
        return
    local, gpus = number_of(LOCAL_SIZES, 1), torch.cuda.device_count()
    if 0 < gpus < local and environment.get("ACCELERATE_USE_CPU", "").lower() != "true":
        raise UsageError(f"{local} processes were started on a machine with {gpus} GPU(s): start one for each GPU.")


def _take_one(address: str) -> None:
    """On one machine, one process does the same on all cores. On several, each would run as if it were alone, and
    spend the budget once more: raises `UsageError`."""
    if address not in LOOPBACK:
        raise UsageError(
            "`accelerate launch` started one process on this machine, as it does on CPUs, and it cannot meet those of "
            "the other machines: start them with `torchrun --nnodes ... training/...`."
        )
    print(
        "`accelerate launch` started one process, as it does on CPUs; it uses all cores. Several start with "
        "`torchrun --nproc_per_node N`, or --config_file training/accelerate_configs/several_cpus.yaml.",
        file=sys.stderr,
    )
