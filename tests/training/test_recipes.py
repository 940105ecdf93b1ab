"""Recipes: each is read and planned, and starts for two steps on random images of its shape, with its own model."""

import datasets
import numpy as np
import pytest
from PIL import Image

from diffusers_dp.data.images import public_facts
from diffusers_dp.methods.config import chosen_method, load_config
from diffusers_dp.methods.flag import flags_of
from diffusers_dp.methods.recipes import epsilons_of, recipes_of
from diffusers_dp.runs.plan import plan_run
from support.feature_networks import save_classifier, save_resnet
from support.latents import stable_diffusion
from support.places import ROOT, module_of
from support.public_models import save as save_pipeline
from support.runs import load


papers = module_of(ROOT / "benchmarks" / "papers.py")
FOLDERS = sorted(path.name for path in (ROOT / "training" / "recipes").iterdir())
NAMES = [(folder, name) for folder in FOLDERS for name in recipes_of(folder)]
#: Also one for each further epsilon that a recipe has values for.
ALL_NAMES = [
    (folder, name + end) for folder, name in NAMES
    for end in ("", *(f"_eps{each}" for each in epsilons_of(recipes_of(folder)[name], name)[1:] if "_eps" not in name))
]  # fmt: skip
NUM_IMAGES = 40
# What is shortened, where the method has it: numbers of steps, images and noise levels, never model or queries.
SHORT = {
    "num_train_images": NUM_IMAGES, "validation_size": 0, "train_batch_size": 2, "max_train_steps": 2,
    "lr_warmup_steps": 0, "target_epsilon": 30, "spatial_sample_rate": 0.1, "spatial_steps": 1,
    "spatial_batch_size": 2, "frequency_steps": 1, "frequency_batch_size": 2, "generator_steps": 1,
    "generator_batch_size": 10, "num_auxiliary_images": 10, "num_generated_images": 10, "diffusion_steps": 1,
    "num_stopping_images": 10, "stopping_steps": 1,
    "num_inference_steps": 1, "max_physical_batch_size": 2, "candidates_per_class": 4, "images_per_class": 2,
    "lookahead": 1, "noise_multiplicity": 2, "steps_per_network": 1, "network_steps": 1,
    "semantic_classes_per_class": 1, "noise_bands": 1, "num_teachers": 4, "generator_inference_steps": 7,
}  # fmt: skip


def read(folder, name, *flags):
    flags = ["--config", f"{folder}/{name}", "--dry_run", *flags]
    if name.startswith("folder_"):
        flags += ["--class_names", "a,b", "--num_train_images", "5000"]
    return load_config(flags, chosen_method(flags)), flags


def is_stated(name):
    """Whether comments have the noise of DP-SGD. Others are planned by RDP: PLD takes a second each."""
    return "_cpu" not in name or "_eps" in name


