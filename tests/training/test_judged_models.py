# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A judge beside a model: trained by DP-SGD before it, balanced on its draws, released with it; and what it says of
them."""

import io
import json
import pickle
import shutil
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file, save_file

from diffusers_dp.app import painting, views
from diffusers_dp.app.downloads import dataset_zip
from diffusers_dp.app.drawing import read_order
from diffusers_dp.app.shelf import Shelf
from diffusers_dp.commands.app import Limits
from diffusers_dp.data.images import public_facts
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.evaluation.images import Source
from diffusers_dp.methods import judge as method
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.models.judge import JudgeFeatures, LabelJudge, load_judge, new_network
from diffusers_dp.queries.efficientnet import EFFICIENTNET
from diffusers_dp.queries.moments import all_frequencies
from diffusers_dp.release.allow_list import JUDGE_FILE, RELEASE_FILES
from diffusers_dp.release.image_tables import PROBABILITIES
from diffusers_dp.release.loading import load_verified, open_release
from diffusers_dp.release.push import files_to_push
from diffusers_dp.runs import judge as runs
from diffusers_dp.runs.plan import plan_run
from diffusers_dp.sampling import shards
from diffusers_dp.sampling.drawing import Drawing, draw, pixels_of
from diffusers_dp.verify import check_method, file_digest, verify
from support import evaluating, forked, sampling
from support.few import few
from support.flags import RESUME, SHORT_FETA_PRO, SHORT_RUN
from support.judges import few_steps
from support.patients import unit_flags, write_dataset
from support.places import ROOT
from support.releases import reseal
from support.runs import PowerCut, cut_power_at, files, load, read_ledger, receipt_of, write_images


METHOD = "dpdm"
SHARE = ["--budget", "judge=0.3"]
FLAGS = [*SHORT_RUN, *SHARE]
OWN = {
    "dpdm": [], "dp_feta": "--spatial_steps 1 --expert spatial_batch_size=6 --num_central_images 2".split(),
    "feta_pro": SHORT_FETA_PRO[len(SHORT_RUN) :],
    "dp_gan": "--expert discriminator_channels=4,generator_batch_size=6 --discriminator_steps 2".split(),
}  # fmt: skip
SHAPE = (1, 8, 8)
ABOUT = {"features": "scattering", "num_frequencies": "64", "temperature": "2.0"}


def few_draws(patch):
    few_steps(patch)
    patch.setattr(runs, "DRAWS", 7)  # ten of each class are 30


@pytest.fixture(autouse=True)
def few_judged(monkeypatch):
    few_draws(monkeypatch)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of DPDM, made once."""
    folder = tmp_path_factory.mktemp("judged")
    with pytest.MonkeyPatch.context() as patch:
        few_draws(patch)
        images = write_images(folder / "images")
        load(METHOD, patch).main([*FLAGS, *images, "--output_dir", str(folder / "run")])
    return folder / "run"


@pytest.fixture
def release(run, tmp_path):
    """A copy of its release."""
    return shutil.copytree(run / "release", tmp_path / "release")


@pytest.mark.parametrize("name", few(list(OWN), 2, 3))
def test_a_model_is_released_with_its_judge(name, tmp_path, monkeypatch):
    """Colour, too."""
    channels = 3 if name == "dp_gan" else 1
    given = [*FLAGS, *OWN[name], *write_images(tmp_path / "images"), "--num_channels", str(channels)]
    load(name, monkeypatch).main([*given, "--output_dir", str(tmp_path / "run")])
    release, stages = tmp_path / "run" / "release", [row["stage"] for row in read_ledger(tmp_path / "run")[1]]
    assert verify(release)[1] == [] and files(release) == {*RELEASE_FILES, JUDGE_FILE}
    assert set(files_to_push(release)) == files(release)
    asked = [stage for stage in stages if stage != "dp_sgd"]
    assert asked[-1] == "judge" and stages == asked + ["dp_sgd"] * 2
    assert receipt_of(tmp_path / "run")["curriculum"]["judge_frequencies"] == (64 if channels == 1 else 256)
    pipeline = load_verified(release)
    judge = load_judge(release / JUDGE_FILE, (channels, 8, 8), 3)
    assert judge.biases.isfinite().all() and judge.biases.abs().max() > 0, "one class has no images"
    assert "`judge.safetensors`" in (release / "README.md").read_text()
    assert pipeline.num_classes == 3


