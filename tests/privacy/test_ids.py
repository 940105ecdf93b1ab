# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What follows from an id follows from that id alone: attacks through the loader, the door and the ledger."""

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.data.images import load_images, public_facts
from diffusers_dp.data.records import DataSource
from diffusers_dp.data.shares import share_of
from diffusers_dp.errors import UsageError
from diffusers_dp.evaluation.images import Source, validation_split
from diffusers_dp.privacy.sensitive import SensitiveImages
from support.bands import bands_of, numbered, taken
from support.doors import Noiseless
from support.images import encode, image_bytes, save_parquet


COUNT, BANDS, SHAPE = 40, bands_of(4, rate=0.25), (1, 4, 4)
PATIENTS = [f"patient {i // 2}" for i in range(COUNT)]
BROKEN = b"no image"


def contents(changed=None):
    """Encoded images that tell their number; `changed` maps places to others."""
    images = [encode(Image.fromarray(image[0])) for image in numbered(COUNT)]
    for place, content in (changed or {}).items():
        images[place] = content
    return images


def table(folder, images=None, **columns):
    """A data set of one parquet file; columns of text or numbers."""
    kinds = {name: datasets.Value("int64" if type(values[0]) is int else "string") for name, values in columns.items()}
    features = datasets.Features({"image": datasets.Image(), **kinds})
    return save_parquet(folder, {"image": image_bytes(*(images or contents())), **columns}, features)


def read(folder, name, **flags):
    flags = {"image_shape": SHAPE, "num_train_images": COUNT, **flags}
    data = DataSource(**{"train_data_dir" if "class_names" in flags else "dataset_name": str(name)}, **flags)
    facts = public_facts(data)
    return facts, load_images(data, facts, folder / "cache")


def ledger_of(facts, arrays):
    return PrivacyLedger(
        None, target_epsilon=1e9, target_delta=1e-5, num_images=facts.num_units, accountant="rdp",
        unit_of_privacy="image" if arrays.units is None else "patient",
    )  # fmt: skip


def doors(facts, arrays, **more):
    more = {"ids": arrays.ids, "ledger": ledger_of(facts, arrays), **more}
    return SensitiveImages(
        arrays.images, arrays.labels, arrays.readable, num_images=facts.num_images, capacity=facts.capacity,
        image_shape=SHAPE, units=arrays.units, num_units=facts.declared_units, class_names=facts.class_names, **more,
    )  # fmt: skip


def turns(facts, arrays, bands=BANDS, **more):
    """Whether each image takes part in a step, bool `[4, COUNT]`: all of a group do, at bq = 1."""
    door = doors(facts, arrays, **more)
    return taken(door, None, 4, count=COUNT, mechanism=bands, generator=Noiseless())


def units_of_table(folder, patients, images=None):
    """The turns under two keys: a unit may be in one group by chance."""
    name = table(folder, images, patient=patients)
    found = read(folder, name, unit_column="patient", num_train_units=30)
    return np.stack([turns(*found, bands=bands_of(4, seed, rate=0.25)) for seed in range(3)])


LOST = {
    "without id": lambda ids, images: (ids.__setitem__(0, None), ids.__setitem__(1, None)),
    "with empty text": lambda ids, images: (ids.__setitem__(0, " "), ids.__setitem__(1, "")),
    "damaged": lambda ids, images: (images.__setitem__(0, BROKEN), images.__setitem__(1, None)),
    "of another patient": lambda ids, images: (ids.__setitem__(0, ids[9]), ids.__setitem__(1, ids[9])),
}


@pytest.mark.parametrize("lost", LOST)
def test_a_unit_that_is_missing_moves_no_other_unit(tmp_path, lost):
    """The attack: one patient's id is lost, and with it 28 of 38 other images had changed their group."""
    whole = units_of_table(tmp_path / "whole", PATIENTS)
    assert (whole.sum(1) == 1).all(), "each image has its one turn, with all of its unit"
    assert (whole[..., ::2] == whole[..., 1::2]).all()
    patients, images = list(PATIENTS), contents()
    LOST[lost](patients, images)
    less = units_of_table(tmp_path / "less", patients, images)
    assert np.array_equal(whole[..., 2:], less[..., 2:])
    assert lost == "of another patient" or not less[..., :2].any()


