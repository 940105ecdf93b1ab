# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The table of analyses: what each names exists, and what each needs is what its formula can do without."""

from dataclasses import replace

import numpy as np
import pytest

from diffusers_dp.errors import UsageError
from diffusers_dp.evaluation.analyses import ANALYSES, METRICS, Known, function_of
from diffusers_dp.evaluation.choice import choose
from diffusers_dp.evaluation.flags import EvaluationFlags
from diffusers_dp.evaluation.images import ImageSet


def real(count):
    return ImageSet(np.zeros((count, 1, 4, 4), np.uint8), np.arange(count) % 2, ("a", "b"))


KNOWN = Known(300, True, True, {"classifier": 128}, public=300, test=300, real=real(300))


@pytest.mark.parametrize("name", ANALYSES)
def test_what_an_analysis_names_exists(name):
    analysis = ANALYSES[name]
    assert callable(function_of(analysis.measure)) and (not analysis.chart or callable(function_of(analysis.chart)))
    assert analysis.needs(KNOWN, "classifier") is None


@pytest.mark.parametrize(
    ("name", "fewest"),
    [
        ("fid", {"real": 129, "synthetic": 129}), ("kid", {"real": 2, "synthetic": 2}),
        ("precision_recall", {"real": 4, "synthetic": 4}), ("fld", {"real": 4, "test": 2}),
        ("public_images", {"real": 10, "public": 10}), ("training_curve", {"real": 129, "synthetic": 129}),
        ("classifiers", {"real": 2, "synthetic": 2, "test": 1}),
    ],
)  # fmt: skip
def test_one_image_less_is_too_few(name, fewest):
    for field, count in fewest.items():
        for left, problem in ((count, False), (count - 1, True)):
            known = replace(KNOWN, **{field: real(left) if field == "real" else left})
            assert bool(ANALYSES[name].needs(known, "classifier")) == problem


def test_each_job_is_listed_once_by_features_and_in_the_order_of_the_report():
    flags = EvaluationFlags(model_selection=True, training_curve=True, dp_reference=True)
    jobs = choose(flags, KNOWN).jobs
    assert len(jobs) == len({*jobs}) and ("inception_score", "pixels") not in jobs
    fidelity = [name for name in METRICS if ANALYSES[name].by_features]
    assert [name for name, extractor in jobs if extractor == "classifier"] == [*fidelity, "public_images"]
    once = ["embedding", "training_curve", "complexity", "classifiers", "model_selection", "dp_reference"]
    assert [name for name, extractor in jobs if extractor == ""] == once == [name for name, _ in jobs[-6:]]


def test_metrics_are_measured_in_the_order_that_was_asked_for():
    jobs = choose(EvaluationFlags(metrics=["kid", "fid"], extractors=["pixels"]), KNOWN).jobs
    assert jobs[:3] == [("kid", "pixels"), ("fid", "pixels"), ("public_images", "pixels")]
    with pytest.raises(UsageError, match="--metrics fid by features of classifier needs 129 synthetic images"):
        choose(EvaluationFlags(metrics=["fid"], extractors=["classifier"]), replace(KNOWN, synthetic=9))
