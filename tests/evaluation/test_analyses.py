# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The table of analyses: what each names exists, and what each needs is what its formula can do without."""

from dataclasses import replace

import pytest

from diffusers_dp.evaluation.analyses import ANALYSES, AvailableImages


KNOWN = AvailableImages(300, True, True, {"classifier": 128}, test=300, real=300)


@pytest.mark.parametrize(
    ("name", "fewest"),
    [
        ("fid", {"real": 129, "synthetic": 129}),
        ("precision_recall", {"real": 4, "synthetic": 4}), ("fld", {"real": 4, "test": 2}),
        ("classifiers", {"real": 2, "synthetic": 2, "test": 1}),
    ],
)  # fmt: skip
def test_one_image_less_is_too_few(name, fewest):
    for field, count in fewest.items():
        for left, problem in ((count, False), (count - 1, True)):
            known = replace(KNOWN, **{field: left})
            assert bool(ANALYSES[name].needs(known, "classifier")) == problem
