# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Networks of latents behind one call: exact gradients of each image, losses by their formulas, what is trained."""

import pytest
import torch

from diffusers_dp.errors import UsageError
from diffusers_dp.gradients.per_example import per_example_gradients
from diffusers_dp.models.adapters import attention_matrices, choose_trained, merge_lora, trained_parameters
from diffusers_dp.models.latent_denoiser import LatentLoss
from diffusers_dp.models.saliency import Saliency
from diffusers_dp.randomness.private_generator import PrivateGenerator
from diffusers_dp.release.latent_base import load_base
from support.doors import KEY
from support.exactness import check
from support.latents import stable_diffusion, stable_diffusion_xl


NAMES = {0: "left", 1: "right"}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(stable_diffusion(tmp_path_factory.mktemp("bases") / "base"))


def denoiser_of(place, kind="all", **arguments):
    torch.manual_seed(0)
    denoiser = load_base(place).denoiser(NAMES, None)
    with torch.no_grad():
        for parameter in denoiser.parameters():  # some begin with zeros, and would hide what is behind them
            parameter.add_(0.1 * torch.randn_like(parameter))
    denoiser.network.requires_grad_(True)
    choose_trained(denoiser.network, kind, rank=2, **arguments)
    with torch.no_grad():
        for name, parameter in denoiser.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return denoiser


def rows(number):
    torch.manual_seed(1)
    return torch.randn(number, 2, 4, 4), torch.arange(number) % 3, torch.randn(number, 2, 4, 4), torch.rand(number)


@pytest.fixture(scope="module")
def xl(tmp_path_factory):
    return str(stable_diffusion_xl(tmp_path_factory.mktemp("bases") / "xl"))


def losses_of(denoiser):
    latents, labels, noise, times = rows(6)
    return lambda at: LatentLoss().at(denoiser, latents[at], labels[at], noise[at], times[at])


@pytest.mark.parametrize("trained", ["all", "attention", "lora"])
def test_gradients_through_pooled_prompts_and_sizes(trained, xl):
    """Of XL, whose network has conditions of each row beside the prompt's tokens."""
    denoiser = denoiser_of(xl, trained)
    check(denoiser, losses_of(denoiser), 3, 2, tolerance=5e-5)
    torch.testing.assert_close(denoiser.time_ids, torch.tensor([[8.0, 8, 0, 0, 8, 8]] * 3))
    assert (denoiser.text_embeds[2] == 0).all() and (denoiser.tokens[2] == 0).all(), "no class"
    assert (denoiser.text_embeds[:2] != 0).all() and not torch.equal(*denoiser.text_embeds[:2])


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("layout", ["base", "xl"])
def test_nothing_stays_behind_when_a_model_with_adapters_moves(layout, order, request):
    """Moved to float64, before adapters are attached or after: no layer takes both."""
    place = request.getfixturevalue(layout)
    denoiser = load_base(place).denoiser(NAMES, None).requires_grad_(False)
    for step in ("move", "attach") if order == "before" else ("attach", "move"):
        if step == "move":
            denoiser.to(torch.float64)
        else:
            choose_trained(denoiser.network, "lora", rank=2)
    tensors = [*denoiser.parameters(), *denoiser.buffers()]
    assert {each.dtype for each in tensors} == {torch.float64}
    latents, labels, noise, times = rows(4)
    with per_example_gradients(denoiser, group_size=2) as gradients:
        losses = LatentLoss().at(denoiser, latents.double(), labels, noise.double(), times)
        losses.sum().backward()
    assert {each.dtype for each in gradients.per_example.values()} == {torch.float64}
    assert set(gradients.per_example) == {name.replace("/", ".") for name in trained_parameters(denoiser)}
    merge_lora(denoiser.network)
    assert {each.dtype for each in denoiser.network.parameters()} == {torch.float64}


@pytest.mark.parametrize("trained", ["all", "attention", "lora"])
def test_gradients_are_those_of_autograd(trained, base):
    denoiser = denoiser_of(base, trained)
    check(denoiser, losses_of(denoiser), 3, 2, tolerance=2e-5)  # behind attention rounding is that of the processor


