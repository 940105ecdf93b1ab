"""What is black and white in each layout of a file: its own white, a declared range, or nothing."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diffusers_dp.cli import main
from diffusers_dp.commands.data import _range_flag
from diffusers_dp.data import decoding
from diffusers_dp.data.decoding import (
    DAMAGED,
    MAX_IMAGE_PIXELS,
    TOO_LARGE,
    decode_as_it_is,
    decode_image,
    describe_file,
)
from diffusers_dp.data.layouts import EIGHT_BITS, NO_RANGE, NOT_FULL
from diffusers_dp.data.public_images import load_public_images
from diffusers_dp.data.records import DataSource
from support.deep_images import place_of_j2k, png, pnm, tiff
from support.images import encode, grey, image_bytes, save_parquet


RANGE = (0, 4095)
VALUES = np.random.default_rng(0).integers(0, 4096, (7, 9, 4)).astype(np.uint16)
GREY, RGB = VALUES[..., :1], VALUES[..., :3]


def scaled(values: np.ndarray, black: float, white: float) -> np.ndarray:
    """The definition: `[H, W, C]` to uint8 `[C, H, W]`."""
    exact = (values.astype(np.float64) - black) * 255 / (white - black)
    return np.rint(exact.clip(0, 255)).astype(np.uint8).transpose(2, 0, 1)


def is_read(content: bytes, values: np.ndarray, ends: tuple[float, float], declared=None) -> bool:
    found = decode_as_it_is(content, value_range=declared)
    return found is not None and np.array_equal(found, scaled(values, *ends))


def reason(content: bytes, declared=None) -> str | None:
    assert decode_as_it_is(content, value_range=declared) is None
    return describe_file(content, MAX_IMAGE_PIXELS, declared).reason


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize(("colour", "channels", "seen"), [(0, 1, 1), (2, 3, 3), (4, 2, 1), (6, 4, 3)])
def test_png_of_16_bits_has_a_white_and_a_declared_range_holds(colour, channels, seen, interlaced, tmp_path):
    content, values = png(VALUES[..., :channels], colour, interlaced), VALUES[..., :seen]
    assert is_read(content, values, (0, 65535)) and is_read(content, values, RANGE, RANGE)
    assert is_read(content, values, (1000, 3000), (1000, 3000))
    (tmp_path / "a.png").write_bytes(content)
    assert np.array_equal(decode_as_it_is(tmp_path / "a.png", value_range=RANGE), scaled(values, *RANGE))
    assert decode_image(content, (3, 4, 4), value_range=RANGE).shape == (3, 4, 4)
    assert describe_file(content, MAX_IMAGE_PIXELS, None).ends == (values.min(), values.max())


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("maxval", [1, 100, 255, 256, 4095, 65535])
def test_pnm_is_read_by_its_own_maxval_or_by_a_declared_range(maxval, channels, plain):
    values = np.minimum(VALUES[..., :channels], maxval)
    content = pnm(values, maxval, plain=plain, comment=b"# 3 of 9\n")
    assert is_read(content, values, (0, maxval)) and is_read(content, values, RANGE, RANGE)
    assert decode_as_it_is(content[: len(content) // 2]) is None


def test_numbers_beyond_the_maxval_of_a_text_are_damage():
    for numbers in (b"5 4096", b"5 -1", b"5 x", b"5"):
        assert reason(b"P2\n2 1\n4095\n" + numbers) == DAMAGED
    assert reason(b"P1\n2 1\n0 1\n", RANGE) == EIGHT_BITS


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("order", ["<", ">"])
def test_deep_tiff_needs_a_declared_range(order, packed):
    """Pillow reads no 64-bit ones, and of big-endian files none of 32 unsigned bits."""
    signed, wide = GREY.astype(np.int16) - 2000, GREY.astype(np.uint32) << 20
    read = [
        (tiff(GREY, 1, order, packed=packed), GREY, RANGE),
        (tiff(signed, 1, order, packed=packed), signed, (-2000, 2000)),
        (tiff(signed.astype(np.int32), 1, order, packed=packed), signed, (-2000, 2000)),
        (tiff(GREY.astype(np.float32), 1, order, packed=packed), GREY, RANGE),
        (tiff(4095 - GREY.astype(np.float32), 0, order, packed=packed), GREY, RANGE),  # its zero is white
        (tiff(RGB, 2, order, packed=packed), RGB, RANGE),
        (tiff(VALUES, 2, order, packed=packed, extra=2), RGB, RANGE),  # alpha
        (tiff(VALUES, 2, order, packed=packed, extra=0), RGB, RANGE),
    ]
    if order == "<":
        read += [(tiff(4095 - GREY, 0, packed=packed), GREY, RANGE), (tiff(wide, 1, packed=packed), wide, (0, 2**32))]
    for content, values, ends in read:
        assert is_read(content, values, ends, ends)
        assert reason(content) == NO_RANGE


@pytest.mark.parametrize("declared", [None, RANGE])
@pytest.mark.parametrize("packed", [False, True])
def test_layouts_that_would_be_read_wrong_are_not_read(packed, declared):
    for content in (
        tiff(RGB, 2, packed=packed, planes=2), tiff(VALUES, 5, packed=packed),
        tiff(VALUES, 2, packed=packed, extra=1), tiff((GREY // 16 - 128).astype(np.int8), 1, packed=packed),
    ):  # fmt: skip
        assert reason(content, declared) == NOT_FULL


def test_a_record_of_8_bits_beside_a_declared_range_is_unreadable():
    eight = (RGB // 16).astype(np.uint8)
    contents = [encode(Image.fromarray(eight), kind) for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "TGA")]
    contents += [encode(grey().convert(mode)) for mode in ("1", "P", "LA")] + [tiff(eight, 2, planes=2)]
    for content in contents:
        assert decode_as_it_is(content) is not None and reason(content, RANGE) == EIGHT_BITS
    assert is_read(tiff(eight, 2, planes=2), eight, (0, 255))


def test_jpeg_2000_of_more_than_8_bits_is_read_by_its_depth():
    content = encode(Image.fromarray(GREY[..., 0]), "JPEG2000", irreversible=False)
    assert is_read(content, GREY, (0, 65535)) and is_read(content, GREY, RANGE, RANGE)
    signed = bytearray(content)
    signed[place_of_j2k(content)] |= 0x80
    assert reason(bytes(signed)) == NOT_FULL
    colours = encode(Image.fromarray((RGB // 16).astype(np.uint8)), "JPEG2000")
    assert reason(colours, RANGE) == EIGHT_BITS


def test_jpeg_2000_of_13_bits():
    """Pillow stretches it to 16."""
    pydicom = pytest.importorskip("pydicom", reason="pydicom is not installed: diffusers_dp[medical]")
    from pydicom.encaps import generate_frames

    folder = Path(pydicom.__file__).parent / "data" / "test_files"
    scan = pydicom.dcmread(folder / "J2K_pixelrep_mismatch.dcm")  # it calls them signed, and its codestream does not
    content, values = next(generate_frames(scan.PixelData)), scan.pixel_array.astype(np.int64)[..., None] % 2**13
    assert values.max() > 4095
    assert is_read(content, values, (0, 8191)) and is_read(content, values, RANGE, RANGE)
    assert reason(next(generate_frames(pydicom.dcmread(folder / "JPEG2000.dcm").PixelData)), RANGE) == NOT_FULL


def test_float_files_and_values_that_are_no_numbers():
    pixels = Image.fromarray(np.array([[0, 0.5, 1]], np.float32))
    for content in (encode(pixels, "TIFF"), encode(pixels, "PPM")):
        assert reason(content) == NO_RANGE
        assert decode_as_it_is(content, value_range=(0, 1)).tolist() == [[[0, 128, 255]]]
    endless = encode(Image.fromarray(np.full((2, 2), np.inf, np.float32)), "TIFF")
    assert decode_as_it_is(endless, value_range=RANGE) is None


def test_orientation_turns_all_bytes_of_deep_colours():
    upside_down = tiff(RGB[::-1, ::-1], 2, orientation=3)
    assert is_read(upside_down, RGB, RANGE, RANGE)


def test_deep_images_are_scaled_in_bands_as_they_were_at_once(monkeypatch):
    monkeypatch.setattr(decoding, "_BAND", 20)
    assert is_read(png(RGB, 2), RGB, RANGE, RANGE)


def test_sizes_stay_bounded():
    for content in (pnm(GREY, 4095), pnm(GREY, 4095, plain=True), png(RGB, 2), tiff(RGB, 2)):
        assert decode_as_it_is(content, max_pixels=62, value_range=RANGE) is None
        assert describe_file(content, 62, RANGE).reason == describe_file(content, 9, RANGE).reason == TOO_LARGE
    assert reason(b"P2\n2000 2000\n4095\n" + b"1 " * 100) == DAMAGED
    assert reason(b"P5\n2000 2000\n4095\n" + bytes(100)) == DAMAGED


def test_public_images_of_8_bits_stay_readable_beside_a_declared_range(tmp_path):
    name = save_parquet(tmp_path / "public", {"image": image_bytes(encode(grey(70)), png(GREY, 0))})
    data = DataSource(dataset_name=name, image_shape=(1, 8, 8), value_range=RANGE)
    sensitive = DataSource(train_data_dir=str(tmp_path), class_names=("public",), image_shape=(1, 8, 8))
    found = load_public_images(data, sensitive, tmp_path / "cache", training={}).images
    assert (found[0] == 70).all() and found[1].float().mean() > 100


@pytest.mark.parametrize(
    ("ends", "flag"),
    [
        ((0.1, 0.9), " 0,1"), ((0, 4000), " 0,4095"), ((0.5, 300.5), " 0,511"), ((-1000, 3000), "=-1024,4095"),
        ((-1024, -3), "=-1024,0"), ((-0.5, 0.5), "=-1,1"),
    ],
)  # fmt: skip
def test_the_range_that_is_proposed_is_no_image_s_own(ends, flag):
    """It becomes public with a run."""
    assert _range_flag(*map(float, ends)) == f"--value_range{flag}"


def test_data_says_what_is_deep_and_why_images_are_not_read(tmp_path, capsys):
    folder = tmp_path / "scans"
    (folder / "a").mkdir(parents=True)
    files = {"1.png": png(GREY, 0), "2.png": encode(grey()), "3.tif": tiff(GREY, 1), "4.png": b"x"}
    for name, content in files.items():
        (folder / "a" / name).write_bytes(content)
    main(["data", str(folder), "--resolution", "8", "--num_channels", "1"])
    said = capsys.readouterr().out
    assert f"largest value {GREY.max()}" in said and "--value_range 0,4095" in said
    assert f"1 of {NO_RANGE}" in said and f"1 of {DAMAGED}" in said and "can be read: 2" in said
    main(["data", str(folder), "--resolution", "8", "--num_channels", "1", "--value_range", "0,4095"])
    said = capsys.readouterr().out
    assert f"1 of {EIGHT_BITS}" in said and "can be read: 2" in said
