# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What the events of each method must look like: the verifier's table against the registry, and receipts that name a
method whose events they do not have."""

import base64
import copy
import functools
import hashlib

import pytest

from diffusers_dp import verify
from diffusers_dp.methods.config import CONFIGS
from diffusers_dp.methods.registry import METHODS
from support.receipts import RNG, receipt_of_plan
from support.releases import forge, made_up, make_release


BUILT = {method.title for method in METHODS.values() if method.train is not None}
UNITS = tuple("--dataset_name scans --unit_column patient --num_train_units 30 --max_images_per_unit 3".split())
TEACHERS = ("--num_teachers", "3", "--generated_per_round", "6")
FEATURES = {"dp_merf": "rff", "dp_kernel": "rff_mixture", "dp_ntk": "ntk", "dp_hp": "hermite",
            "dp_scattering": "scattering", "dp_mepf": "perceptual"}  # fmt: skip
BANDS = ("--noise_bands", "4", "--train_batch_size", "9")
MOMENTS = ("--num_frequencies", "9", "--num_parts", "2")
#: Flags with which a method asks otherwise.
WAYS = {
    "feta_pro": (
        (), ("--curriculum", "frequency"), ("--curriculum", "mix"), ("--curriculum", "none"),
        ("--curriculum", "spatial", "--noise", "exact", *BANDS), ("--auxiliary_features", "scattering"),
        ("--auxiliary_features", "moments", *MOMENTS), ("--noise_multiplier", "class_counts=30"), UNITS,
    ),
    "dp_feta": ((), ("--central_images", "mode", "--expert", "spatial_sample_rate=1")),
    "dpdm": ((), ("--evaluation_reserve", "0.1"), ("--train_batch_size", "90"), BANDS),
    "dp_ldm": (("--train", "attention"), ("--train", "all")),
    "dp_gan": ((), ("--noise", "exact")),
    "moments": (
        MOMENTS, ("--num_parts", "1", *MOMENTS[:2]), (*MOMENTS, "--matched_networks", "2"), (*MOMENTS, *UNITS),
        (*MOMENTS, "--noise", "float"),
    ),
    "pe": ((), ("--noise", "float")),
    **dict.fromkeys(("gs_wgan", "pate_gan", "datalens", "g_pate"), (TEACHERS, (*TEACHERS, *UNITS))),
}  # fmt: skip
CASES = [
    (method.name, flags)
    for method in METHODS.values()
    if method.title in BUILT and method.name != "dp_mepf"  # needs a network: `test_train_mean_features.py` verifies it
    for flags in WAYS.get(method.name, ((),))
]


def receipt_of(name, *flags):
    said = {"features": FEATURES[name]} if name in FEATURES else {"sampler": "hmc"} if name == "pge_dpsgd" else {}
    return receipt_of_plan(name, *flags, **said)


def test_the_table_knows_every_method_that_is_built_and_no_other():
    assert {*verify.METHODS} == BUILT


def test_the_table_knows_which_methods_have_public_inputs():
    named = {"pretrained_model_name_or_path", "public_data_dir", "feature_network"}
    assert {METHODS[name].title for name, config in CONFIGS.items() if named & vars(config()).keys()} == verify.PUBLIC


@pytest.mark.parametrize(("name", "flags"), CASES)
def test_a_receipt_of_each_method_verifies(name, flags):
    """As its plan asks, with each kind of mechanism and noise that it has."""
    assert verify.check_guarantee(receipt_of(name, *flags)) == []


@functools.cache
def honest(name):
    return receipt_of(name, *(TEACHERS if name in ("gs_wgan", "pate_gan", "datalens", "g_pate") else ()),
                      *(MOMENTS if name == "moments" else ()))  # fmt: skip


def events(**changes):
    return lambda r: [event.update(changes) for event in r["events"]]


def queries(**changes):
    return lambda r: [event["query"].update(changes) for event in r["events"]]


def said(**changes):
    return lambda r: r["curriculum"].update(changes)


def called(name):
    return lambda r: r["method"].update(name=METHODS[name].title)


def plain_sums(r):
    for event in r["events"]:
        event["stage"] = "dp_sgd"
        event["query"] = {"sensitivity": 0.1, "clip_norm": 0.1, "normaliser": 90}


def without(number, **changes):
    return lambda r: (r["events"].pop(number), r["curriculum"].update(changes))


def as_of(name):
    """The events of another method."""
    return lambda r: r.update(events=copy.deepcopy(honest(name)["events"]))


KEY = "5f" * 32
#: By name: the method, what is forged, and words of the refusal. The claims stay, as sensitivities change none.
FORGERIES = {
    "plain sums for teachers": ("gs_wgan", plain_sums, "asks nothing called 'dp_sgd'"),
    "sums in the stage of teachers": ("gs_wgan", lambda r: [
        [event["query"].pop(name) for name in ("shares", "group_key", "ids")] for event in r["events"]], "shares"),
    "half the sensitivity of teachers": ("gs_wgan", queries(sensitivity=0.1), "two clip norms"),
    "another number of teachers": ("gs_wgan", queries(shares=30), "its shares is not that of the curriculum"),
    "one vote": ("pate_gan", queries(votes=1, clip_norm=1.0, sensitivity=2**0.5), "not those of the curriculum"),
    "votes left out": ("pate_gan", lambda r: [event["query"].pop("votes") for event in r["events"]], "two clip norms"),
    "the sensitivity of one vote": ("g_pate", queries(sensitivity=2**0.5), "below its clip norm"),
    "fewer signs": ("datalens", queries(clip_norm=1.0, sensitivity=2.0), "not those of the curriculum"),
    "signs as votes": ("datalens", called("pate_gan"), "aggregation must be votes"),
    "gradients as signs": ("gs_wgan", called("datalens"), "does not say what DataLens asks"),
    "moments as DPDM": ("moments", called("dpdm"), "DPDM asks nothing called"),
    "DPDM as moments": ("dpdm", called("moments"), "does not say what Moments asks"),
    "votes as moments": ("pe", lambda r: (called("moments")(r), r["curriculum"].update(num_parts=1, part_rounds=0)),
                         "Moments asks nothing called 'votes_1'"),
    "a set of images as DP-SGD": ("psg", called("pge_dpsgd"), "sampler must be there"),
    "a set of images as DPDM": ("psg", called("dpdm"), "matched_layers is another method's"),
    "adapters as a diffusion model": ("dp_lora", called("dp_diffusion"), "train is another method's"),
    "FETA-Pro's events in DPDM": ("dpdm", as_of("feta_pro"), "asks nothing called 'central_images'"),
    "central images left out": ("feta_pro", without(0), "FETA-Pro asks central_images"),
    "a round of votes left out": ("pe", without(0), "Private Evolution asks votes_1"),
    "another number of rounds": ("pe", said(variation_strengths=[0.5] * 9), "asks votes_"),
    "rounds without end": ("moments", said(part_rounds=10**9), "asks part_means_3"),
    "half the sensitivity of a sum": ("moments", queries(sensitivity=0.5), "below its clip norm"),
    "more sensitivity than a sum has": ("dpdm", queries(sensitivity=7.0), "its sensitivity is 1 clip norms"),
    "more divisor than units": ("dpdm", lambda r: (queries(normaliser=91)(r), r["public_facts"].update(normaliser=91)),
                                "its divisor is not the number of teachers, or the expected"),
    "no divisor": ("dpdm", lambda r: r["events"][0]["query"].pop("normaliser"), "contradicts the public facts"),
    "no classes apart": ("moments", events(partition=None), "asks each class apart"),
    "DP-SGD by class": ("dpdm", events(partition="label"), "asks no class apart"),
    "teachers by class": ("pate_gan", events(partition="label"), "parallel that one unit can lie in together"),
    "samples of what asks everyone": ("moments", lambda r: [event["query"].pop("grid") for event in r["events"]]
                                      and r.update(rng=RNG, status="proven_with_assumptions",
                                                   method={**r["method"], "status": "proven_with_assumptions"})
                                      or events(mechanism="poisson_gaussian", sampling_probability=0.5)(r),
                                      "is a query to everyone, and not to poisson"),
    "many steps of one query": ("dp_sapf", lambda r: r["events"][0].update(steps_reserved=2), "is asked once"),
    "a query without its facts": ("moments", said(num_frequencies=25), "its num_frequencies is not that"),
    "a resume after more steps": ("dpdm", lambda r: r["resumes"].append({"step": 9, "fresh_entropy": True}),
                                  "resumed after"),
    "an evaluation without a reserve": ("dpdm", lambda r: r["events"].append(
        {**r["events"][0], "id": 1, "stage": "evaluation_reserve"}), "asks nothing called 'evaluation_reserve'"),
    "DP-SGD again, under another name": ("dpdm", lambda r: r["events"].append(
        {**r["events"][0], "id": 1, "stage": "dp_sgd "}), "words without stray spaces"),
    "a clip norm of nearly nothing": ("dpdm", queries(sensitivity=1e-300, clip_norm=1e-300), "between"),
    "a key in a query": ("dpdm", queries(note=KEY), "query.note must be a number, a short word"),
    "a key in a list": ("dpdm", queries(note=[KEY[:32], KEY[32:]]), "query.note must be"),
    "a key in pieces": ("dpdm", queries(a=KEY[:16], b=KEY[16:32], c=KEY[32:48], d=KEY[48:]), "states 'a' so"),
    "a number that no query states": ("dpdm", queries(note=3), "no query of this library states 'note'"),
    "a word in place of a number": ("moments", queries(num_frequencies="nine"), "states 'num_frequencies' so"),
    "a boolean in place of a number": ("moments", queries(num_levels=True), "states 'num_levels' so"),
    "no level": ("moments", queries(num_levels=0), "states 'num_levels' so"),
    "another divisor of teachers": ("gs_wgan", queries(normaliser=90), "its divisor is not the number of teachers"),
    "several images of an image": ("dpdm", queries(max_images_per_unit=3), "contradicts the public facts"),
    "several images of an image, everywhere": ("dpdm", lambda r: (
        queries(max_images_per_unit=3)(r), r["public_facts"].update(max_images_per_unit=3)),
        "one of the two was edited"),
    "another composition": ("dpdm", lambda r: r.update(composition="parallel"), "composition must be"),
    "a key in the public facts": ("dpdm", lambda r: r["public_facts"].update(note=KEY), "writes no such field"),
    "a field of an event": ("dpdm", events(truncated=5), "truncated must be left out"),
    "a field of a receipt": ("dpdm", lambda r: r.update(note="epsilon 0.1"), "note must be left out"),
    "exact noise of teachers": ("gs_wgan", queries(grid=2**18), "with whole numbers its clip norm"),
    "public pre-training called DPDM": ("dp_diffusion", lambda r: (called("dpdm")(r), r["public_inputs"].append(
        {"kind": "public images", "name": "a"})), "DPDM begins with nothing public"),
    "public images beside a network of the judge": ("dpdm", lambda r: r["public_inputs"].extend([
        {"kind": "network of the judge", "name": "a"}, {"kind": "public images", "name": "a"}]),
        "DPDM begins with nothing public"),
    "a network of no judge": ("dpdm", lambda r: (said(judge_features="a")(r), r["public_inputs"].append(
        {"kind": "network of the judge", "name": "a"})), "The public network of the judge is not that"),
    "public images that moments do not move": ("moments", lambda r: r["public_inputs"].append(
        {"kind": "public images", "name": "a"}), "not the public images that the curriculum moves"),
    "a network in the place of moved images": ("moments", lambda r: (said(moves_public_images=1.0)(r), r[
        "public_inputs"].append({"kind": "feature network", "name": "a"})), "not the public images that the"),
    "moved images that are no public input": ("moments", said(moves_public_images=True),
        "not the public images that the curriculum moves"),
    "exact noise of latents": ("dp_lora", queries(grid=2**18), "its method has no exact noise"),
    "bands of a set of images": ("psg", lambda r: r.update(
        events=copy.deepcopy(receipt_of("dpdm", *BANDS)["events"]),
        public_facts={**r["public_facts"], "normaliser": 9.0}), "not to banded"),
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
def test_events_that_no_run_of_the_method_has_are_refused(forgery):
    name, change, words = FORGERIES[forgery]
    receipt = copy.deepcopy(honest(name))
    change(receipt)
    found = verify.check_guarantee(receipt)
    assert any(words in problem for problem in found), found


SPELLINGS = {
    "digits": KEY, "in capitals": KEY.upper(), "base64": base64.b64encode(bytes.fromhex(KEY)).decode(),
    "base64 of addresses": base64.urlsafe_b64encode(b"\xfb\xff" * 16).decode().rstrip("="),
    "in two": [KEY[:32], KEY[32:]], "in eight": {f"part_{i}": KEY[8 * i : 8 * i + 8] for i in range(8)},
    "in two among others": ["left", KEY[:32], KEY[32:], "right"],
}  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("of_letters", [True, False])
def test_a_key_whose_hash_is_stated_is_refused_wherever_it_stands(spelling, of_letters):
    """Also in what may hold any text, and of a method that nobody knows."""
    spelled = SPELLINGS[spelling]
    key = b"\xfb\xff" * 16 if "addresses" in spelling else bytes.fromhex(KEY)
    if of_letters:
        key = KEY.encode() if "base64" not in spelling else spelled.encode()
    for place in ("curriculum", "class_names", "public_inputs"):
        receipt = copy.deepcopy(honest("dpdm"))
        receipt["method"]["name"] = "Mine"
        receipt["curriculum"]["weights_sha256"] = hashlib.sha256(key).hexdigest()
        assert verify.check_guarantee(receipt) == []
        if place == "class_names":
            texts = (
                spelled.values() if isinstance(spelled, dict) else spelled if isinstance(spelled, list) else [spelled]
            )
            receipt["public_facts"]["class_names"] = list(texts)
        else:
            held = receipt["curriculum"] if place == "curriculum" else {"kind": "public images", "name": "a"}
            held["more"] = spelled
            receipt["public_inputs"] = [held] if place == "public_inputs" else []
        assert any("as if that were a key" in problem for problem in verify.check_guarantee(receipt)), place


def test_a_method_that_the_table_does_not_know_is_counted_and_that_is_said(tmp_path, capsys):
    release = make_release(tmp_path, method=made_up("gs_wgan"))
    assert verify.report(release) == 0
    said = capsys.readouterr().out
    assert "GS-WGAN of a test is no method that this program knows" in said and "their kinds not checked" in said

    def more_noise(receipt):
        receipt["events"][0]["noise_multiplier"] *= 2

    assert any("The events cost" in problem for problem in forge(release, more_noise))


def test_several_noise_multipliers_of_a_stage_are_allowed():
    """A query that was asked again, and steps after a restart, may have other noise."""
    receipt = copy.deepcopy(honest("feta_pro"))
    again = copy.deepcopy(receipt["events"][-1])
    receipt["events"].append({**again, "id": 3, "noise_multiplier": 1.1 * again["noise_multiplier"]})
    assert list(verify.check_method(receipt)) == []


def test_an_empty_file_is_no_key():
    """Its hash is that of no letters, which every receipt holds."""
    receipt = copy.deepcopy(honest("dpdm"))
    receipt["files"] = [{"name": "vocab.txt", "sha256": hashlib.sha256(b"").hexdigest()}]
    receipt["curriculum"]["weights_sha256"] = hashlib.sha256(b"a").hexdigest()
    assert verify.check_guarantee(receipt) == []
