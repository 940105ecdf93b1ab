# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the page does, without a browser: what it opens and refuses, draws, says and packs."""

import io
import json
import re
import shutil
import zipfile
from dataclasses import replace

import datasets
import numpy as np
import pytest
from PIL import Image

from diffusers_dp import load_verified
from diffusers_dp.app import budget, server, views
from diffusers_dp.app.downloads import archive_name, dataset_zip, file_name, images_zip
from diffusers_dp.app.drawing import Drawn, Preview, labels_of, read_order, sheet_of
from diffusers_dp.app.shelf import Shelf
from diffusers_dp.commands.app import Limits
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.release.loading import ModelRelease
from diffusers_dp.release.plain_words import attack_in_words, strength
from diffusers_dp.sampling.drawing import Drawing, pixels_of
from diffusers_dp.sampling.drawing import draw as draw_images
from support.releases import make_release


LIMITS = Limits(max_images=8, max_steps=6, max_model_mb=10)
RECEIPT = "privacy_receipt.json"


def order_of(classes=(), count=3, seed=0, steps=2, solver="dpm"):
    return read_order((classes, count, seed, steps, solver), LIMITS)


@pytest.fixture(scope="module")
def shelf(honest):
    return Shelf([str(honest)], LIMITS)


@pytest.fixture(scope="module")
def opened(shelf):
    return shelf.open(shelf.names[0])


def draw(shelf, opened, order):
    *previews, drawn = shelf.painter(opened).watch(order)
    return previews, drawn


def pixels(drawn):
    return np.stack([np.asarray(Image.open(io.BytesIO(image))) for image in drawn.images])


def test_a_model_is_opened_with_its_receipt_and_classes(opened, honest):
    assert opened.folder == honest and not opened.problems and opened.card_agrees
    assert opened.class_names == ("class 0", "class 1", "class 2") and opened.receipt["delta"] == 1e-5


class TestRefusals:
    def refused(self, name, words, *, error=IntegrityError, **options):
        with pytest.raises(error, match=words) as refusal:
            Shelf([str(name)], LIMITS, **options).open(str(name))
        assert "Traceback" not in str(refusal.value)

    def test_a_folder_that_is_no_release(self, tmp_path):
        self.refused(tmp_path, f"holds no {RECEIPT}")
        self.refused(tmp_path, "no model of this library", allow_unverified=True)

    @pytest.mark.parametrize(
        ("name", "content", "words"),
        [
            (RECEIPT, b"{", "not valid JSON"),
            ("unet/diffusion_pytorch_model.safetensors", b"", "its hash differs"),
            ("unet/diffusion_pytorch_model.bin", b"", "is not in the receipt"),
        ],
    )
    def test_what_does_not_match(self, release, name, content, words):
        (release / name).write_bytes(content)
        self.refused(release, words)

    def test_what_is_nowhere(self, monkeypatch):
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        self.refused("no/such-model", "HF_HUB_OFFLINE", error=UsageError)
        self.refused("no such/model/at all", "cannot be a name on the Hub", error=UsageError)
        self.refused("a" * 5000, "cannot be a name on the Hub", error=UsageError, folders_by_visitors=True)
        with pytest.raises(UsageError, match="Choose a model"):
            Shelf([], LIMITS).open("  ")

    def test_a_model_that_is_too_large_is_not_even_hashed(self, release, monkeypatch):
        with open(release / "unet" / "diffusion_pytorch_model.safetensors", "ab") as weights:
            weights.truncate(11_000_000)
        monkeypatch.setattr("diffusers_dp.release.loading.verify", None)
        self.refused(release, "is too large: .* up to 10 MB", error=UsageError)

    @pytest.mark.parametrize(
        ("name", "change", "words"),
        [
            ("unet/config.json", {"sample_size": 4096}, "4096 pixels"),
            ("unet/config.json", {"num_class_embeds": 10**9}, "has 999,999,999 classes, and 10,000 is the most"),
            *((name, change, "no model of this library") for name, change in (
                ("unet/config.json", {"num_class_embeds": "many"}),
                ("unet/config.json", {"sample_size": float("inf")}),
                ("model_index.json", {"patch_size": float("inf")}),
                ("model_index.json", {"id2label": ["a", "b"]}),
                ("model_index.json", {"unet": ["subprocess", "Popen"]}),
                ("model_index.json", {"scheduler": ["pipeline", "X"]}),
                ("model_index.json", {"_class_name": "X"}),
            )),
        ],
    )  # fmt: skip
    def test_a_config_that_none_of_ours_has(self, release, name, change, words):
        """Each class gets a name on the page: a config of a few bytes could fill the memory. Whatever is installed
        could be named in an index."""
        config = json.loads((release / name).read_text())
        (release / name).write_text(json.dumps({**config, **change}))
        self.refused(release, words, allow_unverified=True)

    def test_only_who_sits_at_the_machine_may_type_a_path(self, release, monkeypatch):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert Shelf([], LIMITS, folders_by_visitors=True).open(str(release)).receipt
        with pytest.raises(UsageError):
            Shelf([], LIMITS).open(str(release))

    def test_unverified_models_open_where_that_was_asked_for_and_say_so(self, release):
        receipt = json.loads((release / RECEIPT).read_text())
        (release / RECEIPT).write_text(json.dumps({**receipt, "delta": 1e-9}))
        shelf = Shelf([str(release)], LIMITS, allow_unverified=True)
        opened = shelf.open(str(release))
        shown = views.guarantee(opened)
        assert opened.problems and "Does NOT match" in shown and "Numbers consistent" not in shown
        assert "nothing here confirms" in shown and "1,000" not in shown.split("<details")[0]
        _, drawn = draw(shelf, opened, order_of())
        assert len(drawn.images) == 3
        with pytest.raises(UsageError, match="not verified"):
            dataset_zip(drawn)
        (release / RECEIPT).write_text('{"format": "diffusers_dp/1", "claimed_epsilon": "<script>"}')
        shown = views.guarantee(Shelf([str(release)], LIMITS, allow_unverified=True).open(str(release)))
        assert "Does NOT match" in shown and "<script>" not in shown


