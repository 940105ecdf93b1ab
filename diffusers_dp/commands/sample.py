# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp sample`: images from a release as parquet shards that `datasets.load_dataset` reads. Classes
alternate, or get the shares that `--class_balance` names."""

import argparse
from pathlib import Path

from ..distributed.worker_pool import WorkerPool, lead
from ..errors import UsageError
from ..methods.command_line import add_flags, whole_number
from ..methods.flag import refuse_without_effect, validate
from ..methods.judge import DRAWN, JUDGE
from ..release.push import check_hub, push_folder
from ..sampling.drawing import UNIFORM, Drawing, DrawingFlags
from ..sampling.shards import PARAMETERS_NAME, Drawer, draw_folder, refuse_other_images, shards_of
from ..verify import CARD_NAME, RECEIPT_NAME


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", help="Folder of a release, or Hub id.")
    parser.add_argument("--num_images", type=whole_number, required=True, help="Images to draw.")
    parser.add_argument(
        "--output_dir", type=Path, required=True, help="New folder, or one that the same command began."
    )
    parser.add_argument(
        "--class_balance",
        default=UNIFORM,
        help="uniform; a share for each class, comma-separated (0.2,0.8): public ones, not those of the training "
        "images; or released: the noisy ones that --evaluation_reserve has paid for.",
    )
    parser.add_argument(
        "--labels", choices=(DRAWN, JUDGE), default=DRAWN,
        help="The column label: the class that was drawn, or the most probable one of the release's judge.",
    )  # fmt: skip
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
    add_flags(parser, DrawingFlags)
    parser.add_argument("--base", help="Folder of the base, where the release is adapters of one; else from the Hub.")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ...; auto: a GPU if there is one.")


def drawing_of(args: argparse.Namespace, num_images: int) -> Drawing:
    """Reads a command's flags for drawing. Without `--class_balance` all classes get equal shares."""
    drawing = Drawing.of(args, num_images=num_images)
    validate(drawing)
    refuse_without_effect(drawing, vars(args))
    return drawing


def run(args: argparse.Namespace) -> None:
    lead(lambda pool: _sample(args, pool))


def _sample(args: argparse.Namespace, pool: WorkerPool) -> None:
    drawing, folder = drawing_of(args, args.num_images), args.output_dir
    name = args.hub_dataset_id or folder.resolve().name
    if args.push_to_hub:
        check_hub(name, "dataset")
    elif args.hub_dataset_id is not None or args.hub_private_repo:
        raise UsageError("--hub_dataset_id and --hub_private_repo have no effect without --push_to_hub; give it, too.")
    refuse_other_images(folder)
    draw_folder(Drawer.of(args.release, drawing, args.device, args.base, args.labels), folder, pool)
    print(f"{args.num_images} images in {folder}: datasets.load_dataset({str(folder)!r}) reads them.")
    if args.push_to_hub:
        shards = [shard.relative_to(folder).as_posix() for shard, _ in shards_of(folder, drawing)]
        names = [CARD_NAME, RECEIPT_NAME, PARAMETERS_NAME, *shards]
        address = push_folder(folder, names, name, repo_type="dataset", private=args.hub_private_repo)
        print(f"Pushed to {address}")
