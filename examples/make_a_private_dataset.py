# %% [markdown]
# # Make a private dataset
#
# Labelled parquet shards that `load_dataset` reads, with the receipt of the model and a card beside them. An
# interrupted command goes on where it stopped.

# %%
import subprocess
import sys
from pathlib import Path

from datasets import load_dataset

from diffusers_dp.cli import main


# %%
folder = Path("example_of_a_dataset")
try:
    folder.mkdir()
except FileExistsError:
    sys.exit(f"{folder} exists: this example writes into a folder of its own; move yours away, or run it elsewhere.")
# That of `make demo`; where it is not, a model is trained for a few steps.
release, synthetic, cache = "runs/demo/release", str(folder / "synthetic"), str(folder / "cache")
if not Path(release).is_dir():
    release = str(folder / "run" / "release")
    small = "--max_train_steps 3 --spatial_steps 5 --frequency_steps 5 --generator_steps 5 --skip_preflight"
    command = [sys.executable, "-m", "diffusers_dp", "train", "feta_pro", "--output_dir", str(folder / "run")]
    subprocess.run([*command, *small.split()], check=True)
main(["sample", release, "--num_images", "12", "--output_dir", synthetic, "--num_inference_steps", "2"])

# %%
images = load_dataset(synthetic, split="train", cache_dir=cache)
print(images.features, images["label"])

# %% [markdown]
# Classes take turns. Other shares are given by `--class_balance`; how frequent the classes are among the training
# images is private, and the model does not tell. On several processes:
# `torchrun --nproc_per_node 4 -m diffusers_dp.cli sample ...`; to the Hub:
# `--push_to_hub --hub_dataset_id you/name`.

# %%
number_of_classes = images.features["label"].num_classes
shares = ",".join(["2"] + ["1"] * (number_of_classes - 1))  # the first class twice as often as any other
mostly_one = str(folder / "mostly_one")
main([
    "sample", release, "--num_images", "12", "--output_dir", mostly_one, "--num_inference_steps", "2",
    "--class_balance", shares,
])  # fmt: skip
print(load_dataset(mostly_one, split="train", cache_dir=cache)["label"])
