# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a run refuses of a method that somebody else wrote: queries that differ from the plan, and a model that the
pre-flight did not try."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from torch import nn

from diffusers_dp.audit.preflight import preflight
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.files.canonical import canonical_json
from diffusers_dp.methods.flags import DPSGDConfig, TrainingConfig
from diffusers_dp.methods.method import Method
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.queries.query import Query
from diffusers_dp.release.artefacts import write_text
from diffusers_dp.runs import forecast
from diffusers_dp.runs import run as run_module
from diffusers_dp.runs.dp_sgd import Trained
from diffusers_dp.runs.launch import run_method
from support.doors import make_ledger
from support.few import few
from support.flags import NUM_IMAGES, RESUME, SHORT_FETA_PRO, SHORT_RUN
from support.latents import stable_diffusion
from support.runs import ledger_of, load, read_ledger, write_images, write_public


FLAGS = ["--class_names", "left,empty,right", "--resolution", "8", "--num_channels", "1", "--accountant", "rdp"]
FLAGS += ["--num_train_images", str(NUM_IMAGES), "--target_epsilon", "1"]
LATENT = [*FLAGS, *"--max_train_steps 2 --train_batch_size 6 --lora_rank 2".split()]
STEPS = "--max_train_steps 4 --noise_multiplicity 1 --max_grad_norm 1 --train_batch_size 8".split()


class Index:
    """A release of nothing but an index."""

    files = ("model_index.json",)

    def save(self, release):
        write_text(release / "model_index.json", canonical_json({"_class_name": "Index"}))

    def card(self, receipt):
        return ModelCard("---\nlicense: mit\n---\n# An index\n")


@dataclass(frozen=True, kw_only=True)
class Pixels(Query):
    called: str = "pixels"

    @property
    def name(self):
        return self.called

    title = "mean of the pixels"
    clip_norm = 1.0

    def features(self, images, labels):
        return images.flatten(1)


@dataclass
class OwnConfig(TrainingConfig):
    method = "own"
    output_dir: str = "run"
    asked: ClassVar[tuple[str, ...]] = ("first", "second")

    @property
    def queries(self):
        return tuple(Pixels(called=name) for name in self.asked)


@dataclass
class OwnDPSGDConfig(DPSGDConfig):
    method = "own"
    output_dir: str = "run"


@dataclass
class AskedTwice(OwnConfig):
    asked: ClassVar[tuple[str, ...]] = ("first", "first")


OWN = Method(
    "own", "Own", "nowhere", "proven_with_assumptions", "It asks.", mechanisms=("Noisy sum",), config=OwnConfig
)
OWN_DP_SGD = replace(OWN, note="It trains.", mechanisms=("DP-SGD",), config=OwnDPSGDConfig)


def asked(tmp_path):
    return [row["stage"] for row in read_ledger(tmp_path / "run")[1]] if ledger_of(tmp_path / "run").exists() else []


def released(tmp_path):
    return (tmp_path / "run" / "release" / "privacy_receipt.json").is_file()


# Queries.


def ask_all(run):
    for query in run.plan.queries:
        run.ask(query)


def test_two_queries_of_one_name_are_refused_when_planned(flags, tmp_path):
    with pytest.raises(UsageError, match="own plans two queries of the name 'first'"):
        run_method(replace(OWN, config=AskedTwice, train=ask_all), preflight, [*flags, "--skip_preflight"])
    assert not (tmp_path / "run").exists()


def test_a_loop_that_asks_one_name_with_other_features_is_an_error(flags, tmp_path):
    """The second answer would be the first one's, of other features."""

    def train(run):
        query = run.plan.queries[0]
        for power in (1, 2):
            run.ask(query, lambda images, labels, power=power: images.flatten(1) ** power)

    with pytest.raises(UsageError, match="'first' was asked already"):
        run_method(replace(OWN, train=train), preflight, [*flags, "--skip_preflight"])
    assert asked(tmp_path) == ["first"]


def test_a_planned_query_that_was_never_asked_is_an_error_at_the_release(flags, tmp_path):
    def train(run):
        run.ask(run.plan.queries[0])
        run.release(Index())

    with pytest.raises(UsageError, match="never asked what it planned: second"):
        run_method(replace(OWN, train=train), preflight, [*flags, "--skip_preflight"])
    assert asked(tmp_path) == ["first"] and not released(tmp_path)


def test_a_resumed_run_reads_its_stored_answers_and_is_released(flags, tmp_path):
    """Once, for it stops between the two queries; then it has both answers, and does not ask again what it skips."""
    first = []

    def stops(run):
        first.append(run.ask(run.plan.queries[0]))
        raise UsageError("a stop")

    def goes_on(run):
        assert torch.equal(run.ask(run.plan.queries[0]), first[0])
        run.ask(run.plan.queries[1])
        raise UsageError("a stop")

    for train, more in ((stops, []), (goes_on, RESUME)):
        with pytest.raises(UsageError, match="a stop"):
            run_method(replace(OWN, train=train), preflight, [*flags, "--skip_preflight", *more])
    run_method(replace(OWN, train=lambda run: run.release(Index())), preflight, [*flags, "--skip_preflight", *RESUME])
    assert asked(tmp_path) == ["first", "second"] and released(tmp_path)