class TestDrawing:
    def test_previews_come_first_and_the_images_are_those_of_the_command(self, shelf, opened, tmp_path):
        previews, drawn = draw(shelf, opened, order_of(steps=4, seed=5))
        assert [(found.done, found.total) for found in previews] == [(1, 4), (2, 4), (3, 4)]
        assert all(isinstance(found, Preview) for found in previews)
        assert Image.open(io.BytesIO(previews[0].sheet)).size == (16, 16)  # three of 8x8, two in a row
        pipeline = load_verified(opened.folder)
        others = pixels_of(draw_images(pipeline, Drawing(3, num_inference_steps=4, seed=5)))[:, 0]
        assert np.abs(pixels(drawn).astype(int) - others).max() <= 1 and drawn.labels == (0, 1, 2)

    def test_the_noise_of_a_preview_falls(self, shelf, opened):
        previews, drawn = draw(shelf, opened, order_of(steps=6, count=4))
        last = sheet_of(pixels(drawn)[..., None])
        far = [np.abs(np.asarray(Image.open(io.BytesIO(p.sheet))).astype(int) - last).mean() for p in previews]
        assert far[-1] < far[0]

    def test_an_image_does_not_depend_on_the_others(self, shelf, opened):
        _, three = draw(shelf, opened, order_of(classes=("class 1",)))
        _, one = draw(shelf, opened, order_of(classes=("class 1",), count=1))
        assert np.abs(pixels(three)[0].astype(int) - pixels(one)[0]).max() <= 1 and three.labels == (1, 1, 1)

    def test_one_that_is_left_stops(self, shelf, opened):
        painter = shelf.painter(opened)
        drawing = painter.watch(order_of(steps=6))
        assert isinstance(next(drawing), Preview)
        drawing.close()
        assert list(drawing) == [] and painter.is_alive
        assert len([*painter.watch(order_of())][-1].images) == 3  # it takes the next order

    def test_without_classes(self, tmp_path):
        release = make_release(tmp_path, num_classes=None)
        shelf = Shelf([str(release)], LIMITS)
        opened = shelf.open(str(release))
        _, drawn = draw(shelf, opened, order_of())
        assert drawn.labels is None and file_name(drawn, 2) == "0-0002.png"
        with pytest.raises(UsageError, match="has no classes"):
            labels_of(order_of(classes=("cat",)), opened)
        assert dataset_zip(drawn)

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({"count": 9}, "number of images .* from 1 to 8"),
            ({"count": 1e300}, "number of images"),
            ({"count": None}, "number of images"),
            ({"count": 2.5}, "number of images"),
            ({"seed": -1}, "seed"),
            ({"seed": 1.5}, "seed"),
            ({"seed": float("nan")}, "seed"),
            ({"steps": 7}, "steps .* from 1 to 6"),
            ({"solver": "euler"}, "solver has to be one of"),
        ],
    )
    def test_what_cannot_be_asked_is_one_sentence(self, values, words):
        with pytest.raises(UsageError, match=words):
            order_of(**values)

    def test_a_class_that_does_not_exist(self, opened):
        with pytest.raises(UsageError, match="'cat' is no class of .*: choose from class 0, class 1, class 2"):
            labels_of(order_of(classes=("class 1", "cat")), opened)

    def test_only_two_models_are_kept(self, honest, tmp_path, monkeypatch):
        """The processes are stand-ins here."""

        class Painter:
            is_alive = True

            def __init__(self, *_, **__): ...

            def close(self):
                self.is_alive = False

        monkeypatch.setattr("diffusers_dp.app.shelf.Painter", Painter)
        names = [str(shutil.copytree(honest, tmp_path / str(i))) for i in range(3)]
        shelf = Shelf(names, LIMITS)
        painters = [shelf.painter(shelf.open(name)) for name in names]
        assert shelf.painter(shelf.open(names[2])) is painters[2]
        assert [painter.is_alive for painter in painters] == [False, True, True]


