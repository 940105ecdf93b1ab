# %% [markdown]
# # Plan a budget
#
# What a run will ask, what it costs and how much noise that takes, before an image is read. The numbers are those of
# the training script.

# %%
from diffusers_dp.cli import main


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
