# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Per-example gradients against a one-by-one loop of ordinary autograd, on real small networks."""

import pytest
import torch
import torch.nn.functional as F
from diffusers import UNet2DModel
from torch import nn

from diffusers_dp.gradients import per_example
from diffusers_dp.gradients.per_example import per_example_gradients
from diffusers_dp.gradients.step import clipped_gradient_sum
from diffusers_dp.models.denoiser import EDMDenoiser
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.exactness import assert_equal_gradients, check, collect, one_by_one, squares


def small_unet(**changes):
    """Attention in both blocks and the middle, odd channel counts, a stride-2 convolution, class labels."""
    torch.manual_seed(0)
    unet = UNet2DModel(
        **{
            "sample_size": 8,
            "in_channels": 3,
            "out_channels": 3,
            "block_out_channels": (5, 15),
            "down_block_types": ("AttnDownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "AttnUpBlock2D"),
            "layers_per_block": 1,
            "attention_head_dim": 5,
            "norm_num_groups": 5,
            "num_class_embeds": 4,
            **changes,
        }
    )
    return unet


class SmallNet(nn.Module):
    """Strides, dilation, groups, 1x1, no padding, with and without bias."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(3, 6)
        self.grouped = nn.Conv2d(6, 9, (1, 3), padding=(0, 2), dilation=(1, 2), groups=3)
        self.pointwise = nn.Conv2d(9, 5, 1, bias=False)
        self.out = nn.Linear(5 * 4 * 4, 7)

    def forward(self, x):
        hidden = F.silu(self.norm(self.first(x)))
        return self.out(self.pointwise(F.silu(self.grouped(hidden))).flatten(1))


@pytest.mark.parametrize("group_size", [1, 3])
def test_unet_with_attention_and_classes(group_size):
    """The model of the training script: attention in the blocks and the middle, class table, EDM preconditioning."""
    denoiser = EDMDenoiser(small_unet())
    rows = 3 * group_size
    images, noise = torch.randn(2, rows, 3, 8, 8)
    sigma, labels = torch.rand(rows) + 0.1, torch.randint(0, 4, (rows,))

    def row_losses(at):
        noisy = images[at] + sigma[at].view(-1, 1, 1, 1) * noise[at]
        return squares(denoiser(noisy, sigma[at], labels[at]) - images[at])

    gradients = check(denoiser, row_losses, 3, group_size)
    assert gradients.per_example["unet.class_embedding.weight"].abs().sum() > 0


@pytest.mark.parametrize("group_size", [1, 3])
def test_every_kind_of_convolution(group_size):
    """Stride 2, dilation, groups, 1x1, bias, and more images than one grouped call takes."""
    rows, model = torch.randn(19 * group_size, 3, 8, 8), SmallNet()
    check(model, lambda at: squares(model(rows[at])), 19, group_size)


def layouts(rows):
    wide = rows.new_zeros(len(rows), rows.shape[1] * 2, rows.shape[2], rows.shape[3] + 3)
    wide[:, ::2, :, 1:-2] = rows
    return {
        "channels_last": rows.contiguous(memory_format=torch.channels_last),
        "transposed": rows.transpose(2, 3).contiguous().transpose(2, 3),
        "batch_last": rows.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
        "strided": wide[:, ::2, :, 1:-2],
        "expanded": rows[:, :, :1, :1].expand(-1, -1, 8, 8),
    }


@pytest.mark.parametrize("layout", ["channels_last", "transposed", "batch_last", "strided", "expanded"])
def test_non_contiguous_inputs(layout):
    """F1 of the notes: Opacus' convolutions are silently wrong here."""
    torch.manual_seed(1)
    model = SmallNet()
    rows = layouts(torch.randn(6, 3, 8, 8))[layout]
    assert not rows.is_contiguous()
    check(model, lambda at: squares(model(rows[at])), 2, 3)


class Attention(nn.Module):
    """A group norm of what attention hands it: channels of pixels that lie side by side."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 6), nn.GroupNorm(2, 6)

    def forward(self, tokens):
        return self.norm(self.linear(tokens).transpose(1, 2)).sin()


@pytest.mark.parametrize(("images", "group_size"), [(1, 1), (2, 3)])
def test_one_row_of_attention_is_a_view_where_several_are_copied(images, group_size):
    model, rows = Attention(), torch.randn(images * group_size, 5, 4)
    check(model, lambda at: squares(model(rows[at])), images, group_size)


class Shared(nn.Module):
    """One layer used twice, one parameter in two layers, and an embedding that ties with a linear layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.twice = nn.Conv2d(3, 3, 3, padding=1)
        self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 3)
        self.right.weight = self.left.weight
        self.table = nn.Embedding(4, 3, padding_idx=1)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x, labels):
        hidden = self.twice(F.silu(self.twice(x))).mean((2, 3)) + self.table(labels)
        return self.head(self.right(F.silu(self.left(hidden))))


