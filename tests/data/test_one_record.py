# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""How one record is read depends on that record alone: neighbours of small data sets, through the real loader."""

import os
import re
import tarfile
import tempfile
import unicodedata
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diffusers_dp.cli import main
from diffusers_dp.data.dataset_source import _asked
from diffusers_dp.data.images import load_images, public_facts
from diffusers_dp.data.records import DataSource
from diffusers_dp.data.sources import open_source
from diffusers_dp.data.values import why_no_label
from diffusers_dp.errors import UsageError
from support.few import few
from support.images import config_of, encode, grey, read_images
from support.tables import CHANGED, COUNT, LABELS, NAMES, PATIENTS, folder_of, picture, read, rows, write_table


#: What a cell may hold that is no class, or no plain one.
CELLS = [
    "", " ", "NA", "N/A", "nan", "NaN", "null", "None", "<NA>", "unknown", "CAT", " cat", "cat ", "0", "1", "7", "-1",
    "0.0", "0.5", "1e999", "inf", "Infinity", "-0", "007", "true", "True", "FALSE", "no", "1_0", "٣", "²", "é",
    "e\u0301", "🐈", "=1+1", "a" * 300, "../x", "cat,dog", '"', '""', "'", "\\", "\\n", "2026-11-28", "0x10", "12:30",
    "9" * 400, "\ufeffcat", "p0", "#N/A", "\t",
]  # fmt: skip
#: Values that only JSON or Parquet can hold.
VALUES = [None, 0, 1, 7, -1, 0.0, 0.5, 1e300, float("nan"), float("inf"), True, False, 10**30, [], [1], {}, {"a": 1}]
LINES = [
    b"", b" ", b'"', b'scan 2.png,"cat', b'scan 2.png,"cat,p1', b"scan 2.png,cat", b"scan 2.png,cat,p1,more",
    b"scan 2.png", b",,", b"\xff\xfe,cat,p1", b"scan 2.png,cat,\xe9", b"scan 2.png,\x00,p1", b"scan 2.png,c\rat,p1",
    b'scan 2.png,cat,"p1', b'scan 2.png,cat,"p1"x', b"scan 2.png;cat;p1", b"#", b"{}",
    b'scan 2.png,cat,p1"', b'"scan 2.png""",cat,p1', b'{"file_name": "scan 2.png"', b"[1, 2]", b"null", b"NaN",
    b'"text"', b"[" * 5000,
    b'{"file_name": "scan 2.png", "file_name": "scan 2.png", "label": "cat", "patient": "p1"}', b'{"patient": "p1"}',
    b'{"file_name": {"path": "scan 2.png"}, "label": "cat"}',
    b'{"file_name": "scan 2.png", "label": "\\ud800", "patient": "\\ud800"}',
]  # fmt: skip


def write_parquet(path, records):
    """Values of one Python type in each column, as the schema of a file has them."""
    kinds = {"label": pa.string(), "patient": pa.string(), "file_name": pa.string()}
    pq.write_table(pa.Table.from_pylist(records, pa.schema(kinds)), path)


def others(found):
    return {number: facts for number, facts in found.items() if number != CHANGED}


#: What is read beside a column that changes.
FLAGS = {"label": {}, "patient": {"unit_column": "patient"}, "file_name": {"key_column": "file_name"}}
TABLES = ["metadata.csv", "metadata.jsonl", "table.csv", "table.jsonl", "metadata.parquet"]


@pytest.mark.parametrize(("kind", "channels"), few([*((kind, 1) for kind in TABLES), ("metadata.csv", 3)], 0, 3))
def test_a_cell_changes_its_own_record_alone(tmp_path, kind, channels):
    folder = folder_of(tmp_path, channels)
    table = folder / kind
    place = folder if kind.startswith("metadata") else table
    write = write_parquet if table.suffix == ".parquet" else write_table
    write(table, rows())
    cells = CELLS[:12] if channels == 3 else CELLS + (VALUES if table.suffix == ".jsonl" else [])
    for column, flags in FLAGS.items():
        write(table, rows())
        whole = read(place, channels, **flags)
        assert len(whole) == COUNT
        for cell in cells:
            write(table, rows(**{column: cell}))
            assert others(read(place, channels, **flags)) == others(whole), (column, cell)


