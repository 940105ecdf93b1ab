"""Train a small network that enlarges images, on public ones, for `diffusers-dp upscale`. It reads no private image.

    python benchmarks/upscaler.py --dataset_name path/to/public --resolution 64 --num_channels 1
    diffusers-dp upscale runs/moments/release --upscaler runs/upscaler --output_dir large

Public images are shrunk by averages of `--factor` x `--factor` pixels. A UNet adds to the bilinear image what is
missing, by the mean absolute error.
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from feature_network import read
from tqdm.auto import tqdm

from diffusers_dp.errors import DiffusersDPError, UsageError
from diffusers_dp.sampling.upscaler import Upscaler, enlarged


HELD_OUT = 300  # images that the error is measured on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset_name", required=True, help="Public images: a folder or a Hub id.")
    parser.add_argument("--train_split", default="train")
    parser.add_argument("--image_column", default="image")
    parser.add_argument("--resolution", type=int, default=64, help="Side of the large images.")
    parser.add_argument("--factor", type=int, default=2, help="How much smaller the small ones are.")
    parser.add_argument("--num_channels", type=int, choices=(1, 3), default=1)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32], help="Channels of each level.")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/upscaler"))
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    images, _, _ = read(args, labelled=False)
    if len(images) < 2 * HELD_OUT:
        raise UsageError(f"--dataset_name has {len(images)} images; give at least {2 * HELD_OUT}.")
    network = Upscaler.new(args.num_channels, args.resolution, tuple(args.widths))
    train(network, images[HELD_OUT:], args)
    by_network, bilinear = errors(network.eval(), images[:HELD_OUT], args.factor)
    network.unet.save_pretrained(args.output_dir)
    (args.output_dir / "README.md").write_text(
        f"---\nlicense: other\n---\nA UNet that enlarges images {args.factor} times, to {args.resolution} pixels. It "
        f"learned {Path(args.dataset_name).name}. Mean absolute error of held-out images, in grey values of 255: "
        f"{by_network:.2f}; bilinear: {bilinear:.2f}.\n"
    )
    print(f"Error {by_network:.2f} of 255 on {HELD_OUT} public images that it has not seen, bilinear {bilinear:.2f}; "
          f"written to {args.output_dir}")  # fmt: skip


def train(network: Upscaler, images: torch.Tensor, args: argparse.Namespace) -> None:
    """Ordinary training: Adam, a rate that falls to 0, mirrored images."""
    optimizer = torch.optim.Adam(network.parameters(), lr=args.learning_rate)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, args.steps)
    progress = tqdm(range(args.steps), desc="Training", unit="step")
    for _ in progress:
        large = images[torch.randint(len(images), (args.batch_size,))].float() / 127.5 - 1
        large = torch.where(torch.rand(len(large), 1, 1, 1) < 0.5, large, large.flip(3))
        loss = F.l1_loss(network(F.avg_pool2d(large, args.factor)), large)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
        progress.set_postfix(loss=f"{loss.item():.3f}")


@torch.no_grad()
def errors(network: Upscaler, images: torch.Tensor, factor: int) -> tuple[float, float]:
    """Mean absolute errors in grey values of 255: of the network, and bilinear ones."""
    large = images.float() / 127.5 - 1
    small = F.avg_pool2d(large, factor)
    found = torch.cat([network(part) for part in small.split(100)]).clamp(-1, 1)
    ways = (found, enlarged(small, network.side))
    return tuple(float((way - large).abs().mean() * 127.5) for way in ways)  # type: ignore[return-value]


if __name__ == "__main__":
    try:
        main()
    except DiffusersDPError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
