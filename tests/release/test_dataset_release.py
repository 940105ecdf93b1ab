# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A release of images: built, read by strangers, pushed as a data set, browsed on the page, judged."""

import io
import json
import zipfile

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from diffusers_dp import cli, load_verified, verify
from diffusers_dp.app import views
from diffusers_dp.app.downloads import dataset_zip
from diffusers_dp.app.drawing import read_order
from diffusers_dp.app.shelf import Shelf
from diffusers_dp.commands.app import Limits
from diffusers_dp.errors import IntegrityError
from diffusers_dp.release import artefacts
from diffusers_dp.release.allow_list import dataset_files, dataset_index
from diffusers_dp.release.artefacts import DatasetArtefact
from diffusers_dp.release.build import build_release
from diffusers_dp.release.image_tables import probabilities_of, to_png
from diffusers_dp.release.push import files_to_push, push_release
from diffusers_dp.release.receipt import RunRecord
from support.hub_stand_in import OWNER, hub  # noqa: F401 (a fixture)
from support.releases import made_up, make_ledger
from support.runs import files
from support.untrusted_images import MANY, png, write_index, write_repeated


NAMES = ["left", "empty", "right"]
LIMITS = Limits(max_images=8, max_steps=6, max_model_mb=10)


def make(folder, images, labels=None, names=None, ledger=None):
    folder.mkdir(parents=True, exist_ok=True)
    record = RunRecord(ledger=ledger or make_ledger(folder), method=made_up("pe"))
    return build_release(folder, DatasetArtefact(images, labels, names, "They are a test."), record)


