# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Perceptual features: outputs of layers of a public vision network (DP-MEPF, Harder et al. 2023, Section 3.1).

Nothing here loads torch before it is used.
"""

import hashlib
import json
import os
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import UsageError, first_line
from ..files.untrusted_files import read_bounded
from .mean_features import unit


if TYPE_CHECKING:
    import torch
    from torch import nn


PREPROCESSOR = "preprocessor_config.json"
MOST_PREPROCESSOR = 1_000_000  # bytes
#: How an image is resized: the length of its shorter side, the side of the square in the middle, the interpolation.
Fit = tuple[int, int, str]
#: Words of transformers for those of timm.
TIMM = {"mean": "image_mean", "std": "image_std", "input_size": "size", "interpolation": "resample"}


@dataclass(frozen=True)
class PublicNetwork:
    """
    A network of `transformers` that images are shown to, loaded from safetensors, in evaluation mode. Batch norm in
    training mode would mix images, and no sensitivity would hold. No code from its repository is run.

    Args:
        network (`str`): Folder of `save_pretrained`, or Hub id. It must not have been trained on the sensitive images.
        image_shape (`tuple[int, int, int]`): (C, H, W) of the images; grey channels are repeated for RGB networks.
        resolution (`int`, *optional*): Side length to which images are resized; `None`: no resizing.
        flag (`str`): Flag of the network, for messages.

    Raises:
        UsageError: On first use: the network does not exist, its weights are not safetensors, are damaged or
            incomplete, or it does not accept such images.
    """

    kind: ClassVar[str] = "AutoModel"

    network: str
    image_shape: tuple[int, ...]
    resolution: int | None = None
    flag: str = "feature_network"

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # other processes load the network

    @property
    def facts(self) -> dict[str, Any]:
        """What decides what the network makes of an image, for the meaning of a query: JSON values, no paths."""
        _, _, mean, std = self.loaded
        return {
            "network": "local folder" if Path(os.path.expanduser(self.network)).exists() else self.network,
            "weights_sha256": self.sha256, "mean": mean.flatten().tolist(), "std": std.flatten().tolist(),
            "resolution": self.fit and list(self.fit),
        }  # fmt: skip

    def origin(self, kind: str) -> dict[str, Any]:
        """Describes where the network comes from, for the receipt; the name of a folder is not published.

        Args:
            kind (`str`): Purpose of the network.
        """
        from huggingface_hub import ModelCard

        from ..data.public_images import licence_of

        facts = self.facts
        return {
            "kind": kind,
            "name": facts["network"],
            "weights_sha256": facts["weights_sha256"],
            "licence": licence_of(ModelCard, self.network),
        }

    @cached_property
    def sha256(self) -> str:
        """Hash of its weights."""
        return hash_weights(self.loaded[0])

    @cached_property
    def loaded(self) -> "tuple[Any, int, torch.Tensor, torch.Tensor]":
        """The network, its channels, and its preprocessing mean and standard deviation."""
        network = load_network(self.network, self.flag, self.kind).eval().requires_grad_(False)
        channels = getattr(network.config, "num_channels", 3)
        if self.image_shape[0] not in (1, channels):
            raise UsageError(f"{self.network} takes images of {channels} channels; choose another.", field=self.flag)
        return network, channels, *preprocessing_of(processor_of(self.network, network.config), channels)

    @cached_property
    def num_outputs(self) -> int:
        """Number of values per image, of a blank one: no error of sensitive images is caught."""
        import torch

        try:
            with torch.no_grad():
                return self(torch.zeros(1, *self.image_shape)).shape[1]
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{self.network} does not accept images of {'x'.join(map(str, self.image_shape))} "
                f"({first_line(error)}): give --{self.flag_of('resolution')}, or another network.",
                field=self.flag,
            ) from None

    def flag_of(self, what: str) -> str:
        """Names the flag for `what` of the network; both networks of DP-MEPF share one resolution."""
        whose = "feature_network" if what == "resolution" and self.flag == "stopping_network" else self.flag
        name = whose.replace("network", what)
        return name if name == "feature_layers" else f"expert {name}"

    def outputs(self, images: "torch.Tensor") -> Any:
        """What the network makes of images `[b, C, H, W]` in [0, 1]: grey ones repeated, resized, normalised."""
        network, channels, mean, std = self.loaded
        seen = self.resized(images.expand(-1, channels, -1, -1) if images.shape[1] == 1 else images)
        network = network.to(images.device)
        see = getattr(network, "get_image_features", network)  # of CLIP, which reads text, too
        return see(pixel_values=(seen - mean.to(images.device)) / std.to(images.device))

    @cached_property
    def fit(self) -> Fit | None:
        """How images are resized; `None`: they are not."""
        return None if self.resolution is None else (self.resolution, self.resolution, "bilinear")

    def resized(self, images: "torch.Tensor") -> "torch.Tensor":
        """Resizes images `[b, C, H, W]` in [0, 1] as `fit` says."""
        import torch.nn.functional as F

        if self.fit is None:
            return images
        side, kept, mode = self.fit
        sides = [each * side // min(images.shape[2:]) for each in images.shape[2:]]
        top, left = ((each - kept) // 2 for each in sides)
        images = F.interpolate(images, sides, mode=mode, align_corners=False, antialias=True).clamp(0, 1)
        return images[..., top : top + kept, left : left + kept]

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] to logits `[b, classes]`."""
        logits: torch.Tensor = self.outputs(images).logits
        return logits


