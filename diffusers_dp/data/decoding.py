"""One image file -> one uint8 array of the declared shape, or nothing; no image has a say in another's."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from .medical import is_medical, open_medical


#: Above it an image is not decoded: 64 Mi pixels, more than nearly all cameras have; a decoder takes up to about a
#: dozen bytes for each.
MAX_IMAGE_PIXELS = 2**26
_BAND = 2**20  # pixels that are scaled at a time
IMAGE_SUFFIXES = frozenset(".bmp .gif .jfif .jpe .jpeg .jpg .pbm .pgm .png .pnm .ppm .tga .tif .tiff .webp".split())


#: Grey values that become black and white, of images with more than 8 bits.
ValueRange = tuple[float, float]


def is_image(path: Path, suffixes: tuple[str, ...] | None = None) -> bool:
    return path.name.lower().endswith(suffixes or tuple(IMAGE_SUFFIXES))


def decode_image(
    source: bytes | Path | Image.Image | None,
    shape: tuple[int, int, int],
    max_pixels: int = MAX_IMAGE_PIXELS,
    value_range: ValueRange | None = None,
) -> np.ndarray | None:
    """
    Decodes an image, turns it upright, converts its mode, resizes its shorter side and crops its centre.

    The colours of a palette are looked up, an alpha channel is dropped, of several frames the first counts. Images of
    16 and 32 bits per pixel are read as 0..65535, floating-point ones as 0..1, or as 0..255 where they exceed 1; where
    a range is declared, as that. DICOM and NIfTI files are read in a declared range alone (`open_medical`).

    Args:
        source (`bytes`, `Path` or `PIL.Image.Image`, *optional*): The encoded image, its file, or an opened one.
        shape (`tuple[int, int, int]`): The wanted (channels, height, width), with 1 or 3 channels.
        max_pixels (`int`): An encoded image whose header tells of more is not decoded.
        value_range (`tuple[float, float]`, *optional*): What is black and what is white, the lower one first, of
            images with more than 8 bits; values beyond are these. Declared: a range taken from the images would tell
            of them.

    Returns:
        `np.ndarray` of shape `shape`, uint8, or `None` where the image is absent, unreadable, too large or not finite.
    """
    if source is None:
        return None
    channels, height, width = shape
    with _silence():
        try:
            opened = source if isinstance(source, Image.Image) else _open(source, max_pixels, value_range)
            image = _to_8_bits(opened, value_range)
            if image is None:
                return None
            image = image.convert("L" if channels == 1 else "RGB")
            image = ImageOps.fit(image, (width, height), method=Image.Resampling.LANCZOS)
            return np.asarray(image, dtype=np.uint8).reshape(height, width, channels).transpose(2, 0, 1)
        except Exception:  # a damaged file raises almost anything; whatever it is, this image contributes nothing
            return None


def decode_as_it_is(
    source: bytes | Path | Image.Image | None,
    max_pixels: int = MAX_IMAGE_PIXELS,
    value_range: ValueRange | None = None,
) -> np.ndarray | None:
    """
    Decodes an image without resizing it: upright, 8 bits, grey modes with one channel and all others as RGB.

    Args:
        source (`bytes`, `Path` or `PIL.Image.Image`, *optional*): The encoded image, its file, or an opened one.
        max_pixels (`int`), value_range (`tuple[float, float]`, *optional*): As in `decode_image`.

    Returns:
        `np.ndarray` of shape `[C, H, W]`, uint8, or `None` where the image is absent, unreadable, too large or not
        finite.
    """
    if source is None:
        return None
    with _silence():
        try:
            opened = source if isinstance(source, Image.Image) else _open(source, max_pixels, value_range)
            image = _to_8_bits(opened, value_range)
            if image is None:
                return None
            image = image.convert("L" if image.mode in ("1", "L", "LA", "La") else "RGB")
            return np.asarray(image, dtype=np.uint8).reshape(image.height, image.width, -1).transpose(2, 0, 1)
        except Exception:  # as in `decode_image`
            return None


def header_of(source: bytes | Path | Image.Image | None) -> tuple[int, int, str] | None:
    """Width, height and mode as the header of a picture says them; `None` where there is none, or of a scan."""
    if source is None or not isinstance(source, Image.Image) and is_medical(source):
        return None
    if isinstance(source, Image.Image):
        return source.width, source.height, source.mode
    with _silence():
        try:
            with Image.open(BytesIO(source) if isinstance(source, bytes) else source) as image:
                return image.width, image.height, image.mode
        except Exception:  # as in `decode_image`
            return None


def _open(source: bytes | Path, max_pixels: int, value_range: ValueRange | None) -> Image.Image:
    """Raises `ValueError` before anything is decoded where the header tells of too many pixels. Pillow's own limit,
    which it has for all that a process opens, gives way to ours."""
    if is_medical(source):
        return open_medical(source, max_pixels, value_range)
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, max_pixels
    try:
        with Image.open(BytesIO(source) if isinstance(source, bytes) else source) as image:
            if image.width * image.height > max_pixels:
                raise ValueError("The image has too many pixels.")
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            return image
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _to_8_bits(image: Image.Image, value_range: ValueRange | None) -> Image.Image | None:
    """Scales modes that PIL's `convert` would clip; `None` where a value is not finite."""
    if image.mode == "F":
        values = np.asarray(image)
        if not np.isfinite(values).all():
            return None
        black, white = value_range or (0.0, 1.0 if values.max() <= 1 else 255.0)
    elif image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image)
        black, white = value_range or (0.0, 65535.0)
    else:
        return image
    scaled = np.empty(values.shape, dtype=np.uint8)
    rows = max(1, _BAND // values.shape[1])  # eight bytes a pixel, so not all at once
    for start in range(0, len(values), rows):
        band = (values[start : start + rows].astype(np.float64) - black) * 255 / (white - black)
        scaled[start : start + rows] = np.rint(band.clip(0, 255))
    return Image.fromarray(scaled)


@contextmanager
def _silence() -> Iterator[None]:
    """Mutes warnings and the standard error of C libraries, so that a damaged image leaves no line in a log."""
    sys.stderr.flush()
    stderr = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)
