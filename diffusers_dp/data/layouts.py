# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Pixels of image files at their full depth. Pillow reduces some layouts of more than 8 bits to 8, or stretches them;
only the header of a file tells. Other processes import this, so nothing here loads torch."""

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, features


#: The decoders that files reach. Others of Pillow start programs (EPS starts Ghostscript) or are seldom looked after.
FORMATS = ("PNG", "JPEG", "JPEG2000", "TIFF", "BMP", "GIF", "WEBP", "PPM", "TGA") + (
    ("AVIF",) if features.check("avif") else ()
)
_BITS_PER_SAMPLE, _PHOTOMETRIC, _PLANES, _EXTRA_SAMPLES, _SAMPLE_FORMAT = 258, 262, 284, 338, 339  # tags of TIFF
_CODESTREAM = b"\xff\x4f\xff\x51"  # how one of JPEG 2000 begins, with its size and its depths
_MOST_HEADER = 2**20
_COMMENT = re.compile(rb"#[^\r\n]*")

EIGHT_BITS = "8 bits beside a declared --value_range, which is for images with more"
NO_RANGE = "more than 8 bits and no white of their own: declare --value_range"
NOT_FULL = "a layout that cannot be read at full depth"


class NotRead(ValueError):
    """An image that is not read, with the reason."""


@dataclass(frozen=True)
class Layout:
    """How a file stores values that a declared range holds for.

    Args:
        values (`Callable`): Returns them, an array of numbers `[H, W]` or `[H, W, 3]`, upright.
        white (`int`, *optional*): The value that the file itself calls white; none where it does not tell.
        mirrored (`bool`): Whether low values are bright.
    """

    values: Callable[[], np.ndarray]
    white: int | None = None
    mirrored: bool = False


def open_picture(source: bytes | Path) -> Image.Image:
    """Opens an image and reads its header. The only way into Pillow's decoders, of which `FORMATS` alone are tried."""
    return Image.open(BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS)


def layout_of(image: Image.Image, source: bytes | Path) -> Layout | None:
    """Returns the layout of an opened file, or `None` where it has 8 bits or fewer.

    PNM files have a layout at every depth. Colours of JPEG 2000 and AVIF count as 8 bits, which Pillow makes of them.

    Raises:
        NotRead: The file stores more than 8 bits in a way that cannot be read at full depth, or signed bytes.
    """
    raw = _raw_mode(image)
    if image.format == "TIFF":
        return _of_tiff(image, source, raw)
    if image.format == "PNG" and ";16" in raw:
        return Layout(lambda: _deep(image, source, raw), 65_535)
    if image.format == "PPM" and image.mode == "F":
        return Layout(lambda: np.asarray(upright(image)))
    if image.format == "PPM" and image.mode in ("L", "I", "RGB"):
        codec, _, offset, arguments = image.tile[0]  # type: ignore[attr-defined]
        white = arguments[1] if isinstance(arguments, tuple) else 65_535 if raw == "I;16B" else 255
        return Layout(lambda: _of_pnm(image, source, codec == "ppm_plain", offset, white), white)
    if image.format == "JPEG2000" and image.mode == "I;16":
        bits = _depth_of_codestream(source)
        return Layout(lambda: np.asarray(upright(image)) >> (16 - bits), 2**bits - 1)
    return None


def upright(image: Image.Image) -> Image.Image:
    """Decodes an opened image and turns it as its orientation says, if that can be read."""
    image.load()
    with suppress(SyntaxError):  # PIL's, of a damaged block of EXIF
        ImageOps.exif_transpose(image, in_place=True)
    return image


