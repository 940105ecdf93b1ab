# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Receipts of a careful forger, who makes `model_index.json` agree: every field missing, of another type or out of its
range, and lies of every kind. All are refused but those that are consistent, which docs/release.md lists."""

import copy
import fnmatch
import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from diffusers_dp import verify
from diffusers_dp.accounting.ledger import PrivacyLedger
from support.bands import banded_row
from support.ledgers import row
from support.places import ROOT
from support.releases import RECEIPT, WEIGHTS, forge, make_release, reseal


FACTS = {"target_delta": 1e-5, "num_images": 300, "dataset_id": "scans"}
CLASSES = {"class_names": ["left", "right"], "image_shape": [1, 8, 8], "value_range": [0, 1], "normaliser": 30.0}
BEGAN = {
    "kind": "release of diffusers_dp", "name": "local folder", "epsilon": 2.5, "delta": 1e-5,
    "receipt_sha256": "a" * 64, "unit_of_privacy": "image", "num_units": 50, "class_names": ["a"],
    "dataset_id": "photos", "release_id": "0" * 16, "licence": "not stated",
}  # fmt: skip
PUBLIC = {"kind": "public images", "name": "local folder", "images_sha256": "b" * 64, "licence": "cc0-1.0"}


def facts_of(name, **facts):
    return {"facts": {"clip_norm": 1.0, "normaliser": 30.0, **facts}, "name": name}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The second release of a data set, which began with another data set's, and was resumed."""
    path = tmp_path_factory.mktemp("ledgers") / "scans.jsonl"
    first = PrivacyLedger(path, release_id="a", target_epsilon=2.0, **FACTS)
    first.reserve(row(9.0, name="dp_sgd"))
    first.close()
    ledger = PrivacyLedger(
        path, release_id="b", target_epsilon=3.0, dataset_epsilon=4.0, public_facts=CLASSES, accountant="rdp", **FACTS
    )
    ledger.executed(ledger.reserve(row(12.0, **facts_of("central_images"), by_label=True)), 1)
    ledger.executed(ledger.reserve(row(3.0, 0.1, 2, **facts_of("dp_sgd", noise_multiplicity=2))), 2)
    return make_release(
        tmp_path_factory.mktemp("run"), ledger=ledger, public_inputs=[BEGAN, PUBLIC], resumes=[1], processes=[1, 2]
    )


@pytest.fixture(scope="module")
def turns(tmp_path_factory):
    """With groups that take turns."""
    ledger = PrivacyLedger(None, target_epsilon=9.0, target_delta=1e-5, num_images=5000)
    for steps in (5, 6):
        ledger.reserve(replace(banded_row(4), steps=steps))
    return make_release(tmp_path_factory.mktemp("run"), ledger=ledger)


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    """Of units of several images, computed from another release."""
    facts = {"max_images_per_unit": 3, "num_images": 900, "class_names": None}
    ledger = PrivacyLedger(
        None, target_epsilon=3.0, target_delta=1e-5, num_images=300, unit_of_privacy="patient_id", public_facts=facts
    )
    ledger.reserve(row(4.0, **facts_of("dp_sgd"), max_images_per_unit=3))
    return make_release(tmp_path_factory.mktemp("run"), ledger=ledger, derived_from="c" * 64)


@pytest.fixture
def release(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "release"))


def receipt_of(release):
    return json.loads((release / RECEIPT).read_text())


def problems(receipt):
    """Of a receipt whose files fit, with whatever claims there are."""
    return verify.check_guarantee(receipt)


# Every field.

#: Fields that older or other releases do without: what is not there makes no claim smaller.
MAY_BE_MISSING = (
    "assumptions.*", "curriculum.*", "processes.*", "resumes.*", "public_inputs.*", "public_facts.class_names",
    "public_facts.class_names.*", "public_facts.image_shape", "public_facts.normaliser", "public_facts.value_range",
    "events.*.query.noise_multiplicity", "events.0.query.normaliser", "claimed_epsilon.rdp.orders.*",
)  # fmt: skip
#: And those that, of an input, have to be there.
NOT_OF_INPUTS = ("kind", "name", "epsilon", "delta", "receipt_sha256")
MAY_BE_NONE = (
    "events.*.partition", "public_inputs.*.class_names", "public_inputs.*.dataset_id", "public_inputs.*.licence",
    "public_inputs.*.num_units", "public_inputs.*.release_id", "public_inputs.*.unit_of_privacy",
)  # fmt: skip
TOP = (
    "accountant", "adjacency", "assumptions", "claimed_epsilon", "composition", "created_utc", "dataset", "delta",
    "evaluation", "events", "leaky_outputs", "library", "method", "prior_releases", "private_evaluations", "processes",
    "public_facts", "public_inputs", "resumes", "rng", "status", "target_epsilon", "unit_of_privacy", "versions",
)  # fmt: skip


