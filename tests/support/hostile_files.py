# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""More kinds of hostile files, each a family for the readers that such a file reaches: receipts by field and by byte,
signatures, tables beside pictures, damaged pictures of every format, deep pictures, scans, recipes and answers,
folders of `save_to_disk`, headers of weights, models to begin with, ledgers, and what else lies in a release."""

import gzip
import io
import json
import os
import shutil
import struct
from importlib.util import find_spec

import numpy as np
import pyarrow as pa
from PIL import Image, features
from pyarrow import parquet

from diffusers_dp import cli, load_verified
from diffusers_dp.app.shelf import Shelf
from diffusers_dp.commands.app import Limits
from diffusers_dp.data.images import PublicFacts, load_images, public_facts
from diffusers_dp.data.records import DataSource
from diffusers_dp.errors import DiffusersDPError
from diffusers_dp.evaluation.images import Source
from diffusers_dp.files.canonical import canonical_json
from diffusers_dp.runs.pretrained import load_pretrained
from diffusers_dp.verify import RECEIPT_NAME, settled_digest
from support import deep_images
from support.hostile import CONFIG, HOSTILE, INDEX, NAN, SCHEDULE, WEIGHTS, spoil
from support.images import encode
from support.ledgers import row
from support.releases import reseal
from support.untrusted_images import MANY, honest_rows, png, tiny_png_of, with_pipe


ENDLESS = 10**400  # an integer that no float holds
NESTED = "[" * 3_000 + "]" * 3_000


def all_of(*readers):
    """Every reader gets its turn; the first refusal is told."""
    refused = None
    for reader in readers:
        try:
            reader()
        except (DiffusersDPError, SystemExit) as error:
            if isinstance(error, SystemExit) and error.code not in (0, 2, 4):
                raise
            refused = refused or error
    if refused is not None:
        raise refused


def command(*words):
    cli.main(list(map(str, words)))


def of_release(tamper, *, report, pages=True):
    """To all that read a stranger's release: `verify`, the loader, and the pages of the app and of the dossier."""

    def attempt(honest, folder):
        release = shutil.copytree(honest.model, folder / "release")
        tamper(release)
        readers = [lambda: report(release), lambda: load_verified(release, require_dp=False)]
        if pages:
            readers += [
                lambda: Shelf([str(release)], Limits(), allow_unverified=True).open(str(release)),
                lambda: command("dossier", release, "--output_dir", folder / "dossier"),
            ]
        all_of(*readers)

    return attempt


# Receipts, field by field: whoever forges one also makes the hash in the index fit.

FIELDS = """accountant adjacency assumptions assumptions.0 claimed_epsilon claimed_epsilon.pld
claimed_epsilon.pld.epsilon claimed_epsilon.pld.value_discretization_interval claimed_epsilon.rdp
claimed_epsilon.rdp.epsilon claimed_epsilon.rdp.orders claimed_epsilon.rdp.orders.0 composition created_utc curriculum
dataset delta evaluation events events.0 events.1.dataset_size events.1.id events.1.mechanism
events.1.noise_multiplier events.1.partition events.1.query events.1.query.clip_norm events.1.query.sensitivity
events.1.sampling_probability events.1.stage events.1.steps_executed events.1.steps_reserved files files.0 files.0.name
files.0.sha256 leaky_outputs library library.version method method.name method.status prior_releases
private_evaluations processes public_facts public_facts.image_shape public_facts.num_images public_inputs resumes rng
rng.kind target_epsilon unit_of_privacy versions""".split()
WRONG_VALUES = {
    "is gone": ..., "has no end": ENDLESS, "is a page": "\x1b[2J<script>\u202e" * 500,
}  # fmt: skip


def receipt_field(place, value):
    def change(receipt):
        *above, last = [int(each) if each.isdigit() else each for each in place.split(".")]
        for each in above:
            receipt = receipt[each]
        if value is not ...:
            receipt[last] = value
        else:
            del receipt[last]

    return lambda release: reseal(release, change)


# Receipts, byte by byte.


def receipt_bytes(make):
    def tamper(release):
        path = release / RECEIPT_NAME
        path.write_bytes(make(path.read_bytes()))

    return tamper


