# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp recommend`: a ranking by measured rows, a command that runs, and sentences for impossible facts."""

import io
import re
import shlex
from dataclasses import replace

import pytest
from PIL import Image

from diffusers_dp import cli
from diffusers_dp.methods.advice import MeasuredRow, Situation, minutes_of, rank, read_evidence
from diffusers_dp.methods.config import CONFIGS, load_config
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.runs.launch import launch
from support.places import ROOT


ISSUE = "--target_epsilon 5 --minutes 20 --num_train_images 1500 --resolution 64 --num_channels 3 --class_names a,b"
ROW = MeasuredRow(10.0, 1000, 10, (1, 28, 28), "a", "moments", "folder_cpu", (), (), "mnist", 1, 0.82, 0.9, 2.0)


def output(capsys, *argv, command="recommend"):
    cli.main([command, *argv])
    return capsys.readouterr().out


def test_facts_alone_give_a_ranking_and_a_command_that_plans(capsys, monkeypatch):
    monkeypatch.setattr("diffusers_dp.data.images.open_source", None)
    text = output(capsys, *ISSUE.split(), "--train_data_dir", "my scans")
    assert text.startswith("for 1,500 images of 3x64x64 in 2 classes of one size; none was read\nsignal: 3,750 = ")
    cases = {row.case for row in read_evidence()}
    table = text.split("\n\n")[1].splitlines()[1:]
    assert all(any(f"  {case}, " in line for case in cases) for line in table), "each line names its row"
    words = shlex.split(text.splitlines()[-1])
    assert words[:2] == ["diffusers-dp", "train"] and words[words.index("--train_data_dir") + 1] == "my scans"
    config = load_config(words[3:], METHODS[words[2]])
    assert (config.target_epsilon, config.num_train_images, config.image_shape) == (5, 1500, (3, 64, 64))
    assert "covariances" in text and "together: epsilon 5.0000" in text, "the plan of the first method"
    dashed = ISSUE.replace("_", "-").split()
    assert text == output(capsys, *dashed, "--train-data-dir", "my scans", command="plan")
    below_zero = {"--class_names=-1,1", "--window=-600,1500"}
    words = shlex.split(output(capsys, *ISSUE.replace("3", "1").split()[:-2], *below_zero).splitlines()[-1])
    assert below_zero <= {*words}


def test_a_public_model_opens_two_roads(capsys):
    """Private Evolution for photographs, DP-LoRA or DP-LDM for scans: commands that plan, and what was published."""
    text = output(capsys, *ISSUE.split(), "--public_model", "me/sd")
    assert "nothing was measured here with real weights" in text and "arXiv 2503.14681" in text
    photographs, evolve, scans, tune = text[text.index("photographs that") :].splitlines()[:4]
    assert "Private Evolution. Published of CIFAR-10: FID 9.2, accuracy 75.3 %" in photographs
    assert scans.startswith("scans") and "DP-LoRA. Published of Camelyon17" in scans and "DP-LDM (dp_ldm)" in scans
    for command, method, side in ((evolve, "pe", 64), (tune, "dp_lora", 512)):
        words = shlex.split(command)
        assert words[:3] == ["diffusers-dp", "train", method] and "me/sd" in words
        config = load_config([*words[3:], "--dry_run"], METHODS[method])
        assert (config.pretrained_model_name_or_path, config.image_shape) == ("me/sd", (3, side, side))
        assert config.num_train_images == 1500 and config.target_epsilon == 5
    assert "real weights" not in output(capsys, *ISSUE.split())


@pytest.mark.slow
def test_the_command_runs_as_printed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / "scans" / name).mkdir(parents=True)
        for index in range(100):
            Image.new("L", (9, 9), 2 * index + (name == "b")).save(tmp_path / "scans" / name / f"{index}.png")
    facts = "--num_train_images 200 --train_data_dir scans --class_names a,b --resolution 8 --num_channels 1"
    command = shlex.split(output(capsys, *facts.split(), "--target_epsilon", "100").splitlines()[-1])
    cli.main([*command[1:], "--output_dir", "run", "--images_per_class", "20"])
    assert (tmp_path / "run" / "release" / "privacy_receipt.json").is_file()


def test_settings_are_those_of_the_row_that_the_skill_is_of():
    """A nearer row with less skill than a row with less signal has poorer settings."""
    judged = replace(ROW, num_units=500, accuracy=0.89, flags=("--budget", "judge=0.3"))
    (found,) = rank([ROW, judged], ROW, ())
    assert found.row == judged and found.skill == pytest.approx(judged.skill)


