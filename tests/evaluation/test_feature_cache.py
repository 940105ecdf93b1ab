# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The cache of features: the same rows as without it, none computed twice, nothing lost."""

import numpy as np
import pytest

from diffusers_dp.errors import UsageError
from diffusers_dp.evaluation import extractors
from diffusers_dp.evaluation.extractors import FeatureCache, PixelExtractor


class Counting(PixelExtractor):
    """Pixels, with a note of how many images were looked at; it can be made to stop."""

    def __init__(self, stop_after=None):
        super().__init__()
        self.seen, self.stop_after = 0, stop_after

    def __call__(self, images):
        if self.stop_after is not None and self.seen >= self.stop_after:
            raise KeyboardInterrupt
        self.seen += len(images)
        return super().__call__(images)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(extractors, "IMAGES_PER_CHUNK", 4)


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (10, 1, 3, 3), dtype=np.uint8)


def chunk_files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_rows_are_the_extractors_and_are_computed_once(tmp_path, images):
    extractor, cache = Counting(), FeatureCache(tmp_path / "features")
    first, second = cache.features(extractor, images), cache.features(extractor, images)
    np.testing.assert_array_equal(first, PixelExtractor()(images))
    np.testing.assert_array_equal(second, first)
    assert first.dtype == np.float32
    assert extractor.seen == 10
    assert len(chunk_files(tmp_path)) == 3


def test_an_interrupted_extraction_goes_on(tmp_path, images):
    cache, interrupted, later = FeatureCache(tmp_path), Counting(stop_after=4), Counting()
    with pytest.raises(KeyboardInterrupt):
        cache.features(interrupted, images)
    np.testing.assert_array_equal(cache.features(later, images), PixelExtractor()(images))
    assert (interrupted.seen, later.seen) == (4, 6)


@pytest.mark.parametrize("change", ["pixel", "order", "fact", "name", "shape"])
def test_other_images_or_facts_have_other_features(tmp_path, images, change):
    extractor, cache = Counting(), FeatureCache(tmp_path)
    cache.features(extractor, images)
    if change == "pixel":
        images = images.copy()
        images[7, 0, 1, 1] ^= 1
    elif change == "order":
        images = images[::-1]
    elif change == "shape":
        images = images.reshape(10, 1, 1, 9)
    elif change == "fact":
        extractor.facts = extractor.facts | {"weights_sha256": "another"}
    else:
        extractor.name = "other"
    np.testing.assert_array_equal(cache.features(extractor, images), PixelExtractor()(images))
    assert extractor.seen == 20


def test_a_failed_write_leaves_no_chunk_and_says_what_to_do(tmp_path, images, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(extractors, "replace_file", full)
    with pytest.raises(UsageError, match="No space left on device.*--output_dir"):
        FeatureCache(tmp_path).features(Counting(), images)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
