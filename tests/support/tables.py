# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Six images beside a table, with classes and patients, and what the loader makes of them."""

import json
import tempfile
from dataclasses import replace

from PIL import Image

from diffusers_dp.data.images import declared_facts, load_images, public_facts
from diffusers_dp.data.records import DataSource
from support.images import encode


COUNT = 6
NAMES = [f"scan {i}.png" for i in range(COUNT)]
LABELS, PATIENTS = ["cat", "dog", "cat", "dog", "cat", "dog"], ["p0", "p0", "p1", "p1", "p2", "p2"]
CHANGED = 2  # the record that differs between neighbours


def picture(number, channels=1):
    mode = "L" if channels == 1 else "RGB"
    return encode(Image.new(mode, (4, 4), 10 + number if channels == 1 else (10 + number, 0, number)))


def rows(**changed):
    """The records as dictionaries; `changed` are values of record `CHANGED`."""
    found = [
        {"file_name": name, "label": label, "patient": unit} for name, label, unit in zip(NAMES, LABELS, PATIENTS)
    ]
    found[CHANGED].update(changed)
    return found


def quoted(text):
    return '"' + str(text).replace('"', '""') + '"'


def csv_lines(records):
    return [b"file_name,label,patient"] + [",".join(map(quoted, row.values())).encode() for row in records]


def json_lines(records):
    return [json.dumps(row).encode() for row in records]


def write_table(path, records):
    lines = csv_lines(records) if path.suffix == ".csv" else json_lines(records)
    path.write_bytes(b"\n".join(lines) + b"\n")


def folder_of(root, channels=1, missing=()):
    root.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(NAMES):
        if number not in missing:
            (root / name).write_bytes(picture(number, channels))
    return root


def read(place, channels=1, **flags):
    """What the loader makes of it: by the value of a picture its label and the digest of its id."""
    flags = {"class_names": ("cat", "dog"), "num_train_images": COUNT, "image_shape": (channels, 4, 4), **flags}
    data = DataSource(dataset_name=str(place), **flags)
    if data.unit_column:
        data = replace(data, num_train_units=COUNT)
    facts = public_facts(data) if data.class_names or data.label_column else declared_facts(data)
    with tempfile.TemporaryDirectory() as cache:
        arrays = load_images(data, facts, cache)
        labels = [None] * len(arrays.images) if arrays.labels is None else arrays.labels.tolist()
        found = zip(arrays.images[:, 0, 0, 0].tolist(), labels, arrays.ids.tolist(), arrays.readable.tolist())
        return {value - 10: (label, bytes(digest)) for value, label, digest, readable in found if readable}
