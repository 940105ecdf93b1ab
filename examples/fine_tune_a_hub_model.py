# %% [markdown]
# # Fine-tune a Hub model
#
# A public latent pipeline of Diffusers learns from images that may not be shared, by low-rank matrices under
# differential privacy (DP-LoRA). What is released are these matrices, in Diffusers' own format.

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
folder = Path("example_of_fine_tuning")
try:
    folder.mkdir()
except FileExistsError:
    sys.exit(f"{folder} exists: this example writes into a folder of its own; move yours away, or run it elsewhere.")

# %% [markdown]
# ## The public pipeline
#
# In earnest it has a name on the Hub, and `--pretrained_model_revision` its commit. So that the example runs without a
# network, a tiny `StableDiffusionPipeline` is made here. Its weights are noise: it shows how it goes, and no more.
# `benchmarks/latent_demo.py` trains a small one.

# %%
base = folder / "public"
base.mkdir()
torch.manual_seed(0)
letters = [*string.ascii_lowercase, *(f"{letter}</w>" for letter in string.ascii_lowercase)]
words = {word: number for number, word in enumerate([*letters, "<|startoftext|>", "<|endoftext|>"])}
(folder / "vocab.json").write_text(json.dumps(words))
(folder / "merges.txt").write_text("#version: 0.2\n")
tokens = {"vocab": str(folder / "vocab.json"), "merges": str(folder / "merges.txt")}
text = CLIPTextConfig(
    vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    max_position_embeddings=32, bos_token_id=len(words) - 2, eos_token_id=len(words) - 1,
    pad_token_id=len(words) - 1,
)  # fmt: skip
vae = AutoencoderKL(
    in_channels=1, out_channels=1, latent_channels=2, block_out_channels=(8, 16), norm_num_groups=4, sample_size=16,
    down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, scaling_factor=0.5,
)  # fmt: skip
unet = UNet2DConditionModel(
    sample_size=8, in_channels=2, out_channels=2, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    cross_attention_dim=16, attention_head_dim=2,
)  # fmt: skip
StableDiffusionPipeline(
    vae=vae, text_encoder=CLIPTextModel(text), tokenizer=CLIPTokenizer(**tokens, model_max_length=32), unet=unet,
    scheduler=DDIMScheduler(clip_sample=False, steps_offset=1), safety_checker=None, feature_extractor=None,
    requires_safety_checker=False,
).save_pretrained(base)  # fmt: skip

# %% [markdown]
# ## The sensitive images
#
# Put your own folder in their place, with a folder of images for each class.

# %%
scans = folder / "scans"
rng = np.random.default_rng(0)
for name, brightness in (("clear", 60), ("tumour", 200)):
    (scans / name).mkdir(parents=True)
    for number in range(30):
        pixels = rng.normal(60, 20, (16, 16))
        pixels[5:11, 5:11] = rng.normal(brightness, 20, (6, 6))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(scans / name / f"{number}.png")

# %% [markdown]
# ## The run
#
# Each image is encoded once, by the public autoencoder, and stays in `run/private`. Each class has a fixed prompt,
# which is public. `--base_overlap none` is your statement, for card and receipt: the pipeline has seen none of these
# images. The small numbers are those of an example.

# %%
run = folder / "run"
command = [
    sys.executable, "-m", "diffusers_dp", "train", "dp_lora",
    "--train_data_dir", str(scans), "--class_names", "clear,tumour", "--output_dir", str(run),
    "--pretrained_model_name_or_path", str(base), "--base_overlap", "none",
    "--class_prompts", "a clear scan,a scan with a tumour", "--resolution", "16", "--num_channels", "1",
    "--target_epsilon", "8", "--max_train_steps", "3", "--lora_rank", "4", "--num_inference_steps", "2",
]  # fmt: skip
subprocess.run([*command, "--dry_run"], check=True)

# %%
subprocess.run([*command, "--skip_preflight"], check=True)

# %% [markdown]
# ## The release
#
# Beside the adapters it names the base, with the hash of each file that was used. A base in a folder has to be given;
# one on the Hub is fetched, at its commit.

# %%
release = run / "release"
subprocess.run([sys.executable, "-m", "diffusers_dp", "verify", str(release), "--base", str(base)], check=True)

# %% [markdown]
# Diffusers alone loads the adapters. So does the package, which verifies first, and draws by class.

# %%
stranger = StableDiffusionPipeline.from_pretrained(base)
stranger.load_lora_weights(release)
pipe = load_verified(release, base=base)
generator = torch.Generator().manual_seed(0)
images = pipe(class_labels=["clear", "tumour"], num_inference_steps=2, generator=generator).images
print(len(images), "images of", images[0].size)
