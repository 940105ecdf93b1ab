# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""One loop draws for everybody: noise by number or from one stream, labels, parts, and what no model can draw."""

import numpy as np
import pytest

from diffusers_dp import load_verified
from diffusers_dp.distributed.processes import Processes
from diffusers_dp.errors import UsageError
from diffusers_dp.sampling.drawing import Drawing, draw, draw_shared, pixels_of
from support.releases import make_release


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    found = load_verified(make_release(tmp_path_factory.mktemp("run")))
    found.set_progress_bar_config(disable=True)
    return found


def test_an_image_follows_from_its_number_and_all_ways_draw_the_same(pipeline):
    drawing = Drawing(7, batch_size=3, num_inference_steps=2, seed=4)
    whole = pixels_of(draw(pipeline, drawing))
    assert whole.shape == (7, 1, 8, 8) and whole.dtype == np.uint8
    assert np.array_equal(pixels_of(draw(pipeline, drawing, range(3, 6))), whole[3:6])
    assert np.array_equal(draw_shared(pipeline, drawing, Processes(), "Drawing"), whole)
    assert [len(part) for part in drawing.parts()] == [3, 3, 1] and [len(part) for part in drawing.parts(5)] == [5, 2]


def test_images_of_one_stream_are_others_and_repeatable(pipeline):
    own, one = (Drawing(4, 2, 2, one_generator=shared) for shared in (False, True))
    first, again, others = (pixels_of(draw(pipeline, each)) for each in (one, one, own))
    assert np.array_equal(first, again) and not np.array_equal(first, others)


def test_labels_are_given_or_take_turns():
    assert Drawing(5).labels_of(range(1, 5), 3) == [1, 2, 0, 1] and Drawing(5).labels_of(range(5), None) is None
    assert Drawing(3, labels=(2, 2, 0)).labels_of(range(1, 3), 3) == [2, 0]
    assert Drawing(4, class_balance="0,1").labels_of(range(4), 2) == [1] * 4


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"solver": "euler"}, "--solver is 'euler'; give one of dpm, heun, hmc"),
        ({"seed": -1}, "--seed is -1"),
        ({"batch_size": 0}, "--batch_size is 0"),
        ({"trajectory_length": 2}, "no effect without --solver hmc"),
        ({"guidance_scale": float("nan")}, "--guidance_scale is nan"),
        ({"num_images": 10**9}, "give 10,000,000 at most"),
    ],
)
def test_what_no_model_can_draw_is_one_sentence(wrong, words):
    with pytest.raises(UsageError, match=words):
        Drawing(**{"num_images": 1, **wrong}).check()
    Drawing(1, solver="hmc").check()