@pytest.mark.parametrize("kind", ["class folders", "image folder"])
def test_a_file_that_is_missing_moves_no_other(tmp_path, kind):
    """Ids of files are their paths below the data folder, wherever that is."""
    flags = {"class_names": ("a", "b")} if kind == "class folders" else {}
    found = []
    for name, missing in (("whole", ()), ("less", (0, 17))):
        for place, content in enumerate(contents()):
            path = (
                tmp_path / name / "ab"[place % 2] / f"{place:02}.png" if flags else tmp_path / name / f"{place:02}.png"
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            if place not in missing:
                path.write_bytes(content)
        facts, arrays = read(tmp_path / f"cache of {name}", tmp_path / name, **flags)
        assert facts.ids == "path"
        found.append(turns(facts, arrays))
    there = np.setdiff1d(np.arange(COUNT), [0, 17])
    assert np.array_equal(found[0][:, there], found[1][:, there])
    assert (found[0].sum(0) == 1).all() and not found[1][:, [0, 17]].any()


def test_a_damaged_row_keeps_its_number(tmp_path):
    """Without keys, the number of a row is its id: the list of rows is public."""
    facts, arrays = read(tmp_path / "a", table(tmp_path / "a"))
    assert facts.ids == "row"
    less = turns(*read(tmp_path / "b", table(tmp_path / "b", contents({0: BROKEN, 5: None}))))
    there = np.setdiff1d(np.arange(COUNT), [0, 5])
    assert np.array_equal(turns(facts, arrays)[:, there], less[:, there]) and not less[:, [0, 5]].any()


@pytest.mark.parametrize("count", [2, 3])
def test_shares_of_processes_do_not_move_a_group(tmp_path, count):
    """Each process finds those of its units whose turn it is."""
    from diffusers_dp.distributed.processes import Processes

    class One(Processes):
        def __init__(self, index):
            super().__init__()
            self.index, self.count = index, count

    facts, arrays = read(tmp_path, table(tmp_path, patient=PATIENTS), unit_column="patient", num_train_units=30)

    def groups(arrays, **more):
        return doors(facts, arrays, **more)._records.groups(BANDS.num_groups, BANDS.group_key)

    together = groups(arrays)
    apart = [groups(share_of(arrays, i, count), processes=One(i)) for i in range(count)]
    for group in range(BANDS.num_groups):
        found = [int(unit) * count + index for index, each in enumerate(apart) for unit in each[group]]
        assert sorted(found) == together[group].tolist()


def test_groups_of_units_need_the_ids_of_the_units(tmp_path):
    """Numbers that follow from who came first are no ids."""
    facts, arrays = read(tmp_path, table(tmp_path, patient=PATIENTS), unit_column="patient", num_train_units=30)
    ledger = ledger_of(facts, arrays)
    door = doors(facts, arrays, ids=None, ledger=ledger)
    with pytest.raises(ValueError, match="ids of the units"):
        taken(door, None, 4, count=COUNT, mechanism=BANDS)
    assert not ledger.rows


def test_ids_of_any_length_and_of_numbers(tmp_path):
    keys = ["x" * 10_000 + str(i) for i in range(COUNT)]
    assert (turns(*read(tmp_path / "a", table(tmp_path / "a", key=keys), key_column="key")).sum(0) == 1).all()
    numbers = list(range(100, 100 + COUNT))
    assert (turns(*read(tmp_path / "b", table(tmp_path / "b", key=numbers), key_column="key")).sum(0) == 1).all()


def test_two_records_of_one_key_are_refused(tmp_path):
    """By a sentence, before an image is decoded; two without a key add nothing."""
    keys = [f"key {i}" for i in range(COUNT)]
    name = table(tmp_path / "a", key=[keys[1], *keys[1:]])
    with pytest.raises(UsageError, match="--key_column 'key' gives two records one id"):
        read(tmp_path / "a", name, key_column="key")
    _, arrays = read(tmp_path / "b", table(tmp_path / "b", key=[None, None, *keys[2:]]), key_column="key")
    assert arrays.readable.sum() == COUNT - 2


def held_out(facts, arrays):
    """Numbers of the images that are not among those to train on."""
    values = arrays.images[arrays.readable][:, 0, 0, 0].astype(int)
    return set(range(1, COUNT + 1)) - set(values.tolist())


def test_a_missing_record_moves_no_other_between_training_and_validation(tmp_path):
    """Nor a whole unit; N, rates and divisors are the declared numbers, and the door holds all that may come."""
    flags = {"unit_column": "patient", "num_train_units": 30, "num_train_images": 30, "validation_size": 10}
    facts, arrays = read(tmp_path / "a", table(tmp_path / "a", patient=PATIENTS), **flags)
    assert (facts.num_images, facts.held_out, facts.capacity, facts.num_units) == (30, 10, 40, 30)
    whole = held_out(facts, arrays)
    assert 0 < len(whole) < COUNT and all((i in whole) == (i + 1 in whole) for i in range(1, COUNT, 2))
    patients = [None, None, *PATIENTS[2:]]
    less = held_out(*read(tmp_path / "b", table(tmp_path / "b", patient=patients), **flags))
    assert whole - {1, 2} == less - {1, 2}


def test_more_images_than_expected_are_no_refusal(tmp_path):
    """How many are held out is private: the door has room for all, and the divisor stays."""
    sizes = set()
    for start in range(6):
        keys = [f"set {start} {i}" for i in range(COUNT)]
        folder = tmp_path / str(start)
        facts, arrays = read(
            folder, table(folder, key=keys), key_column="key", num_train_images=30, validation_size=10
        )
        doors(facts, arrays)
        sizes.add(len(arrays.images))
    assert min(sizes) < 30 < max(sizes)


def image_folder(folder, names, metadata=None):
    for name, content in zip(names, contents()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if metadata is not None:
        datasets.Dataset.from_dict(metadata).to_parquet(folder / "metadata.parquet")
    return folder


@pytest.mark.parametrize("first", ["a.png", "scan_train_1.png", "scan-test-1.png", "dev.png"])
def test_the_name_of_a_file_decides_about_no_other(tmp_path, first):
    """`datasets` looks for splits in all names."""
    names = [first, *(f"img{i:02}.png" for i in range(1, COUNT))]
    _, arrays = read(tmp_path / "c", image_folder(tmp_path / "images", names))
    assert arrays.readable.all() and len(arrays.images) == COUNT


def test_a_file_beside_the_images_decides_about_none(tmp_path):
    """`datasets` goes by the most frequent suffix."""
    folder = image_folder(tmp_path / "images", [f"{i:02}.png" for i in range(COUNT)])
    for number in range(2 * COUNT):
        (folder / f"{number:02}.json").write_text("{}")
    assert len(read(tmp_path / "c", folder)[1].images) == COUNT


def test_ids_of_metadata_with_types(tmp_path):
    names = [f"{i:02}.png" for i in range(COUNT)]
    folder = image_folder(tmp_path / "images", names, {"file_name": names, "patient": PATIENTS})
    flags = {"unit_column": "patient", "num_train_units": 30}
    other = table(tmp_path / "table", patient=PATIENTS)
    found = [turns(*read(tmp_path / name, place, **flags)) for name, place in (("c", folder), ("d", other))]
    assert np.array_equal(*found)


@pytest.mark.parametrize("column", ["patient", "label", "path"])
def test_text_that_is_damaged_is_of_its_own_record_alone(tmp_path, column):
    """Written by others; it stops no run, and no message shows a byte of it."""
    bad = pa.array([b"\xff\xfe", *(f"p{i}".encode() for i in range(1, COUNT))], pa.binary())
    text = pa.StringArray.from_buffers(COUNT, bad.buffers()[1], bad.buffers()[2])
    good = pa.array([f"p{i}" for i in range(COUNT)])
    image = pa.StructArray.from_arrays(
        [pa.array(contents(), pa.binary()), text if column == "path" else good], ["bytes", "path"]
    )
    columns = {"image": image, "patient": text if column == "patient" else good}
    flags = {"unit_column": "patient", "num_train_units": COUNT}
    if column == "label":
        columns["label"], flags["class_names"] = text, tuple(f"p{i}" for i in range(COUNT))
    (tmp_path / "set").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "set" / "train.parquet")
    data = DataSource(dataset_name=str(tmp_path / "set"), image_shape=SHAPE, num_train_images=COUNT, **flags)
    arrays = load_images(data, public_facts(data), tmp_path / "cache")
    assert arrays.readable.sum() == COUNT - (column != "path")


def test_the_class_that_means_none_is_no_unit(tmp_path):
    features = datasets.Features({"image": datasets.Image(), "patient": datasets.ClassLabel(names=["a", "b"])})
    columns = {"image": image_bytes(*contents()), "patient": [-1, -1, *[i % 2 for i in range(COUNT - 2)]]}
    name = save_parquet(tmp_path, columns, features)
    _, arrays = read(tmp_path, name, unit_column="patient", num_train_units=2)
    assert arrays.readable.sum() == COUNT - 2


@pytest.mark.parametrize("declared", [30, 60])
def test_evaluation_holds_out_what_training_did(tmp_path, declared):
    """Whatever N is declared to be: the threshold is that of training."""
    name = table(tmp_path, contents({3: BROKEN}))
    facts, arrays = read(tmp_path, name, num_train_images=declared, validation_size=10)
    found = Source("--real", name).load("train", SHAPE, resize=False, cache_dir=tmp_path / "other")
    train, validation = validation_split(found, 10, facts.num_images)
    assert train.images.tobytes() == arrays.images[arrays.readable].tobytes()
    assert held_out(facts, arrays) - {4} == set(validation.images[:, 0, 0, 0].tolist())
    with pytest.raises(UsageError, match="fewer than the real images"):
        validation_split(found, 10, 20)
