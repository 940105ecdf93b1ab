import numpy as np
import pytest
import torch
from PIL import Image

from diffusers_dp.models.augmentation import OPERATIONS, AugmentationBag, deformed
from diffusers_dp.sampling.drawing import generators


SHAPES = [(1, 8, 8), (3, 32, 32)]
STRENGTHS = [bin / 30 for bin in range(1, 10)]


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
    def test_ranges_of_the_pixel_operations(self, shape):
        pixels = np.array(picture(shape)).astype(int)
        assert (apply("autocontrast", shape).min(), apply("autocontrast", shape).max()) == (0, 255)
        # Bin 9: thresholds 255 * 0.7, 8 - round(1.2) = 7 bits, factors 1 +- 0.27.
        assert (apply("solarize", shape) == np.where(pixels < round(255 * 0.7), pixels, 255 - pixels)).all()
        assert (apply("posterize", shape) == pixels & 0b11111110).all()
        assert (apply("posterize", shape, 1.0) == pixels & 0b11110000).all()
        assert np.abs(apply("brightness", shape, 0.3, -1) - pixels * 0.73).max() <= 1
        assert apply("contrast", shape, 0.3, 1).std() > pixels.std() > apply("contrast", shape, 0.3, -1).std()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
class TestBag:
    def test_follows_from_its_generator_alone(self, shape):
        first, again, other = bag(1), bag(1), bag(2)
        outputs = first(images(shape, 16))
        torch.manual_seed(5)
        assert torch.equal(outputs, again(images(shape, 16)))
        assert not torch.equal(outputs, other(images(shape, 16)))
        assert not torch.equal(outputs, first(images(shape, 16)))  # every fetch draws anew


class TestDraw:
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


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_deformations_by_their_definition(shape):
    """None at next to no strength, no new values in an even image, the same with the same seed, and small ones."""
    drawn, even = images(shape), torch.full((3, *shape), 77, dtype=torch.uint8)
    assert deformed(drawn, 1e-6, generators(0, range(4))).equal(drawn)
    assert deformed(even, 2.0, generators(0, range(3))).equal(even)
    whole, part = (deformed(drawn[own.start :], 1.0, generators(0, own)) for own in (range(4), range(2, 4)))
    assert whole[2:].equal(part) and not whole.equal(drawn)
    side = shape[-1]
    places = (torch.arange(side) + 0.5) / side
    dot = 255 * torch.exp(-(((places - 0.5) / 0.1) ** 2))
    dots = (dot[:, None] * dot / 255).byte().expand(2000, *shape)
    moved = deformed(dots, 1.0, generators(1, range(2000))).float().mean(1)
    rows, columns = (moved.sum(axis) @ places / moved.sum((1, 2)) - 0.5 for axis in (2, 1))
    for shift in (rows, columns):  # uniform up to a fourteenth, with bends of a 28th
        assert abs(shift.mean()) < 0.005 and 0.04 < shift.std() < 0.06


def test_a_wide_image_is_turned_and_not_sheared():
    """Two lines that meet at a right angle do so afterwards."""
    rows, columns = torch.meshgrid(torch.arange(48) - 23.5, torch.arange(192) - 95.5, indexing="ij")
    lines = torch.stack([255.0 * (each.abs() < 2) * (rows.hypot(columns) < 22) for each in (rows, columns)])

    def angles(images: torch.Tensor) -> torch.Tensor:
        weights = images.float().sum(1)
        weights = weights / weights.sum((1, 2), keepdim=True)
        y, x = (each - (weights * each).sum((1, 2))[:, None, None] for each in (rows, columns))
        xx, yy, xy = ((weights * each).sum((1, 2)) for each in (x * x, y * y, x * y))
        return 90 / torch.pi * torch.atan2(2 * xy, xx - yy)

    across, down = (
        angles(deformed(line.byte().expand(200, 1, 48, 192), 1.0, generators(0, range(200)))) for line in lines
    )
    assert 8 < across.std() < 9.5  # uniform up to 15 degrees, and bends
    between = (down - across).abs()
    assert 85 < between.median() < 95 and between.quantile(0.9) < 100
