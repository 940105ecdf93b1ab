# %% [markdown]
# # Verify a stranger's model
#
# A receipt lists every query that was put to the training images. Anybody can compute epsilon from it again, and
# compare the hashes of the files.

# %%
import json
import shutil
import subprocess
import sys
from pathlib import Path

from diffusers_dp.release.plain_words import attack_in_words, plain_guarantee, queries
from diffusers_dp.verify import verify


# %% [markdown]
# A folder, here that of `make demo`; where it is not, a model is trained for a few steps. All goes into a new folder.

# %%
folder = Path("example_of_verifying")
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
receipt, problems = verify(release)
print(problems or "numbers consistent")

# %% [markdown]
# The receipt is the trainer's statement. That its numbers fit together, and to these files, is
# what can be checked; that nothing else was asked of the images cannot.

# %%
print(plain_guarantee(receipt), attack_in_words(receipt), sep="\n")
for asked in queries(receipt["events"]):
    print(f"{asked['stage']}: {asked['steps']} times, noise multiplier {asked['noise_multiplier']:.4g}")

# %% [markdown]
# An edited number is noticed. Here a copy claims a smaller delta.

# %%
edited = shutil.copytree(release, folder / "edited")
path = edited / "privacy_receipt.json"
path.write_text(json.dumps({**json.loads(path.read_text()), "delta": 1e-12}))
print(*verify(edited)[1], sep="\n")
