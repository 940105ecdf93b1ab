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

from ..data.cache import full_disk_is_said
from ..distributed.worker_pool import WorkerPool
from ..files.canonical import canonical_json
from ..files.journal import replace_file
from .extractors import FeatureExtractor
from .images import UNCOUNTED


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

    def probabilities(self, extractor: FeatureExtractor, images: np.ndarray) -> np.ndarray:
        """Maps images `[n, C, H, W]`, uint8, n > 0, to class probabilities `[n, classes]`, float32."""
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
