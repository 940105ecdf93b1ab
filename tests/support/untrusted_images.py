# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Data sets of a stranger: what their rows, files and cards can be told to do to whoever reads them."""

import json
import os
import struct
import zlib

import pyarrow as pa
from PIL import Image
from pyarrow import parquet

from diffusers_dp.release.image_tables import image_table
from support.images import encode


MANY = 10**6
SHARD = "data/train-00000-of-00001.parquet"


def png(side=8, value=0, mode="L"):
    return encode(Image.new(mode, (side, side), value))


def tiny_png_of(width, height, mode="L"):
    """A picture of one value, of a few bytes for each thousand pixels, without taking memory for it."""
    depth = {"L": 1, "RGB": 3}[mode]
    packer = zlib.compressobj(9)
    row = b"\0" * (1 + width * depth)
    body = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, {"L": 0, "RGB": 2}[mode], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def write_rows(folder, rows, names=("left", "right"), place=SHARD, **options):
    """Rows of (bytes, path, label), as `datasets` writes them."""
    schema = image_table([], [], names).schema
    columns = [
        pa.array([{"bytes": row[0], "path": row[1]} for row in rows], schema.field("image").type),
        pa.array([row[2] for row in rows], pa.int64()),
    ]
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_arrays(columns, schema=schema), folder / place, **options)
    return folder


def write_repeated(folder, picture, number=MANY, names=("left", "right"), place=SHARD):
    """The same row so often, in some kilobytes."""
    schema = image_table([], [], names).schema
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    with parquet.ParquetWriter(folder / place, schema) as writer:
        part = 10_000
        column = pa.array([{"bytes": picture, "path": None}] * part, schema.field("image").type)
        table = pa.Table.from_arrays([column, pa.array([0] * part, pa.int64())], schema=schema)
        for start in range(0, number, part):
            writer.write_table(table.slice(0, min(part, number - start)), row_group_size=number)
    return folder


def write_index(folder, **fields):
    """`model_index.json` of a release of images."""
    index = {
        "_class_name": "DPImageDataset", "class_names": ["left", "right"], "image_shape": [1, 8, 8], "num_images": 4,
        "num_shards": 1,
    }  # fmt: skip
    (folder / "model_index.json").write_text(json.dumps({**index, **fields}))
    return folder


def honest_rows(number=4):
    return [(png(value=20 * i), None, i % 2) for i in range(number)]


def with_pipe(folder, place):
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    (folder / place).unlink(missing_ok=True)
    os.mkfifo(folder / place)
    return folder
