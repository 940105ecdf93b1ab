# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp plan`: the numbers of training, published tables, one picture, and refusals in one sentence."""

import builtins
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from diffusers_dp import cli
from diffusers_dp.commands.plan import parse_sweep, read, sweep
from diffusers_dp.commands.plan_picture import check_picture, draw_plan
from diffusers_dp.data import images as data
from diffusers_dp.errors import UsageError
from diffusers_dp.runs.plan import plan_run
from support.places import FETA_PRO, ROOT, module_of


RECIPES = ROOT / "training" / "recipes" / "feta_pro"
# Cheap to count, with every stage.
SMALL = (
    "--num_train_images 1000 --target_epsilon 2 --accountant rdp --max_train_steps 9 --train_batch_size 100".split()
)
OTHER_IMAGES = "--class_names a,b --resolution 16 --num_channels 3".split()


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Every test runs in an empty folder, which stays empty but for what the test made."""
    monkeypatch.chdir(tmp_path)
    yield
    assert {path.name for path in tmp_path.iterdir()} <= {"picture.png", "set"}


def output(capsys, *argv, timing=False):
    cli.main(["plan", *argv, *([] if timing else ["--no_timing"])])
    return capsys.readouterr().out


def refusal(capsys, *argv):
    with pytest.raises(SystemExit) as stop:
        cli.main(["plan", *argv])
    text = capsys.readouterr().err
    assert stop.value.code == 2 and text.startswith("error: ") and text.count("\n") == 1, text
    return text


def planned(*argv):
    return plan_run(*read(list(argv)))


def test_the_plan_is_that_of_the_training_script(capsys):
    flags = ["--config", str(RECIPES / "mnist_eps1.yaml"), "--target_epsilon", "2"]
    module_of(FETA_PRO).main([*flags, "--dry_run"])
    table = capsys.readouterr().out
    assert "dp_sgd" in table and table in output(capsys, *flags)


def test_everything_is_told(capsys):
    text = output(capsys, *SMALL, *OTHER_IMAGES)
    plan = planned(*SMALL, *OTHER_IMAGES)
    assert text.startswith("planned for 1,000 images of 3x16x16 in 2 classes; none was read\n")
    assert plan.table in text
    for name, epsilon in plan.epsilon_by_accountant().items():
        assert re.search(rf"^{name}( \(decides\))? +{epsilon:.4f}$", text, re.MULTILINE)
    assert plan.epsilon_by_accountant()["pld"] < plan.epsilon == plan.epsilon_by_accountant()["rdp"] <= 2
    assert "rdp (decides)" in text and "100.0 images expected, their gradient sum divided by 100" in text
    sigma, parameters = (
        plan.rows["dp_sgd"].noise_multiplier,
        int(re.search(r"([\d,]+) parameters", text)[1].replace(",", "")),
    )
    assert parameters > 1000
    assert f"at most: {100 / (sigma * math.sqrt(parameters)):.4f} = 100.0 C / ({sigma:.4f} C sqrt(" in text


@pytest.mark.parametrize("method", ["moments", "pe", "dp_merf", "dp_scattering"])
def test_minutes_memory_and_signals_are_told_of_methods_without_dp_sgd(method, capsys):
    flags = ["--method", method, *SMALL[:4], *OTHER_IMAGES]
    text = output(capsys, *flags, timing=True)
    assert re.search(r"^how long, measured here \(c\w+, .*\): [\d.]+ \w+ in all, of which the questions ", text, re.M)
    assert re.search(r"^memory: about [\d.e-]+ GB .*; disk: about [\d.e-]+ GB", text, re.MULTILINE)
    asked = plan_run(*read(flags[2:], method)).queries
    assert [f"signal to noise of {query.name}: " in text for query in asked] == [True] * len(asked)
    assert ("ordinary training" in text) == method.startswith("dp_")
    assert "\nnoise: whole numbers, see --noise exact\n" in text


def test_a_network_that_is_not_here_is_not_timed(capsys):
    flags = ["--method", "dp_mepf", *SMALL[:4], *OTHER_IMAGES, "--feature_network", "not/here"]
    assert "how long: not measured, because the public network is not here" in output(capsys, *flags, timing=True)


def test_how_long_it_takes_is_told_of_methods_with_dp_sgd(capsys):
    text = output(capsys, "--method", "psg", *SMALL, *OTHER_IMAGES, "--classifier_width", "8", timing=True)
    assert re.search(r"^how long, measured here \(c\w+, .*\): [\d.]+ \w+ in all, of which DP-SGD 9 steps", text, re.M)
    assert re.search(r"^memory: about [\d.]+ GB .*; disk: about [\d.e-]+ GB", text, re.MULTILINE)
    assert "signal to noise" not in text, "its networks are not counted"
    swept = output(capsys, "--method", "psg", *SMALL, *OTHER_IMAGES, "--sweep", "seed=1")
    assert swept.splitlines()[1].split()[-1] == "-"
    assert "how long" not in output(capsys, "--method", "psg", *SMALL, *OTHER_IMAGES)
    latent = output(capsys, "--method", "dp_lora", *SMALL, *OTHER_IMAGES, timing=True)
    assert "not measured without --pretrained_model_name_or_path" in latent


def test_without_images_at_all_no_data_set_is_opened(monkeypatch, capsys):
    monkeypatch.setattr(data, "open_source", None)
    flags = ["--config", str(RECIPES / "mnist_eps1.yaml"), "--dataset_name", "no/mnist", "--num_train_images", "40000"]
    flags += "--class_names 0,1,2,3,4,5,6,7,8,9 --resolution 28 --num_channels 1 --validation_size 0".split()
    assert "planned for 40,000 images of 1x28x28 in 10 classes" in output(capsys, *flags)
    # With neither data nor a description, it is the demo's images that are counted.
    assert "planned for 1,000 images of 1x8x8 in 10 classes, the embedded digits" in output(capsys, *SMALL)


def test_public_facts_of_a_data_set_on_disk(capsys, tmp_path):
    (tmp_path / "set" / "a").mkdir(parents=True)
    for index in range(30):
        Image.new("L", (8, 8), index).save(tmp_path / "set" / "a" / f"{index}.png")
    flags = ["--train_data_dir", "set", "--class_names", "a,b", "--accountant", "rdp", "--train_batch_size", "10"]
    text = output(capsys, *flags, "--resolution", "8", "--num_channels", "1")
    assert text.startswith("planned for 30 images of 1x8x8 in 2 classes; none was read")


def test_what_a_large_delta_means_is_told_of_one_plan_and_of_a_sweep(capsys):
    sentence = (
        "A delta of 0.002 is not below 1 / 1,000 images: such a guarantee allows to publish some of them outright."
    )
    flags = [*SMALL, "--curriculum", "none", "--max_train_steps", "1"]
    large = [*flags, "--target_delta", "0.002", "--allow_large_delta"]
    assert planned(*large).table.count(sentence) == 1
    assert output(capsys, *large, "--sweep", "target_epsilon=1,2").count(sentence) == 1
    swept = output(capsys, *flags, "--sweep", "target_delta=0.002,1e-3,1e-5")
    assert "target_delta=0.002: --target_delta 0.002 is not below" in swept and swept.count("--allow_large_delta") == 2


def test_the_method_is_told_or_named_by_the_recipe(capsys):
    lines = output(capsys, "--method", "dpdm", *SMALL).splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["dp_sgd", "total"]
    assert "central_images" in output(capsys, *SMALL)
    text = refusal(capsys, "--method", "dpdm", *SMALL, "--curriculum", "none")
    assert "--curriculum is not a flag" in text
    head, line = output(capsys, "--method", "dpdm", *SMALL, "--sweep", "target_epsilon=1").splitlines()[:2]
    assert head.split() == ["target_epsilon", "epsilon", "dp_sgd", "batch", "steps", "signal/noise"]
    assert line.split()[:2] == ["1", f"{planned('--curriculum=none', *SMALL, '--target_epsilon=1').epsilon:.4f}"]


# Published tables: RDP, 2,100 steps of q = 1/14 on 55,000 images, the central images at q = 6000/55000.


PUBLISHED = "--num_train_images 55000 --accountant rdp --target_epsilon 1 --spatial_sample_rate 6000/55000".split()


@pytest.mark.parametrize(
    ("spatial", "frequency", "shares", "tolerance"),
    [
        (2, 26, (80.07, 3.6, 16.33), 1.3),  # printed with more for the first stage than any order gives
        (5, 26, (5.25, 2.95, 91.8), 0.2),
        (10, 26, (1.22, 2.95, 95.83), 0.1),
        (30, 26, (0.13, 2.93, 96.94), 0.1),
        (20, 20, (0.3, 4.94, 94.77), 0.1),
        (20, 42, (0.29, 1.12, 98.59), 0.1),
        (20, 115, (0.3, 0.15, 99.55), 0.1),
    ],
)
def test_table_12_of_feta_pro(spatial, frequency, shares, tolerance):
    noise = ["--spatial_noise_multiplier", str(spatial), "--frequency_noise_multiplier", str(frequency)]
    plan = planned(*PUBLISHED, *noise, "--sample_rate", "1/14", "--max_train_steps", "2100")
    assert [100 * share for share in plan.ledger.budget_shares().values()] == pytest.approx(shares, abs=tolerance)


def test_a_row_of_table_11_of_feta_pro_by_a_sweep():
    """All of it is in `test_accounting.py`."""
    flags = [*PUBLISHED, "--spatial_noise_multiplier", "5", "--train_batch_size", "4096", "--max_train_steps", "2014"]
    table = sweep(flags, "frequency_noise_multiplier", ["11", "25", "66"])
    found = [float(line.split()[6]) for line in table.splitlines()[1:4]]
    assert found == pytest.approx([16.74, 15.51, 15.29], abs=0.02)


# Sweeps.


def test_a_sweep_has_a_line_for_each_value(capsys):
    lines = output(capsys, *SMALL, "--sweep", "target_epsilon=0.5,1,5").splitlines()
    assert lines[0].split() == [
        "target_epsilon", "epsilon", "central_images", "frequency_features", "dp_sgd", "batch", "steps",
        "signal/noise",
    ]  # fmt: skip
    assert len({len(line) for line in lines[:4]}) == 1, "aligned"
    for line, target in zip(lines[1:4], ("0.5", "1", "5"), strict=True):
        plan = planned(*SMALL, "--target_epsilon", target)
        cells = line.split()
        assert cells[:2] == [target, f"{plan.epsilon:.4f}"]
        share = plan.ledger.budget_shares()["dp_sgd"]
        assert cells[6:8] == [f"{plan.rows['dp_sgd'].noise_multiplier:.4f}", f"({share:.1%})"]


def test_values_with_commas_are_separated_by_semicolons():
    assert parse_sweep("--curriculum = none; frequency,spatial;none", ["seed", "curriculum"]) == (
        "curriculum",
        ["none", "frequency,spatial"],
    )
    lines = sweep(SMALL, "curriculum", ["none", "frequency,spatial"]).splitlines()
    assert lines[1].split()[2:4] == ["-", "-"] and "-" not in lines[2].split()


def test_a_value_that_cannot_be_planned_has_a_reason(capsys):
    flags = [*SMALL, "--frequency_noise_multiplier", "3", "--spatial_noise_multiplier", "9"]
    lines = output(capsys, *flags, "--sweep", "target_epsilon=0.5,9").splitlines()
    assert lines[1].split() == ["0.5", *7 * "-"] and lines[2].split()[0] == "9"
    assert lines[-1].startswith("target_epsilon=0.5: The queries alone cost")
    text = refusal(capsys, *flags, "--sweep", "target_epsilon=0.5,0.6")
    assert "target_epsilon=0.5" in text and "--frequency_noise_multiplier" in text


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--sweep", "target_epsilo=1,2"], ["--sweep", "target_epsilo'", "target_epsilon"]),
        (["--sweep", "dry_run=true"], ["--sweep", "dry_run"]),
        (["--sweep", "target_epsilon"], ["--sweep", "target_epsilon=V1,V2"]),
        (["--sweep", "target_epsilon=1,,2"], ["--sweep", "target_epsilon=V1,V2"]),
        (["--sweep", "target_epsilon=1,many"], ["--target_epsilon", "many"]),
        (["--sweep", "target_epsilon=-1,1"], ["--target_epsilon", "-1"]),
        (["--sweep", "accountant=rdp,gdp"], ["--accountant", "gdp"]),
        (["--sweep", "sample_rate=0.1", "--train_batch_size", "9"], ["--sample_rate", "--train_batch_size"]),
        (["--sweep", "target_epsilon=1", "--picture", "a.png"], ["--picture", "--sweep"]),
        (["--target_epsilo", "1"], ["--target_epsilo ", "--target_epsilon"]),
        (["stray"], ["stray"]),
        (["--config", "nowhere.yaml"], ["--config nowhere.yaml"]),
        (["--train_batch_size", "2000"], ["--train_batch_size 2000", "1437"]),
        (["--target_delta", "0.5"], ["--target_delta 0.5", "1 / 1,437 images", "--allow_large_delta"]),
        (["--train_data_dir", "nowhere", "--class_names", "a"], ["--train_data_dir nowhere", "--num_train_images"]),
        (["--picture", "a.pdf"], ["--picture a.pdf", ".png"]),
        (["--picture", "nowhere/a.png"], ["--picture nowhere/a.png", "folder"]),
    ],
)
def test_refusals_name_the_flag(argv, words, capsys):
    text = refusal(capsys, *argv)
    assert all(word in text for word in words), text


def test_other_commands_take_no_training_flags(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["verify", "folder", "--target_epsilon", "1"])
    assert stop.value.code == 2 and "unrecognized arguments: --target_epsilon 1" in capsys.readouterr().err


# The picture.


def test_the_picture_is_drawn(capsys):
    text = output(capsys, *SMALL, "--picture", "picture.png")
    assert text.endswith("picture: picture.png\n")
    with Image.open("picture.png") as picture:
        assert picture.format == "PNG" and picture.size == (1500, 600)
        assert len(picture.convert("RGB").getcolors(10**6)) > 20


def test_the_curve_of_the_picture_rises_through_the_plan():
    plan = planned(*SMALL)
    queries, *between, planned_steps, more = plan.epsilon_against_steps([0, 3, 6, 9, 14], "rdp")
    assert queries == pytest.approx(dict(plan.ledger.epsilon_by_stage())["frequency_features"])
    assert queries < between[0] < between[1] < planned_steps < more
    assert planned_steps == pytest.approx(plan.epsilon)
    assert planned("--curriculum", "none", *SMALL).epsilon_against_steps([0], "rdp") == [0]


def test_a_picture_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--picture .*cannot be written"):
        draw_plan(planned(*SMALL), tmp_path / "nowhere" / "picture.png")


def test_without_matplotlib_the_way_to_get_it_is_told(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"pip install diffusers_dp\[plot\]"):
        check_picture(Path("picture.png"))


# Weight.


def test_the_accounting_loads_neither_torch_nor_matplotlib():
    code = (
        "import sys; from diffusers_dp.commands.plan import read; from diffusers_dp.runs.plan import plan_run\n"
        f"plan = plan_run(*read({SMALL})); plan.table; plan.ledger.epsilon('pld')\n"
        "assert not {'torch', 'opacus', 'diffusers', 'matplotlib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_help_tells_where_the_training_flags_are(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["plan", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "--sweep" in text and "train_feta_pro.py" in text
