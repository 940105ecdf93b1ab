"""`DPImagePipeline`: the calling contract with tiny real models, and both solvers on a denoiser in closed form."""

import json

import diffusers
import pytest
import torch
from diffusers import DDIMScheduler, EDMDPMSolverMultistepScheduler, EDMEulerScheduler, UNet2DModel
from diffusers.models.unets.unet_2d import UNet2DOutput

from diffusers_dp.models.one_step import OneStepGenerator, one_step_scheduler
from diffusers_dp.pipelines import DPImagePipeline
from support.models import GaussianPredictor, unet_config


SIGMA_DATA = 0.577
NAMES = {0: "zero", 1: "one", 2: "two"}


def make_pipeline(num_classes=None, patch_size=1, channels=1, scheduler=EDMDPMSolverMultistepScheduler):
    torch.manual_seed(0)
    unet = UNet2DModel(**unet_config(num_classes, patch_size, channels)).eval()
    pipeline = DPImagePipeline(
        unet,
        scheduler(sigma_data=SIGMA_DATA),
        id2label=None if num_classes is None else NAMES,
        patch_size=patch_size,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def draw(pipeline, seed=0, **kwargs):
    kwargs = {"num_inference_steps": 3, "output_type": "pt", **kwargs}
    return pipeline(generator=torch.Generator().manual_seed(seed), **kwargs).images


class TestCallingContract:
    @pytest.mark.parametrize("patch_size", [1, 2])
    @pytest.mark.parametrize("num_classes", [None, 3])
    def test_steps_of_ddpm(self, num_classes, patch_size, tmp_path):
        unet = UNet2DModel(**unet_config(num_classes, patch_size)).eval()
        saved = DPImagePipeline(unet, DDIMScheduler(timestep_spacing="trailing"), patch_size=patch_size)
        saved.save_pretrained(tmp_path)
        pipeline = DPImagePipeline.from_pretrained(tmp_path)
        pipeline.set_progress_bar_config(disable=True)
        generators = [torch.Generator().manual_seed(seed) for seed in range(2)]
        first = pipeline(2, generator=generators, num_inference_steps=3, output_type="pt").images
        second = draw(pipeline, seed=1, batch_size=1)
        assert first.shape == (2, 1, 8, 8) and isinstance(pipeline.scheduler, DDIMScheduler)
        torch.testing.assert_close(first[1:], second, atol=1e-4, rtol=0)
        with pytest.raises(ValueError, match="`solver` has to be 'dpm'"):
            draw(pipeline, batch_size=1, solver="heun")

    @pytest.mark.parametrize("kwargs", [{}, {"solver": "heun"}, {"solver": "heun", "s_churn": 2.0}])
    @pytest.mark.parametrize("num_classes", [None, 3])
    def test_generator_decides(self, num_classes, kwargs):
        pipeline = make_pipeline(num_classes)
        first, again, other = (draw(pipeline, seed, batch_size=2, **kwargs) for seed in (0, 0, 1))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_drawn_labels_are_uniform_and_without_the_null_row(self):
        pipeline = make_pipeline(3)
        labels = pipeline.prepare_class_labels(9000, None, torch.Generator().manual_seed(0))
        counts = torch.bincount(labels, minlength=4)
        assert counts[3] == 0
        assert (counts[:3] - 3000).abs().max() < 5 * (9000 * 2 / 9) ** 0.5


class GaussianUNet(UNet2DModel):
    """The perfect network for pixels `N(mean[label], std^2)`, independent of each other.

    The denoiser is `D(x; sigma) = mean + std^2 (x - mean) / (std^2 + sigma^2)`; the EDM preconditioning (Karras et al.
    2022, Equation 7) is solved for F. It is right only if it is called as a network in training is, with `c_in x` and
    `ln(sigma) / 4`.
    """

    std = 0.2

    def set_means(self, means):
        """Means of shape `[rows, C, 1, 1]`."""
        self.means = means
        return self

    def forward(self, sample, timestep, class_labels=None):
        assert timestep.ndim == 0
        sigma = (4 * timestep).exp()
        variance = sigma**2 + SIGMA_DATA**2
        noisy = sample * variance.sqrt()
        mean = self.means[torch.zeros(len(sample), dtype=torch.long) if class_labels is None else class_labels]
        denoised = mean + self.std**2 * (noisy - mean) / (self.std**2 + sigma**2)
        output = (denoised - SIGMA_DATA**2 / variance * noisy) * variance.sqrt() / (sigma * SIGMA_DATA)
        return UNet2DOutput(sample=output)


def gaussian_pipeline(means, num_classes=None, patch_size=1, scheduler=EDMDPMSolverMultistepScheduler):
    unet = GaussianUNet(**unet_config(num_classes, patch_size)).set_means(means)
    pipeline = DPImagePipeline(unet, scheduler(sigma_data=SIGMA_DATA), patch_size=patch_size)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


MEANS = torch.tensor([-0.1, 0.1, 0.3, 0.0]).view(4, 1, 1, 1)  # three classes and the null label
# Both solvers are of second order: 20 steps widen this narrow distribution by 6 %, five times as many by 0.2 %.
SOLVERS = [
    ({"solver": "dpm", "num_inference_steps": 20}, 0.08),
    ({"solver": "dpm", "num_inference_steps": 100}, 0.01),
    ({"solver": "heun", "num_inference_steps": 20}, 0.08),
    ({"solver": "heun", "num_inference_steps": 100}, 0.01),
    ({"solver": "heun", "num_inference_steps": 100, "s_churn": 10.0, "s_min": 0.025, "s_max": 50.0}, 0.02),
]


class TestSolversOnGaussianData:
    """1024 images of 64 pixels: the mean is known to 0.0008, the standard deviation to 0.3 %."""

    @pytest.mark.parametrize(("kwargs", "tolerance"), SOLVERS)
    def test_mean_and_std(self, kwargs, tolerance, scheduler=EDMDPMSolverMultistepScheduler):
        images = draw(gaussian_pipeline(MEANS[:1], scheduler=scheduler), batch_size=1024, **kwargs) * 2 - 1
        assert images.mean() == pytest.approx(-0.1, abs=0.004)
        assert images.std() == pytest.approx(GaussianUNet.std, rel=tolerance)

    def test_euler_scheduler(self):
        self.test_mean_and_std({"num_inference_steps": 200}, 0.03, EDMEulerScheduler)

    @pytest.mark.parametrize("solver", ["dpm", "heun"])
    @pytest.mark.parametrize(("scale", "expected"), [(0.0, 0.0), (1.0, 0.1), (2.0, 0.2)])
    def test_guidance_extrapolates_from_the_null_label(self, scale, expected, solver):
        pipeline = gaussian_pipeline(MEANS, num_classes=3)
        kwargs = {"num_inference_steps": 50, "solver": solver, "guidance_scale": scale}
        images = draw(pipeline, batch_size=256, class_labels=1, **kwargs) * 2 - 1
        assert images.mean() == pytest.approx(expected, abs=0.008)
        assert images.std() == pytest.approx(GaussianUNet.std, rel=0.05)

    def test_patches_unfold_to_where_they_came_from(self):
        means = torch.linspace(-0.3, 0.3, 4).view(1, 4, 1, 1)
        images = draw(gaussian_pipeline(means, patch_size=2), batch_size=256, num_inference_steps=20) * 2 - 1
        assert images.shape == (256, 1, 8, 8)
        folded = torch.nn.functional.pixel_unshuffle(images, 2).mean((0, 2, 3))
        torch.testing.assert_close(folded, means.flatten(), atol=0.015, rtol=0)

    def test_churn_adds_noise_only_between_s_min_and_s_max(self):
        pipeline = gaussian_pipeline(MEANS[:1])
        still = draw(pipeline, batch_size=4, num_inference_steps=20, solver="heun")
        outside = {"s_churn": 10.0, "s_min": 1e3}
        assert torch.equal(draw(pipeline, batch_size=4, num_inference_steps=20, solver="heun", **outside), still)
        churned = draw(pipeline, batch_size=4, num_inference_steps=20, solver="heun", s_churn=10.0)
        assert not torch.allclose(churned, still, atol=1e-2)


class TestSchedulers:
    """What a network was trained for decides which schedulers draw from it; others would draw noise."""

    EDM = "EDMDPMSolverMultistepScheduler or EDMEulerScheduler"

    @pytest.mark.parametrize("name", ["DDIM", "DDPM", "LCM", "EulerDiscrete", "DPMSolverMultistep", "HeunDiscrete",
                                      "UniPCMultistep", "PNDM"])  # fmt: skip
    def test_a_scheduler_of_other_steps_is_refused(self, name):
        pipeline = make_pipeline()
        wrong = getattr(diffusers, f"{name}Scheduler").from_config(pipeline.scheduler.config)
        pipeline.scheduler = wrong
        with pytest.raises(ValueError, match=f"`scheduler` has to be {self.EDM}.*and is {name}Scheduler"):
            draw(pipeline, batch_size=1)
        with pytest.raises(ValueError, match=self.EDM):  # also where nothing but its configuration tells
            draw(DPImagePipeline(pipeline.unet, wrong), batch_size=1)

    @pytest.mark.parametrize("formulation", [None, "edm"])
    def test_a_saved_pipeline_tells_and_one_saved_before_that_is_still_loaded(self, formulation, tmp_path):
        make_pipeline().save_pretrained(tmp_path)
        index = json.loads((tmp_path / "model_index.json").read_text())
        assert index["formulation"] == "edm"
        if formulation is None:
            del index["formulation"]
            (tmp_path / "model_index.json").write_text(json.dumps(index))
        pipeline = DPImagePipeline.from_pretrained(tmp_path)
        pipeline.set_progress_bar_config(disable=True)
        torch.testing.assert_close(
            draw(pipeline, batch_size=1), draw(make_pipeline(), batch_size=1), atol=1e-4, rtol=0
        )
        with pytest.raises(ValueError, match=self.EDM):
            other = DDIMScheduler.from_config(pipeline.scheduler.config)
            draw(DPImagePipeline.from_pretrained(tmp_path, scheduler=other), batch_size=1)

    @pytest.mark.parametrize("name", DPImagePipeline.schedulers["ddpm"])
    def test_steps_of_ddpm_are_taken_by_what_fits_them(self, name):
        pipeline = TestStepsOfDDPMOnGaussianData().pipeline(MEANS[:1])
        pipeline.scheduler = getattr(diffusers, name).from_config(pipeline.scheduler.config)
        torch.manual_seed(0)
        images = draw(pipeline, batch_size=64, num_inference_steps=20) * 2 - 1
        assert images.mean() == pytest.approx(-0.1, abs=0.01) and 0.12 < images.std() < 0.21

    def test_what_does_not_fit_the_steps_of_ddpm_is_refused(self):
        pipeline = TestStepsOfDDPMOnGaussianData().pipeline(MEANS[:1])
        for name in ("LCMScheduler", "EDMEulerScheduler"):
            pipeline.scheduler = getattr(diffusers, name)()
            with pytest.raises(ValueError, match="`scheduler` has to be DDIMScheduler"):
                draw(pipeline, batch_size=1)
        one_step = TestOneStep().make()
        one_step.scheduler = diffusers.EulerDiscreteScheduler.from_config(one_step.scheduler.config)
        with pytest.raises(ValueError, match="`scheduler` has to be DDIMScheduler for this model"):
            draw(one_step, batch_size=1)


class TestHamiltonianDynamics:
    @pytest.mark.parametrize(
        ("length", "steps", "tolerance"), [(1, 100, 0.06), (2, 100, 0.05), (3, 100, 0.05), (3, 250, 0.03)]
    )
    def test_mean_and_std(self, length, steps, tolerance):
        """Closer with more noise levels, of which the error is of first order."""
        pipeline = gaussian_pipeline(MEANS[:1])
        how = {"sampler": "hmc", "num_inference_steps": steps, "trajectory_length": length}
        images = draw(pipeline, batch_size=256, **how) * 2 - 1
        assert images.mean() == pytest.approx(-0.1, abs=0.006)
        assert images.std() == pytest.approx(GaussianUNet.std, rel=tolerance)

    def test_a_trajectory_forgets_and_keeps_the_noise_level(self):
        """A quarter of a period is three leapfrog steps of half a noise level: what comes out knows little of what
        went in, has the noise of its level, and each step's momentum is fresh."""
        pipeline = gaussian_pipeline(MEANS[:1])
        pipeline.scheduler.set_timesteps(400)
        start = 10 * torch.randn(256, 1, 8, 8, generator=torch.Generator().manual_seed(7))
        level = int((pipeline.scheduler.sigmas - 10).abs().argmin())
        start *= pipeline.scheduler.sigmas[level] / 10

        def moved(seed, **how):
            generator = torch.Generator().manual_seed(seed)
            arguments = {"trajectory_length": 3, "leapfrog_step": 0.5, **how}
            return pipeline.hmc_step(start, level, None, 1.0, generator, **arguments)

        ends, sigma = moved(0), pipeline.scheduler.sigmas[level + 1]
        assert ends.std() == pytest.approx(float(sigma), rel=0.06)
        assert abs(torch.corrcoef(torch.stack([start.flatten(), ends.flatten()]))[0, 1]) < 0.15
        assert not torch.allclose(ends, moved(1)) and torch.equal(ends, moved(0))
        still = moved(0, trajectory_length=1, leapfrog_step=1e-4)
        assert torch.corrcoef(torch.stack([start.flatten(), still.flatten()]))[0, 1] > 0.999


class TestStepsOfDDPMOnGaussianData:
    def pipeline(self, means, num_classes=None, kind="epsilon"):
        scheduler = DDIMScheduler(timestep_spacing="trailing", prediction_type=kind)
        unet = GaussianPredictor(**unet_config(num_classes)).prepare(means, scheduler)
        pipeline = DPImagePipeline(unet, scheduler)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    @pytest.mark.parametrize("kind", ["epsilon", "sample", "v_prediction"])
    def test_mean_and_std(self, kind):
        images = draw(self.pipeline(MEANS[:1], kind=kind), batch_size=512, num_inference_steps=200) * 2 - 1
        assert images.mean() == pytest.approx(-0.1, abs=0.006)
        assert images.std() == pytest.approx(GaussianPredictor.std, rel=0.05)


class TestOneStep:
    """A generator: the UNet is called once, with noise and step 0, and its output is the image."""

    def make(self, num_classes=3):
        torch.manual_seed(0)
        unet = UNet2DModel(**unet_config(num_classes, 2)).eval()
        pipeline = DPImagePipeline(unet, one_step_scheduler(), id2label=NAMES if num_classes else None, patch_size=2)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    @pytest.mark.parametrize("num_classes", [None, 3])
    def test_the_image_is_what_the_unet_returns(self, num_classes, tmp_path):
        self.make(num_classes).save_pretrained(tmp_path)
        pipeline = DPImagePipeline.from_pretrained(tmp_path)
        pipeline.set_progress_bar_config(disable=True)
        labels = None if num_classes is None else torch.tensor([2, 2])
        noise = torch.randn(2, 4, 4, 4, generator=torch.Generator().manual_seed(5))
        with torch.no_grad():
            wanted = torch.nn.functional.pixel_shuffle(pipeline.unet(noise, 0, class_labels=labels).sample, 2)
        given = {} if num_classes is None else {"class_labels": [2, 2]}
        for steps in (1, 20):
            found = draw(pipeline, seed=5, batch_size=2, num_inference_steps=steps, **given)
            torch.testing.assert_close(found, (wanted / 2 + 0.5).clamp(0, 1), atol=1e-5, rtol=0)

    def test_it_draws_as_it_is_fitted(self):
        pipeline = self.make()
        torch.manual_seed(7)
        fitted = OneStepGenerator(pipeline.unet, 2).draw(torch.tensor([0, 1])).clamp(0, 1)
        torch.manual_seed(7)
        drawn = pipeline(class_labels=[0, 1], output_type="pt").images
        torch.testing.assert_close(drawn, fitted.detach(), atol=1e-5, rtol=0)
