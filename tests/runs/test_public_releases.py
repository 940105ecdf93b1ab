# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Public images that are a release, or were drawn from one: they are inputs with an epsilon, counted or refused."""

import json
import shutil
from pathlib import Path

import pytest

from diffusers_dp import verify
from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.cli import main as cli
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.files.canonical import canonical_json
from support.few import few
from support.flags import NUM_IMAGES, TINY_RUN
from support.ledgers import row
from support.releases import RECEIPT, make_release
from support.runs import files, write_images


METHOD = "dp_diffusion"
CLASSES = ("left", "empty", "right")
PRETRAINING = ["--objective", "edm", "--public_steps", "2", "--expert", "public_batch_size=4"]
FLAGS = [*TINY_RUN, *PRETRAINING]


def ledger_of(path=None, num_images=NUM_IMAGES, **changes):
    ledger = PrivacyLedger(
        path, target_epsilon=50, target_delta=1e-3, num_images=num_images, public_facts={"class_names": list(CLASSES)},
        **changes,
    )  # fmt: skip
    ledger.executed(ledger.reserve(row(2.0, name="frequency_features")), 1)
    return ledger


def drawn_from(release, folder):
    """What `diffusers-dp sample` writes."""
    cli(["sample", str(release), "--num_images", "12", "--output_dir", str(folder), "--num_inference_steps", "1"])
    return folder


@pytest.fixture(scope="module")
def drawn_once(tmp_path_factory):
    return drawn_from(
        make_release(tmp_path_factory.mktemp("run"), ledger=ledger_of()), tmp_path_factory.mktemp("drawn") / "images"
    )


@pytest.fixture
def drawn(drawn_once, tmp_path):
    return Path(shutil.copytree(drawn_once, tmp_path / "drawn"))


def receipt_of(release):
    return json.loads((release / RECEIPT).read_text())


def linked(drawn, tmp_path):
    """A folder of links to the files of a release."""
    (tmp_path / "links").mkdir()
    for file in (drawn / "data").iterdir():
        (tmp_path / "links" / file.name).symlink_to(file)
    return tmp_path / "links"


PLACES = {
    "the folder": lambda drawn, tmp_path: drawn,
    "what lies in it": lambda drawn, tmp_path: drawn / "data",
    "a folder that holds it": lambda drawn, tmp_path: drawn.rename(tmp_path / "all" / "drawn").parent,
    "links to its files": linked,
    "a link to it": lambda drawn, tmp_path: (tmp_path / "link").symlink_to(drawn / "data") or tmp_path / "link",
}


@pytest.mark.parametrize("place", PLACES)
def test_drawn_images_of_the_same_images_are_refused(place, drawn, script, flags, tmp_path):
    """As a model that drew them is: their epsilon would not be in the receipt."""
    (tmp_path / "all").mkdir()
    name = PLACES[place](drawn, tmp_path)
    with pytest.raises(UsageError, match="^--public_dataset_name .* so probably on these.*--dataset_id, which"):
        script.main([*flags, "--public_dataset_name", str(name)])
    assert not (tmp_path / "run").exists(), "nothing is left behind"


def test_of_other_images_they_are_an_input_with_an_epsilon(tmp_path, script, flags, capsys):
    """The receipt says their epsilon and no longer that they were made without the sensitive images; `verify` says
    it."""
    drawn = drawn_from(make_release(tmp_path, ledger=ledger_of(num_images=50)), tmp_path / "drawn")
    script.main([*flags, "--public_dataset_name", str(drawn)])
    receipt, first = receipt_of(tmp_path / "run" / "release"), receipt_of(drawn)
    (origin,) = receipt["public_inputs"]
    assert origin["kind"] == "release of diffusers_dp" and origin["num_images"] == 12 and origin["steps"] == 2
    assert origin["epsilon"] == first["claimed_epsilon"]["pld"]["epsilon"] and origin["delta"] == first["delta"]
    assert origin["receipt_sha256"] == verify.settled_digest(first) and origin["num_units"] == 50
    assert "made without the sensitive images" not in json.dumps(receipt["assumptions"])
    capsys.readouterr()
    assert verify.report(tmp_path / "run" / "release") == 0
    said = capsys.readouterr().out
    assert f"Began with a release of epsilon {origin['epsilon']:.4f} at delta 0.001 for one of its 50 images" in said
    assert "for an image in both, the two add up" in said