@pytest.mark.parametrize("kind", few(["metadata.csv", "metadata.jsonl", "table.csv", "table.jsonl"], 0, 3))
def test_a_damaged_line_is_no_record_and_counts(tmp_path, kind):
    """It changes its own record alone. N, the declared number, has room for it."""
    folder = folder_of(tmp_path)
    place = folder if kind.startswith("metadata") else folder / kind
    write_table(folder / kind, rows())
    whole = read(place, unit_column="patient")
    lines = (folder / kind).read_bytes().split(b"\n")
    for number, line in enumerate(LINES):
        lines[CHANGED + kind.endswith(".csv")] = line
        (folder / kind).write_bytes((b"\n", b"\r\n")[number % 2].join(lines))
        found = read(place, unit_column="patient")
        assert others(found) == others(whole), line
        if not line.strip() or (kind.endswith(".csv") and line == b'scan 2.png,cat,p1"'):  # an odd id is one
            continue
        source = open_source(DataSource(dataset_name=str(place), class_names=("cat", "dog"), unit_column="patient"))
        assert CHANGED not in found, line
        assert source.count() == len(source.records(("cat", "dog"), tmp_path)) == COUNT, line


def test_lines_without_a_file_count_as_damaged_records(tmp_path):
    folder = folder_of(tmp_path, missing=(CHANGED,))
    for kind in ("metadata.csv", "table.csv"):
        write_table(folder / kind, rows())
        source = open_source(DataSource(dataset_name=str(folder if kind == "metadata.csv" else folder / kind)))
        assert source.count() == len(source.records(None, tmp_path)) == COUNT
        (folder / kind).unlink()


@pytest.mark.parametrize("kind", ["metadata.csv", "metadata.jsonl", "table.csv", "metadata.parquet"])
def test_a_record_or_its_file_or_its_line_is_gone(tmp_path, kind):
    write = write_parquet if kind.endswith("parquet") else write_table
    whole, found = None, []
    for number, (missing, gone) in enumerate([((), False), ((CHANGED,), False), ((), True), ((CHANGED,), True)]):
        folder = folder_of(tmp_path / str(number), missing=missing)
        write(folder / kind, [row for row in rows() if not gone or row["file_name"] != NAMES[CHANGED]])
        place = folder if kind.startswith("metadata") else folder / kind
        found = [read(place, **flags) for flags in (*FLAGS.values(), {"class_names": None})]
        whole = whole or found
        assert [others(each) for each in found] == [others(each) for each in whole]
        assert all((CHANGED in each) == (number == 0) for each in found)


def test_two_lines_of_one_file_are_refused_in_one_sentence(tmp_path):
    folder = folder_of(tmp_path)
    said = set()
    for name in (NAMES[0], f"./{NAMES[0]}", f"x/../{NAMES[0]}", str(folder / NAMES[0])):
        for kind in ("csv", "jsonl"):
            write_table(folder / f"metadata.{kind}", rows(file_name=name))
            with pytest.raises(UsageError) as refusal:
                read(folder)
            said.add(str(refusal.value))
            (folder / f"metadata.{kind}").unlink()
    assert len(said) == 1 and NAMES[0] not in said.pop()


def test_the_words_for_no_value_are_no_unit(tmp_path):
    """As text they would make one unit of all who have none, and of strangers neighbours."""
    folder = folder_of(tmp_path)
    for word in ("", "NA", "N/A", "nan", "null", "None", " ", "<NA>"):
        write_table(folder / "metadata.csv", [dict(row, patient=word) for row in rows()])
        assert read(folder, unit_column="patient") == {}
        write_table(folder / "metadata.csv", [dict(row, label=word) for row in rows()])
        assert read(folder) == {}
        if word.strip():  # a class that is called so is one, and so is a file
            assert len(read(folder, class_names=(word, "dog"))) == COUNT
    (folder / "NA").mkdir()
    (folder / "NA" / "nan.png").write_bytes(picture(COUNT))
    write_table(folder / "metadata.csv", [*rows(), {"file_name": "NA/nan.png", "label": "cat", "patient": "p7"}])
    assert len(read(folder, num_train_images=COUNT + 1)) == COUNT + 1


