# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Queries whose answer about an image is a choice: the choice follows from that image alone, to the last bit."""

import numpy as np
import pytest
import torch
from PIL import Image

from diffusers_dp import PrivacyLedger, SensitiveImages
from diffusers_dp.data.images import load_images, public_facts
from diffusers_dp.data.records import DataSource
from diffusers_dp.queries.moments import PartCovariances, PartMeans
from diffusers_dp.queries.one_image import largest, one_by_one
from diffusers_dp.queries.semantic import PublicClassifier, SemanticQuery
from diffusers_dp.queries.tangent import TangentFeatures
from diffusers_dp.queries.votes import NearestCandidates, PooledPixels, Votes, embed_all
from support.doors import Noiseless
from support.feature_networks import save_classifier
from support.few import few


CLASSES = ("a", "b", "c", "never")
SIDE, NUMBER = 16, 20


def symmetric(count, channels=1, seed=0):
    """Images of noise whose left half mirrors the right one: as near to a candidate as to its mirror image."""
    images = np.random.default_rng(seed).integers(0, 256, (count, channels, SIDE, SIDE), dtype=np.uint8)
    images[..., SIDE // 2 :] = images[..., : SIDE // 2][..., ::-1]
    return images


def mirrored(channels=1):
    """Candidates and their mirror images, uint8."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(256, (NUMBER // 2, channels, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    return torch.cat([drawn, drawn.flip(-1)])


class Projected:
    """Products with weights and with their mirror images: two sums of equal terms, which only rounding tells apart."""

    def __init__(self, channels=1):
        weights = torch.randn(3, channels, SIDE, SIDE, generator=torch.Generator().manual_seed(2))
        self.weights = torch.cat([weights, weights.flip(-1)]).flatten(1)

    def __call__(self, images):
        return images.flatten(1) @ self.weights.T


def features_of(embed, channels=1, votes=1):
    """Every class has the tied candidates."""
    embedded = embed_all(embed, mirrored(channels)).view(1, NUMBER, -1)
    return NearestCandidates(embed, embedded.repeat(len(CLASSES), 1, 1), votes)


def sensitive(images, labels, readable=None, *, num_images, unit="image", **more):
    """A door with a ledger that has room for every query."""
    ledger = PrivacyLedger(
        None, target_epsilon=1e9, target_delta=1e-3, num_images=more.get("num_units", num_images), accountant="rdp",
        unit_of_privacy=unit,
    )  # fmt: skip
    return SensitiveImages(images, labels, readable, num_images=num_images, ledger=ledger, **more)


def votes_of(door, features, votes=1):
    query = Votes(generation=1, num_candidates=NUMBER, num_votes=votes, image_shape=door.image_shape)
    door._generator = Noiseless()
    return query.ask(door, features, noise_multiplier=1.0)[0].double()


def write(folder, images, labels):
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        picture = Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
        picture.save(folder / CLASSES[label] / f"{number:03}.png")


def door_of(folder, cache, count, channels=1):
    """Through the real loader."""
    data = DataSource(
        train_data_dir=str(folder), class_names=CLASSES, image_shape=(channels, SIDE, SIDE), num_train_images=count
    )
    facts = public_facts(data)
    arrays = load_images(data, facts, cache)
    return sensitive(
        arrays.images, arrays.labels, arrays.readable, num_images=facts.num_images, image_shape=facts.image_shape,
        class_names=facts.class_names,
    )  # fmt: skip


EMBEDDINGS = {
    "pixels": lambda channels: PooledPixels(1),
    "pooled": lambda channels: PooledPixels(2),
    "projected": Projected,
}


@pytest.mark.parametrize("embedding", EMBEDDINGS)
@pytest.mark.parametrize("count", few([1, 2, 7, 12, 13, 25, 40], 0, 2, 4))
def test_one_image_moves_votes_by_one_exactly_whoever_shares_its_batch(embedding, count):
    """Groups of every size, and a class of one image."""
    features, images = features_of(EMBEDDINGS[embedding](1)), symmetric(count)

    def answer(labels, without=None):
        return votes_of(
            sensitive(
                images, labels, np.arange(count) != without, num_images=count, image_shape=(1, SIDE, SIDE),
                class_names=CLASSES,
            ),
            features,
        )  # fmt: skip

    for labels in (np.arange(count) % 3, np.minimum(np.arange(count), 1), np.zeros(count, dtype=np.int64)):
        everybody = answer(labels)
        for without in range(count):
            move = everybody - answer(labels, without)
            assert move.abs().sum() == 1 and move[labels[without]].sum() == 1, (without, labels)


@pytest.mark.parametrize("embedding", EMBEDDINGS)
@pytest.mark.parametrize("votes", [1, 3])
def test_the_votes_of_an_image_do_not_depend_on_the_batch(embedding, votes):
    """Not on its size, its order, the other images or their classes."""
    features = features_of(EMBEDDINGS[embedding](1), votes=votes)
    images, labels = torch.from_numpy(symmetric(48)).float() / 255, torch.arange(48) % 3
    together = features(images, labels)
    assert torch.equal(
        torch.cat([features(x, y) for x, y in zip(images.split(1), labels.split(1), strict=True)]), together
    )
    assert torch.equal(features(images.flip(0), labels.flip(0)).flip(0), together)
    for size in (2, 5, 7, 16, 31):
        found = [features(x, y) for x, y in zip(images.split(size), labels.split(size), strict=True)]
        assert torch.equal(torch.cat(found), together), size
    kept = torch.arange(48) % 2 == 0
    for mates, classes in (
        (torch.zeros_like(images), torch.zeros_like(labels)),
        (1 - images, labels),
        (images, labels + 1),
    ):
        mixed = features(torch.where(kept[:, None, None, None], images, mates), torch.where(kept, labels, classes))
        assert torch.equal(mixed[kept], together[kept])


def test_an_image_chooses_its_part_of_moments_alone(tmp_path):
    """Through the real loader. Two centres are mirror images, and as near to each image, so that rounding would
    choose."""
    count, shape = 13, (1, SIDE, SIDE)
    asked = {"image_shape": shape, "num_frequencies": 12, "num_parts": 4}
    images, labels = symmetric(count), np.arange(count) % 3
    write(tmp_path / "images", images, labels)
    query = PartMeans(number=1, **asked)
    drawn = torch.randn(len(CLASSES) * 2, query.num_dimensions, generator=torch.Generator().manual_seed(3))
    mirrored = query.spectrum(query.spectrum.images(drawn).flip(-1))
    centres = torch.stack([drawn, mirrored], 1).view(len(CLASSES), 4, -1)

    def answer(query, cache):
        door = door_of(tmp_path / "images", tmp_path / cache, count)
        door._generator = Noiseless()
        return query.ask(door, query.rows(centres, 0.5), noise_multiplier=1.0)[0].double()

    queries = query, PartCovariances(**asked)
    everybody = [answer(each, "all") for each in queries]
    for number in (0, 1, 5, 12):
        path = tmp_path / "images" / CLASSES[labels[number]] / f"{number:03}.png"
        content = path.read_bytes()
        path.unlink() if number % 2 else path.write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
        for whole, each in zip(everybody, queries, strict=True):
            moved = whole - answer(each, f"cache-{number}")
            assert moved.norm().item() == pytest.approx(1, abs=1e-5)
            parts = moved[labels[number]].unflatten(0, (4, -1)).norm(dim=1) > 1e-3
            assert parts.sum() == 1, "its own part"
        path.write_bytes(content)

    images, labels = torch.from_numpy(symmetric(48)).float() / 255, torch.arange(48) % 4
    rows = query.rows(centres, 0.5)
    together = rows(images, labels)
    for size in (1, 2, 7, 31):
        found = [rows(x, y) for x, y in zip(images.split(size), labels.split(size), strict=True)]
        torch.testing.assert_close(torch.cat(found), together, atol=1e-5, rtol=0)


def test_of_tied_candidates_the_first_ones_get_the_votes():
    """Every candidate is there six times, and all are the same."""
    images = torch.from_numpy(symmetric(9)).float() / 255
    embedded = embed_all(PooledPixels(2), mirrored()[:3]).repeat(6, 1)[None]
    rows = NearestCandidates(PooledPixels(2), embedded, 8)(images, None)
    nearest = torch.cdist(PooledPixels(2)(images), embedded[0, :3]).argsort(1)[:, :2]
    for row, (first, second) in zip(rows, nearest.tolist(), strict=True):
        wanted = {first + 3 * i for i in range(6)} | {second, second + 3}
        assert set(row.nonzero().flatten().tolist()) == wanted
    same = NearestCandidates(PooledPixels(2), embedded[:, :1].repeat(1, 12, 1), 2)(images, None)
    assert same[:, :2].gt(0).all() and same[:, 2:].eq(0).all()


def test_an_embedding_that_is_no_number_votes_for_nobody():
    """A network may overflow on an image. The others keep their votes."""
    images = torch.from_numpy(symmetric(6)).float() / 255
    images[2] = 0

    def embed(x):
        return PooledPixels(2)(x) / (x.amax((1, 2, 3)) > 0)[:, None]

    rows = NearestCandidates(embed, embed_all(PooledPixels(2), mirrored())[None])(images, None)
    assert rows.sum(1).tolist() == [1, 1, 0, 1, 1, 1] and rows.isfinite().all()


def test_far_away_images_vote_for_the_candidate_on_their_side():
    """Beyond the grid, whose ends the public candidates decide."""
    candidates = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]])
    rows = NearestCandidates(lambda x: x.flatten(1), candidates)(
        torch.tensor([[1e30, 1.0], [-1e30, 1.0], [-0.1, 9.0]]), None
    )
    assert rows.argmax(1).tolist() == [0, 1, 1]


def test_the_largest_of_a_row():
    scores = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0], [5.0, 1.0, 2.0, 3.0]])
    assert largest(scores, 1).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    assert largest(scores, 2).tolist() == [[0, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 1]]
    assert largest(scores, 3).tolist() == [[0, 1, 1, 1], [1, 1, 1, 0], [1, 0, 1, 1]]
    assert largest(scores, 4).eq(1).all()


def test_images_one_by_one():
    """Each in a batch of one, in memory of its own."""
    images, seen = torch.rand(5, 3, 7, 7), []
    found = one_by_one(lambda x: seen.append((tuple(x.shape), x.data_ptr() % 64)) or x.flatten(1), images)
    assert torch.equal(found, images.flatten(1)) and seen == [((1, 3, 7, 7), 0)] * 5


def test_what_an_image_looks_like_does_not_depend_on_the_batch(tmp_path):
    """The semantic query: the same public classes, whatever the batch; of tied ones the first."""
    classifier = PublicClassifier(save_classifier(tmp_path / "network", 12), (3, SIDE, SIDE))
    query = SemanticQuery(classifier=classifier, classes_per_class=3)
    images = torch.from_numpy(symmetric(12, 3)).float() / 255
    seen, network = [], classifier.loaded[0]
    network.register_forward_pre_hook(lambda *call: seen.append(len(call[2]["pixel_values"])), with_kwargs=True)
    with torch.no_grad():
        rows = query.features(images, None)
        assert set(seen) == {1}
        assert torch.equal(torch.cat([query.features(x, None) for x in images.split(5)]), rows)
        torch.nn.init.zeros_(network.classifier[1].weight)
        torch.nn.init.zeros_(network.classifier[1].bias)
        assert query.features(images, None)[:, :3].eq(1).all(), "all are tied"


def test_a_gradient_that_jumps_is_that_of_one_image():
    """The derivative of a ReLU jumps where its input is zero: by rounding, an image beside others would have another
    gradient than alone."""
    phi = TangentFeatures((1, SIDE, SIDE), 40, 0)
    images = torch.from_numpy(symmetric(30)).float() / 255
    together = phi(images)
    for size in (1, 4, 7):
        assert torch.equal(torch.cat([phi(x) for x in images.split(size)]), together)
