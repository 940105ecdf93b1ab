# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""One loop draws for everybody: noise by number or from one stream, labels, parts, and what no model can draw."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from diffusers import EDMEulerScheduler

from diffusers_dp import load_verified
from diffusers_dp.distributed.processes import Processes
from diffusers_dp.errors import UsageError
from diffusers_dp.methods.flag import validate
from diffusers_dp.models.denoiser import linear_schedule
from diffusers_dp.models.one_step import one_step_scheduler
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.sampling.drawing import Drawing, draw, draw_shared, generators, pixels_of
from support.releases import make_release


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    found = load_verified(make_release(tmp_path_factory.mktemp("run")))
    found.set_progress_bar_config(disable=True)
    return found


def test_an_image_follows_from_its_number_and_all_ways_draw_the_same(pipeline):
    drawing = Drawing(num_images=7, batch_size=3, num_inference_steps=2, seed=4)
    whole = pixels_of(draw(pipeline, drawing))
    assert whole.shape == (7, 1, 8, 8) and whole.dtype == np.uint8
    assert np.array_equal(pixels_of(draw(pipeline, drawing, range(3, 6))), whole[3:6])
    assert np.array_equal(draw_shared(pipeline, drawing, Processes(), "Drawing"), whole)
    assert [len(part) for part in drawing.parts()] == [3, 3, 1] and [len(part) for part in drawing.parts(5)] == [5, 2]


def test_deformed_images_follow_from_their_numbers_too(pipeline):
    plain = Drawing(num_images=7, batch_size=3, num_inference_steps=2, seed=4)
    moved = replace(plain, deformation=1.0)
    whole, parts = (pixels_of(draw(pipeline, replace(moved, batch_size=size))).astype(int) for size in (7, 2))
    assert np.abs(whole - parts).max() <= 1 and moved.facts == plain.facts | {"deformation": 1.0}
    assert not np.array_equal(whole, pixels_of(draw(pipeline, plain)))


def test_labels_are_given_or_take_turns():
    five = Drawing(num_images=5)
    assert five.labels_of(range(1, 5), 3) == [1, 2, 0, 1] and five.labels_of(range(5), None) is None
    assert Drawing(num_images=3, class_labels=(2, 2, 0)).labels_of(range(1, 3), 3) == [2, 0]
    assert Drawing(num_images=4, class_balance="0,1").labels_of(range(4), 2) == [1] * 4


CHURNED = {"solver": "heun", "s_churn": 10.0, "s_min": 0.1, "s_max": 50.0, "s_noise": 1.007}


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        (CHURNED, CHURNED),
        ({"solver": "heun"}, {"solver": "heun"}),
        ({"solver": "hmc"}, {"sampler": "hmc", "trajectory_length": 3}),
        ({"guidance_scale": 2.0}, {"guidance_scale": 2.0}),
    ],
)
def test_flags_draw_what_the_pipeline_draws_by_their_names_in_batches_of_any_size(pipeline, flags, arguments):
    drawing = Drawing(num_images=5, num_inference_steps=6, seed=3, **flags)
    labels = [i % 3 for i in range(5)]
    asked = pipeline(class_labels=labels, generator=generators(3, range(5)), num_inference_steps=6, **arguments).images
    assert np.array_equal(pixels_of(draw(pipeline, drawing)), pixels_of(asked))
    parts = pixels_of(draw(pipeline, replace(drawing, batch_size=2)))
    assert np.abs(parts.astype(int) - pixels_of(asked)).max() <= 1
    assert {name: drawing.facts[name] for name in flags} == flags


def test_what_is_at_its_default_is_not_told_so_that_earlier_folders_go_on():
    known = {"num_images", "num_inference_steps", "solver", "guidance_scale", "seed"}
    assert Drawing(num_images=3).facts.keys() == known == Drawing(mixed_precision="no").facts.keys()
    assert Drawing(solver="hmc").facts.keys() == known | {"trajectory_length"}
    told = Drawing(**CHURNED, mixed_precision="bf16").facts
    assert told.keys() == known | CHURNED.keys() | {"mixed_precision"} and told["s_noise"] == 1.007


@pytest.mark.parametrize(("solver", "kind"), [("dpm", None), ("heun", None), ("dpm", EDMEulerScheduler)])
def test_mixed_precision_rounds_what_the_network_computes_and_not_the_images_of_each_step(pipeline, solver, kind):
    drawing = Drawing(num_images=6, num_inference_steps=5, solver=solver)
    if kind is not None:
        pipeline = DPImagePipeline(pipeline.unet, kind.from_config(pipeline.scheduler.config))
        pipeline.set_progress_bar_config(disable=True)
    whole = pixels_of(draw(pipeline, drawing)).astype(int)
    types, states = [], []
    hook = pipeline.unet.conv_out.register_forward_hook(lambda module, inputs, output: types.append(output.dtype))
    rounded = draw(
        pipeline, replace(drawing, mixed_precision="bf16"),
        callback_on_step_end=lambda _, step, timestep, tensors: states.append(tensors["latents"].dtype) or tensors,
    )  # fmt: skip
    hook.remove()
    assert set(types) == {torch.bfloat16} and set(states) == {torch.float32}
    difference = np.abs(pixels_of(rounded).astype(int) - whole)
    assert difference.any() and difference.mean() < 2
    assert np.array_equal(pixels_of(draw(pipeline, replace(drawing, mixed_precision="no"))), whole)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"solver": "euler"}, "--solver is 'euler'; give one of dpm | heun | hmc"),
        ({"seed": -1}, "--seed is -1"),
        ({"batch_size": 0}, "--batch_size is 0"),
        ({"trajectory_length": 2}, "no effect without --solver hmc"),
        ({"guidance_scale": float("nan")}, "--guidance_scale is nan"),
        ({"num_images": 10**9}, "at most 10000000"),
        ({"s_churn": 10.0}, "--s_churn 10 needs --solver heun"),
        ({"s_churn": 10.0, "solver": "hmc"}, "--s_churn 10 needs --solver heun"),
        ({"s_churn": -1.0, "solver": "heun"}, "--s_churn is -1.0"),
        ({**CHURNED, "s_noise": float("nan")}, "--s_noise is nan"),
        ({**CHURNED, "s_min": 60.0}, "--s_min 60 is above --s_max 50"),
        ({"mixed_precision": "fp8"}, "--mixed_precision is 'fp8'; give one of no | fp16 | bf16"),
    ],
)
def test_what_no_model_can_draw_is_one_sentence(wrong, words):
    with pytest.raises(UsageError) as refused:
        validate(Drawing(**wrong))
    assert words in str(refused.value) and "\n" not in str(refused.value)
    validate(Drawing(solver="hmc"))
    validate(Drawing(**CHURNED))


@pytest.mark.parametrize("scheduler", [linear_schedule(), one_step_scheduler()])
def test_a_model_refuses_what_has_no_effect_on_it(pipeline, scheduler):
    other = DPImagePipeline(pipeline.unet, scheduler)
    for solver in ("heun", "hmc"):
        with pytest.raises(UsageError, match=f"--solver {solver} needs a model with EDM's noise levels"):
            Drawing(solver=solver).of_model(other, {})
    with pytest.raises(UsageError, match="--mixed_precision fp16 needs a GPU; give bf16"):
        Drawing(mixed_precision="fp16").of_model(other, {})
    Drawing(mixed_precision="bf16").of_model(other, {})
