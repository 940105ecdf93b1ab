# %% [markdown]
# # Plan a budget
#
# What a run will ask, what it costs and how much noise that takes, before an image is read. The numbers are those of
# the training script. The picture goes into a new folder.

# %%
import sys
from pathlib import Path

from PIL import Image

from diffusers_dp.cli import main


folder = Path("example_of_planning")
try:
    folder.mkdir()
except FileExistsError:
    sys.exit(f"{folder} exists: this example writes into a folder of its own; move yours away, or run it elsewhere.")

# %% [markdown]
# 20,000 images of two classes that never leave their house; only their number, their size and the names of the classes
# are told.

# %%
images = [
    "--num_train_images",
    "20000",
    "--class_names",
    "benign,malignant",
    "--resolution",
    "32",
    "--num_channels",
    "1",
]
main(["plan", *images, "--target_epsilon", "1", "--max_train_steps", "200", "--train_batch_size", "1000"])

# %% [markdown]
# How does the noise change with epsilon? Signal to noise compares plans; it does not say how good the images will be.

# %%
main(["plan", *images, "--max_train_steps", "200", "--train_batch_size", "1000", "--sweep", "target_epsilon=1,8"])

# %% [markdown]
# A picture of the budget: `--picture budget.png`. It needs matplotlib.

# %%
main(
    [
        "plan",
        *images,
        "--max_train_steps",
        "200",
        "--train_batch_size",
        "1000",
        "--picture",
        str(folder / "budget.png"),
    ]
)
Image.open(folder / "budget.png", formats=["PNG"]).reduce(2)