def test_ids_are_compared_as_they_are_spelled_and_numbers_by_value(tmp_path):
    folder = folder_of(tmp_path)
    spelled = ["7", "7.0", "007", " 7 ", "seven", "Seven"]
    write_table(folder / "metadata.csv", [dict(row, patient=text) for row, text in zip(rows(), spelled)])
    digests = [digest for _, digest in read(folder, unit_column="patient").values()]
    assert len(set(digests)) == 5 and digests[0] == digests[3]
    (folder / "metadata.csv").unlink()
    numbers = [7, 7.0, "7", 8, 7.5, True]
    write_table(folder / "metadata.jsonl", [dict(row, patient=value) for row, value in zip(rows(), numbers)])
    found = read(folder, unit_column="patient")
    digests = [digest for _, digest in found.values()]
    assert set(found) == {0, 1, 2, 3} and digests[0] == digests[1] and len(set(digests)) == 3


@pytest.mark.parametrize(
    ("names", "labels", "found"),
    [
        (("1", "2", "10"), ["1", "2", "10", "10.0", "0", "3"], [0, 1, 2, 2, None, None]),
        (("-1", "0", "1"), ["-1", "0", "1", "-1.0", "+1", "2"], [0, 1, 2, 0, 2, None]),
        (("3", "5", "7"), [3, 5, 7, 3.0, "05", 5.5], [0, 1, 2, 0, 1, None]),
        (("cat", "dog"), ["0", "1", "2", "-1", "dog", "1.0"], [0, 1, None, None, 1, 1]),
        (("no", "yes"), [True, False, "true", "False", 1, "yes"], [1, 0, 1, 0, 1, 1]),
        (("true", "other"), ["true", "other", True, False, 0, "True"], [0, 1, None, None, None, None]),
        (("True", "False", "unknown"), ["True", "true", True, 1, "False", "unknown"], [0, None, None, None, 1, 2]),
        (("1.0", "2.0"), ["1.0", "1", 1, 2.0, True, 3], [0, 0, 0, 1, 0, None]),
        (("b\u00e9", "x"), ["be\u0301", "b\u00e9", " be\u0301", 0, "x", "be\u0300"], [0, 0, 0, 0, 1, None]),
        (("7", "other"), ["7", "other", "0", "1", 7, "7.0"], [0, 1, None, None, None, None]),
        (("01", "1"), ["01", "1", "001", 1, "1.0", ""], [0, 1, None, None, None, None]),
    ],
)
def test_labels_match_by_name_then_by_value_then_by_declared_position(tmp_path, names, labels, found):
    folder = folder_of(tmp_path)
    write_table(folder / "metadata.jsonl", [dict(row, label=label) for row, label in zip(rows(), labels)])
    read_ = read(folder, class_names=names)
    assert [read_.get(number, (None,))[0] for number in range(COUNT)] == found


def write_images(path, labels, kind):
    images = [{"bytes": picture(number), "path": None} for number in range(COUNT)]
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    pq.write_table(pa.table({"image": pa.array(images, struct), "label": pa.array(labels, kind)}), path)


@pytest.mark.parametrize(
    ("kind", "names", "labels", "found"),
    [
        (pa.float64(), ("3", "5", "7"), [3.0, 5.0, None, float("nan"), 5.5, 7.0], [0, 1, None, None, None, 2]),
        (pa.bool_(), ("no", "yes"), [True, False, None, True, True, False], [1, 0, None, 1, 1, 0]),
        (pa.string(), ("cat", "dog"), ["cat", "NA", "dog ", "DOG", "1", None], [0, None, 1, None, 1, None]),
        (pa.large_string(), ("0", "1"), ["1", "0", "7", None, "1", "0"], [1, 0, None, None, 1, 0]),
        (pa.int64(), ("cat", "dog"), [0, 1, 2, -1, None, 1], [0, 1, None, None, None, 1]),
    ],
)
def test_labels_of_parquet(tmp_path, kind, names, labels, found):
    write_images(tmp_path / "train.parquet", labels, kind)
    data = DataSource(dataset_name=str(tmp_path), class_names=names, num_train_images=COUNT, image_shape=(1, 4, 4))
    arrays = load_images(data, public_facts(data), tmp_path / "cache")
    read_ = [label if ok else None for label, ok in zip(arrays.labels.tolist(), arrays.readable.tolist())]
    assert read_ == found


