"""Spatial features: noisy central images per class (DP-FETA Algorithm 1, FETA-Pro Equation 7)."""

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageFilter

from ..ledger import PrivacyLedger
from ..sensitive import SensitiveImages


# Query images are shrunk to about this many pixels a side: averages hold no finer detail, and noise grows with pixels.
QUERY_SIZE = 16


def central_image_facts(image_shape: tuple[int, ...]) -> dict:
    """Public facts of the query: stride of the down-sampling and the clip norm `sqrt(d) / 2` of the small image, where `d`
    is its number of values in [0, 1] (a grey image of value 1/2 has that norm)."""
    channels, height, width = image_shape
    stride = max(1, round(height / QUERY_SIZE))
    small = channels * len(range(0, height, stride)) * len(range(0, width, stride))
    return {"stride": stride, "clip_norm": small**0.5 / 2}


def noisy_central_images(
    images: SensitiveImages,
    *,
    num_images: int,
    sample_rate: float,
    noise_multiplier: float,
    ledger: PrivacyLedger,
) -> torch.Tensor:
    """Ask for `num_images` noisy central images of each class.

    Each is the sum of a Poisson sample's small, clipped images, plus noise, over the expected number of images of a class,
    `q N / classes`. Sensitivity: the clip norm, for an image lies in one class.

    Args:
        num_images (`int`): Central images per class; each costs one composition.
        sample_rate (`float`): q of each Poisson sample.
        noise_multiplier (`float`): sigma.

    Returns:
        `torch.Tensor` of shape `[num_images, classes, C, h, w]`, float32, about [0, 1]: noisy, still small.

    Raises:
        BudgetExceeded: The answer would exceed the budget.
    """
    facts = central_image_facts(images.image_shape)
    channels, height, width = images.image_shape
    stride = facts["stride"]
    classes = len(images.class_names) if images.class_names is not None else 1
    normaliser = sample_rate * images.num_units / classes
    answer = images.noisy_sum(
        lambda x: x[:, :, ::stride, ::stride].flatten(1),
        clip_norm=facts["clip_norm"],
        noise_multiplier=noise_multiplier,
        sample_rate=sample_rate,
        by_label=True,
        name="central_images",
        ledger=ledger,
        repeats=num_images,
        query={"normaliser": normaliser, "stride": stride},
    )
    small = (channels, len(range(0, height, stride)), len(range(0, width, stride)))
    return answer.div(normaliser).unflatten(2, small)


def restore_central_images(noisy: torch.Tensor, image_shape: tuple[int, ...]) -> torch.Tensor:
    """Noisy small central images to images of full size: clamp, bilinear up-sampling, 8 bits, then (where they were shrunk) a
    3x3 median filter and, for grey images, a 3x3 sharpening filter. Post-processing of a noisy answer.

    Args:
        noisy (`torch.Tensor` of shape `[n, C, h, w]`): As `noisy_central_images` gives them, flattened over classes.

    Returns:
        `torch.Tensor` of uint8, shape `[n, C, H, W]`.
    """
    channels, height, width = image_shape
    images = F.interpolate(noisy.clamp(0, 1).cpu(), size=(height, width), mode="bilinear", align_corners=False)
    images = images.mul(255).round().byte()
    if noisy.shape[-2:] == (height, width):
        return images
    restored = []
    for image in images:
        array = image.permute(1, 2, 0).numpy()
        picture = Image.fromarray(array[:, :, 0] if channels == 1 else array).filter(ImageFilter.MedianFilter(3))
        if channels == 1:
            picture = picture.filter(ImageFilter.Kernel((3, 3), (0, -1, 0, -1, 5, -1, 0, -1, 0)))
        restored.append(torch.from_numpy(np.array(picture).reshape(height, width, channels)).permute(2, 0, 1))
    return torch.stack(restored)
