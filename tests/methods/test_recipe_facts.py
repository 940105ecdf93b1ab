# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A shipped recipe's N, classes, size and channels hold for the data set that it names, and for no other."""

import datasets
import huggingface_hub
import pytest
from PIL import Image

from diffusers_dp.errors import UsageError
from diffusers_dp.methods.config import load_config
from support.places import ROOT


@pytest.fixture(autouse=True)
def an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def shapes(tmp_path):
    """A folder of 7 images in two classes, which no recipe knows."""
    folder = tmp_path / "some shapes"
    for number in range(7):
        path = folder / ("circle", "a square")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(path)
    return folder


@pytest.mark.parametrize("by_path", [True, False])
def test_a_recipe_s_facts_are_those_of_its_own_data_set(by_path, shapes):
    """N, classes, size and channels of MNIST are not those of other images."""
    path = str(ROOT / "training" / "recipes" / "feta_pro" / "mnist_cpu.yaml")
    flags = ["--config", path if by_path else "mnist_cpu", "--train_data_dir", str(shapes)]
    facts = {"num_train_images": "7", "class_names": "a square,circle", "resolution": "28", "num_channels": "1"}
    with pytest.raises(UsageError, match=f"describes ylecun/mnist, .* add --{' and --'.join(facts)}.$"):
        load_config(flags)
    declared = {name: [f"--{name}", value] for name, value in facts.items()}
    assert load_config([*flags, *sum(declared.values(), [])]).num_train_images == 7
    for left_out in facts:
        with pytest.raises(UsageError, match=f"; add --{left_out}.$"):
            load_config([*flags, *sum((said for name, said in declared.items() if name != left_out), [])])


def test_a_copy_of_the_data_set_is_known_by_its_name(shapes, monkeypatch):
    """As the documentation has it: path/to/mnist. What lies in it is nobody's business before the run."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # else each name is asked for several times
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    copy = shapes.rename(shapes.with_name("mnist"))
    assert load_config(["--config", "mnist_cpu", "--dataset_name", str(copy)]).num_train_images == 60_000
    assert load_config(["--config", "mnist_cpu", "--dataset_name", "ylecun/mnist"]).num_train_images == 60_000
    assert load_config(["--config", "mnist_cpu", "--dataset_name", "YLecun/MNIST"]).num_train_images == 60_000
    assert load_config(["--config", "mnist_cpu"]).num_train_images == 60_000
    monkeypatch.chdir(copy)
    here = ["--dataset_name", ".", "--output_dir", "../run"]
    assert load_config(["--config", "mnist_cpu", *here]).num_train_images == 60_000
    for other in (
        ["--train_data_dir", str(copy)],
        ["--dataset_name", "somebody/mnist"],
        ["--dataset_name", "no/such"],
    ):
        with pytest.raises(UsageError, match="describes ylecun/mnist"):
            load_config(["--config", "mnist_cpu", *other])
