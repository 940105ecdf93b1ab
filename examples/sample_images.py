# %% [markdown]
# # Sample from a release
#
# Drawing costs no privacy, however many images you draw. `load_verified` compares the release with its receipt before
# it loads anything.

# %%
import subprocess
import sys
from pathlib import Path

import torch

from diffusers_dp import load_verified


# %% [markdown]
# A folder, or a Hub id. `make demo` makes this one; where it is not, a model is trained for a few steps, which draws
# nothing good. The images go into a new folder.

# %%
folder = Path("example_of_sampling")
try:
    folder.mkdir()
except FileExistsError:
    sys.exit(f"{folder} exists: this example writes into a folder of its own; move yours away, or run it elsewhere.")
release = "runs/demo/release"
if not Path(release).is_dir():
    release = str(folder / "run" / "release")
    small = "--max_train_steps 3 --spatial_steps 5 --frequency_steps 5 --generator_steps 5 --skip_preflight"
    command = [sys.executable, "-m", "diffusers_dp", "train", "feta_pro", "--output_dir", str(folder / "run")]
    subprocess.run([*command, *small.split()], check=True)
pipeline = load_verified(release)
print(pipeline.config.privacy)

# %% [markdown]
# As with any pipeline of Diffusers: classes by id or by name, a generator for the seed, a number of steps. One
# generator per image makes each image independent of the others in its batch.

# %%
generators = [torch.Generator().manual_seed(seed) for seed in range(4)]
images = pipeline(class_labels=[0, 1, 2, 0], generator=generators, num_inference_steps=4).images
for number, image in enumerate(images):
    image.resize((112, 112), 0).save(folder / f"image-{number}.png")
images[0].resize((112, 112), 0)

# %% [markdown]
# `output_type="pt"` gives tensors in [0, 1]; `callback_on_step_end` watches the noise fall.

# %%
spread = []


def watch(pipe, step, timestep, kwargs):
    spread.append(float(kwargs["latents"].std()))
    return kwargs


pixels = pipeline(
    batch_size=2, class_labels=1, num_inference_steps=4, output_type="pt", callback_on_step_end=watch
).images
print(tuple(pixels.shape), [round(value, 2) for value in spread])
