from .ddpm import DDPMDenoiser, DDPMImageDenoiser, DDPMLoss, linear_schedule
from .denoiser import EDMDenoiser, EDMLoss
from .feature_generator import FeatureGenerator, frequency_matching_loss
from .unet import count_parameters, unet_config


__all__ = [
    "DDPMDenoiser",
    "DDPMImageDenoiser",
    "DDPMLoss",
    "EDMDenoiser",
    "EDMLoss",
    "FeatureGenerator",
    "count_parameters",
    "frequency_matching_loss",
    "linear_schedule",
    "unet_config",
]
