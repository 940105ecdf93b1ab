"""The augmentation bag of the spatial warm-up, RandAugment's 14 operations in PIL, and deformations of drawn images.

The bag varies the few noisy central images, so that the model does not memorise them. **Both only process noisy
answers**, which are public by post-processing, and therefore draw from the public `--seed`. They never see a sensitive
image.

Operations and ranges follow RandAugment (https://huggingface.co/papers/1909.13719) with the 31 magnitude bins of
common implementations; FETA-Pro draws a new magnitude for every fetch.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps


NUM_BINS, LEAST_BIN, LARGEST_BIN = 31, 1, 9  # of magnitudes, and those that are drawn
NUM_OPS = 2  # of an image
MAX_SHEAR = 0.3
MAX_TRANSLATION = 150 / 331  # share of the image's side
MAX_DEGREES = 30.0
MAX_ENHANCEMENT = 0.9
BITS_PER_PIXEL = 8
#: Deformations of strength 1: the largest turn in radians, scaling, and shift in half sides; the standard deviation of
#: bends, in half sides, and their number on a side; images deformed at once.
MOST_DEFORMED, BEND, BENDS, DEFORMED_AT_ONCE = (math.pi / 12, 0.15, 1 / 7, 1 / 7), 1 / 14, 5, 1000

Operation = Callable[[Image.Image, float, int], Image.Image]


def _affine(image: Image.Image, matrix: tuple[float, float, float, float, float, float]) -> Image.Image:
    # Bilinear because on images this small, nearest-neighbour sampling would round most shears and translations to 0.
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=0)


def _rotate(image: Image.Image, strength: float, sign: int) -> Image.Image:
    return image.rotate(sign * strength * MAX_DEGREES, Image.Resampling.BILINEAR, fillcolor=0)


def _posterize(image: Image.Image, strength: float, sign: int) -> Image.Image:
    return ImageOps.posterize(image, BITS_PER_PIXEL - round(4 * strength))


def _enhance(enhancer: Callable[[Image.Image], Any]) -> Operation:
    return lambda image, strength, sign: enhancer(image).enhance(1 + sign * strength * MAX_ENHANCEMENT)


# Each takes an image of mode L or RGB, a strength in [0, 1] and a sign, and returns the same mode and size.
OPERATIONS: dict[str, Operation] = {
    "identity": lambda image, strength, sign: image,
    "autocontrast": lambda image, strength, sign: ImageOps.autocontrast(image),
    "equalize": lambda image, strength, sign: ImageOps.equalize(image),
    "rotate": _rotate,
    "solarize": lambda image, strength, sign: ImageOps.solarize(image, round(255 * (1 - strength))),
    "color": _enhance(ImageEnhance.Color),
    "posterize": _posterize,
    "contrast": _enhance(ImageEnhance.Contrast),
    "brightness": _enhance(ImageEnhance.Brightness),
    "sharpness": _enhance(ImageEnhance.Sharpness),
    "shear_x": lambda image, strength, sign: _affine(image, (1, sign * strength * MAX_SHEAR, 0, 0, 1, 0)),
    "shear_y": lambda image, strength, sign: _affine(image, (1, 0, 0, sign * strength * MAX_SHEAR, 1, 0)),
    "translate_x": lambda image, strength, sign: _affine(
        image, (1, 0, sign * strength * MAX_TRANSLATION * image.width, 0, 1, 0)
    ),
    "translate_y": lambda image, strength, sign: _affine(
        image, (1, 0, 0, 0, 1, sign * strength * MAX_TRANSLATION * image.height)
    ),
}


def deformed(images: torch.Tensor, strength: float, generators: Sequence[torch.Generator]) -> torch.Tensor:
    """
    Turns, scales, shifts and bends each image at random (Simard et al., ICDAR 2003, has the bends).

    Args:
        images (`torch.Tensor` of uint8, shape `[m, C, H, W]`): Drawn images.
        strength (`float`): 1 turns by up to 15 degrees, scales by up to 0.15, and shifts by up to a fourteenth of the
            side; bends have a standard deviation of a 28th of the shorter one.
        generators (sequence of `torch.Generator`): Public, one for each image.

    Returns:
        `torch.Tensor` of uint8, shape `[m, C, H, W]`; the borders are repeated outwards.
    """
    wide, high = (min(images.shape[2:]) / side for side in images.shape[:1:-1])  # 1 of a square
    most, bend, parts = strength * torch.tensor(MOST_DEFORMED), strength * BEND * torch.tensor([wide, high]), []
    for start, part in zip(range(0, len(images), DEFORMED_AT_ONCE), images.split(DEFORMED_AT_ONCE), strict=True):
        own = generators[start : start + len(part)]
        turn, scaling, x, y = (most * (2 * torch.stack([torch.rand(4, generator=each) for each in own]) - 1)).T
        cos, sin = (1 + scaling) * turn.cos(), (1 + scaling) * turn.sin()
        maps = torch.stack([cos, -sin * wide / high, x, sin * high / wide, cos, y], 1).unflatten(1, (2, 3))
        bends = torch.stack([torch.randn(2, BENDS, BENDS, generator=each) for each in own]) * bend[:, None, None]
        bent = F.interpolate(bends, size=part.shape[2:], mode="bicubic", align_corners=True).permute(0, 2, 3, 1)
        grid = F.affine_grid(maps, list(part.shape), align_corners=False) + bent
        moved = F.grid_sample(part.float(), grid, mode="bicubic", padding_mode="border", align_corners=False)
        parts.append(moved.clamp(0, 255).round().byte())
    return torch.cat(parts)


class AugmentationBag:
    """
    Applies two operations, drawn uniformly with replacement, to each image. One magnitude is drawn for each
    image and shared by its operations; each operation draws its own sign.

    Strength = bin / 30. It scales shear from 0 to 0.3, translation from 0 to 150/331 of the side, and rotation from 0
    to 30 degrees. Brightness, color, contrast and sharpness change by a factor of 1 +- 0 to 0.9. Posterize keeps 8 to
    4 bits; solarize thresholds go from 255 to 0. Uncovered pixels are black. PIL's equalize does not change images of
    fewer than 256 pixels.

    Args:
        generator (`np.random.Generator`): Generator seeded with the public `--seed`; it alone determines the images.
    """

    def __init__(self, generator: np.random.Generator):
        self.generator = generator

    def draw(self) -> list[tuple[str, float, int]]:
        """Draws the next image's operations: (name, strength in [0, 1], sign) of each."""
        strength = float(self.generator.integers(LEAST_BIN, LARGEST_BIN + 1)) / (NUM_BINS - 1)
        names = list(OPERATIONS)
        picks = self.generator.integers(len(names), size=NUM_OPS)
        signs = 2 * self.generator.integers(2, size=NUM_OPS) - 1
        return [(names[pick], strength, int(sign)) for pick, sign in zip(picks, signs, strict=True)]

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """
        Args:
            images (`torch.Tensor` of uint8, shape `[B, C, H, W]`): Noisy central images, C = 1 (grey) or 3 (RGB).

        Returns:
            `torch.Tensor` of uint8, shape `[B, C, H, W]`, on the device of `images`; `images` are not changed.
        """
        augmented = torch.empty_like(images, device="cpu")
        for index, image in enumerate(images.cpu()):
            pixels = image.permute(1, 2, 0).numpy()
            picture = Image.fromarray(pixels[..., 0] if len(image) == 1 else pixels)
            for name, strength, sign in self.draw():
                picture = OPERATIONS[name](picture, strength, sign)
            augmented[index] = (
                torch.from_numpy(np.array(picture)).reshape(*image.shape[1:], len(image)).permute(2, 0, 1)
            )
        return augmented.to(images.device)
