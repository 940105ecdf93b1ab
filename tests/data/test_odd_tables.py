# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Folders whose tables, folders and flags do not fit together: read right, or refused in one sentence."""

import decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diffusers_dp.cli import main
from diffusers_dp.errors import UsageError
from support.tables import COUNT, LABELS, NAMES, PATIENTS, folder_of, picture, read, rows, write_table


NUMBERS = [unit // 2 for unit in range(COUNT)]


def columns_of(**changed):
    return pa.table({"file_name": NAMES, "label": LABELS, "patient": PATIENTS, **changed})


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2, 3, 10**8, 5, 6], pa.int32()).cast(pa.date32()),  # no year that Python knows
        pa.array([1, 2, 3, 10**15, 5, 6]).cast(pa.timestamp("s")),
        pa.array([1] * COUNT).cast(pa.timestamp("s", "Mars/Base")),
        pa.array([2**62] * COUNT).cast(pa.duration("s")),
        pa.array([[b"\xff"]] * COUNT, pa.list_(pa.binary())).view(pa.list_(pa.string())),
    ],
)
def test_values_of_a_column_that_no_flag_names_are_not_read(tmp_path, column):
    pq.write_table(columns_of(seen=column), folder_of(tmp_path) / "metadata.parquet")
    assert len(read(tmp_path, unit_column="patient")) == COUNT


@pytest.mark.parametrize(
    ("flag", "changed"),
    [
        ("label_column", {"label": pa.array([decimal.Decimal(0)] * COUNT)}),
        ("label_column", {"label": [[0]] * COUNT}),
        ("unit_column", {"patient": pa.array([decimal.Decimal(unit) for unit in NUMBERS])}),
        ("unit_column", {"patient": pa.array(NUMBERS, pa.int32()).cast(pa.date32())}),
        ("unit_column", {"patient": [True, False] * 3}),
        ("image_column", {"file_name": [name.encode() for name in NAMES]}),
    ],
)
def test_columns_of_parquet_that_tell_nothing_are_refused(tmp_path, flag, changed):
    pq.write_table(columns_of(**changed), folder_of(tmp_path) / "metadata.parquet")
    with pytest.raises(UsageError, match=f"--{flag} .* of metadata.parquet has values of type"):
        read(tmp_path, unit_column="patient")


@pytest.mark.parametrize("suffixes", [(".parquet", ".parquet"), (".csv", ".jsonl"), (".csv", ".parquet")])
def test_one_person_is_no_text_in_one_table_and_a_number_in_another(tmp_path, suffixes):
    for place, suffix, unit in zip("ab", suffixes, (7, "7")):
        records = [dict(row, patient=unit) for row in rows()]
        table = folder_of(tmp_path / place) / f"metadata{suffix}"
        if suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(records), table)
        else:
            write_table(table, records)
    with pytest.raises(UsageError, match="--dataset_name .*(several formats|another type of 'patient')"):
        read(tmp_path, unit_column="patient", num_train_images=2 * COUNT)


@pytest.mark.parametrize("name", ["Metadata.csv", "METADATA.CSV", "metadata.JSONL"])
def test_metadata_is_found_in_any_case(tmp_path, name):
    table = folder_of(tmp_path) / f"table{Path(name).suffix.lower()}"
    write_table(table, rows())
    table.rename(tmp_path / name)
    assert len(read(tmp_path)) == COUNT


def test_a_header_reaches_the_terminal_without_control_characters(tmp_path, capsys):
    (folder_of(tmp_path) / "metadata.csv").write_bytes(b"\x1b[2J\xe4,\xc3\xa4,label\n")
    with pytest.raises(SystemExit, match="2"):
        main(["data", "--dataset_name", str(tmp_path)])
    assert "there is: \\x1b[2J\\udce4, \u00e4, label." in capsys.readouterr().err


def class_folders(root, *names):
    for number, name in enumerate(names):
        (root / name).mkdir(parents=True)
        (root / name / "1.png").write_bytes(picture(number))
    return str(root)


