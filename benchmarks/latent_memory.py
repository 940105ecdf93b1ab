# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Memory of a LoRA step on a UNet of the size of Stable Diffusion 1.5, computed on the meta device: nothing is
allocated.

    python benchmarks/latent_memory.py --rank 8

Counted are weights, what the forward pass keeps for the backward pass (each storage once; inputs that the engine keeps
of trained layers are among them), gradients per image of the low-rank matrices, and the optimiser's state. Not
counted are a kernel's own workspace, and what the backward pass allocates in passing.
"""

import argparse

import torch
from diffusers import UNet2DConditionModel

from diffusers_dp.gradients import per_example_gradients
from diffusers_dp.models.adapters import choose_trained


CONFIG = {"sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8, "norm_num_groups": 32}


def kept_bytes(unet: torch.nn.Module, rows: int) -> int:
    """Of the storages that one forward pass keeps for the backward pass, without the weights."""
    weights = {parameter.untyped_storage()._cdata for parameter in unet.parameters()}
    kept: dict[int, tuple[int, torch.Tensor]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes(), tensor
        return tensor

    def keep(tensor: torch.Tensor) -> None:
        pack(tensor)

    for module in unet.modules():  # the engine keeps the input of each trained layer, checkpointed or not
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
            module.register_forward_hook(lambda module, inputs, output: keep(inputs[0]))
    sample, tokens = torch.empty(rows, 4, 64, 64, device="meta"), torch.empty(rows, 77, 768, device="meta")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), per_example_gradients(unet):
        unet(sample, torch.empty(rows, device="meta"), encoder_hidden_states=tokens)
    return sum(size for size, _ in kept.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, default=8)
    rank = parser.parse_args().rank
    with torch.device("meta"):
        unet = UNet2DConditionModel(**CONFIG)
    choose_trained(unet, "lora", rank=rank)
    frozen = sum(each.numel() for each in unet.parameters() if not each.requires_grad)
    trained = sum(each.numel() for each in unet.parameters() if each.requires_grad)
    print(f"{frozen:,} frozen parameters, {trained:,} trained at rank {rank}")
    for checkpointed in (False, True):
        if checkpointed:
            unet.enable_gradient_checkpointing()
        one = kept_bytes(unet, 1)
        for images in (1, 8, 64):
            parts = [4 * frozen, images * one, 4 * trained * images, 4 * trained * 6]
            print(
                f"B = {images:>2}, float32{', checkpointed' if checkpointed else ''}: weights {parts[0] / 1e9:.2f}, "
                f"kept {parts[1] / 1e9:.2f}, gradients per image {parts[2] / 1e9:.3f}, optimiser and averages "
                f"{parts[3] / 1e9:.3f}, together {sum(parts) / 1e9:.2f} GB"
            )


if __name__ == "__main__":
    main()
