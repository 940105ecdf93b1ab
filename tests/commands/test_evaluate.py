# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp evaluate`: the same numbers twice, nothing private where it may be seen, and one sentence for what
cannot be."""

import fcntl
import json
import os
import re
import stat

import pytest

from diffusers_dp import verify
from diffusers_dp.evaluation import judging
from diffusers_dp.pipelines import DPImagePipeline
from support.evaluating import FAST, read, refused, run


RECEIPT = "privacy_receipt.json"


@pytest.fixture
def data(judged_data):
    return judged_data


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def modes(folder):
    return {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent, folder.parent.parent)}


def of_images(data, out, *flags):
    run("--images", data / "synthetic", "--real", data / "real", "--output_dir", out, *FAST, *flags)


def test_images_are_judged_and_everything_stays_in_the_house(judged_data, tmp_path, capsys):
    of_images(judged_data, tmp_path / "out", "--num_images", 90)
    folder = tmp_path / "out" / "private" / "unprotected" / "evaluation"
    inner = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.is_dir()}
    assert modes(folder) == inner == {0o700} and list((tmp_path / "out").iterdir()) == [tmp_path / "out" / "private"]
    found = read(folder)
    assert found["marking"].startswith("PRIVATE") and found["read private data"] == "yes" and found["release"] is None
    page = (folder / "report.html").read_text()
    assert "PRIVATE" in page and str(tmp_path) not in page + json.dumps(found)
    values = {each["metric"]: each for each in found["measurements"]}
    assert values["Fréchet distance (pixels)"]["protocol"]["real_images"] == 200
    said = capsys.readouterr()
    assert "private data read: yes" in said.out and "not counted in any receipt" in said.out
    for words in ("not counted in any receipt", "--num_images 90 is more than the 80 images that can be read"):
        assert any(words in warning for warning in found["warnings"])
    likeness = f"Likeness: Fréchet distance (pixels) {values['Fréchet distance (pixels)']['value']:,.4g} between"
    (line,) = [line for line in said.out.splitlines() if line.startswith(likeness)]
    rest = said.out.replace(line, "")
    assert not any(f"{each['value']:.3g}" in rest for each in found["measurements"] if each["value"] % 1)


@pytest.mark.parametrize("public", [False, True])
def test_the_terminal_counts_no_private_image(data, tmp_path, capfd, public):
    flags = ["--reference", "--metrics", "precision_recall", "fld"]
    of_images(data, tmp_path / "out", *flags, "--validation_size", 17, *["--real_is_public"] * public)
    said = "".join(capfd.readouterr()).replace(str(tmp_path), "")
    counts = re.findall(r"(?<![\d.])(?:200|183|60)(?!\d|\.\d)", said)  # the split, what is compared, the test images
    assert set(counts) == ({"200", "183", "60"} if public else set())
    assert "80/80" in said and "Features (pixels)" in said


def test_the_same_numbers_twice_and_nothing_is_computed_again(data, tmp_path, monkeypatch):
    of_images(data, tmp_path / "a")
    first = read(tmp_path / "a/private/unprotected/evaluation")
    of_images(data, tmp_path / "b")
    assert read(tmp_path / "b/private/unprotected/evaluation") == first
    monkeypatch.setattr(judging, "FeatureSpace", None)
    of_images(data, tmp_path / "b")
    assert read(tmp_path / "b/private/unprotected/evaluation") == first


@pytest.fixture
def judged(release, data):
    """Evaluates the release, which is counted in it."""

    def judge(*flags):
        run("--model", release, "--real", data / "real", "--num_images", 30, "--num_inference_steps", 2, *FAST, *flags)
        return read(release.parent / "private/unprotected/evaluation")

    return judge


def test_a_release_is_drawn_from_counted_and_otherwise_left_alone(judged, release, data, monkeypatch):
    before = files_of(release)
    found = judged()
    assert found["image_sets"]["synthetic"]["images_per_class"] == [10, 10, 10]
    receipt, problems = verify.verify(release)
    assert problems == [] and receipt["private_evaluations"] == 1 and receipt["leaky_outputs"] == []
    assert found["release"]["epsilon"] == receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"]
    index = json.loads((release / "model_index.json").read_text())
    assert found["release"]["receipt_sha256"] == index["privacy"]["receipt_sha256"]
    after = files_of(release)
    assert {name for name in after if after[name] != before.get(name)} == {RECEIPT}
    monkeypatch.setattr(DPImagePipeline, "__call__", None)  # the images are there
    assert judged() == found
    assert verify.verify(release)[0]["private_evaluations"] == 2


def test_public_images_mark_and_count_nothing(release, data):
    run(
        "--model", release, "--real", data / "real", "--num_images", 30, "--num_inference_steps", 2, *FAST,
        "--real_is_public",
    )  # fmt: skip
    found = read(release.parent / "evaluation")
    assert "PRIVATE" not in json.dumps(found) and found["read private data"] == "no"
    receipt, problems = verify.verify(release)
    assert problems == [] and receipt["private_evaluations"] == 0 and receipt["leaky_outputs"] == []
    assert not (release.parent / "private").exists()


def test_one_evaluation_at_a_time(data, tmp_path, capsys):
    folder = tmp_path / "private/unprotected/evaluation"
    folder.mkdir(parents=True)
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    flags = ("--images", data / "synthetic", "--real", data / "real", "--output_dir", tmp_path, *FAST)
    assert "in use by another evaluation" in refused(capsys, *flags)
    os.close(lock)
    run(*flags)
    assert (folder / "report.json").is_file()


def test_a_release_that_cannot_be_written_is_not_counted_and_says_so(judged, release, monkeypatch, capsys):
    can = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path not in (release, release.parent) and can(path, mode))
    assert "the release cannot be written here: keep count of it yourself" in " ".join(judged()["warnings"])
    assert "not counted" in capsys.readouterr().out
    assert verify.verify(release)[0]["private_evaluations"] == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--selection", "validation"], "--selection validation takes the real images that --validation_size leaves"),
        (["--train_split", "dev"], "--train_split 'dev' does not exist"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_leaves_nothing(data, tmp_path, capsys, flags, words):
    out = tmp_path / "out"
    flags = [flag.replace("DATA", str(data)) for flag in flags]
    said = refused(capsys, "--images", data / "synthetic", "--real", data / "real", "--output_dir", out, *FAST, *flags)
    assert words in said and not out.exists()
