# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Sampling from a released model: `UNet2DModel` in EDM preconditioning or of DDPM, class-conditional or not.

This file is also copied into every release as `pipeline.py`, so it imports torch and diffusers only.
"""

import inspect
import math
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from diffusers import (
    DDIMScheduler,
    DiffusionPipeline,
    EDMDPMSolverMultistepScheduler,
    EDMEulerScheduler,
    ImagePipelineOutput,
    UNet2DModel,
)
from diffusers.callbacks import MultiPipelineCallbacks, PipelineCallback
from diffusers.utils import logging
from diffusers.utils.torch_utils import randn_tensor


logger = logging.get_logger(__name__)
RECEIPT_NAME = "privacy_receipt.json"


def flatten(labels: Any) -> list:
    """Labels of nested lists, tuples, arrays and tensors, in one list; a single label is a list of one."""
    labels = labels.tolist() if hasattr(labels, "tolist") else labels
    if isinstance(labels, (list, tuple)):
        return [each for label in labels for each in flatten(label)]
    return [labels]


class DPImagePipeline(DiffusionPipeline):
    r"""
    Pipeline for image generation with a `UNet2DModel` that was trained with differential privacy in the EDM
    formulation of [Karras et al. 2022](https://huggingface.co/papers/2206.00364), or in that of
    [DDPM](https://huggingface.co/papers/2006.11239), or as a generator that makes an image of noise in one step. The
    scheduler tells which.

    Drawing images costs no privacy: whatever is computed from the released weights is post-processing.

    This model inherits from [`DiffusionPipeline`]. Check the superclass documentation for the generic methods
    implemented for all pipelines (downloading, saving, running on a particular device, etc.).

    Parameters:
        unet ([`UNet2DModel`]):
            With an EDM scheduler the network `F` of Karras et al. 2022, Equation 7, called as
            `F(c_in(sigma) x, ln(sigma) / 4, class_labels)`; with a [`DDIMScheduler`] a predictor of its
            `prediction_type`, called as `unet(x_t, t, class_labels)`. A one-step generator is a `DDIMScheduler` of a
            single training step that predicts the sample: the UNet is called once, with noise and `t = 0`. If
            `unet.config.num_class_embeds` is set, the model is class-conditional: the last row is the null label that
            label dropout trained, so that there is one class less than rows.
        scheduler ([`EDMDPMSolverMultistepScheduler`], [`EDMEulerScheduler`] or [`DDIMScheduler`]):
            Solver and noise levels; the config of an EDM scheduler carries `sigma_data`, the standard deviation in the
            preconditioning.
        id2label (`dict`, *optional*):
            Names of the classes, by class id. The keys are strings when read from a `model_index.json`.
        patch_size (`int`, *optional*, defaults to 1):
            The UNet works on images whose patches of `patch_size` x `patch_size` pixels were folded into channels
            (`torch.nn.functional.pixel_unshuffle`); 1 means plain images.
        formulation (`str`, *optional*):
            `"edm"`, `"ddpm"` or `"one_step"`: what the network was trained for, which decides the schedulers that fit
            it. Defaults to that of `scheduler`.
        privacy (`dict`, *optional*):
            The privacy statement of the release, such as `{"epsilon": 1.0, "delta": 1e-5, "receipt_sha256": "..."}`.
            The pipeline carries it and does not check it.
    """

    model_cpu_offload_seq = "unet"
    _callback_tensor_inputs = ["latents"]
    #: Of the call that runs, or of the last one.
    _guidance_scale, _num_timesteps, _interrupt = 1.0, 0, False
    #: Schedulers that draw from a network of each formulation.
    schedulers = {
        "edm": ("EDMDPMSolverMultistepScheduler", "EDMEulerScheduler"),
        "ddpm": (
            "DDIMScheduler", "DDPMScheduler", "DEISMultistepScheduler", "DPMSolverMultistepScheduler",
            "DPMSolverSinglestepScheduler", "EulerAncestralDiscreteScheduler", "EulerDiscreteScheduler",
            "HeunDiscreteScheduler", "KDPM2AncestralDiscreteScheduler", "KDPM2DiscreteScheduler",
            "LMSDiscreteScheduler", "PNDMScheduler", "UniPCMultistepScheduler",
        ),
        "one_step": ("DDIMScheduler",),
    }  # fmt: skip

    def __init__(
        self,
        unet: UNet2DModel,
        scheduler: EDMDPMSolverMultistepScheduler | EDMEulerScheduler | DDIMScheduler,
        id2label: dict | None = None,
        patch_size: int = 1,
        privacy: dict | None = None,
        formulation: str | None = None,
    ):
        super().__init__()
        self.register_modules(unet=unet, scheduler=scheduler)
        if formulation is None:
            # `from_config` keeps what a class does not read: `sigma_data` tells of an EDM scheduler before this one.
            steps = "one_step" if scheduler.config.num_train_timesteps == 1 else "ddpm"
            formulation = "edm" if "sigma_data" in scheduler.config else steps
        self.register_to_config(id2label=id2label, patch_size=patch_size, privacy=privacy, formulation=formulation)

    def save_pretrained(self, save_directory: str | os.PathLike, *arguments: Any, **keywords: Any) -> None:
        """
        Saves the pipeline as [`DiffusionPipeline`] does, with this file as `pipeline.py`, so that the copy loads as
        the release does. If the pipeline was loaded from a folder with a privacy receipt, the receipt goes along.
        """
        receipt = os.path.join(getattr(self.config, "_name_or_path", None) or "", RECEIPT_NAME)
        os.makedirs(save_directory, exist_ok=True)
        for file, name in ((__file__, "pipeline.py"), (receipt, RECEIPT_NAME)):
            copy = os.path.join(save_directory, name)
            if os.path.isfile(file) and not (os.path.exists(copy) and os.path.samefile(file, copy)):
                shutil.copyfile(file, copy)
                if name == RECEIPT_NAME:
                    logger.warning(
                        f"{copy} is the receipt of the release that this pipeline was loaded from. It covers files"
                        " with the hashes that it lists: weights that were trained further are not among them."
                    )
        super().save_pretrained(save_directory, *arguments, **keywords)

    @property
    def num_classes(self) -> int | None:
        """Number of classes without the null label; `None` for an unconditional model."""
        rows = self.unet.config.num_class_embeds
        return None if rows is None else rows - 1

    @property
    def is_one_step(self) -> bool:
        """Whether the UNet makes an image of noise in one call, whatever the number of inference steps."""
        return self.config.formulation == "one_step"

    @property
    def guidance_scale(self) -> float:
        """Guidance of the next step; a callback may set `_guidance_scale`."""
        return self._guidance_scale

    @property
    def num_timesteps(self) -> int:
        """Number of steps that the scheduler takes."""
        return self._num_timesteps

    @property
    def interrupt(self) -> bool:
        """Whether the steps that remain are left out; a callback may set `_interrupt`."""
        return self._interrupt

    def get_label_ids(self, class_labels: int | str | list | torch.Tensor) -> list[int]:
        """Class ids of labels given as ids or names.

        Args:
            class_labels (`int`, `str`, `list` or `torch.Tensor`):
                One label or several, also nested: ids in `[0, num_classes)`, or names in `id2label`.

        Returns:
            `list[int]`: One id per label.

        Raises:
            `ValueError`: If the model is unconditional, or a label is not one of its classes.
        """
        if self.num_classes is None:
            raise ValueError("`class_labels` cannot be used: this model is unconditional.")
        class_labels = flatten(class_labels)
        ids_by_name = {name: int(class_id) for class_id, name in (self.config.id2label or {}).items()}
        class_ids = [ids_by_name.get(label) if isinstance(label, str) else label for label in class_labels]
        for label, class_id in zip(class_labels, class_ids):
            if class_id not in range(self.num_classes):
                names = f" or one of {sorted(ids_by_name)}" if ids_by_name else ""
                raise ValueError(
                    f"`class_labels` contains {label!r}, which is no class of this model: use an id from 0 to"
                    f" {self.num_classes - 1}{names}."
                )
        return [int(class_id) for class_id in class_ids]

    def check_scheduler(self) -> None:
        """Raises `ValueError` where the scheduler does not fit what the network was trained for."""
        fitting, kind = self.schedulers[self.config.formulation], type(self.scheduler).__name__
        if kind not in fitting:
            raise ValueError(
                f"`scheduler` has to be {' or '.join(fitting)} for this model, and is {kind}, which would draw noise."
            )

    def check_inputs(
        self,
        batch_size: int | None,
        class_labels: int | str | list | torch.Tensor | None,
        generator: torch.Generator | list[torch.Generator] | None,
        num_inference_steps: int,
        guidance_scale: float,
        solver: str,
        s_churn: float,
        output_type: str,
        callback_on_step_end_tensor_inputs: list[str],
        sampler: str = "solver",
        trajectory_length: int = 3,
        leapfrog_step: float = 1.0,
    ) -> int:
        """Refuses what cannot be sampled.

        Returns:
            `int`: The number of images.

        Raises:
            `ValueError`: One sentence that names the argument.
        """
        self.check_scheduler()
        label_ids = None if class_labels is None else self.get_label_ids(class_labels)
        if batch_size is None:
            batch_size = 1 if label_ids is None else len(label_ids)
        if batch_size < 1:
            raise ValueError(f"The number of images has to be at least 1, but is {batch_size}.")
        if label_ids is not None and len(label_ids) not in (1, batch_size):
            raise ValueError(f"`class_labels` has {len(label_ids)} labels, but `batch_size` is {batch_size}.")
        if isinstance(generator, list) and len(generator) != batch_size:
            raise ValueError(f"`generator` is a list of {len(generator)}, but {batch_size} images are asked for.")
        if num_inference_steps < 1:
            raise ValueError(f"`num_inference_steps` has to be at least 1, but is {num_inference_steps}.")
        if guidance_scale < 0:
            raise ValueError(f"`guidance_scale` has to be at least 0, but is {guidance_scale}.")
        if guidance_scale != 1.0 and self.num_classes is None:
            raise ValueError("`guidance_scale` has to be 1.0: this model is unconditional.")
        if guidance_scale != 1.0 and self.is_one_step:
            raise ValueError("`guidance_scale` has to be 1.0: this model makes an image in one step.")
        if solver not in ("dpm", "heun"):
            raise ValueError(f"`solver` has to be 'dpm' or 'heun', but is {solver!r}.")
        if solver == "heun" and self.config.formulation != "edm":
            raise ValueError(
                "`solver` has to be 'dpm': this model has the steps of DDPM, and 'heun' needs EDM's noise levels."
            )
        if s_churn != 0 and solver != "heun":
            raise ValueError("`s_churn` needs `solver='heun'`.")
        if sampler not in ("solver", "hmc"):
            raise ValueError(f"`sampler` has to be 'solver' or 'hmc', but is {sampler!r}.")
        if sampler == "hmc" and self.config.formulation != "edm":
            raise ValueError(
                "`sampler` has to be 'solver': 'hmc' needs EDM's noise levels, and this model has others."
            )
        if sampler == "hmc" and solver != "dpm":
            raise ValueError(f"`solver={solver!r}` has no effect with `sampler='hmc'`: leave it out.")
        if trajectory_length < 1:
            raise ValueError(f"`trajectory_length` has to be at least 1, but is {trajectory_length}.")
        if not 0 < leapfrog_step < 2:
            raise ValueError(f"`leapfrog_step` has to be above 0 and below 2, but is {leapfrog_step}.")
        if output_type not in ("pil", "np", "pt", "latent"):
            raise ValueError(f"`output_type` has to be 'pil', 'np', 'pt' or 'latent', but is {output_type!r}.")
        unknown = [name for name in callback_on_step_end_tensor_inputs if name not in self._callback_tensor_inputs]
        if unknown:
            raise ValueError(
                f"`callback_on_step_end_tensor_inputs` has to be in {self._callback_tensor_inputs}, but has {unknown}."
            )
        return batch_size

    def prepare_latents(
        self, batch_size: int, generator: torch.Generator | list[torch.Generator] | None
    ) -> torch.Tensor:
        """Standard normal noise of shape `[batch_size, unet.config.in_channels, height, width]` (folded pixels)."""
        size = self.unet.config.sample_size
        height, width = (size, size) if isinstance(size, int) else size
        shape = (batch_size, self.unet.config.in_channels, height, width)
        return randn_tensor(shape, generator=generator, device=self._execution_device, dtype=self.unet.dtype)

    def prepare_class_labels(
        self,
        batch_size: int,
        class_labels: int | str | list | torch.Tensor | None,
        generator: torch.Generator | list[torch.Generator] | None,
    ) -> torch.Tensor | None:
        """Class ids of shape `[batch_size]`, or `None` for an unconditional model.

        Labels that are not given are drawn uniformly: the frequencies of the classes in the training data are private.
        """
        if self.num_classes is None:
            return None
        if class_labels is not None:
            class_ids = torch.tensor(self.get_label_ids(class_labels))
        elif isinstance(generator, list):
            class_ids = torch.cat([self._draw_labels(1, each) for each in generator])
        else:
            class_ids = self._draw_labels(batch_size, generator)
        return class_ids.expand(batch_size).to(self._execution_device)

    def _draw_labels(self, count: int, generator: torch.Generator | None) -> torch.Tensor:
        device = "cpu" if generator is None else generator.device
        return torch.randint(self.num_classes, (count,), generator=generator, device=device)

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Images `[B, channels, height, width]`, in about [-1, 1], of latents `[B, C, H, W]`: unfolds the patches."""
        return torch.nn.functional.pixel_shuffle(latents, self.config.patch_size)

    def predict(
        self,
        model_input: torch.Tensor,
        timestep: torch.Tensor,
        class_labels: torch.Tensor | None,
        guidance_scale: float,
    ) -> torch.Tensor:
        """Output of the UNet with classifier-free guidance.

        Ho and Salimans 2022, Equation 6, with `guidance_scale = 1 + w`. The denoiser is affine in this output,
        whatever the scheduler, hence guiding the output guides the denoiser.

        Args:
            model_input (`torch.Tensor` of shape `[B, C, H, W]`): `c_in(sigma) x`, or `x_t`.
            timestep (`torch.Tensor`, scalar): `ln(sigma) / 4`, or the step `t`.
            class_labels (`torch.LongTensor` of shape `[B]` or `None`): Class ids.
            guidance_scale (`float`): 1.0 asks for the conditional output alone.

        Returns:
            `torch.Tensor` of shape `[B, C, H, W]`.
        """
        model_input = model_input.to(self.unet.dtype)
        if guidance_scale == 1.0:
            return self.unet(model_input, timestep, class_labels=class_labels).sample
        null_labels = torch.full_like(class_labels, self.num_classes)
        output = self.unet(
            torch.cat([model_input, model_input]), timestep, class_labels=torch.cat([class_labels, null_labels])
        ).sample
        conditional, unconditional = output.chunk(2)
        return unconditional + guidance_scale * (conditional - unconditional)

    def denoise(
        self, sample: torch.Tensor, sigma: torch.Tensor, class_labels: torch.Tensor | None, guidance_scale: float
    ) -> torch.Tensor:
        """`D(x; sigma)` of an EDM scheduler, of the shape and type of `sample`."""
        model_input = self.scheduler.precondition_inputs(sample, sigma)
        timestep = self.scheduler.precondition_noise(sigma)
        model_output = self.predict(model_input, timestep, class_labels, guidance_scale).to(sample.dtype)
        return self.scheduler.precondition_outputs(sample, model_output, sigma)

    def hmc_step(
        self,
        latents: torch.Tensor,
        step: int,
        class_labels: torch.Tensor | None,
        guidance_scale: float,
        generator: torch.Generator | list[torch.Generator] | None,
        trajectory_length: int,
        leapfrog_step: float,
    ) -> torch.Tensor:
        """One trajectory of Hamiltonian dynamics (PGE, Equations 9 to 11), at the noise level that follows `step`.

        The noise is brought down to that level first. Fresh momentum `c ~ N(0, I)` then moves the images along
        `score(x; sigma) = (D(x; sigma) - x) / sigma^2` by leapfrog steps of length `l = leapfrog_step * sigma`:
        `c += l / 2 * score; x += l c; c += l / 2 * score`, halves merged. The last one would change the momentum alone
        and is left out. The first takes the denoised image of the level before, so that a trajectory calls the UNet as
        often as it has leapfrog steps. Nothing is rejected: a score has no known energy to compare.

        Args:
            latents (`torch.Tensor` of shape `[B, C, H, W]`): Their noise has standard deviation `sigmas[step]`.
            step (`int`): The index into `scheduler.sigmas`.

        Returns:
            `torch.Tensor` of shape `[B, C, H, W]`: At noise level `sigmas[step + 1]`; the denoised image where that is
            0.
        """
        sigmas = self.scheduler.sigmas.to(latents.device)
        sigma, next_sigma = sigmas[step], sigmas[step + 1]
        denoised = self.denoise(latents, sigma, class_labels, guidance_scale)
        if next_sigma == 0:
            return denoised
        latents = denoised + next_sigma / sigma * (latents - denoised)
        length = leapfrog_step * next_sigma
        momentum = randn_tensor(latents.shape, generator=generator, device=latents.device, dtype=latents.dtype)
        for number in range(trajectory_length):
            if number > 0:
                denoised = self.denoise(latents, next_sigma, class_labels, guidance_scale)
            part = length if number > 0 else length / 2
            momentum = momentum + part * (denoised - latents) / next_sigma**2
            latents = latents + length * momentum
        return latents

    def heun_step(
        self,
        latents: torch.Tensor,
        step: int,
        class_labels: torch.Tensor | None,
        guidance_scale: float,
        generator: torch.Generator | list[torch.Generator] | None,
        s_churn: float,
        s_min: float,
        s_max: float,
        s_noise: float,
    ) -> torch.Tensor:
        """One step of the stochastic sampler of Karras et al. 2022, Algorithm 2, from noise level `step` to the next.

        Args:
            latents (`torch.Tensor` of shape `[B, C, H, W]`): `x_i`, whose noise has standard deviation `t_i`.
            step (`int`): The index `i` into `scheduler.sigmas`, the `t` of Algorithm 2.

        Returns:
            `torch.Tensor` of shape `[B, C, H, W]`: `x_{i+1}`.
        """

        def slope(sample: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
            return (sample - self.denoise(sample, sigma, class_labels, guidance_scale)) / sigma

        sigmas = self.scheduler.sigmas.to(latents.device)
        sigma, next_sigma = sigmas[step], sigmas[step + 1]
        gamma = min(s_churn / (len(sigmas) - 1), math.sqrt(2) - 1) if s_min <= sigma <= s_max else 0.0
        if gamma > 0:
            noise = randn_tensor(latents.shape, generator=generator, device=latents.device, dtype=latents.dtype)
            sigma_hat = sigma * (1 + gamma)
            latents = latents + (sigma_hat**2 - sigma**2).sqrt() * s_noise * noise
            sigma = sigma_hat

        first = slope(latents, sigma)
        euler = latents + (next_sigma - sigma) * first
        if next_sigma == 0:
            return euler
        return latents + (next_sigma - sigma) * (first + slope(euler, next_sigma)) / 2

    @torch.no_grad()
    def __call__(
        self,
        batch_size: int | None = None,
        class_labels: int | str | list | torch.Tensor | None = None,
        generator: torch.Generator | list[torch.Generator] | None = None,
        num_inference_steps: int = 20,
        guidance_scale: float = 1.0,
        solver: str = "dpm",
        s_churn: float = 0.0,
        s_min: float = 0.0,
        s_max: float = float("inf"),
        s_noise: float = 1.0,
        sampler: str = "solver",
        trajectory_length: int = 3,
        leapfrog_step: float = 1.0,
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end: Callable[["DPImagePipeline", int, torch.Tensor, dict], dict[str, Any]] | None = None,
        callback_on_step_end_tensor_inputs: list[str] = ["latents"],
    ) -> ImagePipelineOutput | tuple:
        r"""
        The call function to the pipeline for generation.

        Args:
            batch_size (`int`, *optional*):
                The number of images to generate. Defaults to the number of labels in a list, else 1.
            class_labels (`int`, `str`, `list` or `torch.Tensor`, *optional*):
                Ids or names of classes, also in nested lists; one label holds for all images. If absent, the labels of
                a class-conditional model are drawn uniformly at random with `generator`.
            generator (`torch.Generator` or `list[torch.Generator]`, *optional*):
                Makes generation deterministic. With one generator per image, an image does not depend on the others in
                its batch.
            num_inference_steps (`int`, *optional*, defaults to 20):
                The number of noise levels, >= 1; a one-step generator takes one whatever is asked. The UNet is called
                once per step by `"dpm"` and twice by `"heun"` (once in the last step), and on twice as many rows with
                guidance.
            guidance_scale (`float`, *optional*, defaults to 1.0):
                Classifier-free guidance, >= 0: 1.0 is none, larger values follow the label more closely at the expense
                of variety, 0.0 ignores the label.
            solver (`str`, *optional*, defaults to `"dpm"`):
                `"dpm"` takes the steps of `scheduler`; `"heun"` is the stochastic sampler of Karras et al. 2022,
                Algorithm 2, on the noise levels of an EDM `scheduler`.
            s_churn (`float`, *optional*, defaults to 0.0):
                Of `"heun"`: amount of fresh noise over all steps; 0.0 is deterministic.
            s_min (`float`, *optional*, defaults to 0.0):
                Of `"heun"`: smallest noise level at which fresh noise is added.
            s_max (`float`, *optional*, defaults to infinity):
                Of `"heun"`: largest noise level at which fresh noise is added.
            s_noise (`float`, *optional*, defaults to 1.0):
                Of `"heun"`: standard deviation of the fresh noise.
            sampler (`str`, *optional*, defaults to `"solver"`):
                `"solver"` goes down the noise levels by `solver`. `"hmc"` samples by Hamiltonian dynamics at each
                noise level of an EDM `scheduler`, see `hmc_step`: the UNet is called `trajectory_length` times a step,
                and once in the last.
            trajectory_length (`int`, *optional*, defaults to 3):
                Of `"hmc"`: leapfrog steps at each noise level, >= 1.
            leapfrog_step (`float`, *optional*, defaults to 1.0):
                Of `"hmc"`: length of such a step, as a part of the noise level; above 0, and below 2, where it gets
                unstable.
            output_type (`str`, *optional*, defaults to `"pil"`):
                `"pil"` (list of `PIL.Image.Image`; mode L for one channel), `"np"` (`np.ndarray` of shape
                `[B, H, W, C]`) or `"pt"` (`torch.Tensor` of shape `[B, C, H, W]`), the latter two in [0, 1];
                `"latent"` are the latents of the last step, which `decode` makes images of.
            return_dict (`bool`, *optional*, defaults to `True`):
                Whether or not to return a [`~pipelines.ImagePipelineOutput`] instead of a plain tuple.
            callback_on_step_end (`Callable`, *optional*):
                Called after each step as `callback_on_step_end(self, step, timestep, callback_kwargs)`; returns a
                dictionary whose `latents`, if there, replace the latents. It may set `_guidance_scale` for the steps
                that follow, and `_interrupt` to leave them out. A [`PipelineCallback`] names its tensors itself.
            callback_on_step_end_tensor_inputs (`list[str]`, *optional*, defaults to `["latents"]`):
                Tensors that `callback_kwargs` holds; only `"latents"` exists.

        Example:

        ```py
        >>> import torch
        >>> from diffusers_dp.pipelines import DPImagePipeline

        >>> pipe = DPImagePipeline.from_pretrained("path/to/release")
        >>> images = pipe(class_labels=[0, 1, 2], generator=torch.Generator().manual_seed(0)).images
        ```

        Returns:
            [`~pipelines.ImagePipelineOutput`] or `tuple`:
                If `return_dict` is `True`, [`~pipelines.ImagePipelineOutput`] is returned, otherwise a `tuple` whose
                first element holds the generated images.

        Raises:
            `ValueError`: If the arguments cannot be served by this model; see `check_inputs`.
        """
        if isinstance(callback_on_step_end, (PipelineCallback, MultiPipelineCallbacks)):
            callback_on_step_end_tensor_inputs = callback_on_step_end.tensor_inputs
        batch_size = self.check_inputs(
            batch_size,
            class_labels,
            generator,
            num_inference_steps,
            guidance_scale,
            solver,
            s_churn,
            output_type,
            callback_on_step_end_tensor_inputs,
            sampler,
            trajectory_length,
            leapfrog_step,
        )
        self._guidance_scale, self._interrupt = guidance_scale, False

        # Noise comes before labels, so that a seed gives the same noise whether or not labels are drawn.
        latents = self.prepare_latents(batch_size, generator)
        labels = self.prepare_class_labels(batch_size, class_labels, generator)

        if self.is_one_step:
            num_inference_steps = 1
        self.scheduler.set_timesteps(num_inference_steps, device=self._execution_device)
        self._num_timesteps = len(self.scheduler.timesteps)
        # Solvers take differences of close numbers over many steps: keep the state in full precision.
        on_levels = solver == "heun" or sampler == "hmc"
        latents = latents.float() * (self.scheduler.sigmas[0] if on_levels else self.scheduler.init_noise_sigma)

        # Not every scheduler draws noise of its own.
        takes_generator = "generator" in inspect.signature(self.scheduler.step).parameters
        step_arguments = {"generator": generator} if takes_generator else {}
        for i, t in enumerate(self.progress_bar(self.scheduler.timesteps)):
            if self.interrupt:
                continue
            scale = self.guidance_scale
            if solver == "heun":
                latents = self.heun_step(latents, i, labels, scale, generator, s_churn, s_min, s_max, s_noise)
            elif sampler == "hmc":
                latents = self.hmc_step(latents, i, labels, scale, generator, trajectory_length, leapfrog_step)
            else:
                model_input = self.scheduler.scale_model_input(latents, t)
                # Some schedulers return the type of this output, which would round the latents of each step.
                model_output = self.predict(model_input, t, labels, scale).to(latents.dtype)
                latents = self.scheduler.step(model_output, t, latents, **step_arguments).prev_sample

            if callback_on_step_end is not None:
                callback_kwargs = {}
                for name in callback_on_step_end_tensor_inputs:
                    callback_kwargs[name] = locals()[name]
                callback_outputs = callback_on_step_end(self, i, t, callback_kwargs)
                latents = callback_outputs.pop("latents", latents)

        image = latents if output_type == "latent" else (self.decode(latents) / 2 + 0.5).clamp(0, 1)
        if output_type in ("np", "pil"):
            image = image.cpu().permute(0, 2, 3, 1).float().numpy()
            if output_type == "pil":
                image = self.numpy_to_pil(image)

        # Offload all models
        self.maybe_free_model_hooks()

        if not return_dict:
            return (image,)

        return ImagePipelineOutput(images=image)
