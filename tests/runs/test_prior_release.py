# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A release as the start of another run: its epsilon stands in the new receipt, and a release of probably the same
images is refused."""

import json

import pytest

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.data.images import PublicFacts
from diffusers_dp.errors import UsageError
from diffusers_dp.methods.method_flags import DPDiffusionConfig
from diffusers_dp.runs.diffusion_run import starting_model
from diffusers_dp.runs.folder import RunIdentity, save_identity
from diffusers_dp.verify import verify
from support.ledgers import row
from support.public_models import load
from support.releases import make_release


CLASSES = ("class 0", "class 1", "class 2")


@pytest.fixture
def release(tmp_path):
    return make_release(tmp_path, ledger=make_ledger(None))


def make_ledger(path, sigma=8.0, **changes):
    ledger = PrivacyLedger(
        path, target_epsilon=50, target_delta=1e-5, num_images=1000, public_facts={"class_names": list(CLASSES)},
        **changes,
    )  # fmt: skip
    ledger.executed(ledger.reserve(row(sigma, name="frequency_features")), 1)
    return ledger


def begin(release, num_images=1000, class_names=CLASSES, **flags):
    config = DPDiffusionConfig(pretrained_model_name_or_path=str(release), objective="edm", **flags)
    return starting_model(config, PublicFacts(num_images, (1, 8, 8), class_names))


def is_priced(model):
    return model.origin["kind"] == "release of diffusers_dp" and model.origin["epsilon"] > 0


def test_the_receipt_of_the_second_holds_epsilon_and_delta_of_the_first(release, tmp_path):
    """And says that they add up, in place of the assumption that is made of public inputs."""
    model = begin(release, num_images=2000)
    first = verify(release)[0]
    index = json.loads((release / "model_index.json").read_text())
    assert model.origin["kind"] == "release of diffusers_dp" and model.origin["delta"] == 1e-5
    assert model.origin["epsilon"] == first["claimed_epsilon"]["pld"]["epsilon"] > 0
    assert model.origin["receipt_sha256"] == index["privacy"]["receipt_sha256"]
    second = tmp_path / "second"
    second.mkdir()
    second = make_release(second, public_inputs=[model.origin])
    receipt, problems = verify(second)
    assert problems == [] and receipt["public_inputs"] == [model.origin]
    assert "has an epsilon of its own" in receipt["assumptions"][-1]
    assert "was public and made without" not in " ".join(receipt["assumptions"])
    assert f"epsilon: {model.origin['epsilon']}" in (second / "README.md").read_text()


@pytest.mark.parametrize("changes", [{"num_images": 999}, {"class_names": CLASSES[:2]}, {"class_names": None}])
def test_other_images_are_not_refused(release, changes):
    """As far as public facts tell; a model without labels needs a release without them."""
    if changes.get("class_names", CLASSES) is None:
        with pytest.raises(UsageError, match="needs labels"):
            begin(release, **changes)
    else:
        assert is_priced(begin(release, **changes))


def test_as_many_images_of_the_same_classes_are_refused(release):
    with pytest.raises(
        UsageError, match="^--pretrained_model_name_or_path .* so probably on these.*--dataset_id, which"
    ):
        begin(release)
    with pytest.raises(UsageError, match="so probably on these"):
        begin(release, dataset_id="scans", ledger_dir="ledgers")


def release_of_scans(folder, release_id="0" * 16):
    """A release of `--dataset_id scans`, whose `--ledger_dir` is the folder."""
    ledger = make_ledger(folder / "scans.jsonl", dataset_id="scans", release_id=release_id)
    ledger.close()
    (folder / release_id).mkdir()
    return make_release(folder / release_id, ledger=ledger)


def test_one_dataset_id_adds_both_up(tmp_path):
    release = release_of_scans(tmp_path)
    flags = {"ledger_dir": str(tmp_path), "output_dir": str(tmp_path / "second")}
    assert is_priced(begin(release, dataset_id="scans", **flags))
    with pytest.raises(UsageError, match="so probably on these"):
        begin(release, dataset_id="others", **flags)


@pytest.mark.parametrize("num_images", [1000, 900])
def test_a_release_of_the_data_set_is_refused_where_the_ledger_does_not_hold_it(tmp_path, num_images):
    """Its receipt would list no earlier release and state too small a sum, however many images it was trained on."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    release = release_of_scans(tmp_path / "there")
    flags = {"dataset_id": "scans", "num_images": num_images, "output_dir": str(tmp_path / "second")}
    refusal = (
        f"{release} is a release of --dataset_id scans, but .*here/scans.jsonl does not hold .*: give the --ledger_dir"
    )
    with pytest.raises(UsageError, match=refusal):
        begin(release, ledger_dir=str(tmp_path / "here"), **flags)
    another = make_ledger(
        tmp_path / "here" / "scans.jsonl",
        dataset_id="scans",
        release_id="1" * 16,
    )
    another.close()  # the same query even, but another release's
    with pytest.raises(UsageError, match=refusal):
        begin(release, ledger_dir=str(tmp_path / "here"), **flags)
    assert is_priced(begin(release, ledger_dir=str(tmp_path / "there"), **flags))


def test_what_the_run_itself_asked_does_not_stand_for_the_release(tmp_path):
    """A resumed run that asked the same queries in another ledger."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    release = release_of_scans(tmp_path / "there")
    ledger = make_ledger(tmp_path / "here" / "scans.jsonl", dataset_id="scans", release_id="2" * 16)
    ledger.close()
    (tmp_path / "second" / "private").mkdir(parents=True)
    save_identity(tmp_path / "second" / "private", RunIdentity("scans", "2" * 16, str(ledger.path.resolve())))
    with pytest.raises(UsageError, match="does not hold"):
        begin(
            release, dataset_id="scans", ledger_dir=str(tmp_path / "here"), output_dir=str(tmp_path / "second"),
            resume_from_checkpoint="latest",
        )  # fmt: skip


def test_releases_before_the_release_count_too(tmp_path):
    """A ledger that was cut at its beginning, or put together anew, lacks what the receipt lists as prior releases."""
    first, second = release_of_scans(tmp_path, "1" * 16), release_of_scans(tmp_path, "2" * 16)
    flags = {"dataset_id": "scans", "ledger_dir": str(tmp_path), "output_dir": str(tmp_path / "third")}
    for release in (first, second):
        assert is_priced(begin(release, **flags))
    (tmp_path / "scans.jsonl").unlink()
    make_ledger(tmp_path / "scans.jsonl", dataset_id="scans", release_id="2" * 16).close()
    with pytest.raises(UsageError, match="does not hold"):
        begin(second, **flags)


@pytest.mark.parametrize("spoil", ["missing", "damaged", "of nothing"])
def test_a_release_without_its_receipt_is_refused(release, spoil):
    """Nothing would say what it cost."""
    path = release / "privacy_receipt.json"
    path.unlink() if spoil == "missing" else path.write_text(
        "{" if spoil == "damaged" else '{"format": "diffusers_dp/1"}'
    )
    with pytest.raises(UsageError, match="is missing or damaged, so that nothing says what it cost"):
        load(str(release), 3, shape=(1, 8, 8))
