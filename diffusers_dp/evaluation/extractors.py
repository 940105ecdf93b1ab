# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Feature extractors: map 8-bit images to the vectors on which fidelity is measured, by external networks or none.

Only the published Inception network gives numbers that may be called FID; every other extractor has its own name. None
uses labels; the extractor in `classifier_features.py` does.

Features are kept on disk, for resuming an interrupted extraction and for later reports. They reveal nearly as much as
the real images, so the folder is private like these (mode 700).
"""

import functools
import hashlib
import io
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from tqdm.auto import tqdm

from ..data.cache import full_disk_is_said
from ..distributed.worker_pool import WorkerPool
from ..errors import UsageError
from ..files.canonical import canonical_json
from ..files.file_modes import public_files
from ..files.journal import replace_file
from ..files.untrusted_files import read_bounded
from ..queries.efficientnet import EFFICIENTNET, LAST, EfficientNetFeatures, refuse_missing_network
from .images import UNCOUNTED
from .inception import InceptionV3


INCEPTION_NAME = "inception-2015-12-05.pt"
MOST_INCEPTION = 2**28  # bytes; it has 95 MB
INCEPTION_URL = f"https://nvlabs-fi-cdn.nvidia.com/stylegan2-ada-pytorch/pretrained/metrics/{INCEPTION_NAME}"
#: Hash of the file that StyleGAN2-ADA published; k-diffusion, clean-fid's users and others state the same one.
INCEPTION_SHA256 = "f58cb9b6ec323ed63459aa4fb441fe750cfe39fafad6da5cb504a16f19e958f4"
PYTORCH_FID_NAME = "pt_inception-2015-12-05-6726825d.pth"
PYTORCH_FID_URL = f"https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/{PYTORCH_FID_NAME}"
#: Hash of the file, which begins with the eight digits in its name.
PYTORCH_FID_SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"


class FeatureExtractor(Protocol):
    """A feature space for metrics of fidelity.

    Attributes:
        name (`str`): Name of the extractor, one of `flags.EXTRACTORS`.
        facts (`dict`): JSON facts that distinguish feature spaces, for the report and the cache: weights' sha256,
            layer, dimension, preprocessing.
        frechet_name (`str`): Name for a Fréchet distance between these features.
    """

    name: str
    facts: dict[str, Any]
    frechet_name: str

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Maps images `[n, C, H, W]`, uint8, to features `[n, D]`, float32."""


class PixelExtractor:
    """The pixels divided by 255: no network, no download, and no invariance."""

    name = "pixels"
    frechet_name = "Fréchet distance (pixels)"

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {"layer": "pixels", "preprocessing": "divided by 255, flattened", "weights": None}

    def __call__(self, images: np.ndarray) -> np.ndarray:
        return images.reshape(len(images), -1).astype(np.float32) / 255


class InceptionExtractor:
    """The Inception network of the published FID: TensorFlow's graph of 2015-12-05 in one of two translations.

    Without `weights` it is StyleGAN2-ADA's TorchScript file. The published tables of DPImageBench and FETA-Pro used
    pytorch-fid's translation of the same weights, which `weights` names. That one resizes by PyTorch's bilinear
    interpolation and otherwise agrees, so compare only the first decimals. Probabilities are the softmax of all 1008
    outputs **with** their bias, as in these tables. (StyleGAN2-ADA's Inception Score leaves the bias out.)

    Args:
        weights (`Path`, *optional*): One of the two files; by default StyleGAN2-ADA's among torch's downloads.
        device (`str`, defaults to `"cpu"`): Device of the network.
        batch_size (`int`, defaults to 64): Number of images at a time.

    Raises:
        UsageError: The file cannot be read or downloaded, or has another hash.
    """

    name = "inception"
    frechet_name = "FID"

    def __init__(self, weights: Path | None = None, device: str = "cpu", batch_size: int = 64) -> None:
        content, found = _read_inception(weights)
        self._weights, self._device, self._batch_size = weights, device, batch_size
        if found == PYTORCH_FID_SHA256:
            self._network = InceptionV3().to(device).eval()
            state = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
            self._network.load_state_dict(state)
        else:
            self._network = torch.jit.load(io.BytesIO(content), map_location=device).eval()
        self.facts: dict[str, Any] = {
            "weights": PYTORCH_FID_NAME if found == PYTORCH_FID_SHA256 else INCEPTION_NAME,
            "weights_sha256": found,
            "layer": "last pooling",
            "dimension": self(np.zeros((1, 3, 32, 32), np.uint8)).shape[1],
            "preprocessing": "8 bits, grey repeated three times, resized to 299 x 299 and scaled by the network "
            "itself",
        }

    def __reduce__(self) -> Any:
        return _loaded_once, (self._weights, self._device, self._batch_size)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        return in_batches(
            lambda batch: self._network(self._input(batch), return_features=True), images, self._batch_size
        )

    def probabilities(self, images: np.ndarray) -> np.ndarray:
        return in_batches(lambda batch: self._network(self._input(batch)), images, self._batch_size)

    def _input(self, images: np.ndarray) -> torch.Tensor:
        rgb = images.repeat(3, axis=1) if images.shape[1] == 1 else images
        return torch.from_numpy(np.ascontiguousarray(rgb)).to(self._device)


