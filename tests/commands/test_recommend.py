# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp recommend`: a ranking by measured rows, a command that runs, and sentences for impossible facts."""

import re
import shlex
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from PIL import Image

from diffusers_dp import cli
from diffusers_dp.methods.advice import MeasuredRow, Situation, far_from, rank, read_evidence, what_would
from diffusers_dp.methods.config import CONFIGS, load_config
from diffusers_dp.methods.registry import METHODS
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
    assert text == output(capsys, *ISSUE.split(), "--train_data_dir", "my scans", command="plan")


def test_it_answers_within_seconds_and_loads_no_torch():
    code = "import sys; from diffusers_dp import cli\ntry: cli.main(sys.argv[1:])\nexcept SystemExit: pass\n"
    code += "assert 'torch' not in sys.modules"
    start = time.process_time(), time.perf_counter()
    subprocess.run([sys.executable, "-c", code, "recommend", *ISSUE.split()], check=True, capture_output=True)
    assert time.perf_counter() - start[1] < 20, "5 s on a machine with nothing else to do"


def test_many_classes_take_no_minutes(capsys):
    start = time.process_time()
    cli.main("recommend --num_train_images 1000000 --num_classes 100000".split())
    assert "coefficients in 100000 classes" in capsys.readouterr().out
    assert time.process_time() - start < 20, "it took three minutes to look for classes named twice"


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


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ("--num_train_images 120 --resolution 256 --num_classes 3 --target_epsilon 0.5", ("hopeless: ", "would be: ")),
        (
            "--num_train_images 30 --value_range 0,4095 --num_channels 1 --resolution 64",
            ("of one class", "would be: "),
        ),
        ("--num_train_images 60000 --num_classes 10 --minutes 0.001", ("within 0.001 minutes: raise --minutes",)),
        ("--num_train_images 900 --unit_column patient --num_train_units 90 --dataset_name d --class_names a,b",
         ("for 90 units (patient) of", "45 units (patient) of a class")),
    ],
)  # fmt: skip
def test_answers_where_little_can_be_done(facts, words, capsys):
    text = output(capsys, *facts.split())
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ("", "--num_train_images is missing"), ("--num_train_images 1", "--target_delta has no default"),
        ("--num_train_images 30 --num_classes 40", "less than one for each"),
        ("--num_train_images 30 --num_channels 2", "--num_channels is 2"), ("--eps 3", "nearest is --target_epsilon"),
        ("--num_train_images 30 --target_epsilon inf", "--target_epsilon is inf"),
        ("--num_train_images 30 --value_range 4095,0", "--value_range"), ("--num_train_images x", "invalid int"),
        ("--num_train_images 9 --num_classes 2 --class_names a,b", "exclude each other"),
        ("--num_train_images 9 --class_names a,a", "twice"),
        ("--num_train_images 9 --num_train_units 3", "--unit_column"),
        ("--num_train_images 100000000000 --num_classes 2", "lower --num_train_images"),
    ],
)  # fmt: skip
def test_impossible_facts_are_refused_in_one_sentence(facts, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["recommend", *facts.split()])
    said = capsys.readouterr()
    assert (stopped.value.code, said.out, said.err.count("\n")) == (2, "", 1) and words in said.err


def test_a_method_that_needs_public_images_is_weighed_where_they_are_named(capsys):
    facts = [*ISSUE.split(), "--train_data_dir", "scans"]
    assert "pe: not weighed without --public_data_dir" in output(capsys, *facts)
    assert "\npe " in output(capsys, *facts, "--public_data_dir", "drawings")


def test_more_signal_never_does_worse_and_less_does_in_proportion():
    rows = [ROW, replace(ROW, num_units=10_000, accuracy=0.5), replace(ROW, num_units=100_000, accuracy=0.9)]
    skills = [rank(rows, replace(ROW, num_units=number), ())[0].skill for number in (10, 500, 1000, 30_000, 10**7)]
    assert skills == sorted(skills)
    assert (skills[1], skills[2], skills[-1]) == pytest.approx((0.45, 0.9, 1.0))
    for method, share in (("dp_diffusion", 0.25), ("pe", 0.5)):
        public = [replace(each, method=method, needs=("x",)) for each in rows]
        assert rank(public, replace(ROW, num_units=250), ("x",))[0].skill == pytest.approx(0.9 * share)


def test_a_method_of_other_images_is_judged_by_what_others_lose_between_them():
    colour = {"image_shape": (3, 32, 32), "data": "cifar10"}
    rows = [ROW, replace(ROW, accuracy=0.42, **colour), replace(ROW, method="pe", accuracy=0.66)]
    found = {each.row.method: each.skill for each in rank(rows, replace(ROW, **colour), ())}
    assert found == pytest.approx({"moments": 0.4, "pe": 0.7 * 0.4 / 0.9})
    assert [each.row.method for each in rank([ROW, *rows[2:]], replace(ROW, **colour), ())] == ["moments", "pe"]
    assert far_from([ROW], Situation(10.0, 10, 10, (3, 256, 256)))[1].startswith("196,608 values")


def test_what_would_do_is_the_least_change_of_each_kind():
    few = replace(ROW, num_units=100, epsilon=1.0)
    assert what_would([ROW], few, ()) == ("fair", ["N 10,000", "epsilon 10 with N 1,000"])
    assert what_would([ROW], replace(few, num_units=1000), ())[1][:2] == ["epsilon 10", "N 10,000"]
    assert what_would([replace(ROW, accuracy=0.42)], few, ())[0] == "poor"
    assert what_would([replace(ROW, accuracy=0.11)], few, ()) == ("poor", [])
    with_public = [replace(ROW, accuracy=0.11), replace(few, method="pe", needs=("public_dataset_name",))]
    assert "--public_dataset_name" in what_would(with_public, few, ())[1]


def test_rows_are_of_methods_and_recipes_that_exist():
    for row in read_evidence():
        assert row.method in CONFIGS and 0 <= row.skill <= 1 and row.minutes > 0


def test_the_guide_says_what_the_rows_say():
    """The table of signals in docs/guides/choose.md."""
    guide = (ROOT / "docs/guides/choose.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| ([\d,]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", guide, re.MULTILINE)
    assert len(lines) == 6
    columns = [((1, 28, 28), ()), ((1, 28, 28), ("public_dataset_name",)), ((3, 32, 32), ())]
    for signal, *cells in lines:
        for said, (shape, given) in zip(cells, columns, strict=True):
            best = rank(read_evidence(), Situation(10.0, int(signal.replace(",", "")), 10, shape), given)[0]
            assert said == (best.word if best.word == "hopeless" else f"{best.word}: `{best.row.method}`"), signal