def test_the_share_is_that_of_the_judge(tmp_path):
    given = [*SHORT_RUN, "--dry_run"]
    plain, judged = (load_config([*given, *more], METHODS[METHOD]) for more in ([], SHARE))
    plan = plan_run(judged, public_facts(judged.data))
    assert list(plan.rows)[:2] == ["judge", "dp_sgd"] and plan.ledger.budget_shares()["judge"] == pytest.approx(
        0.3, abs=0.02
    )
    assert plain.queries == () and plain.training_facts == {}


def test_biases_are_those_of_its_own_draws(run):
    """Of a public seed: whoever has the model finds them again, and no private image moved them."""
    judge = load_judge(run / "release" / JUDGE_FILE, SHAPE, 3)
    drawing = Drawing(num_images=30, num_inference_steps=1)
    images = torch.from_numpy(pixels_of(draw(load_verified(run / "release"), drawing)))
    found = judge.balanced(images, torch.arange(30) % 3)
    assert torch.allclose(found.biases, judge.biases, atol=1e-3)
    assert judge.label(images).mean(0).tolist() == pytest.approx([1 / 3] * 3, abs=0.01)


@pytest.mark.parametrize("kind", few(["broken", "absent"]))
def test_a_record_less_shows_nowhere(kind, run, script, tmp_path, monkeypatch):
    images = write_images(tmp_path / "images", kind)
    script.main([*FLAGS, *images, "--output_dir", str(tmp_path / "run")])
    one, other = ({**receipt_of(each), "files": None} for each in (run, tmp_path / "run"))
    assert one == other and files(run / "release") == files(tmp_path / "run" / "release")


@pytest.mark.parametrize("last", [3, 7])
def test_a_kill_in_either(last, script, flags, tmp_path, monkeypatch):
    """In the judge and in the model; what a checkpoint holds is not trained again."""
    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        cut_power_at(patch, script, last)
        script.main(flags)
    with pytest.raises(UsageError, match="This run began with the query 'judge'"):
        script.main([*(flag for flag in flags if flag not in SHARE), *RESUME])
    script.main([*flags, *RESUME])
    assert verify(tmp_path / "run" / "release")[1] == []
    steps = dict.fromkeys(("judge", "dp_sgd"), 0)
    for row in read_ledger(tmp_path / "run")[1]:
        steps[row["stage"]] += row["steps_reserved"]
    assert steps == ({"judge": 5, "dp_sgd": 4} if last == 3 else {"judge": 4, "dp_sgd": 6})


def test_units_of_several_images_and_records_without_a_label(tmp_path, monkeypatch):
    write_dataset(tmp_path / "data")
    table = tmp_path / "data" / "metadata.csv"
    lines = table.read_text().splitlines()
    lines[3] = lines[3].replace("healthy", "").replace("ill", "")
    table.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(method, "BATCH_SIZE", 1)
    load("feta_pro", monkeypatch).main([*unit_flags(tmp_path / "data", tmp_path / "run"), *SHARE])
    assert verify(tmp_path / "run" / "release")[1] == []
    events = [event for event in receipt_of(tmp_path / "run")["events"] if event["stage"] == "judge"]
    assert {event["query"]["max_images_per_unit"] for event in events} == {4}
    assert {event["query"]["normaliser"] for event in events} == {1}


@pytest.mark.parametrize("what, words", [("one", "have one class"), ("none", "have no classes"), ("exact", "exclude")])
def test_what_a_judge_cannot_be(what, words, script, tmp_path):
    given = [*FLAGS, *write_images(tmp_path / "images")]
    if what == "none":
        write_dataset(tmp_path / "data")
        given = [flag for flag in given if flag not in ("--class_names", "left,empty,right")]
        given[-2:] = ["--dataset_name", str(tmp_path / "data")]
    elif what == "one":
        for name in ("empty", "right"):
            shutil.rmtree(tmp_path / "images" / name)
        given += ["--class_names", "left"]
    with pytest.raises(UsageError, match=words):
        script.main([*given, "--output_dir", str(tmp_path / "run"), *["--noise", "exact"][: 2 * (what == "exact")]])
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_guarantee_draws_and_releases_no_judge(script, flags, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "balanced_on_draws", None)
    script.main([*flags, "--target_epsilon", "inf"])
    assert not list((tmp_path / "run").rglob(JUDGE_FILE))


