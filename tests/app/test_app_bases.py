# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A release of adapters names a base, and the page fetches it by the page's own rules: a visitor's release gets no
token of ours, no more megabytes than a model, and no folder of this machine."""

import json
import shutil

import pytest

from diffusers_dp import load_verified
from diffusers_dp.app.drawing import read_order
from diffusers_dp.app.shelf import Shelf
from diffusers_dp.commands.app import Limits
from diffusers_dp.errors import DiffusersDPError, UsageError
from support.latent_releases import change_index, latent_release, to_hub
from support.latents import stable_diffusion


LIMITS = Limits(max_images=8, max_steps=6, max_model_mb=2)
BASE, ADAPTERS = "someone/base", "someone/adapters"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return stable_diffusion(tmp_path_factory.mktemp("bases") / "base")


@pytest.fixture
def adapters(base, hub, tmp_path):
    """A release whose base is on the Hub, where the release is, too."""
    to_hub(hub, base, BASE)
    release = latent_release(tmp_path / "run", BASE)
    shutil.rmtree(tmp_path / "hub-cache")
    to_hub(hub, release, ADAPTERS)
    hub.calls.clear()
    hub.calls_with_token.clear()
    return release


def refused(shelf, name, words, error=DiffusersDPError):
    with pytest.raises(error, match=words) as refusal:
        shelf.load(shelf.open(name))
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_a_base_on_the_hub_is_fetched_and_drawn_with_and_no_token_is_shown(adapters, hub):
    shelf = Shelf([], LIMITS)
    opened = shelf.open(ADAPTERS)
    *_, drawn = shelf.draw(opened, read_order(opened, (["dog"], 2, 0, 1, "dpm"), LIMITS))
    shelf.load(opened).close()
    assert len(drawn.images) == 2
    assert hub.calls_with_token == [] and any("/base/resolve/" in call for call in hub.calls)


def test_a_private_base_is_not_fetched_for_a_visitor_and_is_for_the_owner(adapters, hub):
    hub.private.add(f"models/{BASE}")
    refused(Shelf([], LIMITS), ADAPTERS, BASE, UsageError)
    assert hub.calls_with_token == []
    shelf = Shelf([ADAPTERS], LIMITS)
    shelf.load(shelf.open(ADAPTERS)).close()


def test_a_base_that_is_too_large_is_not_fetched(adapters, hub):
    weights = next(name for name in hub.repositories[f"models/{BASE}"] if name.startswith("unet/diffusion"))
    hub.repositories[f"models/{BASE}"][weights] += b"0" * 2_000_000
    assert "up to 2 MB" in refused(Shelf([], LIMITS), ADAPTERS, "its base is too large", UsageError)
    assert not any("/base/resolve/" in call for call in hub.calls)


def test_bases_count_as_models_that_are_fetched(adapters, monkeypatch):
    monkeypatch.setattr("diffusers_dp.app.shelf.MODELS_FETCHED", 1)
    refused(Shelf([], LIMITS), ADAPTERS, "has fetched 1 releases", UsageError)


@pytest.mark.parametrize("visitors", [True, False])
def test_a_base_is_no_folder_of_this_machine_and_the_message_does_not_tell_of_one(
    adapters, base, hub, tmp_path, visitors, monkeypatch
):
    """The same sentence whether or not there is something of that name."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(base, tmp_path / "there" / "base")
    (tmp_path / "file").write_text("")
    reference = json.loads((adapters / "model_index.json").read_text())["base"]

    def said(name):
        change_index(adapters, base={**reference, "name": name})
        to_hub(hub, adapters, ADAPTERS)
        page = refused(Shelf([], LIMITS, folders_by_visitors=visitors), ADAPTERS, "base", UsageError)
        with pytest.raises(UsageError) as alone:
            load_verified(adapters)
        return page.replace(name, "NAME"), str(alone.value).replace(name, "NAME")

    assert len({said(str(name)) for name in (base, tmp_path / "file", tmp_path / "absent")}) == 1
    assert said("there/base") == said("absent/base")
    to_hub(hub, base, "there/base")  # who is asked is the Hub
    change_index(adapters, base={**reference, "name": "there/base"})
    load_verified(adapters)
    assert any("there/base/resolve" in call for call in hub.calls)