def _of_tiff(image: Any, source: bytes | Path, raw: str) -> Layout | None:
    tags = image.tag_v2
    deepest = max(tags.get(_BITS_PER_SAMPLE, (1,)))
    is_signed = tags.get(_SAMPLE_FORMAT, (1,))[0] == 2
    if deepest <= 8 and not is_signed:
        return None
    colours = image.mode in ("RGB", "RGBA")
    in_planes = tags.get(_PLANES, 1) == 2 and colours
    premultiplied = 1 in tags.get(_EXTRA_SAMPLES, ())
    if deepest <= 8 or in_planes or premultiplied or not (colours or image.mode in ("I", "F", "I;16", "I;16B")):
        raise NotRead(NOT_FULL)
    is_unsigned_32 = raw.startswith("I;32") and not is_signed

    def values() -> np.ndarray:
        found = _deep(image, source, raw)
        return found.view(np.uint32) if is_unsigned_32 else found

    return Layout(values, mirrored=tags.get(_PHOTOMETRIC) == 0)


def _raw_mode(image: Image.Image) -> str:
    """The name by which Pillow knows how the file stores its pixels."""
    tiles: Any = getattr(image, "tile", ())
    arguments = tiles[0].args if tiles else ""
    return str(arguments[0] if isinstance(arguments, tuple) else arguments)


def _deep(image: Image.Image, source: bytes | Path, raw: str) -> np.ndarray:
    """Values of the pixels, without alpha. Where Pillow keeps the upper bytes alone, it is asked for the lower ones,
    too."""
    if image.mode not in ("RGB", "RGBA"):
        if image.tile[0].codec_name == "libtiff" and sys.byteorder == "little":  # type: ignore[attr-defined]
            _store_as(image, re.sub(r";(16|32)B([SF])", r";\1\2", raw))  # libtiff has swapped the bytes
        return np.asarray(upright(image))
    if raw == "LA;16B":  # four bytes a pixel, as they are
        _store_as(image, "RGBA")
        pairs = np.asarray(upright(image)).astype(np.uint16)
        return pairs[..., 0] << 8 | pairs[..., 1]
    little = raw.endswith("L") or (raw.endswith("N") and sys.byteorder == "little")
    with open_picture(source) as again:
        _store_as(again, raw[:-1] + ("B" if little else "L"))
        lower = np.asarray(upright(again))[..., :3]
        return np.asarray(upright(image))[..., :3].astype(np.uint16) << 8 | lower


def _store_as(image: Image.Image, raw: str) -> None:
    """Tells Pillow that the file stores its pixels in another way."""
    for number, tile in enumerate(image.tile):  # type: ignore[attr-defined]
        arguments = (raw, *tile.args[1:]) if isinstance(tile.args, tuple) else raw
        image.tile[number] = tile._replace(args=arguments)  # type: ignore[attr-defined]


def _of_pnm(image: Image.Image, source: bytes | Path, plain: bool, offset: int, white: int) -> np.ndarray:
    shape = (image.height, image.width) + ((3,) if image.mode == "RGB" else ())
    count, kind = int(np.prod(shape)), np.dtype(">u2" if white > 255 else "u1")
    most = 16 * count + _MOST_HEADER if plain else count * kind.itemsize  # digits, blanks and comments
    content = _part(source, offset, most)
    if not plain:
        return np.frombuffer(content, kind, count).reshape(shape)
    values = np.fromstring(_COMMENT.sub(b" ", content), dtype=np.int64, sep=" ")[
        :count
    ]  # its `count` invents the rest
    if len(values) != count or not (0 <= values.min() and values.max() <= white):
        raise ValueError("The file holds other numbers than its header says.")
    return values.astype(np.uint16).reshape(shape)


def _depth_of_codestream(source: bytes | Path) -> int:
    """Bits of the first component. Raises `NotRead` where they are signed, or the header does not tell."""
    content = _part(source, 0, _MOST_HEADER)
    place = content.find(_CODESTREAM)
    depth = content[place + 42] if place >= 0 and len(content) > place + 42 else 0xFF
    if depth >= 16:  # its highest bit is a sign
        raise NotRead(NOT_FULL)
    return depth + 1


def _part(source: bytes | Path, start: int, length: int) -> bytes:
    if isinstance(source, bytes):
        return source[start : start + length]
    with open(source, "rb") as file:
        file.seek(start)
        return file.read(length)
