# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Several processes: what they answer together is what one answers, and what ends one ends all."""

import inspect
import json
import os
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import distributed

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.audit.canaries import groups_of_rows
from diffusers_dp.distributed.interruption import STOPPED, stoppable
from diffusers_dp.distributed.launcher import cores, tell
from diffusers_dp.distributed.processes import LOST, Processes, one_thread, start_processes, warm_up_type
from diffusers_dp.distributed.shared_ledger import SharedLedger
from diffusers_dp.errors import Interrupted, ProcessLost, UsageError
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.method_flags import DPDMConfig
from diffusers_dp.verify import verify
from support import forked
from support.bands import matrix
from support.flags import TINY_RUN
from support.latents import stable_diffusion
from support.noise_queries import NOISE_CELLS, p_values
from support.places import ROOT, TESTS
from support.processes import SEVERAL, launch
from support.processes_worker import (
    BANDS,
    CLIP_NORM,
    NORMALISER,
    RATE,
    SIGMA,
    make_arrays,
    measure,
)
from support.runs import independent_epsilon, load, read_ledger, status, write_images, write_public


class Found(dict):
    """What each process found, by their number; they are started when first asked for."""

    def __init__(self, folder):
        self.folder = folder

    def __missing__(self, count):
        if count == 1:
            self[1] = [measure(Processes(), self.folder)]
            return self[1]
        worker = TESTS / "support" / "processes_worker.py"
        done = forked.run(worker, self.folder, folder=self.folder, count=count)
        assert done.returncode == 0, done.stderr[-4000:]
        assert (self.folder / str(count)).exists()
        self[count] = [torch.load(self.folder / f"{count}-{i}.pt", weights_only=False) for i in range(count)]
        return self[count]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return Found(tmp_path_factory.mktemp("found"))


def assert_same(one, other, **tolerance):
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, **tolerance)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name], **tolerance)
    else:
        assert one == other