def test_files_of_different_schemas_are_refused_by_name(tmp_path):
    write_images(tmp_path / "a.parquet", [0] * COUNT, pa.int64())
    write_images(tmp_path / "b.parquet", [0.0] * COUNT, pa.float64())
    with pytest.raises(UsageError, match="b.parquet has other columns or types than .*a.parquet"):
        read(tmp_path, num_train_images=2 * COUNT)


def categories(kind=pa.string()):
    """What pandas writes, with a text that is not UTF-8."""
    raw = pa.array([b"cat", b"\xff"], pa.large_binary() if kind == pa.large_string() else pa.binary())
    texts = pa.Array.from_buffers(kind, 2, raw.buffers())
    return pa.DictionaryArray.from_arrays(pa.array([0, 0, 1, 0, 0, 0], pa.int8()), texts)


def write_card(folder, said):
    lines = [f"  - {{name: {name}, dtype: {kind}}}" for name, kind in {"image": "image", **said}.items()]
    (folder / "README.md").write_text("\n".join(["---", "dataset_info:", "  features:", *lines, "---", ""]))


CLASSES = "{class_label: {names: {'0': cat, '1': dog}}}"
#: Columns beside images, what a card says of them, and the one that `datasets` would convert.
CONVERTED = {
    "categories": ({"label": categories()}, {}, "label"),
    "large categories": ({"patient": categories(pa.large_string())}, {}, "patient"),
    "lists of categories": ({"other": pa.FixedSizeListArray.from_arrays(categories(), 1)}, {}, "other"),
    "text as classes": ({"label": pa.array(["cat", "dog", "Jane Doe"] * 2)}, {"label": CLASSES}, "label"),
    "numbers as classes": ({"label": pa.array([0, 1, 9, 0, 1, 0], pa.int32())}, {"label": CLASSES}, "label"),
    "numbers of others": ({"age": pa.array(["1", "2", "x", "4", "5", "6"])}, {"age": "int64"}, "age"),
    "bytes as text": ({"note": pa.array([b"a", b"\xff"] * 3)}, {"note": "string"}, "note"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONVERTED)
def test_one_value_does_not_make_a_converted_column_unreadable(case, tmp_path, capfd):
    """Whether anybody reads the column or not. A card converts, and so does `datasets`."""
    columns, said, converted = CONVERTED[case]
    images = pa.array([{"bytes": picture(number), "path": None} for number in range(COUNT)])
    pq.write_table(pa.table({"image": images, **columns}), tmp_path / "train.parquet")
    if said:
        write_card(tmp_path, said)
    with pytest.raises(UsageError, match=f"'{converted}' of .*train.parquet is converted to .* on reading"):
        read(tmp_path, **({} if "label" in columns else {"class_names": None}))
    assert "Jane" not in "".join(capfd.readouterr())


def test_classes_of_a_card_are_read_record_by_record(tmp_path):
    """Without conversion, a number that names no class is damage of its own record; else the run is refused."""
    write_card(tmp_path, {"label": CLASSES})
    write_images(tmp_path / "train.parquet", [0, 1, 9, 0, 1, 0], pa.int64())
    assert set(read(tmp_path)) == set(range(COUNT)) - {2}
    table = pq.read_table(tmp_path / "train.parquet")
    pq.write_table(table.select(["label", "image"]), tmp_path / "train.parquet")
    with pytest.raises(UsageError, match="'label' of .* is converted to int64 on reading"):
        read(tmp_path)


def test_what_datasets_says_of_a_value_reaches_nobody(capfd):
    with _asked(DataSource(dataset_name="scans")):
        datasets.logging.get_logger("datasets.builder").error("Invalid string class label Jane Doe")
    assert "Jane" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("name", "kind", "good", "bad"),
    [
        ("seen", pa.duration("s"), 1000, 86400 * 1234567890),
        ("seen", pa.timestamp("s"), 1, 10**15),
        ("seen", pa.list_(pa.binary()), [b"a"], [b"\xff"]),
        ("path", pa.int64(), 5, 6),
        ("path", pa.binary(), b"a", b"b"),
    ],
)
def test_other_fields_of_an_image_are_not_read(name, kind, good, bad, tmp_path, capfd):
    """A value that Python does not have would stop a run, and be shown."""
    numbers = [good, bad, good]
    parts = {"bytes": pa.array([encode(grey(1)), encode(grey(2)), None]), name: pa.array(numbers).cast(kind)}
    if kind == pa.list_(pa.binary()):
        parts[name] = parts[name].view(pa.list_(pa.string()))
    images = pa.StructArray.from_arrays(parts.values(), names=list(parts))
    (tmp_path / "set").mkdir()
    pq.write_table(pa.table({"image": images, "label": ["a", "b", "a"]}), tmp_path / "set" / "train.parquet")
    arrays = read_images(config_of(str(tmp_path / "set"), class_names="a,b"), tmp_path)[1]
    assert arrays.readable.tolist() == [True, True, False] and "1234567890" not in "".join(capfd.readouterr())


