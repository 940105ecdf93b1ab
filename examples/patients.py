# %% [markdown]
# # Scans of patients
#
# A hospital's images belong to patients, and one patient has several. Here all slices of a patient are protected
# together: epsilon is that of a patient. The scans are simulated, so that the example runs everywhere and its pictures
# may be shown.

# %%
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
from PIL import Image
from scipy.sparse import csr_array


# %% [markdown]
# `python patients.py 3000` makes as many patients and trains in earnest. Without a number there are 40 of them and a
# few steps, which shows how it goes and no more. All that is written goes into a new folder.

# %%
NUM_PATIENTS = int(sys.argv[1]) if len(sys.argv) == 2 and sys.argv[1].isdigit() else 40
in_earnest = NUM_PATIENTS >= 1000
folder = Path("example_of_patients")
try:
    folder.mkdir()
except FileExistsError:
    sys.exit(f"{folder} exists: this example writes into a folder of its own; move yours away, or run it elsewhere.")

# %% [markdown]
# ## The patients
#
# Each has a chest of its own shape: fat, muscle, two lungs, a heart, a spine. In two of three a tumour grows in a
# lung. Four slices, 30 mm apart, are scanned. Values are Hounsfield units: air -1000, water 0.

# %%
SIDE, PIXEL = 64, 6.0  # pixels, and millimetres of one
SLICES = (-45.0, -15.0, 15.0, 45.0)  # millimetres
axis = (np.arange(SIDE) - (SIDE - 1) / 2) * PIXEL
across, down = np.meshgrid(axis, axis)


def ellipse(x, y, width, height):
    """1 inside, 0 outside, with an edge of about a pixel."""
    distance = np.sqrt(((across - x) / width) ** 2 + ((down - y) / height) ** 2)
    return 1 / (1 + np.exp((distance - 1) * min(width, height) / (PIXEL / 3)))


def patient(rng):
    """Slices of one patient, `[4, 64, 64]` in Hounsfield units, and in which of them a tumour is."""
    wide, deep, fat = rng.normal(165, 10), rng.normal(115, 8), rng.uniform(8, 25)
    apart, lung_wide, lung_deep = rng.normal(72, 4), rng.normal(46, 4), rng.normal(72, 6)
    turn, tilt = rng.normal(0, 6), rng.normal(0, 6)
    left_side = rng.choice([-1, 1])
    tumour_x, tumour_y = left_side * apart + rng.uniform(-18, 18), rng.uniform(-35, 35)
    tumour_z, radius = rng.uniform(-45, 45), rng.uniform(14, 24) if rng.random() < 2 / 3 else 0.0
    heart, spine = rng.uniform(32, 44), rng.uniform(18, 24)
    slices, has_tumour = [], []
    for z in SLICES:
        body = np.full((SIDE, SIDE), -1000.0)

        def put(value, *place, into=body):
            inside = ellipse(*place)
            into += inside * (value - into)

        higher = 1 - 0.1 * z / 45  # the lungs taper upward
        put(-100, turn, tilt, wide, deep)
        put(rng.normal(50, 4), turn, tilt, wide - fat, deep - fat)
        for side in (-1, 1):
            put(rng.normal(-820, 20), turn + side * apart, tilt, lung_wide * higher, lung_deep * higher)
        put(45, turn + 14, tilt - 25, heart * (1.1 - 0.25 * z / 45), heart)
        put(400, turn, tilt + 0.62 * deep, spine, spine * 0.9)
        cut = radius**2 - ((z - tumour_z) / 2) ** 2  # twice as long as wide
        if cut > 36:
            put(40, turn + tumour_x, tilt + tumour_y, cut**0.5, cut**0.5)
        has_tumour.append(bool(cut > 36))
        slices.append(body)
    return np.stack(slices), has_tumour


# %% [markdown]
# ## The scanner
#
# X-rays cross the body under 60 angles. What arrives is counted photon by photon, which is noise; filtered back
# projection makes a picture of the counts, and its window blurs.

# %%
ANGLES, PHOTONS, WATER = 60, 3e4, 0.02  # WATER: attenuation of a millimetre


