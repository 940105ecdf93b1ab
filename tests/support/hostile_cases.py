# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Some hundred hostile or wrong uses, each as a function of an empty folder and of what is honest. An attempt returns
what it got, or ends with one sentence; anything else is a fault. `hostile_worker.py` runs them."""

import contextlib
import io
import json
import os
import shutil
import subprocess
from functools import cached_property

import pyarrow as pa
import torch
from PIL import Image
from pyarrow import parquet

from diffusers_dp import cli, load_verified, verify
from diffusers_dp.app.drawing import read_order
from diffusers_dp.app.shelf import Shelf
from diffusers_dp.commands.app import Limits
from diffusers_dp.errors import DiffusersDPError
from diffusers_dp.evaluation.images import Source
from diffusers_dp.methods.config import CONFIGS
from diffusers_dp.release.artefacts import DatasetArtefact
from diffusers_dp.release.build import build_release
from diffusers_dp.release.receipt import RunRecord
from support.hostile import ENDLESS, HOSTILE
from support.hostile_files import more_cases
from support.hostile_latents import ADAPTER_TRAPS, MERGED_TRAPS
from support.images import encode
from support.latent_releases import latent_release
from support.latents import stable_diffusion
from support.releases import made_up, make_ledger, make_release
from support.untrusted_images import (
    MANY,
    SHARD,
    honest_rows,
    png,
    tiny_png_of,
    with_pipe,
    write_index,
    write_repeated,
    write_rows,
)


SECRET = 77  # a grey that the host's own pictures alone have


class Honest:
    """What is tampered with, made when it is first needed, and the host's own files."""

    def __init__(self, folder):
        self.folder = folder
        self.host = write_rows(folder / "host", [(png(value=SECRET), None, 0)] * 4)
        (self.host / "secret.png").write_bytes(png(value=SECRET))
        (self.host / "secret.txt").write_text("the host's own words")

    @cached_property
    def model(self):
        return make_release(self._new("model"))

    @cached_property
    def base(self):
        return stable_diffusion(self.folder / "base")

    @cached_property
    def merged(self):
        return latent_release(self.folder / "merged", self.base, True)

    @cached_property
    def adapters(self):
        return latent_release(self.folder / "adapters", self.base)

    @cached_property
    def release(self):
        images = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 1, 8, 8).contiguous()
        artefact = DatasetArtefact(images, torch.arange(4) % 2, ["left", "right"], "A test.")
        folder = self._new("images")
        return build_release(folder, artefact, RunRecord(ledger=make_ledger(folder), method=made_up("pe")))

    @cached_property
    def drawn(self):
        """With a receipt, as `sample` leaves it."""
        folder = self.folder / "drawn"
        asked = f"sample {self.model} --num_images 4 --num_inference_steps 1 --output_dir {folder}"
        cli.main(asked.split())
        return folder

    @cached_property
    def plain(self):
        return write_rows(self.folder / "plain", honest_rows())

    def _new(self, name):
        (self.folder / name).mkdir()
        return self.folder / name


# Models.


def _of_model(tamper):
    def attempt(honest, folder):
        release = shutil.copytree(honest.model, folder / "release")
        tamper(release)
        _report(release)
        return load_verified(release, require_dp=False)(batch_size=1, class_labels=[0], num_inference_steps=1)

    return attempt


def _of_latent(tamper, kind):
    def attempt(honest, folder):
        release = shutil.copytree(getattr(honest, kind), folder / "release")
        tamper(release)
        _report(release)
        pipeline = load_verified(release, require_dp=False, base=None if kind == "merged" else honest.base)
        return pipeline(class_labels=[0, 1], num_inference_steps=1)

    return attempt


