# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Feature extractors: map 8-bit images to the vectors on which fidelity is measured, by external networks or none.

Only the published Inception network gives numbers that may be called FID; every other extractor has its own name. None
uses labels; the extractor in `classifier_features.py` does.
"""

import hashlib
import io
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image

from ..errors import UsageError
from ..files.file_modes import public_files
from ..files.strange_files import read_bounded
from ..queries.perceptual import hash_weights
from .flags import DINOV2_MODEL, MeasureFlags


INCEPTION_NAME = "inception-2015-12-05.pt"
MOST_INCEPTION = 2**28  # bytes; it has 95 MB
INCEPTION_URL = f"https://nvlabs-fi-cdn.nvidia.com/stylegan2-ada-pytorch/pretrained/metrics/{INCEPTION_NAME}"
#: Hash of the file that StyleGAN2-ADA published; k-diffusion, clean-fid's users and others state the same one.
INCEPTION_SHA256 = "f58cb9b6ec323ed63459aa4fb441fe750cfe39fafad6da5cb504a16f19e958f4"

DINOV2_SIZE = 224
#: Hidden size, layers and patch size of ViT-L/14, the network of the published FD-DINOv2.
DINOV2_PUBLISHED = (1024, 24, 14)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class FeatureExtractor(Protocol):
    """A feature space for metrics of fidelity.

    Attributes:
        name (`str`): Name of the extractor: `inception`, `dinov2`, `pixels` or `classifier`.
        facts (`dict`): JSON facts that distinguish feature spaces, for the report and the cache: weights' sha256,
            layer, dimension, preprocessing.
        frechet_name (`str`): Name for a Fréchet distance between these features.
    """

    name: str
    facts: dict[str, Any]
    frechet_name: str

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Maps images `[n, C, H, W]`, uint8, to features `[n, D]`, float32."""

    def probabilities(self, images: np.ndarray) -> np.ndarray | None:
        """Maps images `[n, C, H, W]`, uint8, to class probabilities `[n, classes]`, float32; returns `None` without a
        classification layer."""


class PixelExtractor:
    """The pixels divided by 255: no network, no download, and no invariance."""

    name = "pixels"
    frechet_name = "Fréchet distance (pixels)"

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {"layer": "pixels", "preprocessing": "divided by 255, flattened", "weights": None}

    def __call__(self, images: np.ndarray) -> np.ndarray:
        return images.reshape(len(images), -1).astype(np.float32) / 255

    def probabilities(self, images: np.ndarray) -> np.ndarray | None:
        return None


class InceptionExtractor:
    """The Inception network of the published FID, as StyleGAN2-ADA's TorchScript file.

    The file is a translation of the TensorFlow graph of 2015-12-05; it resizes to 299 x 299 and scales the images. The
    published tables of DPImageBench and FETA-Pro used pytorch-fid's translation of the same weights. That one resizes
    by PyTorch's bilinear interpolation and otherwise agrees, so compare only the first decimals. Probabilities are the
    softmax of all 1008 outputs **with** their bias, as in these tables. (StyleGAN2-ADA's Inception Score leaves the
    bias out.)

    Args:
        weights (`Path`, *optional*): Path of the file; by default it is found in torch's downloads, or downloaded.
        device (`str`, defaults to `"cpu"`): Device of the network.
        batch_size (`int`, defaults to 64): Number of images at a time.

    Raises:
        UsageError: The file does not exist and cannot be downloaded, or it has another hash.
    """

    name = "inception"
    frechet_name = "FID"

    def __init__(self, weights: Path | None = None, *, device: str = "cpu", batch_size: int = 64) -> None:
        content = _read_inception(weights)
        self._network = torch.jit.load(io.BytesIO(content), map_location=device).eval()
        self._device, self._batch_size = device, batch_size
        self._made_by = (weights, {"device": device, "batch_size": batch_size})
        self.facts: dict[str, Any] = {
            "weights": INCEPTION_NAME,
            "weights_sha256": INCEPTION_SHA256,
            "layer": "last pooling",
            "dimension": self(np.zeros((1, 3, 32, 32), np.uint8)).shape[1],
            "preprocessing": "8 bits, grey repeated three times, resized to 299 x 299 and scaled by the network "
            "itself",
        }

    def __reduce__(self) -> Any:
        return _loaded_once, (InceptionExtractor, *self._made_by)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        return in_batches(
            lambda batch: self._network(self._input(batch), return_features=True), images, self._batch_size
        )

    def probabilities(self, images: np.ndarray) -> np.ndarray | None:
        return in_batches(lambda batch: self._network(self._input(batch)), images, self._batch_size)

    def _input(self, images: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(_as_rgb(images)).to(self._device)


class Dinov2Extractor:
    """The class token of a DINOv2 network, for FD-DINOv2 (Stein et al. 2023).

    Images are resized to 224 x 224 by PIL's bicubic filter and normalised like ImageNet. transformers interpolates the
    position embeddings to that size slightly differently from the original code, so it reproduces published values
    approximately. The name FD-DINOv2 is used for the published architecture (ViT-L/14); the hash of its weights is
    recorded but not compared.

    Args:
        model (`str` or `Path`, defaults to `"facebook/dinov2-large"`): Hub id, or folder of
            `Dinov2Model.save_pretrained`.
        device (`str`, defaults to `"cpu"`): Device of the network.
        batch_size (`int`, defaults to 32): Number of images at a time.

    Raises:
        UsageError: The model does not exist, is not a DINOv2 network, or its weights are damaged or incomplete.
    """

    name = "dinov2"

    def __init__(self, model: str | Path = DINOV2_MODEL, *, device: str = "cpu", batch_size: int = 32) -> None:
        self._network = _load_dinov2(str(model)).to(device).eval()
        self._device, self._batch_size = device, batch_size
        self._made_by = (model, {"device": device, "batch_size": batch_size})
        config = self._network.config
        architecture = (config.hidden_size, config.num_hidden_layers, config.patch_size)
        self.frechet_name = (
            "FD-DINOv2"
            if architecture == DINOV2_PUBLISHED
            else f"Fréchet distance (DINOv2, {config.num_hidden_layers} layers of {config.hidden_size})"
        )
        self.facts: dict[str, Any] = {
            "weights": Path(model).name if Path(model).exists() else str(model),
            "weights_sha256": hash_weights(self._network),
            "layer": "class token after the last normalisation",
            "dimension": config.hidden_size,
            "preprocessing": f"8 bits, grey repeated three times, PIL bicubic to {DINOV2_SIZE} x {DINOV2_SIZE}, "
            "ImageNet's mean and std",
        }

    def __reduce__(self) -> Any:
        return _loaded_once, (Dinov2Extractor, *self._made_by)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        return in_batches(self._class_token, images, self._batch_size)

    def probabilities(self, images: np.ndarray) -> np.ndarray | None:
        return None

    def _class_token(self, images: np.ndarray) -> torch.Tensor:
        resized = np.stack(
            [
                np.asarray(Image.fromarray(image).resize((DINOV2_SIZE, DINOV2_SIZE), Image.Resampling.BICUBIC))
                for image in _as_rgb(images).transpose(0, 2, 3, 1)
            ]
        )
        scaled = (resized.astype(np.float32) / 255 - np.array(IMAGENET_MEAN, np.float32)) / np.array(
            IMAGENET_STD, np.float32
        )
        pixels = torch.from_numpy(np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))).to(self._device)
        return self._network(pixel_values=pixels).last_hidden_state[:, 0]