@pytest.mark.parametrize("count", SEVERAL)
def test_sums_are_those_of_one_process(found, count):
    """Of gradients and answers, of images and units, with an image that is missing and one that cannot be read; and of
    what an encoder made of them, which it fails on for one."""
    for each in found[count]:
        for part in ("exact", "rows"):
            assert_same(each[part], found[1][0][part], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", SEVERAL)
def test_sums_of_whole_numbers_are_equal_to_the_last_step(found, count):
    alone = found[1][0]["whole"]
    assert any(value.any() for value in alone.values())
    for each in found[count]:
        assert all(torch.equal(each["whole"][name], value) for name, value in alone.items())


@pytest.mark.parametrize("count", (1, *SEVERAL))
def test_a_large_sum_loses_none_of_its_terms(found, count):
    """Of a query and of a step: nine of ten images can be read, and the first one's part is taken away."""
    for each in found[count]:
        assert each["large"] == [8.0, 8.0]


@pytest.mark.parametrize("count", (1, *SEVERAL))
def test_the_noise_of_a_sum_is_one_noise(found, count):
    """Half a million draws: neither one for each process nor a part of one; other draws at each step."""
    noise = found[count][0]["noise"]
    assert noise["gradient"].std() == pytest.approx(SIGMA * CLIP_NORM / NORMALISER, rel=0.01)
    assert noise["answer"].std() == pytest.approx(SIGMA * CLIP_NORM, rel=0.01)
    for name, bound in (("gradient", 0.02), ("answer", 0.08)):
        correlations = torch.corrcoef(noise[name]).fill_diagonal_(0)
        assert correlations.abs().max() < bound


@pytest.mark.parametrize("count", SEVERAL)
@pytest.mark.parametrize("cell", NOISE_CELLS, ids=" ".join)
def test_noise_of_every_way_to_ask(found, count, cell):
    """Every parameter of a UNet, every class and repeat: one noise of the declared size, all of it white, in all
    processes the same."""
    answers, std = found[count][0]["every way"][cell]
    assert all(p > 1e-10 for p in p_values(answers, std).values())
    values = torch.cat([part.flatten() for answer in answers for part in answer.values()]).double() / std
    assert values.std().item() == pytest.approx(1.0, abs=6.5 / (2 * len(values)) ** 0.5)
    for each in found[count][1:]:
        assert_same(dict(enumerate(each["every way"][cell][0])), dict(enumerate(answers)), rtol=0, atol=0)


@pytest.mark.parametrize("count", (1, *SEVERAL))
def test_samples_of_all_processes_together_are_poisson_samples(found, count):
    """Each image is sampled by one process, at the rate, and independently of the others, those of other processes
    included."""
    taken = found[count][0]["taken"]
    assert torch.allclose(taken, taken.round(), atol=0.01) and set(taken.round().unique().tolist()) == {0.0, 1.0}
    taken = taken.round()
    repeats, images = taken.shape
    spread = (RATE * (1 - RATE)) ** 0.5
    assert (taken.mean(0) - RATE).abs().max() < 5 * spread / repeats**0.5
    assert abs(float(taken.mean()) - RATE) < 5 * spread / (repeats * images) ** 0.5
    # Of a common seed, neighbours, which have the same number in their processes, would go together; in the first
    # process until it draws noise.
    assert count != 2 or not torch.equal(taken[0, ::2], taken[0, 1::2])
    together = torch.corrcoef(taken.T).fill_diagonal_(0)
    assert together.abs().max() < 6 / repeats**0.5
    sizes = taken.sum(1)
    assert float(sizes.var()) / (images * spread**2) == pytest.approx(1, abs=0.45)


@pytest.mark.parametrize("count", (1, *SEVERAL))
def test_groups_and_correlated_noise_are_those_of_one_process(found, count):
    """Whoever holds an image, its group is that of its id; the first process alone adds the noise of the bands."""
    groups = groups_of_rows(40, BANDS)
    for each in found[count]:
        for step, taken in enumerate(each["turns"]["taken"].numpy()):
            assert np.array_equal(np.flatnonzero(taken > 0.5), np.flatnonzero(groups == step % BANDS.num_groups))
        assert_same(each["turns"]["noise"], found[count][0]["turns"]["noise"], rtol=0, atol=0)
    white = matrix(BANDS.coefficients, [6]) @ found[count][0]["turns"]["noise"].double().numpy() / SIGMA
    assert white.std(1) == pytest.approx(np.ones(6), rel=0.03)
    assert np.abs(np.corrcoef(white) - np.eye(6)).max() < 6 / white.shape[1] ** 0.5


@pytest.mark.parametrize("count", SEVERAL)
def test_all_processes_get_the_same_bits(found, count):
    """Answers and, after steps of which most had no image in some process, weights; though each began with others."""
    for each in found[count][1:]:
        for part in ("noise", "taken"):
            assert_same(each[part], found[count][0][part], rtol=0, atol=0)
        assert_same(each["trained"], found[count][0]["trained"], rtol=0, atol=0)


@pytest.mark.parametrize("count", SEVERAL)
def test_the_ledger_is_that_of_one_process(found, count):
    for each in found[count]:
        assert each["trained"]["rows"] == found[1][0]["trained"]["rows"]
        assert each["trained"]["epsilon"] == found[1][0]["trained"]["epsilon"]
        assert each["alone"] == found[count][0]["alone"]
    assert [row["steps_executed"] for row in found[count][0]["trained"]["rows"]] == [4, 2]


@pytest.mark.parametrize("count", SEVERAL)
def test_a_refusal_of_the_ledger_stops_all_and_is_told_once(found, count):
    taken, message, _ = found[1][0]["refused"]
    assert taken > 0 and "was not asked" in message
    assert [each["refused"] for each in found[count]] == [(taken, message, index > 0) for index in range(count)]


@pytest.mark.parametrize("count", SEVERAL)
def test_all_go_on_from_a_checkpoint_or_it_is_refused_once(found, count):
    """What does not fit is noticed by the first process, and all end by it."""
    one = found[1][0]["checkpoint"]
    assert [name for name, _, _ in one["refused"]] == ["IntegrityError", "UsageError", "IntegrityError"]
    for index, each in enumerate(found[count]):
        assert_same(each["checkpoint"]["restored"], one["restored"])
        assert [refusal[:2] for refusal in each["checkpoint"]["refused"]] == [
            refusal[:2] for refusal in one["refused"]
        ]
        assert all(is_told == (index > 0) for _, _, is_told in each["checkpoint"]["refused"])


@pytest.mark.parametrize("count", SEVERAL)
def test_ordinary_training_takes_the_gradient_of_the_whole_batch(found, count):
    for each in found[count]:
        assert_same(each["warm-up"], found[1][0]["warm-up"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", SEVERAL)
def test_the_query_about_a_finished_model_is_that_of_one_process(found, count):
    """Each draws its part of the images, all have all of them, and one classifier, though each would train another."""
    (alone,) = (each["finished"] for each in found[1])
    finished = [each["finished"] for each in found[count]]
    assert [each["batches"] for each in finished] == [len(range(i, 4, count)) for i in range(count)]
    for each in finished:
        for name, tolerance in (("drawn", 0), ("labels", 0), ("weights", 1e-4), ("answer", 1e-4)):
            assert_same(each[name], finished[0][name], rtol=0, atol=0)
            assert_same(each[name], alone[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("count", SEVERAL)
def test_an_image_lies_in_one_process_with_all_of_its_unit(found, count):
    whole = make_arrays(11, units=True)
    seen = []
    for index, each in enumerate(found[count]):
        share = each["share"]
        mine = share["images"][:, 0, 0, 0].astype(int)
        assert np.array_equal(share["units"] * count + index, whole.units[mine])
        assert np.array_equal(share["labels"], whole.labels[mine])
        assert np.array_equal(share["readable"], whole.readable[mine])
        assert np.array_equal(share["images"], whole.images[mine])
        seen += mine.tolist()
    assert sorted(seen) == list(range(11))


@pytest.mark.parametrize("count", SEVERAL)
def test_rows_of_a_batch_lie_in_one_process_with_all_classes(count):
    """Every other row would be those of every other class, and the first process's batch normalisation had seen no
    other."""
    rows = []
    for index in range(count):
        processes = Processes()
        processes.count, processes.index = count, index
        rows.append(processes.rows(43))
        assert len(rows[-1]) == processes.part(43) and set((rows[-1] % 10).tolist()) == set(range(10))
    assert torch.cat(rows).tolist() == list(range(43))


def test_a_sum_is_formed_on_the_device_of_the_process(monkeypatch):
    """NCCL adds nothing on a CPU, where queries with exact noise are computed. "meta" stands for the card."""
    summed, processes = [], Processes(device="meta")
    processes.count, processes._alone = 2, False
    monkeypatch.setattr(distributed, "all_reduce", summed.append)
    monkeypatch.setattr(torch.Tensor, "to", _without_numbers(torch.Tensor.to))
    found = processes.sum({"a": torch.ones(3), "b": torch.ones(2, 2, dtype=torch.float64)})
    assert {bucket.device.type for bucket in summed} == {"meta"} and found["a"].device.type == "cpu"
    assert {name: (value.shape, value.dtype) for name, value in found.items()} == {
        "a": ((3,), torch.float32), "b": ((2, 2), torch.float64)
    }  # fmt: skip


def _without_numbers(original):
    """What comes back from a device without numbers is zeros."""

    def to(tensor, device, dtype):
        if tensor.device.type == "meta" and torch.device(device).type == "cpu":
            return torch.zeros(tensor.shape, dtype=dtype)
        return original(tensor, device, dtype)

    return to


def test_every_query_to_a_ledger_can_be_put_by_all():
    public = {name for name, _ in inspect.getmembers(PrivacyLedger) if not name.startswith("_")}
    assert public <= set(vars(SharedLedger))


# What the launcher says, and what cannot be.


@pytest.mark.parametrize(
    ("environment", "flags", "words"),
    [
        ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "10.0.0.1"}, "", ["one process", "torchrun --nnodes"]),
        (
            {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}, "",
            ["gradient_accumulation_steps 4", "--max_physical_batch_size"],
        ),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "", ["DeepSpeed", "torchrun"]),
        ({"ACCELERATE_USE_FSDP": "true"}, "", ["FSDP"]),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(environment, flags, words, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as refusal:
        config = load_config(flags.split(), DPDMConfig)
        start_processes(precision=config.precision)
    assert all(word in str(refusal.value) for word in words) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("has", [True, False])
def test_a_warm_up_is_in_bf16_where_that_is_measured_and_nothing_else_is_asked(has, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has})
    assert warm_up_type(None, torch.device("cpu")) == (torch.bfloat16 if has else None)
    assert {warm_up_type("no", torch.device("cpu")), warm_up_type(None, torch.device("cuda"))} == {None}
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # by its launcher
    assert warm_up_type(None, torch.device("cpu")) is None


def test_one_process_on_all_cores_in_the_place_of_several(monkeypatch, capsys):
    """Accelerate's launcher starts one on CPUs, whatever it is asked for, and does not tell how many were."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with one_thread():  # sets the number back
        assert start_processes(precision="no").count == 1 and torch.get_num_threads() == cores()
    assert "torchrun --nproc_per_node N" in capsys.readouterr().err


def test_what_all_processes_say_is_printed_once(monkeypatch, capsys):
    """A wrong flag by the first one of a machine, what the first process refused by that one, and by whoever comes
    first what each meets by itself: SIGTERM, and that another one is gone."""
    tell(UsageError("alone"))
    monkeypatch.setenv("LOCAL_RANK", "0")
    tell(UsageError("first"))
    monkeypatch.setenv("LOCAL_RANK", "1")
    tell(UsageError("second"))
    assert capsys.readouterr().err == "error: alone\nerror: first\n"
    store = torch.distributed.HashStore()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)
    tell(ProcessLost(LOST))
    tell(ProcessLost(LOST))
    tell(Interrupted(STOPPED))
    refused = UsageError("of the first process")
    refused.is_told = True
    tell(refused)
    tell(UsageError("this machine's alone"))
    assert capsys.readouterr().err == f"error: {LOST}\nerror: this machine's alone\n"


def test_the_signal_of_a_launcher_does_not_end_what_is_said_of_a_lost_process():
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(ProcessLost), stoppable(), Processes()._together():
            raise RuntimeError("Connection closed by peer")
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


# Whole runs.

FEW_STEPS = [*TINY_RUN, "--max_train_steps", "8", "--checkpointing_steps", "2"]
# The second process gets a signal in its fourth step.
SIGNALLED = """
import os, runpy, signal, sys
from diffusers_dp import SensitiveImages

asked, steps = SensitiveImages.noisy_gradient, []

def dies(*arguments, **options):
    steps.append(1)
    if os.environ["RANK"] == "1" and len(steps) == 4:
        os.kill(os.getpid(), signal.{signal})
    return asked(*arguments, **options)

SensitiveImages.noisy_gradient = dies
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_process_that_dies_stops_the_others_and_other_processes_go_on(tmp_path, monkeypatch, capsys):
    """One sentence and exit code 75, nothing hangs; one process then finishes what two began."""
    (tmp_path / "killed.py").write_text(SIGNALLED.format(signal="SIGKILL"))
    run = tmp_path / "run"
    flags = [*FEW_STEPS, *write_images(tmp_path / "images"), "--output_dir", str(run)]
    script = ROOT / "training" / "train_dpdm.py"
    died = forked.run(tmp_path / "killed.py", script, *flags, folder=tmp_path, count=2)
    assert died.returncode != 0
    assert died.stderr.count(f"error: {LOST}") + died.stderr.count(f"error: {STOPPED}") == 1
    assert status(run)["exit_code"] == 75 and status(run)["message"] in (LOST, STOPPED)
    assert not (run / "release").exists()
    _, before = read_ledger(run)
    load("dpdm", monkeypatch).main([*flags, "--resume_from_checkpoint", "latest"])
    assert "had 2 process(es) and continues with 1" in capsys.readouterr().out
    receipt, problems = verify(run / "release")
    assert problems == [] and receipt["processes"] == [2, 1]
    assert receipt["resumes"] == [{"step": 2, "fresh_entropy": True}]
    header, after = read_ledger(run)
    assert [row["id"] for row in after[: len(before)]] == [row["id"] for row in before]
    assert independent_epsilon(run) <= header["target_epsilon"] + 1e-3


def test_sigterm_to_one_process_stops_all_after_the_same_step(tmp_path):
    """The step that was begun is finished by all, and kept."""
    (tmp_path / "stopped.py").write_text(SIGNALLED.format(signal="SIGTERM"))
    run = tmp_path / "run"
    flags = [*FEW_STEPS, "--checkpointing_steps", "8", *write_images(tmp_path / "images"), "--output_dir", run]
    script = ROOT / "training" / "train_dpdm.py"
    stopped = forked.run(tmp_path / "stopped.py", script, *flags, folder=tmp_path, count=2)
    assert stopped.returncode == 75 and stopped.stderr.count(f"error: {STOPPED}") == 1
    assert status(run) == {"exit_code": 75, "message": STOPPED}
    assert (run / "private" / "checkpoint-4").is_dir() and not (run / "release").exists()
    _, rows = read_ledger(run)
    assert [row["steps_executed"] for row in rows] == [4]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "flags"),
    [
        (
            "feta_pro",
            "--spatial_steps 2 --frequency_steps 2 --generator_steps 2 --expert num_auxiliary_images=20 "
            "--num_frequency_features 50 --expert generator_channels=4 --evaluation_reserve 0.1 "
            "--num_evaluation_images 20",
        ),
        (
            "dp_feta",
            "--spatial_steps 2 --num_central_images 3 --central_images mode",
        ),
        ("dp_diffusion", ""),
    ],
)  # fmt: skip
def test_every_script_ends_in_a_release(method, flags, tmp_path):
    """Queries are asked once, warm-up and public pre-training are shared; a query has the rows of one process."""
    flags = [*TINY_RUN, *flags.split(), *write_images(tmp_path / "images"), "--output_dir", tmp_path / "run"]
    if method == "dp_diffusion":
        flags += write_public(tmp_path / "public")
    done = launch(2, f"training/train_{method}.py", *flags, patience=400)
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(re.findall("^Released", done.stdout, re.MULTILINE)) == 1
    receipt, problems = verify(tmp_path / "run" / "release")
    assert problems == [] and receipt["processes"] == [2]
    stages = [event["stage"] for event in receipt["events"]]
    asked = {"feta_pro": ["central_images", "frequency_features"], "dp_feta": ["mode_images"], "dp_diffusion": []}[
        method
    ]
    assert [stage for stage in stages if stage not in ("dp_sgd", "evaluation_reserve")] == asked
    identity = json.loads((tmp_path / "run" / "private" / "run.json").read_text())
    assert identity["processes"] == [2]


# Each process says which network it has, before DP-SGD looks at the first row.
OF_EACH = """
import hashlib, os, runpy, sys
from pathlib import Path
from diffusers_dp.runs.latent_run import LatentRun

trains = LatentRun.dp_sgd_on_latents

def says(run, targets):
    weights = b"".join(each.numpy().tobytes() for each in run.denoiser.network.state_dict().values())
    Path(__file__).with_name("network-" + os.environ["RANK"]).write_text(hashlib.sha256(weights).hexdigest())
    trains(run, targets)

LatentRun.dp_sgd_on_latents = says
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_a_latent_network(tmp_path):
    """It is asked about, and gets low-rank matrices; all processes have the same."""
    (tmp_path / "says.py").write_text(OF_EACH)
    flags = [*TINY_RUN[2:], *write_images(tmp_path / "images"), "--output_dir"]
    flags += [tmp_path / "run", "--pretrained_model_name_or_path", stable_diffusion(tmp_path / "base")]
    flags += "--train salient --num_salient 2 --merge --budget saliency=0.1".split()
    for more in ([], ["--resume_from_checkpoint", "latest"]):
        done = launch(2, tmp_path / "says.py", "training/train_dp_ldm.py", *flags, *more, patience=400)
        assert done.returncode == 0, done.stderr[-4000:]
        assert (tmp_path / "network-0").read_text() == (tmp_path / "network-1").read_text()
        (tmp_path / "network-1").unlink()
    receipt, problems = verify(tmp_path / "run" / "release")
    assert problems == [] and receipt["processes"] == [2, 2]
    assert {event["stage"] for event in receipt["events"]} == {"saliency", "dp_sgd"}


@pytest.mark.slow
def test_a_generator_and_a_model_that_learns_its_images(tmp_path):
    """Without DP-SGD: one query, a residual generator of all processes, and a diffusion model of its images."""
    flags = (
        "--features scattering --num_features 40 --generator residual --expert generator_channels=4 --generator_steps "
        "2 "
        "--expert generator_batch_size=12,num_generated_images=20 --diffusion_steps 2 "
        "--block_out_channels 8,16 --num_inference_steps 2 --class_names left,empty,right --resolution 8 "
        "--num_channels 1 --num_train_images 30 --accountant rdp --target_epsilon 1 --skip_preflight"
    ).split()
    flags += [*write_images(tmp_path / "images"), "--output_dir", tmp_path / "run"]
    done = launch(2, "training/train_mean_embedding.py", *flags, patience=400)
    assert done.returncode == 0, done.stderr[-4000:]
    receipt, problems = verify(tmp_path / "run" / "release")
    assert problems == [] and receipt["processes"] == [2]
    assert [event["stage"] for event in receipt["events"]] == ["mean_features"]


@pytest.mark.slow
def test_two_launchers_as_on_two_machines(tmp_path):
    """Each starts one process, which is the first of its machine; one of them is the first of all."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = f"--nnodes 2 --rdzv_backend c10d --rdzv_id test --rdzv_endpoint localhost:{free.getsockname()[1]}"
    command = [
        1,
        "training/train_dpdm.py",
        *FEW_STEPS,
        *write_images(tmp_path / "images"),
        "--output_dir",
        tmp_path / "run",
    ]
    with ThreadPoolExecutor() as threads:
        both = [threads.submit(launch, *command, machines=place) for _ in range(2)]
        done = [each.result() for each in both]
    assert [each.returncode for each in done] == [0, 0], [each.stderr[-4000:] for each in done]
    assert len(re.findall("^Released", "".join(each.stdout for each in done), re.MULTILINE)) == 1
    receipt, problems = verify(tmp_path / "run" / "release")
    assert problems == [] and receipt["processes"] == [2]
