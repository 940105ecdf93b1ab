# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp sample`: images from a release as parquet shards that `datasets.load_dataset` reads.

Drawing is post-processing: it costs no privacy, whatever is drawn and however often. Image `i` has a noise of its own,
from the seed and `i`. So it depends neither on the batch size (but for one grey level, by rounding), nor on where a
run was interrupted, nor on how many processes share the work. Classes take turns, or have the shares that
`--class_balance` names.
"""

import argparse
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from ..distributed.worker_pool import WorkerPool, lead
from ..errors import IntegrityError, UsageError
from ..files.canonical import canonical_json
from ..release.components import WRONG
from ..release.dataset_card import dataset_card
from ..release.hub import fetch_release, load_model
from ..release.image_tables import PARAMETERS_NAME
from ..release.push import check_hub, push_folder
from ..sampling.class_balance import RELEASED, UNIFORM, balanced_labels, parse_balance, released_balance
from ..sampling.seeds import generators
from ..verify import receipt_digest
from ..words import CARD_NAME, RECEIPT_NAME


if TYPE_CHECKING:
    from ..evaluation.images import Shape
    from ..pipelines import DPImagePipeline

HMC = "hmc"  # of `--solver`: the pipeline's `sampler`
LEAPFROG_STEPS = 3  # as the pipeline has them
IMAGES_PER_SHARD = 500  # what an interruption may cost
MOST_IMAGES, MOST_STEPS = 10_000_000, 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", help="Folder of a release, or Hub id.")
    parser.add_argument("--num_images", type=int, required=True, help="Images to draw.")
    parser.add_argument(
        "--output_dir", type=Path, required=True, help="New folder, or one that the same command began."
    )
    parser.add_argument(
        "--class_balance",
        default=UNIFORM,
        help="uniform; a share for each class, comma-separated (0.2,0.8): public ones, not those of the training "
        "images; or released: the noisy ones that --evaluation_reserve has paid for.",
    )
    parser.add_argument("--push_to_hub", action="store_true", help="Upload the dataset when it is finished.")
    parser.add_argument(
        "--hub_dataset_id", help="Name on the Hub, owner/name; unset: the name of --output_dir, as one of your own."
    )
    parser.add_argument("--hub_private_repo", action="store_true", help="Make a new repository private.")
    add_drawing_arguments(parser)


def add_drawing_arguments(parser: argparse.ArgumentParser) -> None:
    """What decides the images, besides the release and their number."""
    command = parser.prog.split()[-1]
    parser.epilog = f"Several processes share the work: torchrun --nproc_per_node 4 -m diffusers_dp.cli {command} ..."
    parser.add_argument("--batch_size", type=int, default=250, help="Images at a time, up to a shard's.")
    parser.add_argument("--num_inference_steps", type=int, default=20, help="Steps of the solver.")
    parser.add_argument(
        "--solver", choices=("dpm", "heun", HMC), default="dpm",
        help="heun calls the model twice a step; hmc, Hamiltonian dynamics (docs/pge.md), --trajectory_length times.",
    )  # fmt: skip
    parser.add_argument(
        "--trajectory_length", type=int, help=f"Leapfrog steps of hmc at each noise level; unset: {LEAPFROG_STEPS}."
    )
    parser.add_argument("--guidance_scale", type=float, default=1.0, help="Classifier-free guidance; 1 is none.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the images.")
    parser.add_argument("--base", help="Folder of the base, where the release is adapters of one; else from the Hub.")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ...; auto: a GPU if there is one.")


@dataclass(frozen=True)
class DrawingFlags:
    """What decides the images, besides the release; fields are the flags of these names."""

    num_images: int
    batch_size: int
    num_inference_steps: int
    solver: str
    guidance_scale: float
    seed: int
    device: str
    class_balance: str = UNIFORM
    base: str | None = None
    trajectory_length: int | None = None

    @classmethod
    def of(cls, args: argparse.Namespace, num_images: int) -> "DrawingFlags":
        """Those of a command; one without `--class_balance` draws all classes alike."""
        names = ("batch_size", "num_inference_steps", "solver", "guidance_scale", "seed", "device")
        balance = getattr(args, "class_balance", UNIFORM)
        length = LEAPFROG_STEPS if args.trajectory_length is None and args.solver == HMC else args.trajectory_length
        return cls(
            num_images,
            **{name: getattr(args, name) for name in names},
            class_balance=balance,
            base=args.base,
            trajectory_length=length,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What a reader has to know to draw the same images of uniform classes."""
        names = ("num_images", "num_inference_steps", "solver", "guidance_scale", "seed")
        facts = {name: getattr(self, name) for name in names}
        return facts if self.trajectory_length is None else facts | {"trajectory_length": self.trajectory_length}

    @property
    def sampler(self) -> dict[str, Any]:
        """How the pipeline is called."""
        if self.solver != HMC:
            return {"solver": self.solver}
        return {"sampler": HMC, "trajectory_length": self.trajectory_length}


