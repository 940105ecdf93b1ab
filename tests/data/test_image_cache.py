# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Decoded images on disk: the same as decoded one by one in memory, whole or absent, never stale, and never more than
a part in memory."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch

from diffusers_dp import SensitiveImages
from diffusers_dp.data import cache as image_cache
from diffusers_dp.data import images as data
from diffusers_dp.data import parts as image_parts
from diffusers_dp.data.decoding import decode_image
from diffusers_dp.data.sources import open_source
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.methods.feta_pro import FETAProConfig
from diffusers_dp.randomness.keyed_hash import DIGEST, digests_of, is_held_out
from support.decoding_jobs import FullDisk, is_killed, say_it, stop_hard, times_two
from support.doors import make_ledger
from support.few import few
from support.images import config_of, encode, grey, image_bytes, read_images, save_parquet


NAMES = ["a", "b", "c"]
FILES = ["ids.npy", "images.npy", "labels.npy", "readable.npy", "state.json"]


def write_images(folder: Path, count: int = 23, broken: tuple[int, ...] = (3, 11)) -> str:
    """Grey images of many values, some broken, some without a label or a unit."""
    contents = [b"broken" if i in broken else encode(grey(10 * i + 1)) for i in range(count)]
    features = datasets.Features(
        {
            "image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES), "patient": datasets.Value("string"),
        }
    )  # fmt: skip
    columns = {
        "image": image_bytes(*contents),
        "label": [None if i == 5 else i % 3 for i in range(count)],
        "patient": [None if i == 7 else f"p{i * i % 5}" for i in range(count)],
    }
    return save_parquet(folder, columns, features)


