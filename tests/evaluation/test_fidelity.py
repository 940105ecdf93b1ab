# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Every metric of fidelity against an independent formula on the same features, its invariances, and what it
refuses."""

import math

import numpy as np
import pytest
from scipy import linalg
from scipy.spatial.distance import cdist

from diffusers_dp.errors import UsageError
from diffusers_dp.evaluation.analyses import ANALYSES, METRICS, function_of
from diffusers_dp.evaluation.extractors import PixelExtractor
from diffusers_dp.evaluation.feature_cache import FeatureCache
from diffusers_dp.evaluation.fidelity import (
    class_frechet_distances,
    domain_discriminator,
    frechet_distance,
    inception_score,
    kernel_distance,
    nearest_neighbours,
    precision_recall,
)
from diffusers_dp.evaluation.fidelity_report import FeatureSpace, measure_domain
from diffusers_dp.evaluation.images import ImageSet
from support.evaluating import gaussian


class TestFrechet:
    def test_equals_scipys_root_of_the_product(self):
        real, synthetic = gaussian(400), gaussian(300, seed=1, shift=0.5, scale=1.4)
        cov1, cov2 = np.cov(real, rowvar=False), np.cov(synthetic, rowvar=False)
        cross = np.trace(linalg.sqrtm(cov1 @ cov2)).real
        offset = real.astype(np.float64).mean(0) - synthetic.astype(np.float64).mean(0)
        expected = offset @ offset + np.trace(cov1) + np.trace(cov2) - 2 * cross
        found = frechet_distance(real, synthetic)
        assert found.value == pytest.approx(expected, rel=1e-6)
        assert found.covariance == "unbiased"

    def test_equals_the_closed_form_of_independent_gaussians(self):
        """Variances 1 and 4 in two exact samples: |m|^2 + sum (1 - 2)^2."""
        corners = np.array([[x, y] for x in (-1, 1) for y in (-1, 1)], np.float32) * math.sqrt(3 / 4)
        found = frechet_distance(corners, 2 * corners + np.float32([3, 4]))
        assert found.value == pytest.approx(25 + 2, rel=1e-6)

    def test_invariances(self):
        real, synthetic = gaussian(200), gaussian(200, seed=1, shift=1.0)
        value = frechet_distance(real, synthetic).value
        assert frechet_distance(real, real[::-1]).value == pytest.approx(0, abs=1e-6)
        assert frechet_distance(synthetic[::-1], real).value == pytest.approx(value, rel=1e-6)
        assert frechet_distance(real + 7, synthetic + 7).value == pytest.approx(value, rel=1e-4)

    def test_singular_covariances_give_zero_for_the_same_set(self):
        flat = np.concatenate([gaussian(50), np.zeros((50, 4), np.float32)], axis=1)
        assert frechet_distance(flat, flat).value == pytest.approx(0, abs=1e-6)

    def test_many_rows_are_summed_in_parts(self, monkeypatch):
        monkeypatch.setattr("diffusers_dp.evaluation.fidelity.ROWS_OF_A_COVARIANCE", 7)
        real, synthetic = gaussian(40), gaussian(41, seed=1)
        cov = [np.cov(x, rowvar=False) for x in (real, synthetic)]
        offset = real.mean(0) - synthetic.mean(0)
        expected = offset @ offset + np.trace(cov[0] + cov[1] - 2 * linalg.sqrtm(cov[0] @ cov[1]).real)
        assert frechet_distance(real, synthetic).value == pytest.approx(expected, rel=1e-4)

    def test_shrinkage_is_asked_for_and_said(self):
        real, synthetic = gaussian(5), gaussian(5, seed=1, shift=3.0)
        found = frechet_distance(real, synthetic, shrink=True)
        assert found.covariance == "Ledoit-Wolf"
        assert found.value > frechet_distance(real, real, shrink=True).value == pytest.approx(0, abs=1e-6)


class TestClasses:
    def test_each_class_is_compared_with_its_own(self):
        real, synthetic = gaussian(60), gaussian(60, seed=1, shift=1.0)
        real_labels, labels = np.arange(60) % 2, np.arange(60) // 30
        found = class_frechet_distances(real, real_labels, synthetic, labels, ("a", "b"))
        assert found == {
            "a": frechet_distance(real[::2], synthetic[:30]),
            "b": frechet_distance(real[1::2], synthetic[30:]),
        }

    def test_one_small_class_shrinks_all_and_an_empty_one_is_left_out(self):
        real, synthetic = gaussian(90), gaussian(90, seed=1)
        labels = np.repeat([0, 1], [87, 3])
        found = class_frechet_distances(real, np.arange(90) % 3, synthetic, labels, ("a", "b", "c"))
        assert {name: distance.covariance for name, distance in found.items()} == dict.fromkeys("ab", "Ledoit-Wolf")


class TestKernel:
    def test_equals_a_brute_force_sum(self):
        real, synthetic = gaussian(30) / 4, gaussian(30, seed=1, shift=2.0) / 4

        def kernel(x, y):
            return (sum(float(a) * float(b) for a, b in zip(x, y, strict=True)) / 6 + 1) ** 3

        pairs = [(i, j) for i in range(30) for j in range(30)]
        within = sum(kernel(real[i], real[j]) + kernel(synthetic[i], synthetic[j]) for i, j in pairs if i != j) / (
            30 * 29
        )
        between = sum(kernel(real[i], synthetic[j]) for i, j in pairs) / 30**2
        found = kernel_distance(real, synthetic, seed=0)
        assert found.value == pytest.approx(within - 2 * between, rel=1e-4)
        assert found.standard_error == pytest.approx(0, abs=1e-6)  # every subset is the whole set
        assert found.subset_size == 30

    def test_features_far_from_0_are_summed_in_float64(self):
        real, synthetic = (100 + gaussian(200, seed=seed) / 10 for seed in (0, 1))
        first, second = real.astype(np.float64), synthetic.astype(np.float64)
        kernel = [(x @ y.T / 6 + 1) ** 3 for x, y in ((first, first), (second, second), (first, second))]
        within = sum(each.sum() - np.trace(each) for each in kernel[:2]) / (200 * 199)
        found = kernel_distance(real, synthetic, seed=0, subsets=2)
        assert found.value == pytest.approx(within - 2 * kernel[2].mean(), rel=1e-4)

    def test_is_unbiased_and_says_its_spread(self):
        same = kernel_distance(gaussian(600) / 4, gaussian(600, seed=1) / 4, seed=0, subset_size=100)
        other = kernel_distance(gaussian(600) / 4, gaussian(600, seed=1, shift=1.0) / 4, seed=0, subset_size=100)
        assert abs(same.value) < 0.02 < other.value
        assert 0 < same.standard_error < 0.02
        assert same == kernel_distance(gaussian(600) / 4, gaussian(600, seed=1) / 4, seed=0, subset_size=100)


class TestInceptionScore:
    def test_equals_a_loop(self):
        rows = np.random.default_rng(0).dirichlet(np.ones(5) * 0.3, 40)
        mean = rows.mean(axis=0)
        expected = math.exp(
            np.mean([sum(p * math.log(p / q) for p, q in zip(row, mean, strict=True)) for row in rows])
        )
        assert inception_score(rows) == pytest.approx(expected, rel=1e-6)

    def test_its_ends(self):
        assert inception_score(np.full((10, 4), 0.25, np.float32)) == pytest.approx(1)
        assert inception_score(np.eye(4, dtype=np.float32).repeat(5, axis=0)) == pytest.approx(4)


def brute_force_share_within(points, manifold, k):
    """Kynkäänniemi et al., one pair at a time."""
    radii = [
        sorted(float(np.linalg.norm(a - b)) for j, b in enumerate(manifold) if j != i)[k - 1]
        for i, a in enumerate(manifold)
    ]
    return np.mean(
        [any(np.linalg.norm(p - a) <= radius for a, radius in zip(manifold, radii, strict=True)) for p in points]
    )


def scipys_share_within(points, manifold, k):
    points, manifold = points.astype(np.float64), manifold.astype(np.float64)
    distances = cdist(manifold, manifold)
    np.fill_diagonal(distances, np.inf)
    return (cdist(points, manifold) <= np.sort(distances, axis=1)[:, k - 1]).any(axis=1).mean()


class TestPrecisionRecall:
    @pytest.mark.parametrize("k", [1, 3])
    def test_equals_brute_force_over_several_chunks(self, k, monkeypatch):
        monkeypatch.setattr("diffusers_dp.evaluation.fidelity.ROWS_AT_A_TIME", 17)
        real, synthetic = gaussian(60, dimension=2), gaussian(45, dimension=2, seed=1, shift=0.2)
        precision, recall = precision_recall(real, synthetic, k=k)
        assert precision == pytest.approx(brute_force_share_within(synthetic, real, k))
        assert recall == pytest.approx(brute_force_share_within(real, synthetic, k))
        assert 0 < min(precision, recall) < max(precision, recall) < 1
        assert precision != recall

    def test_its_ends(self):
        real = gaussian(50)
        assert precision_recall(real, real[::-1].copy()) == (1, 1)
        assert precision_recall(real, real + 1000) == (0, 0)

    def test_one_mode_is_precise_and_recalls_little(self):
        """All synthetic images lie close to one real image."""
        real = gaussian(50)
        precision, recall = precision_recall(real, real[:1] + gaussian(50, scale=1e-3))
        assert precision == 1
        assert recall <= 0.02

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


def test_nearest_neighbours_equal_brute_force(monkeypatch):
    monkeypatch.setattr("diffusers_dp.evaluation.fidelity.ROWS_AT_A_TIME", 4)
    real, synthetic = gaussian(40), gaussian(10, seed=1)
    index, distances = nearest_neighbours(real, synthetic, 3)
    table = np.linalg.norm(synthetic[:, None] - real, axis=2)
    np.testing.assert_array_equal(index, table.argsort(axis=1)[:, :3])
    np.testing.assert_allclose(distances, np.sort(table, axis=1)[:, :3], rtol=1e-4)


def test_an_image_is_its_own_nearest_neighbour_at_distance_0():
    images = np.random.default_rng(0).integers(243, 248, (300, 784)).astype(np.float32) / 255
    index, distances = nearest_neighbours(images, images[:20], 1)
    assert index[:, 0].tolist() == list(range(20)) and not distances.any()


class TestDomain:
    def test_images_are_taken_for_what_they_are_like(self):
        private, public = gaussian(300), gaussian(400, seed=1, shift=8.0)
        like_private = domain_discriminator(private, public, gaussian(100, seed=2), seed=0)
        like_public = domain_discriminator(private, public, gaussian(100, seed=3, shift=8.0), seed=0)
        assert like_private.share_private > 0.9 > 0.1 > like_public.share_private
        assert like_private.accuracy > 0.9
        assert like_private.images_per_domain == 300

    def test_domains_that_are_alike_cannot_be_told_apart(self):
        found = domain_discriminator(gaussian(400), gaussian(400, seed=1), gaussian(100, seed=2), seed=0)
        assert 0.4 < found.accuracy < 0.6
        assert found.share_private_error == pytest.approx(0.05, abs=0.02)


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
    metrics = tuple(name for name in METRICS if ANALYSES[name].by_features)

    def measure(self, tmp_path, *sets, metrics=metrics, seed=0):
        return measure(space_of(tmp_path, PixelExtractor(), *sets, seed=seed), metrics)

    def test_every_number_says_how_it_came_about(self, tmp_path):
        sets = image_set(200), image_set(150, seed=1, brightness=40), image_set(80, seed=2)
        found = self.measure(tmp_path, *sets)
        assert [m.metric for m in found] == [
            "Fréchet distance (pixels)",
            "kernel distance (pixels)",
            "precision (pixels)",
            "recall (pixels)",
            "feature likelihood divergence (pixels)",
            "Fréchet distance (pixels) of class a",
            "Fréchet distance (pixels) of class b",
        ]
        for measurement in found:
            assert {"extractor", "features", "real_images", "synthetic_images", "seed"} <= set(measurement.protocol)
            assert "warning" not in measurement.protocol
        pixels = [x.images.reshape(len(x), -1).astype(np.float32) / 255 for x in sets]
        assert found[0].value == pytest.approx(frechet_distance(pixels[0], pixels[1]).value, rel=1e-6)
        assert found[0].protocol["covariance"] == "unbiased"
        assert (found[2].value, found[3].value) == precision_recall(pixels[0], pixels[1])
        assert found[5].protocol["real_images"] == 100
        assert found == self.measure(tmp_path, *sets)

    def test_a_published_name_needs_published_features(self, tmp_path):
        extractor = PixelExtractor()
        extractor.frechet_name = "FID"
        extractor.probabilities = lambda images: np.full((len(images), 2), 0.5, np.float32)
        sets = image_set(50), image_set(40, seed=1), image_set(30, seed=2)
        found = measure(space_of(tmp_path, extractor, *sets), self.metrics)
        assert [m.metric for m in found][:6] == ["FID", "KID", "Inception Score", "precision", "recall", "FLD"]

    def test_counts_are_those_of_the_tables(self, tmp_path, monkeypatch):
        monkeypatch.setattr("diffusers_dp.evaluation.fidelity_report.FRECHET_IMAGES", 60)
        monkeypatch.setattr("diffusers_dp.evaluation.fidelity_report.PAIRED_IMAGES", 50)
        found = self.measure(tmp_path, image_set(90), image_set(80, seed=1), None, metrics=("fid", "precision_recall"))
        counts = [(m.protocol["real_images"], m.protocol["synthetic_images"]) for m in found]
        assert counts == [(90, 60), (50, 50), (50, 50)]
        other = self.measure(tmp_path, image_set(90), image_set(80, seed=1), None, metrics=("fid",), seed=1)
        assert other[0].value != found[0].value  # another shuffle

    def test_real_images_as_synthetic_ones_are_warned_of(self, tmp_path):
        found = self.measure(tmp_path, image_set(50), image_set(50), None, metrics=("fid",))
        assert found[0].value == pytest.approx(0, abs=1e-6)
        assert "50 of 50 synthetic images" in found[0].protocol["warning"]

    def test_few_pixels_are_shrunk_and_said(self, tmp_path):
        found = self.measure(tmp_path, image_set(8), image_set(9, seed=1), None, metrics=("fid",))
        assert found[0].protocol["covariance"] == "Ledoit-Wolf"

    @pytest.mark.parametrize("metric", [*metrics, "public_images"])
    @pytest.mark.parametrize("broken", [math.nan, math.inf])
    def test_features_that_are_not_finite(self, tmp_path, metric, broken):
        class Broken(PixelExtractor):
            def __call__(self, images):
                return np.full((len(images), 2), np.float32(broken))

            def probabilities(self, images):
                return self(images)

        space = space_of(tmp_path, Broken(), *(image_set(20, seed=seed) for seed in range(3)), public=image_set(20))
        with pytest.raises(UsageError, match="images that are not finite"):
            measure(space, (metric,))

    def test_a_class_that_was_never_generated_is_named(self, tmp_path):
        synthetic = image_set(60, seed=1)
        real = image_set(60, num_classes=3)
        synthetic = ImageSet(synthetic.images, synthetic.labels, real.class_names)
        found = self.measure(tmp_path, real, synthetic, None, metrics=("class_fid",))
        assert [m.metric[-7:] for m in found[:2]] == ["class a", "class b"]
        assert (found[2].value, found[2].protocol["never_generated"]) == (1, ["c"])

    def test_the_domain_is_measured_in_the_same_way(self, tmp_path):
        public = image_set(60, seed=1, brightness=180)
        sets = image_set(60), image_set(30, seed=2)
        share, accuracy = measure_domain(space_of(tmp_path, PixelExtractor(), *sets, public=public))
        assert share.value > 0.9 and accuracy.value > 0.9
        assert share.protocol["public_origin"] == {"name": "noise 1"}