def run(args: argparse.Namespace) -> None:
    lead(lambda pool: _sample(args, pool))


def _sample(args: argparse.Namespace, pool: WorkerPool) -> None:
    flags = DrawingFlags.of(args, args.num_images)
    check(flags)
    name = args.hub_dataset_id or args.output_dir.resolve().name
    if args.push_to_hub:
        check_hub(name, "dataset")
    elif args.hub_dataset_id is not None or args.hub_private_repo:
        raise UsageError("--hub_dataset_id and --hub_private_repo have no effect without --push_to_hub; give it, too.")
    refuse_other_images(args.output_dir)
    draw(Drawing.of(args.release, flags), args.output_dir, pool)
    folder: Path = args.output_dir
    print(f"{args.num_images} images in {folder}: datasets.load_dataset({str(folder)!r}) reads them.")
    if args.push_to_hub:
        shards = [shard.relative_to(folder).as_posix() for shard, _ in shards_of(folder, args.num_images)]
        names = [CARD_NAME, RECEIPT_NAME, PARAMETERS_NAME, *shards]
        address = push_folder(args.output_dir, names, name, repo_type="dataset", private=args.hub_private_repo)
        print(f"Pushed to {address}")


def check(flags: DrawingFlags) -> None:
    """Refuses what cannot be drawn. Raises `UsageError`."""
    for name in ("num_images", "batch_size", "num_inference_steps", "trajectory_length"):
        if getattr(flags, name) is not None and getattr(flags, name) < 1:
            raise UsageError(f"--{name} is {getattr(flags, name)}; give an integer of at least 1.")
    for name, most in (
        ("num_images", MOST_IMAGES), ("num_inference_steps", MOST_STEPS), ("trajectory_length", MOST_STEPS),
    ):  # fmt: skip
        if (getattr(flags, name) or 0) > most:
            raise UsageError(f"--{name} is {getattr(flags, name):,}; give {most:,} at most.")
    if flags.trajectory_length is not None and flags.solver != HMC:
        raise UsageError(f"--trajectory_length has no effect without --solver {HMC}; give it, too.")
    if flags.class_balance != RELEASED:
        # Whether it has a share for each class shows with the model.
        parse_balance(flags.class_balance, flags.class_balance.count(",") + 1)
    if not 0 <= flags.guidance_scale <= 100:
        raise UsageError(f"--guidance_scale is {flags.guidance_scale}; give a number from 0 to 100.")
    if flags.seed < 0:
        raise UsageError(f"--seed is {flags.seed}; give an integer of at least 0.")


def refuse_other_images(output: Path) -> None:
    """Raises `UsageError` where something lies that no such command began."""
    if not os.path.exists(output) or os.path.isfile(
        output / PARAMETERS_NAME
    ):  # `Path.exists` raises where a name is too long
        return
    if not output.is_dir() or any(output.iterdir()):
        raise UsageError(f"--output_dir {output} is not an empty folder; give another one.")


@dataclass(frozen=True)
class Drawing:
    """Draws images of a release. Where it is sent to another process, that one fetches and loads the release by
    itself.

    Args:
        name (`str`): Folder of the release, or Hub id.
        folder (`Path`): Where it lies.
        pipeline (`DPImagePipeline`): Loaded.
        flags (`DrawingFlags`): What decides the images; the released class balance as its shares.
        bar (`tqdm`, *optional*): Of the images that this process draws.
    """

    name: str
    folder: Path
    pipeline: "DPImagePipeline"
    flags: DrawingFlags
    bar: Any = None

    @classmethod
    def of(cls, name: str, flags: DrawingFlags) -> "Drawing":
        """Raises `UsageError` and `IntegrityError` as `load` does."""
        folder = fetch_release(name)
        return cls(name, folder, *load(folder, flags))

    def __reduce__(self) -> Any:
        return Drawing.of, (self.name, self.flags)

    @property
    def shape(self) -> "Shape":
        """(channels, height, width) of the images."""
        if hasattr(self.pipeline, "image_shape"):  # of a latent model
            return self.pipeline.image_shape
        patch, unet = self.pipeline.config.patch_size, self.pipeline.unet.config
        side = (unet.sample_size, unet.sample_size) if isinstance(unet.sample_size, int) else unet.sample_size
        return unet.in_channels // patch**2, side[0] * patch, side[1] * patch

    def images(self, indices: range) -> list[Any]:
        """Those of these numbers, as PIL makes them."""
        return draw_images(self.pipeline, indices, self.flags, self.bar)

    def write(self, shard: tuple[Path, range]) -> None:
        """Makes the file of these images, there whole or not at all. Raises `UsageError` where the disk is full."""
        try:
            write_shard(shard[0], self.pipeline, shard[1], self.flags, self.bar)
        except BrokenPipeError:  # of who reads the bar
            raise
        except OSError as error:
            raise UsageError(
                f"--output_dir {shard[0].parents[1]} cannot be written ({error.strerror}): make room, the same "
                "command goes on."
            ) from None


