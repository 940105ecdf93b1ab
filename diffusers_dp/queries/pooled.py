# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Pooled outputs of public vision networks, such as CLIP, SigLIP and DINOv2.

Nothing here loads torch before it is used.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .mean_features import unit
from .perceptual import Fit, PerceptualFeatures, processor_of


if TYPE_CHECKING:
    import torch

LARGEST_SIDE = 4_096  # pixels


@dataclass(frozen=True)
class PooledFeatures(PerceptualFeatures):
    """
    The pooled output of a network, scaled to norm 1; of CLIP and SigLIP the embedding that is compared with texts.

    Args:
        network, image_shape, flag: See `PublicNetwork`.
        resolution (`int`, *optional*): See `PublicNetwork`; `None`: as the network's image processor resizes.
    """

    @cached_property
    def fit(self) -> Fit | None:
        """As the network's image processor does, where no resolution is given."""
        config = self.loaded[0].config
        size = getattr(getattr(config, "vision_config", config), "image_size", None)
        return super().fit or fit_of({"size": size, **processor_of(self.network, config)})

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] to features `[b, D]` of norm 1."""
        return unit(self.outputs(images).pooler_output.flatten(1))


def fit_of(processor: dict[str, Any]) -> Fit | None:
    """How an image processor resizes; `None` where it does not.

    Args:
        processor (`dict`): See `processor_of`.
    """
    side, crop = (_side_of(processor.get(key)) for key in ("size", "crop_size"))
    if side is None or processor.get("do_resize") is False:
        return None
    share = processor.get("crop_pct")
    if isinstance(share, float) and 0.1 < share < 1:  # in the place of a larger size
        side, crop = int(side / share), side
    kept = side if crop is None or processor.get("do_center_crop") is False else min(crop, side)
    return side, kept, "bicubic" if processor.get("resample") in (3, "bicubic") else "bilinear"


def _side_of(size: Any) -> int | None:
    """The shorter side of a size of transformers or timm."""
    sides = size.values() if isinstance(size, dict) else size[-2:] if isinstance(size, list) else [size]
    return min((each for each in sides if type(each) is int and 0 < each <= LARGEST_SIDE), default=None)
