"""Files of more than 8 bits, written by hand, because Pillow writes few of their layouts."""

import struct
import zlib

import numpy as np


def png(values: np.ndarray, colour: int, interlaced: bool = False) -> bytes:
    """A PNG file of 16 bits.

    Args:
        values (`np.ndarray` of uint16, shape `[H, W, C]`): Pixels.
        colour (`int`): PNG's colour type: 0 grey, 2 RGB, 4 grey and alpha, 6 RGB and alpha.
        interlaced (`bool`): By Adam7.
    """
    height, width, _ = values.shape
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    parts = [values[top::down, left::across] for top, left, down, across in passes]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for part in parts if part.size for row in part)

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, int(interlaced))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def tiff(values: np.ndarray, photometric: int, order: str = "<", *, packed: bool = False, **tags: int) -> bytes:
    """A TIFF file of one strip, or of one a plane where `planes=2`.

    Args:
        values (`np.ndarray`, shape `[H, W, C]`): Pixels.
        photometric (`int`): 0 low values are bright, 1 high ones, 2 RGB, 5 CMYK.
        order (`str`): `<` or `>`.
        packed (`bool`): By deflate, which libtiff reads.
        **tags (`int`): `planes`, `extra` (what a channel beyond the colours is), `orientation`.
    """
    height, width, channels = values.shape
    sample = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    planes = values.transpose(2, 0, 1) if tags.get("planes") == 2 else [values]
    strips = [plane.astype(values.dtype.newbyteorder(order)).tobytes() for plane in planes]
    strips = [zlib.compress(strip) for strip in strips] if packed else strips
    starts = [8 + sum(map(len, strips[:number])) for number in range(len(strips))]
    entries = [
        (256, "I", [width]), (257, "I", [height]), (258, "H", [8 * values.dtype.itemsize] * channels),
        (259, "H", [8 if packed else 1]), (262, "H", [photometric]), (273, "I", starts),
        (274, "H", [tags.get("orientation", 1)]), (277, "H", [channels]), (278, "I", [height]),
        (279, "I", list(map(len, strips))), (284, "H", [tags.get("planes", 1)]),
        *([(338, "H", [tags["extra"]])] if "extra" in tags else []), (339, "H", [sample] * channels),
    ]  # fmt: skip
    content = b"".join(strips)
    content += b"\0" * (len(content) % 2)
    begin = 8 + len(content)
    beside = begin + 6 + 12 * len(entries)  # values of more than four bytes
    directory, more = struct.pack(f"{order}H", len(entries)), b""
    for tag, kind, numbers in entries:
        packed_values = struct.pack(f"{order}{len(numbers)}{kind}", *numbers)
        if len(packed_values) > 4:
            packed_values, more = struct.pack(f"{order}I", beside + len(more)), more + packed_values
        directory += struct.pack(f"{order}HHI", tag, {"H": 3, "I": 4}[kind], len(numbers)) + packed_values.ljust(
            4, b"\0"
        )
    return (
        {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", begin) + content + directory + bytes(4) + more
    )


def pnm(values: np.ndarray, maxval: int, *, plain: bool = False, comment: bytes = b"") -> bytes:
    """A PGM or PPM file of pixels `[H, W, C]`, as text or binary."""
    height, width, channels = values.shape
    magic = {(1, True): 2, (3, True): 3, (1, False): 5, (3, False): 6}[channels, plain]
    header = b"P%d\n%s%d %d\n%d\n" % (magic, comment, width, height, maxval)
    if plain:
        return header + comment + b" ".join(b"%d" % value for value in values.ravel().tolist()) + b"\n"
    return header + values.astype(">u2" if maxval > 255 else "u1").tobytes()


def place_of_j2k(content: bytes) -> int:
    """Where a file of JPEG 2000 says how many bits its first component has."""
    return content.index(b"\xff\x4f\xff\x51") + 42