def test_class_names_that_no_folder_and_no_table_has_are_refused(tmp_path):
    with pytest.raises(UsageError, match="--class_names names no folder in .*no metadata file.*it holds: Cat, Dog"):
        read(class_folders(tmp_path, "Cat", "Dog"))
    with pytest.raises(UsageError, match="--class_names must declare the classes of a folder of class folders"):
        read(tmp_path, class_names=None)


@pytest.mark.parametrize("kind", ["metadata.csv", "metadata.jsonl"])
def test_text_of_another_encoding_or_of_any_length_in_a_column_that_no_flag_names(tmp_path, kind):
    write_table(folder_of(tmp_path) / kind, [dict(row, doctor="M\u00fcller" + "r" * 200_000) for row in rows()])
    table = (tmp_path / kind).read_text(encoding="utf-8").replace("label,patient", "label,patient,\u00c4rztin")
    (tmp_path / kind).write_bytes(table.replace("\\u00fc", "\u00fc").encode("latin-1"))
    assert len(read(tmp_path, unit_column="patient")) == COUNT
    lines = (tmp_path / kind).read_bytes().splitlines()
    lines[-1] = lines[-1].replace(b"p2", b"\xfc")
    (tmp_path / kind).write_bytes(b"\n".join(lines))
    assert set(read(tmp_path, unit_column="patient")) == set(range(COUNT - 1))


def test_two_splits_beside_another_folder_are_neither_merged_nor_classes(tmp_path, capsys):
    root = class_folders(tmp_path / "scans", "train", "test", "masks")
    names = ["train/1.png", "test/1.png"]
    write_table(tmp_path / "scans" / "metadata.jsonl", [{"file_name": name, "label": "cat"} for name in names])
    with pytest.raises(UsageError, match="--dataset_name .* look like splits .*beside others; give .*train"):
        read(root)
    with pytest.raises(SystemExit, match="2"):
        main(["data", root])
    assert f"give {root}/train" in capsys.readouterr().err
    declared = ("train", "test", "masks")
    assert len(read(root, class_names=declared, label_column="label", image_column="file_name")) == 0
    (tmp_path / "scans" / "metadata.jsonl").unlink()
    found = read(root, class_names=declared)
    assert (found[0][0], found[1][0]) == (0, 1)
    inner = tmp_path / "inner" / "cat"
    class_folders(inner, "train", "test", "masks")
    with pytest.raises(UsageError, match="look like splits"):
        read(tmp_path / "inner")


def test_labels_below_zero_are_declared_with_an_equals_sign(tmp_path, capsys):
    table = folder_of(tmp_path) / "labels.jsonl"
    write_table(table, [dict(row, label=number % 2 * 2 - 1) for number, row in enumerate(rows())])
    flags = ["data", "--dataset_name", str(table), "--resolution", "4"]
    with pytest.raises(SystemExit, match="2"):
        main([*flags, "--class_names", "-1,1"])
    assert "a value as --flag=-1" in capsys.readouterr().err
    assert main([*flags, "--class_names=-1,1"]) in (0, None)
    assert "  -1: 3\n  1: 3\n" in capsys.readouterr().out
    assert main([*flags, "--class_names=7,other"]) in (0, None)
    assert "1', which --class_names does not list" not in capsys.readouterr().out


def test_a_header_of_long_names_makes_no_long_message(tmp_path):
    (folder_of(tmp_path) / "metadata.csv").write_bytes(b"a" * 10**6 + b"," + b",".join(b"%d" % i for i in range(999)))
    with pytest.raises(UsageError, match="there is: a{80}, 0, 1, .*") as refused:
        read(tmp_path)
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize("name", ["metadata.csv", "table.csv"])
@pytest.mark.parametrize("suffixes", [None, (".dcm",)])
def test_a_table_without_a_header_shows_no_record(tmp_path, name, suffixes):
    folder = folder_of(tmp_path)
    (folder / name).write_text("".join(f"{image},cat,Jane Doe\n" for image in NAMES))
    with pytest.raises(UsageError, match="first line looks like a record; write one with the names") as refused:
        read(folder if name == "metadata.csv" else folder / name, unit_column="patient", image_suffixes=suffixes)
    assert "Jane" not in str(refused.value) and NAMES[0] not in str(refused.value)