def test_several_releases_at_once_are_refused(tmp_path, script, flags):
    for number in (50, 60):
        (tmp_path / str(number)).mkdir()
        release = make_release(tmp_path / str(number), ledger=ledger_of(num_images=number))
        drawn_from(release, tmp_path / "public" / f"train-{number}")
    with pytest.raises(UsageError, match="--public_dataset_name .* holds images of 2 releases; name one"):
        script.main([*flags, "--public_dataset_name", str(tmp_path / "public")])


@pytest.mark.parametrize(("middle", "last"), few([("model", "model"), ("model", "images"), ("images", "images")], 1))
def test_what_a_release_began_with_is_not_forgotten(middle, last, tmp_path, script, flags):
    """A release of other images in between: the first one of the same images is refused all the same."""
    first = make_release(tmp_path, ledger=ledger_of())
    origin = {
        "kind": "release of diffusers_dp", "name": "local folder", "epsilon": 2.0, "delta": 1e-3,
        "receipt_sha256": verify.settled_digest(receipt_of(first)), "unit_of_privacy": "image",
        "num_units": NUM_IMAGES, "class_names": list(CLASSES),
    }  # fmt: skip
    inputs = [origin] if middle == "model" else [{"kind": "public images", "name": "a", "trained_on": origin}]
    (tmp_path / "b").mkdir()
    second = make_release(tmp_path / "b", ledger=ledger_of(num_images=50), public_inputs=inputs)
    if last == "model":
        given = [*flags[: len(TINY_RUN)], *flags[flags.index("--train_data_dir") :]]
        given += ["--pretrained_model_name_or_path", str(second)]
    else:
        given = [*flags, "--public_dataset_name", str(drawn_from(second, tmp_path / "drawn"))]
    with pytest.raises(UsageError, match="began with a release .* so probably on these"):
        script.main(given)
    others = [*given, *write_images(tmp_path / "fewer", "absent"), "--num_train_images", str(NUM_IMAGES - 1)]
    script.main(others)
    (found,) = receipt_of(tmp_path / "run" / "release")["public_inputs"]
    assert [each["epsilon"] for each in found["began_with"]] == [2.0]


def test_a_data_set_on_the_hub_is_looked_at_for_a_receipt(drawn, hub, tmp_path, monkeypatch, script, flags):
    """The receipt is fetched, whatever `datasets` reads; the images themselves are not needed for that."""
    from diffusers_dp.runs import prior_release

    hub.repositories["datasets/someone/drawn"] = {
        name: (drawn / name).read_bytes() for name in sorted(files(drawn)) if name != "README.md"
    }
    shard = "hf://datasets/someone/drawn@main/data/train-00000-of-00001.parquet"
    monkeypatch.setattr(prior_release, "files_of_public_images", lambda data: [shard])
    monkeypatch.setattr("diffusers_dp.data.public_images.check_public_images", lambda data: None)
    downloads = tmp_path / "downloads"
    with pytest.raises(UsageError, match="^--public_dataset_name someone/drawn .* so probably on these"):
        script.main([*flags, "--public_dataset_name", "someone/drawn", "--cache_dir", str(downloads)])
    assert [path.name for path in downloads.rglob(RECEIPT)] == [RECEIPT] and not (tmp_path / "hub-cache").exists()
    with pytest.raises(UsageError, match="someone/nothing is not public images on the Hub"):
        script.main([*flags, "--public_dataset_name", "someone/nothing"])


def test_a_release_that_is_edited_counts_as_damaged(drawn, script, flags, tmp_path):
    """Types that are no receipt's do not end in a traceback."""
    receipt = receipt_of(drawn)
    spoilt = [("public_inputs", 7), ("public_facts", None), ("dataset", "a"), ("public_inputs", [{"epsilon": "a"}])]
    for name, value in spoilt:
        (drawn / RECEIPT).write_text(canonical_json({**receipt, name: value}))
        with pytest.raises((UsageError, IntegrityError)):
            script.main([*flags, "--public_dataset_name", str(drawn)])
    (drawn / RECEIPT).write_text("{")
    with pytest.raises(UsageError, match="missing or damaged, so that nothing says what it cost"):
        script.main([*flags, "--public_dataset_name", str(drawn)])
    assert not (tmp_path / "run").exists()