@pytest.fixture(scope="module")
def drawn(shelf, opened):
    return draw(shelf, opened, order_of(count=4))[1]


class TestDownloads:
    def test_the_zip_has_each_image_and_the_receipt(self, drawn, honest):
        archive = zipfile.ZipFile(io.BytesIO(images_zip(drawn)))
        assert archive.namelist() == [f"0-000{i}-class_{i % 3}.png" for i in range(4)] + [RECEIPT]
        assert archive.read(RECEIPT) == (honest / RECEIPT).read_bytes()

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("runs/demo/release", "runs-demo-seed0-images.zip"),
            ("someone/scans", "someone-scans-seed0-images.zip"),
            ("/", "model-seed0-images.zip"),
            ("../<script>", "script-seed0-images.zip"),
        ],
    )
    def test_what_is_saved_is_called_by_model_and_seed(self, drawn, name, expected):
        assert archive_name(replace(drawn, released=replace(drawn.released, name=name)), "images") == expected

    def test_the_dataset_loads(self, drawn, tmp_path):
        zipfile.ZipFile(io.BytesIO(dataset_zip(drawn))).extractall(tmp_path / "set")
        table = datasets.load_dataset(str(tmp_path / "set"), split="train", cache_dir=str(tmp_path / "cache"))
        assert table.features["label"].names == ["class 0", "class 1", "class 2"] and table["label"] == [0, 1, 2, 0]
        assert np.array_equal(np.stack([np.asarray(image) for image in table["image"]]), pixels(drawn))
        card = (tmp_path / "set" / "README.md").read_text()
        assert "differential-privacy" in card and "epsilon" in card and (tmp_path / "set" / RECEIPT).is_file()

    def test_a_stranger_s_class_names_are_harmless(self, drawn):
        evil = ('../../<img src=x onerror="alert(1)">', "b" * 500, "..")
        stranger = replace(drawn, released=replace(drawn.released, class_names=evil, name="<script>"))
        names = [file_name(stranger, i) for i in range(4)]
        assert all("/" not in name and "<" not in name and len(name) < 80 for name in names)
        for shown in (views.images(stranger, "<script>"), views.guarantee(stranger.released), views.error("<b>")):
            assert "<script>" not in shown and "<img src=x" not in shown and "<b>" not in shown
        assert all(".." not in name for name in zipfile.ZipFile(io.BytesIO(images_zip(stranger))).namelist())