@pytest.mark.slow
def test_two_processes_train_it(tmp_path):
    images = write_images(tmp_path / "images")
    given = [*SHORT_RUN, *SHARE, *images, "--output_dir", tmp_path / "run"]
    done = forked.run(ROOT / "training" / "train_dpdm.py", *given, folder=tmp_path, count=2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert verify(tmp_path / "run" / "release")[1] == [] and receipt_of(tmp_path / "run")["processes"] == [2]
    assert JUDGE_FILE in files(tmp_path / "run" / "release")


def state_files(release):
    """As they are, in the receipt."""

    def change(receipt):
        for file in receipt["files"]:
            file["sha256"] = file_digest(release / file["name"])

    reseal(release, change)


def test_a_model_draws_without_the_network_of_its_judge(release, tmp_path, monkeypatch, capsys):
    """Where it is not installed, nobody labels."""
    features = JudgeFeatures(SHAPE, 64, EFFICIENTNET)
    LabelJudge(features, new_network(features, 3), torch.zeros(3), 2.0).save(release / JUDGE_FILE)
    state_files(release)
    monkeypatch.setattr("diffusers_dp.queries.efficientnet.find_spec", lambda name: None)
    assert load_verified(release)(class_labels=[0], num_inference_steps=1).images
    with pytest.raises(SystemExit):
        sampling.run(release, tmp_path / "out")
    assert "[features]" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["changed", "missing", "unlisted", "foreign", "shape", "stray", "frequencies"])
def test_a_judge_that_is_not_that_of_the_receipt_is_refused(what, release, honest, tmp_path):
    """A forger may write the hash of another; its numbers are those of these images, or it is not opened."""
    path = release / JUDGE_FILE
    tensors = load_file(path)
    if what == "changed":
        tensors["class_biases"] += 1
    elif what == "shape":
        tensors["weight"] = tensors["weight"][:2].contiguous()
    if what == "missing":
        path.unlink()
    elif what == "unlisted":
        reseal(release, lambda receipt: receipt["files"].pop(next(
            i for i, file in enumerate(receipt["files"]) if file["name"] == JUDGE_FILE
        )))  # fmt: skip
    elif what == "stray":
        shutil.copy(path, shutil.copytree(honest, tmp_path / "other") / JUDGE_FILE)
        release = tmp_path / "other"
    elif what == "foreign":
        path.write_bytes(b"\x80\x04pickled")
        state_files(release)
    else:
        save_file(tensors, path, metadata=ABOUT | ({"num_frequencies": "1"} if what == "frequencies" else {}))
        if what in ("shape", "frequencies"):
            state_files(release)
    words = {"foreign": "no judge", "shape": "no judge", "frequencies": "its receipt tells of another judge"}
    with pytest.raises(IntegrityError, match=words.get(what, JUDGE_FILE)):
        load_verified(release)


def test_a_judge_is_read_once(run, monkeypatch):
    """It is checked when the model is loaded, and used when draws are labelled."""
    found = []
    monkeypatch.setattr("diffusers_dp.models.judge.load_judge", lambda *given: found.append(1) or load_judge(*given))
    drawer = shards.Drawer.of(str(run / "release"), Drawing(num_inference_steps=1), "cpu")
    assert drawer.release.judge is drawer.release.judge is not None and found == [1]


@pytest.mark.parametrize("name", ["DPDM", "DP-Diffusion"])
def test_steps_of_a_judge_are_those_of_a_method_that_has_one(name, run):
    receipt = receipt_of(run)
    receipt["method"]["name"] = name
    assert bool(list(check_method(receipt))) == (name != "DPDM")
    del receipt["curriculum"]["judge_frequencies"]
    assert list(check_method(receipt))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 6)])