@pytest.fixture
def images():
    return torch.randint(256, (9, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def release(tmp_path, images, monkeypatch):
    """Of three shards."""
    monkeypatch.setattr(artefacts, "IMAGES_PER_SHARD", 4)
    return make(tmp_path / "run", images, torch.arange(9) % 3, NAMES)


def pixels(image):
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(*image.size, -1).permute(2, 0, 1)


def test_what_goes_in_comes_out(release, images, tmp_path):
    assert files(release) == {"README.md", "privacy_receipt.json", *dataset_files(3)}
    assert verify.report(release) == 0 and verify.card_agrees(release, json.loads(
        (release / "privacy_receipt.json").read_text()
    ))  # fmt: skip
    alone = datasets.load_dataset(str(release), split="train", cache_dir=str(tmp_path / "cache"))
    for found in (load_verified(release), alone):
        assert found["label"] == [0, 1, 2] * 3 and found.features["label"].names == NAMES
        assert all(torch.equal(pixels(image), own) for image, own in zip(found["image"], images, strict=True))
    assert Image.open(release / "samples.png").mode == "RGB"
    assert "They are a test." in (release / "README.md").read_text()


def test_a_class_of_one_image_hides_none_of_the_others(tmp_path, images):
    release = make(tmp_path / "run", images, torch.tensor([0] * 8 + [2]), NAMES)
    shown = np.asarray(Image.open(release / "samples.png"))[:, -8 * 58 :]  # tiles of 56 pixels
    assert (shown[:56, -56:] < 255).any() and (shown[58:, 100:] == 255).all()


def test_soft_labels_of_unequal_lengths_are_refused():
    with pytest.raises(ValueError):
        probabilities_of(pa.chunked_array([[[0.4, 0.6, 0.0], [1.0]]]), 2)


def test_releases_in_folders_of_one_name_are_told_apart(tmp_path, images):
    """All our releases are called `release`, and a cache serves them all."""
    made = [make(tmp_path / name, images[:number]) for name, number in (("first", 9), ("second", 5))]
    found = [
        datasets.load_dataset(str(release), split="train", cache_dir=str(tmp_path / "cache")).num_rows
        for release in (*made, made[0])
    ]
    assert found == [9, 5, 9]


def test_what_was_changed_is_not_loaded(release):
    shard = release / dataset_files(3)[2]
    (release / dataset_files(3)[3]).write_bytes(shard.read_bytes())
    with pytest.raises(IntegrityError, match="its hash differs"):
        load_verified(release)
    with pytest.raises(IntegrityError, match="is not pushed"):
        files_to_push(release)
    index = release / "model_index.json"
    index.write_text(json.dumps({**dataset_index(release), "num_shards": 2}))
    with pytest.raises(IntegrityError, match="holds no images of this library"):
        load_verified(release, require_dp=False)


@pytest.mark.parametrize(
    "table, options",
    [
        ({"more": bytes(200_000)}, {"dictionary_pagesize_limit": 2**22}),  # one value for all rows
        ({"picture": None}, {}),
        ({"path": "/etc/hostname"}, {}),
        ({"shape": (3, 8, 9)}, {}),
        ({"shape": (1, 8, 8)}, {}),
        ({"rows": 5}, {}),
        ({}, {"compression": "zstd"}),  # which may unpack to a thousand times its size
    ],
)
def test_what_unpacks_to_more_than_it_says_is_not_loaded(release, images, table, options):
    """Files of a stranger whose `model_index.json` stayed as it was; the first shard has four rows."""
    shape = table.get("shape", (3, 8, 8))
    picture = to_png(artefacts.picture_of(torch.zeros(shape, dtype=torch.uint8).numpy())) + table.get("more", b"")
    own = {"bytes": table.get("picture", picture), "path": table.get("path")}
    shard, rows = release / dataset_files(3)[2], table.get("rows", 4)
    assert load_verified(release, require_dp=False).num_rows == 9
    as_it_was = parquet.read_table(shard).slice(0, 0)
    columns = [pa.array([own] * rows, as_it_was.schema.field("image").type), pa.array([0] * rows, pa.int64())]
    parquet.write_table(pa.Table.from_arrays(columns, schema=as_it_was.schema), shard, **options)
    with pytest.raises(IntegrityError, match="holds no images of this library"):
        load_verified(release, require_dp=False)


def test_it_goes_to_the_hub_as_a_data_set(hub, release, capsys):  # noqa: F811
    address = push_release(release, f"{OWNER}/pictures")
    assert "datasets/" in address
    (name, there), = hub.repositories.items()  # fmt: skip
    assert name == f"datasets/{OWNER}/pictures" and set(there) - {".gitattributes"} == files(release)
    assert load_verified(f"{OWNER}/pictures")["label"] == [0, 1, 2] * 3
    assert Shelf([f"{OWNER}/pictures"], LIMITS).open(f"{OWNER}/pictures").class_names == tuple(NAMES)
    (release / "README.md").unlink()
    with pytest.raises(SystemExit) as ended:
        cli.main(["push", str(release), "--hub_model_id", "pictures"])
    assert ended.value.code == 4 and "README.md is missing" in capsys.readouterr().err


def test_the_page_browses_it(release):
    """By class, the same images for a seed, all of a class before one comes again; the download is the release."""
    shelf = Shelf([str(release)], LIMITS)
    opened = shelf.open(shelf.names[0])
    assert opened.holds_images and opened.class_names == tuple(NAMES)
    order = read_order(opened, (["right"], 6, 1, 1, "dpm"), LIMITS)
    (drawn,) = shelf.draw(opened, order)
    own = [image.tobytes() for image in load_verified(release).select([2, 5, 8])["image"]]
    shown = [Image.open(io.BytesIO(content)).tobytes() for content in drawn.images]
    assert sorted(shown[:3]) == sorted(own) and shown[3:] == shown[:3] and drawn.names == ["right"] * 6
    (again,) = shelf.draw(opened, order)
    assert again.images == drawn.images and "Images of the data set" in views.drawing(drawn)
    assert "Whoever sees this data set" in views.guarantee(opened)
    archive = zipfile.ZipFile(io.BytesIO(dataset_zip(drawn)))
    assert set(archive.namelist()) == files(release)
    assert archive.read("privacy_receipt.json") == (release / "privacy_receipt.json").read_bytes()
    shelf.load(opened).close()


def test_the_page_reads_no_image_in_its_own_process(release, monkeypatch):
    """What unpacks to more than it is shows in the process that ends with it; an index is read, and has bounds."""
    opened = Shelf([str(release)], LIMITS).open(str(release))
    write_repeated(release, png(mode="RGB"), place=dataset_files(3)[2])
    write_index(release, class_names=NAMES, image_shape=[3, 8, 8], num_images=MANY)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile", None)
    shelf = Shelf([str(release)], LIMITS, allow_unverified=True)
    again = shelf.open(str(release))
    assert again.class_names == opened.class_names == tuple(NAMES)
    with pytest.raises(IntegrityError, match="holds no images of this library"):
        shelf.load(again)
    for index in ({"image_shape": [3, 8, 600]}, {"image_shape": [3, 8]}, {"class_names": ["a"] * 10_001},
                  {"num_images": 10**9}, {"num_images": "4"}, {"image_shape": 8}):  # fmt: skip
        write_index(release, **index)
        with pytest.raises(IntegrityError, match="describes no images of|more than 10,000"):
            Shelf([str(release)], LIMITS, allow_unverified=True).open(str(release))


def test_it_is_judged_as_images_and_does_not_draw(release, tmp_path, capsys):
    """The report states its guarantee; whoever reads private images for it is counted in its receipt."""
    output = tmp_path / "report"
    given = [str(release), "--output_dir", str(output), "--num_images", "2"]
    for command, words in ((["evaluate", "--model"], "evaluate --images"), (["sample"], "is a release of images")):
        with pytest.raises(SystemExit) as ended:
            cli.main([*command, *given])
        assert ended.value.code == 2 and words in capsys.readouterr().err
    given = "--test_split train --metrics fid --extractors pixels --classifiers logreg".split()
    cli.main(["evaluate", "--images", str(release), "--real", str(release), *given, "--output_dir", str(output)])
    assert json.loads((release / "privacy_receipt.json").read_text())["private_evaluations"] == 1
    assert verify.report(release) == 0
