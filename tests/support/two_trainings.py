# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A method that trains two networks by DP-SGD, each with a row, noise and samples of its own; also a program."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from huggingface_hub import ModelCard
from torch import nn

from diffusers_dp.audit.preflight import preflight
from diffusers_dp.files.canonical import canonical_json
from diffusers_dp.methods.dp_sgd_flags import LoopFlags
from diffusers_dp.methods.flags import DPSGDConfig
from diffusers_dp.methods.method import Method
from diffusers_dp.methods.private_training import PrivateTraining
from diffusers_dp.release.artefacts import write_text
from diffusers_dp.runs.dp_sgd import Trained
from diffusers_dp.runs.launch import launch, run_method


FIRST = "small_network"
STEPS = "--max_train_steps 4 --checkpointing_steps 2 --noise_multiplicity 1 --max_grad_norm 1 --train_batch_size 8"


class Index:
    """A release of nothing but an index."""

    files = ("model_index.json",)

    def save(self, release):
        write_text(release / "model_index.json", canonical_json({"_class_name": "Index"}))

    def card(self, receipt):
        return ModelCard("---\nlicense: mit\n---\n# An index\n")


@dataclass(frozen=True, kw_only=True)
class Small(PrivateTraining):
    name = FIRST
    title = "Small network"
    build = "support.two_trainings:build_small"


@dataclass
class Config(DPSGDConfig):
    method = "two"
    output_dir: str = "run"
    query_defaults = {FIRST: {"budget_share": 0.3}}
    small_batch_size: ClassVar[int] = 5

    @property
    def queries(self):
        settings = LoopFlags(
            max_train_steps=6, checkpointing_steps=2, train_batch_size=self.small_batch_size, noise_multiplicity=1,
            max_grad_norm=0.5, learning_rate=0.1, ema_decay=0.0,
        )  # fmt: skip
        return (Small(settings=settings, **self.asked(FIRST)),)


def classified(model, rows, labels, generator):
    return nn.functional.cross_entropy(model(rows.flatten(1)), labels, reduction="none")


def squared(model, rows, labels, generator):
    return model(rows.flatten(1)).square().sum(1)


def build_small(training, facts, device):
    model = nn.Linear(64, len(facts.class_names)).to(device)
    return Trained(model, model, classified, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def build(config, facts, device):
    model = nn.Linear(64, 2).to(device)
    return Trained(model, model, squared)


def train(run):
    (small,) = run.plan.queries
    run.train(small, lambda: build_small(small, run.facts, run.processes.device))
    run.dp_sgd(build(run.config, run.facts, run.processes.device))
    run.release(Index())


METHOD = Method(
    "two", "Two", "nowhere", "proven_with_assumptions", "It trains twice.", mechanisms=("DP-SGD",), config=Config,
    train=train, build=build,
)  # fmt: skip


def start(flags, **changes):
    run_method(replace(METHOD, **changes), preflight, flags)


if __name__ == "__main__":
    launch(lambda: start(None))
