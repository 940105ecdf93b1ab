# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Class names drawn in fonts, as candidates of Private Evolution (Sim-PE, Lin et al. 2025). No model is learned from
images."""

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from ..errors import UsageError
from ..files.untrusted_files import read_bounded
from .variations import CandidateGenerator, seeded


FINER = 4  # supersampling factor, for smooth edges
MOST_FONT = 2**26  # bytes
LARGEST_ANGLE, LEAST_SIZE = 25.0, 0.5  # degrees; share of the side
NUM_NUMBERS = 7  # font, size, angle, slant, stroke, shift right and down, each in [0, 1]


@dataclass
class FontCandidates(CandidateGenerator):
    """
    Candidates of seven numbers in [0, 1]: font, size, angle, slant, stroke, and the position in both directions.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W).
        class_names (sequence of `str`): Texts to draw.
        fonts (sequence of `bytes`): Font files; see `find_fonts`.
        facts, public_inputs: See `CandidateGenerator`.
    """

    image_shape: tuple[int, ...]
    class_names: Sequence[str]
    fonts: Sequence[bytes]

    def initial(self, labels: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
        """Draws uniform candidates `[m, 7]`."""
        return torch.rand(len(labels), NUM_NUMBERS, generator=seeded(seeds[0]))

    def vary(
        self, candidates: torch.Tensor, labels: torch.Tensor, strength: float, seeds: torch.Tensor
    ) -> torch.Tensor:
        """Moves each number by up to the strength, reflected at 0 and 1; redraws the font with that probability."""
        generator = seeded(seeds[0])
        moved = candidates + strength * (2 * torch.rand(candidates.shape, generator=generator) - 1)
        moved = 1 - (1 - moved.abs()).abs()
        luck, font = torch.rand(2, len(candidates), generator=generator)
        moved[:, 0] = torch.where(luck < strength, font, candidates[:, 0])
        return moved.clamp(0, 1)

    def images(self, candidates: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        channels = self.image_shape[0]
        drawn = [self._draw(row, self.class_names[label]) for row, label in zip(candidates.tolist(), labels.tolist())]
        return torch.from_numpy(np.stack(drawn))[:, None].expand(-1, channels, -1, -1).contiguous()

    def _draw(self, numbers: list[float], text: str) -> np.ndarray:
        """Draws white on black, `[H, W]`."""
        font, size, angle, slant, stroke, right, down = numbers
        height, width = (FINER * side for side in self.image_shape[1:])
        pixels = (LEAST_SIZE + (1 - LEAST_SIZE) * size) * height
        content = self.fonts[min(int(font * len(self.fonts)), len(self.fonts) - 1)]
        face = ImageFont.truetype(BytesIO(content), max(4, round(pixels)))
        if (length := face.getlength(text)) > 0.9 * width:  # a word
            face = ImageFont.truetype(BytesIO(content), max(4, round(pixels * 0.9 * width / length)))
        canvas = Image.new("L", (width, height))
        centre = (width * (0.5 + (right - 0.5) / 4), height * (0.5 + (down - 0.5) / 4))
        ImageDraw.Draw(canvas).text(centre, text, 255, face, "mm", stroke_width=round(stroke * FINER * height / 100))
        shear = (slant - 0.5) * 0.8
        canvas = canvas.transform(
            canvas.size, Image.Transform.AFFINE, (1, shear, -shear * height / 2, 0, 1, 0), Image.Resampling.BILINEAR
        )
        canvas = canvas.rotate(LARGEST_ANGLE * (2 * angle - 1), Image.Resampling.BILINEAR)
        return np.asarray(canvas.resize((self.image_shape[2], self.image_shape[1]), Image.Resampling.BOX))


def find_fonts(folder: str | None) -> tuple[list[bytes], list[str]]:
    """
    Finds font files and their names: those in a folder, or Pillow's default font and, if Matplotlib is installed, its
    text fonts.

    Raises:
        UsageError: The folder has no fonts, or a font cannot be read.
    """
    if folder is not None:
        paths = sorted(
            path for path in Path(os.path.expanduser(folder)).glob("*") if path.suffix.lower() in (".ttf", ".otf")
        )
        if not paths:
            raise UsageError(
                f"{folder} holds no fonts (.ttf, .otf); give another folder, or leave it out.", field="font_dir"
            )
    else:
        found = importlib.util.find_spec("matplotlib")
        data = None if found is None or found.origin is None else Path(found.origin).parent / "mpl-data/fonts/ttf"
        # Its display fonts have no lower case.
        paths = [] if data is None else sorted(
            path for path in data.glob("DejaVu*.ttf") if "Display" not in path.name
        )  # fmt: skip
    fonts, names = [], []
    for path in paths:
        try:
            fonts.append(read_bounded(path, MOST_FONT))
            ImageFont.truetype(BytesIO(fonts[-1]), 10)
        except (OSError, ValueError):
            raise UsageError(
                f"holds {path.name}, which is not a readable font; remove it.", field="font_dir"
            ) from None
        names.append(path.name)
    if folder is None:
        own = ImageFont.load_default(10)
        content = getattr(own, "font_bytes", None)
        if content:
            fonts.append(content)
            names.append("Pillow's own font")
    if not fonts:
        raise UsageError("No fonts were found: give a folder of fonts with --font_dir.")
    return fonts, names
