# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Gradients per image against a one-by-one loop of ordinary autograd."""

import torch

from diffusers_dp.gradients.per_example import per_example_gradients


TOLERANCE = 1e-5  # ||a - b|| / ||b|| per parameter tensor, fp32


def squares(output):
    return output.flatten(1).square().sum(1)


def one_by_one(model, row_losses, num_images, group_size):
    """The truth: one backward pass of ordinary autograd per image, mean over its rows."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = []
    for image in range(num_images):
        rows = slice(image * group_size, (image + 1) * group_size)
        loss = row_losses(rows).sum() / group_size
        parts = torch.autograd.grad(loss, parameters, allow_unused=True)
        gradients.append([torch.zeros_like(p) if g is None else g for p, g in zip(parameters, parts, strict=True)])
    return {name: torch.stack(parts) for name, parts in zip(names, zip(*gradients, strict=True), strict=True)}


def collect(model, row_losses, num_rows, group_size):
    with per_example_gradients(model, group_size=group_size) as gradients:
        row_losses(slice(0, num_rows)).sum().backward()
    return gradients


def assert_equal_gradients(found, expected, tolerance=TOLERANCE):
    assert set(found) == set(expected)
    whole = sum(gradient.square().sum() for gradient in expected.values()).sqrt()
    for name, gradient in expected.items():
        assert found[name].shape == gradient.shape, name
        # Some are zero but for rounding (the key's bias under a softmax): for these the whole gradient is the measure.
        scale = max(gradient.norm(), whole * 1e-2)
        assert (found[name] - gradient).norm() <= tolerance * scale, name


def check(model, row_losses, num_images, group_size, tolerance=TOLERANCE):
    expected = one_by_one(model, row_losses, num_images, group_size)
    gradients = collect(model, row_losses, num_images * group_size, group_size)
    assert_equal_gradients(gradients.per_example, expected, tolerance)
    norms = sum(gradient.flatten(1).square().sum(1) for gradient in expected.values())
    assert torch.allclose(gradients.squared_norms(), norms, rtol=1e-4)
    weights = torch.linspace(0, 1, num_images)  # the first one is 0
    for name, total in gradients.weighted_sum(weights).items():
        wanted = torch.tensordot(weights, expected[name], dims=1)
        assert (total - wanted).norm() <= tolerance * max(wanted.norm(), norms.sum().sqrt() * 1e-2), name
    return gradients
