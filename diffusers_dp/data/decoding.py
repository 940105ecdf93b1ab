"""One image file -> one uint8 array of the declared shape, or nothing; no image has a say in another's."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from ..files.standard_error import silent_standard_error
from .layouts import EIGHT_BITS, NO_RANGE, NotRead, layout_of, open_picture, upright
from .medical import is_medical, open_medical


#: Above it an image is not decoded: 64 Mi pixels, more than nearly all cameras have; a decoder takes up to about a
#: dozen bytes for each.
MAX_IMAGE_PIXELS = 2**26
_BAND = 2**20  # pixels that are scaled at a time
IMAGE_SUFFIXES = frozenset(
    ".avif .bmp .gif .j2k .jfif .jp2 .jpe .jpeg .jpg .pbm .pgm .png .pnm .ppm .tga .tif .tiff .webp".split()
)
ABSENT = "no image in the record: a line without its file, a file without its line, or a damaged line"
TOO_LARGE = "more pixels than --max_image_pixels"
NOT_FINITE, DAMAGED = "values that are no numbers", "damaged, or of a format that is not read"


#: Grey values that become black and white, of images with more than 8 bits.
ValueRange = tuple[float, float]
Encoded = bytes | Path | Image.Image | None


def is_image(path: Path, suffixes: tuple[str, ...] | None = None) -> bool:
    return path.name.lower().endswith(suffixes or tuple(IMAGE_SUFFIXES))


def decode_image(
    source: Encoded,
    shape: tuple[int, int, int],
    max_pixels: int = MAX_IMAGE_PIXELS,
    value_range: ValueRange | None = None,
) -> np.ndarray | None:
    """
    Decodes an image, turns it upright, converts its mode, resizes its shorter side and crops its centre.

    The colours of a palette are looked up, an alpha channel is dropped, of several frames the first counts. What is
    black and white depends on the file and the declared range alone:

    | file | without a range | with one |
    |---|---|---|
    | 8 bits or fewer; colours of JPEG 2000 and AVIF, which Pillow reduces to 8 bits | 0 and 255 | unreadable |
    | PNG of 16 bits, grey or RGB, with alpha or without | 0 and 65535 | the range |
    | PNM (PGM, PPM) of any maxval, binary or text | 0 and maxval | the range |
    | grey JPEG 2000 of 9 to 16 unsigned bits | 0 and 2^bits - 1 | the range |
    | TIFF of 12, 16 or 32 bits, signed or not; 16-bit RGB; floating-point TIFF and PFM | unreadable | the range |
    | TIFF of more than 8 bits in planes, as CMYK or with premultiplied alpha; signed bytes | unreadable | unreadable |
    | DICOM, NIfTI (`open_medical`) | unreadable | the range; 8-bit colours of DICOM stay |

    Where TIFF says that zero is white, the range is mirrored. Pillow reads no other layouts.

    Args:
        source (`bytes`, `Path` or `PIL.Image.Image`, *optional*): The encoded image, its file, or 8-bit pixels.
        shape (`tuple[int, int, int]`): The wanted (channels, height, width), with 1 or 3 channels.
        max_pixels (`int`): An encoded image whose header tells of more is not decoded.
        value_range (`tuple[float, float]`, *optional*): What is black and what is white, the lower one first; values
            beyond are these. Declared: a range taken from the images would tell of them.

    Returns:
        `np.ndarray` of shape `shape`, uint8, or `None` where the image is absent, unreadable, too large or not finite.
    """
    channels, height, width = shape

    def fitted(image: Image.Image) -> Image.Image:
        image = image.convert("L" if channels == 1 else "RGB")
        return ImageOps.fit(image, (width, height), method=Image.Resampling.LANCZOS)

    return _decoded(source, max_pixels, value_range, fitted)


def decode_as_it_is(
    source: Encoded, max_pixels: int = MAX_IMAGE_PIXELS, value_range: ValueRange | None = None
) -> np.ndarray | None:
    """
    Decodes an image without resizing it: upright, 8 bits, grey modes with one channel and all others as RGB.

    Args:
        source (`bytes`, `Path` or `PIL.Image.Image`, *optional*): The encoded image, its file, or 8-bit pixels.
        max_pixels (`int`), value_range (`tuple[float, float]`, *optional*): As in `decode_image`.

    Returns:
        `np.ndarray` of shape `[C, H, W]`, uint8, or `None` where the image is absent, unreadable, too large or not
        finite.
    """
    return _decoded(
        source, max_pixels, value_range,
        lambda image: image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"),
    )  # fmt: skip


def _decoded(
    source: Encoded, max_pixels: int, value_range: ValueRange | None, finish: Callable[[Image.Image], Image.Image]
) -> np.ndarray | None:
    with _silence():
        try:
            image = finish(_read(source, max_pixels, value_range))
            return np.asarray(image, dtype=np.uint8).reshape(image.height, image.width, -1).transpose(2, 0, 1)
        except Exception:  # a damaged file raises almost anything; whatever it is, this image contributes nothing
            return None


@dataclass(frozen=True)
class Described:
    """What one file is, for its owner.

    Args:
        size (`str`), mode (`str`): As its header says, or nothing where none can be read.
        reason (`str`, *optional*): Why `decode_image` returns `None`.
        ends (`tuple[float, float]`, *optional*): The lowest and the highest value that a declared range would hold
            for, of an image with more than 8 bits.
    """

    size: str = ""
    mode: str = ""
    reason: str | None = None
    ends: tuple[float, float] | None = None


def describe_file(source: Encoded, max_pixels: int, value_range: ValueRange | None) -> Described:
    """Decodes an image once more, and tells what is in it. The arguments are those of `decode_image`."""
    found = Described()
    with _silence():
        try:
            if isinstance(source, Image.Image):
                found = Described(f"{source.width}x{source.height}", source.mode)
            elif source is not None and is_medical(source):
                plane = open_medical(source, max_pixels, None)
                found = Described(f"{plane.width}x{plane.height}", plane.mode)
                if plane.mode == "F" and np.isfinite(values := np.asarray(plane)).all():  # no picture of 8 bits
                    found = replace(found, ends=(float(values.min()), float(values.max())))
            elif source is not None:
                with _limit(max_pixels), open_picture(source) as image:
                    found = Described(f"{image.width}x{image.height}", image.mode)
                    if image.width * image.height <= max_pixels and (layout := layout_of(image, source)):
                        if layout.white is None or layout.white > 255:
                            values = layout.values()
                            if np.isfinite(values).all():
                                found = replace(found, ends=(float(values.min()), float(values.max())))
            _read(source, max_pixels, value_range)
        except NotRead as error:
            return replace(found, reason=str(error))
        except Image.DecompressionBombError:  # by the limit that `_limit` sets
            return replace(found, reason=TOO_LARGE)
        except Exception:  # as in `_decoded`
            return replace(found, reason=DAMAGED)
    return found


def _read(source: Encoded, max_pixels: int, value_range: ValueRange | None) -> Image.Image:
    """An image of 8 bits, upright. Raises `NotRead`, with the reason, or anything else where it is damaged."""
    if source is None:
        raise NotRead(ABSENT)
    if isinstance(source, Image.Image):
        return _known_mode(source)
    if is_medical(source):
        if value_range is None:
            raise NotRead(NO_RANGE)
        plane = open_medical(source, max_pixels, value_range)
        return _scaled(np.asarray(plane), *value_range) if plane.mode == "F" else plane
    with _limit(max_pixels), open_picture(source) as image:
        if image.width * image.height > max_pixels:
            raise NotRead(TOO_LARGE)
        layout = layout_of(image, source)
        if layout is None and value_range is not None:
            raise NotRead(EIGHT_BITS)
        if layout is None or (layout.white == 255 and value_range is None):
            return _known_mode(upright(image))
        ends = (0.0, layout.white) if value_range is None and layout.white is not None else value_range
        if ends is None:
            raise NotRead(NO_RANGE)
        return _scaled(layout.values(), *(reversed(ends) if layout.mirrored else ends))


def _known_mode(image: Image.Image) -> Image.Image:
    """The image with straight alpha, in a mode that becomes grey or RGB. Raises `NotRead` where `convert` would clip
    its values."""
    if image.mode[0] in "IF":
        raise NotRead(NO_RANGE)
    straight = {"La": "LA", "RGBa": "RGBA", "LAB": "RGB"}.get(image.mode)
    return image if straight is None else image.convert(straight)


def _scaled(values: np.ndarray, black: float, white: float) -> Image.Image:
    """Values `[H, W]` or `[H, W, 3]` as 8 bits, black as 0 and white as 255."""
    scaled = np.empty(values.shape, dtype=np.uint8)
    rows = max(1, _BAND // values[0].size)  # eight bytes a value, so not all at once
    for start in range(0, len(values), rows):
        band = values[start : start + rows].astype(np.float64)
        if not np.isfinite(band).all():
            raise NotRead(NOT_FINITE)
        scaled[start : start + rows] = np.rint(((band - black) * 255 / (white - black)).clip(0, 255))
    return Image.fromarray(scaled)


@contextmanager
def _limit(max_pixels: int) -> Iterator[None]:
    """Pillow's own limit, which it has for all that a process opens, gives way to ours."""
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, max_pixels
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


@contextmanager
def _silence() -> Iterator[None]:
    """Mutes warnings and the standard error of C libraries, so that a damaged image leaves no line in a log."""
    with silent_standard_error(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
