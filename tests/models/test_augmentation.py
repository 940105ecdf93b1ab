import numpy as np
import pytest
import torch
from PIL import Image

from diffusers_dp.models.augmentation import OPERATIONS, AugmentationBag


SHAPES = [(1, 8, 8), (3, 32, 32)]
STRENGTHS = [bin / 30 for bin in range(1, 10)]
GEOMETRIC = ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"]
# What must change an image that is neither flat nor binary nor of full range, at the largest strength that is drawn.
CHANGING = [*GEOMETRIC, "autocontrast", "solarize", "posterize", "contrast", "brightness", "sharpness"]


def bag(seed: int = 0, **kwargs) -> AugmentationBag:
    return AugmentationBag(np.random.default_rng(seed), **kwargs)


def images(shape: tuple[int, int, int], count: int = 4) -> torch.Tensor:
    return torch.randint(20, 230, (count, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def picture(shape: tuple[int, int, int]) -> Image.Image:
    pixels = images(shape, 1)[0].permute(1, 2, 0).numpy()
    return Image.fromarray(pixels[..., 0] if shape[0] == 1 else pixels)


def apply(name: str, shape: tuple[int, int, int], strength: float = 0.3, sign: int = 1) -> np.ndarray:
    return np.array(OPERATIONS[name](picture(shape), strength, sign)).astype(int)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
class TestOperations:
    @pytest.mark.parametrize("sign", [-1, 1])
    @pytest.mark.parametrize("name", OPERATIONS)
    def test_keeps_mode_size_and_input(self, name, shape, sign):
        before = picture(shape)
        for strength in STRENGTHS:
            after = OPERATIONS[name](before, strength, sign)
            assert (after.mode, after.size) == (before.mode, before.size)
        assert before.tobytes() == picture(shape).tobytes()

    @pytest.mark.parametrize("sign", [-1, 1])
    @pytest.mark.parametrize("name", CHANGING)
    def test_changes_the_image(self, name, shape, sign):
        assert (apply(name, shape, 0.3, sign) != np.array(picture(shape))).any()

    @pytest.mark.parametrize("name", [*GEOMETRIC, "identity", "color", "contrast", "brightness", "sharpness"])
    def test_strength_zero_is_the_identity(self, name, shape):
        assert (apply(name, shape, 0.0) == np.array(picture(shape))).all()

    def test_color_changes_colours_and_no_grey_image(self, shape):
        assert (apply("color", shape) != np.array(picture(shape))).any() == (shape[0] == 3)

    def test_equalize_flattens_the_histogram_of_images_of_256_pixels_or_more(self, shape):
        pixels, after = np.array(picture(shape)).astype(int), apply("equalize", shape)
        if shape[1] * shape[2] < 256:  # PIL's histogram has no whole step then
            assert (after == pixels).all()
        else:
            assert after.min() == 0 and after.max() >= 250 and after.std() > pixels.std()

    def test_ranges_of_the_pixel_operations(self, shape):
        pixels = np.array(picture(shape)).astype(int)
        assert (apply("autocontrast", shape).min(), apply("autocontrast", shape).max()) == (0, 255)
        # Bin 9: thresholds 255 * 0.7, 8 - round(1.2) = 7 bits, factors 1 +- 0.27.
        assert (apply("solarize", shape) == np.where(pixels < round(255 * 0.7), pixels, 255 - pixels)).all()
        assert (apply("posterize", shape) == pixels & 0b11111110).all()
        assert (apply("posterize", shape, 1.0) == pixels & 0b11110000).all()
        assert np.abs(apply("brightness", shape, 0.3, -1) - pixels * 0.73).max() <= 1
        assert apply("contrast", shape, 0.3, 1).std() > pixels.std() > apply("contrast", shape, 0.3, -1).std()

    def test_uncovered_pixels_are_black(self, shape):
        strength = 331 / 150 / shape[1]  # one pixel
        pixels = np.array(picture(shape)).astype(int)
        moved_x, moved_y = apply("translate_x", shape, strength, -1), apply("translate_y", shape, strength, 1)
        assert (moved_x[:, 0] == 0).all() and np.abs(moved_x[:, 1:] - pixels[:, :-1]).max() <= 1
        assert (moved_y[-1] == 0).all() and np.abs(moved_y[:-1] - pixels[1:]).max() <= 1

    def test_shears_leave_the_corner_where_it_is(self, shape):
        pixels = np.array(picture(shape)).astype(int)
        assert np.abs(apply("shear_x", shape)[0] - pixels[0]).max() < np.abs(apply("shear_x", shape) - pixels).max()
        assert (
            np.abs(apply("shear_y", shape)[:, 0] - pixels[:, 0]).max() < np.abs(apply("shear_y", shape) - pixels).max()
        )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
class TestBag:
    def test_shape_type_and_input(self, shape):
        before = images(shape)
        after = bag()(before)
        assert (after.shape, after.dtype) == (before.shape, torch.uint8)
        assert torch.equal(before, images(shape))

    def test_follows_from_its_generator_alone(self, shape):
        first, again, other = bag(1), bag(1), bag(2)
        outputs = first(images(shape, 16))
        torch.manual_seed(5)
        assert torch.equal(outputs, again(images(shape, 16)))
        assert not torch.equal(outputs, other(images(shape, 16)))
        assert not torch.equal(outputs, first(images(shape, 16)))  # every fetch draws anew

    def test_each_image_is_augmented_by_itself(self, shape):
        batch, single = bag(3), bag(3)
        together = batch(images(shape))
        assert torch.equal(together, torch.cat([single(image[None]) for image in images(shape)]))

    def test_an_image_may_stay_as_it_is(self, shape):
        same = torch.stack([images(shape)[0]] * 400)
        changed = (bag()(same) != same).flatten(1).any(dim=1)
        assert 0 < changed.sum() < 400

    def test_an_empty_batch(self, shape):
        assert bag()(images(shape, 0)).shape == (0, *shape)


class TestDraw:
    def test_the_bag_holds_the_fourteen_operations(self):
        assert sorted(OPERATIONS) == sorted(
            "identity autocontrast equalize rotate solarize color posterize contrast brightness sharpness "
            "shear_x shear_y translate_x translate_y".split()
        )

    def test_all_operations_strengths_and_signs_are_reached_alike(self):
        drawn = bag()
        fetches = [drawn.draw() for _ in range(7000)]
        assert all(len(fetch) == 2 and fetch[0][1] == fetch[1][1] for fetch in fetches)
        for place, expected in ((0, OPERATIONS), (1, STRENGTHS), (2, [-1, 1])):
            values, counts = np.unique(
                [operation[place] for fetch in fetches for operation in fetch], return_counts=True
            )
            assert sorted(values.tolist()) == sorted(expected)
            # One magnitude serves two operations: at most twice the binomial variance. Five standard deviations.
            assert np.abs(counts - 14000 / len(counts)).max() < 5 * np.sqrt(2 * 14000 / len(counts))
        assert any(first[0] == second[0] for first, second in fetches)  # with replacement

    def test_num_ops_and_magnitudes(self):
        fetch = bag(num_ops=3, magnitudes=(30, 30)).draw()
        assert [strength for _, strength, _ in fetch] == [1.0] * 3


class TestRefusals:
    @pytest.mark.parametrize(
        "kwargs", [{"num_ops": 0}, {"magnitudes": (9, 1)}, {"magnitudes": (-1, 3)}, {"magnitudes": (1, 31)}]
    )
    def test_values(self, kwargs):
        with pytest.raises(ValueError):
            bag(**kwargs)

    @pytest.mark.parametrize(
        "wrong",
        [torch.zeros(1, 1, 8, 8), torch.zeros(1, 8, 8, dtype=torch.uint8), torch.zeros(1, 2, 8, 8, dtype=torch.uint8)],
    )
    def test_images(self, wrong):
        with pytest.raises(ValueError, match="uint8 of shape"):
            bag()(wrong)