def rays():
    """The matrix of all line integrals: detector bins by pixels, in millimetres."""
    bins, pixels, shares = [], [], []
    for number, angle in enumerate(np.arange(ANGLES) * np.pi / ANGLES):
        place = (across * np.cos(angle) + down * np.sin(angle)).ravel() / PIXEL + SIDE - 0.5
        low = np.floor(place).astype(int)
        for bin_, share in ((low, 1 - (place - low)), (low + 1, place - low)):
            bins.append(number * 2 * SIDE + bin_)
            pixels.append(np.arange(SIDE * SIDE))
            shares.append(share * PIXEL)
    size = (ANGLES * 2 * SIDE, SIDE * SIDE)
    return csr_array((np.concatenate(shares), (np.concatenate(bins), np.concatenate(pixels))), shape=size)


def scan(slices, rng, matrix):
    """What the scanner makes of slices `[n, 64, 64]`: 12 bits, 0 for -1024 Hounsfield units."""
    thickness = matrix @ ((slices.reshape(len(slices), -1) / 1000 + 1) * WATER).T
    counted = rng.poisson(PHOTONS * np.exp(-thickness)).clip(1)
    measured = np.log(PHOTONS / counted).reshape(ANGLES, 2 * SIDE, -1)
    frequency = np.fft.fftfreq(2 * SIDE)
    ramp = np.abs(frequency) * (0.5 + 0.5 * np.cos(2 * np.pi * frequency))  # with the window of Hann
    filtered = np.fft.ifft(np.fft.fft(measured, axis=1) * ramp[None, :, None], axis=1).real
    pictures = (matrix.T @ filtered.reshape(ANGLES * 2 * SIDE, -1)).T * np.pi / ANGLES / PIXEL**2
    units = (pictures.reshape(slices.shape) / WATER - 1) * 1000
    return np.rint(units + 1024).clip(0, 4095).astype(np.uint16)


# %%
rng, matrix = np.random.default_rng(0), rays()
columns: dict[str, list] = {"image": [], "label": [], "patient": []}
for number in range(NUM_PATIENTS):
    slices, has_tumour = patient(rng)
    columns["image"] += [Image.fromarray(picture) for picture in scan(slices, rng, matrix)]
    columns["label"] += [int(found) for found in has_tumour]
    columns["patient"] += [f"patient {number}"] * len(SLICES)
features = datasets.Features(
    {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["clear", "tumour"]),
        "patient": datasets.Value("string"),
    }
)
scans = folder / "scans"
(scans / "data").mkdir(parents=True)
datasets.Dataset.from_dict(columns, features=features).to_parquet(scans / "data" / "train-00000-of-00001.parquet")

# %% [markdown]
# The slices of three patients, a row for each, in the window of the run.

# %%
shown = np.concatenate([np.concatenate(patient(np.random.default_rng(seed))[0], 1) for seed in range(3)])
Image.fromarray(((shown + 1000) / 1500 * 255).clip(0, 255).astype(np.uint8))

# %% [markdown]
# ## The run
#
# Public, and declared: how many patients there are, that each has at most 4 slices, and the window, from -1000 to 500
# Hounsfield units. The numbers in the file begin at 1024 below zero, hence `--window 774,1500`. N and the batch count
# patients.

# %%
command = [
    sys.executable, "-m", "diffusers_dp", "train", "feta_pro", "--config", "folder_cpu",
    "--dataset_name", str(scans), "--class_names", "clear,tumour", "--output_dir", str(folder / "run"),
    "--unit_column", "patient", "--num_train_units", str(NUM_PATIENTS), "--max_images_per_unit", "4",
    "--num_train_images", str(4 * NUM_PATIENTS), "--resolution", "64", "--num_channels", "1", "--window", "774,1500",
    "--patch_size", "4", "--target_epsilon", "10", "--seed", "0",
]  # fmt: skip
if in_earnest:
    command += ["--train_batch_size", "200", "--max_train_steps", "180", "--expert", "num_auxiliary_images=4000"]
else:
    command += [
        "--train_batch_size", "8", "--max_train_steps", "2", "--noise_multiplicity", "1", "--block_out_channels", "8",
        "--spatial_steps", "2", "--frequency_steps", "2", "--generator_steps", "2",
        "--expert", "generator_batch_size=8",
        "--expert", "num_auxiliary_images=16", "--num_frequency_features", "50", "--num_inference_steps", "2",
        "--skip_preflight",
    ]  # fmt: skip
subprocess.run([*command, "--dry_run"], check=True)

# %%
subprocess.run(command, check=True)

# %% [markdown]
# `run/release/samples.png` shows drawn slices, a row for each class; after two steps they are noise, and
# [the tutorial](../docs/tutorial.md#scans-of-patients) shows those of a real run. The receipt says "per patient".

# %%
print((folder / "run" / "release" / "README.md").read_text()[:800])