def in_memory(config, facts, cache_dir) -> dict[str, np.ndarray]:
    """Image after image into arrays."""
    images, labels, readable, units, ids, numbers = [], [], [], [], [], {}
    for encoded, label, unit in open_source(config.data).records(facts.class_names, cache_dir):
        digest = np.zeros(1, DIGEST) if unit is None else digests_of([unit])
        if unit is not None and is_held_out(digest, config.validation_size, facts.capacity)[0]:
            continue
        image = decode_image(encoded, facts.image_shape)
        there = image is not None and label is not None and unit is not None
        images.append(image if there else np.zeros(facts.image_shape, np.uint8))
        labels.append(label if there else 0)
        readable.append(there)
        units.append(0 if unit is None else numbers.setdefault(unit, len(numbers)))
        ids.append(digest)
    return {
        "images": np.stack(images),
        "labels": np.array(labels),
        "readable": np.array(readable),
        "units": np.array(units),
        "ids": np.concatenate(ids),
    }


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of four images."""
    monkeypatch.setattr(image_parts, "PART_IMAGES", 4)


@pytest.mark.parametrize(
    ("part", "num_processes", "validation_size"),
    few([(1, 1, 6), (4, 1, 0), (100, 1, 0), (100, 1, 6), (4, 3, 6)], 0, 4),
)
def test_the_same_arrays_as_in_memory(tmp_path, monkeypatch, validation_size, num_processes, part):
    monkeypatch.setattr(image_parts, "PART_IMAGES", part)
    monkeypatch.setattr(data, "PARTS_OF_A_PROCESS", 1)
    monkeypatch.setattr(data, "cores", lambda: num_processes)
    config = config_of(
        write_images(tmp_path / "set"), validation_size=validation_size, unit_column="patient", num_train_units=5
    )
    facts, arrays = read_images(config, tmp_path)
    expected = in_memory(config, facts, tmp_path / "other")
    assert not expected["readable"].all() and len(set(expected["units"])) > 1
    for name, values in expected.items():
        found = getattr(arrays, name)
        assert found.dtype == values.dtype and np.array_equal(found, values), name


def test_a_data_set_that_is_called_like_the_cache(tmp_path, monkeypatch, small_parts):
    """What `datasets` caches of it lies elsewhere: other processes read it while ours is made."""
    monkeypatch.setattr(data, "PARTS_OF_A_PROCESS", 1)
    monkeypatch.setattr(data, "cores", lambda: 2)
    config = config_of(write_images(tmp_path / data.FOLDER))
    facts, arrays = read_images(config, tmp_path)
    assert np.array_equal(arrays.images, in_memory(config, facts, tmp_path / "other")["images"])


def test_images_are_decoded_once_and_mapped_and_not_loaded(tmp_path, monkeypatch):
    config = config_of(write_images(tmp_path / "set"))
    _, arrays = read_images(config, tmp_path)
    monkeypatch.setattr(image_parts, "decode_image", None)
    _, again = read_images(config, tmp_path)
    assert np.array_equal(arrays.images, again.images) and np.array_equal(arrays.labels, again.labels)
    for array in (arrays.images, arrays.labels, arrays.readable):
        assert isinstance(array, np.memmap) and not array.flags.writeable
    assert sorted(path.name for path in (tmp_path / "cache" / "images").iterdir()) == FILES
    assert not list((tmp_path / "cache").glob(".images*"))


def test_the_door_takes_maps_and_strided_parts_of_them_without_a_word(tmp_path):
    facts, arrays = read_images(config_of(write_images(tmp_path / "set")), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for part in (slice(None), slice(1, None, 3)):
            door = SensitiveImages(
                arrays.images[part], arrays.labels[part], arrays.readable[part],
                num_images=facts.num_images, image_shape=facts.image_shape, class_names=facts.class_names,
                ledger=make_ledger(facts.num_images),
            )  # fmt: skip
            assert np.shares_memory(door._records.images._images, arrays.images)  # nothing was copied
            index = torch.tensor([0, 2, 5])
            assert np.array_equal(door._records.images[index].numpy(), np.asarray(arrays.images[part])[[0, 2, 5]])


def test_what_was_written_to_a_private_map_stays(tmp_path):
    np.save(tmp_path / "images.npy", np.ones((4, 1, 8, 8), np.uint8))
    images = np.load(tmp_path / "images.npy", mmap_mode="c")
    images[:] = 7
    images.flags.writeable = False
    door = SensitiveImages(images, num_images=4, image_shape=(1, 8, 8), ledger=make_ledger(4))
    for _ in range(2):
        assert (door._records.images[torch.arange(4)] == 7).all()


def test_other_flags_or_files_are_decoded_anew(tmp_path):
    name = write_images(tmp_path / "set")
    assert read_images(config_of(name), tmp_path)[1].images.shape == (23, 1, 8, 8)
    other = FETAProConfig(dataset_name=name, resolution=4, num_channels=3)
    assert read_images(other, tmp_path)[1].images.shape == (23, 3, 4, 4)
    for flags in ({"max_image_pixels": 63}, {"value_range": "0,4095"}):
        assert not read_images(config_of(name, **flags), tmp_path)[1].readable.any()
    assert len(read_images(config_of(name, validation_size=3), tmp_path)[1].images) < 23
    assert read_images(config_of(name), tmp_path)[1].readable[0]
    write_images(tmp_path / "set", broken=(0,))  # somebody withdrew an image
    assert read_images(config_of(name), tmp_path)[1].readable.tolist()[:4] == [False, True, True, True]


def test_another_file_with_the_labels_is_noticed(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    for i in range(2):
        (folder / f"{i}.png").write_bytes(encode(grey()))

    def labels(values: list[str]) -> list[int]:
        rows = [json.dumps({"file_name": f"{i}.png", "label": value}) for i, value in enumerate(values)]
        (folder / "metadata.jsonl").write_text("\n".join(rows))
        return read_images(config_of(str(folder), class_names="a,b", num_train_images=2), tmp_path)[1].labels.tolist()

    assert labels(["a", "b"]) == [0, 1]
    assert labels(["b", "a"]) == [1, 0]


SLOW = """
import sys, time
from pathlib import Path
from diffusers_dp.data import images as data, parts as image_parts
from support.images import config_of, read_images

image_parts.PART_IMAGES, data.PARTS_OF_A_PROCESS, data.cores = 4, 1, lambda: int(sys.argv[3])
decode = image_parts.decode_image
place = Path(sys.argv[2])
decoded = []

def slowly(*arguments):
    decoded.append(1)
    if len(decoded) == 10:
        print("half", flush=True)
        time.sleep(600)
    return decode(*arguments)