def _report(release):
    """What `verify` says, which must have been able to look."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = verify.report(release)
    if code not in (0, 2, 4) or "could not be checked" in said.getvalue():
        raise AssertionError(said.getvalue())


# Data sets. Each is told to a release of images, to what `sample` writes, and to a folder of nobody known.


def _rows(*rows, **options):
    return lambda folder, honest: write_rows(folder, [_row(row, honest) for row in rows], **options)


def _row(row, honest):
    return tuple(each.format(host=honest.host) if isinstance(each, str) else each for each in row)


def _table(change):
    """The table of the shard, changed."""

    def tamper(folder, honest):
        table = change(parquet.read_table(folder / SHARD))
        parquet.write_table(table, folder / SHARD)

    return tamper


def _card(text):
    return lambda folder, honest: (folder / "README.md").write_text(text.format(host=honest.host))


def _configs(path):
    return _card(
        '---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: "' + path + '"\n---\n'
    )


def _link(place, target):
    def tamper(folder, honest):
        found = folder / place
        found.parent.mkdir(exist_ok=True)
        if found.is_dir():
            shutil.rmtree(found)
        found.unlink(missing_ok=True)
        found.symlink_to(target.format(host=honest.host))

    return tamper


def _content(content, place=SHARD):
    return lambda folder, honest: (folder / place).write_bytes(content)


def _index(**fields):
    return lambda folder, honest: write_index(folder, **fields)


def _folder_in_place(folder, honest):
    (folder / SHARD).unlink()
    (folder / SHARD).mkdir()


GOOD = (png(), None, 0)
IMAGE_TRAPS = {
    "a row of the host": _rows(GOOD, (None, "{host}/secret.png", 0)),
    "all rows of the host": _rows(*[(None, "{host}/secret.png", 0)] * 4),
    "a relative row": _rows(GOOD, (None, "../host/secret.png", 0)),
    "a row of the network": _rows(GOOD, (None, "http://127.0.0.1:9/a.png", 0)),
    "a row of a device": _rows(GOOD, (None, "/dev/zero", 0)),
    "a row of both": _rows(GOOD, (png(), "{host}/secret.png", 0)),
    "a row of a zip": _rows(GOOD, (None, "zip://a.png::{host}/a.zip", 0)),
    "rows of nothing": _rows(*[(None, None, None)] * 4),
    "no rows": _rows(),
    "empty rows": _rows(*[(b"", None, 0)] * 4),
    "rows of text": _rows(*[(b"no image", None, 0)] * 4),
    "headers alone": _rows(*[(png()[:33], None, 0)] * 4),
    "half pictures": _rows(*[(png()[:-20], None, 0)] * 4),
    "pictures of another size": _rows(GOOD, (png(9), None, 0)),
    "pictures of another mode": _rows(GOOD, (png(mode="RGB"), None, 0)),
    "jpegs": _rows(GOOD, (encode(Image.new("L", (8, 8)), "JPEG"), None, 0)),
    "pictures of palettes": _rows(GOOD, (encode(Image.new("P", (8, 8))), None, 0)),
    "scripts": _rows(GOOD, (b"%!PS-Adobe-3.0 EPSF-3.0\n(/etc/passwd) run\n", None, 0)),
    "a picture of half a gigabyte": _rows((tiny_png_of(20_000, 20_000), None, 0), GOOD),
    "forty large pictures": _rows(*[(tiny_png_of(4_000, 4_000, "RGB"), None, 0)] * 40),
    "a label below": _rows(GOOD, (png(), None, -1)),
    "a label far above": _rows(GOOD, (png(), None, 10**9)),
    "no label": _rows(GOOD, (png(), None, None)),
    "a milliard by one value": lambda folder, honest: write_repeated(folder, png() + bytes(600)),
    "three million rows": lambda folder, honest: write_repeated(folder, png(), 3 * MANY),
    "a million of nothing": lambda folder, honest: write_repeated(folder, None),
    "zstd": _rows(*[(png() + bytes(2 * 10**7), None, 0)] * 2, compression="zstd", use_dictionary=False),
    "gzip": _rows(*[(png() + bytes(2 * 10**7), None, 0)] * 2, compression="gzip", use_dictionary=False),
    "brotli": _rows(*[(png() + bytes(10**7), None, 0)] * 2, compression="brotli", use_dictionary=False),
    "snappy": _rows(*[(png() + bytes(2 * 10**7), None, 0)] * 2, use_dictionary=False),
    "another column": _table(lambda table: table.append_column("x", pa.array(["y" * 1000] * len(table)))),
    "columns renamed": _table(lambda table: table.rename_columns(["a", "b"])),
    "one column": _table(lambda table: table.select(["label"])),
    "a dictionary": _table(lambda table: table.set_column(1, "label", table["label"].dictionary_encode())),
    "labels of text": _table(lambda table: table.set_column(1, "label", table["label"].cast(pa.string()))),
    "images of numbers": _table(lambda table: table.set_column(0, "image", table["label"])),
    "metadata that is none": _table(lambda table: table.replace_schema_metadata({"huggingface": "{"})),
    "features that are none": _table(lambda table: table.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": {"image": {"_type": "Evil"}, "label": 3}}})})),
    "a shard that is empty": _content(b""),
    "a shard that is text": _content(b"no parquet"),
    "a shard that ends early": lambda folder, honest: (folder / SHARD).write_bytes(
        (folder / SHARD).read_bytes()[:-9]),
    "a shard that is a folder": _folder_in_place,
    "a shard that is a pipe": lambda folder, honest: with_pipe(folder, SHARD),
    "a card that is a pipe": lambda folder, honest: with_pipe(folder, "README.md"),
    "a pipe beside": lambda folder, honest: with_pipe(folder, "data/train-00001-of-00002.parquet"),
    "an index that is a pipe": lambda folder, honest: with_pipe(folder, "model_index.json"),
    "a receipt that is a pipe": lambda folder, honest: with_pipe(folder, "privacy_receipt.json"),
    "a shard that is a device": _link(SHARD, "/dev/zero"),
    "a shard of the host": _link(SHARD, "{host}/" + SHARD),
    "a folder of the host": _link("data", "{host}/data"),
    "a folder that is its own": _link("loop", "."),
    "a card of the host": _link("README.md", "{host}/secret.txt"),
    "a card that names the host": _configs("{host}/data/*.parquet"),
    "a card that climbs": _configs("../*/host/data/*.parquet"),
    "a card that asks the network": _configs("http://127.0.0.1:9/a.parquet"),
    "a card that asks the hub": _configs("hf://datasets/someone/private/data/*.parquet"),
    "a card that unfolds": _card("---\nconfigs:\n- &a [x, x]\n- &b [*a, *a]\n" + "".join(
        f"- &{chr(99 + i)} [*{chr(98 + i)}, *{chr(98 + i)}]\n" for i in range(20)) + "---\n"),
    "a card that is no yaml": _card("---\nconfigs: [\n---\n"),
    "a card that runs code": _card("---\nconfigs: !!python/object/apply:os.system ['true']\n---\n"),
    "a program beside": _content(b"raise SystemExit('ran')", "plain.py"),
    "an archive beside": _content(b"PK\x03\x04", "data/train.zip"),
    "many archives": lambda folder, honest: [
        (folder / "data" / f"train-{i}.zip").write_bytes(b"PK\x03\x04") for i in range(9)],
}  # fmt: skip
INDEX_TRAPS = {
    **{f"index {field} {str(value)[:30]}": _index(**{field: value}) for field, value in (
        ("image_shape", [3, 8]), ("image_shape", "x"), ("image_shape", [1, 8, 10**9]), ("image_shape", [2, 8, 8]),
        ("image_shape", [True, 8, 8]), ("image_shape", [1, -8, 8]), ("image_shape", [[1], 8, 8]),
        ("image_shape", None), ("num_images", 10**9), ("num_images", "4"), ("num_images", -1), ("num_images", 3),
        ("num_images", 1e3), ("num_shards", 10**9), ("num_shards", "1"), ("num_shards", 0), ("num_shards", 2),
        ("class_names", ["a"] * 200_000), ("class_names", [3]), ("class_names", "x"), ("class_names", ["a"]),
        ("class_names", ["x" * 10**5, "y"]), ("class_names", None), ("_class_name", ["os"]),
    )},
    "an index of a list": _content(b"[]", "model_index.json"),
    "an index of nothing": _content(b"", "model_index.json"),
    "an index without end": _content(b"[" * 10**6, "model_index.json"),
}  # fmt: skip


def _of_images(tamper, kind):
    def attempt(honest, folder):
        copied = shutil.copytree(getattr(honest, kind), folder / "set")
        tamper(copied, honest)
        source = Source("--images", str(copied), is_untrusted=True)
        found = source.load("train", source.shape("train", folder / "cache"), resize=True, cache_dir=folder / "cache")
        if (found.images == SECRET).any():
            raise AssertionError("A picture of the host was read.")
        return found

    return attempt


def _on_page(tamper):
    def attempt(honest, folder):
        release = shutil.copytree(honest.release, folder / "release")
        tamper(release, honest)
        opened = Shelf([str(release)], Limits(), allow_unverified=True).open(str(release))
        return opened, load_verified(release, require_dp=False)

    return attempt


# The command line.

LONG = "a" * 300
WRONG_LINES = [
    *(f"train pe --images_per_class {value}" for value in (0, 10**30, "nan")),
    *(f"train {method} --output_dir {LONG}" for method in CONFIGS),
    *(f"{command} {LONG}" for command in ("verify", "data", "push", "methods", "train", "train pe --config")),
    f"sample {LONG} --num_images 1 --output_dir x", f"sample release --num_images 1 --output_dir {LONG}",
    "sample release --num_images 99999999999 --output_dir x",
    f"evaluate --images {LONG}", f"evaluate --model {LONG}", f"evaluate --images release --output_dir {LONG}",
    *(f"{command} /dev/zero" for command in ("evaluate --images", "verify", "data")),
    *(f"{command} /etc/passwd" for command in ("evaluate --images", "verify", "data")),
    "verify release --base /no",
    "plan --num_train_images 99999999999999999999 --class_names a,b", f"plan --method {LONG}",
    *(f"train dp_mepf --feature_network {value}" for value in ("/nonexistent", "no/such", "/etc/passwd", LONG, "..")),
    *(f"train dp_lora --pretrained_model_name_or_path {value}" for value in ("/nonexistent", "release", LONG)),
    *(f"train dp_diffusion --pretrained_model_name_or_path {value}" for value in ("/nonexistent", "/etc", LONG)),
    *(f"train feta_pro --{flag}={value}" for flag in ("learning_rate", "target_delta") for value in ("nan", "inf")),
    "train pe --train_data_dir pictures --class_names left,right",
]  # fmt: skip


@contextlib.contextmanager
def _inside(folder):
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _of_line(line):
    def attempt(honest, folder):
        shutil.copytree(honest.model, folder / "release")
        for number in range(6):
            place = folder / "pictures" / ("left", "right")[number % 2] / f"{number}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(png(value=number))
        with _inside(folder):
            cli.main(line.split(" "))  # an empty word is one
        if line.startswith(("train", "sample", "evaluate")):
            raise AssertionError("It was not refused.")
        return line

    def checked(honest, folder):
        try:
            return attempt(honest, folder)
        finally:
            left = [path for path in folder.rglob("private") if path.is_dir() and "release" not in path.parts]
            if left and line.startswith("train"):
                raise AssertionError(f"It left {left}.")

    return checked


def _of_pictures(kind):
    """A folder of class folders, as the operator's own; nothing of it may hang or read elsewhere."""

    def attempt(honest, folder):
        own = folder / "pictures" / "left"
        own.mkdir(parents=True)
        for number in range(4):
            (own / f"{number}.png").write_bytes(png(value=number))
        PICTURE_TRAPS[kind](own, honest)
        with _inside(folder):
            cli.main(["data", "pictures", "--resolution", "8", "--num_channels", "1"])
        return kind

    return attempt


