from .central_images import (
    central_image_facts,
    mode_image_facts,
    mode_images,
    noisy_central_images,
    noisy_pixel_histograms,
    restore_central_images,
)
from .frequency import RandomFourierFeatures, noisy_frequency_features


__all__ = [
    "RandomFourierFeatures",
    "central_image_facts",
    "mode_image_facts",
    "mode_images",
    "noisy_central_images",
    "noisy_frequency_features",
    "noisy_pixel_histograms",
    "restore_central_images",
]
