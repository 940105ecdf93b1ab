# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Collages of cut-outs on crops of photographs."""

import io
import sys
from importlib import import_module

import numpy as np
import pytest
from datasets import load_dataset
from PIL import Image

from support.benchmarks import BENCHMARKS


def noise(seed, side=120):
    """Many colours about four that are its own."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 200, (2, 2, 3)).repeat(side // 2, 0).repeat(side // 2, 1)
    return Image.fromarray((coarse + rng.integers(0, 56, coarse.shape)).astype(np.uint8))


def packages(folder):
    (folder / "cartoon").mkdir(parents=True)
    noise(1).save(folder / "photograph.jpg", quality=95)
    noise(1).save(folder / "the same.jpg", quality=95)
    Image.new("RGB", (120, 120), "red").save(folder / "drawing.png")
    noise(3, 30).save(folder / "small.png")
    noise(4).save(folder / "cartoon" / "skipped.png")
    (folder / "broken.png").write_bytes(b"no picture")
    cut_out = noise(5).convert("RGBA")
    rows, columns = np.indices((120, 120)) - 60
    cut_out.putalpha(Image.fromarray(((rows**2 + columns**2 < 40**2) * 255).astype(np.uint8)))
    cut_out.save(folder / "cut-out.png")
    file = io.BytesIO()
    noise(6).save(file, "WEBP", lossless=True)
    (folder / "within.rcc").write_bytes(b"qres" + file.getvalue() + b"RIFF....no picture" + noise(7).tobytes()[:99])


@pytest.mark.parametrize("black", [False, True])
def test_collages_are_of_photographs_and_cut_outs(black, tmp_path, monkeypatch, capsys):
    packages(tmp_path / "packages")
    monkeypatch.syspath_prepend(BENCHMARKS)
    said = [str(tmp_path / "packages"), str(tmp_path / "out"), "--number", "30", "--resolution", "16"]
    monkeypatch.setattr(sys, "argv", ["collages.py", *said, *(["--black"] if black else [])])
    import_module("collages").main()
    assert "2 photographs, 1 cut-outs" in capsys.readouterr().out
    images = load_dataset("parquet", data_files=str(tmp_path / "out" / "data" / "*"), cache_dir=tmp_path)["train"]
    assert len(images) == 30 and images[0]["image"].size == (16, 16)
    assert len({image.tobytes() for image in images["image"]}) > 20
    corners = [image.getpixel((0, 0)) == (0, 0, 0) for image in images["image"]]
    assert all(corners) == black
