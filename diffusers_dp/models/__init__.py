from .ddim import DDIMGenerator, ddim_images
from .ddpm import DDPMDenoiser, DDPMImageDenoiser, DDPMLoss, linear_schedule
from .denoiser import Denoiser, EDMDenoiser, EDMLoss
from .feature_generator import FeatureGenerator, frequency_matching_loss
from .objective import Scheduler, TrainingLoss, build_objective, noise_schedule
from .one_step import OneStepGenerator, one_step_scheduler
from .row_augmentation import AugmentedLoss
from .unet import unet_config


__all__ = [
    "DDIMGenerator",
    "AugmentedLoss",
    "DDPMDenoiser",
    "DDPMImageDenoiser",
    "DDPMLoss",
    "Denoiser",
    "EDMDenoiser",
    "EDMLoss",
    "FeatureGenerator",
    "OneStepGenerator",
    "Scheduler",
    "TrainingLoss",
    "build_objective",
    "ddim_images",
    "frequency_matching_loss",
    "linear_schedule",
    "noise_schedule",
    "one_step_scheduler",
    "unet_config",
]
