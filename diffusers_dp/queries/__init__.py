from .central_images import central_image_facts, noisy_central_images, restore_central_images
from .frequency import RandomFourierFeatures, noisy_frequency_features


__all__ = [
    "RandomFourierFeatures",
    "central_image_facts",
    "noisy_central_images",
    "noisy_frequency_features",
    "restore_central_images",
]
