# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Where judged images come from, and how they are made comparable; each thing that cannot be compared has its own
sentence."""

import datasets
import numpy as np
import pytest
from PIL import Image

from diffusers_dp.data.images import load_images, public_facts
from diffusers_dp.data.sources import load_digits_split
from diffusers_dp.errors import UsageError
from diffusers_dp.evaluation.images import (
    ImageSet,
    Source,
    common_shape,
    fit_to_shape,
    validation_split,
    with_classes_of,
)
from diffusers_dp.methods.feta_pro import FETAProConfig
from diffusers_dp.randomness.keyed_hash import digests_of
from support.images import write_dataset


@pytest.fixture(scope="module")
def digits():
    return load_digits_split(train=True)


def test_what_is_written_is_read(tmp_path, digits):
    images, labels = digits[0][:30], digits[1][:30]
    source = Source("--real", str(write_dataset(tmp_path / "real", images, labels, "0123456789")))
    assert source.shape("train", tmp_path / "cache") == (1, 8, 8)
    found = source.load("train", (1, 8, 8), resize=False, cache_dir=tmp_path / "cache", limit=30)
    assert np.array_equal(found.images, images) and np.array_equal(found.labels, labels)
    assert found.class_names == tuple("0123456789")
    assert found.origin == {"dataset": "real", "split": "train", "unreadable": 0}  # no path of this machine


def test_fewer_images_are_drawn_from_all_of_them(tmp_path, digits):
    """The first ones of a folder that is sorted by class would be of its first class."""
    order = digits[1][:400].argsort(kind="stable")
    images, labels = digits[0][order], digits[1][order]
    source = Source("--images", str(write_dataset(tmp_path / "sorted", images, labels, "0123456789")))

    def load(seed):
        return source.load("train", (1, 8, 8), resize=False, cache_dir=tmp_path / "cache", limit=100, seed=seed)

    rows = {bytes(digest): row for row, digest in enumerate(digests_of(range(400)))}

    def rows_of(found):
        return np.array([rows[bytes(digest)] for digest in found.ids])

    found = load(0)
    drawn = rows_of(found)
    assert len(found) == len(set(drawn)) == 100 and len(set(found.labels)) == 10 and (np.diff(drawn) > 0).all()
    assert np.array_equal(found.images, images[drawn]) and np.array_equal(found.labels, labels[drawn])
    assert found.origin["drawn"] == "100 of 400 images at random, without replacement, by seed 0"
    assert np.array_equal(load(0).ids, found.ids) and not np.array_equal(load(1).ids, found.ids)
    counts = np.bincount(np.concatenate([rows_of(load(seed)) for seed in range(8)]), minlength=400)
    assert counts.max() < 8 and abs(counts[:200].sum() - 400) < 55  # each as likely


def test_another_size_is_refused_with_both_and_made_to_fit_on_request(tmp_path, digits):
    source = Source("--real", str(write_dataset(tmp_path / "real", np.zeros((2, 3, 10, 12), np.uint8))))
    shape = source.shape("train", tmp_path / "cache")
    assert shape == (3, 10, 12)
    with pytest.raises(UsageError, match="8x8 pixels and 1 channel .* 12x10 pixels and 3 channels; --resize"):
        common_shape((1, 8, 8), shape, resize=False)
    assert common_shape((1, 8, 8), shape, resize=True) == (1, 8, 8) == common_shape((3, 8, 8), (1, 5, 5), resize=True)
    with pytest.raises(UsageError, match="12x10 pixels and 3 channels where 8x8 .* --resize"):
        source.load("train", (1, 8, 8), resize=False, cache_dir=tmp_path / "cache")
    assert source.load("train", (1, 8, 8), resize=True, cache_dir=tmp_path / "cache").images.shape == (2, 1, 8, 8)


def test_fit_is_the_published_preprocessing():
    image = np.random.default_rng(0).integers(0, 256, (3, 20, 30), dtype=np.uint8)
    picture = Image.fromarray(image.transpose(1, 2, 0))
    wanted = picture.resize((10, 10), Image.Resampling.LANCZOS, box=(5, 0, 25, 20))
    assert np.array_equal(fit_to_shape(image, (3, 10, 10)), np.asarray(wanted).transpose(2, 0, 1))
    grey = np.tensordot([0.299, 0.587, 0.114], image.astype(float), 1)
    assert np.abs(fit_to_shape(image, (1, 20, 30))[0] - grey).max() <= 1
    assert np.array_equal(fit_to_shape(image[:1], (3, 20, 30)), np.repeat(image[:1], 3, axis=0))


def test_the_validation_images_are_those_that_training_leaves_out(tmp_path, digits):
    """Also where an image cannot be read: both go by ids."""
    folder = write_dataset(tmp_path / "real", digits[0][:40], digits[1][:40], "0123456789")
    table = datasets.load_dataset(str(folder), split="train").cast_column("image", datasets.Image(decode=False))
    rows = [{"image": {"bytes": b"damaged"}, "label": 1} if i == 7 else row for i, row in enumerate(table)]
    damaged = datasets.Dataset.from_list(rows, features=table.features)
    damaged.to_parquet(folder / "train-00000-of-00001.parquet")
    config = FETAProConfig(dataset_name=str(folder), validation_size=15, resolution=8, num_channels=1)
    arrays = load_images(config.data, public_facts(config.data), tmp_path / "training")
    images = Source("--real", str(folder)).load("train", (1, 8, 8), resize=False, cache_dir=tmp_path / "cache")
    train, validation = validation_split(images, 15)
    assert np.array_equal(train.images, arrays.images[arrays.readable])
    assert np.array_equal(train.labels, arrays.labels[arrays.readable])
    together = {image.tobytes() for image in (*train.images, *validation.images)}
    assert len(train) + len(validation) == 39 and len(together) == len(set(map(bytes, images.images)))
    assert not set(map(bytes, train.ids)) & set(map(bytes, validation.ids))
    with pytest.raises(UsageError, match="--validation_size 40"):
        validation_split(images, 40)


def make_set(labels, names, images=None):
    images = np.arange(len(labels) * 4, dtype=np.uint8).reshape(-1, 1, 2, 2) if images is None else images
    return ImageSet(images, None if labels is None else np.array(labels), names)


def test_classes_go_by_name_and_what_is_missing_is_warned_of():
    real = make_set([0, 1, 2], ("cat", "dog", "elk"))
    found, warnings = with_classes_of(make_set([0, 1, 1], ("elk", "cat")), real)
    assert found.labels.tolist() == [2, 0, 0] and found.class_names == real.class_names
    assert warnings == ["No synthetic image was generated of: dog."]
    found, warnings = with_classes_of(make_set([0, 1, 2], ("a", "b", "c")), real)
    assert found.labels.tolist() == [0, 1, 2] and "by position" in warnings[0]
    found, warnings = with_classes_of(make_set([0, 1, 2], ("dog ", "cat ", "elk ")), real)
    assert found.labels.tolist() == [1, 0, 2] and warnings == []
    for names in (("cat", "fox"), ("Dog", "Cat", "Elk"), ("cat", "cat ")):
        with pytest.raises(UsageError, match=f"{', '.join(names)}.*cat, dog, elk.*--class_names"):
            with_classes_of(make_set([0, 1], names), real)
    unlabelled = ImageSet(real.images)
    assert with_classes_of(unlabelled, real)[1] == [
        "The synthetic images have no labels: utility and features of a classifier are left out."
    ]
    assert with_classes_of(real, unlabelled)[0].labels is None


@pytest.mark.parametrize(
    ("own", "others", "declared", "places"),
    [
        (("a", "b"), ("b", "a"), "x,y", None),  # each by position: the classes of one would be those of the other
        (("a", "b"), ("b", "c"), "x,y", None),
        (("a", "b"), ("a", "b"), "x,y", [0, 1]),
        (("a", "b"), ("b", "a"), "b,a", [1, 0]),
        (("a", "b"), ("0", "1"), "a,b", [0, 1]),
        (("a", "b"), ("a",), "b,a", [1, 0]),
    ],
)
def test_declared_names_do_not_hide_that_two_sets_order_their_classes_otherwise(
    tmp_path, digits, own, others, declared, places
):
    def read(flag, names):
        labels = [min(i, len(names) - 1) for i in range(2)]
        folder = write_dataset(tmp_path / flag, digits[0][:2], labels, names)
        source = Source(f"--{flag}", str(folder), class_names=declared)
        return source.load("train", (1, 8, 8), resize=False, cache_dir=tmp_path / f"cache of {flag}")

    synthetic, real = read("images", own), read("real", others)
    if places is None:
        with pytest.raises(UsageError, match=f"{', '.join(own)}.*{', '.join(others)}.*--class_names"):
            with_classes_of(synthetic, real)
    else:
        assert with_classes_of(synthetic, real)[0].labels.tolist() == places


def test_names_of_a_model_are_compared_with_those_that_the_real_images_have_themselves(tmp_path, digits):
    folder = write_dataset(tmp_path / "real", digits[0][:2], [0, 1], ("b", "a"))
    source = Source("--real", str(folder), class_names="x,y")
    real = source.load("train", (1, 8, 8), resize=False, cache_dir=tmp_path / "cache")
    with pytest.raises(UsageError, match="a, b.*b, a"):
        with_classes_of(make_set([0, 1], ("a", "b")), real)
    assert with_classes_of(make_set([0, 1], ("x", "y")), real)[1] == []
