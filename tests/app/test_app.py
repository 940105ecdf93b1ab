# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the page does, without a browser: what it opens and refuses, draws, says and packs."""

import io
import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from diffusers_dp.app import budget, server, views
from diffusers_dp.app.downloads import dataset_zip, file_name, images_zip
from diffusers_dp.app.drawing import read_order
from diffusers_dp.app.shelf import Shelf
from diffusers_dp.commands.app import Limits
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.release.plain_words import strength


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
        self.refused(tmp_path, "no model_index.json that can be read", allow_unverified=True)

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


@pytest.fixture(scope="module")
def drawn(shelf, opened):
    return draw(shelf, opened, order_of(count=4))[1]


class TestDownloads:
    def test_the_zip_has_each_image_and_the_receipt(self, drawn, honest):
        archive = zipfile.ZipFile(io.BytesIO(images_zip(drawn)))
        assert archive.namelist() == [f"0-000{i}-class_{i % 3}.png" for i in range(4)] + [RECEIPT]
        assert archive.read(RECEIPT) == (honest / RECEIPT).read_bytes()

    def test_a_stranger_s_class_names_are_harmless(self, drawn):
        evil = ('../../<img src=x onerror="alert(1)">', "b" * 500, "..")
        stranger = replace(drawn, released=replace(drawn.released, class_names=evil, name="<script>"))
        names = [file_name(stranger, i) for i in range(4)]
        assert all("/" not in name and "<" not in name and len(name) < 80 for name in names)
        for shown in (views.images(stranger, "<script>"), views.guarantee(stranger.released), views.error("<b>")):
            assert "<script>" not in shown and "<img src=x" not in shown and "<b>" not in shown
        assert all(".." not in name for name in zipfile.ZipFile(io.BytesIO(images_zip(stranger))).namelist())


class TestWords:
    def test_what_is_not_covered_is_said(self, opened):
        receipt = {**opened.receipt, "leaky_outputs": ["losses"], "private_evaluations": 2}
        shown = views.guarantee(replace(opened, receipt=receipt, card_agrees=False))
        assert "losses" in shown and "read 2 times" in shown and "card does not carry" in shown

    def test_a_large_delta_keeps_the_needle_out_of_the_green(self):
        """Amber begins at a third of the half circle, red at two thirds."""
        for epsilon in (0.01, 0.5, 1.0):
            amber, red = (views.dial(epsilon, strength(epsilon, delta, 50))["tip"] for delta in (0.0051, 0.02))
            assert amber == [77.0, 52.8] and red == [143.0, 52.8]


class TestBudget:
    def test_the_picture_of_a_model_is_drawn_from_its_receipt(self, shelf, opened):
        picture, words, table = shelf.budget(opened)
        assert picture.startswith(b"\x89PNG") and "DP-SGD" in table and "_" not in table and "40" in table
        assert shelf.budget(opened)[0] is picture
        plan = budget.plan_of_receipt(opened.receipt)
        assert plan.epsilon == pytest.approx(opened.receipt["claimed_epsilon"]["rdp"]["epsilon"], abs=1e-3)


class TestServer:
    def test_it_listens_to_this_machine_alone_unless_it_is_a_space(self, monkeypatch):
        monkeypatch.delenv("SPACE_ID", raising=False)
        assert server.parse([]).server_name == "127.0.0.1" and server.build_shelf(server.parse([])).folders_by_visitors
        assert not server.build_shelf(server.parse(["--server_name", "0.0.0.0"])).folders_by_visitors
        monkeypatch.setenv("SPACE_ID", "someone/space")
        assert server.parse([]).server_name == "0.0.0.0"
        assert not server.build_shelf(server.parse([])).folders_by_visitors
