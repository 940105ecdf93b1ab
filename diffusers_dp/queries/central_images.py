"""Spatial features: noisy central images per class, by mean (DP-FETA Algorithm 1, FETA-Pro Equation 7) or mode (DP-FETA Algorithm 2)."""

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageFilter

from ..accounting.ledger import PrivacyLedger
from ..privacy.sensitive import SensitiveImages


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


def mode_image_facts(image_shape: tuple[int, ...]) -> dict:
    """As `central_image_facts`, for mode images: the clip norm is `sqrt(d)`, for an image adds one vote to one bin of each of `d` values
    (DP-FETA Theorem 3.3)."""
    facts = central_image_facts(image_shape)
    return {**facts, "clip_norm": 2 * facts["clip_norm"]}


def noisy_pixel_histograms(
    images: SensitiveImages,
    *,
    num_bins: int,
    num_images: int,
    sample_rate: float,
    noise_multiplier: float,
    ledger: PrivacyLedger,
) -> torch.Tensor:
    """Ask for `num_images` noisy histograms of every value of the small images of each class (DP-FETA Section 3.1.2).

    Each is the sum of a Poisson sample's votes, plus noise, over the expected number of images of a class, `q N / classes`. Bin k of
    1, ..., `num_bins` holds the values in `((k - 1) / num_bins, k / num_bins]`, the first bin 0 as well. Sensitivity: the clip norm
    `sqrt(d)`, which every image has, so that clipping scales none of them down.

    Args:
        num_bins (`int`): From 2 to 256.
        num_images (`int`): Histograms per class; each costs one composition.
        sample_rate (`float`): q of each Poisson sample.
        noise_multiplier (`float`): sigma.

    Returns:
        `torch.Tensor` of shape `[num_images, classes, C, h, w, num_bins]`, float32: shares of votes, about [0, 1], noisy.

    Raises:
        BudgetExceeded: The answer would exceed the budget.
    """
    facts = mode_image_facts(images.image_shape)
    channels, height, width = images.image_shape
    stride = facts["stride"]
    classes = len(images.class_names) if images.class_names is not None else 1
    normaliser = sample_rate * images.num_units / classes

    def votes(x: torch.Tensor) -> torch.Tensor:
        levels = (x[:, :, ::stride, ::stride] * 255).round().long()  # whole numbers, for which a bin's border is exact
        bins = (levels * num_bins - 1).clamp_min(0).div(255, rounding_mode="floor")
        return F.one_hot(bins, num_bins).to(x.dtype).flatten(1)

    answer = images.noisy_sum(
        votes,
        clip_norm=facts["clip_norm"],
        noise_multiplier=noise_multiplier,
        sample_rate=sample_rate,
        by_label=True,
        name="mode_images",
        ledger=ledger,
        repeats=num_images,
        query={"normaliser": normaliser, "stride": stride, "num_bins": num_bins},
    )
    small = (channels, len(range(0, height, stride)), len(range(0, width, stride)))
    return answer.div(normaliser).unflatten(2, (*small, num_bins))


def mode_images(histograms: torch.Tensor) -> torch.Tensor:
    """The middle of the fullest bin of each value, `(2 k - 1) / (2 num_bins)` (DP-FETA Equation 7). Post-processing of a noisy answer.

    Args:
        histograms (`torch.Tensor` of shape `[..., num_bins]`): As `noisy_pixel_histograms` gives them.

    Returns:
        `torch.Tensor` of shape `[...]`, float32, in (0, 1): small images, for `restore_central_images`.
    """
    return (histograms.argmax(-1) + 0.5) / histograms.shape[-1]


def restore_central_images(noisy: torch.Tensor, image_shape: tuple[int, ...]) -> torch.Tensor:
    """Noisy small central images to images of full size: clamp, bilinear up-sampling, 8 bits, then (where they were shrunk) a
    3x3 median filter and, for grey images, a 3x3 sharpening filter. Post-processing of a noisy answer.

    Args:
        noisy (`torch.Tensor` of shape `[n, C, h, w]`): As `noisy_central_images` or `mode_images` give them, flattened over classes.

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
