# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A log of DP-SGD's batches, for an operator who may see the images anyway. The guarantee does not cover it."""

import json
from pathlib import Path

import torch


LOG_NAME = "dp_sgd.jsonl"
LEAKY_OUTPUT = "training log of losses, gradient norms and batch sizes, kept by the trainer in private/unprotected/"


class LeakyLog:
    """Logs one JSON line per step of DP-SGD: batch size, mean loss, median gradient norm, share of clipped gradients.

    Args:
        private (`Path`): Private folder of the run. The log is in its subfolder `unprotected`, mode 700, which is
            never released.
        max_grad_norm (`float`): Clip norm.
    """

    def __init__(self, private: Path, max_grad_norm: float):
        folder = private / "unprotected"
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self.path = folder / LOG_NAME
        self.max_grad_norm = max_grad_norm
        self._losses: list[torch.Tensor] = []
        self._norms: list[torch.Tensor] = []

    def batch(self, losses: torch.Tensor, norms: torch.Tensor) -> None:
        """Records the losses of a physical batch's rows, and the gradient norms of its images that count."""
        self._losses.append(losses.detach().float().cpu())
        self._norms.append(norms.cpu())

    def end_step(self) -> None:
        losses, norms = (torch.cat([torch.zeros(0), *parts]) for parts in (self._losses, self._norms))
        self._losses, self._norms = [], []
        line: dict[str, float | None] = {
            "batch_size": len(norms),
            "loss": None,
            "gradient_norm": None,
            "clipped": None,
        }
        if len(norms):
            line |= {
                "loss": losses.mean().item(),
                "gradient_norm": norms.median().item(),
                "clipped": (norms > self.max_grad_norm).double().mean().item(),
            }
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
