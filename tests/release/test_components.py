# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A stranger's model, whose hashes and numbers are all right, is refused in one sentence before anything of it is
built."""

import re

import pytest
from diffusers import DDIMScheduler, EDMDPMSolverMultistepScheduler, EDMEulerScheduler

from diffusers_dp import load_verified
from diffusers_dp.errors import IntegrityError
from diffusers_dp.release.components import WrongModel, check_components, check_model, refused
from support.hostile import ENDLESS, HOSTILE, spoil
from support.releases import make_release


@pytest.mark.parametrize("trap", HOSTILE)
def test_a_trap_is_refused_in_one_sentence(release, trap):
    tamper, words = HOSTILE[trap]
    tamper(release)
    with pytest.raises(IntegrityError) as refusal, refused("a"):
        check_model(check_components(release))
    assert re.search(words, str(refusal.value)), refusal.value
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 2_000


@pytest.mark.parametrize(
    "trap", ["a scheduler that is not ours", "a schedule of another class", "many layers", "large padding"]
)
def test_nothing_is_loaded_though_the_receipt_is_consistent(release, trap):
    tamper, words = HOSTILE[trap]
    spoil(release, tamper)
    for require_dp in (True, False):
        with pytest.raises(IntegrityError, match=words):
            load_verified(release, require_dp=require_dp)


@pytest.mark.parametrize(
    "scheduler", [EDMDPMSolverMultistepScheduler(), EDMEulerScheduler(), DDIMScheduler(timestep_spacing="trailing")]
)
def test_each_scheduler_that_the_pipeline_takes_is_loaded(tmp_path, scheduler):
    release = make_release(tmp_path, num_classes=None, patch_size=2, scheduler=scheduler)
    assert type(load_verified(release).scheduler) is type(scheduler)


@pytest.mark.parametrize("trap", ENDLESS)
def test_what_never_ends_is_not_read(release, trap):
    tamper, words = ENDLESS[trap]
    tamper(release)
    with pytest.raises(WrongModel, match=words):
        check_components(release)
