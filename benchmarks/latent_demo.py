# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A small public latent pipeline that is trained here, and private images of 64 pixels for it, without a network.

    python benchmarks/latent_demo.py model public_latent
    python benchmarks/latent_demo.py model latent_half --public path/to/cifar10_other_half
    python benchmarks/latent_demo.py images path/to/mnist digits64
    python benchmarks/latent_demo.py public digits64_public
    accelerate launch training/train_dp_ldm.py --config mnist_cpu --dataset_name digits64
    python benchmarks/rows.py run benchmarks/cases.yaml --only latent --data digits64=digits64 \\
        --data public_latent=public_latent

Public are scikit-learn's digits over crops of one of its two pictures (a temple in China); private are MNIST's digits
over crops of the other one (a flower). The two share neither writers nor pictures. The pipeline is a
`StableDiffusionPipeline`: an autoencoder that learned the public images, a text encoder of letters that learned
nothing, and a UNet that learned the public latents under prompts such as `digit three`. Nothing here is private:
`images` only writes a data set, as somebody's own would be. With `--public` other public images and the names of
their classes take the place of the digits.
"""

import argparse
import json
import string
import time
from pathlib import Path

import datasets
import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, DDIMScheduler, DDPMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from diffusers.training_utils import EMAModel
from scorer import first_of, read
from sklearn.datasets import load_digits, load_sample_image
from tqdm.auto import tqdm
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer


SIDE, DIGIT = 64, 48  # pixels
PROMPTS = [f"digit {name}" for name in "zero one two three four five six seven eight nine".split()]


def over_crops(digits: np.ndarray, picture: str, seed: int) -> np.ndarray:
    """Each digit, `[n, h, w]` in [0, 1], somewhere over a darkened crop of a picture: uint8 `[n, 64, 64]`."""
    rng = np.random.default_rng(seed)
    grey = load_sample_image(picture).mean(2) / 255
    large = F.interpolate(torch.from_numpy(digits)[:, None].float(), size=DIGIT, mode="bilinear", align_corners=False)
    images = np.empty((len(digits), SIDE, SIDE), dtype=np.uint8)
    for number, digit in enumerate(large[:, 0].numpy()):
        y, x = (rng.integers(0, side - SIDE + 1) for side in grey.shape)
        image = 0.5 * grey[y : y + SIDE, x : x + SIDE]
        top, left = rng.integers(0, SIDE - DIGIT + 1, 2)
        place = image[top : top + DIGIT, left : left + DIGIT]
        image = image.copy()
        image[top : top + DIGIT, left : left + DIGIT] = np.maximum(place, digit)
        images[number] = (image * 255).round()
    return images


def public_images(copies: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images `[n, 1, 64, 64]` in [-1, 1], and labels."""
    digits, labels = load_digits(return_X_y=True)
    images = [over_crops(digits.reshape(-1, 8, 8) / 16, "china.jpg", seed) for seed in range(copies)]
    stacked = torch.from_numpy(np.concatenate(images)).float()[:, None] / 127.5 - 1
    return stacked, torch.from_numpy(np.tile(labels, copies))


