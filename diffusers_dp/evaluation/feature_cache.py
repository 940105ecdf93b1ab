# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Features on disk, so that an interrupted extraction goes on and the next report starts from them.

They tell nearly as much of real images as the images themselves: the folder is private like these (mode 700).
"""

import hashlib
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from ..errors import UsageError
from ..receipt import canonical_json
from .extractors import FeatureExtractor
from .images import UNCOUNTED


IMAGES_PER_CHUNK = 2000  # what an interruption may cost


class FeatureCache:
    """Features by what they are made of: the images' bytes and the extractor's facts.

    A chunk of 2,000 images is one `.npy` file that is there whole or not at all; its name holds the hash of its content, and a file that
    does not fit its name is computed again.

    Args:
        folder (`Path`): Made with mode 700 where it is not there.
        counted (`bool`, defaults to `False`): Whether the terminal may show how many images there are.

    Raises:
        UsageError: The folder cannot be made or written.
    """

    def __init__(self, folder: Path, *, counted: bool = False) -> None:
        self.folder, self.counted = folder, counted

    def features(self, extractor: FeatureExtractor, images: np.ndarray) -> np.ndarray:
        """Images `[n, C, H, W]`, uint8, n > 0, to the extractor's features `[n, D]`, float32."""
        return self._rows(extractor, "features", extractor, images)

    def probabilities(self, extractor: FeatureExtractor, images: np.ndarray) -> np.ndarray | None:
        """Images `[n, C, H, W]`, uint8, n > 0, to class probabilities `[n, classes]`; `None` where the extractor has none."""
        if extractor.probabilities(images[:1]) is None:
            return None

        def compute(chunk: np.ndarray) -> np.ndarray:
            rows = extractor.probabilities(chunk)
            assert rows is not None
            return rows

        return self._rows(extractor, "probabilities", compute, images)

    def _rows(
        self, extractor: FeatureExtractor, kind: str, compute: Callable[[np.ndarray], np.ndarray], images: np.ndarray
    ) -> np.ndarray:
        folder = self.folder / f"{extractor.name}-{kind}-{_key(extractor, images)[:32]}"
        chunks = []
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)
            folder.mkdir(mode=0o700, exist_ok=True)
            words, form = f"{kind.capitalize()} ({extractor.name})", None if self.counted else UNCOUNTED
            with tqdm(total=len(images), unit="image", desc=words, bar_format=form) as bar:
                for index, start in enumerate(range(0, len(images), IMAGES_PER_CHUNK)):
                    chunk = images[start : start + IMAGES_PER_CHUNK]
                    rows = _read_chunk(folder, index)
                    if rows is None:
                        rows = compute(chunk)
                        _write_chunk(folder, index, rows)
                    chunks.append(rows)
                    bar.update(len(chunk))
        except OSError as error:
            raise UsageError(
                f"Features cannot be kept in {self.folder} ({error.strerror}): make room there or give another --output_dir, what was "
                "computed is kept."
            ) from None
        return np.concatenate(chunks)


def _key(extractor: FeatureExtractor, images: np.ndarray) -> str:
    digest = hashlib.sha256(canonical_json({"name": extractor.name, "facts": extractor.facts}).encode())
    digest.update(f"{images.dtype} {images.shape}".encode())
    digest.update(np.ascontiguousarray(images).data)
    return digest.hexdigest()


def _read_chunk(folder: Path, index: int) -> np.ndarray | None:
    for path in folder.glob(f"{index:05d}-*.npy"):
        content = path.read_bytes()
        if path.name == _chunk_name(index, content):
            return np.load(io.BytesIO(content), allow_pickle=False)
        path.unlink()
    return None


def _write_chunk(folder: Path, index: int, rows: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, rows, allow_pickle=False)
    content = buffer.getvalue()
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, folder / _chunk_name(index, content))
    except BaseException:  # also Ctrl-C
        Path(temporary).unlink(missing_ok=True)
        raise


def _chunk_name(index: int, content: bytes) -> str:
    return f"{index:05d}-{hashlib.sha256(content).hexdigest()}.npy"