image_parts.decode_image = slowly
read_images(config_of(sys.argv[1]), place)
"""


def test_a_half_written_cache_is_never_read(tmp_path):
    """The process is killed in the middle; the next one begins again."""
    name = write_images(tmp_path / "set")
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, name, str(tmp_path), "1"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdout.readline() == b"half\n"
    process.kill()
    process.wait()
    process.stdout.close()
    left = tmp_path / "cache" / ".images.tmp"
    assert left.exists() and not (tmp_path / "cache" / "images").exists()
    config = config_of(name)
    facts, arrays = read_images(config, tmp_path)
    assert np.array_equal(arrays.images, in_memory(config, facts, tmp_path / "other")["images"])
    assert not left.exists()


TYPE = re.compile(rb"'[|<][ubiV]\d+'")
OTHER_TYPES = {b"'|u1'": b"'|i1'", b"'<i8'": b"'<f8'", b"'|b1'": b"'|u1'", b"'|V16'": b"'|S16'"}
DAMAGE = {
    "shorter": lambda content: content[:-1],
    "no numbers": lambda content: bytes(len(content)),
    "no dictionary": lambda content: content[:10] + b"(" * 118 + content[128:],
    "a negative shape": lambda content: content.replace(b"(23,", b"(-3,", 1),
    "fewer": lambda content: content.replace(b"(23,", b"(22,", 1),
    "another type": lambda content: TYPE.sub(lambda found: OTHER_TYPES[found[0]], content, count=1),
    "objects": lambda content: TYPE.sub(lambda found: b"'|O'".ljust(len(found[0])), content, count=1),
}


@pytest.mark.parametrize("damage", few([None, *DAMAGE], 0, 1, 5))
@pytest.mark.parametrize("file", FILES[:4])
def test_a_damaged_cache_is_one_sentence(tmp_path, file, damage):
    config = config_of(write_images(tmp_path / "set"))
    read_images(config, tmp_path)
    path = tmp_path / "cache" / "images" / file
    content = path.read_bytes()
    path.unlink()
    if damage is not None:
        assert DAMAGE[damage](content) != content
        path.write_bytes(DAMAGE[damage](content))
    with pytest.raises(IntegrityError, match=r"\.npy is missing or damaged; remove .*images, and"):
        read_images(config, tmp_path)
    shutil.rmtree(path.parent)
    read_images(config, tmp_path)


@pytest.mark.parametrize("state", ["", "[]", '{"made_of": 1, "bytes": [[1]]}', "[" * 100_000])
def test_a_damaged_state_is_one_sentence(tmp_path, state):
    config = config_of(write_images(tmp_path / "set"))
    read_images(config, tmp_path)
    (tmp_path / "cache" / "images" / "state.json").write_text(state)
    with pytest.raises(IntegrityError, match=r"state.json is missing or damaged; remove .*images, and"):
        read_images(config, tmp_path)


def test_a_disk_without_room_does_not_tell_how_many_images_there_are(tmp_path, monkeypatch):
    """Of 23 and of 22 images, the declared number being 30 both times; and none is decoded."""
    monkeypatch.setattr(image_parts, "decode_image", None)
    monkeypatch.setattr(image_cache.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 100, 100))
    said = []
    for count in (23, 22):
        with pytest.raises(UsageError, match="GB .No space left on device.*make room") as refusal:
            read_images(config_of(write_images(tmp_path / str(count), count), num_train_images=30), tmp_path)
        said.append(str(refusal.value))
    assert said[0] == said[1]


def test_images_that_are_not_there_are_one_sentence(tmp_path):
    """What another process decoded, into a folder that this one does not see, or what has been replaced."""
    _, arrays = read_images(config_of(write_images(tmp_path / "set")), tmp_path)
    assert arrays.made_of is not None
    found = data.open_images(tmp_path / "cache", arrays.made_of)
    assert np.array_equal(found.images, arrays.images) and np.array_equal(found.readable, arrays.readable)
    for folder, made_of in ((tmp_path / "elsewhere", arrays.made_of), (tmp_path / "cache", "other images")):
        with pytest.raises(UsageError, match="does not hold the images .* --output_dir on a disk that all machines"):
            data.open_images(folder, made_of)


def test_as_many_processes_decode_as_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(image_parts, "PART_IMAGES", 4)
    monkeypatch.setattr(data, "PARTS_OF_A_PROCESS", 1)
    monkeypatch.setattr(data, "cores", lambda: 3)
    decode, used, source = data.map_in_processes, [], write_images(tmp_path / "set")
    monkeypatch.setattr(data, "map_in_processes", lambda *job: (used.append(job[2]), decode(*job[:2], 1))[1])
    for number in (None, 0, 2, 1_024):
        read_images(config_of(source, dataloader_num_workers=number), tmp_path / str(number))
    assert used == [3, 0, 2, used[3]] and 3 < used[3] < 10, "no more than there are parts"


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_disk_that_fills_up_is_one_sentence(tmp_path, monkeypatch, num_processes):
    monkeypatch.setattr(image_parts, "PART_IMAGES", 4)
    monkeypatch.setattr(data, "PARTS_OF_A_PROCESS", 1)
    monkeypatch.setattr(data, "cores", lambda: num_processes)
    monkeypatch.setattr(data, "Decoder", FullDisk)
    with pytest.raises(UsageError, match="No space left on device.*make room"):
        read_images(config_of(write_images(tmp_path / "set")), tmp_path)
    assert not [path for path in (tmp_path / "cache").iterdir() if "images" in path.name]


def test_rows_that_cannot_be_read_under_way_are_one_sentence(tmp_path, monkeypatch):
    """Arrow opened the files; their content is read when images are decoded."""

    def gone(dataset, rows):
        raise OSError("a stripe is gone")

    config = config_of(write_images(tmp_path / "set"))
    monkeypatch.setattr(datasets.Dataset, "__getitem__", gone)
    with pytest.raises(UsageError, match="--dataset_name .*set could not be read .*a stripe is gone.*restore it"):
        read_images(config, tmp_path)
    assert not (tmp_path / "cache" / "images").exists()


@pytest.mark.parametrize(
    ("broken", "num_processes"),
    [((), 1), ((0, 1, 2, 3), 1), (tuple(range(23)), 1), ((0, 1, 2, 3), 2)],
    ids=["none", "a part", "all", "a part of several processes"],
)
def test_nothing_is_said_of_broken_images(tmp_path, monkeypatch, capfd, small_parts, broken, num_processes):
    """Neither a line, nor how often and how far the bar moves, but for its times; nor how large the files are."""
    monkeypatch.setattr(data, "PARTS_OF_A_PROCESS", 1)
    monkeypatch.setattr(data, "cores", lambda: num_processes)
    moves = []

    class Bar(data.tqdm):
        def update(self, n=1):
            moves.append(n)
            return super().update(n)

    monkeypatch.setattr(data, "tqdm", Bar)
    config = config_of(write_images(tmp_path / "set", broken=broken))
    capfd.readouterr()
    _, arrays = read_images(config, tmp_path)
    assert int(arrays.readable.sum()) == 22 - len(set(broken) - {5}) and len(arrays.images) == 23
    assert moves == [4, 4, 4, 4, 4, 3, 0]
    output = capfd.readouterr()
    assert output.out == "" and "23/23" in output.err and output.err.count("\n") == 1
    images = tmp_path / "cache" / "images" / "images.npy"
    assert images.stat().st_size == 128 + 23 * 64 and not arrays.images[~arrays.readable].any()


class TestProcesses:
    @pytest.mark.parametrize("num_processes", [0, 1, 3])
    def test_answers_come_in_order(self, num_processes):
        answers = data.map_in_processes(times_two, range(50), num_processes)
        assert list(answers) == list(range(0, 100, 2))

    def test_what_a_library_prints_is_no_answer(self, capfd):
        assert list(data.map_in_processes(say_it, range(4), 2)) == list(range(4))

    def test_an_error_is_raised_here(self):
        with pytest.raises(ZeroDivisionError):
            list(data.map_in_processes((1).__truediv__, [2, 0, 3], 2))

    @pytest.mark.parametrize(("job", "how"), [(stop_hard, "with code 7"), (is_killed, "by signal 9")])
    def test_a_process_that_ends_early_is_one_sentence(self, job, how):
        """With the exit code of what the operator can mend."""
        with pytest.raises(
            UsageError, match=f"ended early, {how}, .* memory .* smaller --dataloader_num_workers"
        ) as refusal:
            list(data.map_in_processes(job, range(20), 2))
        assert "\n" not in str(refusal.value)

    def test_processes_end_with_their_parent(self, tmp_path):
        """Killed, it cannot tell them."""
        program = (
            "from diffusers_dp.data.decoding_workers import map_in_processes; from support.decoding_jobs import "
            "pid_then_wait; import sys\nlist(map_in_processes(pid_then_wait, sys.argv[1:], 2))"
        )
        paths = [tmp_path / "1", tmp_path / "2", *[tmp_path / "3"] * 600]
        parent = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, paths)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        while not (paths[0].exists() and paths[1].exists() and paths[1].read_text()):
            assert parent.poll() is None
            time.sleep(0.05)
        parent.kill()
        parent.wait()
        for path in paths[:2]:
            while Path(f"/proc/{path.read_text()}").exists():
                time.sleep(0.05)
