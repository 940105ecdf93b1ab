# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""PGE as published: it says that it guarantees nothing, an attack breaks its claim, and no door takes what it
writes."""

import math
import re
import sys
from argparse import Namespace
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from diffusers_dp import load_verified
from diffusers_dp.app.shelf import Shelf
from diffusers_dp.commands.app import Limits
from diffusers_dp.errors import DiffusersDPError, UsageError
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.release.build import build_release
from diffusers_dp.release.push import files_to_push
from diffusers_dp.release.receipt import RunRecord
from diffusers_dp.verify import WITHOUT
from support.benchmarks import BENCHMARKS
from support.flags import TINY_RUN
from support.receipts import make_ledger
from support.runs import load, write_images


SHORT = (
    "--epsilon 1 --neighbours 4 --train_steps 3 --hidden 8 --num_images 20 --sampling_steps 3 --trials 4 --pilots 2 "
    "--attack_steps 2 --attack_records 6 --attack_hidden 4"
).split()

ASKED = "--skip_preflight --class_names left,empty,right --num_train_images 30 --target_epsilon 1".split()


@pytest.fixture(scope="module")
def pge():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
        yield import_module("pge")


@pytest.fixture(scope="module")
def made(pge, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pge")
    pge.main([*SHORT, "--output_dir", str(folder)])
    return folder / "no_guarantee"


def test_it_says_so_at_every_start(pge, tmp_path, capsys):
    """Also where it only attacks, or refuses; and there is no flag for other images."""
    for given in ("--attack_only", "--neighbours 1"):
        try:
            pge.main([*SHORT, *given.split(), "--output_dir", str(tmp_path)])
        except SystemExit as stop:
            assert stop.code == 2
        assert capsys.readouterr().err.startswith("NO GUARANTEE: PGE reads images in the clear")
    with pytest.raises(SystemExit, match="2"):
        pge.main([*SHORT, "--train_data_dir", str(tmp_path)])


@pytest.mark.parametrize("taken", ["private/run.json", "no_guarantee/model_index.json", "privacy_receipt.json"])
def test_it_takes_no_other_runs_place(taken, pge, tmp_path, capsys):
    """A run without noise writes a folder of the same name; only one of its own is replaced."""
    path = tmp_path / taken
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"_class_name": "DPImagePipeline"}')
    with pytest.raises(SystemExit, match="2"):
        pge.main([*SHORT, "--output_dir", str(tmp_path)])
    assert "holds something else" in capsys.readouterr().err and path.read_text().startswith('{"_class')
    for _ in range(2):
        pge.main([*SHORT, "--output_dir", str(tmp_path / "own")])


def test_randomised_response_is_that_of_equation_6(pge):
    torch.manual_seed(0)
    v = torch.randn(400, 12, 5)
    response = pge.randomised_response(v, 4, 1.0)
    kept = (response == v).all(2)
    assert kept.float().mean().item() == pytest.approx(math.e / (math.e + 3), abs=0.03)
    for copy in range(3):
        for row in range(12):
            cosine = torch.nn.functional.cosine_similarity(v[copy, row][None], v[copy], dim=1)
            nearest = v[copy][cosine.topk(4).indices]
            assert (response[copy, row] == nearest).all(1).any()


def test_the_loss_is_that_of_equation_8(pge):
    """By the whole Jacobian."""
    torch.manual_seed(0)
    network, rows = pge.Scores(1, 4, 6), torch.randn(1, 3, 4)
    v, response = torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    found = pge.matching_loss(network, rows, v, response)[0]
    for row in range(3):
        jacobian = torch.autograd.functional.jacobian(lambda x: network(x[None, None])[0, 0], rows[0, row])
        score, r = network(rows)[0, row], response[0, row]
        assert found[row].item() == pytest.approx((r @ jacobian @ r + (v[0, row] @ score) ** 2 / 2).item(), rel=1e-4)


def test_its_dynamics_keep_a_normal_distribution(pge):
    """With the sign put right: of the score -x, images of variance 1."""
    args = Namespace(sampling_steps=200, refresh=20, step_size=0.2)
    drawn = pge.draw(lambda rows: -rows, 500, args)
    assert drawn.std().item() == pytest.approx(1, abs=0.05) and abs(drawn.mean()) < 0.05


def test_an_attack_breaks_the_claim(pge):
    """On fewer networks than the figure in the documentation rests on."""
    flags = "--epsilon 0.2 --neighbours 10 --data_noise 0.3 --learning_rate 1e-3".split()
    given = dict(zip((flag[2:] for flag in flags[::2]), map(float, flags[1::2]), strict=True))
    torch.manual_seed(0)
    found = pge.attack(Namespace(**{
        **given, "neighbours": 10, "trials": 24, "pilots": 8, "attack_records": 20, "attack_steps": 150,
        "attack_hidden": 16,
    }))  # fmt: skip
    assert found["epsilon_at_least"] > found["claimed_epsilon"] == 0.2


class TestDoors:
    """Release, verify, push, sample, evaluation, page, and the start of another run."""

    def test_what_is_written_says_what_it_is(self, made):
        assert made.stat().st_mode & 0o777 == 0o700
        assert {path.name for path in made.iterdir()} == {
            "README.md", "figures.json", "model_index.json", "score.safetensors",
        }  # fmt: skip
        assert all(WITHOUT.encode() in (made / name).read_bytes() for name in ("README.md", "model_index.json"))
        assert WITHOUT.encode() in (made / "score.safetensors").read_bytes()

    @pytest.mark.parametrize("folder", ["no_guarantee", "."])
    def test_load_verified_push_and_page(self, folder, made):
        name = str((made.parent / folder).resolve())
        for take in (load_verified, files_to_push, Shelf([name], Limits()).open):
            with pytest.raises(DiffusersDPError) as refusal:
                take(name)
            assert folder == "." or WITHOUT in str(refusal.value)

    @pytest.mark.parametrize(
        ("method", "flag"),
        [
            ("dp_diffusion", "--pretrained_model_name_or_path"),
            ("dp_diffusion", "--public_data_dir"),
            ("dp_diffusion", "--public_dataset_name"),
            ("dp_mepf", "--feature_network"),
            ("dpdm", "--train_data_dir"),
            ("dpdm", "--output_dir"),
            ("pe", "--public_data_dir"),
            ("pe", "--embedding_network"),
        ],
    )
    def test_no_other_run_begins_with_it(self, method, flag, made, tmp_path, monkeypatch):
        before = {path: path.read_bytes() for path in made.iterdir()}
        own = (
            [*TINY_RUN] if method in ("dpdm", "dp_diffusion") else [*ASKED, "--resolution", "8", "--num_channels", "1"]
        )
        own += ["--features", "perceptual"] if method == "dp_mepf" else []
        given = [*own, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run"), flag, str(made)]
        with pytest.raises(UsageError, match=re.escape(f"{flag} {made} was {WITHOUT}")):
            load(method, monkeypatch).main(given)
        if flag == "--output_dir":
            with pytest.raises(UsageError, match="holds another run"):
                load(method, monkeypatch).main([*given[:-1], str(made.parent)])
        assert not (tmp_path / "run").exists()
        assert {path: path.read_bytes() for path in made.iterdir()} == before

    def test_no_release_is_built_of_it(self, tmp_path):
        """No receipt can be written for the method, and so no release."""
        nothing = SimpleNamespace(files=(), save=lambda release: None)
        with pytest.raises(UsageError, match="PGE has no guarantee"):
            build_release(tmp_path, nothing, RunRecord(ledger=make_ledger(), method=METHODS["pge"]))
        assert not (tmp_path / "release").exists()
