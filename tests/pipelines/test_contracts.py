# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What users of Diffusers rely on in any pipeline, for each kind of model that a release can hold."""

import inspect
from copy import deepcopy

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, EDMDPMSolverMultistepScheduler, HeunDiscreteScheduler, UNet2DModel
from diffusers.callbacks import MultiPipelineCallbacks, PipelineCallback

from diffusers_dp.errors import UsageError
from diffusers_dp.models.one_step import one_step_scheduler
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.release.latent_base import drawing_pipeline, load_base
from diffusers_dp.release.loading import load_verified
from support.latent_releases import latent_release
from support.latents import stable_diffusion
from support.models import unet_config


SCHEDULERS = {
    "edm": lambda: EDMDPMSolverMultistepScheduler(sigma_data=0.5),
    "ddpm": lambda: DDIMScheduler(timestep_spacing="trailing"),
    "one_step": one_step_scheduler,
}
NAMES = {0: "cat", 1: "dog"}
HOW = [
    ("edm", {}), ("edm", {"solver": "heun", "s_churn": 2.0}), ("edm", {"sampler": "hmc"}),
    ("ddpm", {}), ("one_step", {}), ("latent", {}),
]  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return stable_diffusion(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def make(base):
    latent = drawing_pipeline(load_base(str(base)), NAMES, None)

    def pipeline_of(kind="edm"):
        if kind == "latent":
            return deepcopy(latent)
        torch.manual_seed(0)
        unet = UNet2DModel(**unet_config(2, patch_size=2)).eval()
        pipeline = DPImagePipeline(unet, SCHEDULERS[kind](), id2label=NAMES, patch_size=2)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    return pipeline_of


@pytest.fixture(params=["edm", "ddpm", "one_step", "latent"])
def pipeline(request, make):
    return make(request.param)


def draw(pipeline, seeds=(0, 1), **how):
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    how = {"class_labels": [0, 1], "num_inference_steps": 3, "output_type": "pt", **how}
    return pipeline(generator=generators, return_dict=False, **how)[0]


class TestSavedAndLoaded:
    @pytest.mark.parametrize("kind", SCHEDULERS)
    def test_a_saved_copy_draws_the_same(self, make, kind, tmp_path):
        pipeline, wanted = make(kind), draw(make(kind))
        pipeline.save_pretrained(tmp_path, variant="fp16")
        for loaded in (
            DPImagePipeline.from_pretrained(tmp_path, variant="fp16"),
            DPImagePipeline.from_pretrained(tmp_path, variant="fp16", device_map="balanced"),
            DPImagePipeline.from_pretrained(tmp_path, variant="fp16", device_map="cpu"),
            DPImagePipeline.from_pipe(pipeline),
        ):
            loaded.set_progress_bar_config(disable=True)
            assert torch.equal(draw(loaded), wanted)
            assert all(loaded.config[name] == pipeline.config[name] for name in ("patch_size", "formulation"))
            assert set(loaded.components) == {"unet", "scheduler"}

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_loaded_in_half_precision(self, make, dtype, tmp_path):
        make().save_pretrained(tmp_path)
        loaded = DPImagePipeline.from_pretrained(tmp_path, torch_dtype=dtype)
        loaded.set_progress_bar_config(disable=True)
        assert loaded.dtype == dtype and torch.equal(draw(loaded), draw(make().to(dtype)))

    def test_a_latent_release_is_loaded_in_half_precision_and_takes_no_other_argument(self, base, tmp_path):
        release = latent_release(tmp_path / "run", base, merge=True)
        found = load_verified(release, torch_dtype=torch.bfloat16)
        assert found.vae.dtype == found.unet.network.dtype == torch.bfloat16
        with pytest.raises(UsageError, match="takes torch_dtype alone, and not device_map"):
            load_verified(release, device_map="balanced")

    def test_half_a_latent_pipeline_is_not_saved(self, make, tmp_path):
        """Diffusers would leave out the network, and say so in a log line."""
        with pytest.raises(NotImplementedError, match="copy the folder of the release"):
            make("latent").save_pretrained(tmp_path / "copy")
        assert not (tmp_path / "copy").exists()


class TestDrawing:
    @pytest.mark.parametrize("class_labels", [None, [0, 1]])
    @pytest.mark.parametrize(("kind", "how"), HOW)
    def test_a_batch_is_its_images_one_by_one(self, make, kind, how, class_labels):
        pipeline = make(kind)
        together = draw(pipeline, batch_size=2, class_labels=class_labels, **how)
        for i in range(2):
            label = class_labels and class_labels[i : i + 1]
            alone = draw(pipeline, [i], class_labels=label, **how)
            torch.testing.assert_close(together[i : i + 1], alone, atol=1e-4, rtol=0)  # rounding at sigma 80

    @pytest.mark.parametrize("labels", [
        [[0], [1]], (0, 1), ["cat", "dog"], [["cat"], ["dog"]], np.array([0, 1]), torch.tensor([[0], [1]]),
        [torch.tensor(0), np.int64(1)], [0.0, True],
    ])  # fmt: skip
    def test_labels_as_diffusers_passes_them(self, make, labels):
        assert torch.equal(draw(make(), class_labels=labels), draw(make()))

    @pytest.mark.parametrize("label", [1, "dog", np.int64(1), torch.tensor(1)])
    def test_one_label_holds_for_all_images(self, make, label):
        assert torch.equal(draw(make(), batch_size=2, class_labels=label), draw(make(), class_labels=[1, 1]))
        assert not torch.equal(draw(make(), class_labels=[1, 1]), draw(make(), class_labels=[1, 0]))

    @pytest.mark.parametrize("labels", [[2, 0], [0.5, 0], [None, 0], [["bird"], [0]]])
    def test_labels_of_no_class_are_refused(self, make, labels):
        with pytest.raises(ValueError, match="`class_labels` contains .*, which is no class of this model"):
            draw(make(), class_labels=labels)

    def test_types_of_output(self, pipeline):
        tensor, array, pictures = (draw(pipeline, output_type=kind) for kind in ("pt", "np", "pil"))
        assert tensor.shape == (2, 1, 8, 8) and 0 <= tensor.min() and tensor.max() <= 1
        assert np.array_equal(array, tensor.permute(0, 2, 3, 1).numpy())
        assert np.array_equal(np.stack([np.asarray(each) for each in pictures]), (255 * array[..., 0]).round())
        latents = draw(pipeline, output_type="latent")
        assert latents.shape == (2, pipeline.unet.config.in_channels, 4, 4)
        assert torch.equal((pipeline.decode(latents) / 2 + 0.5).clamp(0, 1), tensor)
        named = pipeline(class_labels=[0, 1], num_inference_steps=1, output_type="pt")
        assert list(named) == ["images"] and named.images.shape == tensor.shape
        with pytest.raises(ValueError, match="`output_type` has to be 'pil', 'np', 'pt' or 'latent'"):
            draw(pipeline, output_type="tensor")

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_cast_to_half_precision(self, pipeline, dtype):
        """The noise is the same, and the latents stay in full precision. Other noise is 0.2 away."""
        wanted = draw(pipeline)
        found = draw(pipeline.to(dtype))
        assert {each.dtype for each in pipeline.components.values() if hasattr(each, "dtype")} == {dtype}
        assert found.dtype == torch.float32 and found.sub(wanted).abs().mean() < 0.05

    def test_the_progress_bar_is_that_of_the_user(self, make, capsys):
        pipeline = make()
        pipeline.set_progress_bar_config(desc="cats and dogs")
        draw(pipeline)
        assert "cats and dogs: 100%" in capsys.readouterr().err


class Watching(PipelineCallback):
    tensor_inputs = ["latents"]

    def callback_fn(self, pipeline, step, timestep, tensors):
        assert list(tensors) == ["latents"]
        pipeline.watched = [*getattr(pipeline, "watched", []), step]
        return tensors


class TestCallbacks:
    def test_they_see_the_steps_and_replace_latents(self, pipeline):
        seen = []

        def last_is_zero(pipe, step, timestep, tensors):
            seen.append((step, float(timestep), pipe.num_timesteps, pipe.guidance_scale))
            return {"latents": tensors["latents"] * (step < pipe.num_timesteps - 1)}

        assert draw(pipeline, output_type="latent", callback_on_step_end=last_is_zero).abs().sum() == 0
        times = pipeline.scheduler.timesteps
        assert seen == [(i, float(t), len(times), 1.0) for i, t in enumerate(times)]

    @pytest.mark.parametrize(("kind", "how"), [each for each in HOW if each[0] != "one_step"])
    def test_they_change_the_guidance_scale(self, make, kind, how):
        def turn_off(pipe, step, timestep, tensors):
            pipe._guidance_scale -= 1.0
            return tensors

        pipeline, found = make(kind), []
        for scale, callback in ((2.0, turn_off), (2.0, None)):
            more = {"guidance_scale": scale, "callback_on_step_end": callback, **how}
            found.append(draw(pipeline, output_type="latent", num_inference_steps=2, **more))
            assert pipeline.guidance_scale == (0.0 if callback else scale)
        assert not torch.equal(*found)

    def test_they_interrupt(self, pipeline):
        """The latents so far are decoded, and the next call is a whole one."""
        kept = []

        def interrupt(pipe, step, timestep, tensors):
            kept.append(tensors["latents"])
            pipe._interrupt = True
            return tensors

        stopped = draw(pipeline, callback_on_step_end=interrupt)
        assert torch.equal(stopped, (pipeline.decode(kept[0]) / 2 + 0.5).clamp(0, 1)) and len(kept) == 1
        whole = draw(pipeline)
        assert pipeline.interrupt is False and torch.equal(whole, stopped) == pipeline.is_one_step

    def test_those_of_diffusers_say_what_they_need(self, make):
        pipeline = make()
        both = MultiPipelineCallbacks([Watching(), Watching()])
        draw(pipeline, callback_on_step_end=both, callback_on_step_end_tensor_inputs=[])
        assert pipeline.watched == [0, 0, 1, 1, 2, 2]

    def test_tensors_that_do_not_exist_are_refused(self, pipeline):
        with pytest.raises(ValueError, match="`callback_on_step_end_tensor_inputs` has to be in"):
            draw(pipeline, callback_on_step_end_tensor_inputs=["prompt_embeds"])

    def test_a_scheduler_may_take_more_steps_than_were_asked_for(self, make):
        pipeline, seen = make("ddpm"), []
        pipeline.scheduler = HeunDiscreteScheduler.from_config(pipeline.scheduler.config)
        draw(pipeline, callback_on_step_end=lambda pipe, *_: seen.append(pipe.num_timesteps) or {})
        assert seen == [5] * 5


class TestOffload:
    """A processor takes the place of the accelerator: what moves, and when, is the same."""

    def test_models_are_in_memory_in_turn(self, pipeline):
        wanted, models = draw(pipeline), [each for each in pipeline.components.values() if hasattr(each, "modules")]
        assert pipeline.model_cpu_offload_seq.split("->") == [
            name for name, each in pipeline.components.items() if each in models
        ]
        for _ in range(2):
            pipeline.enable_model_cpu_offload(device="cpu")
            assert [hook.model for hook in pipeline._all_hooks] == models
            chain = [None, *(hook.hook for hook in pipeline._all_hooks)]
            previous = [hook.hook.prev_module_hook for hook in pipeline._all_hooks]
            assert [each and each.hook for each in previous] == chain[:-1]
            assert torch.equal(draw(pipeline), wanted)

    def test_where_there_is_no_accelerator_diffusers_says_so(self, pipeline):
        if torch.cuda.is_available():
            pytest.skip("there is one")
        with pytest.raises(RuntimeError, match="requires accelerator"):
            pipeline.enable_model_cpu_offload()


def test_arguments_have_the_names_of_diffusers():
    taken = inspect.signature(DPImagePipeline.__call__).parameters
    names = "class_labels generator num_inference_steps guidance_scale output_type return_dict callback_on_step_end"
    assert {*names.split(), "callback_on_step_end_tensor_inputs"} <= set(taken)
    assert all(each.default is not inspect.Parameter.empty for name, each in taken.items() if name != "self")