def text_parts(folder: Path) -> tuple[CLIPTokenizer, CLIPTextModel]:
    """A tokenizer of letters, and an encoder with random weights: it tells prompts apart, which is all it has to."""
    words = [*string.ascii_lowercase, *(f"{letter}</w>" for letter in string.ascii_lowercase)]
    words += ["<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), model_max_length=16)
    config = CLIPTextConfig(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16, bos_token_id=len(words) - 2, eos_token_id=len(words) - 1,
        pad_token_id=len(words) - 1, initializer_factor=50.0,
    )  # fmt: skip
    return tokenizer, CLIPTextModel(config).eval()


def train_autoencoder(images: torch.Tensor, steps: int, batch_size: int) -> AutoencoderKL:
    channels = images.shape[1]
    vae = AutoencoderKL(
        in_channels=channels, out_channels=channels, latent_channels=4, block_out_channels=(16, 24, 32),
        layers_per_block=1, norm_num_groups=8, down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3, sample_size=images.shape[-1], mid_block_add_attention=False,
    )  # fmt: skip
    optimizer = torch.optim.Adam(vae.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in tqdm(range(steps), desc="Autoencoder", unit="step"):
        batch = images[torch.randint(len(images), (batch_size,))]
        posterior = vae.encode(batch).latent_dist
        decoded = vae.decode(posterior.sample()).sample
        loss = F.l1_loss(decoded, batch) + 1e-5 * posterior.kl().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    vae.eval().requires_grad_(False)
    with torch.no_grad():  # of public images, so that the scale is public
        means = torch.cat([vae.encode(part).latent_dist.mean for part in images[:1000].split(50)])
    vae.register_to_config(scaling_factor=round(float(1 / means.std()), 4), shift_factor=None)
    print(f"autoencoder: mean absolute error {loss.item():.4f} of a range of 2, scale {vae.config.scaling_factor}")
    return vae


@torch.no_grad()
def latents_of(vae: AutoencoderKL, images: torch.Tensor) -> torch.Tensor:
    parts = [vae.encode(part).latent_dist.mean for part in images.split(50)]
    return torch.cat(parts) * vae.config.scaling_factor


def train_unet(
    latents: torch.Tensor, labels: torch.Tensor, tokens: torch.Tensor, scheduler: DDPMScheduler, steps: int,
    batch_size: int,
) -> UNet2DConditionModel:  # fmt: skip
    """The last of `tokens` are those of no prompt."""
    unet = UNet2DConditionModel(
        sample_size=latents.shape[-1], in_channels=4, out_channels=4, block_out_channels=(32, 64), layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=tokens.shape[-1], attention_head_dim=4, norm_num_groups=8,
    )  # fmt: skip
    optimizer, ema = torch.optim.Adam(unet.parameters(), lr=2e-3), EMAModel(unet.parameters(), decay=0.995)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in tqdm(range(steps), desc="UNet", unit="step"):
        index = torch.randint(len(latents), (batch_size,))
        times = torch.randint(scheduler.config.num_train_timesteps, (batch_size,))
        noise = torch.randn_like(latents[index])
        rows = labels[index].masked_fill(torch.rand(batch_size) < 0.1, len(tokens) - 1)
        noisy = scheduler.add_noise(latents[index], noise, times)
        loss = F.mse_loss(unet(noisy, times, encoder_hidden_states=tokens[rows]).sample, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        ema.step(unet.parameters())
    ema.copy_to(unet.parameters())
    print(f"UNet: loss {loss.item():.3f}, {sum(p.numel() for p in unet.parameters()):,} parameters")
    return unet.eval()


def images_in(folder: str) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Public images `[n, c, h, w]` in [-1, 1], labels, and names of classes."""
    found, features = read(folder, "train"), datasets.load_dataset(folder, split="train").features
    if found.labels is None:
        raise SystemExit(
            f"--public {folder} has no classes to make prompts of: give a data set with a column of classes."
        )
    names = features[first_of(features, datasets.ClassLabel)].names
    return torch.from_numpy(found.images).float() / 127.5 - 1, torch.from_numpy(found.labels), names


def make_model(
    output: Path, autoencoder_steps: int, unet_steps: int, public: tuple[torch.Tensor, torch.Tensor, list[str]],
    seed: int,
) -> None:  # fmt: skip
    start = time.perf_counter()
    torch.manual_seed(seed)
    output.mkdir(parents=True)
    images, labels, prompts = public
    tokenizer, encoder = text_parts(output)
    vae = train_autoencoder(images, autoencoder_steps, 16)
    scheduler = DDIMScheduler(clip_sample=False, steps_offset=1, set_alpha_to_one=False)
    pipeline = StableDiffusionPipeline(
        vae, encoder, tokenizer, UNet2DConditionModel(block_out_channels=(32,), down_block_types=("DownBlock2D",),
        up_block_types=("UpBlock2D",)), scheduler, None, None, requires_safety_checker=False,
    )  # fmt: skip
    with torch.no_grad():
        tokens = pipeline.encode_prompt([*prompts, ""], "cpu", 1, False)[0]
    if len(tokens.flatten(1).unique(dim=0)) < len(tokens):
        raise SystemExit("Two classes have the same prompt: give short names of lower-case letters to the classes.")
    noise_steps = DDPMScheduler.from_config(scheduler.config)
    unet = train_unet(latents_of(vae, images), labels, tokens, noise_steps, unet_steps, 64)
    pipeline.register_modules(unet=unet)
    pipeline.save_pretrained(output)
    for name in ("vocab.json", "merges.txt"):
        (output / name).unlink()
    (output / "README.md").write_text("---\nlicense: apache-2.0\n---\nMade by benchmarks/latent_demo.py.\n")
    print(f"{output}: {time.perf_counter() - start:.0f} seconds")


def write(images: np.ndarray, labels: np.ndarray, output: Path, split: str) -> None:
    """A split of a data set: images uint8 `[n, 64, 64]`, and their classes."""
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=PROMPTS)})
    (output / "data").mkdir(parents=True, exist_ok=True)
    found = datasets.Dataset.from_generator(
        lambda: ({"image": image, "label": label} for image, label in zip(images, labels, strict=True)),
        features=features,
    )
    found.to_parquet(output / "data" / f"{split}-00000-of-00001.parquet")
    print(f"{output}: {len(found):,} images of {split}")


def make_images(mnist: str, output: Path) -> None:
    """A data set of the same splits as MNIST, with images of 64 pixels."""
    for seed, split in enumerate(("train", "test")):
        rows = read(mnist, split)
        write(over_crops(rows.images[:, 0] / 255, "flower.jpg", seed), np.asarray(rows.labels), output, split)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="what", required=True)
    model = parts.add_parser("model", help="Train the public pipeline.")
    model.add_argument("output", type=Path, help="New folder.")
    model.add_argument("--autoencoder_steps", type=int, default=1500)
    model.add_argument("--unet_steps", type=int, default=4000)
    model.add_argument("--copies", type=int, default=8, help="Of each public digit, over other crops.")
    model.add_argument("--public", help="Hub id or folder of other public images, with classes.")
    model.add_argument("--seed", type=int, default=0)
    images = parts.add_parser("images", help="Write the private data set.")
    images.add_argument("mnist", help="Hub id or folder of MNIST.")
    images.add_argument("output", type=Path, help="New folder.")
    public = parts.add_parser("public", help="Write the public images as a data set.")
    public.add_argument("output", type=Path, help="New folder.")
    public.add_argument("--copies", type=int, default=8, help="Of each public digit, over other crops.")
    args = parser.parse_args()
    if args.what == "public":
        images, labels = public_images(args.copies)
        write(((images[:, 0] + 1) * 127.5).round().byte().numpy(), labels.numpy(), args.output, "train")
    elif args.what == "model":
        public = images_in(args.public) if args.public else (*public_images(args.copies), PROMPTS)
        make_model(args.output, args.autoencoder_steps, args.unet_steps, public, args.seed)
    else:
        make_images(args.mnist, args.output)


if __name__ == "__main__":
    main()