def draw(drawing: Drawing, output: Path, pool: WorkerPool) -> None:
    """Fills the folder `output`, or goes on with what the same flags began there; processes share what is missing."""
    begin(drawing, output)
    missing = [shard for shard in shards_of(output, drawing.flags.num_images) if not shard[0].exists()]
    own = sum(len(indices) for _, indices in missing[:: pool.count])
    title = "Sampling" if pool.count == 1 else f"Sampling (1 of {pool.count} processes)"
    with tqdm(total=own, unit="image", desc=title) as bar:
        for _ in pool.map(replace(drawing, bar=bar).write, missing):
            pass


def shards_of(output: Path, num_images: int) -> Iterator[tuple[Path, range]]:
    """Each file, and the numbers of its images."""
    starts = range(0, num_images, IMAGES_PER_SHARD)
    for i, start in enumerate(starts):
        name = output / "data" / f"train-{i:05d}-of-{len(starts):05d}.parquet"
        yield name, range(start, min(start + IMAGES_PER_SHARD, num_images))


def load(release: Path, flags: DrawingFlags) -> "tuple[DPImagePipeline, DrawingFlags]":
    """The model of a release, and the flags with the released class balance as its shares."""
    import torch
    from diffusers import DDIMScheduler
    from diffusers.utils import logging as diffusers_logging

    from ..distributed.memory import keep_freed_memory

    keep_freed_memory()
    diffusers_logging.disable_progress_bar()  # of a second, for the two parts of a model
    device = ("cuda" if torch.cuda.is_available() else "cpu") if flags.device == "auto" else flags.device
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # AssertionError: torch without CUDA
        raise UsageError(f"--device {device} is not there; give --device cpu.") from None
    pipeline = load_model(release, base=flags.base).to(device)
    if flags.guidance_scale != 1 and pipeline.num_classes is None:
        raise UsageError("--guidance_scale needs a model with classes; leave it out.")
    if flags.guidance_scale != 1 and pipeline.is_one_step:
        raise UsageError(
            "--guidance_scale needs a diffusion model, and this one makes an image in one step; leave it out."
        )
    if flags.class_balance == RELEASED and pipeline.num_classes is not None:
        receipt = json.loads((release / RECEIPT_NAME).read_bytes())
        flags = replace(flags, class_balance=released_balance(receipt, class_names(pipeline)))
    parse_balance(flags.class_balance, pipeline.num_classes)
    if flags.solver != "dpm" and not hasattr(pipeline.scheduler, "precondition_outputs"):
        raise UsageError(
            f"--solver {flags.solver} needs a model with EDM's noise levels, and this one has none; leave it out."
        )
    if isinstance(pipeline.scheduler, DDIMScheduler):
        most = pipeline.scheduler.config.num_train_timesteps
        if flags.num_inference_steps > most and not pipeline.is_one_step:
            raise UsageError(f"--num_inference_steps is {flags.num_inference_steps}; this model has {most} at most.")
    pipeline.set_progress_bar_config(disable=True)
    return pipeline, flags


