# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Images of a release as parquet shards, in a folder that `datasets.load_dataset` reads. Processes share
the shards."""

import io
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ..distributed.worker_pool import WorkerPool
from ..errors import IntegrityError, UsageError
from ..files.canonical import canonical_json
from ..files.file_modes import refuse_unwritable
from ..files.journal import replace_file, written_whole
from ..files.output_files import refuse_in_release
from ..methods.judge import DRAWN, JUDGE
from ..release.cards import dataset_card
from ..release.components import WRONG
from ..release.image_tables import PROBABILITIES, to_png, write_images
from ..release.loading import ModelRelease, open_model
from ..verify import CARD_NAME, RECEIPT_NAME, receipt_digest
from .drawing import UNIFORM, Drawing, class_names, draw, pixels_of


PARAMETERS_NAME = "sampling.json"  # what `diffusers-dp sample` was asked for, beside its images
IMAGES_PER_SHARD = 500  # what an interruption may cost


def device_of(name: str) -> str:
    """The device that `--device` names; `auto`: a GPU if there is one. Raises `UsageError` where it is not there."""
    import torch

    place = ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    try:
        torch.zeros(1, device=place).cpu()  # `meta` has no values
    except (RuntimeError, AssertionError):  # AssertionError: torch without CUDA
        raise UsageError(f"--device {place} is not there; give --device cpu.") from None
    return place


@dataclass(frozen=True)
class Drawer:
    """
    Draws images of a release. A copy in another process fetches and loads the release itself.

    Args:
        release (`ModelRelease`): Release with its model loaded.
        drawing (`Drawing`): What is drawn, with the released class balance as its shares.
        device (`str`): Device, or `auto`.
        labels (`str`): `drawn`, or `judge`: its most probable class is the label.
        bar (`tqdm`, *optional*): Progress of this process, in images.
    """

    release: ModelRelease
    drawing: Drawing
    device: str = "auto"
    labels: str = DRAWN
    bar: Any = None

    @classmethod
    def of(
        cls, name: str, drawing: Drawing, device: str = "auto", base: str | Path | None = None, labels: str = DRAWN
    ) -> "Drawer":
        """Opens and loads a release.

        Args:
            name (`str`): Folder of the release, or Hub id.
            drawing (`Drawing`): What is drawn.
            device (`str`): Device; `auto`: a GPU if there is one.
            base (`str` or `Path`, *optional*): See `load_verified`.
            labels (`str`): See `Drawer`.

        Raises:
            UsageError, IntegrityError: See `load_verified`; or the device or this drawing is not possible, or there
                is no judge.
        """
        release = open_model(name, base=base)  # before torch is loaded
        from diffusers.utils import logging as diffusers_logging

        from ..distributed.memory import keep_freed_memory

        keep_freed_memory()
        diffusers_logging.disable_progress_bar()  # takes a second, for the two parts of a model
        pipeline = release.pipeline.to(device_of(device))
        found = cls(release, drawing.of_model(pipeline, release.receipt), device, labels)
        if release.judge is None and labels == JUDGE:
            raise UsageError("--labels judge needs a release with a judge, and this one has none; leave it out.")
        return found

    def __reduce__(self) -> Any:
        return Drawer.of, (self.release.name, self.drawing, self.device, self.release.base, self.labels)

    def images(self, indices: range) -> list[Any]:
        """Draws the images of these numbers.

        Raises:
            UsageError: A batch does not fit in memory.
            IntegrityError: The parts of a stranger's model do not fit each other.
        """
        from ..distributed.interruption import is_memory_error

        try:
            return draw(self.release.pipeline, self.drawing, indices, bar=self.bar)
        except (MemoryError, *WRONG) as error:
            if is_memory_error(error):
                raise UsageError(
                    f"--batch_size {self.drawing.batch_size} takes more memory than there is; give a smaller one, the "
                    "same command goes on."
                ) from None
            if not self.release.may_fail_to_draw:
                raise
            raise IntegrityError(f"The release cannot draw: {type(error).__name__} in its files.") from None

    def write(self, shard: tuple[Path, range]) -> None:
        """Writes the parquet file of these images, with the columns `image` (PNG) and, with classes, `label`, and
        `label_probabilities` of a judge; whole or not at all. Raises `UsageError` if the disk is full."""
        import torch

        path, indices = shard
        (pipeline, judge), content = (self.release.pipeline, self.release.judge), io.BytesIO()
        pictures, labels = self.images(indices), self.drawing.labels_of(indices, pipeline.num_classes)
        soft = None if judge is None else judge.label(torch.from_numpy(pixels_of(pictures))).numpy()
        if soft is not None and self.labels == JUDGE:
            labels = soft.argmax(1).tolist()
        write_images(content, list(map(to_png, pictures)), labels, class_names(pipeline), soft)
        try:
            replace_file(path, content.getvalue())
        except OSError as error:
            raise UsageError(
                f"--output_dir {path.parents[1]} cannot be written ({error.strerror}): make room, then resume with "
                "the same command."
            ) from None


def draw_folder(drawer: Drawer, output: Path, pool: WorkerPool) -> None:
    """Fills the folder `output`, or resumes what the same drawing started there."""
    begin(drawer, output)
    missing = [shard for shard in shards_of(output, drawer.drawing) if not shard[0].exists()]
    own = sum(len(indices) for _, indices in missing[:: pool.count])
    title = "Sampling" if pool.count == 1 else f"Sampling (1 of {pool.count} processes)"
    with tqdm(total=own, unit="image", desc=title) as bar:
        for _ in pool.map(replace(drawer, bar=bar).write, missing):
            pass


def shards_of(output: Path, drawing: Drawing) -> list[tuple[Path, range]]:
    """Returns each file with the numbers of its images."""
    parts = drawing.parts(IMAGES_PER_SHARD)
    return [(output / "data" / f"train-{i:05d}-of-{len(parts):05d}.parquet", part) for i, part in enumerate(parts)]


def refuse_other_images(output: Path) -> None:
    """Raises `UsageError` if the folder holds something that no such command started."""
    refuse_unwritable(output, "--output_dir")
    # `Path.exists` raises if a name is too long.
    if not os.path.exists(output) or os.path.isfile(output / PARAMETERS_NAME):
        return
    if not output.is_dir() or any(output.iterdir()):
        raise UsageError(f"--output_dir {output} is not an empty folder; give another one.")


def begin(drawer: Drawer, output: Path) -> None:
    """Creates the folder with receipt, card and parameters, or accepts the one that the same drawing started.

    Raises:
        UsageError: The folder holds something else, is inside the release, or cannot be written.
    """
    release, balance = drawer.release.folder, drawer.drawing.class_balance
    asked = {
        **drawer.drawing.facts, **({} if balance == UNIFORM else {"class_balance": balance}),
        **({} if drawer.release.judge is None else {PROBABILITIES: JUDGE}),
        **({} if drawer.labels == DRAWN else {"labels": drawer.labels}),
        "images_per_shard": IMAGES_PER_SHARD, "receipt_sha256": receipt_digest(release / RECEIPT_NAME),
    }  # fmt: skip
    card = dataset_card(
        drawer.release.receipt,
        num_images=drawer.drawing.num_images,
        class_names=class_names(drawer.release.pipeline),
        balance=balance,
        parameters={name: value for name, value in asked.items() if name != "num_images"},
    )
    # A folder of images has a receipt, too, and goes on.
    refuse_in_release(output if output.resolve() == release.resolve() else output.parent)
    parameters = output / PARAMETERS_NAME
    if os.path.isfile(parameters):  # `Path.is_file` raises if a name is too long
        if parameters.read_bytes() != canonical_json(asked).encode():
            raise UsageError(f"--output_dir {output} holds images of another command; give another folder.")
        return
    refuse_other_images(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(output) as begun:
            (begun / "data").mkdir()
            (begun / RECEIPT_NAME).write_bytes((release / RECEIPT_NAME).read_bytes())
            (begun / PARAMETERS_NAME).write_text(canonical_json(asked))
            (begun / CARD_NAME).write_text(card, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output_dir {output} cannot be written ({error.strerror}); give another folder.") from None