PICTURE_TRAPS = {
    "a pipe": lambda own, honest: with_pipe(own, "pipe.png"),
    "a link to nowhere": lambda own, honest: (own / "x.png").symlink_to("/nowhere"),
    "a link to itself": lambda own, honest: (own / "x.png").symlink_to("x.png"),
    "a device": lambda own, honest: (own / "x.png").symlink_to("/dev/zero"),
    "a folder called a picture": lambda own, honest: (own / "x.png").mkdir(),
    "text": lambda own, honest: [(own / f"{i}.png").write_text("no image") for i in range(4)],
    "a bomb": lambda own, honest: (own / "x.png").write_bytes(tiny_png_of(20_000, 20_000)),
    "a name of line breaks": lambda own, honest: (own / "a\nb\x1b[31m.png").write_bytes(png()),
    "a long name": lambda own, honest: (own / ("a" * 250 + ".png")).write_bytes(png()),
    "three gigabytes": lambda own, honest: subprocess.run(["truncate", "-s", "3G", own / "x.png"], check=True),
    "a picture outside": lambda own, honest: (own.parent / "x.png").write_bytes(png()),
}
NAMES_ON_PAGE = (
    "", " ", "..", "/", "/etc", "/etc/passwd", "../..", "~", "~root", "a" * 5000, "a\0b", "a b/c", "a/b/c", "a//b",
    "file:///etc/passwd", "http://127.0.0.1:9", "{host}", "{host}/secret.txt", "{host}/data", "-h", "%2e%2e", "a/..",
)  # fmt: skip
ORDERS = [
    (classes, 1, 0, 1, "dpm") for classes in (["x"], [None], [3], "ab", [["a"]], ["a" * 10**5], 3.5, {"a": 1})
] + [
    ([], value, 0, 1, "dpm") for value in (0, -1, 10**30, "x", None, [], 1.5, float("nan"), float("inf"), True)
] + [
    ([], 1, value, 1, "dpm") for value in (-1, 10**30, "x", None, 0.5)
] + [
    ([], 1, 0, value, "dpm") for value in (0, 10**9, "x", None, [])
] + [
    ([], 1, 0, 1, value) for value in ("x", None, 3, [], ["dpm"])
]  # fmt: skip


