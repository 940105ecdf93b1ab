# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the page does, without a browser: what it opens and refuses, draws, says and packs."""

import argparse
import io
import json
import zipfile
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from diffusers_dp.app import server, views
from diffusers_dp.app.downloads import dataset_zip, file_names, images_zip
from diffusers_dp.app.drawing import read_order
from diffusers_dp.app.shelf import Shelf
from diffusers_dp.commands.app import Limits, PageFlags, add_arguments
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.release.plain_words import strength


LIMITS = Limits(max_images=8, max_steps=6, max_model_mb=10)
RECEIPT = "privacy_receipt.json"


@pytest.fixture(scope="module")
def shelf(honest):
    return Shelf([str(honest)], LIMITS)


@pytest.fixture(scope="module")
def opened(shelf):
    return shelf.open(shelf.names[0])


def draw(shelf, opened, classes=None, count=3):
    *steps, drawn = shelf.draw(opened, read_order(opened, (classes, count, 0, 2, "dpm"), LIMITS))
    assert [(step.done, step.total) for step in steps] == [(1, 2), (2, 2)]
    return drawn


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

    def test_what_does_not_match(self, release):
        (release / "unet" / "diffusion_pytorch_model.bin").touch()
        self.refused(release, "is not in the receipt")

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
            ("unet/config.json", {"sample_size": float("inf")}, "no model of this library"),
            ("model_index.json", {"unet": ["subprocess", "Popen"]}, "no model of this library"),
        ],
    )
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
        drawn = draw(shelf, opened)
        assert len(drawn.images) == 3
        with pytest.raises(UsageError, match="not verified"):
            dataset_zip(drawn)
        (release / RECEIPT).write_text('{"format": "diffusers_dp/1", "claimed_epsilon": "<script>"}')
        shown = views.guarantee(Shelf([str(release)], LIMITS, allow_unverified=True).open(str(release)))
        assert "Does NOT match" in shown and "<script>" not in shown


@pytest.fixture(scope="module")
def drawn(shelf, opened):
    return draw(shelf, opened, count=4)


class TestDownloads:
    def test_the_zip_has_each_image_and_the_receipt(self, drawn, honest):
        archive = zipfile.ZipFile(io.BytesIO(images_zip(drawn)))
        assert archive.namelist() == [f"0-000{i}-class_{i % 3}.png" for i in range(4)] + [RECEIPT]
        assert archive.read(RECEIPT) == (honest / RECEIPT).read_bytes()

    def test_a_stranger_s_class_names_are_harmless(self, drawn):
        evil = ('../../<img src=x onerror="alert(1)">', "b" * 500, "..")
        stranger = replace(drawn, released=replace(drawn.released, class_names=evil, name="<script>"))
        names = file_names(stranger)
        assert all("/" not in name and "<" not in name and len(name) < 80 for name in names)
        for shown in (
            views.drawing(stranger),
            views.gallery([stranger.released], ""),
            views.guarantee(stranger.released),
            views.error("<b>"),
        ):
            assert "<script>" not in shown and "<img src=x" not in shown and "<b>" not in shown
        assert all(".." not in name for name in zipfile.ZipFile(io.BytesIO(images_zip(stranger))).namelist())


class TestWords:
    def test_what_is_not_covered_is_said(self, opened):
        receipt = {**opened.receipt, "leaky_outputs": ["losses"], "private_evaluations": 2}
        shown = views.guarantee(replace(opened, receipt=receipt, card_agrees=False))
        assert "losses" in shown and "read 2 times" in shown and "card does not carry" in shown

    def test_a_large_delta_keeps_the_scale_out_of_the_green(self):
        """Amber begins above epsilon 1, red above 10."""
        for epsilon in (0.01, 0.5, 1.0):
            assert views.position(epsilon, strength(epsilon, 1e-5, 50).word) == np.log10(epsilon) <= 0
            amber, red = (views.position(epsilon, strength(epsilon, delta, 50).word) for delta in (0.0051, 0.02))
            assert 0 < amber < 0.1 and 1 < red < 1.1

    def test_a_card_has_the_command_that_draws_the_same_again(self, shelf, opened, drawn):
        def card(of):
            return zipfile.ZipFile(io.BytesIO(dataset_zip(of))).read("README.md").decode()

        assert "--num_images 4 --guidance_scale 1.0 --num_inference_steps 2 --seed 0 --solver dpm" in card(drawn)
        chosen = card(draw(shelf, opened, ["class 1"]))
        assert "- classes: class 1" in chosen and "diffusers-dp sample" not in chosen


class TestServer:
    def test_it_listens_to_this_machine_alone_unless_it_is_a_space(self, monkeypatch):
        def flags(*given):
            parser = argparse.ArgumentParser()
            add_arguments(parser)
            return PageFlags(**vars(parser.parse_args(given)))

        monkeypatch.delenv("SPACE_ID", raising=False)
        assert flags().server_name == "127.0.0.1" and server.build_shelf(flags()).folders_by_visitors
        assert not server.build_shelf(flags("--server_name", "0.0.0.0")).folders_by_visitors
        monkeypatch.setenv("SPACE_ID", "someone/space")
        assert flags().server_name == "0.0.0.0"
        assert not server.build_shelf(flags()).folders_by_visitors

    def test_what_the_page_cannot_draw_is_said_before_it_starts(self, release, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(server, "release_in", lambda name: Mock(holds_images=name == str(tmp_path)))
        server.build_shelf(PageFlags(releases=(str(release), str(tmp_path), "no/folder")))
        first, second = capsys.readouterr().out.splitlines()
        assert first.startswith(f"'{tmp_path}' holds images and no model")
        assert second.startswith("'no/folder' is not a folder here")

    def test_a_link_fetches_nothing(self, release):
        """Another site may link to the page; only the page itself, and so its visitor, opens what is not listed."""
        shelf = Shelf([], LIMITS, folders_by_visitors=True)
        with pytest.raises(UsageError, match="is not open here yet"):
            shelf.opened(str(release))
        shelf.open(str(release))
        assert shelf.opened(str(release)).receipt
