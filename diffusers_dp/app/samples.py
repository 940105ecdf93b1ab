# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The sample picture of a release, reduced for a page. It may be a stranger's file, so only PNG files with a bounded
number of pixels are decoded."""

from functools import cache
from io import BytesIO
from pathlib import Path

from PIL import Image

from ..files.untrusted_files import read_bounded
from ..release.image_tables import to_png


NAME = "samples.png"
MOST_BYTES, MOST_PIXELS = 2**26, 2**25
WIDTH, HEIGHT = 1200, 1200  # pixels shown; rows below are left out


@cache
def samples_of(folder: Path) -> bytes | None:
    """Returns a PNG of the first rows, or `None` if the release has no picture that can be shown."""
    try:
        with Image.open(BytesIO(read_bounded(folder / NAME, MOST_BYTES)), formats=("PNG",)) as image:
            if image.width * image.height > MOST_PIXELS:
                return None
            shown = image.convert("L" if image.mode in ("1", "L") else "RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    shown.thumbnail((WIDTH, shown.height))
    return to_png(shown.crop((0, 0, shown.width, min(shown.height, HEIGHT))))
