# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Every metric of fidelity against an independent formula on the same features, its invariances, and what it
refuses."""

import math

import numpy as np
import pytest
from scipy import linalg
from scipy.spatial.distance import cdist
from sklearn.covariance import ledoit_wolf

from diffusers_dp.evaluation.analyses import ANALYSES, function_of
from diffusers_dp.evaluation.extractors import FeatureCache, PixelExtractor
from diffusers_dp.evaluation.fidelity import (
    frechet_distance,
    inception_score,
    precision_recall,
)
from diffusers_dp.evaluation.fidelity_report import FeatureSpace
from diffusers_dp.evaluation.images import ImageSet
from diffusers_dp.evaluation.measurement import OF_HALVES
from support.evaluating import gaussian


class TestFrechet:
    def test_equals_scipys_root_of_the_product(self):
        real, synthetic = gaussian(400), gaussian(300, seed=1, shift=0.5, scale=1.4)
        cov1, cov2 = np.cov(real, rowvar=False), np.cov(synthetic, rowvar=False)
        cross = np.trace(linalg.sqrtm(cov1 @ cov2)).real
        offset = real.astype(np.float64).mean(0) - synthetic.astype(np.float64).mean(0)
        expected = offset @ offset + np.trace(cov1) + np.trace(cov2) - 2 * cross
        assert frechet_distance(real, synthetic) == pytest.approx(expected, rel=1e-6)

    def test_many_rows_are_summed_in_parts(self, monkeypatch):
        monkeypatch.setattr("diffusers_dp.evaluation.fidelity.ROWS_OF_A_COVARIANCE", 7)
        real, synthetic = gaussian(40), gaussian(41, seed=1)
        cov = [np.cov(x, rowvar=False) for x in (real, synthetic)]
        offset = real.mean(0) - synthetic.mean(0)
        expected = offset @ offset + np.trace(cov[0] + cov[1] - 2 * linalg.sqrtm(cov[0] @ cov[1]).real)
        assert frechet_distance(real, synthetic) == pytest.approx(expected, rel=1e-4)

    @pytest.mark.parametrize(("number", "dimensions"), [(9, 30), (40, 12), (2, 30)])
    def test_shrinks_as_scikit_learn_does(self, number, dimensions):
        """More dimensions than images, and fewer."""
        random = np.random.default_rng(0)
        real, synthetic = (random.random((count, dimensions)) ** 2 for count in (number, number + 3))
        (cov1, _), (cov2, _) = (ledoit_wolf(rows) for rows in (real, synthetic))
        offset = real.mean(0) - synthetic.mean(0)
        expected = offset @ offset + np.trace(cov1 + cov2 - 2 * linalg.sqrtm(cov1 @ cov2).real)
        assert frechet_distance(real, synthetic, shrink=True) == pytest.approx(expected, rel=1e-6)

    @pytest.mark.parametrize("shrink", [True, False])
    def test_pixels_of_photographs_need_no_matrix_of_all_pixels(self, shrink):
        """Which would have 300 GB."""
        few = np.random.default_rng(0).random((7, 20), dtype=np.float32)
        many = np.concatenate([few, np.zeros((7, 3 * 256**2 - 20), np.float32)], axis=1)
        distance = frechet_distance(many[:4], many[4:], shrink=shrink)
        assert shrink or distance == pytest.approx(frechet_distance(few[:4], few[4:]), rel=1e-6)


class TestInceptionScore:
    def test_equals_a_loop(self):
        rows = np.random.default_rng(0).dirichlet(np.ones(5) * 0.3, 40)
        mean = rows.mean(axis=0)
        expected = math.exp(
            np.mean([sum(p * math.log(p / q) for p, q in zip(row, mean, strict=True)) for row in rows])
        )
        assert inception_score(rows) == pytest.approx(expected, rel=1e-6)


def scipys_share_within(points, manifold, k):
    points, manifold = points.astype(np.float64), manifold.astype(np.float64)
    distances = cdist(manifold, manifold)
    np.fill_diagonal(distances, np.inf)
    return (cdist(points, manifold) <= np.sort(distances, axis=1)[:, k - 1]).any(axis=1).mean()


class TestPrecisionRecall:
    @pytest.mark.parametrize("k", [1, 3])
    def test_equals_scipys_distances_over_several_chunks(self, k, monkeypatch):
        monkeypatch.setattr("diffusers_dp.evaluation.fidelity.ROWS_AT_A_TIME", 17)
        real, synthetic = gaussian(60, dimension=2), gaussian(45, dimension=2, seed=1, shift=0.2)
        precision, recall = precision_recall(real, synthetic, k=k)
        assert precision == pytest.approx(scipys_share_within(synthetic, real, k))
        assert recall == pytest.approx(scipys_share_within(real, synthetic, k))
        assert 0 < min(precision, recall) < max(precision, recall) < 1
        assert precision != recall

    @pytest.mark.parametrize(("offset", "scale"), [(100, 0.1), (1000, 1)])
    def test_features_far_from_0_equal_scipys_distances(self, offset, scale):
        rng = np.random.default_rng(0)
        real = (offset + scale * rng.normal(size=(300, 16))).astype(np.float32)
        synthetic = (offset + scale * rng.normal(0.3, 1.2, size=(300, 16))).astype(np.float32)
        found = precision_recall(real, synthetic)
        assert found == (scipys_share_within(synthetic, real, 3), scipys_share_within(real, synthetic, 3))

    def test_copies_of_images_that_are_there_four_times_are_at_distance_0(self):
        """Radii are 0: nothing but a distance of exactly 0 is within them."""
        rng = np.random.default_rng(0)
        real = rng.integers(120, 124, (75, 784)).astype(np.float32) / 255
        assert precision_recall(real.repeat(4, axis=0), real.repeat(4, axis=0)) == (1, 1)
        assert precision_recall(real.repeat(4, axis=0), real) == (1, 1)
        one_level_off = real.copy()
        one_level_off[:, 0] += np.float32(1 / 255)
        assert precision_recall(real.repeat(4, axis=0), one_level_off)[0] == 0


def image_set(count, seed=0, size=3, channels=1, num_classes=2, brightness=0):
    rng = np.random.default_rng(seed)
    images = rng.integers(brightness, 200 + brightness // 4, (count, channels, size, size)).astype(np.uint8)
    return ImageSet(images, np.arange(count) % num_classes, tuple("abc"[:num_classes]), {"name": f"noise {seed}"})


def space_of(folder, extractor, real, synthetic, test=None, seed=0, **others):
    sets = {"real training": real, "synthetic": synthetic, "real test": test, **others}
    return FeatureSpace(extractor, sets, seed, FeatureCache(folder / "features"))


def measure(space, metrics):
    return [each for name in metrics for each in function_of(ANALYSES[name].measure)(space)]


class TestMeasure:
    metrics = ("fid", "precision_recall", "fld")

    def measure(self, tmp_path, *sets, metrics=metrics, seed=0):
        return measure(space_of(tmp_path, PixelExtractor(), *sets, seed=seed), metrics)

    def test_every_number_says_how_it_came_about(self, tmp_path):
        sets = image_set(200), image_set(150, seed=1, brightness=40), image_set(80, seed=2)
        found = self.measure(tmp_path, *sets)
        assert [m.metric for m in found] == [
            "Fréchet distance (pixels)",
            "precision (pixels)",
            "recall (pixels)",
            "feature likelihood divergence (pixels)",
        ]
        for measurement in found:
            assert {"extractor", "features", "real_images", "synthetic_images", "seed"} <= set(measurement.protocol)
        pixels = [x.images.reshape(len(x), -1).astype(np.float32) / 255 for x in sets]
        assert found[0].value == pytest.approx(frechet_distance(pixels[0], pixels[1]), rel=1e-6)
        assert found[0].protocol["covariance"] == "unbiased"
        assert (found[1].value, found[2].value) == precision_recall(pixels[0], pixels[1])
        assert found == self.measure(tmp_path, *sets)

    @pytest.mark.parametrize("number", [8, 15, 30])
    def test_halves_of_the_real_images_are_measured_alike(self, tmp_path, number):
        """Also where the images are more than their values, and a half is not."""
        found = self.measure(tmp_path, image_set(number), image_set(40, seed=1), None, metrics=("fid",))[0]
        assert OF_HALVES in found.protocol and (found.protocol["covariance"] == "unbiased") == (number == 30)

    def test_counts_are_those_of_the_tables(self, tmp_path, monkeypatch):
        monkeypatch.setattr("diffusers_dp.evaluation.fidelity_report.FRECHET_IMAGES", 60)
        monkeypatch.setattr("diffusers_dp.evaluation.fidelity_report.PAIRED_IMAGES", 50)
        found = self.measure(tmp_path, image_set(90), image_set(80, seed=1), None, metrics=("fid", "precision_recall"))
        counts = [(m.protocol["real_images"], m.protocol["synthetic_images"]) for m in found]
        assert counts == [(90, 60), (50, 50), (50, 50)]
        other = self.measure(tmp_path, image_set(90), image_set(80, seed=1), None, metrics=("fid",), seed=1)
        assert other[0].value != found[0].value  # another shuffle
