# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Votes: what one image adds, where it goes, and what follows from a noisy histogram."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffusers_dp import PrivacyLedger, SensitiveImages
from diffusers_dp.queries.votes import (
    FALSE_SHARE,
    OF_UNIT_VECTORS,
    CaptionVotes,
    NearestCandidates,
    PooledPixels,
    SharedCaptionVotes,
    Votes,
    draw_parents,
    embed_all,
    hash_tensor,
)
from diffusers_dp.randomness.private_generator import PrivateGenerator


SHAPE, CLASSES, NUMBER = (1, 8, 8), ("a", "b", "c"), 20
PIXELS = PooledPixels(2)


def public(count, seed=0):
    return torch.randint(256, (count, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


CANDIDATES = embed_all(PIXELS, public(len(CLASSES) * NUMBER)).view(len(CLASSES), NUMBER, -1)


def query(**fields):
    return Votes(**{"generation": 1, "num_candidates": NUMBER, "image_shape": SHAPE, **fields})


class Silent(PrivateGenerator):
    def normal(self, shape, std, device="cpu"):
        return torch.zeros(shape, dtype=torch.float64, device=device)


def answer(images, labels, votes=1, units=None, **noise):
    options = {} if units is None else {"units": np.array(units), "num_units": 6}
    ledger = PrivacyLedger(
        None, target_epsilon=1e9, target_delta=1e-3, num_images=6 if units else 12, accountant="rdp",
        unit_of_privacy="image" if units is None else "patient",
    )  # fmt: skip
    door = SensitiveImages(
        np.asarray(images), np.asarray(labels), num_images=12, image_shape=SHAPE, ledger=ledger, class_names=CLASSES,
        **options,
    )  # fmt: skip
    door._generator = noise.get("generator", Silent())
    features = NearestCandidates(PIXELS, CANDIDATES, votes)
    sums = query(num_votes=votes).ask(door, features, noise_multiplier=1.0)
    return sums[0], ledger.rows[0]


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["noise", "white", "black", "candidate"]), label=st.integers(0, 2), votes=st.integers(1, 5),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_an_image_adds_a_vector_of_norm_one_to_its_own_class(kind, label, votes, seed):
    """Whatever it shows: k votes of 1 / sqrt(k), for the k nearest candidates of its class alone."""
    image = {
        "noise": public(1, seed), "white": torch.full((1, *SHAPE), 255, dtype=torch.uint8),
        "black": torch.zeros(1, *SHAPE, dtype=torch.uint8), "candidate": public(60)[seed % 60][None],
    }[kind].numpy()  # fmt: skip
    others = public(5, seed + 1).numpy()
    labels = np.array([0, 1, 2, 1, 0])
    without, _ = answer(others, labels, votes)
    within, row = answer(np.concatenate([others, image]), np.append(labels, label), votes)
    added = within - without
    assert added[label].norm().item() == pytest.approx(1.0, abs=1e-5) and added[label].min() >= -1e-6
    assert sorted(added[label].tolist())[-votes:] == pytest.approx([1 / math.sqrt(votes)] * votes, abs=1e-5)
    assert np.delete(added.numpy(), label, axis=0) == pytest.approx(0)
    assert row["query"]["sensitivity"] == 1.0 and row["partition"] == "label"


@pytest.mark.parametrize("votes", [1, 3])
def test_the_nearest_candidates_of_a_class_get_the_votes(votes):
    images = public(40, 7)
    labels = torch.arange(40) % 3
    rows = NearestCandidates(PIXELS, CANDIDATES, votes)(images.float() / 255, labels)
    distances = torch.cdist(PIXELS(images.float() / 255)[:, None], CANDIDATES[labels]).squeeze(1)
    for row, distance in zip(rows, distances, strict=True):
        assert set(row.nonzero().flatten().tolist()) == set(distance.topk(votes, largest=False).indices.tolist())
    alone = torch.cat([NearestCandidates(PIXELS, CANDIDATES, votes)(images[i : i + 1] / 255, labels[i : i + 1])
                       for i in range(40)])  # fmt: skip
    assert torch.equal(alone, rows)
    shared = NearestCandidates(PIXELS, CANDIDATES[:1], votes)(images.float() / 255, None)
    assert torch.equal(shared, NearestCandidates(PIXELS, CANDIDATES[:1], votes)(images.float() / 255, labels))


def test_a_noisy_histogram_loses_its_threshold_and_never_its_parents():
    asked = query(threshold=2.0)
    votes = asked.finish(torch.tensor([[[9.0, 3.0, -4.0], [-1.0, 2.0, 5.9]]]), 100, 3.0)
    assert votes.tolist() == [[3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    drawn = draw_parents(votes, 3000, generators[0])
    assert drawn.shape == (2, 3000) and drawn[0].eq(0).all()
    assert drawn[1].bincount(minlength=3).tolist() == pytest.approx([1000] * 3, abs=120), "an empty one: evenly"
    assert torch.equal(drawn, draw_parents(votes, 3000, generators[1])), "by the public generator alone"


def test_what_a_stored_answer_is_about():
    """Its candidates and how they were voted for; names and facts as JSON."""
    asked = replace(query(generation=3, num_votes=2), candidates_sha256=hash_tensor(CANDIDATES))
    assert (asked.name, asked.title) == ("votes_3", "votes of generation 3")
    assert json.loads(json.dumps(asked.meaning))["candidates_sha256"] == hash_tensor(CANDIDATES.clone())
    assert hash_tensor(CANDIDATES) != hash_tensor(CANDIDATES + 1) != hash_tensor(CANDIDATES[:1])
    rows = asked.stand_in()(public(4).float() / 255, torch.tensor([0, 1, 2, 0]))
    assert rows.norm(dim=1).tolist() == pytest.approx([1.0] * 4)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 40), (3, 512, 512)])
