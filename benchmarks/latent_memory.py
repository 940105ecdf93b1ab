# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Memory and FLOPs of a step of DP-SGD on UNets of the published layouts, counted on the meta device: nothing is
allocated or computed, and no weights are needed.

    python benchmarks/latent_memory.py diffusers_dp/methods/layouts.json    # minutes; `plan` reads the file

Counted are weights, all that a step holds at its peak, and the optimiser's state, in float32. A kernel's own
workspace, the autoencoder and CUDA have 2 GB. Attention keeps no matrix of all pairs, as on a GPU.
"""

import argparse
import json
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DConditionModel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

from diffusers_dp.gradients.physical_batch import blank_step
from diffusers_dp.models.adapters import choose_trained
from diffusers_dp.models.latent_denoiser import LatentDenoiser, LatentLoss, training_scheduler
from diffusers_dp.runs.forecast import COPIES


META = torch.device("meta")
RESERVED = 2e9  # bytes, for CUDA, the autoencoder, and what kernels need in passing
RANK, TOKENS, POOLED = 8, 77, 1280
#: What the configurations on the Hub have beside Diffusers' defaults, by the side of images in pixels.
LAYOUTS: dict[int, tuple[str, dict[str, Any]]] = {
    512: ("Stable Diffusion 1.5", {"sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8}),
    1024: ("Stable Diffusion XL", {
        "sample_size": 128, "cross_attention_dim": 2048, "attention_head_dim": (5, 10, 20),
        "block_out_channels": (320, 640, 1280), "transformer_layers_per_block": (1, 2, 10),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), "use_linear_projection": True,
        "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": POOLED + 6 * 256,
    }),
}  # fmt: skip


def denoiser_of(settings: dict[str, Any]) -> LatentDenoiser:
    """On the meta device, for one class."""
    with META:
        network = UNet2DConditionModel(**settings).requires_grad_(False)
        tokens = torch.empty(2, TOKENS, network.config.cross_attention_dim)
        added = {"text_embeds": torch.empty(2, POOLED), "time_ids": torch.empty(2, 6)}
    added = added if "addition_embed_type" in settings else {}
    return LatentDenoiser(network, training_scheduler(DDPMScheduler()), 1, tokens, None, added)


def most_bytes(call: Callable[[], object]) -> int:
    """Bytes that a call holds at most. FLOPs are counted in a call of their own: their counter holds on to tensors."""
    with on_gpu(), LiveBytes() as live:
        call()
    return live.most


def flops_of(call: Callable[[], object]) -> int:
    with on_gpu(), FlopCounterMode(display=False) as flops:
        call()
    return flops.get_total_flops()


def on_gpu() -> AbstractContextManager[object]:
    """Attention as a GPU has it. A mode would not reach what checkpointing computes again."""
    return patch.object(F, "scaled_dot_product_attention", efficient_attention)


def efficient_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_: Any) -> torch.Tensor:
    return torch.ops.aten._scaled_dot_product_efficient_attention(query, key, value, None, True)[0]


class LiveBytes(TorchDispatchMode):
    """Adds up the storages that are made, until they are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known = set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in tree_leaves(found):
            if isinstance(each, torch.Tensor) and (storage := each.untyped_storage())._cdata not in self.known:
                self.known.add(storage._cdata)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        return found

    def _gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def step_of(side: int, train: str, checkpointed: bool) -> dict[str, float]:
    """10^9 bytes beside images, and of each row, a draw of an image; and 10^12 FLOPs of a row."""
    denoiser = denoiser_of(LAYOUTS[side][1])
    choose_trained(denoiser.network, train, rank=RANK)
    denoiser.to(META)  # low-rank matrices begin elsewhere
    if checkpointed:
        denoiser.network.enable_gradient_checkpointing()
    size = LAYOUTS[side][1]["sample_size"]

    def step(images: int) -> Callable[[], object]:
        return lambda: blank_step(
            denoiser, LatentLoss(), images, image_shape=(4, size, size), labelled=True, noise_multiplicity=1,
            device=META,
        )  # fmt: skip

    one, two, flops = most_bytes(step(1)), most_bytes(step(2)), flops_of(step(1))
    weights = sum(each.nbytes for each in denoiser.parameters())
    trained = sum(each.nbytes for each in denoiser.parameters() if each.requires_grad)
    fixed, row = RESERVED + weights + (COPIES - 1) * trained + 2 * one - two, two - one
    return {"fixed": round(fixed / 1e9, 3), "row": round(row / 1e9, 3), "step": round(flops / 1e12, 3)}


def layout_of(side: int) -> dict[str, Any]:
    """A layout as the file has it."""
    name, settings = LAYOUTS[side]
    denoiser, size = denoiser_of(settings), settings["sample_size"]
    image, label = torch.empty(1, 4, size, size, device=META), torch.zeros(1, dtype=torch.long, device=META)
    with torch.no_grad():
        flops = flops_of(lambda: denoiser(image, torch.tensor(0.0), label))
    weights = sum(each.numel() for each in denoiser.parameters())
    found = {"name": name, "weights": weights, "forward": round(flops / 1e12, 3)}
    for train in tqdm(("lora", "attention"), desc=name, unit="way to train"):
        for key, checkpointed in (("", False), (" checkpointed", True)):
            found[train + key] = step_of(side, train, checkpointed)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    file = parser.parse_args().file
    file.write_text(json.dumps({side: layout_of(side) for side in LAYOUTS}, indent=1) + "\n")


if __name__ == "__main__":
    main()
