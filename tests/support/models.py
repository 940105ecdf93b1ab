# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tiny networks, and the perfect predictor for data in closed form."""

import torch
from diffusers import UNet2DModel
from diffusers.models.unets.unet_2d import UNet2DOutput

from diffusers_dp.models.denoiser import DDPMDenoiser, EDMDenoiser, linear_schedule
from diffusers_dp.randomness.timestep_mixture import TimestepMixture


MIXTURE = TimestepMixture([0.0, 200.0, 800.0, 1000.0], [0.05, 0.9, 0.05])
SIGMA_DATA = 0.577


def unet_config(num_classes=None, patch_size=1, channels=1):
    return {
        "sample_size": 8 // patch_size,
        "in_channels": channels * patch_size**2,
        "out_channels": channels * patch_size**2,
        "block_out_channels": (4, 8),
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        "layers_per_block": 1,
        "attention_head_dim": 4,
        "norm_num_groups": 4,
        "num_class_embeds": None if num_classes is None else num_classes + 1,
    }


def convolutional_unet(sample_size=8, block_out_channels=(4, 8), norm_num_groups=2):
    """For three classes, without attention."""
    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=sample_size, block_out_channels=block_out_channels, norm_num_groups=norm_num_groups, in_channels=1,
        out_channels=1, layers_per_block=1, down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2,
        add_attention=False, num_class_embeds=4,
    )  # fmt: skip


def make_denoiser(patch_size=1, num_classes=3, sigma_data=SIGMA_DATA):
    torch.manual_seed(0)
    return EDMDenoiser(
        UNet2DModel(**unet_config(num_classes, patch_size, channels=2)).eval(), sigma_data, patch_size=patch_size
    )


class Recorder:
    """What a UNet was given and gave."""

    def __init__(self, unet):
        self.handle = unet.register_forward_hook(self, with_kwargs=True)

    def __call__(self, module, inputs, keywords, output):
        self.sample, self.noise_level, self.labels = inputs[0], inputs[1], keywords["class_labels"]
        self.output = output.sample


def make_ddpm(patch_size=1, num_classes=3, scheduler=None):
    return DDPMDenoiser(
        make_denoiser(patch_size, num_classes).unet, scheduler or linear_schedule(), patch_size=patch_size
    )


class GaussianPredictor(UNet2DModel):
    """The perfect predictor of the noise, of the image or of the velocity for pixels `N(mean[label], std^2)`: linear
    regression on `x_t = sqrt(abar_t) x_0 + sqrt(1 - abar_t) epsilon` (Ho et al. 2020, Equation 4). It is right only if
    it is given `x_t` and `t`."""

    std = 0.2

    def prepare(self, means, scheduler):
        self.means, self.scheduler = means, scheduler
        return self

    def forward(self, sample, timestep, class_labels=None):
        assert timestep.ndim == 0
        alpha = self.scheduler.alphas_cumprod[int(timestep)]
        mean = self.means[torch.zeros(len(sample), dtype=torch.long) if class_labels is None else class_labels]
        deviation = sample - alpha.sqrt() * mean
        variance = alpha * self.std**2 + 1 - alpha
        image = mean + alpha.sqrt() * self.std**2 / variance * deviation
        noise = (1 - alpha).sqrt() / variance * deviation
        velocity = alpha.sqrt() * noise - (1 - alpha).sqrt() * image
        predictions = {"epsilon": noise, "sample": image, "v_prediction": velocity}
        return UNet2DOutput(sample=predictions[self.scheduler.config.prediction_type])
