# %% [markdown]
# # Train on your own folder
#
# A folder with one folder of images per class goes in, a model that may be published comes out. Nothing leaves this
# machine.

# %%
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image


# %% [markdown]
# Here the images are drawn at random, so that the example runs everywhere. Put your own folder in their place:
# `scans/benign/*.png`, `scans/malignant/*.png`. The names of the classes are public, and declared; so is the number of
# images. All that is written here goes into a new folder.

# %%
folder = Path("example_of_training")
try:
    folder.mkdir()
except FileExistsError:
    sys.exit(f"{folder} exists: this example writes into a folder of its own; move yours away, or run it elsewhere.")
scans, run = folder / "scans", folder / "run"
rng = np.random.default_rng(0)
for name, brightness in (("benign", 80), ("malignant", 170)):
    (scans / name).mkdir(parents=True)
    for number in range(30):
        pixels = rng.normal(brightness, 30, (8, 8)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(scans / name / f"{number}.png")

# %% [markdown]
# First a dry run: it prints what will be asked of the images, how much noise that takes and what it costs, and reads
# no image. Leave out the small numbers for a real run: with `--config folder_cpu` in
# their place it takes from minutes to hours.

# %%
command = [
    sys.executable, "-m", "diffusers_dp", "train", "feta_pro",
    "--train_data_dir", str(scans), "--class_names", "benign,malignant", "--output_dir", str(run),
    "--resolution", "8", "--num_channels", "1", "--target_epsilon", "8",
    "--max_train_steps", "3", "--spatial_steps", "5", "--frequency_steps", "5", "--generator_steps", "5",
    "--expert", "generator_batch_size=20,num_auxiliary_images=50",
]  # fmt: skip
subprocess.run([*command, "--dry_run"], check=True)

# %% [markdown]
# Then the run. `--push_to_hub --hub_model_id you/scans` would also upload the finished release, and nothing else.

# %%
subprocess.run([*command, "--skip_preflight"], check=True)

# %% [markdown]
# `run/private` stays in the house. `run/release` may be published: weights, a pipeline, a card and the privacy
# receipt.

# %%
print(*sorted(path.relative_to(run / "release") for path in (run / "release").rglob("*") if path.is_file()), sep="\n")

# %% [markdown]
# Drawn images, a row for each class. Like the images above, they are noise of two brightnesses.

# %%
Image.open(run / "release" / "samples.png", formats=["PNG"])