def begin(drawing: Drawing, output: Path) -> None:
    """The output folder with the receipt, the card and what was asked for, or the one that the same command began."""
    release, pipeline, balance = drawing.folder, drawing.pipeline, drawing.flags.class_balance
    receipt = (release / RECEIPT_NAME).read_bytes()
    asked = drawing.flags.facts
    if balance != UNIFORM:
        asked["class_balance"] = balance
    asked |= {"images_per_shard": IMAGES_PER_SHARD, "receipt_sha256": receipt_digest(release / RECEIPT_NAME)}
    card = dataset_card(
        json.loads(receipt),
        num_images=drawing.flags.num_images,
        class_names=None if pipeline.num_classes is None else class_names(pipeline),
        balance=balance,
        parameters={name: value for name, value in asked.items() if name != "num_images"},
    )
    if release.resolve() in (output.resolve(), *output.resolve().parents):
        raise UsageError(f"--output_dir {output} lies in the release, which holds nothing else; give another folder.")
    parameters = output / PARAMETERS_NAME
    if os.path.isfile(parameters):  # `Path.is_file` raises where a name is too long
        if parameters.read_text() != canonical_json(asked):
            raise UsageError(f"--output_dir {output} holds images of another command; give another folder.")
        return
    refuse_other_images(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        # There whole or not at all.
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".sample-") as temporary:
            begun = Path(temporary, "begun")
            (begun / "data").mkdir(parents=True)
            (begun / RECEIPT_NAME).write_bytes(receipt)
            (begun / PARAMETERS_NAME).write_text(canonical_json(asked))
            (begun / CARD_NAME).write_text(card, encoding="utf-8")
            os.replace(begun, output)
    except OSError as error:
        raise UsageError(f"--output_dir {output} cannot be written ({error.strerror}); give another folder.") from None


def draw_images(pipeline: "DPImagePipeline", indices: range, flags: DrawingFlags, bar: Any = None) -> list[Any]:
    """The images of these numbers, as PIL makes them. Raises `UsageError` where the memory is too small for a batch,
    `IntegrityError` where a latent release cannot draw."""
    from ..distributed.memory import is_out_of_memory

    images: list[Any] = []
    labels = labels_of(pipeline, indices, flags)
    for start in range(0, len(indices), flags.batch_size):
        part = indices[start : start + flags.batch_size]
        try:
            images += pipeline(
                batch_size=len(part),
                class_labels=None if labels is None else labels[start : start + flags.batch_size],
                generator=generators(flags.seed, part),
                num_inference_steps=flags.num_inference_steps,
                guidance_scale=flags.guidance_scale,
                **flags.sampler,
            ).images
        except (MemoryError, *WRONG) as error:
            if not is_out_of_memory(error):
                if not hasattr(pipeline, "decode"):  # else parts of a stranger's that do not fit each other
                    raise
                raise IntegrityError(f"The release cannot draw: {type(error).__name__} in its files.") from None
            raise UsageError(
                f"--batch_size {flags.batch_size} takes more memory than there is; give a smaller one, the same "
                "command goes on."
            ) from None
        if bar is not None:
            bar.update(len(part))
    return images


def write_shard(name: Path, pipeline: "DPImagePipeline", indices: range, flags: DrawingFlags, bar: Any) -> None:
    """One parquet file with the columns `image` (PNG) and, if the model has classes, `label`; there whole or not at
    all."""
    import datasets

    columns: dict[str, Any] = {"image": draw_images(pipeline, indices, flags, bar)}
    features = {"image": datasets.Image()}
    labels = labels_of(pipeline, indices, flags)
    if labels is not None:
        columns["label"] = labels
        features["label"] = datasets.ClassLabel(names=class_names(pipeline))
    table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    temporary = name.with_name(f".{name.name}")  # `load_dataset` does not see it
    datasets.disable_progress_bars()
    try:
        table.to_parquet(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, name)
    except OSError:
        temporary.unlink(missing_ok=True)  # the disk may be full
        raise


def labels_of(pipeline: "DPImagePipeline", indices: range, flags: DrawingFlags) -> list[int] | None:
    """Class ids of the images of these numbers; `None` for a model without classes."""
    if pipeline.num_classes is None:
        return None
    shares = parse_balance(flags.class_balance, pipeline.num_classes)
    if shares is None:
        return [i % pipeline.num_classes for i in indices]
    return [int(label) for label in balanced_labels(shares, flags.num_images)[indices.start : indices.stop]]


def class_names(pipeline: "DPImagePipeline") -> list[str]:
    """By class id, each once, as `datasets` needs them: one that several classes have is followed by the class id."""
    id2label = {int(key): value for key, value in (pipeline.config.id2label or {}).items()}
    names = [id2label.get(i, str(i)) for i in range(pipeline.num_classes)]
    counts = Counter(names)
    unique = [name if counts[name] == 1 else f"{name} ({i})" for i, name in enumerate(names)]
    return unique if len(set(unique)) == len(unique) else [str(i) for i in range(len(names))]