@pytest.fixture(params=[0, per_example.SMALL])
def small(request, monkeypatch):
    """Whether the gradients of small parameters, all of these models', are handled side by side."""
    monkeypatch.setattr(per_example, "SMALL", request.param)


@pytest.mark.parametrize("group_size", [1, 2])
def test_shared_layers_and_parameters_add_up(group_size, small):
    model, rows = Shared(), torch.randn(4, 3, 5, 5)
    labels = torch.tensor([0, 1, 3, 3])
    gradients = check(model, lambda at: squares(model(rows[at], labels[at])), 4 // group_size, group_size)
    assert "right.weight" not in gradients.per_example and "head.weight" not in gradients.per_example


def test_a_model_in_float64():
    """Keeps its type: what float32 would round away is there."""
    torch.manual_seed(0)
    model, rows = nn.Sequential(nn.Linear(90, 90), nn.SiLU(), nn.Linear(90, 2)).double(), torch.randn(4, 90).double()
    with per_example_gradients(model, group_size=2) as gradients:
        squares(model(rows)).sum().backward()
    squares(model(rows[:2])).mean().backward()
    own = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert gradients.squared_norms().dtype == torch.float64
    assert torch.allclose(gradients.squared_norms()[0], own.square().sum(), rtol=1e-12)
    total = gradients.weighted_sum(torch.tensor([1.0, 0.0]))
    for name, parameter in model.named_parameters():
        assert torch.allclose(total[name], parameter.grad, rtol=1e-12, atol=1e-15)


def test_frozen_parameters_are_skipped():
    model, rows = SmallNet(), torch.randn(2, 3, 8, 8)
    model.first.weight.requires_grad_(False)
    for parameter in model.norm.parameters():
        parameter.requires_grad_(False)
    gradients = check(model, lambda at: squares(model(rows[at])), 2, 1)
    assert "first.weight" not in gradients.per_example and "norm.bias" not in gradients.per_example
    assert not model.first.weight.requires_grad and model.first.bias.requires_grad


def snapshot(model):
    return [(name, p.requires_grad, p.grad, p.detach().clone()) for name, p in model.named_parameters()], [
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    ]


def assert_unchanged(before, model):
    after = snapshot(model)
    assert after[1] == before[1]  # hooks
    for (name, trainable, grad, value), (_, trainable_now, grad_now, value_now) in zip(
        *[s[0] for s in (before, after)]
    ):
        assert trainable == trainable_now and grad is grad_now, name
        assert torch.equal(value, value_now), name


def model_with_history():
    model = SmallNet()
    model.norm.weight.requires_grad_(False)
    model.out.weight.grad = torch.ones_like(model.out.weight)
    return model


def test_the_model_is_left_as_found():
    model, rows = model_with_history(), torch.randn(4, 3, 8, 8)
    before = snapshot(model)
    collect(model, lambda at: squares(model(rows[at])), 4, 2)
    assert_unchanged(before, model)
    assert torch.equal(model.out.weight.grad, torch.ones_like(model.out.weight))


@pytest.mark.parametrize("where", ["before", "forward", "between", "backward"])
def test_the_model_is_left_as_found_after_an_exception(where):
    model, rows = model_with_history(), torch.randn(4, 3, 8, 8)
    before = snapshot(model)
    with pytest.raises(RuntimeError):
        with per_example_gradients(model):
            if where == "before":
                raise RuntimeError
            loss = squares(model(rows if where != "forward" else rows[:, :2])).sum()
            if where == "between":
                raise RuntimeError
            loss.register_hook(lambda grad: torch.ones(3, 3) @ torch.ones(2))
            loss.backward()
    assert_unchanged(before, model)


@pytest.mark.parametrize(
    "kind", [nn.BatchNorm2d(3), nn.PReLU(3), nn.Conv3d(3, 3, 1), nn.InstanceNorm2d(3, affine=True)]
)
def test_layers_without_a_rule_are_refused_by_name(kind):
    model = nn.Sequential(nn.Conv2d(3, 3, 1), kind)
    before = snapshot(model)
    with pytest.raises(TypeError, match=rf"{type(kind).__name__} \('1'\)"):
        per_example_gradients(model)
    assert_unchanged(before, model)


@pytest.mark.parametrize(
    "kind", [nn.BatchNorm2d(3, affine=False), nn.BatchNorm2d(3), nn.InstanceNorm2d(3, track_running_stats=True)]
)
def test_layers_that_mix_examples_are_refused_also_without_trainable_parameters(kind):
    """One record would move everybody's gradient, and the un-noised running statistics with it."""
    model = nn.Sequential(nn.Conv2d(3, 3, 1), kind.requires_grad_(False))
    with pytest.raises(TypeError, match=rf"{type(kind).__name__} \('1'\)"):
        per_example_gradients(model)
    with per_example_gradients(model.eval()):
        pass  # in evaluation its statistics are constants


def test_a_trainable_parameter_outside_a_layer_is_refused():
    model = nn.Sequential(nn.Conv2d(3, 3, 1))
    model.register_parameter("scale", nn.Parameter(torch.ones(1)))
    with pytest.raises(TypeError, match="Sequential"):
        per_example_gradients(model)


def test_a_subclass_of_a_known_layer_is_refused():
    """It may compute something else."""

    class Weird(nn.Linear):
        def forward(self, x):
            return super().forward(x) + x.mean()

    with pytest.raises(TypeError, match="Weird"):
        per_example_gradients(nn.Sequential(Weird(3, 3)))


@pytest.mark.parametrize(
    "padding",
    [
        {"padding": "same", "kernel_size": 3},
        {"padding": "same", "kernel_size": (2, 4)},
        {"padding": "valid", "kernel_size": 3},
        {"padding": 1, "padding_mode": "circular", "kernel_size": 3},
        {"padding": (2, 1), "padding_mode": "reflect", "kernel_size": 3, "stride": 2},
    ],
)
def test_every_padding(padding):
    torch.manual_seed(0)
    model, images = nn.Sequential(nn.Conv2d(3, 4, **padding)), torch.randn(6, 3, 8, 7)
    check(model, lambda at: squares(model(images[at])), 3, 2)


class OtherLayers(nn.Module):
    """Norms and lines, on inputs that are not contiguous."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv1d = nn.Conv1d(3, 4, 3, padding=1)
        self.layer_norm = nn.LayerNorm(4)
        self.rms_norm = nn.RMSNorm(4)
        self.dilated = nn.Conv1d(4, 4, 3, padding="same", padding_mode="circular", dilation=2, groups=2)
        self.pointwise = nn.Conv1d(4, 3, 1)

    def forward(self, x):
        hidden = self.dilated(self.conv1d(x.transpose(1, 2)).sin()).transpose(1, 2).sin()
        return self.pointwise(self.rms_norm(self.layer_norm(hidden).sin()).sin().transpose(1, 2)).sin()


@pytest.mark.parametrize("group_size", [1, 3])
def test_norms_and_lines(group_size):
    model, rows = OtherLayers(), torch.randn(2 * group_size, 6, 3)
    check(model, lambda at: squares(model(rows[at])), 2, group_size)


@pytest.mark.parametrize("seed", range(4))
def test_units_of_uneven_size(seed):
    """Against the mean of one-row gradients of each unit; unit 3 has no rows."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.tensor([5, 0, 2, 2, 0, 1, 5, 5, 4])[torch.randperm(9, generator=generator)]
    model, rows = small_unet(), torch.randn(9, 3, 8, 8, generator=generator)
    noise_levels, labels = torch.rand(9, generator=generator), torch.randint(4, (9,), generator=generator)

    def loss(at):
        return squares(model(rows[at], noise_levels[at], class_labels=labels[at]).sample)

    single = one_by_one(model, loss, 9, 1)
    zero_row = {name: torch.zeros(1, *rows.shape[1:]) for name, rows in single.items()}
    members = [index == unit for unit in range(6)]
    expected = {
        name: torch.cat([rows[m].mean(0, keepdim=True) if m.any() else zero_row[name] for m in members])
        for name, rows in single.items()
    }
    with per_example_gradients(model, unit_index=index) as gradients:
        loss(slice(None)).sum().backward()
    assert_equal_gradients(gradients.per_example, expected)
    assert torch.equal(gradients.squared_norms() == 0, torch.tensor([False, False, False, True, False, False]))


@pytest.mark.parametrize(
    "index", [torch.tensor([0, 1]), torch.tensor([0, -1, 1]), torch.zeros(3), torch.zeros(3, 1, dtype=torch.int64)]
)
def test_a_unit_index_that_does_not_fit(index):
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises((ValueError, TypeError), match="unit_index|another number of rows"):
        with per_example_gradients(model, unit_index=index):
            squares(model(torch.randn(3, 2))).sum().backward()
    with pytest.raises(ValueError, match="either"):
        per_example_gradients(model, 3, unit_index=torch.zeros(3, dtype=torch.int64))


def test_rows_that_are_no_multiple_of_the_group_size():
    model = SmallNet()
    with pytest.raises(TypeError, match=r"Conv2d \('first'\): 5 rows cannot be split"):
        collect(model, lambda at: squares(model(torch.randn(5, 3, 8, 8)[at])), 5, 2)


@pytest.mark.parametrize("create_graph", [True, False])
def test_a_loss_that_differentiates_a_gradient_is_refused(create_graph):
    """A gradient penalty would make the collected gradient silently wrong."""
    model, rows = SmallNet(), torch.randn(2, 3, 8, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match="first-order"):
        with per_example_gradients(model):
            output = squares(model(rows))
            penalty = torch.autograd.grad(output.sum(), rows, create_graph=create_graph, retain_graph=True)[0]
            (output.sum() + penalty.square().sum()).backward()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("group_size", [1, 3])
def test_a_non_finite_image_does_not_touch_the_others(bad, group_size, small):
    model, rows = SmallNet(), torch.randn(4 * group_size, 3, 8, 8)
    clean = collect(model, lambda at: squares(model(rows[at])), len(rows), group_size)
    broken_rows = rows.clone()
    broken_rows[group_size] = bad  # one row of the second image
    broken = collect(model, lambda at: squares(model(broken_rows[at])), len(rows), group_size)
    others = torch.tensor([0, 2, 3])
    for name, gradient in clean.per_example.items():
        assert torch.allclose(broken.per_example[name][others], gradient[others], rtol=1e-5, atol=1e-6), name
    weights = torch.tensor([1.0, 0.0, 1.0, 1.0])
    for name, total in broken.weighted_sum(weights).items():
        assert torch.allclose(total, clean.weighted_sum(weights)[name], rtol=1e-4, atol=1e-5), name


def movement(scale, group_size):
    """How far the clipped sum moves when the loudest of four images is left out."""
    model = SmallNet()
    torch.manual_seed(2)
    images = torch.randn(4, 3, 8, 8)
    images[2, 0, 0, 0] = scale

    def row_loss(model, rows, labels, generator):
        return squares(model(rows)) * rows[:, 0, 0, 0].abs()

    kept = torch.tensor([0, 1, 3])
    sums = [
        clipped_gradient_sum(
            model,
            row_loss,
            [(batch, None, torch.ones(len(batch), dtype=torch.bool), None)],
            max_grad_norm=1.0,
            noise_multiplicity=group_size,
            generator=PrivateGenerator(bytes(16)),
        )  # fmt: skip
        for batch in (images, images[kept])
    ]
    return sum((a - b).square().sum() for a, b in zip(*[total.values() for total in sums], strict=True)).sqrt()


@pytest.mark.parametrize("group_size", [1, 2, 3, 4])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_one_image_moves_the_sum_by_the_clip_norm_at_most(scale, group_size):
    assert movement(scale, group_size) <= 1 + 1e-5


def test_norms_are_of_small_and_large_parameters_together():
    """The gradient of the bias is the longer one by far."""
    torch.manual_seed(0)
    model, rows = nn.Linear(64, 100), torch.rand(3, 64) / 100
    with per_example_gradients(model) as g:
        model(rows).square().sum().backward()
    squared = []
    for row in rows:
        gradients = torch.autograd.grad(model(row).square().sum(), list(model.parameters()))
        squared.append(sum(gradient.square().sum() for gradient in gradients))
    torch.testing.assert_close(g.squared_norms(), torch.stack(squared))


def test_an_input_that_is_changed_in_place_is_refused():
    class Careless(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            output = self.layer(x)
            x.mul_(2)
            return output

    with pytest.raises(RuntimeError, match="in place"):
        model = Careless()
        with per_example_gradients(model):
            model(torch.ones(4, 3)).sum().backward()


def test_a_compiled_model_gives_the_same_gradients():
    model, rows = SmallNet(), torch.randn(4, 3, 8, 8)
    compiled = torch.compile(model, backend="eager")  # traced as for any backend, without a C++ compiler
    found = collect(compiled, lambda at: squares(compiled(rows[at])), 4, 2)
    expected = collect(model, lambda at: squares(model(rows[at])), 4, 2)
    assert_equal_gradients(
        {name.removeprefix("_orig_mod."): gradient for name, gradient in found.per_example.items()},
        expected.per_example,
    )


# Mixed precision.


@pytest.mark.parametrize("group_size", [1, 4])
def test_autocast_gradients_are_float32_and_close_to_those_of_autograd(group_size):
    """Against autograd under the same autocast, image by image: what differs is only where bfloat16 rounds."""
    model = small_unet()
    torch.manual_seed(1)
    rows, sigma = torch.randn(3 * group_size, 3, 8, 8), torch.rand(3 * group_size) + 0.5
    labels = torch.arange(3 * group_size) % 4

    def row_losses(which, dtype=torch.bfloat16):
        denoiser = EDMDenoiser(model, autocast_dtype=dtype)
        return squares(denoiser(rows[which], sigma[which], labels[which]))

    found = collect(model, row_losses, len(rows), group_size).per_example
    expected = one_by_one(model, row_losses, 3, group_size)
    exact = one_by_one(model, lambda which: row_losses(which, None), 3, group_size)
    whole = sum(gradient.square().sum() for gradient in exact.values()).sqrt()
    ours = theirs = 0.0
    for name, gradient in exact.items():
        assert found[name].dtype == torch.float32
        ours += (found[name] - gradient).square().sum()
        theirs += (expected[name] - gradient).square().sum()
    assert ours.sqrt() < 0.05 * whole and ours.sqrt() < 1.2 * theirs.sqrt()


def test_autocast_around_the_context_reaches_neither_norms_nor_sums():
    model, rows = SmallNet(), torch.randn(6, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        gradients = collect(model, lambda which: squares(model(rows[which])).float(), 6, 2)
        norms = gradients.squared_norms().sqrt()
        total = gradients.weighted_sum(1 / norms)
    exact = torch.stack([g.double().flatten(1).square().sum(1) for g in gradients.per_example.values()]).sum(0).sqrt()
    assert torch.allclose(norms.double(), exact, rtol=1e-6)
    for name, gradient in gradients.per_example.items():
        expected = torch.tensordot(1 / exact, gradient.double(), dims=1)
        assert total[name].dtype == torch.float32
        assert (total[name] - expected).norm() <= 1e-6 * expected.norm(), name


def test_half_precision_that_needs_loss_scaling_is_refused():
    model = nn.Linear(3, 2).half()
    with pytest.raises(RuntimeError, match="bfloat16"):
        collect(model, lambda which: model(torch.randn(2, 3).half()).sum(1), 2, 1)
    denoiser = EDMDenoiser(small_unet(), autocast_dtype=torch.float16)
    with pytest.raises(RuntimeError, match="bfloat16"):
        collect(denoiser, lambda which: denoiser(torch.randn(2, 1, 8, 8), torch.ones(2)).sum((1, 2, 3)), 2, 1)


class Positions(nn.Module):
    """A layer that is given positions, not rows."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(5, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(x + self.table(torch.arange(5)))


def test_a_layer_that_is_given_no_rows_is_refused():
    model = Positions()
    with pytest.raises(TypeError, match=r"Linear \('out'\).*must be the rows"):
        collect(model, lambda which: squares(model(torch.randn(3, 5, 4))), 3, 1)


def test_the_draws_of_an_image_are_added_up_in_more_than_eight_bits():
    """256 equal draws: a sum that is rounded to bfloat16 after each stays behind at 1/2 of it or less."""
    torch.manual_seed(0)
    model = nn.Conv2d(3, 2, 1)
    rows = torch.randn(1, 3, 4, 4).expand(256, -1, -1, -1).contiguous()

    def row_losses(which):
        with torch.autocast("cpu", torch.bfloat16):
            return squares(model(rows[which])).float()

    found = collect(model, row_losses, 256, 256).per_example
    for name, expected in one_by_one(model, lambda which: squares(model(rows[which])), 1, 256).items():
        assert (found[name] - expected).norm() < 0.02 * expected.norm(), name