def test_arrow_files_are_refused_before_one_text_makes_them_unreadable(tmp_path):
    table = pa.table({"image": pa.array([picture(number) for number in range(COUNT)]), "label": ["cat"] * COUNT})
    with pa.ipc.new_stream(tmp_path / "train.arrow", table.schema) as stream:
        stream.write_table(table)
    with pytest.raises(UsageError, match="read as arrow, where one record .* write it as Parquet"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["../secret.png", "/SECRET", "x/../../secret.png", "pipe.png", "x" * 300 + ".png"])
def test_a_line_leads_out_of_no_folder(tmp_path, name):
    """Nor does it open a pipe, which would wait for ever."""
    (tmp_path / "secret.png").write_bytes(picture(100))
    folder = folder_of(tmp_path / "scans")
    os.mkfifo(folder / "pipe.png")
    name = name.replace("/SECRET", str(tmp_path / "secret.png"))
    for kind in ("metadata.csv", "labels.csv"):
        write_table(folder / kind, rows(file_name=name))
        found = read(folder if kind == "metadata.csv" else folder / kind)
        assert set(found) == set(range(COUNT)) - {CHANGED}
        (folder / kind).unlink()


@pytest.mark.parametrize("kind", ["metadata.csv", "labels.csv"])
def test_a_link_that_a_line_names_is_what_it_leads_to_or_no_second_record(tmp_path, kind):
    """Links to files elsewhere are records; a link to a record of the folder would be a second one of it."""
    store, folder = folder_of(tmp_path / "store"), tmp_path / "scans"
    folder.mkdir()
    for number, name in enumerate(NAMES[:3]):
        (folder / name).symlink_to(store / name)
    (folder / "again.png").symlink_to(folder / "real.png")
    (folder / "real.png").write_bytes(picture(3))
    (folder / "more").symlink_to(store)
    (folder / "gone.png").symlink_to(store / "gone.png")
    named = [*NAMES[:3], "again.png", "real.png", f"more/{NAMES[4]}", "gone.png"]
    write_table(folder / kind, [{**rows()[0], "file_name": name} for name in named])
    place = folder if kind.startswith("metadata") else folder / kind
    assert set(read(place, num_train_images=11)) == {0, 1, 2, 3, 4}
    (folder / kind).rename(tmp_path / "table.csv")  # the table may be a link, too
    (folder / kind).symlink_to(tmp_path / "table.csv")
    assert set(read(place, num_train_images=11)) == {0, 1, 2, 3, 4}


