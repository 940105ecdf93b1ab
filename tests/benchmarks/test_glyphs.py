# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Letters and house numbers of fonts: the same images twice, of the character that was asked for."""

import string
import sys
from importlib import import_module
from pathlib import Path

import datasets
import matplotlib
import numpy as np
import pytest

from support.places import ROOT


def test_glyphs_are_the_same_twice_and_of_all_classes(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    glyphs = import_module("glyphs")
    monkeypatch.setattr(glyphs, "FONTS", Path(matplotlib.get_data_path()) / "fonts" / "ttf")
    for name in ("LETTERS", "NUMBERS"):
        monkeypatch.setattr(glyphs, name, {"train": 60, "test": 30})
    found = []
    for output in (tmp_path / "a", tmp_path / "b"):
        monkeypatch.setattr(sys, "argv", ["glyphs.py", str(output)])
        assert glyphs.main() == 0
        found.append([datasets.load_dataset(str(output / name), split="train") for name in ("letters", "numbers")])
    for first, second in zip(*found, strict=True):
        assert all(
            (np.asarray(a) == np.asarray(b)).all() for a, b in zip(first["image"], second["image"], strict=True)
        )
    letters, numbers = found[0]
    assert letters.features["label"].names == list(string.ascii_uppercase) and set(letters["label"]) == {*range(26)}
    assert np.asarray(letters[0]["image"]).shape == (28, 28) and np.asarray(numbers[0]["image"]).shape == (32, 32, 3)
    assert min(np.asarray(each).std() for each in letters["image"]) > 10, "something is drawn"
    one = glyphs.Glyphs(glyphs.latin_fonts(glyphs.FONTS))
    inks = [np.mean([one.character(text, 32, (0.9, 0.9), 0) for _ in range(20)]) for text in "18"]
    assert 2 < inks[0] < inks[1], "an 8 has more ink than a 1"
    with pytest.raises(SystemExit):
        glyphs.main()
    assert "is there already" in capsys.readouterr().err