def test_more_signal_never_does_worse_and_less_does_in_proportion():
    rows = [ROW, replace(ROW, num_units=10_000, accuracy=0.5), replace(ROW, num_units=100_000, accuracy=0.9)]
    skills = [rank(rows, replace(ROW, num_units=number), ())[0].skill for number in (10, 500, 1000, 30_000, 10**7)]
    assert skills == sorted(skills)
    assert (skills[1], skills[2], skills[-1]) == pytest.approx((0.45, 0.9, 1.0))
    for method, share in (("dp_diffusion", 0.25), ("pe", 0.5)):
        public = [replace(each, method=method, needs=("x",)) for each in rows]
        assert rank(public, replace(ROW, num_units=250), ("x",))[0].skill == pytest.approx(0.9 * share)


def test_of_rows_of_one_signal_the_best_counts_on_both_sides():
    rows = [replace(ROW, num_units=100, accuracy=0.5), replace(ROW, accuracy=0.6), ROW]
    just_below, at = (rank(rows, replace(ROW, num_units=number), ())[0].skill for number in (ROW.num_units - 1, 1000))
    assert just_below == pytest.approx(at, abs=0.01)


@pytest.mark.parametrize("num_channels", [1, 3])
def test_images_without_classes_have_no_judge(num_channels, capsys):
    facts = ("--num_train_images", "50000", "--resolution", "28", "--num_channels", str(num_channels))
    said = output(capsys, *facts)
    assert "judge" not in said.split("Its plan:")[1] and "train moments" in said
    with pytest.raises(SystemExit, match="2"):
        cli.main(["recommend", *facts, "--dataset_name", "x", "--label_column", "kind"])
    assert "--label_column needs --class_names" in capsys.readouterr().err


def test_minutes_of_few_images_tell_those_of_many():
    """As measured: most of the work does not grow with the number of images."""
    rows = [row for row in read_evidence() if row.method == "moments" and row.flags[-1:] == ("judge=0.5",)]
    few, many = (next(row for row in rows if (row.data, row.epsilon) == (data, 1)) for data in ("mnist_1500", "mnist"))
    assert many.minutes < minutes_of(few, many) < 3 * many.minutes
    assert minutes_of(many, replace(many, num_units=600_000)) == pytest.approx(10 * many.minutes)


def test_no_more_images_are_advised_than_a_receipt_counts(capsys):
    said = output(capsys, "--num_train_images", "2000", "--num_classes", "200", "--target_epsilon", "0.1")
    assert "It would be fair with" in said and "20,000,000" not in said


@pytest.mark.parametrize("entry", [cli.main, lambda told: launch(lambda: print(told[-1]))])
def test_names_outside_of_the_character_set_are_escaped(entry, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr("sys.stdout", out)
    entry(["recommend", "--num_train_images", "1000", "--num_channels", "1", "--class_names", "\u65e5,b"])
    assert b"u65e5" in out.buffer.getvalue()


def test_few_minutes_make_no_method_worse_than_its_rows_are():
    """A quick row of much signal alone says little of a small one."""
    slow, quick = replace(ROW, minutes=20.0, accuracy=0.8), replace(ROW, num_units=60_000, accuracy=0.9, minutes=1.0)
    found = rank([slow, quick], ROW, (), cap=5.0)[0]
    assert found.row == quick and found.skill == pytest.approx(slow.skill)
    assert rank([slow, replace(quick, accuracy=0.5)], ROW, (), cap=5.0)[0].skill == pytest.approx(0.5)


def test_of_equally_good_rows_that_with_fewest_flags_is_taken():
    """A judge that brings nothing by its soft labels takes from hard ones."""
    judged = replace(ROW, case="judged", flags=("--budget", "judge=0.5"), accuracy=ROW.accuracy + 0.001)
    assert rank([judged, ROW], ROW, ())[0].row == ROW
    better = replace(judged, accuracy=ROW.accuracy + 0.05)
    assert rank([ROW, better], ROW, ())[0].row == better


def test_rows_are_of_methods_and_recipes_that_exist():
    for row in read_evidence():
        assert row.method in CONFIGS and 0 <= row.skill <= 1 and row.minutes > 0


def test_the_guide_says_what_the_rows_say():
    """The table of signals in docs/guides/settings.md."""
    guide = (ROOT / "docs/guides/settings.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| ([\d,]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", guide, re.MULTILINE)
    assert len(lines) == 6
    columns = [((1, 28, 28), ()), ((1, 28, 28), ("public_dataset_name",)), ((3, 32, 32), ())]
    for signal, *cells in lines:
        for said, (shape, given) in zip(cells, columns, strict=True):
            best = rank(read_evidence(), Situation(10.0, int(signal.replace(",", "")), 10, shape), given)[0]
            assert said == (best.word if best.word == "hopeless" else f"{best.word}: `{best.row.method}`"), signal
