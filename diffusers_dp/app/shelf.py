# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The models that the page may open: found, measured, fetched, verified, and only then loaded, each in a separate
process. Only these processes load torch."""

import itertools
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..commands.app import Limits
from ..errors import IntegrityError, UsageError
from ..files.hub_errors import one_sentence
from ..release.hub import fetch_snapshot
from ..release.loading import AnyRelease, read_release
from ..sampling.drawing import Drawing
from ..sampling.shards import PARAMETERS_NAME
from ..verify import MOST_FILES, PICKLE_SUFFIXES, RECEIPT_NAME
from .drawing import Drawn, Step
from .limits import LARGEST_SIDE, LONGEST_NAME, MODELS_FETCHED, MOST_CLASSES, OPENED_AT_ONCE, PIPELINES_KEPT
from .painter import Painter


class Shelf:
    """Opens models by name, and keeps the last used ones in memory.

    Args:
        names (sequence of `str`): Folders and Hub ids chosen at the start of the page.
        limits (`Limits`): Limits on requests.
        allow_unverified (`bool`): Whether to open models that do not match their receipt or have none.
        folders_by_visitors (`bool`): Whether a visitor may type the path of a folder; not for a page open to
            strangers.
    """

    def __init__(
        self,
        names: Sequence[str],
        limits: Limits,
        *,
        allow_unverified: bool = False,
        folders_by_visitors: bool = False,
    ) -> None:
        self._given, self.limits = label(names), limits
        self.names = tuple(self._given)
        self.allow_unverified, self.folders_by_visitors = allow_unverified, folders_by_visitors
        # Opening one model waits neither for the files of another nor for torch.
        self._opening = [threading.Lock() for _ in range(OPENED_AT_ONCE)]
        self._working, self._counting = threading.Lock(), threading.Lock()
        self._opened: dict[str, AnyRelease] = {}
        self._fetched: set[str] = set()
        self._painters: OrderedDict[str, Painter] = OrderedDict()

    def open(self, name: str) -> AnyRelease:
        """Returns the verified model of this name; caches it.

        Raises:
            UsageError: The model is not found, is not a release, is larger than the limit, or has too long a name.
            IntegrityError: The model does not match its receipt or has none, and `allow_unverified` is not set.
        """
        name = (name or "").strip()
        name = next((short for short, given in self._given.items() if given == name), name)
        if not name:
            raise UsageError("Choose a release, or type the Hub id of one.")
        if len(name) > LONGEST_NAME and name not in self.names:
            raise UsageError(f"That name has {len(name):,} letters, and {LONGEST_NAME} is the most: check it.")
        with self._opening[hash(name) % OPENED_AT_ONCE]:
            if name not in self._opened:
                self._opened[name] = self._open(name)
            return self._opened[name]

    def opened(self, name: str) -> AnyRelease:
        """Returns a model of the list, or one that a visitor opened: a link from elsewhere fetches nothing.

        Raises:
            DiffusersDPError: As `open`; or nobody has opened this model.
        """
        if name and name not in self.names and name not in self._opened and len(name) <= LONGEST_NAME:
            raise UsageError(f"'{name}' is not open here yet: type its name, and open it.")
        return self.open(name)

    def load(self, released: AnyRelease) -> Painter:
        """Returns the process of an opened model, on a GPU if there is one.

        Raises:
            DiffusersDPError: The model cannot be loaded within the limits.
        """
        with self._working:
            return self._painter(released)

    def draw(self, released: AnyRelease, drawing: Drawing) -> Iterator[Step | Drawn]:
        """Draws from an opened model, one drawing at a time: see `Painter.watch`.

        Raises:
            DiffusersDPError: The model cannot be loaded within the limits, or cannot draw this.
        """
        with self._working:
            yield from self._painter(released).watch(drawing)

    def _painter(self, released: AnyRelease) -> Painter:
        kept = self._painters.pop(released.name, None)
        if kept is None or not kept.is_alive:
            while len(self._painters) >= PIPELINES_KEPT:
                self._painters.popitem(last=False)[1].close()
            kept = Painter(released, require_dp=not self.allow_unverified, seconds=self.limits.max_seconds)
        self._painters[released.name] = kept
        return kept

    def _open(self, name: str) -> AnyRelease:
        folder = self._find(name)
        found = read_release(folder, name)
        if folder.is_absolute():  # visitors must not see paths of this machine
            problems = tuple(problem.replace(str(folder), f"'{name}'") for problem in found.problems)
            found = replace(found, problems=problems)
        if found.problems and not self.allow_unverified:
            if (folder / PARAMETERS_NAME).is_file():
                raise UsageError(f"'{name}' holds images that were drawn from a release: open that release.")
            raise IntegrityError(f"'{name}' is not opened: {' '.join(found.problems)}")
        names = found.described_classes(LARGEST_SIDE, MOST_CLASSES)
        return replace(found, class_names=names, base=self._base_of(name, found.stated_base))

    def _find(self, name: str) -> Path:
        """Returns the folder of a model, fetched from the Hub if it is not too large."""
        folder = Path(self._given.get(name, name))
        if os.path.isdir(folder) and (name in self.names or self.folders_by_visitors):
            self._refuse_large_folder(name, folder)
            return folder
        with self._counted(name, name):
            commit, kind = self._ask_hub(name)
            return fetch_snapshot(name, commit, token=self._token(name), repo_types=(kind,))

    def _refuse_large_folder(self, name: str, folder: Path) -> None:
        """A folder that is no release may be a whole disk, and is not walked through. Raises `UsageError`."""
        try:
            entries = list(itertools.islice(folder.rglob("*"), MOST_FILES + 1))
            size = sum(path.stat().st_size for path in entries if path.is_file())
        except OSError as error:
            raise UsageError(f"'{name}' cannot be looked through ({error.strerror}); choose a release.") from None
        self._refuse_large(f"'{name}'", math.inf if len(entries) > MOST_FILES else size)

    def _base_of(self, name: str, reference: dict[str, Any] | None) -> Path | None:
        """Fetches the base of adapters, from the Hub alone, by the rules for the release itself."""
        from huggingface_hub import HfApi

        if reference is None:
            return None
        base, revision, token = reference["name"], reference["revision"], self._token(name)
        if revision is None:
            raise UsageError(f"'{name}' is adapters of a base that lay in a folder: this page takes none of these.")
        wanted = [file["name"] for file in reference["files"]]
        with self._counted(name, f"{base}@{revision}"):
            with one_sentence(f"'{name}' is adapters of the base '{base}', which", "a model"):
                found = HfApi().model_info(base, revision=revision, files_metadata=True, token=token)
            size = sum(file.size or 0 for file in found.siblings or () if file.rfilename in wanted)
            self._refuse_large(f"'{name}' is not opened: its base", size)
            return fetch_snapshot(base, revision, kind="the base", files=wanted, token=token)

    def _token(self, name: str) -> bool | None:
        """Whether the Hub is asked with the owner's token: not for what a visitor typed."""
        return None if name in self.names else False

    @contextmanager
    def _counted(self, name: str, fetched: str) -> Iterator[None]:
        """Around fetching something for a model. What a visitor typed has a bound, for each fills the disk."""
        is_new = name not in self.names and fetched not in self._fetched
        if is_new:
            with self._counting:
                if len(self._fetched) >= MODELS_FETCHED:
                    raise UsageError(
                        f"'{name}' is not fetched: this page has fetched {MODELS_FETCHED} releases, and takes no more "
                        "until it is started again."
                    )
                self._fetched.add(fetched)
        try:
            yield
        except BaseException:
            if is_new:
                self._fetched.discard(fetched)
            raise

    def _ask_hub(self, name: str) -> tuple[str, str]:
        """The commit to fetch and the kind of its repository, after a look at what it holds."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import RepositoryNotFoundError

        api, kind, token = HfApi(), "model", self._token(name)
        found: Any
        with one_sentence(f"'{name}'", "a release"):
            try:
                found = api.model_info(name, files_metadata=True, token=token)
            except RepositoryNotFoundError:
                found, kind = api.dataset_info(name, files_metadata=True, token=token), "dataset"
        files = {file.rfilename: file.size or 0 for file in found.siblings or ()}
        self._refuse_large(f"'{name}'", sum(files.values()))
        if RECEIPT_NAME not in files and not self.allow_unverified:
            raise IntegrityError(
                f"'{name}' is not opened: it holds no {RECEIPT_NAME}, so nothing is known of its privacy."
            )
        if any(file.endswith(PICKLE_SUFFIXES) for file in files):
            raise IntegrityError(
                f"'{name}' is not opened: it holds pickle files, which can run code. Releases have safetensors."
            )
        return str(found.sha), kind

    def _refuse_large(self, what: str, size: float) -> None:
        most = self.limits.max_model_mb
        if size > most * 1_000_000:
            raise UsageError(f"{what} is too large: this page takes releases of up to {most:,} MB (--max_model_mb).")


def label(names: Sequence[str]) -> dict[str, str]:
    """Labels each model by its name, or by the end of an absolute path, because visitors see the label."""
    labels: dict[str, str] = {}
    for name in names:
        short = "/".join(Path(name).parts[-2:]) if os.path.isabs(name) else name
        while labels.get(short, name) != name:
            short += "'"
        labels[short] = name
    return labels