def test_names_match_in_both_forms_of_unicode(tmp_path):
    forms = [unicodedata.normalize(form, "é") for form in ("NFC", "NFD")]
    for there in forms:
        for written in forms:
            folder = tmp_path / f"{there}{len(written)}" / there
            (folder / there).mkdir(parents=True)
            (folder / there / f"{there}.png").write_bytes(picture(0))
            for table in ("file_name\n", "file_name,label\n"):
                label = ",dog" if "label" in table else ""
                (folder / "metadata.csv").write_text(f"{table}{written}/{written}.png{label}\n")
                (label,) = (label for label, _ in read(folder, class_names=("dog", written)).values())
                assert label == ("label" not in table)
    (folder / there / f"{forms[0]}.png").write_bytes(picture(1))
    with pytest.raises(UsageError, match="two files whose names differ only in how Unicode writes"):
        read(folder, class_names=("dog", written))


def test_an_id_is_one_in_both_forms_of_unicode(tmp_path):
    """Else a person of two files would be two units."""
    folder = folder_of(tmp_path)
    accents = [unicodedata.normalize(form, "José") for form in ("NFC", "NFD")]
    for kind in ("metadata.csv", "metadata.jsonl"):
        found = rows()
        for number, accent in enumerate(accents):
            found[number]["patient"] = accent
        write_table(folder / kind, found)
        units = read(folder, unit_column="patient")
        assert units[0][1] == units[1][1] != units[2][1]
        (folder / kind).unlink()


@pytest.mark.parametrize("channels", [1, 3])
def test_a_path_in_a_row_is_one_in_the_folder_of_the_data_set(tmp_path, monkeypatch, channels):
    """Where a command is started decides nothing."""
    folder_of(tmp_path / "set", channels)
    (tmp_path / "elsewhere").mkdir()
    for number, name in enumerate(NAMES):
        (tmp_path / "elsewhere" / name).write_bytes(picture(100 + number, channels))
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    named = pa.array([{"bytes": None, "path": name} for name in NAMES], kind)
    pq.write_table(pa.table({"image": named, "label": LABELS}), tmp_path / "set" / "rows.parquet")
    for start, place in (("set", tmp_path / "set"), ("elsewhere", tmp_path / "set"), ("elsewhere", "../set")):
        monkeypatch.chdir(tmp_path / start)
        assert set(read(place, channels, image_column="image")) == set(range(COUNT))


def test_the_delimiter_is_declared(tmp_path):
    folder = folder_of(tmp_path)
    lines = [b"file_name;label;patient", *(f"{name};{label};a,b".encode() for name, label in zip(NAMES, LABELS))]
    (folder / "metadata.csv").write_bytes(b"\n".join(lines))
    with pytest.raises(UsageError, match="--image_column 'image' does not exist"):
        read(folder)
    assert len(read(folder, delimiter=";", unit_column="patient")) == COUNT


def test_whether_images_have_classes_follows_from_flags(tmp_path):
    folder = folder_of(tmp_path)
    write_table(folder / "metadata.csv", rows())
    assert {label for label, _ in read(folder, class_names=None).values()} == {None}
    with pytest.raises(UsageError, match="--class_names must name the classes of the column 'label'"):
        public_facts(DataSource(dataset_name=str(folder)))  # a run would spend its budget without them
    with pytest.raises(UsageError, match="--label_column needs declared class names"):
        read(folder, class_names=None, label_column="label")


def test_a_split_has_its_own_lines(tmp_path):
    """Metadata around the splits tells of the files of both."""
    train, test = folder_of(tmp_path / "train"), folder_of(tmp_path / "test")
    lines = [dict(row, file_name=f"{split}/{row['file_name']}") for split in ("train", "test") for row in rows()]
    write_table(tmp_path / "metadata.csv", lines)
    assert train != test and len(read(tmp_path)) == COUNT and len(read(tmp_path, train_split="test")) == COUNT
    assert np.all([label is not None for label, _ in read(tmp_path).values()])
    for wrong in ("test/typo.png", "tset/scan 5.png", "../scan 5.png"):  # a record of train, it would be one too many
        lines[-1]["file_name"] = wrong
        write_table(tmp_path / "metadata.csv", lines)
        assert len(read(tmp_path)) == COUNT