@public_files()  # what is downloaded is shared by all who use that cache
def load_networks(flags: MeasureFlags, device: str) -> dict[str, FeatureExtractor]:
    """Loads the networks of `--extractors` that were trained elsewhere; raises `UsageError` where weights are damaged
    or not there."""
    loaders: dict[str, Callable[[], FeatureExtractor]] = {
        "inception": lambda: InceptionExtractor(flags.inception_weights, device=device),
        "dinov2": lambda: Dinov2Extractor(flags.dinov2_model, device=device),
    }
    return {name: loaders[name]() for name in flags.extractors or [] if name in loaders}


_loaded: dict[str, Any] = {}  # the last loaded extractor


def _loaded_once(extractor: type, weights: Path | str | None, options: dict[str, Any]) -> FeatureExtractor:
    """Loads an extractor that was sent to this process, once for all requests."""
    name = repr((extractor, weights, options))
    if name not in _loaded:
        _loaded.clear()
        _loaded[name] = extractor(weights, **options)
    return _loaded[name]


def in_batches(function: Callable[[np.ndarray], torch.Tensor], images: np.ndarray, batch_size: int) -> np.ndarray:
    """Applies `function` to batches of images `[n, C, H, W]`, n > 0, without gradients; returns `[n, D]`, float32."""
    with torch.inference_mode():
        rows = [function(images[i : i + batch_size]).float().cpu().numpy() for i in range(0, len(images), batch_size)]
    return np.concatenate(rows)


def _as_rgb(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(images.repeat(3, axis=1) if images.shape[1] == 1 else images)


def _read_inception(weights: Path | None) -> bytes:
    """Reads the file, whose hash is checked before loading because TorchScript is a program."""
    path = weights if weights is not None else Path(torch.hub.get_dir()) / "checkpoints" / INCEPTION_NAME
    if weights is None and not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(INCEPTION_URL, str(path), hash_prefix=INCEPTION_SHA256)
        except (urllib.error.URLError, OSError, RuntimeError) as error:  # RuntimeError: the download has another hash
            raise UsageError(
                f"The Inception network could not be downloaded ({error}): fetch {INCEPTION_URL} on a machine with a "
                "network and give the file by --inception_weights, or choose --extractors pixels."
            ) from None
    try:
        content = read_bounded(path, MOST_INCEPTION)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--inception_weights {path} cannot be read ({reason}): give the file that {INCEPTION_URL} holds."
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != INCEPTION_SHA256:
        raise UsageError(
            f"--inception_weights {path} is damaged or another file (sha256 {found[:12]}..., not "
            f"{INCEPTION_SHA256[:12]}...): remove it and fetch {INCEPTION_URL} again."
        )
    return content


def _load_dinov2(model: str) -> Any:
    from safetensors import SafetensorError
    from transformers import AutoConfig, Dinov2Model

    try:
        config = AutoConfig.from_pretrained(model)
        if config.model_type != "dinov2":
            raise UsageError(
                f"--dinov2_model {model} is a {config.model_type} model: give one of DINOv2, as {DINOV2_MODEL}."
            )
        # Safetensors only because a pickle is a program.
        loaded: Any = Dinov2Model.from_pretrained(
            model, config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UsageError(
            f"--dinov2_model {model} cannot be loaded ({type(error).__name__}): give a folder or a Hub id with "
            f"undamaged safetensors weights of DINOv2, as {DINOV2_MODEL}."
        ) from None
    network, report = loaded
    if report["missing_keys"]:
        raise UsageError(
            f"--dinov2_model {model} lacks {len(report['missing_keys'])} of the network's weights: fetch it again."
        )
    return network