@pytest.mark.parametrize("query", ["ask", "dp_sgd"])
def test_a_door_with_another_ledger_is_refused(query, flags, tmp_path):
    """What it answers would have no row in the run's."""
    model = nn.Linear(64, 1)

    def train(run):
        other = SensitiveImages(
            np.zeros((1, 1, 8, 8), np.uint8), num_images=NUM_IMAGES, image_shape=(1, 8, 8),
            ledger=make_ledger(NUM_IMAGES),
        )  # fmt: skip
        if query == "ask":
            run.ask(run.plan.queries[0], images=other)
        run.dp_sgd(Trained(model, model, own_rows), images=other)

    method = replace(OWN if query == "ask" else OWN_DP_SGD, train=train)
    with pytest.raises(UsageError, match="another ledger"):
        run_method(method, preflight, [*flags, "--skip_preflight", *(STEPS if query == "dp_sgd" else [])])
    assert asked(tmp_path) == []


# DP-SGD.


def own_rows(model, rows, labels, generator):
    return model(rows.flatten(1)).square().sum(1)


def mixed_rows(model, rows, labels, generator):
    """Each row's loss depends on who shares its batch."""
    return own_rows(model, rows - rows.mean(0), labels, generator)


def trainer(loss):
    def build(config, facts, device):
        model = nn.Linear(64, 1).to(device)
        return Trained(model, model, loss)

    def train(run):
        run.dp_sgd(build(run.config, run.facts, run.processes.device))
        run.release(Index())

    return build, train


def no_audit(*_, **__):
    """What was tried is noted all the same."""


@pytest.mark.parametrize("loss", [own_rows, mixed_rows])
def test_a_method_of_dp_sgd_that_does_not_say_build_is_refused(loss, flags, tmp_path):
    """Its model would skip the pre-flight: a loss that mixes rows was released."""
    _, train = trainer(loss)
    with pytest.raises(UsageError, match="Nothing says what DP-SGD of own trains"):
        run_method(replace(OWN_DP_SGD, train=train), preflight, [*flags, *STEPS])
    assert not (tmp_path / "run").exists()


def test_a_loss_that_mixes_rows_is_found_in_the_pre_flight(flags, tmp_path):
    build, train = trainer(mixed_rows)
    with pytest.raises(IntegrityError, match="additivity of the model"):
        run_method(replace(OWN_DP_SGD, train=train, build=build), preflight, [*flags, *STEPS])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("differs", ["loss", "model"])
def test_another_model_than_the_pre_flight_tried_is_refused(differs, flags, tmp_path):
    build, _ = trainer(own_rows)
    _, train = trainer(mixed_rows)

    def other_model(run):
        model = nn.Sequential(nn.Linear(64, 1))
        run.dp_sgd(Trained(model, model, own_rows))

    with pytest.raises(UsageError, match="pre-flight tried"):
        method = replace(OWN_DP_SGD, train=train if differs == "loss" else other_model, build=build)
        run_method(method, no_audit, [*flags, *STEPS])
    assert asked(tmp_path) == []


@pytest.mark.parametrize("more", [[], ["--skip_preflight"]])
def test_the_model_that_was_tried_is_trained(more, flags, tmp_path):
    """Or any, where the pre-flight is skipped in so many words."""
    build, train = trainer(own_rows)
    method = replace(OWN_DP_SGD, train=train, build=None if more else build)
    run_method(method, no_audit, [*flags, *STEPS, *more])
    assert set(asked(tmp_path)) == {"dp_sgd"} and released(tmp_path)


class Stop(Exception):
    pass


SHORT = {
    "feta_pro": SHORT_FETA_PRO, "dp_feta": [*SHORT_RUN, "--spatial_steps", "1", "--expert", "spatial_batch_size=6"],
    **dict.fromkeys(("dp_diffusion", "dpdm", "pge_dpsgd"), SHORT_RUN),
    **dict.fromkeys(("psg", "dp_gan"), [*FLAGS, *STEPS]),
    **{f"dp_ldm --train {trained}": LATENT for trained in ("lora", "attention", "salient")},
}  # fmt: skip


@pytest.mark.parametrize("name", few(SHORT, 0, 5, 8))
def test_every_method_trains_what_its_pre_flight_tries(name, tmp_path, monkeypatch):
    """Also where it begins with public images, or with low-rank matrices that a noisy answer chose."""
    method, *more = name.split()
    script, given = load("dp_lora" if method == "dp_ldm" else method, monkeypatch), [*SHORT[name], *more]
    if method in ("dp_diffusion", "dp_feta"):
        given += write_public(tmp_path / "public", count=4)
    if method == "dp_ldm":
        given += ["--pretrained_model_name_or_path", str(stable_diffusion(tmp_path / "base"))]
    tried = []
    monkeypatch.setitem(script.main.__globals__, "preflight", lambda facts, plan, trained, **_: tried.append(trained))
    monkeypatch.setattr(forecast, "forecast", lambda *_, **__: "")
    monkeypatch.setattr(run_module, "run_dp_sgd", lambda *_, **__: (_ for _ in ()).throw(Stop))
    given = [flag for flag in given if flag != "--skip_preflight"]
    with pytest.raises(Stop):
        script.main([*given, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")])
    assert len(tried) == 1