@dataclass(frozen=True)
class PerceptualFeatures(PublicNetwork):
    """
    Concatenated outputs of a network's layers, scaled to norm 1.

    Args:
        network, image_shape, resolution, flag: See `PublicNetwork`.
        layers (`tuple[str, ...]`): Names of modules; empty: all convolutions.

    Raises:
        UsageError: As `PublicNetwork`; or a layer does not exist.
    """

    layers: tuple[str, ...] = ()

    @property
    def num_features(self) -> int:
        return self.num_outputs

    @property
    def is_here(self) -> bool:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        if Path(os.path.expanduser(self.network)).is_dir():
            return True
        try:
            return isinstance(try_to_load_from_cache(self.network, "config.json"), str)
        except HFValidationError:  # whoever loads it says so
            return False

    @property
    def facts(self) -> dict[str, Any]:
        return {"num_features": self.num_features, "layers": list(self.layers), **super().facts}

    @property
    def public_inputs(self) -> list[dict[str, Any]]:
        return [self.origin("feature network")]

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] to features `[b, D]` of norm 1, or 0 if all outputs are 0."""
        import torch

        outputs: list[torch.Tensor] = []
        hooks = [layer.register_forward_hook(_keep(outputs)) for layer in self._modules]
        try:
            self.outputs(images)
        finally:
            for hook in hooks:
                hook.remove()
        return unit(torch.cat([output.flatten(1) for output in outputs], 1))

    @cached_property
    def _modules(self) -> "list[nn.Module]":
        from torch import nn

        modules = dict(self.loaded[0].named_modules())
        if not self.layers:
            found: list[nn.Module] = [module for module in modules.values() if isinstance(module, nn.Conv2d)]
            if len(found) < 2:
                raise UsageError(
                    f"{self.network} is not a convolutional network: give --{self.flag_of('layers')}.", field=self.flag
                )
            return found
        for layer in self.layers:
            if layer not in modules:
                from difflib import get_close_matches

                near = get_close_matches(layer, modules, n=1, cutoff=0.0)[0]
                raise UsageError(
                    f"--{self.flag_of('layers')} '{layer}' is not a layer of {self.network}; the nearest is '{near}'."
                )
        return [modules[layer] for layer in self.layers]


def load_network(name: str, flag: str, kind: str = "AutoModel") -> Any:
    """Loads a network of `transformers` from safetensors, in float32, on the CPU. Never loads pickles, which are
    programs.

    Raises:
        UsageError: The network does not exist, or is damaged or incomplete.
    """
    import torch
    import transformers

    try:
        network, report = getattr(transformers, kind).from_pretrained(
            name, dtype=torch.float32, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    except Exception as error:  # of files that are none, or of a package that they ask for
        raise UsageError(
            f"{name} cannot be loaded ({first_line(error)}): give a folder or a Hub id with safetensors weights of a "
            "vision network of transformers.",
            field=flag,
        ) from None
    if report["missing_keys"]:
        raise UsageError(
            f"{name} lacks {len(report['missing_keys'])} of the network's weights: download it again.", field=flag
        )
    return network


def hash_weights(network: "nn.Module") -> str:
    """Hashes a network's state by sha256: names, shapes and float32 bytes, in the order of the names."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy())
    return digest.hexdigest()


def _keep(outputs: list[Any]) -> Any:
    """Returns a hook that stores a layer's output, or the first of several."""

    def hook(module: Any, inputs: Any, output: Any) -> None:
        # A copy because an in-place ReLU after the layer would overwrite it.
        outputs.append((output if hasattr(output, "flatten") else output[0]).clone())

    return hook


def processor_of(name: str, config: Any) -> dict[str, Any]:
    """Reads what a network's image processor does; what timm says of it is put into the words of transformers."""
    from transformers.utils import cached_file

    path = cached_file(name, PREPROCESSOR, _raise_exceptions_for_missing_entries=False)
    said = {TIMM.get(key, key): value for key, value in (getattr(config, "pretrained_cfg", None) or {}).items()}
    try:
        return said if path is None else {**said, **json.loads(read_bounded(path, MOST_PREPROCESSOR))}
    except (OSError, ValueError, TypeError):
        return said


def preprocessing_of(said: dict[str, Any], channels: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """Returns mean and standard deviation of an image processor, `[1, channels, 1, 1]`; defaults to 0.5."""
    import torch

    half = [torch.full((1, channels, 1, 1), 0.5)] * 2
    try:
        found = [torch.tensor(said[key], dtype=torch.float32) for key in ("image_mean", "image_std")]
    except (ValueError, TypeError, KeyError, RuntimeError):  # RuntimeError: also of nested values
        found = half
    mean, std = (own.view(1, -1, 1, 1) if own.shape == (channels,) else other for own, other in zip(found, half))
    return mean, std
