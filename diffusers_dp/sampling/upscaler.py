# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Enlarges released images, so that a model of small images can be trained. Enlarging is post-processing."""

from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import UNet2DModel
from torch import nn

from ..errors import UsageError
from ..queries.perceptual import hash_weights
from ..release.components import (
    WRONG,
    WrongModel,
    build_described,
    check_class_name,
    check_sizes,
    read_json,
    read_shapes,
    these_alone,
)


CONFIG, WEIGHTS = "config.json", "diffusion_pytorch_model.safetensors"
REMEDY = "Give a folder that benchmarks/upscaler.py wrote."
PIXELS_AT_ONCE = 2**19  # of enlarged images


def enlarged(images: torch.Tensor, side: int) -> torch.Tensor:
    """Resizes images `[b, C, h, w]` in [-1, 1] to `[b, C, side, side]`, bilinearly."""
    return F.interpolate(images, size=(side, side), mode="bilinear", align_corners=False)


class Upscaler(nn.Module):
    """
    Bilinear resizing, and a UNet that adds the detail that public images taught it.

    Args:
        unet (`UNet2DModel`): As many channels out as in. Its `sample_size` is the side of the enlarged images.

    Raises:
        WrongModel: The network has another shape, or classes.
    """

    def __init__(self, unet: UNet2DModel):
        super().__init__()
        config = unet.config
        if not isinstance(config.sample_size, int) or config.in_channels != config.out_channels:
            raise WrongModel("it needs a sample_size, and as many channels out as in")
        if config.num_class_embeds is not None or config.class_embed_type is not None:
            raise WrongModel("it asks for classes")
        self.unet = unet

    @classmethod
    def new(cls, channels: int, side: int, widths: tuple[int, ...]) -> "Upscaler":
        """An untrained one.

        Args:
            channels (`int`): 1 or 3, of an image.
            side (`int`): Side of an enlarged image.
            widths (`tuple[int, ...]`): Channels of each level.
        """
        unet = UNet2DModel(
            sample_size=side, in_channels=channels, out_channels=channels, block_out_channels=widths,
            layers_per_block=1, down_block_types=("DownBlock2D",) * len(widths), norm_num_groups=8,
            up_block_types=("UpBlock2D",) * len(widths), add_attention=False,
        )  # fmt: skip
        nn.init.zeros_(unet.conv_out.weight)
        nn.init.zeros_(unet.conv_out.bias)
        return cls(unet)

    @classmethod
    def load(cls, folder: str | Path) -> "Upscaler":
        """Opens a folder of `UNet2DModel.save_pretrained`, in evaluation mode. Checks sizes before it takes memory.

        Raises:
            UsageError: It is not there, or holds no such network in safetensors.
        """
        place = Path(folder).expanduser()
        try:
            config, shapes = read_json(place / CONFIG), read_shapes(place / WEIGHTS)
            check_class_name(config, ("UNet2DModel",), CONFIG)
            check_sizes(config, shapes)
            empty = cls(build_described(config, shapes))
            with torch.no_grad():
                empty(torch.empty(1, empty.channels, 1, 1, device="meta"))
            with these_alone(place, (CONFIG, WEIGHTS)) as alone:
                found = cls(UNet2DModel.from_pretrained(alone, use_safetensors=True)).eval()
            if not all(each.isfinite().all() for each in found.parameters()):
                raise WrongModel("its weights are no numbers")
        except WrongModel as error:
            raise UsageError(f"--upscaler {folder} is not opened: {error}. {REMEDY}") from None
        except WRONG as error:
            raise UsageError(
                f"--upscaler {folder} holds no network that enlarges images ({type(error).__name__}). {REMEDY}"
            ) from None
        return found

    @property
    def channels(self) -> int:
        return int(self.unet.config.in_channels)

    @property
    def side(self) -> int:
        return int(self.unet.config.sample_size)

    @property
    def sha256(self) -> str:
        return hash_weights(self.unet)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Enlarges images `[b, C, h, w]` in [-1, 1] to `[b, C, side, side]`, not clamped."""
        large = enlarged(images, self.side)
        return large + self.unet(large, 0).sample


@torch.no_grad()
def upscale(images: torch.Tensor, side: int, upscaler: Upscaler | None = None) -> torch.Tensor:
    """Enlarges pictures.

    Args:
        images (`torch.Tensor` of uint8, shape `[n, C, h, w]`): The pictures.
        side (`int`): Height and width of the large ones.
        upscaler (`Upscaler`, *optional*): Network whose `side` it is; `None`: bilinearly.

    Returns:
        `torch.Tensor` of uint8, shape `[n, C, side, side]`.
    """
    large = []
    for part in images.split(max(1, PIXELS_AT_ONCE // side**2)):
        rows = part.float() / 127.5 - 1
        rows = enlarged(rows, side) if upscaler is None else upscaler(rows)
        large.append(rows.clamp(-1, 1).add(1).mul(127.5).round().byte())
    return torch.cat(large)