def test_checkpointed_gradients_are_the_same(base):
    """What is computed again in the backward pass is counted once."""
    denoiser, (latents, labels, noise, times) = denoiser_of(base, "lora"), rows(4)
    found = []
    for _ in range(2):
        with per_example_gradients(denoiser, group_size=2) as gradients:
            LatentLoss().at(denoiser, latents, labels, noise, times).sum().backward()
        found.append(gradients.per_example)
        denoiser.network.enable_gradient_checkpointing()
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_the_loss_by_its_formula(base):
    """Of draws that are all from the secret source."""
    denoiser = denoiser_of(base)
    latents, labels, _, _ = rows(3)
    draws = PrivateGenerator(KEY)
    times = torch.from_numpy(draws.uniform(3))
    dropped = torch.from_numpy(draws.uniform(3)) < 0.5
    noise = draws.normal(latents.shape, 1.0)
    labels_seen = labels.clamp_max(1).masked_fill(dropped, 2)
    scheduler = denoiser.scheduler
    steps = (times * 1000).long()
    share = scheduler.alphas_cumprod[steps].view(-1, 1, 1, 1)
    noisy, target = share.sqrt() * latents + (1 - share).sqrt() * noise, noise
    with torch.no_grad():
        expected = (denoiser(noisy, steps, labels_seen).sample - target).square().flatten(1).mean(1)
        for seed in (0, 1):
            torch.manual_seed(seed)
            found = LatentLoss(0.5)(denoiser, latents, labels.clamp_max(1), PrivateGenerator(KEY))
            torch.testing.assert_close(found, expected)


def test_what_is_trained(base):
    for trained, word in (("attention", "attn"), ("lora", "lora_")):
        denoiser = denoiser_of(base, trained)
        names = [name for name, each in denoiser.named_parameters() if each.requires_grad]
        assert 0 < len(names) < len(list(denoiser.parameters())) / (1 if trained == "lora" else 2)
        assert all(word in name for name in names)
        kept = trained_parameters(denoiser)
        shared = {id(each) for each in kept.parameters()}
        assert shared == {id(each) for each in denoiser.parameters() if each.requires_grad}
    with pytest.raises(UsageError, match="--lora_targets 'to_nothing'.*to_q"):
        choose_trained(denoiser_of(base).network, "lora", rank=2, targets=["to_nothing"])


def test_merged_matrices_change_nothing_of_what_is_computed(base):
    denoiser, (latents, _, _, _) = denoiser_of(base, "lora"), rows(2)
    plain = set(load_base(base).network.state_dict())
    with torch.no_grad():
        before = denoiser(latents, torch.tensor(300), torch.tensor([0, 1])).sample
        merge_lora(denoiser.network)
        after = denoiser(latents, torch.tensor(300), torch.tensor([0, 1])).sample
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
    assert set(denoiser.network.state_dict()) == plain


def test_shares_of_squared_gradient_norms_by_autograd(base):
    """One record's matrices alone, at the weights of the base, with norm 1 at most; what is not finite is zero. The
    network is given no more records at once than was said."""
    denoiser = denoiser_of(base)
    saliency, (latents, labels, _, _) = Saliency(denoiser, (0.2, 0.7), 3, at_once=2), rows(3)
    given = []
    with_hook = denoiser.network.register_forward_pre_hook(lambda _, arguments: given.append(len(arguments[0])))
    found = saliency(latents, labels)
    with_hook.remove()
    assert given == [4, 2]  # at two times each
    assert saliency.names == attention_matrices(denoiser.network) and found.shape == (3, len(saliency.names))
    torch.testing.assert_close(found.sum(1), torch.ones(3))
    assert (found.norm(dim=1) <= 1).all() and not any(each.requires_grad for each in denoiser.parameters())
    noise = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(3))
    weights = [denoiser.network.get_submodule(name).weight.requires_grad_(True) for name in saliency.names]
    for number in range(3):
        one, times = latents[number : number + 1].expand(2, -1, -1, -1), torch.tensor([0.2, 0.7])
        loss = LatentLoss().at(denoiser, one, labels[number].expand(2), noise, times).sum()
        squares = torch.stack([each.square().sum() for each in torch.autograd.grad(loss, weights)])
        torch.testing.assert_close(found[number], squares / squares.sum(), rtol=1e-3, atol=1e-6)
    latents[1] = torch.inf
    again = saliency(latents, labels)
    assert (again[1] == 0).all() and torch.equal(again[[0, 2]], found[[0, 2]])