def places(value, path=()):
    """Every place in a JSON value, and what is there."""
    yield path, value
    for key, inner in (
        value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    ):
        if "orders" not in path:  # of RDP: any of them give a bound
            yield from places(inner, (*path, key))


def forged(receipt, path, *new):
    """A copy with another value there, or without it."""
    found = copy.deepcopy(receipt)
    *outer, last = path
    node = found
    for key in outer:
        node = node[key]
    if new:
        (node[last],) = new
    else:
        del node[last]
    return found


def matches(path, patterns):
    return any(fnmatch.fnmatchcase(".".join(map(str, path)), pattern) for pattern in patterns)


@pytest.mark.parametrize("name", TOP)
def test_every_field_that_is_missing_is_missed(made, name):
    receipt = receipt_of(made)
    for path, _ in places(receipt[name], (name,)):
        spared = matches(path, MAY_BE_MISSING) and not (len(path) == 3 and path[-1] in NOT_OF_INPUTS)
        assert spared or problems(forged(receipt, path)), path


@pytest.mark.parametrize("name", TOP)
def test_every_field_of_another_type_is_named(made, name):
    receipt = receipt_of(made)
    for path, value in places(receipt[name], (name,)):
        for other in (None, 7 if isinstance(value, str) else "7", [value], {"a": 1}, True):
            spared = other is None and matches(path, MAY_BE_NONE) or type(other) is type(value)
            assert spared or problems(forged(receipt, path, other)), (path, other)


@pytest.mark.parametrize("name", TOP)
def test_every_number_and_word_out_of_its_range_is_named(made, name):
    """Below zero, without end, a count with a decimal point; words with stray spaces."""
    receipt = receipt_of(made)
    for path, value in places(receipt[name], (name,)):
        others = []
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            others = [-1, -value - 1, 10**400, *([float(value)] if isinstance(value, int) else [])]
        elif isinstance(value, str):
            others = [f" {value}", f"{value} ", f"{value}\n"]
        for other in others:
            words = ("public_facts", "class_names"), ("public_inputs", 0, "class_names"), ("method", "paper")
            if path[:2] != ("public_facts", "value_range") and not any(path[: len(each)] == each for each in words):
                assert problems(forged(receipt, path, other)), (path, other)


def test_the_fields_of_bands_and_patients_too(turns, patients):
    spared = ("events.0.query.noise_multiplicity", "events.0.query.normaliser")
    for release in (turns, patients):
        receipt = receipt_of(release)
        assert problems(receipt) == []
        for path, value in places(receipt["events"][0], ("events", 0)):
            if len(path) > 2:
                assert matches(path, spared) or problems(forged(receipt, path)), path
                for other in (None, 7 if isinstance(value, str) else "7", [value], True):
                    assert type(other) is type(value) or problems(forged(receipt, path, other)), (path, other)


# Lies of every kind. The forger may also put the claims right, see `honest`.


def honest(receipt):
    """Claims what the events cost."""
    claims, interval = receipt["claimed_epsilon"], receipt["claimed_epsilon"]["pld"]["value_discretization_interval"]
    counted, delta = verify.counted(receipt["events"]), receipt["delta"]
    claims["pld"]["epsilon"] = verify.epsilon(counted, delta, interval=interval)
    claims["rdp"]["epsilon"] = verify.epsilon(counted, delta, orders=claims["rdp"]["orders"])
    if receipt.get("dataset"):
        together, interval = verify.counted_together(receipt), receipt["dataset"]["value_discretization_interval"]
        receipt["dataset"]["epsilon_of_all_releases"]["pld"] = verify.epsilon(together, delta, interval=interval)


