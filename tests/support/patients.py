# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Images of six patients, of whom each has several, and a run that counts patients."""

import csv

import numpy as np
from PIL import Image

from support.flags import TINY


def write_dataset(folder, without=None):
    """Thirty images of six patients, beside a table."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    lines = []
    for number in range(30):
        image = rng.integers(0, 256, (8, 8), dtype=np.uint8)
        patient = f"patient {min(number % 10, 5)}"
        if patient != without:
            Image.fromarray(image).save(folder / f"{number:02}.png")
            line = {
                "file_name": f"{number:02}.png",
                "diagnosis": ("healthy", "ill")[number % 2],
                "patient_id": patient,
            }
            lines.append(line)
    with open(folder / "metadata.csv", "w", newline="") as file:
        table = csv.DictWriter(file, lines[0])
        table.writeheader()
        table.writerows(lines)


def unit_flags(folder, run):
    flags = [*TINY, "--dataset_name", str(folder), "--label_column", "diagnosis", "--class_names", "healthy,ill"]
    flags += ["--resolution", "8", "--num_channels", "1", "--num_train_images", "30", "--accountant", "rdp"]
    flags += [
        "--target_epsilon",
        "2",
        "--unit_column",
        "patient_id",
        "--num_train_units",
        "6",
        "--max_images_per_unit",
        "4",
    ]
    return [*flags, "--train_batch_size", "3", "--output_dir", str(run)]