class TestWords:
    def test_the_guarantee_has_dial_badge_and_questions(self, opened):
        shown = views.guarantee(opened)
        for words in ("<svg", "Numbers consistent, unsigned", "frequency features", "dp sgd", "<td>40</td>"):
            assert words in shown
        assert "NOT" not in shown
        assert re.search(r"accuses 1 of 1,000 unused images finds at most \d+ of 1,000 used ones</summary>", shown)
        assert attack_in_words(opened.receipt) in shown

    def test_what_is_not_covered_is_said(self, opened):
        receipt = {**opened.receipt, "leaky_outputs": ["losses"], "private_evaluations": 2}
        shown = views.guarantee(replace(opened, receipt=receipt, card_agrees=False))
        assert "losses" in shown and "read 2 times" in shown and "card does not carry" in shown

    def test_a_receipt_that_there_are_no_words_for(self, opened):
        for change in ({"assumptions": None}, {"unit_of_privacy": "\ud800"}, {"claimed_epsilon": []}):
            stranger = replace(opened, receipt={**opened.receipt, **change})
            shown = views.guarantee(stranger)
            assert "Does NOT match" in shown and "no words for it" in shown and "Numbers consistent" not in shown
            shown.encode()

    def test_the_needle_moves_to_the_right(self):
        epsilons = (0.01, 0.5, 1, 5, 10, 50, 1e9)
        tips = [views.dial(epsilon, strength(epsilon, 1e-6, 1000))["tip"][0] for epsilon in epsilons]
        assert tips == sorted(tips) and tips[0] == 44 and tips[-1] == 176

    def test_a_large_delta_keeps_the_needle_out_of_the_green(self):
        """Amber begins at a third of the half circle, red at two thirds."""
        for epsilon in (0.01, 0.5, 1.0):
            amber, red = (views.dial(epsilon, strength(epsilon, delta, 50))["tip"] for delta in (0.0051, 0.02))
            assert amber == [77.0, 52.8] and red == [143.0, 52.8]

    def test_an_image_in_the_grid_saves_itself(self):
        drawn = Drawn(ModelRelease("m", None, class_names=("a", "b")), order_of(count=2), (1, 0), (b"x", b"y"))
        shown = views.images(drawn)
        assert 'download="0-0000-b.png"' in shown and 'alt="Image 2, drawn as a"' in shown
        assert shown.count("data:image/png;base64,eA==") == 2


class TestBudget:
    def test_the_picture_of_a_model_is_drawn_from_its_receipt(self, shelf, opened):
        picture, words, table = shelf.budget(opened)
        assert picture.startswith(b"\x89PNG") and "DP-SGD" in table and "_" not in table and "40" in table
        assert shelf.budget(opened)[0] is picture
        plan = budget.plan_of_receipt(opened.receipt)
        assert plan.epsilon == pytest.approx(opened.receipt["claimed_epsilon"]["rdp"]["epsilon"], abs=1e-3)

    @pytest.mark.parametrize("events", [[], [{"stage": "a"}], "x"])
    def test_other_stages_have_none(self, opened, events):
        with pytest.raises(UsageError, match="no picture"):
            budget.plan_of_receipt({**opened.receipt, "events": events})

    def test_a_run_of_one_s_own(self):
        plan, table = budget.think_of(10_000, 2, 500, 20)
        assert plan.epsilon == pytest.approx(2, abs=1e-2) and "DP-SGD" in table

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ((5, 1, 1, 1), "number of images"), ((100, 0, 10, 1), "epsilon"), ((100, 1, 200, 1), "larger than"),
            ((100, 1, 10, 10**9), "steps"), ((None, 1, 10, 1), "number of images"),
            ((100, float("nan"), 10, 1), "epsilon"),
        ],
    )  # fmt: skip
    def test_numbers_out_of_range_are_one_sentence(self, values, words):
        with pytest.raises(UsageError, match=words):
            budget.think_of(*values)


class TestServer:
    def test_it_listens_to_this_machine_alone_unless_it_is_a_space(self, monkeypatch):
        monkeypatch.delenv("SPACE_ID", raising=False)
        assert server.parse([]).server_name == "127.0.0.1" and server.build_shelf(server.parse([])).folders_by_visitors
        assert not server.build_shelf(server.parse(["--server_name", "0.0.0.0"])).folders_by_visitors
        monkeypatch.setenv("SPACE_ID", "someone/space")
        assert server.parse([]).server_name == "0.0.0.0"
        assert not server.build_shelf(server.parse([])).folders_by_visitors

    def test_which_models(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        assert server.build_shelf(server.parse([])).names == ()
        (tmp_path / "runs" / "demo" / "release").mkdir(parents=True)
        (tmp_path / "runs" / "demo" / "release" / RECEIPT).write_text("")
        assert server.build_shelf(server.parse([])).names == ("runs/demo/release",)
        monkeypatch.setenv(server.NAMES_VARIABLE, "a/b, c/d,")
        assert server.build_shelf(server.parse([])).names == ("a/b", "c/d")
        assert server.build_shelf(server.parse(["e/f", "e/f"])).names == ("e/f",)

    def test_a_wrong_flag_is_one_sentence(self, capsys):
        with pytest.raises(SystemExit) as refused:
            server.main(["--max_images", "0"])
        assert refused.value.code == 2 and "--max_images" in capsys.readouterr().err