def test_a_stand_in_compares_few_values(shape):
    """However large the images are: a check before training asks it for 18 generations."""
    stand_in = replace(query(), image_shape=shape).stand_in()
    assert stand_in.candidates.shape[2] <= 3 * 64**2
    assert stand_in(torch.rand(2, *shape), None).norm(dim=1).tolist() == pytest.approx([1.0] * 2, abs=1e-4)


# Captions.

WIDTH, CAPTIONS = 12, 40


def unit_vectors(*shape, seed=0):
    rows = torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(seed))
    return rows / rows.norm(dim=-1, keepdim=True)


def caption_answer(rows, labels, texts, *, kind=CaptionVotes, readable=None, units=None, num_units=None):
    """Through a door to what a network saw of each image, as `map` makes one."""
    number = num_units or len(rows)
    ledger = PrivacyLedger(
        None, target_epsilon=1e9, target_delta=1e-3, num_images=number, accountant="rdp",
        unit_of_privacy="image" if units is None else "patient",
    )  # fmt: skip
    options = {} if units is None else {"units": np.array(units), "num_units": num_units, "max_images_per_unit": 8}
    door = SensitiveImages(
        rows.half().numpy().reshape(-1, 1, 1, WIDTH), np.asarray(labels), readable, num_images=len(rows),
        image_shape=(1, 1, WIDTH), ledger=ledger, class_names=CLASSES, **options,
    )  # fmt: skip
    door._generator = Silent()
    nearest = NearestCandidates(lambda rows: rows.flatten(1).float(), texts, spread=OF_UNIT_VECTORS)
    asked = kind(num_candidates=texts.shape[1], image_shape=SHAPE)
    return asked.ask(door, nearest, noise_multiplier=1.0)[0].double(), ledger.rows[0]