class EfficientNetExtractor:
    """The head of the public network that pip brings, averaged over the image. Its distance is no FID.

    Args:
        device (`str`, defaults to `"cpu"`): Device of the network.

    Raises:
        UsageError: It is not installed.
    """

    name = EFFICIENTNET
    frechet_name = f"Fréchet distance ({EFFICIENTNET})"

    def __init__(self, device: str = "cpu") -> None:
        refuse_missing_network()
        self._device, self._features = device, EfficientNetFeatures((), LAST[:1])
        self.facts: dict[str, Any] = {"dimension": self._features.num_features, **self._features.facts}

    def __call__(self, images: np.ndarray) -> np.ndarray:
        return in_batches(
            lambda batch: self._features.parts(torch.from_numpy(batch).to(self._device).float() / 255)[0], images, 64
        )


@functools.lru_cache(maxsize=1)
def _loaded_once(weights: Path | None, device: str, batch_size: int) -> InceptionExtractor:
    """Loads an extractor that was sent to this process, once for all requests."""
    return InceptionExtractor(weights, device, batch_size)


def in_batches(function: Callable[[np.ndarray], torch.Tensor], images: np.ndarray, batch_size: int) -> np.ndarray:
    """Applies `function` to batches of images `[n, C, H, W]`, n > 0, without gradients; returns `[n, D]`, float32."""
    with torch.inference_mode():
        rows = [function(images[i : i + batch_size]).float().cpu().numpy() for i in range(0, len(images), batch_size)]
    return np.concatenate(rows)


@public_files()  # what is downloaded is shared by all who use that cache
def _read_inception(weights: Path | None) -> tuple[bytes, str]:
    """Reads one of the two files, and its hash: they are checked before loading because TorchScript is a program."""
    path = weights or Path(torch.hub.get_dir()) / "checkpoints" / INCEPTION_NAME
    url, remedy = INCEPTION_URL, f"put it at {path}"
    if weights is not None:
        url, remedy = PYTORCH_FID_URL, "give it by --inception_weights"
    try:
        if weights is None and not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(INCEPTION_URL, str(path), hash_prefix=INCEPTION_SHA256)
        content = read_bounded(path, MOST_INCEPTION)
    except (urllib.error.URLError, OSError, RuntimeError, ValueError) as error:  # RuntimeError: another hash
        raise UsageError(
            f"The Inception network could not be downloaded or read ({error}): fetch {url} on a machine with a "
            f"network and {remedy}, or choose --extractors pixels."
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found not in (INCEPTION_SHA256, PYTORCH_FID_SHA256):
        raise UsageError(
            f"{path} is damaged or another file (sha256 {found[:12]}...): remove it, fetch {url} again and {remedy}."
        )
    return content, found


IMAGES_PER_CHUNK = 2000  # the most work that an interruption loses


class FeatureCache:
    """Stored features, keyed by the images' bytes and the extractor's facts.

    A chunk of 2,000 images is one `.npy` file, written whole or not at all.

    Args:
        folder (`Path`): Folder, created with mode 700 if it does not exist.
        counted (`bool`, defaults to `False`): Whether the terminal may show the number of images.
        pool (`WorkerPool`, *optional*): Processes that share the chunks of a network's features. Only the first one
            reads and writes.

    Raises:
        UsageError: The folder cannot be created or written.
    """

    def __init__(self, folder: Path, *, counted: bool = False, pool: WorkerPool | None = None) -> None:
        self.folder, self.counted, self.pool = folder, counted, pool or WorkerPool()

    def features(self, extractor: FeatureExtractor, images: np.ndarray) -> np.ndarray:
        """Maps images `[n, C, H, W]`, uint8, n > 0, to the extractor's features `[n, D]`, float32."""
        return self._rows(extractor, "features", extractor, images)

    def probabilities(self, extractor: Any, images: np.ndarray) -> np.ndarray:
        """Maps images `[n, C, H, W]`, uint8, n > 0, to class probabilities `[n, classes]`, float32, by an extractor of
        `analyses.WITH_PROBABILITIES`."""
        return self._rows(extractor, "probabilities", extractor.probabilities, images)

    def _rows(
        self, extractor: FeatureExtractor, kind: str, compute: Callable[[np.ndarray], Any], images: np.ndarray
    ) -> np.ndarray:
        facts = canonical_json([extractor.name, extractor.facts, str(images.dtype), images.shape])
        digest = hashlib.sha256(facts.encode())
        digest.update(np.ascontiguousarray(images).data)
        folder = self.folder / f"{extractor.name}-{kind}-{digest.hexdigest()[:32]}"
        starts = range(0, len(images), IMAGES_PER_CHUNK)
        chunks = {folder / f"{start:08d}.npy": images[start : start + IMAGES_PER_CHUNK] for start in starts}
        missing = [path for path in chunks if not path.is_file()]
        # Sending pixels takes longer than computing them.
        pool = WorkerPool() if extractor.name == "pixels" else self.pool
        words, form = f"{kind.capitalize()} ({extractor.name})", None if self.counted else UNCOUNTED
        left = sum(len(chunks[path]) for path in missing)
        with full_disk_is_said(self.folder, "features", "or give another --output_dir: what was computed is kept"):
            for each in (self.folder, folder):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tqdm(total=len(images), initial=len(images) - left, unit="image", desc=words, bar_format=form) as bar:
                for path, rows in zip(missing, pool.map(compute, [chunks[path] for path in missing]), strict=True):
                    content = io.BytesIO()
                    np.save(content, rows, allow_pickle=False)
                    replace_file(path, content.getvalue())
                    bar.update(len(rows))
        return np.concatenate([np.load(path, allow_pickle=False) for path in chunks])
