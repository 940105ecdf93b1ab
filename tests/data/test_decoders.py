"""Only the decoders of pictures open a file: nothing that is called an image starts a program."""

import ast
import os
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

from diffusers_dp.cli import main
from diffusers_dp.data.decoding import DAMAGED, decode_as_it_is, decode_image, describe_file
from diffusers_dp.data.layouts import FORMATS
from diffusers_dp.data.public_images import load_public_images
from diffusers_dp.data.records import DataSource
from support.images import encode, folder_config, grey, image_bytes, labelled, read_images, save_parquet


ROOT = Path(__file__).parents[2]
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
BINARY_EPS = b"\xc5\xd0\xd3\xc6" + (30).to_bytes(4, "little") + len(EPS).to_bytes(4, "little") + bytes(18) + EPS
SUFFIXES = (".png", ".jpg", ".tif", ".gif", ".bmp", ".webp", ".ppm", ".tga")


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Where stubs of Ghostscript and its kin leave a line if one of them runs."""
    started = tmp_path / "started"
    (tmp_path / "bin").mkdir()
    for name in ("gs", "gswin64c", "gswin32c", "djpeg", "cjpeg", "gunzip", "hp2xx", "rsvg-convert", "convert"):
        stub = tmp_path / "bin" / name
        stub.write_text(f'#!/bin/sh\necho "$0 $@" >> {started}\n')
        stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # it remembers that there was none
    return started


def others() -> dict[str, bytes]:
    """Files of what Pillow knows beside, as far as it writes them."""
    Image.init()
    found = {"EPS": EPS, "binary EPS": BINARY_EPS, "behind a PNG's mark": b"\x89PNG\r\n\x1a\n" + EPS}
    found["WMF"] = b"\xd7\xcd\xc6\x9a\0\0" + bytes(16) + b"\x01\0\t\0" + bytes(40)
    for kind in set(Image.SAVE) - set(FORMATS) - {"MPO", "PDF", "DIB", "PALM"}:
        try:
            found[kind] = encode(grey(), kind)
        except (OSError, ValueError, KeyError):  # it writes other modes only
            continue
    return found


OTHERS = others()


@pytest.mark.parametrize("kind", sorted(OTHERS))
def test_other_decoders_are_never_tried(kind, programs, tmp_path):
    (tmp_path / "a.png").write_bytes(OTHERS[kind])
    for source in (OTHERS[kind], tmp_path / "a.png"):
        assert decode_image(source, (1, 8, 8)) is None
        assert decode_as_it_is(source) is None
        assert describe_file(source, 10**6, None).reason == DAMAGED
    assert not programs.exists()


@pytest.mark.parametrize("content", [EPS, BINARY_EPS])
def test_no_way_to_read_images_starts_a_program(content, programs, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "scans"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        (folder / name / "good.png").write_bytes(encode(grey(50)))
    for suffix in SUFFIXES:
        (folder / "a" / f"bad{suffix}").write_bytes(content)
    facts, arrays = read_images(folder_config(folder, class_names="a,b", num_channels=1), tmp_path)
    assert arrays.readable.sum() == 2 and facts.num_images == 10

    columns = {"image": image_bytes(encode(grey()), content, encode(grey(9))), "label": [0, 0, 1]}
    tables = save_parquet(tmp_path / "tables", columns, labelled(["a", "b"]))
    public = DataSource(dataset_name=tables, image_shape=(1, 8, 8))
    sensitive = DataSource(train_data_dir=str(folder), class_names=("a", "b"), image_shape=(1, 8, 8))
    assert len(load_public_images(public, sensitive, tmp_path / "public", training={}).images) == 2
    for place in (["--dataset_name", tables], [str(folder)]):
        main(["data", *place, "--resolution", "8", "--num_channels", "1"])
    monkeypatch.chdir(tmp_path)
    main(
        "evaluate --images tables --real tables --metrics fid --extractors pixels --num_images 2 --device cpu "
        "--real_is_public".split()
    )
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    with pytest.raises(SystemExit, match="1 images cannot be read"):
        import_module("scorer").read(tables, "train")
    assert not programs.exists()


def test_every_image_that_is_opened_names_its_formats():
    calls = []
    for folder in ("diffusers_dp", "benchmarks", "examples", "training", "pipelines"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-2:] == ["Image", "open"]:
                    named = {keyword.arg for keyword in node.keywords}
                    calls.append((f"{path.name}:{node.lineno}", "formats" in named))
    assert len(calls) > 3 and [place for place, named in calls if not named] == []


def test_the_formats_that_are_named_are_read():
    for kind in FORMATS:
        assert (decode_as_it_is(encode(grey(), kind)) == 100).all(), kind
    assert set(FORMATS) - {"AVIF"} == {"PNG", "JPEG", "JPEG2000", "TIFF", "BMP", "GIF", "WEBP", "PPM", "TGA"}
