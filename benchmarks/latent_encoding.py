# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Time and memory of encoding a folder of large images once, behind the door: a whole run of DP-LoRA with a single
step, on images and a pipeline that are made here.

    python benchmarks/latent_encoding.py --num_images 10000 --side 256 --output_dir runs/latent_encoding

The autoencoder is small and untrained: what it takes depends on sizes alone. Images are smooth noise. The peak is that
of the whole process, torch and pipeline included.
"""

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import datasets
import numpy as np
import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from latent_demo import text_parts
from PIL import Image


CHANNELS = (16, 32, 32, 32)  # of the autoencoder: an eighth of the side length


def make_base(folder: Path, side: int) -> None:
    torch.manual_seed(0)
    folder.mkdir(parents=True)
    tokenizer, encoder = text_parts(folder)
    vae = AutoencoderKL(
        in_channels=3, out_channels=3, latent_channels=4, block_out_channels=CHANNELS, layers_per_block=1,
        norm_num_groups=8, down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        sample_size=side, mid_block_add_attention=False,
    )  # fmt: skip
    unet = UNet2DConditionModel(
        sample_size=side // 8, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=encoder.config.hidden_size, attention_head_dim=4,
    )  # fmt: skip
    parts = vae, encoder, tokenizer, unet, DDIMScheduler(clip_sample=False)
    StableDiffusionPipeline(*parts, None, None, requires_safety_checker=False).save_pretrained(folder)
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink()


def make_images(folder: Path, number: int, side: int) -> None:
    (folder / "data").mkdir(parents=True)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})

    def rows():
        rng = np.random.default_rng(0)
        for row in range(number):
            small = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
            yield {"image": small.resize((side, side), Image.Resampling.BICUBIC), "label": row % 2}

    found = datasets.Dataset.from_generator(rows, features=features, cache_dir=str(folder / "cache"))
    found.to_parquet(folder / "data" / "train-00000-of-00001.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_images", type=int, default=10_000)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--encoding_batch_size", type=int, default=16)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/latent_encoding"))
    args = parser.parse_args()
    base, images = args.output_dir / "base", args.output_dir / "images"
    if not base.exists():
        make_base(base, args.side)
    if not images.exists():
        make_images(images, args.num_images, args.side)
    start = time.perf_counter()
    subprocess.run(
        [
            sys.executable, "-m", "diffusers_dp", "train", "dp_lora", "--pretrained_model_name_or_path", str(base),
            "--dataset_name", str(images), "--resolution", str(args.side), "--num_channels", "3",
            "--num_train_images", str(args.num_images), "--class_names", "a,b", "--target_epsilon", "10",
            "--train_batch_size", "8", "--max_train_steps", "1", "--expert",
            f"encoding_batch_size={args.encoding_batch_size}", "--num_inference_steps", "1", "--skip_preflight",
            "--output_dir", str(args.output_dir / f"run-{time.time_ns()}"),
        ],
        check=True,
    )  # fmt: skip
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{args.num_images:,} images of {args.side} pixels: {time.perf_counter() - start:.0f} s, "
        f"{used.ru_utime + used.ru_stime:.0f} s of processor time, {used.ru_maxrss / 2**20:.2f} GiB at most"
    )


if __name__ == "__main__":
    main()