def test_a_class_label_of_metadata_means_its_own_names(tmp_path):
    folder = folder_of(tmp_path)
    kinds = datasets.Features(
        {"file_name": datasets.Value("string"), "label": datasets.ClassLabel(names=["dog", "cat"])}
    )
    values = {"file_name": NAMES, "label": [0, 1, 0, -1, None, 1]}
    with (folder / "metadata.parquet").open("wb") as file:
        datasets.Dataset.from_dict(values, features=kinds).to_parquet(file)
    assert {number: label for number, (label, _) in read(folder).items()} == {0: 1, 1: 0, 2: 1, 5: 0}
    with pytest.raises(UsageError, match="--class_names contradicts column 'label' of metadata.parquet.*dog, cat"):
        read(folder, class_names=("a", "b"))


@pytest.mark.parametrize(
    ("label", "names", "hint"),
    [
        ("golden_retriever", ("golden retriever",), "; --class_names has golden retriever"),
        ("cat", ("cat;dog",), "; separate the names in --class_names by commas"),
        ("cat, tabby", ("cat", "tabby"), "; a name in --class_names holds no comma.*"),
        ("bird", ("cat", "dog"), ""),
    ],
)  # fmt: skip
def test_a_label_that_is_no_class_comes_with_a_hint(label, names, hint):
    assert re.fullmatch(f"'{label}', which --class_names does not list{hint}", why_no_label(label, names))


def test_folders_tell_classes_where_the_table_does_not(tmp_path):
    for label in ("cat", "dog"):
        folder_of(tmp_path / label)
    lines = [f"{label}/{name},{unit}" for label in ("cat", "dog") for name, unit in zip(NAMES, PATIENTS)]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,patient", *lines]))
    data = DataSource(
        dataset_name=str(tmp_path), class_names=("cat", "dog"), num_train_images=2 * COUNT, unit_column="patient",
        num_train_units=COUNT, image_shape=(1, 4, 4),
    )  # fmt: skip
    arrays = load_images(data, public_facts(data), Path(tempfile.mkdtemp(dir=tmp_path.parent)))
    assert arrays.readable.all() and np.bincount(arrays.labels).tolist() == [COUNT, COUNT]
    assert len(set(arrays.ids.tolist())) == 3


def test_the_data_command_counts_labels_that_are_no_class(tmp_path, capsys):
    folder = folder_of(tmp_path)
    labels = ["cat", "Cat", "NA", "1", "7", ""]
    write_table(folder / "metadata.csv", [dict(row, label=label) for row, label in zip(rows(), labels)])
    assert main(["data", "--dataset_name", str(folder), "--class_names", "cat,dog", "--resolution", "8"]) in (0, None)
    said = capsys.readouterr().out
    assert "labels that are no class: 2 of no label" in said
    assert "1 of 'Cat', which --class_names does not list; --class_names has cat" in said
    assert "read as positions in --class_names: 1; 0 is cat, 1 is dog" in said


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("labels.csv", b"image,label\na.png,0\n", "give --dataset_name .*labels.csv"),
        ("labels.jsonl", b'{"image": "a.png"}\n', "give --dataset_name .*labels.jsonl"),
        ("notes.txt", b"no image", "Parquet"),
    ],
)
def test_columns_without_a_type_are_refused_with_a_remedy(tmp_path, name, content, remedy):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=remedy):
        read(tmp_path)


def test_archives_of_images_are_refused(tmp_path):
    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        for number, name in enumerate(NAMES):
            (tmp_path / name).write_bytes(picture(number))
            archive.add(tmp_path / name, name)
            (tmp_path / name).unlink()
    with pytest.raises(UsageError, match="webdataset, where one record.*Parquet"):
        read(tmp_path)


def test_a_table_names_files_of_any_suffix_and_they_alone_count(tmp_path):
    folder = folder_of(tmp_path)
    (folder / "notes.txt").write_bytes(b"text")
    (folder / NAMES[0]).rename(folder / "scan.dat")
    write_table(folder / "labels.csv", rows()[1:3] + [dict(rows()[0], file_name="scan.dat")])
    data = DataSource(dataset_name=str(folder / "labels.csv"), class_names=("cat", "dog"))
    assert sorted(path.name for path in open_source(data).files()) == [*NAMES[1:3], "scan.dat"]
    assert set(read(folder / "labels.csv", num_train_images=3)) == {0, 1, 2}
