from .ddim import DDIMGenerator, ddim_images
from .denoiser import EDMDenoiser, EDMLoss
from .feature_generator import FeatureGenerator, frequency_matching_loss
from .unet import count_parameters, unet_config


__all__ = [
    "DDIMGenerator",
    "EDMDenoiser",
    "EDMLoss",
    "FeatureGenerator",
    "count_parameters",
    "ddim_images",
    "frequency_matching_loss",
    "unet_config",
]