def test_a_judge_of_a_model_sees_all_of_an_image(shape):
    """And takes no memory for waves."""
    images = torch.rand(4, *shape) * 2 - 1
    number = all_frequencies(shape)
    whole, most = JudgeFeatures(shape, number), JudgeFeatures(shape, number - 4)
    assert whole.waves is None and most.waves is not None
    waves = torch.linalg.svd(torch.randn(np.prod(shape), np.prod(shape)))[0]
    found = whole(images)
    whole.waves = waves
    assert torch.allclose(whole(images), found, atol=1e-3)
    assert not torch.allclose(most(images), found, atol=1e-3)


def soft_labels_of(folder):
    table = parquet.read_table(folder / "data")
    return np.array(table.column(PROBABILITIES).to_pylist(), np.float32), table.column("label").to_pylist()


@pytest.mark.parametrize("more", [[], ["--deformation", "1"]])
def test_draws_have_soft_labels(more, run, tmp_path):
    """Of the images as they are written; `label` is what was drawn."""
    images, labels, features = sampling.run(run / "release", tmp_path / "out", *more)
    soft, _ = soft_labels_of(tmp_path / "out")
    judge = load_judge(run / "release" / JUDGE_FILE, SHAPE, 3)
    assert np.abs(judge.label(torch.from_numpy(images[:, None])).numpy() - soft).max() < 1e-3
    assert labels == [i % 3 for i in range(10)] and features[PROBABILITIES].length == 3
    assert features[PROBABILITIES].feature.dtype == "float16"
    stated = json.loads((tmp_path / "out" / "sampling.json").read_text())
    assert stated["label_probabilities"] == "judge" and "labels" not in stated
    assert stated.get("deformation", 0) == bool(more)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Labels are what the model was asked for" in card and "`label_probabilities` holds" in card
    assert "--label_probabilities" not in card


def test_neither_count_nor_shard_changes_them(run, tmp_path, monkeypatch):
    sampling.run(run / "release", tmp_path / "whole")
    monkeypatch.setattr(shards, "IMAGES_PER_SHARD", 4)
    flags = ["--num_images", "7", "--batch_size", "3", "--class_balance", "0.1,0.1,0.8"]
    sampling.run(run / "release", tmp_path / "fewer", *flags[:4])
    sampling.run(run / "release", tmp_path / "other", *flags)
    whole, fewer, other = (soft_labels_of(tmp_path / name) for name in ("whole", "fewer", "other"))
    assert np.abs(whole[0][:7] - fewer[0]).max() < 5e-3
    same = [i for i in range(7) if whole[1][i] == other[1][i]]
    assert same and np.abs(whole[0][same] - other[0][same]).max() < 5e-3


def test_the_page_says_what_the_judge_thinks(run, tmp_path):
    """As the column has it, which goes into a data set that a visitor saves; in words, of a stranger's class names."""
    sampling.run(run / "release", tmp_path / "out")
    soft, _ = soft_labels_of(tmp_path / "out")
    shelf = Shelf([str(run / "release")], Limits(max_images=10))
    opened = shelf.open(str(run / "release"))
    *_, drawn = shelf.draw(opened, read_order(opened, ([], 10, 0, 2, "dpm"), shelf.limits))
    assert drawn.soft_labels.dtype == np.float32 and np.abs(drawn.soft_labels - soft).max() < 5e-3
    sure = np.float32([[0.004, 0.9, 0.096], *[[0.5, 0.25, 0.25]] * 9])
    drawn = replace(drawn, soft_labels=sure)
    assert drawn.opinions[:2] == [["empty: 90%", "right: 10%"], ["left: 50%", "empty: 25%", "right: 25%"]]
    shown = views.drawing(drawn)
    assert "<small>empty: 90%</small>" in shown and "what the judge of the release finds most probable" in shown
    evil = replace(drawn, released=replace(opened, class_names=("<b>", "a", "b")))
    assert "<b>" not in views.drawing(evil)
    zipfile.ZipFile(io.BytesIO(dataset_zip(drawn))).extractall(tmp_path / "set")
    assert np.abs(soft_labels_of(tmp_path / "set")[0] - sure).max() < 1e-3
    assert "The column `label_probabilities` holds" in (tmp_path / "set" / "README.md").read_text()


