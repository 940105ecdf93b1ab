# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp plan`: the numbers of training, published tables, and refusals in one sentence."""

import math
import re

import pytest

from diffusers_dp import cli
from diffusers_dp.commands.plan import read
from diffusers_dp.data import images as data
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
    assert {path.name for path in tmp_path.iterdir()} <= {"set"}


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
    flags = ["--config", "mnist_eps1", "--target_epsilon", "2", "--accountant", "rdp"]
    module_of(FETA_PRO).main([*flags, "--dry_run"])
    table = capsys.readouterr().out
    assert "  DP-SGD " in table and table in output(capsys, *flags)


def test_the_first_output_is_for_people(capsys):
    """What is asked, what it costs and where it will be; numbers of the mechanism are for --details."""
    text, plan = output(capsys, *SMALL, *OTHER_IMAGES), planned(*SMALL, *OTHER_IMAGES)
    assert text.startswith("1,000 images of 3x16x16 in 2 classes; none was read for this\nasked of the private images")
    for words in (
        "central images +5 noisy answers, each from about 100 images", "frequency features +1 noisy answer from all",
        f"DP-SGD +9 steps, each from about 100 images +{plan.ledger.budget_shares()['dp_sgd']:.1%}\n",
        f"together: epsilon {plan.epsilon:.4f} at delta .*, for one of N = 1,000 images",
        "runs/feta_pro/release is for everybody",
    ):  # fmt: skip
        assert re.search(words, text), (words, text)
    assert not any(word in text for word in ("RDP", "signal", "multiplier", "accountant", "hopeless"))


@pytest.mark.parametrize(
    ("batch", "steps", "is_hopeless"), [("16", "200", True), ("150", "20", False), ("1500", "2000", False)]
)
def test_a_batch_that_drowns_in_noise_is_called_hopeless(batch, steps, is_hopeless, capsys):
    flags = (
        f"--config folder_cpu --class_names a,b --num_channels 1 --num_train_images 1500 --train_batch_size {batch}"
    )
    text = output(capsys, *flags.split(), "--max_train_steps", steps, "--target_epsilon", "1", "--accountant", "rdp")
    assert ("hopeless: images will be noise" in text and "Raise --train_batch_size" in text) == is_hopeless, text


def test_everything_is_told(capsys):
    text = output(capsys, *SMALL, *OTHER_IMAGES, "--details")
    plan = planned(*SMALL, *OTHER_IMAGES)
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


def test_without_images_at_all_no_data_set_is_opened(monkeypatch, capsys):
    monkeypatch.setattr(data, "open_source", None)
    flags = ["--config", "mnist_eps1", "--dataset_name", "no/mnist", "--num_train_images", "40000"]
    flags += "--class_names 0,1,2,3,4,5,6,7,8,9 --resolution 28 --num_channels 1 --validation_size 0".split()
    flags += ["--accountant", "rdp"]
    assert "40,000 images of 1x28x28 in 10 classes" in output(capsys, *flags)
    # With neither data nor a description, it is the demo's images that are counted.
    assert "1,000 images of 1x8x8 in 10 classes, the embedded digits" in output(capsys, *SMALL)


# Published tables: RDP, 2,100 steps of q = 1/14 on 55,000 images, the central images at q = 6000/55000.


PUBLISHED = (
    "--num_train_images 55000 --accountant rdp --target_epsilon 1 --expert spatial_sample_rate=6000/55000".split()
)


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
    noise = ["--noise_multiplier", f"central_images={spatial},frequency_features={frequency}"]
    plan = planned(*PUBLISHED, *noise, "--sample_rate", "1/14", "--max_train_steps", "2100")
    assert [100 * share for share in plan.ledger.budget_shares().values()] == pytest.approx(shares, abs=tolerance)


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


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--sweep", "target_epsilo=1,2"], ["--sweep", "target_epsilo'", "target_epsilon"]),
        (["--sweep", "target_epsilon=-1,1"], ["--target_epsilon", "-1"]),
        (["stray"], ["stray"]),
        (["--target_delta", "0.5"], ["--target_delta 0.5", "1 / 1,437 images", "--allow_large_delta"]),
    ],
)
def test_refusals_name_the_flag(argv, words, capsys):
    text = refusal(capsys, *argv)
    assert all(word in text for word in words), text


# Weight.
