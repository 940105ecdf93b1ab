# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Choice of the trained weights of a network: all, those of its attention, or low-rank matrices beside some layers
(LoRA, Hu et al. 2022)."""

from collections.abc import Sequence
from typing import Any

from diffusers.models.attention_processor import Attention
from torch import nn

from ..errors import UsageError


#: Linear layers of Diffusers' attention.
ATTENTION_MATRICES = ("to_q", "to_k", "to_v", "to_out.0")


def attention_matrices(network: nn.Module) -> tuple[str, ...]:
    """Names the linear layers of a network's attention, in the network's order."""
    return tuple(
        f"{name}.{matrix}"
        for name, module in network.named_modules()
        if isinstance(module, Attention)
        for matrix in ATTENTION_MATRICES
        if isinstance(dict(module.named_modules()).get(matrix), nn.Linear)
    )


def choose_trained(network: nn.Module, kind: str, *, rank: int, targets: Sequence[str] = ()) -> None:
    """Selects the trained weights and freezes all others.

    Args:
        network (`nn.Module`): Network of Diffusers.
        kind (`str`): `all`, `attention` or `lora`.
        rank (`int`): Rank of each pair of matrices.
        targets (sequence of `str`): Names, or ends of names, of the layers that get a pair; empty: the linear layers
            of attention.

    Raises:
        UsageError: A target matches no layer.
    """
    if kind == "all":
        network.requires_grad_(True)
        return
    network.requires_grad_(False)
    for module in network.modules():
        if kind == "attention" and isinstance(module, Attention):
            module.requires_grad_(True)
    if kind == "lora":
        add_lora(network, rank, targets)


def add_lora(network: Any, rank: int, targets: Sequence[str] = ()) -> None:
    """Adds pairs of matrices whose product is initially 0. Their scale is 1: `lora_alpha` is the rank."""
    from peft import LoraConfig

    layers = [name for name, module in network.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    names = list(targets) or list(attention_matrices(network))
    for name in names:
        if not any(layer == name or layer.endswith(f".{name}") for layer in layers):
            raise UsageError(
                f"'{name}' is not a linear layer or convolution of {type(network).__name__}; leave the flag out, or "
                f"give ends of names such as {', '.join(ATTENTION_MATRICES[:3])}.",
                field="lora_targets",
            )
    config = LoraConfig(r=rank, lora_alpha=rank, lora_dropout=0.0, target_modules=names, init_lora_weights="gaussian")
    network.add_adapter(config)


def merge_lora(network: Any) -> None:
    """Adds the products of the matrices to the base weights and restores plain layers."""
    if any("lora_" in name for name, _ in network.named_parameters()):
        network.fuse_lora()
        network.unload_lora()


def trained_parameters(model: nn.Module) -> nn.ParameterDict:
    """Returns the trained parameters, shared with the model, for averaging and storage. Frozen ones would take several
    times their size."""
    return nn.ParameterDict(
        {name.replace(".", "/"): each for name, each in model.named_parameters() if each.requires_grad}
    )
