# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Perceptual features: what named layers of a public vision network see (DP-MEPF, Harder et al. 2023, Section 3.1).

Nothing here loads torch before it is used.
"""

import hashlib
import json
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, first_line
from .mean_features import unit


if TYPE_CHECKING:
    import torch
    from torch import nn


PREPROCESSOR = "preprocessor_config.json"


@dataclass(frozen=True)
class PerceptualFeatures:
    """
    The outputs of layers of a network, beside each other, scaled to norm 1.

    The network is one of `transformers`, loaded from safetensors, in evaluation mode: a batch norm in training mode
    would mix images, and then no sensitivity holds. No code of its repository is run.

    Args:
        network (`str`): Folder of `save_pretrained`, or Hub id. It must not have seen the sensitive images.
        layers (`tuple[str, ...]`): Names of its modules; empty: all convolutions.
        image_shape (`tuple[int, int, int]`): (C, H, W) of the images; grey ones are repeated where it takes RGB.
        resolution (`int`, *optional*): Side length that they are resized to, for it; `None`: their own.
        flag (`str`): Of the network, for messages.

    Raises:
        UsageError: When first used: there is no such network or layer, its weights are no safetensors, are damaged or
            incomplete, or it takes no such images.
    """

    network: str
    layers: tuple[str, ...]
    image_shape: tuple[int, ...]
    resolution: int | None = None
    flag: str = "feature_network"

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # other processes load it themselves

    @cached_property
    def num_features(self) -> int:
        import torch

        try:
            with torch.no_grad():
                return self(torch.zeros(1, *self.image_shape)).shape[1]
        except (RuntimeError, ValueError, TypeError) as error:
            raise UsageError(
                f"--{self.flag} {self.network} takes no images of {'x'.join(map(str, self.image_shape))} "
                f"({first_line(error)}): give --{self._flag_of('resolution')}, or another network."
            ) from None

    @property
    def is_here(self) -> bool:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        if Path(self.network).expanduser().is_dir():
            return True
        try:
            return isinstance(try_to_load_from_cache(self.network, "config.json"), str)
        except HFValidationError:  # whoever loads it says so
            return False

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "num_features": self.num_features, "layers": list(self.layers), "resolution": self.resolution,
            "weights_sha256": self._sha256,
        }  # fmt: skip

    @property
    def public_inputs(self) -> list[dict[str, Any]]:
        return [network_origin("feature network", self.network, self._sha256)]

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Images `[b, C, H, W]` in [0, 1] to features `[b, D]` of norm 1, or 0 where no layer sees anything."""
        import torch
        import torch.nn.functional as F

        network, channels, mean, std = self._loaded
        seen = images.expand(-1, channels, -1, -1) if images.shape[1] == 1 else images
        if self.resolution is not None:
            size = (self.resolution, self.resolution)
            seen = F.interpolate(seen, size=size, mode="bilinear", align_corners=False, antialias=True)
        seen = (seen - mean.to(images.device)) / std.to(images.device)
        outputs: list[torch.Tensor] = []
        hooks = [layer.register_forward_hook(_keep(outputs)) for layer in self._modules]
        try:
            network.to(images.device)(pixel_values=seen)
        finally:
            for hook in hooks:
                hook.remove()
        return unit(torch.cat([output.flatten(1) for output in outputs], 1))

    @cached_property
    def _modules(self) -> "list[nn.Module]":
        from torch import nn

        modules = dict(self._loaded[0].named_modules())
        if not self.layers:
            found: list[nn.Module] = [module for module in modules.values() if isinstance(module, nn.Conv2d)]
            if len(found) < 2:
                raise UsageError(
                    f"--{self.flag} {self.network} is no convolutional network: give --{self._flag_of('layers')}."
                )
            return found
        for layer in self.layers:
            if layer not in modules:
                from difflib import get_close_matches

                near = get_close_matches(layer, modules, n=1, cutoff=0.0)[0]
                raise UsageError(
                    f"--{self._flag_of('layers')} '{layer}' is no layer of {self.network}; the nearest is '{near}'."
                )
        return [modules[layer] for layer in self.layers]

    def _flag_of(self, what: str) -> str:
        """The flag that says `what` of the network; both networks of DP-MEPF have one resolution."""
        whose = "feature_network" if what == "resolution" and self.flag == "stopping_network" else self.flag
        return whose.replace("network", what)

    @cached_property
    def _sha256(self) -> str:
        return hash_weights(self._loaded[0])

    @cached_property
    def _loaded(self) -> "tuple[nn.Module, int, torch.Tensor, torch.Tensor]":
        """The network in evaluation mode, its channels, and the mean and standard deviation that it expects."""

        network = load_network(self.network, self.flag).eval().requires_grad_(False)
        channels = getattr(network.config, "num_channels", 3)
        if self.image_shape[0] not in (1, channels):
            raise UsageError(f"--{self.flag} {self.network} takes images of {channels} channels; choose another.")
        return network, channels, *preprocessing_of(self.network, channels)


def network_origin(kind: str, name: str, sha256: str) -> dict[str, Any]:
    """Of a network from elsewhere, for the receipt.

    Args:
        kind (`str`): What it is for.
        name (`str`): Folder or Hub id; a folder is not told.
        sha256 (`str`): Of its weights.
    """
    from huggingface_hub import ModelCard

    from ..data.public_images import licence_of

    folder = Path(name).expanduser()
    return {
        "kind": kind,
        "name": "local folder" if folder.exists() else name,
        "weights_sha256": sha256,
        "licence": licence_of(ModelCard, folder / "README.md" if folder.exists() else name),
    }


def load_network(name: str, flag: str, kind: str = "AutoModel") -> Any:
    """A network of `transformers` from safetensors, in float32, on the CPU. A pickle is a program, and none is loaded.

    Raises:
        UsageError: There is none, or it is damaged or not whole.
    """
    import torch
    import transformers

    try:
        network, report = getattr(transformers, kind).from_pretrained(
            name, dtype=torch.float32, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    except Exception as error:  # of files that are none, or of a package that they ask for
        raise UsageError(
            f"--{flag} {name} cannot be loaded ({first_line(error)}): give a folder or a Hub id with safetensors "
            "weights of a vision network of transformers."
        ) from None
    if report["missing_keys"]:
        raise UsageError(
            f"--{flag} {name} lacks {len(report['missing_keys'])} of the network's weights: fetch it anew."
        )
    return network


def hash_weights(network: "nn.Module") -> str:
    """sha256 of a network's state: names, shapes and float32 bytes, in the order of the names."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy())
    return digest.hexdigest()


def _keep(outputs: list[Any]) -> Any:
    """A hook that keeps what a layer returns, the first of several."""

    def hook(module: Any, inputs: Any, output: Any) -> None:
        # A copy: a ReLU in place after the layer would overwrite it.
        outputs.append((output if hasattr(output, "flatten") else output[0]).clone())

    return hook


def preprocessing_of(name: str, channels: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """Mean and standard deviation that the network was trained with, `[1, channels, 1, 1]`; a half, where it does not
    say."""
    import torch
    from transformers.utils import cached_file

    path = cached_file(name, PREPROCESSOR, _raise_exceptions_for_missing_entries=False)
    half = [torch.full((1, channels, 1, 1), 0.5)] * 2
    try:
        said = {} if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
        found = [torch.tensor(said[key], dtype=torch.float32) for key in ("image_mean", "image_std")]
    except (ValueError, TypeError, KeyError, RuntimeError):
        found = half
    mean, std = (own.view(1, -1, 1, 1) if own.shape == (channels,) else other for own, other in zip(found, half))
    return mean, std
