# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Complexity of features against closed forms and against counting by hand."""

import math
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from diffusers_dp.evaluation.complexity import entropy, feature_complexity, grey_levels, texture_complexity
from diffusers_dp.evaluation.images import ImageSet


def grey(rows):
    return np.asarray(rows, dtype=np.uint8)[None, None]


def bits(counts):
    return stats.entropy(list(counts), base=2)


def brute_force_texture(image, levels=8):
    """Every pixel with each of its up to four neighbours, one by one."""
    pairs, (height, width) = Counter(), image.shape
    for y in range(height):
        for x in range(width):
            for dy, dx in ((0, 1), (0, -1), (1, 0), (-1, 0)):
                if 0 <= y + dy < height and 0 <= x + dx < width:
                    pairs[int(image[y, x]) * levels // 256, int(image[y + dy, x + dx]) * levels // 256] += 1
    return bits(pairs.values())


def test_closed_forms():
    constant, every_level = grey(np.full((16, 16), 77)), grey(np.arange(256).reshape(16, 16))
    assert entropy(constant) == 0 and texture_complexity(constant) == 0
    assert not np.signbit(entropy(constant)) and not np.signbit(texture_complexity(constant))
    assert entropy(every_level) == pytest.approx(8)
    checkers = grey(np.indices((8, 8)).sum(0) % 2 * 255)
    assert entropy(checkers) == pytest.approx(1)
    assert texture_complexity(checkers) == pytest.approx(1)  # black beside white and white beside black, nothing else
    halves = grey(np.repeat([[0, 255]], 4, axis=0).repeat(4, axis=1))  # 4x8
    assert texture_complexity(halves) == pytest.approx(bits([48, 48, 4, 4]))
    quarter = grey([[0, 0, 0, 255]])
    assert entropy(quarter) == pytest.approx(-(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25)))


def test_against_counting_by_hand():
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 7, 9), dtype=np.uint8)
    images[1] //= 9
    images[2, :, 3:] = 200
    assert entropy(images) == pytest.approx([bits(Counter(x.ravel().tolist()).values()) for x in images[:, 0]])
    assert texture_complexity(images) == pytest.approx([brute_force_texture(x) for x in images[:, 0]])


def test_colour_becomes_grey_first():
    images = np.random.default_rng(1).integers(0, 256, (3, 3, 8, 8), dtype=np.uint8)
    expected = np.stack([np.asarray(Image.fromarray(x.transpose(1, 2, 0)).convert("L")) for x in images])
    assert np.abs(grey_levels(images) - expected).max() <= 1  # Pillow rounds in integers
    assert entropy(images) == pytest.approx(entropy(grey_levels(images).astype(np.uint8)[:, None]))
    same = np.repeat(images[:, :1], 3, axis=1)
    assert np.array_equal(grey_levels(same), images[:, 0])


def test_rows_of_the_table_keep_their_order_and_protocol():
    rng = np.random.default_rng(2)
    smooth = np.clip(np.indices((3, 1, 16, 16))[3] * 8 + rng.integers(0, 2, (3, 1, 16, 16)), 0, 255).astype(np.uint8)
    noise = rng.integers(0, 256, (3, 1, 16, 16), dtype=np.uint8)
    found = feature_complexity({"spatial": ImageSet(smooth), "images": ImageSet(noise), "single": ImageSet(noise[:1])})
    assert [(m.protocol["features"], m.metric) for m in found[:3]] == [
        ("spatial", "entropy"), ("spatial", "texture_complexity"), ("images", "entropy"),
    ]  # fmt: skip
    assert found[0].value < found[2].value and found[1].value < found[3].value
    values = entropy(noise)
    assert found[2].standard_error == pytest.approx(stats.sem(values)) and found[2].value == pytest.approx(
        values.mean()
    )
    assert found[4].standard_error is None


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((1, 1, 4, 4)), "uint8"),
        (np.zeros((1, 2, 4, 4), np.uint8), "1 or 3"),
        (np.zeros((4, 4), np.uint8), "shape"),
        (np.zeros((1, 1, 1, 1), np.uint8), "one pixel"),
    ],
)
def test_what_has_no_complexity_is_refused(images, message):
    with pytest.raises(ValueError, match=message):
        texture_complexity(images)


def test_an_empty_set_is_refused():
    with pytest.raises(ValueError, match="'spatial' hold no image"):
        feature_complexity({"spatial": ImageSet(np.zeros((0, 1, 4, 4), np.uint8))})