@pytest.mark.parametrize("kind", [CaptionVotes, SharedCaptionVotes])
def test_each_image_votes_for_the_caption_of_the_largest_cosine(kind):
    """Though texts are close together and images far from them, as in CLIP: no image is moved to the end of the
    grid."""
    texts = unit_vectors(1, CAPTIONS) * 0.01
    texts[..., 0] += 1
    texts = texts / texts.norm(dim=-1, keepdim=True)
    images = unit_vectors(60, seed=1)
    images[:, 1] += 3
    images = (images / images.norm(dim=1, keepdim=True)).half().float()
    labels = np.arange(60) % 3
    votes, row = caption_answer(images, labels, texts, kind=kind)
    wanted = torch.zeros(3, CAPTIONS, dtype=torch.float64)
    for label, place in zip(labels, (images.double() @ texts[0].double().T).argmax(1), strict=True):
        wanted[label, place] += 1
    assert torch.equal(votes, wanted if kind is CaptionVotes else wanted.sum(0, keepdim=True)) and wanted.max() < 20
    assert row["partition"] == ("label" if kind is CaptionVotes else None)
    assert row["query"]["sensitivity"] == 1 and row["query"]["num_captions"] == CAPTIONS


@pytest.mark.parametrize("kind", [CaptionVotes, SharedCaptionVotes])
def test_a_unit_moves_the_votes_for_captions_by_one_at_most(kind):
    """Of several images, of several classes; whose embeddings are too long, infinite or no numbers; that are missing
    or cannot be read."""
    rows, texts = unit_vectors(12), unit_vectors(1, CAPTIONS, seed=2)
    rows[3], rows[5], rows[7] = 1000.0, torch.inf, torch.nan
    labels, units = np.arange(12) % 3, np.arange(12) // 3
    everybody = caption_answer(rows, labels, texts, kind=kind, units=units, num_units=4)[0]
    for unit in range(4):
        less = caption_answer(rows, labels, texts, kind=kind, readable=units != unit, units=units, num_units=4)[0]
        moved = everybody - less
        assert 0 < moved.norm() <= 1 + 1e-6 and moved.sum() == pytest.approx(1, abs=0.4)
    alone = caption_answer(rows, labels, texts, kind=kind)[0]
    for image in (0, 3, 5, 7):
        moved = alone - caption_answer(rows, labels, texts, kind=kind, readable=np.arange(12) != image)[0]
        assert moved.norm() == (0 if image == 7 else 1)


def test_of_captions_that_are_one_the_first_gets_the_votes():
    texts = unit_vectors(1, 5).repeat(1, 3, 1)
    votes, _ = caption_answer(unit_vectors(30, seed=3), np.arange(30) % 3, texts)
    assert votes[:, :5].sum() == 30 and not votes[:, 5:].any()


@pytest.mark.parametrize("captions, num_units, sigma", [(40, 1000, 5.0), (3000, 20_000, 12.0), (10_000, 20_000, 8.0)])
def test_noise_is_one_percent_of_the_votes_for_captions(captions, num_units, sigma):
    """Noisy votes over the threshold, of captions that nobody voted for, are as many as promised and no fewer; a
    caption that a plan calls seen is seen 19 times in 20."""
    asked, classes = CaptionVotes(num_candidates=captions, image_shape=SHAPE), 3
    generator = torch.Generator().manual_seed(0)
    draws = [asked.finish(sigma * torch.randn(1, classes, captions, generator=generator), num_units, sigma)
             for _ in range(max(4, 600_000 // captions))]  # fmt: skip
    found = torch.stack(draws).sum((1, 2)).mean().item() / num_units
    assert found == pytest.approx(FALSE_SHARE, rel=0.15) and found <= FALSE_SHARE * 1.15
    assert all(draw.shape == (classes, captions) and draw.min() >= 0 for draw in draws)
    said = asked.needs(classes, num_units, sigma, "image")
    number = int(said.split("nearest to ")[1].split()[0].replace(",", ""))
    noisy = number + sigma * torch.randn(1, classes, captions, generator=generator)
    assert (asked.finish(noisy, num_units, sigma) > 0).double().mean() == pytest.approx(0.95, abs=0.06)
    assert ("that is more than there are" in said) == (classes * number > num_units)
    assert "of a class" in said and "of a class" not in asked.needs(1, num_units, sigma, "image")
    assert asked.least_votes(1, num_units, 0.0) == 0, "without noise"