def _open_on_page(name):
    def attempt(honest, folder):
        return Shelf([], Limits(), folders_by_visitors="host" not in name).open(name.format(host=honest.host))

    return attempt


def _order(values):
    def attempt(honest, folder):
        return read_order(Shelf([str(honest.model)], Limits()).open(str(honest.model)), values, Limits())

    return attempt


def cases():
    """All attempts by their names."""
    found = {f"model: {name}": _of_model(tamper) for name, (tamper, _) in {**HOSTILE, **ENDLESS}.items()}
    found |= {f"merged: {name}": _of_latent(tamper, "merged") for name, tamper in MERGED_TRAPS.items()}
    found |= {f"adapters: {name}": _of_latent(tamper, "adapters") for name, tamper in ADAPTER_TRAPS.items()}
    for kind in ("release", "plain"):
        found |= {f"{kind}: {name}": _of_images(tamper, kind) for name, tamper in IMAGE_TRAPS.items()}
    found |= {f"release: {name}": _of_images(tamper, "release") for name, tamper in INDEX_TRAPS.items()}
    found |= {f"page: {name}": _on_page(tamper) for name, tamper in {**IMAGE_TRAPS, **INDEX_TRAPS}.items()}
    found |= {f"line: {line[:120]}": _of_line(line) for line in WRONG_LINES}
    found |= {f"pictures: {name}": _of_pictures(name) for name in PICTURE_TRAPS}
    found |= {f"name: {name[:50]!r}": _open_on_page(name) for name in NAMES_ON_PAGE}
    found |= {f"order {number}: {str(values)[:50]}": _order(values) for number, values in enumerate(ORDERS)}
    return found | more_cases(_report)


def is_refusal(error):
    """One sentence of ours, or the end of a command after one."""
    if isinstance(error, SystemExit):
        return error.code in (2, 4)
    return isinstance(error, DiffusersDPError) and "\n" not in str(error) and len(str(error)) < 20_000
