# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which files of a data folder count as records, and which folders are splits."""

import os

import pytest
from datasets.data_files import NON_WORDS_CHARS, SPLIT_KEYWORDS

from diffusers_dp.data.folders import SPLIT_WORDS, files_below, service_entries, split_of, subfolders


SERVICE = (
    ".ipynb_checkpoints", ".thumbnails", "__MACOSX", "@eaDir", ".Trash-1000", "#recycle", "$RECYCLE.BIN",
    "System Volume Information", "lost+found", "@Recycle", ".AppleDouble", "__pycache__", ".@__thumb", "#snapshot",
    "found.000", "LOST.DIR", "RECYCLER", ".git", ".svn", ".stversions", "[Originals]", "Network Trash Folder",
    "@Recently-Snapshot", "Previews.lrdata", "~snapshot", "@tmp", ".dtrash",
)  # fmt: skip


def put(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"image")
    return path


def names(root):
    return [path.relative_to(root).as_posix() for path in files_below(root)]


@pytest.mark.parametrize("service", SERVICE)
@pytest.mark.parametrize("spelled", [str, str.upper, str.lower])
def test_nothing_below_a_service_folder_counts_at_any_depth(tmp_path, service, spelled):
    """Copies there would be second records of one image."""
    for place in ("", "a/", "a/b/"):
        put(tmp_path / place / "1.png")
        put(tmp_path / place / spelled(service) / "1.png")
        put(tmp_path / place / spelled(service) / "deep" / "1.png")
    assert names(tmp_path) == ["1.png", "a/1.png", "a/b/1.png"]
    assert [path.name for path in service_entries(tmp_path)] == [spelled(service)] * 3


def test_service_files_are_no_records_and_names_like_them_are(tmp_path):
    for name in ("._1.png", ".hidden.png", "Thumbs.db", "desktop.ini", "~$1.png"):
        put(tmp_path / name)
    kept = ["1.png", "@home/1.png", "_1.png", "cache/1.png", "recycle/1.png", "thumbnails/1.png", "trash/1.png"]
    for name in kept:
        put(tmp_path / name)
    assert names(tmp_path) == kept


@pytest.mark.parametrize("above", [".cache", "__data", "@eaDir", "lost+found", "a[1]*?", ".a/@tmp"])
def test_names_above_the_data_folder_and_its_own_are_never_matched(tmp_path, above, monkeypatch):
    put(tmp_path / above / "a" / "1.png")
    assert names(tmp_path / above) == ["a/1.png"]
    monkeypatch.chdir(tmp_path / above)
    assert names(type(tmp_path)(".")) == ["a/1.png"]


def test_a_link_counts_unless_what_it_leads_to_does_already(tmp_path):
    root, store = tmp_path / "scans", tmp_path / "store"
    put(root / "a" / "1.png")
    put(root / ".annex" / "2.png")
    put(store / "3.png")
    put(store / "deep" / "4.png")
    (store / "back").symlink_to(root)
    (store / "round").symlink_to(store)
    for name, target in {
        "again.png": root / "a" / "1.png", "annexed.png": root / ".annex" / "2.png", "linked.png": store / "3.png",
        "folder": store, "twice": root / "a", "loop": root, "above": tmp_path, "gone.png": tmp_path / "none.png",
        "self.png": root / "a" / "self.png", "twin.png": store / "3.png",
    }.items():  # fmt: skip
        (root / "a" / name).symlink_to(target)
    os.mkfifo(root / "a" / "pipe.png")
    assert names(root) == [
        "a/1.png", "a/annexed.png", "a/folder/3.png", "a/folder/deep/4.png", "a/linked.png", "a/twin.png"
    ]  # fmt: skip
    assert [path.name for path in subfolders(root)] == ["a"]


def test_a_data_folder_may_be_a_link(tmp_path):
    put(tmp_path / "scans" / "a" / "1.png")
    (tmp_path / "link").symlink_to(tmp_path / "scans")
    assert names(tmp_path / "link") == ["a/1.png"]


def test_splits_are_called_as_datasets_calls_them_in_any_case():
    assert {name: set(words) for name, words in SPLIT_WORDS.items()} == {
        str(split): set(words) for split, words in SPLIT_KEYWORDS.items()
    }
    for split, words in SPLIT_WORDS.items():
        for word in words:
            for sep in ["-", ".", "_", " ", *"0123456789"]:
                assert sep in NON_WORDS_CHARS or sep.isdigit()
                for name in (word, f"{word}{sep}x", f"x{sep}{word}", f"x{sep}{word}{sep}y", f"{word}-00-of-05"):
                    assert {split_of(name), split_of(name.upper()), split_of(name.title())} == {split}
    for name in ("benign", "trainingroom", "strain", "retest", "devil", "valve", "contest", "0", "é"):
        assert split_of(name) is None
