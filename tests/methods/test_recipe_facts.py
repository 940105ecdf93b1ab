# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A shipped recipe's N, classes, size and channels hold for the data set that it names, and for no other."""

import shlex

import datasets
import huggingface_hub
import pytest
from PIL import Image

from diffusers_dp.data.images import public_facts
from diffusers_dp.errors import UsageError
from diffusers_dp.methods.config import CONFIGS, chosen_method, load_config
from support.places import ROOT


RECIPES = [path for path in sorted((ROOT / "training/recipes").glob("*/*.yaml")) if path.stem != "folder_cpu"]


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


def pasted(said):
    """The flags that a refusal gives."""
    return shlex.split(said.partition("; add: ")[2])


@pytest.mark.parametrize("method", ["feta_pro", "dp_merf", "pe", "dp_gan"])
@pytest.mark.parametrize("by_path", [True, False])
def test_a_recipe_s_facts_are_those_of_its_own_data_set(method, by_path, shapes):
    """N, classes, size and channels of MNIST are not those of other images; what is refused can be pasted."""
    path = str(ROOT / "training" / "recipes" / method / "mnist_cpu.yaml")
    flags = ["--config", path if by_path else "mnist_cpu", "--train_data_dir", str(shapes)]
    config_class = CONFIGS[method]
    with pytest.raises(UsageError) as refusal:
        load_config(flags, config_class)
    said = str(refusal.value)
    assert "describes ylecun/mnist" in said and "\n" not in said
    more = pasted(said)
    assert more == ["--num_train_images", "7", "--class_names", "a square,circle", "--resolution", "28",
                    "--num_channels", "1"]  # fmt: skip
    if method == "pe":
        more += ["--public_data_dir", "elsewhere"]
    config = load_config([*flags, *more], config_class)
    assert (config.num_train_images, config.declared_class_names) == (7, ("a square", "circle"))
    assert public_facts(config.data).num_images == 7
    for left_out in (0, 2, 4, 6):
        with pytest.raises(UsageError) as refusal:
            load_config([*flags, *more[:left_out], *more[left_out + 2 :]], config_class)
        assert pasted(str(refusal.value)) == more[left_out : left_out + 2]


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
    with pytest.raises(UsageError, match="--num_train_images N --class_names A,B"):  # nothing is known of it
        load_config(["--config", "mnist_cpu", "--dataset_name", "no/such"])


def test_every_recipe_with_a_number_names_its_data_set():
    for path in RECIPES:
        flags = ["--config", str(path), "--dry_run"]
        config = load_config(flags, chosen_method(flags))
        assert config.dataset_name or config.train_data_dir, path
