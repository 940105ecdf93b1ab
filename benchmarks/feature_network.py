"""Train a small vision network on public images, for `--feature_network` of DP-MEPF and `--semantic_query_network` of
PrivImage. It reads no private image.

    python benchmarks/feature_network.py --dataset_name uoft-cs/cifar10 --image_column img --resolution 28 \\
        --num_channels 1
    diffusers-dp train dp_mepf --config mnist_cpu --dataset_name ylecun/mnist --feature_network runs/feature_network

A ResNet of `transformers` learns the classes of images in the size and colours of the sensitive ones, enlarged to
`--feature_resolution`, because its first layers leave a quarter of it. Give that number to
`--expert feature_resolution` of DP-MEPF and to `--expert semantic_resolution` of PrivImage. Without it PrivImage shows
the network images of their size: then `--feature_resolution` is the number of `--resolution`.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tqdm.auto import tqdm
from transformers import ResNetConfig, ResNetForImageClassification

from diffusers_dp.data.decoding import MAX_IMAGE_PIXELS, decode_image
from diffusers_dp.data.records import DataSource
from diffusers_dp.data.sources import open_source
from diffusers_dp.errors import DiffusersDPError
from diffusers_dp.queries.perceptual import PREPROCESSOR


HELD_OUT = 1000  # images that the accuracy is measured on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset_name", required=True, help="Public images: a folder or a Hub id, with labels.")
    parser.add_argument("--dataset_config_name", help="Its configuration, where it has several.")
    parser.add_argument("--train_split", default="train")
    parser.add_argument("--image_column", default="image")
    parser.add_argument("--label_column", default="label")
    parser.add_argument("--resolution", type=int, default=28)
    parser.add_argument("--num_channels", type=int, choices=(1, 3), default=1)
    parser.add_argument("--feature_resolution", type=int, default=56)
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128], help="Channels of each stage.")
    parser.add_argument("--blocks", type=int, default=1, help="Blocks of each stage; ResNet-18: 2.")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/feature_network"))
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    images, labels, num_classes = read(args)
    model = ResNetForImageClassification(ResNetConfig(
        num_channels=args.num_channels, embedding_size=args.widths[0], hidden_sizes=args.widths,
        depths=[args.blocks] * len(args.widths), layer_type="basic", num_labels=num_classes,
    ))  # fmt: skip
    train(model, images[HELD_OUT:], labels[HELD_OUT:], args)
    accuracy = score(model, images[:HELD_OUT], labels[:HELD_OUT], args.feature_resolution)
    save(model, args, accuracy)
    print(f"{accuracy:.1%} of {HELD_OUT} public images that it has not seen; written to {args.output_dir}")


def read(args: argparse.Namespace, labelled: bool = True) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Images `[n, C, H, W]` of uint8, shuffled, their classes, and how many classes there are. Without `labelled` all
    classes are 0."""
    shape = (args.num_channels, args.resolution, args.resolution)
    source = open_source(DataSource(
        dataset_name=args.dataset_name, dataset_config_name=args.dataset_config_name, train_split=args.train_split,
        image_column=args.image_column, label_column=args.label_column if labelled else None, image_shape=shape,
    ))  # fmt: skip
    names = source.class_names()
    if names is None and labelled:
        raise SystemExit("The public images have no classes: give --label_column.")
    images, labels = [], []
    for encoded, label, _ in tqdm(
        source.records(names, args.output_dir / "cache"), total=source.count(), desc="Reading images", unit="image"
    ):
        image = decode_image(encoded, shape, MAX_IMAGE_PIXELS)
        if image is not None and (label is not None or not labelled):
            images.append(image)
            labels.append(label if labelled else 0)
    order = torch.randperm(len(images))
    return torch.from_numpy(np.stack(images))[order], torch.tensor(labels)[order], len(names or ())


def train(model: ResNetForImageClassification, images: torch.Tensor, labels: torch.Tensor, args) -> None:
    """Ordinary training: Adam, a rate that falls to 0, mirrored images."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.01)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, args.steps)
    progress = tqdm(range(args.steps), desc="Training", unit="step")
    for _ in progress:
        index = torch.randint(len(images), (args.batch_size,))
        rows = seen(images[index], args.feature_resolution)
        rows = torch.where(torch.rand(len(rows), 1, 1, 1) < 0.5, rows, rows.flip(3))
        loss = F.cross_entropy(model(rows).logits, labels[index], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
        progress.set_postfix(loss=f"{loss.item():.2f}")


def seen(images: torch.Tensor, side: int) -> torch.Tensor:
    """As `PerceptualFeatures` shows images to a network of mean and standard deviation one half."""
    rows = F.interpolate(images / 255, size=(side, side), mode="bilinear", align_corners=False, antialias=True)
    return rows * 2 - 1


@torch.no_grad()
def score(model: ResNetForImageClassification, images: torch.Tensor, labels: torch.Tensor, side: int) -> float:
    model.eval()
    right = [
        (model(seen(rows, side)).logits.argmax(1) == classes).sum()
        for rows, classes in zip(images.split(100), labels.split(100), strict=True)
    ]
    return float(sum(right)) / len(images)


def save(model: ResNetForImageClassification, args: argparse.Namespace, accuracy: float) -> None:
    model.save_pretrained(args.output_dir)  # with its classes: PrivImage asks for them
    half = [0.5] * args.num_channels
    (args.output_dir / PREPROCESSOR).write_text(json.dumps({"image_mean": half, "image_std": half}))
    (args.output_dir / "README.md").write_text(
        f"---\nlicense: other\n---\nA ResNet that was trained on {Path(args.dataset_name).name}, "
        f"{args.num_channels} x {args.resolution} x {args.resolution} pixels enlarged to {args.feature_resolution}; "
        f"{accuracy:.1%} of held-out images right.\n"
    )


if __name__ == "__main__":
    try:
        main()
    except DiffusersDPError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
