# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Features on disk, for resuming an interrupted extraction and for later reports.

Features reveal nearly as much as the real images, so the folder is private like these (mode 700).
"""

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from ..distributed.worker_pool import WorkerPool
from ..errors import UsageError
from ..files.canonical import canonical_json
from ..files.journal import replace_file
from .extractors import FeatureExtractor
from .images import UNCOUNTED


IMAGES_PER_CHUNK = 2000  # the most work that an interruption loses
DIGEST = 32  # bytes before the content of a file


class FeatureCache:
    """Stored features, keyed by the images' bytes and the extractor's facts.

    A chunk of 2,000 images is one atomically written file: the hash of its name and content, then the content of an
    `.npy` file. A file that does not match its hash is recomputed.

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

    def probabilities(self, extractor: FeatureExtractor, images: np.ndarray) -> np.ndarray | None:
        """Maps images `[n, C, H, W]`, uint8, n > 0, to class probabilities `[n, classes]`; returns `None` if the
        extractor has none."""
        if extractor.probabilities(images[:1]) is None:
            return None
        return self._rows(extractor, "probabilities", extractor.probabilities, images)

    def _rows(
        self, extractor: FeatureExtractor, kind: str, compute: Callable[[np.ndarray], Any], images: np.ndarray
    ) -> np.ndarray:
        folder = self.folder / f"{extractor.name}-{kind}-{_key(extractor, images)[:32]}"
        # Sending pixels takes longer than computing them.
        pool = WorkerPool() if extractor.name == "pixels" else self.pool
        words, form = f"{kind.capitalize()} ({extractor.name})", None if self.counted else UNCOUNTED
        try:
            for each in (self.folder, folder):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
            parts = {
                folder / f"{start:08d}": images[start : start + IMAGES_PER_CHUNK]
                for start in range(0, len(images), IMAGES_PER_CHUNK)
            }
            chunks = {path: _read(path) for path in parts}
            missing = [path for path, rows in chunks.items() if rows is None]
            done = sum(len(rows) for rows in chunks.values() if rows is not None)
            with tqdm(total=len(images), initial=done, unit="image", desc=words, bar_format=form) as bar:
                for path, rows in zip(missing, pool.map(compute, [parts[path] for path in missing]), strict=True):
                    content = _npy(rows)
                    replace_file(path, _digest(path, content) + content)
                    chunks[path] = rows
                    bar.update(len(rows))
        except BrokenPipeError:  # of who reads the bar
            raise
        except OSError as error:
            raise UsageError(
                f"Features cannot be kept in {self.folder} ({error.strerror}): make room there or give another "
                "--output_dir, what was computed is kept."
            ) from None
        return np.concatenate([rows for rows in chunks.values() if rows is not None])


def _key(extractor: FeatureExtractor, images: np.ndarray) -> str:
    digest = hashlib.sha256(canonical_json({"name": extractor.name, "facts": extractor.facts}).encode())
    digest.update(f"{images.dtype} {images.shape}".encode())
    digest.update(np.ascontiguousarray(images).data)
    return digest.hexdigest()


def _npy(rows: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, rows, allow_pickle=False)
    return buffer.getvalue()


def _digest(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + content).digest()


def _read(path: Path) -> np.ndarray | None:
    found = path.read_bytes() if path.exists() else b""
    content = found[DIGEST:]
    if found[:DIGEST] != _digest(path, content):
        return None
    return np.load(io.BytesIO(content), allow_pickle=False)
