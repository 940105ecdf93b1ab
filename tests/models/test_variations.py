# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Variations of public images and of rendered text: by public numbers alone, and by as much as they are asked to."""

import pytest
import torch

from diffusers_dp.errors import UsageError
from diffusers_dp.models.font_candidates import FontCandidates, find_fonts
from diffusers_dp.models.variations import VARIATIONS, PublicImageCandidates


IMAGES = torch.zeros(6, 1, 16, 16)
IMAGES[:, :, 4:12, 7:10] = 0.6
LABELS = torch.arange(6) % 2


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def seeds(seed=0):
    return torch.full((6,), seed)


@pytest.mark.parametrize("name", VARIATIONS)
def test_a_variation_grows_with_its_strength(name):
    """From the generator alone; each image by draws of its own; in [0, 1]; by nothing at strength 0."""
    state, vary = torch.random.get_rng_state(), VARIATIONS[name]
    far = [(vary(IMAGES, strength, seeded()) - IMAGES).abs().mean().item() for strength in (0.0, 0.3, 1.0)]
    assert torch.equal(torch.random.get_rng_state(), state)
    varied = vary(IMAGES, 1.0, seeded())
    assert torch.equal(varied, vary(IMAGES, 1.0, seeded())) and -1e-6 <= varied.min() and varied.max() <= 1 + 1e-6
    if name == "contrast":
        assert far[0] == far[1] == far[2] > 0.001, "whatever the strength"
    else:
        assert far[0] == pytest.approx(0, abs=1e-5) and far[0] < far[2] and far[1] <= far[2]
    if name != "flip":
        assert not torch.allclose(varied[0], varied[1], atol=1e-3)


def test_candidates_of_a_seed_stay_the_same():
    """A run that goes on, with a later version too, proposes what was voted for."""
    by_class = [(IMAGES * 255).byte(), (255 - IMAGES * 255).byte()]
    proposer = PublicImageCandidates(
        by_class, ("affine", "elastic", "stroke", "brightness"), facts={}, public_inputs=[]
    )
    first = proposer.initial(LABELS, seeds())
    assert first.dtype == torch.uint8 and torch.equal(first, proposer.initial(LABELS, seeds()))
    assert [first[LABELS == label].float().mean().item() < 128 for label in (0, 1)] == [True, False]
    children = proposer.vary(first, LABELS, 0.2, seeds(1))
    means = [batch[i].float().mean().item() for batch in (first, children) for i in (0, 1)]
    assert means == pytest.approx([10.31, 242.83, 8.94, 244.25], abs=0.1), "rounding aside"
    assert torch.equal(proposer.images(first, LABELS), first)


def test_text_is_drawn_and_varied(tmp_path):
    """White on black inside the frame; numbers stay in [0, 1]; a word fits; other strengths, other distances."""
    fonts, names = find_fonts(None)
    assert "Pillow's own font" in names and len(fonts) == len(names)
    proposer = FontCandidates((3, 20, 20), ["7", "a long name"], fonts, facts={}, public_inputs=[])
    first = proposer.initial(LABELS, seeds())
    images = proposer.images(first, LABELS)
    assert images.shape == (6, 3, 20, 20) and images.dtype == torch.uint8 and torch.equal(images[:, 0], images[:, 2])
    assert images.float().mean((1, 2, 3)).min() > 2 and images.float().mean((1, 2, 3)).max() < 150
    far = [(proposer.vary(first, LABELS, strength, seeds(1)) - first).abs().mean() for strength in (0, 0.2, 1)]
    assert far[0] == pytest.approx(0, abs=1e-6) and far[0] < far[1] < far[2]
    varied = proposer.vary(first, LABELS, 1.0, seeds(1))
    assert 0 <= varied.min() and varied.max() <= 1
    with pytest.raises(UsageError, match="--font_dir .* holds no fonts"):
        find_fonts(str(tmp_path))
    (tmp_path / "broken.ttf").write_bytes(b"none")
    with pytest.raises(UsageError, match="broken.ttf, which is not a readable font"):
        find_fonts(str(tmp_path))
