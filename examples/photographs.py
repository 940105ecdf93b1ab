# %% [markdown]
# # Photographs with a public text-to-image model
#
# Private Evolution trains nothing. A public model draws candidates, private photographs vote for the nearest ones with
# noise, and varied winners are released. [Photographs](../docs/photographs.md) has the real commands and times.

# %%
import json
import string
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from PIL import Image
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from diffusers_dp import load_verified


# %% [markdown]
# All that is written goes into a new folder.

# %%
folder = Path("example_of_photographs")
try:
    folder.mkdir()
except FileExistsError:
    sys.exit(f"{folder} exists: this example writes into a folder of its own; move yours away, or run it elsewhere.")

# %% [markdown]
# ## The public model
#
# On a GPU, replace `model` by the name of a real one, such as `stable-diffusion-v1-5/stable-diffusion-v1-5` or
# `stabilityai/stable-diffusion-xl-base-1.0`. Here a tiny pipeline stands in for it, so that the example needs no
# network. Its weights are noise, and so are its images.

# %%
model = folder / "public"
words = [*string.ascii_lowercase, *(f"{letter}</w>" for letter in string.ascii_lowercase), "<start>", "<end>"]
(folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
(folder / "merges.txt").write_text("#version: 0.2\n")
tokenizer = CLIPTokenizer(
    vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), model_max_length=32, unk_token="<end>",
    bos_token="<start>", eos_token="<end>", pad_token="<end>",
)  # fmt: skip
torch.manual_seed(0)
text_encoder = CLIPTextModel(CLIPTextConfig(
    vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    max_position_embeddings=32, bos_token_id=len(words) - 2, eos_token_id=len(words) - 1, pad_token_id=len(words) - 1,
))  # fmt: skip
vae = AutoencoderKL(
    latent_channels=2, block_out_channels=(8, 16), norm_num_groups=4, sample_size=32,
    down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
)  # fmt: skip
unet = UNet2DConditionModel(
    sample_size=16, in_channels=2, out_channels=2, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    cross_attention_dim=16, attention_head_dim=2,
)  # fmt: skip
StableDiffusionPipeline(
    vae=vae,
    text_encoder=text_encoder,
    tokenizer=tokenizer,
    unet=unet,
    scheduler=DDIMScheduler(clip_sample=False, steps_offset=1),
    safety_checker=None,
    feature_extractor=None,
    requires_safety_checker=False,
).save_pretrained(model)

# %% [markdown]
# ## The private photographs
#
# Put your own folder in their place, with a folder of images for each class.

# %%
photographs = folder / "photographs"
rng = np.random.default_rng(0)
for name, colour in (("cat", (200, 120, 60)), ("dog", (60, 120, 200))):
    (photographs / name).mkdir(parents=True)
    for number in range(40):
        pixels = rng.normal(colour, 40, (32, 32, 3)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(photographs / name / f"{number}.png")

# %% [markdown]
# ## The run
#
# With real photographs, add `--embedding network --embedding_network openai/clip-vit-large-patch14`: a vote for what
# CLIP sees, not for pixels. Raise resolution, candidates and steps. `--gpu_memory` of `plan` tells how long
# a real model takes, before anything is fetched.

# %%
run = folder / "run"
command = [
    sys.executable, "-m", "diffusers_dp", "train", "pe", "--generator", str(model),
    "--prompts", "a photo of a {class}", "--train_data_dir", str(photographs), "--class_names", "cat,dog",
    "--num_train_images", "80", "--resolution", "32", "--num_channels", "3", "--target_epsilon", "8",
    "--candidates_per_class", "12", "--variation_strengths", "0.8,0.5", "--output_dir", str(run),
    "--expert", "generator_inference_steps=4",
]  # fmt: skip
subprocess.run([*command, "--skip_preflight"], check=True)

# %%
real = "--generator stable-diffusion-v1-5/stable-diffusion-v1-5 --num_train_images 20000 --class_names cat,dog"
plan = [sys.executable, "-m", "diffusers_dp", "plan", "--method", "pe", *real.split(), "--gpu_memory", "24"]
subprocess.run([*plan, "--resolution", "512", "--num_channels", "3"], check=True)

# %% [markdown]
# ## The release
#
# It is a data set. `verify` recomputes epsilon from the receipt; the card names model, prompts and hashes.

# %%
subprocess.run([sys.executable, "-m", "diffusers_dp", "verify", str(run / "release")], check=True)

# %%
images = load_verified(run / "release")
print(len(images), "images of", images[0]["image"].size, "with labels", sorted(set(images["label"])))
Image.open(run / "release" / "samples.png", formats=["PNG"])