RECEIPT_BYTES = {
    "nothing": lambda found: b"", "a list": lambda found: b"[]", "a number": lambda found: b"1e999",
    "two objects": lambda found: found + found, "half of it": lambda found: found[: len(found) // 2],
    "UTF-16": lambda found: found.decode().encode("utf-16"), "a mark before it": lambda found: b"\xef\xbb\xbf" + found,
    "bytes of no text": lambda found: found.replace(b"image", b"\xff\xfe\xfd"),
    "a name twice": lambda found: found.replace(b"{", b'{"delta": 1e-9, ', 1),
    "no numbers": lambda found: found.replace(b"1e-05", b"NaN"), "infinities": lambda found: b'{"delta": -Infinity}',
    "digits without end": lambda found: found.replace(b"1437", b"9" * 5_000_000),
    "depth": lambda found: found.replace(b"[]", NESTED.encode(), 1), "blanks": lambda found: found + b" " * 10_000_001,
    "null bytes": lambda found: bytes(1_000_000), "a program": lambda found: b"#!/bin/sh\ntouch ran\n",
}  # fmt: skip


# Tables beside pictures: a stranger's folder to be judged, and the house's own to be looked through.

SMALL = "--resolution", 8, "--num_channels", 1
NAMES = [f"{number}.png" for number in range(4)]


def _line(name, label="left"):
    return json.dumps({"file_name": name, "label": label}).encode() + b"\n"


ODD_NAMES = {
    "of the host": "{host}/secret.png", "that climbs": "../host/secret.png", "of the system": "/etc/passwd",
    "of a device": "/dev/zero", "with a null byte": "a\0b.png", "of half a character": "\ud800.png",
    "without end": "a" * 10**5,
    "of here": ".", "of nothing": "", "of the network": "http://127.0.0.1:9/a.png", "of a table": "metadata.jsonl",
    "of a folder": "folder", "in another form": "./0.png", "that turns": "\u202egnp.0", "of a home": "~/secret.png",
}  # fmt: skip
ODD_LINES = {
    "is nested": b'{"file_name": ' + NESTED.encode() + b"}\n", "is a list": b"[1]\n", "is a number": b"3\n",
    "names itself twice": b'{"file_name": "0.png", "file_name": "1.png"}\n', "is no number": b'{"file_name": NaN}\n',
    "has no end": b'{"file_name": "' + b"a" * 5 * MANY + b'"}\n',
    "has digits": b'{"file_name": 1' + b"0" * 10**5 + b"}\n",
    "is no text": b'{"file_name": "\xff"}\n', "is cut": b'{"file_name": "0.p\n',
    "has null bytes": bytes(1_000) + b"\n",
    "names a list": b'{"file_name": ["0.png"]}\n', "has a label of lists": b'{"file_name": "0.png", "label": [[1]]}\n',
    "has a million parts": b'{"file_name": "0.png", "x": [' + b"[]," * MANY + b"[]]}\n",
}  # fmt: skip
ODD_CSV = {
    "nothing": b"", "no header": b"0.png,left\n", "a column twice": b"file_name,file_name\n0.png,1.png\n",
    "a million columns": b"file_name" + b",a" * MANY + b"\n", "a header without end": b"a" * 3 * MANY,
    "a quote that stays open": b'file_name,label\n"0.png,left\n1.png,left\n',
    "UTF-16": "file_name,label\n".encode("utf-16"),
    "carriage returns": b"file_name,label\r0.png,left\r", "null bytes": b"file_name\0,label\n" + bytes(10**5),
    "empty lines": b"file_name,label\n" + b"\n" * 2 * MANY, "formulas": b"file_name,label\n0.png,=cmd|'/c calc'!A0\n",
    "a line without end": b"file_name,label\n" + b"," * 5 * MANY,
    "columns of control": b"\x1b[31m,file_name\n1,0.png\n",
    "a mark": b"\xef\xbb\xbffile_name,label\n0.png,left\n",
    "a file in two lines": b"file_name,label\n0.png,left\n0.png,left\n",
}  # fmt: skip


def _columns(**columns):
    return {"file_name": NAMES, "label": ["left"] * 4, **columns}


ODD_PARQUET = {
    "names that are numbers": (_columns(file_name=[0, 1, 2, 3]), {}),
    "names that are bytes": (_columns(file_name=[name.encode() for name in NAMES]), {}),
    "names in lists": (_columns(file_name=[[name] for name in NAMES]), {}),
    "labels in structs": (_columns(label=[{"a": 1}] * 4), {}), "labels of nothing": (_columns(label=[None] * 4), {}),
    "labels of dates": (_columns(label=pa.array([1, 2, 3, 4]).cast(pa.timestamp("s"))), {}),
    "no names": ({"label": ["left"] * 4}, {}), "no columns": ({}, {}),
    "one name for all lines": ({"file_name": ["0.png"] * (MANY // 4), "label": ["left"] * (MANY // 4)}, {}),
    "long names": (_columns(file_name=["a" * 2 * MANY] * 4), {}),
    "zstd": (_columns(x=["a" * 5 * MANY] * 4), {"compression": "zstd", "use_dictionary": False}),
    "gzip": (_columns(x=["a" * 5 * MANY] * 4), {"compression": "gzip", "use_dictionary": False}),
    "a dictionary": (_columns(label=pa.array(["left"] * 4).dictionary_encode()), {}),
}  # fmt: skip


def _write_odd_parquet(folder, columns, options):
    parquet.write_table(pa.table(columns), folder / "metadata.parquet", **options)


def _tables():
    found = {f"a name {words}": ("jsonl", _line(name)) for words, name in ODD_NAMES.items()}
    found |= {f"a line {words}": ("jsonl", line) for words, line in ODD_LINES.items()}
    return found | {f"CSV of {words}": ("csv", content) for words, content in ODD_CSV.items()}


def _pictures(folder, suffix=".png"):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(4):
        (folder / f"{number}{suffix}").write_bytes(png(value=number))
    return folder


def _with_table(write, *, stranger):
    """A stranger's folder to be judged, or the house's own to be looked through."""

    def attempt(honest, folder):
        own = _pictures(folder / "set")
        write(own, honest)
        if not stranger:
            command(
                "data", "--dataset_name", own, "--class_names", "left,right", "--resolution", 8, "--num_channels", 1
            )
            return
        source = Source("--images", str(own), class_names="left,right", is_untrusted=True)
        found = source.load("train", (1, 8, 8), resize=True, cache_dir=folder / "cache")
        if (found.images == 77).any():  # the host's grey
            raise AssertionError("A picture of the host was read.")

    return attempt


def _written(suffix, content):
    def write(own, honest):
        host = json.dumps(str(honest.host))[1:-1].encode()
        (own / f"metadata.{suffix}").write_bytes(content.replace(b"{host}", host))

    return write


# Pictures of every format that is read, damaged in ways that decoders mind.

FORMATS = {
    ".png": "PNG", ".jpg": "JPEG", ".jp2": "JPEG2000", ".tif": "TIFF", ".bmp": "BMP", ".gif": "GIF", ".webp": "WEBP",
    ".ppm": "PPM", ".tga": "TGA", **({".avif": "AVIF"} if features.check("avif") else {}),
}  # fmt: skip
DAMAGE = {
    "cut": lambda found: found[: len(found) // 2],
    "zeros inside": lambda found: found[: len(found) // 3] + bytes(len(found) // 3) + found[2 * len(found) // 3 :],
    "ones behind the head": lambda found: found[:12] + b"\xff" * 24 + found[36:],
    "other bits": lambda found: bytes(byte ^ (number % 7 == 3) << number % 8 for number, byte in enumerate(found)),
    "itself a thousand times": lambda found: found * 1_000,
}  # fmt: skip


def _damaged(suffix, damage):
    def attempt(honest, folder):
        own = _pictures(folder / "pictures" / "left")
        noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        whole = encode(Image.fromarray(noise), FORMATS[suffix])
        (own / f"x{suffix}").write_bytes(damage(whole))
        command("data", own.parent, *SMALL)

    return attempt


def _pnm(head, body=b""):
    return ".pgm", head + body


def _deep(values, **options):
    return ".tif", deep_images.tiff(values, 1, **options)


def _tiff(*entries, after=b""):
    """A TIFF file of these tags alone, each (tag, kind, number, value), after which `after` follows."""
    tags = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    return ".tif", b"II*\0" + struct.pack("<IH", 8, len(entries)) + tags + after


GREY = ((256, 4, 1, 8), (257, 4, 1, 8), (258, 3, 1, 16), (262, 3, 1, 1), (278, 4, 1, 8))
STRIP = ((273, 4, 1, 200), (279, 4, 1, 128))
DEEP = {
    "white of nothing": _pnm(b"P5 8 8 0\n", bytes(64)), "white beyond": _pnm(b"P5 8 8 70000\n", bytes(128)),
    "no width": _pnm(b"P5 0 8 255\n"), "a milliard wide": _pnm(b"P5 1000000000 1000000000 65535\n"),
    "digits without end": _pnm(b"P5 " + b"9" * 10**5 + b" 8 255\n"),
    "a comment without end": _pnm(b"P5 #" + b"a" * 3 * MANY),
    "letters": _pnm(b"P2 2 2 1000\n", b"a b c d"), "few numbers": _pnm(b"P2 8 8 1000\n", b"1 2 3"),
    "numbers beyond white": _pnm(b"P2 2 2 1000\n", b"1 2 3 4000000000000000000000"),
    "negative": _pnm(b"P2 1 1 9\n", b"-3"),
    "half a body": _pnm(b"P5 8 8 65535\n", bytes(64)), "no scale": (".pfm", b"Pf\n8 8\n0\n" + bytes(256)),
    "infinite numbers": (".pfm", b"Pf\n2 2\n-1.0\n" + struct.pack("<4f", NAN, 1e38, -1e38, float("inf"))),
    "numbers that are none": _deep(np.full((8, 8, 1), NAN, np.float32)),
    "signs": _deep(np.full((8, 8, 1), -9, np.int32)),
    "cut": (".tif", deep_images.tiff(np.ones((8, 8, 1), np.uint16), 1)[:60]),
    "pixels out of the file": _tiff(*GREY, (273, 4, 1, 2**31), (279, 4, 1, 128)),
    "a milliard rows": _tiff((256, 4, 1, 2**30), (257, 4, 1, 2**30), *GREY[2:], *STRIP),
    "64 bits": _tiff(*GREY[:2], (258, 3, 1, 64), *GREY[3:], *STRIP),
    "no bits": _tiff(*GREY[:2], (258, 3, 1, 0), *STRIP),
    "many samples": _tiff(*GREY, *STRIP, (277, 3, 1, 65535)),
    "an unknown packing": _tiff(*GREY, *STRIP, (259, 3, 1, 50_000)),
    "tags without end": _tiff(*GREY, *STRIP, (270, 2, 2**31, 8)),
    "a circle of frames": _tiff(*GREY, *STRIP, after=b"\x08\0\0\0"),
    "a wide PNG cut": (".png", deep_images.png(np.ones((8, 8, 1), np.uint16), 0)[:60]),
    "lines across": (".png", deep_images.png(np.ones((8, 8, 1), np.uint16), 0, interlaced=True)[:-20]),
    "a large wide PNG": (".png", tiny_png_of(12_000, 12_000)),
}  # fmt: skip


def _looked_through(suffix, content, *flags):
    def attempt(honest, folder):
        own = _pictures(folder / "pictures" / "left")
        (own / f"x{suffix}").write_bytes(content if isinstance(content, bytes) else content())
        command("data", own.parent, *SMALL, *flags)

    return attempt


# Scans.


def _dicom(cut=None, **tags):
    """pydicom's own CT, with other values in its tags."""

    def make():
        import warnings

        from pydicom import dcmread
        from pydicom.data import get_testdata_file

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pydicom minds such values, too
            scan, made = dcmread(get_testdata_file("CT_small.dcm")), io.BytesIO()
            for name, value in tags.items():
                scan.pop(name, None) if value is ... else setattr(scan, name, value)
            scan.save_as(made)
        return made.getvalue()[:cut]

    return make


def _nifti(shape=(4, 4, 4), cut=None, **fields):
    """A volume whose header says something else: floats by their place in bytes."""

    def make():
        import nibabel

        content = bytearray(nibabel.Nifti1Image(np.zeros((4, 4, 4), np.int16), np.eye(4)).to_bytes())
        content[40:56] = struct.pack("<8h", len(shape), *shape, *[1] * (7 - len(shape)))
        for place, numbers in fields.items():
            struct.pack_into(f"<{len(numbers)}f", content, int(place[1:]), *numbers)
        return bytes(content[:cut])

    return make


SEQUENCE = b"\x08\0\x40\x11SQ\0\0\xff\xff\xff\xff\xfe\xff\0\xe0\xff\xff\xff\xff"  # of DICOM, and its first item
SCANS = {
    "rows beyond the file": (".dcm", _dicom(Rows=65_535, Columns=65_535)), "no rows": (".dcm", _dicom(Rows=0)),
    "a million frames": (".dcm", _dicom(NumberOfFrames=10**6)), "seven bits": (".dcm", _dicom(BitsAllocated=7)),
    "colours of nobody": (".dcm", _dicom(PhotometricInterpretation="EVIL")),
    "no pixels": (".dcm", _dicom(PixelData=...)),
    "a slope of nothing": (".dcm", _dicom(RescaleSlope=0)), "an endless slope": (".dcm", _dicom(RescaleSlope=1e300)),
    "many samples": (".dcm", _dicom(SamplesPerPixel=60_000)), "half a scan": (".dcm", _dicom(cut=9_000)),
    "a head alone": (".dcm", bytes(128) + b"DICM"),
    "a length of its own": (".dcm", bytes(128) + b"DICM" + b"\xff" * 900),
    "depth": (".dcm", bytes(128) + b"DICM" + SEQUENCE * 20_000),
    "a volume beyond the file": (".nii", _nifti((32_767,) * 3)), "no volume": (".nii", _nifti((0, 0, 0))),
    "negative sides": (".nii", _nifti((-4, 4, 4))), "seven axes": (".nii", _nifti((4, 4, 4, 1, 1, 1, 1))),
    "one axis": (".nii", _nifti((64,))), "half a volume": (".nii", _nifti(cut=370)),
    "a head of nothing": (".nii", bytes(348)),
    "axes that are none": (".nii", _nifti(_280=[NAN] * 12)),
    "flat axes": (".nii", _nifti(_280=[0.0] * 12)),
    "endless numbers": (".nii", _nifti(_112=[1e38, 3e38])),
    "an offset beyond": (".nii", _nifti(_108=[1e30])),
    "three gigabytes of zeros": (".nii.gz", lambda: gzip.compress(bytes(2**24), 1) * 190),
    "a gzip that is cut": (".nii.gz", lambda: gzip.compress(bytes(2**20))[:400]),
    "no gzip": (".nii.gz", b"\x1f\x8b" * 99),
}  # fmt: skip


def _scan(suffix, content):
    return _looked_through(
        suffix, content, "--image_suffixes", f"{suffix},.png", "--value_range=-160,240", "--max_image_pixels", 10**6
    )


# Recipes, and the institution's answers.

YAML = {
    "nothing": b"", "a list": b"- a\n", "a word": b"yes", "null bytes": bytes(99), "no UTF-8": b"seed: \xff",
    "UTF-16": "seed: 1".encode("utf-16"), "control": b"seed: \x1b[2J", "two documents": b"seed: 1\n---\nseed: 2\n",
    "a name twice": b"seed: 1\nseed: 2\n", "a tag": b"seed: !!python/object/apply:os.system ['touch ran']\n",
    "an anchor": b"seed: &a 1\nresolution: *a\n", "a merge": b"<<: {seed: 1}\n", "a tab": b"seed:\t\t- 1\n\t- 2\n",
    "a bomb": b"a: &a [x, x]\n" + b"".join(b"%c: &%c [*%c, *%c]\n" % (i + 1, i + 1, i, i) for i in range(97, 117)),
    "depth": b"seed: " + NESTED.encode(), "many parts": b"seed: [" + b"[]," * MANY + b"]",
    "a long number": b"seed: 1" + b"0" * 10**5, "a long name": b"a" * 10**5 + b": 1\n",
    "a name of lists": b"[1, 2]: 3\n",
    "a name of nothing": b"~: 3\n", "an endless text": b"seed: '" + b"a" * 9 * MANY, "open": b"seed: [1, 2",
    "letters that are none": b'seed: "\\UFFFFFFFF"\n', "half a letter": b'seed: "\\uD800"\n',
    "blanks": b" " * 2 * MANY,
}  # fmt: skip
RECIPES = {
    f"{name} {str(value)[:20]}": f"{name}: {json.dumps(value)}\n".encode()
    for name, values in {
        "seed": ("x", [1], {"a": 1}, 1e400, True), "output_dir": ("a\0b", ["x"], "/dev/null/x"),
        "config": ("itself.yaml",), "class_names": ([["a"]], {"a": 1}, ["a,b"]), "expert": ([1], "x", {"expert": {}}),
        "by_name": ({"other": {}}, {"recipe": 1}),
        "target_epsilon": ("nan", -1, [10]), "resolution": (10**30, 0.5, "8; rm"), "evil": (1,),
        "dataset_name": (["a"], {"path": "x"}), "train_batch_size": (-5, 10**30), "mixed_precision": ("fp8", 3),
    }.items()
    for value in values
}  # fmt: skip


def _recipe(content):
    def attempt(honest, folder):
        path = folder / "recipe.yaml"
        path.write_bytes(content)
        command("plan", "--method", "feta_pro", "--config", path, "--num_train_images", 1000, "--class_names", "a,b")

    return attempt


def _evidence(flag, suffix, content):
    """A file for the dossier, which the institution or an evaluation wrote."""

    def attempt(honest, folder):
        release, path = shutil.copytree(honest.model, folder / "release"), folder / f"file.{suffix}"
        digest = settled_digest(json.loads((release / RECEIPT_NAME).read_text()))
        path.write_bytes(content.replace(b"{digest}", digest.encode()))
        command("dossier", release, flag, path, "--output_dir", folder / "dossier")

    return attempt


ABOUT = '{"release": {"receipt_sha256": "{digest}"}, "receipt_sha256": "{digest}", '
REPORTS = {
    "nothing": b"", "a list": b"[]", "depth": NESTED.encode(), "another release": b'{"receipt_sha256": 3}',
    **{
        f"{field} {json.dumps(value)[:40]}": f'{ABOUT}"{field}": {json.dumps(value)}}}'.encode()
        for field, values in {
            "confusion": (3, [], {"a": 3}, {"a": {}}, {"a": {"per_class": 3}}, {"a": {"per_class": [{}]}},
                          {"a": {"per_class": [{"class": "x", "real_test_images": ENDLESS, "accuracy": 0.5}]}},
                          {"a": {"per_class": [{"class": "x", "real_test_images": 3, "accuracy": 7}]}},
                          {"<b>": {"per_class": [{"class": "<script>", "real_test_images": 3, "accuracy": 0.5}]}}),
            "conclusion": (3, "a" * 10**5, None), "confidence": ("x", ENDLESS), "auc": (3, {}, {"value": "x"}),
        }.items()
        for value in values
    },
}  # fmt: skip


# Folders of `save_to_disk`, which name files themselves.


def _saved_json(file, **changes):
    def tamper(saved, honest):
        path = saved / file
        found = {**json.loads(path.read_text()), **changes}
        found = {name: value for name, value in found.items() if value is not ...}
        path.write_text(json.dumps(found).replace("{host}", str(honest.host)))

    return tamper


def _saved_bytes(file, change):
    return lambda saved, honest: (saved / file).write_bytes(change((saved / file).read_bytes()))


ARROW, STATE, INFO = "data-00000-of-00001.arrow", "state.json", "dataset_info.json"
SAVED = {
    **{f"files {str(value)[:40]}": _saved_json(STATE, _data_files=value) for value in (
        [], 3, None, ..., [3], [{}], [{"filename": "none.arrow"}], [{"filename": "/dev/null"}],
        [{"filename": "../../host/data/train-00000-of-00001.parquet"}], [{"filename": "{host}/secret.txt"}],
    )},
    **{f"state {name} {str(value)[:30]}": _saved_json(STATE, **{name: value}) for name, value in (
        ("_format_type", "evil"), ("_format_columns", 3), ("_fingerprint", ["x"]), ("_split", "../x"), ("_split", 3),
        ("_indices_data_files", [{"filename": "../x"}]), ("_output_all_columns", "x"),
    )},
    **{f"features {str(value)[:40]}": _saved_json(INFO, features=value) for value in (
        3, None, {}, {"image": 3}, {"image": {"_type": "Evil"}}, {"image": {"_type": "Image"}},
        {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": 3}},
        {"image": {"_type": "Value", "dtype": "evil"}}, {"image": {"_type": "Image", "decode": "x"}},
    )},
    **{f"{file} is {words}": _saved_bytes(file, change) for file in (ARROW, STATE, INFO) for words, change in (
        ("nothing", lambda found: b""), ("cut", lambda found: found[:-40]), ("text", lambda found: b"no arrow"),
        ("deep", lambda found: NESTED.encode()),
    )},
    "an arrow of ones": _saved_bytes(ARROW, lambda found: found[:64] + b"\xff" * 256 + found[320:]),
    "an arrow that is a pipe": lambda saved, honest: with_pipe(saved, ARROW),
}  # fmt: skip


def _saved(tamper):
    def attempt(honest, folder):
        import datasets

        features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["left", "right"]))
        rows = [{"image": {"bytes": row[0], "path": None}, "label": row[2]} for row in honest_rows()]
        datasets.Dataset.from_list(rows, features).save_to_disk(str(folder / "saved"))
        tamper(folder / "saved", honest)
        data = DataSource(dataset_name=str(folder / "saved"), own_files=True)  # as of public images
        load_images(data, public_facts(data), folder / "cache")

    return attempt


# Headers of weights, in a release and in a model to begin with.


def _entry(**changes):
    """The first tensor's entry, changed."""

    def change(entries):
        name = next(name for name in entries if name != "__metadata__")
        found = {**entries[name], **changes}
        return {**entries, name: {key: value for key, value in found.items() if value is not ...}}

    return change


def _raw(make):
    def tamper(release):
        path = release / WEIGHTS
        path.write_bytes(make(path.read_bytes()))

    return tamper


def _headed(change):
    def make(content):
        (length,) = struct.unpack("<Q", content[:8])
        header = change(json.loads(content[8 : 8 + length]))
        header = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(header)) + header + content[8 + length :]

    return _raw(make)


HEADERS = {
    **{f"dtype {str(value)[:20]}": _headed(_entry(dtype=value)) for value in ("F8_E9", "", 3, None, ..., ["F32"])},
    **{f"shape {str(value)[:30]}": _headed(_entry(shape=value)) for value in (
        [-4, 1], [0.5], ["4"], [[4]], None, ..., 4, [2**63], [2**40, 2**40], [1] * 10**5, [0],
    )},
    **{f"offsets {str(value)[:30]}": _headed(_entry(data_offsets=value)) for value in (
        [-8, 0], [8, 0], [0, 2**63], [0], [0, 1, 2], ["0", "4"], None, ..., [3, 7], [0.0, 144.0],
    )},
    **{f"metadata {str(value)[:20]}": _headed(lambda found, value=value: {**found,
    "__metadata__": value}) for value in (
        3, [], {"a": 3}, {"format": None}, {"a": "b" * 2 * MANY},
    )},
    "a name twice": _headed(lambda found: json.dumps(found).encode().replace(b"{", b'{"conv_in.bias": {}, ', 1)),
    "no UTF-8": _headed(lambda found: json.dumps(found).encode().replace(b"conv_in", b"\xff\xfe", 1)),
    "a mark": _headed(lambda found: b"\xef\xbb\xbf" + json.dumps(found).encode()),
    "depth": _headed(lambda found: NESTED.encode()), "blanks": _headed(lambda found: b" " * 3 * MANY),
    "a long name": _headed(lambda found: {**found, "a" * MANY: {"dtype": "F32", "shape": [0],
    "data_offsets": [0, 0]}}),
    "no length": _raw(lambda content: bytes(8) + content[8:]), "an endless length": _raw(lambda content: b"\xff" * 16),
    "a length beyond": _raw(lambda content: struct.pack("<Q", len(content)) + content[8:]),
    "seven bytes": _raw(lambda content: content[:7]), "no data": _raw(lambda content: content[:3_000]),
    "more data": _raw(lambda content: content + bytes(64)), "a zip": _raw(lambda content: b"PK\x03\x04" + content),
}  # fmt: skip


def _begun_with(tamper):
    """A stranger's pipeline that is no release, as a model to begin with."""

    def attempt(honest, folder):
        model = shutil.copytree(honest.model, folder / "model")
        tamper(model)
        (model / RECEIPT_NAME).unlink()
        index = json.loads((model / INDEX).read_text())
        (model / INDEX).write_text(json.dumps({name: value for name, value in index.items() if name != "privacy"}))
        load_pretrained(str(model), PublicFacts(1000, (1, 8, 8), ("a", "b", "c")))

    return attempt


# Ledgers of a data set, which several releases share.


def _line_of(number, change):
    def tamper(path):
        lines = path.read_bytes().splitlines(keepends=True)
        lines[number] = change(lines[number])
        path.write_bytes(b"".join(lines))

    return tamper


def _field_of(number, **changes):
    return _line_of(number, lambda line: json.dumps({**json.loads(line), **changes}).encode() + b"\n")


LEDGERS = {
    "nothing": lambda path: path.write_bytes(b""), "text": lambda path: path.write_bytes(b"no ledger\n"),
    "a list": lambda path: path.write_bytes(b"[]\n"), "null bytes": lambda path: path.write_bytes(bytes(5_000)),
    "a pipe of the system": lambda path: (path.unlink(), path.mkdir()),
    "half a line": _line_of(1, lambda line: line[:90]),
    "a line twice": _line_of(1, lambda line: line + line), "no header": _line_of(0, lambda line: b""),
    "depth": _line_of(1, lambda line: NESTED.encode() + b"\n"), "no UTF-8": _line_of(1, lambda line: b"\xff" + line),
    "a number": _line_of(1, lambda line: b"3\n"), "digits": _line_of(1, lambda line: b"9" * 10**5 + b"\n"),
    **{f"header {name} {str(value)[:20]}": _field_of(0, **{name: value}) for name, value in (
        ("format", "x"), ("target_epsilon", ENDLESS), ("dataset_id", "other"), ("chain", "0" * 64), ("kind", 3),
        ("unit_of_privacy", "patient"), ("dataset_epsilon", "x"), ("release_id", None),
    )},
    **{f"row {name} {str(value)[:20]}": _field_of(1, **{name: value}) for name, value in (
        ("noise_multiplier", 1e9), ("steps_executed", 10**9), ("steps_reserved", -1), ("state", "gone"), ("query", 3),
        ("mechanism", "none"), ("sampling_probability", NAN), ("release_id", "another"), ("id", 7), ("chain", 3),
    )},
}  # fmt: skip


def _planned_beside(tamper):
    def attempt(honest, folder):
        from diffusers_dp.accounting.ledger import PrivacyLedger

        path = folder / "ledgers" / "clinic.jsonl"
        ledger = PrivacyLedger(
            path, target_epsilon=10.0, target_delta=1e-5, num_images=1000, dataset_id="clinic", release_id="first"
        )
        ledger.executed(ledger.reserve(row(8.0, name="frequency_features")), 1)
        ledger.close()
        tamper(path)
        command(
            "plan", "--method", "dp_merf", "--num_train_images", 1000, "--class_names", "a,b",
            "--dataset_id", "clinic", "--ledger_dir", path.parent, "--output_dir", folder / "run",
        )  # fmt: skip

    return attempt


# What else lies in the folder of a release.


def _beside(name, content=b"x"):
    def tamper(release):
        path = release / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    return tamper


def _many_files(release):
    for number in range(12_000):
        (release / f"{number}.txt").touch()


def _deep_folders(release):
    place = release
    for _ in range(80):
        place = place / "a"
    place.mkdir(parents=True)
    (place / "x.txt").touch()


def _link(name, target):
    def tamper(release):
        (release / name).unlink(missing_ok=True)
        (release / name).symlink_to(target)

    return tamper


ENTRIES = {
    "a name of no text": _beside(b"\xff\xfe.json"), "a name of line breaks": _beside("a\nb\x1b[31m.json"),
    "a long name": _beside("a" * 250), "a name that turns": _beside("\u202egnp.exe"),
    "a hidden file": _beside(".netrc"),
    "a pickle": _beside("pytorch_model.bin", b"\x80\x04K\x01."), "weights twice": _beside("unet/model.safetensors"),
    "a module": _beside("diffusers.py", b"raise SystemExit('ran')"), "code of a component": _beside("unet/unet.py"),
    "a start file": _beside("sitecustomize.py", b"raise SystemExit('ran')"), "twelve thousand files": _many_files,
    "eighty folders": _deep_folders, "a circle": _link("loop", "."), "a link out": _link("x.json", "/etc/passwd"),
    "a device": _link("zero", "/dev/zero"), "an index of no end": _link(INDEX, "/dev/zero"),
    "a card of no end": _link("README.md", "/dev/zero"),
    "a card of code": _beside("README.md", b"---\nlicense: !!python/object/apply:os.system ['touch ran']\n---\n"),
    "a card of templates": _beside("README.md", b"{{ x.__class__ }}{% for x in range(10**9) %}{% endfor %}"),
    "another pipeline": _beside("pipeline.py", b"raise SystemExit('ran')"),
    "samples that are none": _beside("samples.png"),
    "a pipe": lambda release: with_pipe(release, "x.json"),
    "samples that are a pipe": lambda release: with_pipe(release, "samples.png"),
    "a folder of git": _beside(".git/config", b"[core]\n\tfsmonitor = touch ran\n"),
    "adapters": _beside("unet/adapter_config.json", b"{}"),
    "a schedule of its own": _beside(SCHEDULE, b"[]"), "a configuration of nothing": _beside(CONFIG, b""),
}  # fmt: skip


def drawn_by(content):
    """The folder of an earlier `sample`, whose note says something else."""

    def attempt(honest, folder):
        drawn = shutil.copytree(honest.drawn, folder / "drawn")
        (drawn / "sampling.json").write_bytes(content)
        command("sample", honest.model, "--num_images", 4, "--num_inference_steps", 1, "--output_dir", drawn)
        raise AssertionError("Other images were taken for its own.")

    return attempt


NOTES = {
    "nothing": b"", "a list": b"[]", "depth": NESTED.encode(), "null bytes": bytes(999), "no UTF-8": b"\xff\xfe",
    "another": canonical_json({"num_images": 4}).encode(), "a large one": b" " * 30 * MANY,
}  # fmt: skip


def more_cases(report):
    """All attempts of these kinds, by their names.

    Args:
        report (`Callable`): Says what `verify` says of a release.
    """
    found = {
        f"receipt: {place} {words}": of_release(receipt_field(place, value), report=report)
        for place in FIELDS
        for words, value in WRONG_VALUES.items()
    }
    found |= {
        f"receipt of {words}": of_release(receipt_bytes(make), report=report) for words, make in RECEIPT_BYTES.items()
    }
    for who, stranger in (("stranger's", True), ("own", False)):
        for words, (suffix, content) in _tables().items():
            found[f"{who} table: {words}"] = _with_table(_written(suffix, content), stranger=stranger)
        for words, (columns, options) in ODD_PARQUET.items():
            found[f"{who} parquet: {words}"] = _with_table(
                lambda own, honest, columns=columns, options=options: _write_odd_parquet(own, columns, options),
                stranger=stranger,
            )
    for suffix in FORMATS:
        found |= {f"picture {suffix}: {words}": _damaged(suffix, damage) for words, damage in DAMAGE.items()}
    for words, (suffix, content) in DEEP.items():
        found[f"deep: {words}"] = _looked_through(suffix, content, "--value_range=0,4095")
    if find_spec("pydicom") and find_spec("nibabel"):
        found |= {f"scan: {words}": _scan(suffix, content) for words, (suffix, content) in SCANS.items()}
    found |= {f"recipe: {words}": _recipe(content) for words, content in {**YAML, **RECIPES}.items()}
    found |= {f"answers: {words}": _evidence("--context", "yaml", content) for words, content in YAML.items()}
    for flag in ("--evaluation", "--audit"):
        found |= {f"{flag}: {words}": _evidence(flag, "json", content) for words, content in REPORTS.items()}
    found |= {f"saved: {words}": _saved(tamper) for words, tamper in SAVED.items()}
    found |= {
        f"header: {words}": of_release(_resealed(tamper), report=report, pages=False)
        for words, tamper in HEADERS.items()
    }
    found |= {f"begun with {words}": _begun_with(tamper) for words, (tamper, _) in HOSTILE.items()}
    found |= {f"ledger: {words}": _planned_beside(tamper) for words, tamper in LEDGERS.items()}
    found |= {f"entry: {words}": of_release(tamper, report=report, pages=False) for words, tamper in ENTRIES.items()}
    return found | {f"note of {words}": drawn_by(content) for words, content in NOTES.items()}


def _resealed(tamper):
    return lambda release: spoil(release, tamper)
