# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Complexity of features against closed forms and against counting by hand."""

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from support.places import ROOT, module_of


complexity = module_of(ROOT / "benchmarks" / "complexity.py")


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


def test_against_counting_by_hand():
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 7, 9), dtype=np.uint8)
    images[1] //= 9
    images[2, :, 3:] = 200
    assert complexity.entropy(images) == pytest.approx(
        [bits(Counter(x.ravel().tolist()).values()) for x in images[:, 0]]
    )
    assert complexity.texture_complexity(images) == pytest.approx([brute_force_texture(x) for x in images[:, 0]])
