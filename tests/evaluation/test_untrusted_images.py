# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp evaluate --images` of a stranger: one reader for what this library writes, and guards for what others
write. No file of the host is read, nothing hangs, and what unpacks to far more than it is refused."""

import json
import resource
import shutil

import numpy as np
import pytest
import torch

from diffusers_dp.data.public_images import check_public_images, load_public_images
from diffusers_dp.data.records import DataSource
from diffusers_dp.errors import DiffusersDPError, UsageError
from diffusers_dp.evaluation.images import Source
from diffusers_dp.methods.config import load_config
from diffusers_dp.release.artefacts import DatasetArtefact
from diffusers_dp.release.build import build_release
from diffusers_dp.release.receipt import RunRecord
from support.evaluating import run
from support.hub_stand_in import OWNER
from support.images import write_dataset
from support.latent_releases import seal_again
from support.releases import made_up, make_ledger
from support.untrusted_images import (
    SHARD,
    honest_rows,
    png,
    with_pipe,
    write_repeated,
    write_rows,
)


SECRET = 77  # a grey that only the host's own picture has


@pytest.fixture
def secret(tmp_path):
    """A picture of the host, and a data set of such pictures."""
    folder = tmp_path / "host"
    write_rows(folder, [(png(value=SECRET), None, 0)] * 4)
    (folder / "secret.png").write_bytes(png(value=SECRET))
    return folder


@pytest.fixture
def release(tmp_path):
    """Of four images."""
    folder = tmp_path / "run"
    folder.mkdir()
    images = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 1, 8, 8).contiguous()
    artefact = DatasetArtefact(images, torch.arange(4) % 2, ["left", "right"], "A test.")
    return build_release(folder, artefact, RunRecord(ledger=make_ledger(folder), method=made_up("pe")))


@pytest.fixture
def plain(tmp_path):
    """Of nobody known."""
    return write_rows(tmp_path / "plain", honest_rows())


def load(folder, cache, **options):
    source = Source("--images", str(folder), is_untrusted=True, **options)
    shape = source.shape("train", cache)
    return source.load("train", shape, resize=True, cache_dir=cache)


def refused(folder, cache, words=None, error=DiffusersDPError):
    """In one sentence, with little memory."""
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(error, match=words) as refusal:
        load(folder, cache)
    assert "\n" not in str(refusal.value) and "Traceback" not in str(refusal.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start < 2**19  # KiB


@pytest.mark.parametrize("kind", ["release", "plain"])
def test_what_is_honest_is_read(request, kind, tmp_path):
    found = load(request.getfixturevalue(kind), tmp_path / "cache")
    assert len(found) == 4 and found.class_names == ("left", "right") and found.labels.tolist() == [0, 1, 0, 1]


def test_a_row_that_names_a_file_of_the_host_brings_no_image(plain, tmp_path, secret):
    write_rows(plain, [*honest_rows(3), (None, str(secret / "secret.png"), 1)])
    found = load(plain, tmp_path / "cache")
    assert len(found) == 3 and found.origin["unreadable"] == 1 and not (found.images == SECRET).any()


@pytest.mark.parametrize(
    "where", ["{secret}/data/*.parquet", "../host/data/*.parquet", "http://127.0.0.1:9/a.parquet"]
)
def test_a_card_that_names_other_files_is_not_followed(plain, where, tmp_path, secret):
    configs = [{"config_name": "default", "data_files": [{"split": "train", "path": where.format(secret=secret)}]}]
    (plain / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    refused(plain, tmp_path / "cache", "names files outside of it", UsageError)


def test_a_link_to_the_host_is_not_followed(plain, tmp_path, secret):
    (plain / SHARD).unlink()
    (plain / SHARD).symlink_to(secret / SHARD)
    refused(plain, tmp_path / "cache")


def test_pictures_are_those_of_the_folder_alone(tmp_path, secret):
    """An image folder, whose metadata names a file elsewhere."""
    folder = tmp_path / "pictures"
    (folder / "a").mkdir(parents=True)
    for number in range(3):
        (folder / "a" / f"{number}.png").write_bytes(png(value=number))
    assert len(load(folder, tmp_path / "cache")) == 3
    lines = [{"file_name": name} for name in ("a/0.png", "a/1.png", "../host/secret.png")]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    try:
        assert not (load(folder, tmp_path / "cache").images == SECRET).any()
    except UsageError as error:
        assert "\n" not in str(error)
    (folder / "metadata.jsonl").unlink()
    (folder / "a" / "linked.png").symlink_to(secret / "secret.png")
    refused(folder, tmp_path / "cache", "a link to elsewhere", UsageError)


@pytest.mark.parametrize("kind", ["release", "plain"])
@pytest.mark.parametrize("place", [SHARD, "README.md", "privacy_receipt.json", "model_index.json", "more.png"])
def test_a_pipe_hangs_nobody(request, kind, place, tmp_path, secret, monkeypatch, capsys):
    folder = with_pipe(request.getfixturevalue(kind), place)
    monkeypatch.chdir(tmp_path)
    images, labels = np.zeros((6, 1, 8, 8), np.uint8), [0, 1] * 3
    real = write_dataset(tmp_path / "real", images, labels, ("left", "right"))
    given = ["--real", real, "--test_split", "train", "--metrics", "fid", "--extractors", "pixels"]
    with pytest.raises(SystemExit) as ended:
        run("--images", folder, *given, "--classifiers", "logreg", "--output_dir", tmp_path / "report")
    assert ended.value.code in (2, 4) and capsys.readouterr().err.count("error: ") == 1


def test_a_row_that_is_repeated_a_million_times_is_not_unpacked(plain, tmp_path):
    write_repeated(plain, png(value=7) + bytes(600))
    assert (plain / SHARD).stat().st_size < 400_000
    refused(plain, tmp_path / "cache")


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_what_is_packed_a_thousandfold_is_not_unpacked(plain, codec, tmp_path):
    rows = [(png(value=7) + bytes(10**8), None, 0)] * 2
    write_rows(plain, rows, compression=codec, use_dictionary=False)
    del rows
    assert (plain / SHARD).stat().st_size < 10**6
    refused(plain, tmp_path / "cache")


def test_a_release_that_is_not_what_its_receipt_says_is_not_judged(release, tmp_path, capsys):
    real = write_dataset(tmp_path / "real", np.zeros((6, 1, 8, 8), np.uint8), [0, 1] * 3, ("left", "right"))
    given = ["--images", release, "--real", real, "--output_dir", tmp_path / "report", "--test_split", "train",
             "--metrics", "fid", "--extractors", "pixels", "--classifiers", "logreg"]  # fmt: skip
    run(*given)
    write_rows(release, honest_rows())
    with pytest.raises(SystemExit) as ended:
        run(*given)
    assert ended.value.code == 4 and "its hash differs" in capsys.readouterr().err
    seal_again(release)
    run(*given)


def test_a_release_on_the_hub_is_read_as_one_in_a_folder(release, hub, secret, tmp_path):
    """And a data set there that is none of ours is fetched, and then guarded as a folder is."""

    def put(folder):
        hub.repositories[f"datasets/{OWNER}/pictures"] = {
            path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }
        shutil.rmtree(tmp_path / "hub-cache", ignore_errors=True)

    put(release)
    found = load(f"{OWNER}/pictures", tmp_path / "cache")
    assert len(found) == 4 and found.origin["dataset"] == f"{OWNER}/pictures"
    put(write_rows(tmp_path / "plain", [*honest_rows(3), (None, str(secret / "secret.png"), 1)]))
    assert not (load(f"{OWNER}/pictures", tmp_path / "cache").images == SECRET).any()


def test_public_images_are_in_the_files_of_their_data_set(tmp_path, secret):
    """A row of a public data set that names a sensitive image would make it a public one."""
    folder = write_rows(tmp_path / "public", [*honest_rows(3), (None, str(secret / "secret.png"), 1)])
    flags = ["--public_dataset_name", str(folder), "--resolution", "8", "--num_channels", "1", "--dry_run"]
    source = load_config(flags).public_images
    found = load_public_images(source, DataSource(), tmp_path / "cache", training={})
    assert len(found.images) == 3 and not (found.images == SECRET).any()


@pytest.mark.parametrize("where", ["{secret}/data/*.parquet", "../host/data/*.parquet"])
def test_the_card_of_public_images_does_not_name_others(where, tmp_path, secret):
    """Sensitive images would be taught without noise, under the name of public ones."""
    folder = write_rows(tmp_path / "public", honest_rows())
    configs = [{"config_name": "default", "data_files": [{"split": "train", "path": where.format(secret=secret)}]}]
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    flags = ["--public_dataset_name", str(folder), "--resolution", "8", "--num_channels", "1", "--dry_run"]
    with pytest.raises(UsageError, match="--public_dataset_name .* names files outside of it"):
        check_public_images(load_config(flags).public_images)