def event(number=-1, **changes):
    return lambda r: (r["events"][number].update(changes), honest(r))


def query(**changes):
    return lambda r: r["events"][-1]["query"].update(changes)


def in_prior(**changes):
    return lambda r: r["prior_releases"][0]["events"][0].update(changes)


def everywhere(number):
    """Another number of images, wherever it is said."""

    def change(receipt):
        receipt["public_facts"]["num_images"] = number
        for each in receipt["events"]:
            each["dataset_size"] = number
        honest(receipt)

    return change


FORGERIES = {
    "less noise for what is clipped": query(sensitivity=0.5),
    "less noise, by a hair": query(sensitivity=1 - 1e-12),
    "a clip norm above the sensitivity": query(clip_norm=2.0),
    "another divisor than the public one": query(normaliser=300.0),
    "noise of another source": lambda r: r["rng"].update(kind="numpy PCG64"),
    "a published key": lambda r: r["rng"].update(key="00" * 16),
    "a published seed": lambda r: r["rng"].update(seed=7),
    "one file twice": lambda r: r["files"].append(dict(r["files"][0])),
    "one file twice, with another hash": lambda r: r["files"].insert(0, {**r["files"][0], "sha256": "0" * 64}),
    "N with a decimal point": lambda r: r["public_facts"].update(num_images=300.0),
    "N in all places with a decimal point": everywhere(300.0),
    "two numbers of units": lambda r: r["public_facts"].update(num_units=300),
    "derived from itself": lambda r: r.update(derived_from=verify.settled_digest(r)),
    "the same event twice": lambda r: r["events"].append(dict(r["events"][-1])),
    "events in another order": lambda r: r["events"].reverse(),
    "parallel classes without classes": lambda r: r["public_facts"].update(class_names=None),
    "bands of an event without groups": event(bands=4),
    "a first step of an event without groups": event(first_step=0),
    "truncated samples": lambda r: r["events"][-1].update(mechanism="truncated_poisson_gaussian"),
    "Poisson samples of all": event(0, mechanism="poisson_gaussian"),
    "no guarantee of its method": lambda r: r["method"].update(status="no_guarantee"),
    "a better status than its method": lambda r: r["method"].update(status="proven"),
    "a status of one's own": lambda r: (r.update(status="certified"), r["method"].update(status="certified")),
    "leaky outputs under a whole status": lambda r: r["leaky_outputs"].append("a log"),
    "leaky outputs forgotten": lambda r: r.update(status="proven_except_leaky_outputs"),
    "a claim by no accountant of the library": lambda r: r["claimed_epsilon"].update(moments={"epsilon": 0.1}),
    "an accountant without a claim": lambda r: r.update(accountant="prv"),
    "a larger delta for smaller claims": lambda r: r.update(delta=1e-2),
    "delta of one": lambda r: r.update(delta=1.0),
    "a sum below its parts": lambda r: r["dataset"]["epsilon_of_all_releases"].update(
        pld=r["claimed_epsilon"]["pld"]["epsilon"]
    ),
    "a prior release without noise": in_prior(noise_multiplier=0),
    "a prior release with more noise": in_prior(noise_multiplier=90.0),
    "a prior release of another unit": lambda r: r["prior_releases"][0].update(unit_of_privacy="patient_id"),
    "a prior release of half an image": lambda r: (
        r["prior_releases"][0].update(num_images=300.5), r["prior_releases"][0]["events"][0].update(dataset_size=300.5)
    ),
    "a prior release below its clip norm": in_prior(query={"sensitivity": 0.1, "clip_norm": 1.0}),
    "prior releases of no data set": lambda r: r.update(dataset=None),
    "a bound that was never promised": lambda r: r["dataset"].update(target_epsilon=3.5),
    "no bound where one was promised": lambda r: r["dataset"].update(target_epsilon=None),
    "bounds that were forgotten": lambda r: r["dataset"].update(bounds=[]),
    "a data set with a path": lambda r: r["dataset"].update(id="../scans"),
    "a release of the data set that is not counted": lambda r: (
        r["public_inputs"][0].update(dataset_id="scans"), r.update(prior_releases=[]), honest(r)
    ),
    "a release that cost nothing": lambda r: r["public_inputs"][0].pop("epsilon"),
    "a release that is called public images": lambda r: r["public_inputs"][0].update(kind="public images")
    or r["public_inputs"][0].pop("epsilon"),
    "a release in a release that cost nothing": lambda r: r["public_inputs"][0].update(began_with=[{"epsilon": 0}]),
    "an input with another kind of hash": lambda r: r["public_inputs"][1].update(images_sha256="md5"),
    "a resume with noise drawn again": lambda r: r["resumes"][0].update(fresh_entropy=False),
    "no process": lambda r: r.update(processes=[]),
    "an evaluation that nobody paid for": lambda r: r.update(
        evaluation=[{"metric": "accuracy", "value": 99.0, "standard_error": 0.1, "protocol": {}}]
    ),
    "an evaluation paid for by what was never asked": lambda r: (
        r["events"][0].update(stage="evaluation_reserve", steps_executed=0),
        r.update(evaluation=[{"metric": "accuracy", "value": 99.0, "standard_error": 0.1, "protocol": {}}]),
    ),
    "no assumptions": lambda r: r.update(assumptions=[]),
    "fewer assumptions than there are": lambda r: r.update(assumptions=r["assumptions"][:2]),
    "an assumption that is empty": lambda r: r["assumptions"].append(""),
    "another library": lambda r: r["library"].update(name="diffusers"),
    "a grey range that ends below its start": lambda r: r["public_facts"].update(grey_range=[9, 0]),
    "a grey range of three": lambda r: r["public_facts"].update(grey_range=[0, 1, 2]),
    "values of another range": lambda r: r["public_facts"].update(value_range=[0, 255]),
    "images without a size": lambda r: r["public_facts"].update(image_shape=[1, 0, 8]),
    "more events than can be read": lambda r: r.update(events=r["events"] * 1001),
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_lie_is_refused(release, forgery, capsys):
    assert forge(release, lambda receipt: None) == []
    found = forge(release, FORGERIES[forgery])
    assert found
    if forgery.startswith("N "):
        assert any("must be a whole number from 1 to" in problem for problem in found)
    assert verify.report(release) == 4 and "could not be checked" not in capsys.readouterr().err


BANDED = {
    "parallel groups": lambda r: [each.update(partition="label") for each in r["events"]],
    "groups of nobody": lambda r: [each["query"].pop("group_key") for each in r["events"]],
    "a mechanism without groups": lambda r: [each.pop("bands") for each in r["events"]],
    "more groups": lambda r: [each.update(bands=5) for each in r["events"]],
    "less noise for what is clipped": lambda r: [each["query"].update(sensitivity=0.5) for each in r["events"]],
}


OF_PATIENTS = {
    "images in place of patients": lambda r: r.update(unit_of_privacy="image"),
    "patients with a space": lambda r: r.update(unit_of_privacy="patient_id "),
    "patients with two spaces": lambda r: r.update(unit_of_privacy="patient  id"),
    "patients in a line of their own": lambda r: r.update(unit_of_privacy="patient\nid"),
    "parallel classes of a patient": lambda r: r["events"][0].update(partition="label"),
    "more images of a patient": lambda r: r["events"][0]["query"].update(max_images_per_unit=30),
    "images of a patient left out": lambda r: r["events"][0]["query"].pop("max_images_per_unit"),
    "no number of patients": lambda r: r["public_facts"].pop("num_units"),
    "derived from itself": lambda r: r.update(
        derived_from=verify.settled_digest({key: r[key] for key in r if key != "derived_from"})
    ),
}


@pytest.mark.parametrize("forgery", [*BANDED, *OF_PATIENTS])
def test_a_lie_about_groups_or_units_is_refused(forgery, request, tmp_path):
    made = request.getfixturevalue("turns" if forgery in BANDED else "patients")
    release = Path(shutil.copytree(made, tmp_path / "release"))
    assert forge(release, lambda receipt: None) == []
    assert forge(release, {**BANDED, **OF_PATIENTS}[forgery])


# Files, and what is beside the receipt.


def listed(release, name, content=b"x"):
    """A file that the receipt lists."""
    (release / name).parent.mkdir(parents=True, exist_ok=True)
    (release / name).write_bytes(content)
    entry = {"name": name, "sha256": hashlib.sha256(content).hexdigest()}
    reseal(release, lambda receipt: receipt["files"].append(entry))


def placed(name, content=b"x"):
    def place(release):
        (release / name).parent.mkdir(parents=True, exist_ok=True)
        (release / name).write_bytes(content)

    return place


def in_index(change):
    def edit(release):
        index = json.loads((release / "model_index.json").read_text())
        change(index, index["privacy"])
        (release / "model_index.json").write_text(verify._canonical(index).decode())

    return edit


FILES = {
    "a pickle in the receipt": lambda release: listed(release, "unet/optimizer.pt"),
    "a pickle in the Hub's cache": placed(".cache/huggingface/download/weights.bin"),
    "a pickle behind a link": lambda release: (
        placed(".cache/x")(release), os.symlink(release / ".cache/x", release / ".cache" / "y.pickle")
    ),
    "a file that is not listed": placed("notes.txt"),
    "a file in the card's place, elsewhere": placed("unet/README.md"),
    "another card's folder": lambda release: ((release / "README.md").unlink(), placed("README.md/x")(release)),
    "weights that are not there": lambda release: (release / WEIGHTS).unlink(),
    "more said in the index": in_index(lambda _, privacy: privacy.update(note="epsilon 0.1")),
    "a smaller epsilon in the index": in_index(lambda _, privacy: privacy.update(epsilon=0.1)),
    "a smaller delta in the index": in_index(lambda _, privacy: privacy.update(delta=1e-9)),
    "a better status in the index": in_index(lambda _, privacy: privacy.update(status="proven")),
    "another receipt in the index": in_index(lambda _, privacy: privacy.update(receipt_sha256="0" * 64)),
    "another class in the index": in_index(lambda index, _: index.update(_class_name="StableDiffusionPipeline")),
    "the receipt in another hand": lambda release: (release / RECEIPT).write_text(
        json.dumps(json.loads((release / RECEIPT).read_text()))
    ),
    "the receipt in another hand, which the index says": lambda release: (
        FILES["the receipt in another hand"](release),
        in_index(lambda _, privacy: privacy.update(receipt_sha256=verify.receipt_digest(release / RECEIPT)))(release),
    ),
    "two deltas in one receipt": lambda release: (release / RECEIPT).write_text(
        (release / RECEIPT).read_text().replace('"delta": 1e-05,', '"delta": 1e-05,\n  "delta": 1e-15,', 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("forgery", FILES)
def test_files_that_lie_are_refused(release, forgery):
    FILES[forgery](release)
    assert verify.report(release) == 4


# What nobody can see: each is named in docs/release.md.

CONSISTENT = {
    "events left out": lambda r: (r["events"].pop(0), honest(r)),
    "more noise than was added": event(noise_multiplier=30.0),
    "a smaller sampling rate": lambda r: (
        r["events"][-1].update(sampling_probability=0.01), r["public_facts"].update(normaliser=30.0), honest(r)
    ),
    "another number of images": everywhere(3000),
    "a smaller delta, with larger claims": lambda r: (
        r.update(delta=1e-7, target_epsilon=9.0), r["dataset"].update(bounds=[], target_epsilon=None), honest(r)
    ),
    "prior releases left out": lambda r: (r.update(prior_releases=[]), honest(r)),
    "public inputs left out": lambda r: r.update(public_inputs=[]),
    "a release that cost less than its receipt says": lambda r: r["public_inputs"][0].update(epsilon=0.1),
    "resumes left out": lambda r: r.update(resumes=[]),
    "private evaluations left out": lambda r: r.update(private_evaluations=0),
    "words of assumptions": lambda r: r["assumptions"].__setitem__(0, "Nothing is assumed."),
    "another method": lambda r: r["method"].update(name="Another", paper="Another paper."),
    "another day, library version or source": lambda r: (
        r.update(created_utc="2027-01-01"), r["library"].update(version="9.9", source_sha256="0" * 64)
    ),
    "an audit that was never made": lambda r: r.update(audit={"passed": True}),
}  # fmt: skip


@pytest.mark.parametrize("lie", CONSISTENT)
def test_a_consistent_lie_is_seen_by_nobody_and_told_in_the_docs(release, lie):
    assert forge(release, CONSISTENT[lie]) == []
    page = " ".join((ROOT / "docs" / "release.md").read_text().split())
    assert f"- {lie}" in page