def test_the_page_draws_without_the_network_of_a_judge(run, release, monkeypatch):
    features = JudgeFeatures(SHAPE, 64, EFFICIENTNET)
    LabelJudge(features, new_network(features, 3), torch.zeros(3), 2.0).save(release / JUDGE_FILE)
    state_files(release)
    monkeypatch.setattr("diffusers_dp.queries.efficientnet.find_spec", lambda name: None)
    found = open_release(release)
    pictures, soft = painting.paint(found, Drawing(num_images=2, batch_size=2, num_inference_steps=1))
    assert len(pictures) == 2 and soft is None


def test_labels_of_the_judge(run, tmp_path, capsys):
    _, labels, _ = sampling.run(run / "release", tmp_path / "out", "--labels", "judge")
    soft, _ = soft_labels_of(tmp_path / "out")
    assert labels == soft.argmax(1).tolist() != [i % 3 for i in range(10)]
    assert json.loads((tmp_path / "out" / "sampling.json").read_text())["labels"] == "judge"
    card = (tmp_path / "out" / "README.md").read_text()
    assert "--labels judge" in card and "Labels are what the model was asked for" not in card
    assert "Drawn classes take turns" in card
    with pytest.raises(SystemExit):
        sampling.run(run / "release", tmp_path / "out")
    assert "holds images of another command" in capsys.readouterr().err
    drawer = shards.Drawer.of(str(run / "release"), Drawing(), "cpu", labels="judge")
    assert pickle.loads(pickle.dumps(drawer)).labels == "judge"  # in another process


def test_a_release_without_a_judge_has_no_column(honest, tmp_path, capsys):
    sampling.run(honest, tmp_path / "out")
    assert parquet.read_table(tmp_path / "out" / "data").column_names == ["image", "label"]
    assert "label_probabilities" not in (tmp_path / "out" / "sampling.json").read_text()
    with pytest.raises(SystemExit) as refused:
        sampling.run(honest, tmp_path / "other", "--labels", "judge")
    assert refused.value.code == 2 and not (tmp_path / "other").exists()
    assert "--labels judge needs a release with a judge" in capsys.readouterr().err


def figures(folder, *flags):
    """The classifiers whose accuracy an evaluation says."""
    given = ["--classifiers", "cnn", "logreg", "--classifier_epochs", 1, "--utility_sizes", 9]
    given += ["--extractors", "pixels", "--metrics", "fid", "--output_dir", folder]
    evaluating.run(*flags, *given)
    found = evaluating.read(folder / "private" / "unprotected" / "evaluation")["measurements"]
    return {each["protocol"]["classifier"] for each in found if "classifier" in each["protocol"]}


BOTH = {"cnn", "cnn on soft labels", "logreg"}


def test_an_evaluation_of_a_model_says_both_figures(run, judged_data, tmp_path):
    said = figures(
        tmp_path, "--model", run / "release", "--real", judged_data / "real", "--num_images", 30,
        "--num_inference_steps", 1,
    )  # fmt: skip
    assert BOTH <= said and "logreg on soft labels" not in said


def test_an_evaluation_of_drawn_images_says_both_figures(run, honest, judged_data, tmp_path):
    """Also of some of them. Without a judge there is one."""
    sampling.run(run / "release", tmp_path / "drawn")
    sampling.run(honest, tmp_path / "plain")
    real = ("--real", judged_data / "real")
    assert BOTH <= figures(tmp_path / "a", "--images", tmp_path / "drawn", *real, "--num_images", 9)
    assert "cnn on soft labels" not in figures(tmp_path / "b", "--images", tmp_path / "plain", *real)


def test_an_evaluation_reads_the_soft_labels_of_each_image(run, tmp_path):
    """Some of the images, in shards."""
    images, _, _ = sampling.run(run / "release", tmp_path / "drawn")
    soft, _ = soft_labels_of(tmp_path / "drawn")
    source = Source("--images", str(tmp_path / "drawn"), is_untrusted=True)
    found = source.load("train", SHAPE, resize=False, cache_dir=tmp_path, limit=6)
    places = [next(i for i, one in enumerate(images) if np.array_equal(one, each[0])) for each in found.images]
    assert len(places) == 6 and np.array_equal(found.probabilities, soft[places])