def test_every_name_of_a_recipe_is_read():
    """With its epsilon and a method that the folder's name has; comments state the noise where there is DP-SGD."""
    for folder, name in ALL_NAMES:
        config, _ = read(folder, name)
        assert folder in (config.method, "feta_pro_plus"), name
        _, end, epsilon = name.rpartition("_eps")
        assert not end or config.target_epsilon == int(epsilon), name
        stated = is_stated(name) and hasattr(config, "max_train_steps")
        assert not stated or papers.noise_of(folder, name), f"{folder}/{name} states no noise"


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([(folder, recipes_of(folder).popitem()[0]) for folder in FOLDERS], id="one of each method"),
        pytest.param(ALL_NAMES, id="all", marks=pytest.mark.slow),
    ],
)
def test_recipes_are_planned(names, monkeypatch):
    """Stages, epsilon, and the noise that comments state, without an image."""
    monkeypatch.setattr(Image, "open", lambda *_: pytest.fail("a plan reads nothing"))
    for folder, name in names:
        config, _ = read(folder, name, *([] if is_stated(name) else ["--accountant", "rdp"]))
        plan = plan_run(config, public_facts(config.data))
        steps = ["dp_sgd"] if hasattr(config, "max_train_steps") else []
        steps = ["teachers"] if config.dp_sgd is not None and config.dp_sgd.num_shares else steps
        # What gets the rest is planned last, and asked where it stands.
        queries = sorted(config.queries, key=lambda each: (each.budget_share, each.noise_multiplier) == (None, None))
        assert list(plan.rows) == [*(query.name for query in queries), *steps], name
        assert 0.98 * config.target_epsilon < plan.epsilon <= config.target_epsilon, name
        if is_stated(name) and steps:
            stated = float(papers.noise_of(folder, name))
            assert plan.rows[steps[0]].noise_multiplier == pytest.approx(stated, abs=6e-4), name


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "name"), [each for each in NAMES if not each[1].startswith("folder_")])
def test_recipe_starts_on_stand_in_images(folder, name, tmp_path, monkeypatch):
    config, recipe = read(folder, name)
    channels, side, _ = config.image_shape
    names = list(config.declared_class_names or ())
    rng = np.random.default_rng(0)
    shape = (side, side) if channels == 1 else (side, side, channels)
    images = [Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)) for _ in range(NUM_IMAGES)]
    labels = [i % max(len(names), 1) for i in range(NUM_IMAGES)]
    flags = [*recipe[:2], "--output_dir", str(tmp_path / "run")]
    by_class = config.drawn_by_class  # at least one image of each class
    short = {flag: max(value, len(names)) if flag in by_class else value for flag, value in SHORT.items()}
    if config.dp_sgd is not None and config.dp_sgd.num_shares is not None:
        del short["train_batch_size"], short["max_physical_batch_size"]  # every teacher answers in each round
    if getattr(config, "noise_multiplicity", 1) == 1:
        del short["noise_multiplicity"]
    said = flags_of(type(config))
    flags += [f"--{'expert=' * said[flag].expert}{flag}={value}" for flag, value in short.items() if flag in said]
    for network in ("feature_network", "stopping_network", "embedding_network"):
        if getattr(config, network, None):
            flags += [f"--{network}", save_resnet(tmp_path / network)]
    if getattr(config, "feature_layers", ""):
        flags += ["--feature_layers", "encoder.stages.0,encoder.stages.1"]
    if getattr(config, "semantic_query_network", None):
        flags += ["--semantic_query_network", save_classifier(tmp_path / "classifier", len(names))]
    if getattr(config, "generator", None) == "pipeline":
        model = (
            save_pipeline(tmp_path / "model", in_channels=channels, out_channels=channels, sample_size=side)
            if config.prompts is None
            else stable_diffusion(tmp_path / "model", channels)
        )
        flags += ["--pretrained_model_name_or_path", str(model)]
    if hasattr(config, "lora_rank"):
        base = stable_diffusion(tmp_path / "base", channels, side)
        flags += ["--pretrained_model_name_or_path", str(base)]
    # A folder of the name that the recipe has for its data set: only of that its facts hold.
    place = tmp_path / "data" / (config.dataset_name or config.train_data_dir).rpartition("/")[2]
    if config.dataset_name is None:
        for index, (image, label) in enumerate(zip(images, labels, strict=True)):
            folder = place / names[label]
            folder.mkdir(parents=True, exist_ok=True)
            image.save(folder / f"{index}.png")
        flags += ["--train_data_dir", str(place)]
    else:
        columns = {config.image_column: images} | ({config.label_column or "label": labels} if names else {})
        kinds = [datasets.Image(), datasets.ClassLabel(names=names)][: len(columns)]
        table = datasets.Dataset.from_dict(columns, datasets.Features(zip(columns, kinds, strict=True)))
        place.mkdir(parents=True)
        table.to_parquet(place / "train-00000-of-00001.parquet")
        flags += ["--dataset_name", str(place)]

    learns = getattr(config, "public_steps", 400) != 400  # the default, which no recipe has
    if learns or getattr(config, "generator", None) == "public_images":
        for index, image in enumerate(images):
            folder = tmp_path / "public" / str(index % len(names))
            folder.mkdir(parents=True, exist_ok=True)
            image.transpose(Image.Transpose.ROTATE_90).save(folder / f"{index}.png")
        flags += ["--public_data_dir", str(tmp_path / "public")]
        flags += "--public_steps 1 --expert public_batch_size=2".split() if learns else []
    load(config.method, monkeypatch).main(flags)

    assert (tmp_path / "run" / "release" / "privacy_receipt.json").exists()
