# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Moments, from the command line to a data set that anybody can load and check."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from diffusers_dp import load_verified, verify
from diffusers_dp.errors import UsageError
from diffusers_dp.methods import judge
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.moments import MomentsConfig
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.models.gaussian_mixture import GaussianMixture
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.queries.moments import Frequencies
from diffusers_dp.runs import result_model
from diffusers_dp.runs.moments_run import NoisyMoments
from diffusers_dp.sampling import drawing
from support.few import few
from support.flags import NUM_IMAGES
from support.runs import independent_epsilon, read_ledger


METHOD = "moments"
PLAIN = (
    "--skip_preflight --resolution 8 --accountant rdp --target_epsilon 5 --num_frequencies 9 --images_per_class 4 "
    f"--num_train_images {NUM_IMAGES}"
).split()
CLASSES = "--num_channels 1 --class_names left,empty,right".split()
FLAGS = [*PLAIN, *CLASSES, "--num_parts", "2"]
STAGES = ["grey_levels", "class_moments", "part_means_1", "part_means_2", "part_means_3", "covariances"]


@pytest.fixture(autouse=True)
def a_judge_of_few_steps(monkeypatch):
    monkeypatch.setattr(judge, "STEPS", 4)


def test_a_data_set_is_released(script, flags, tmp_path):
    """One of the classes has no image."""
    script.main(flags)
    run, release = tmp_path / "run", tmp_path / "run" / "release"
    header, rows = read_ledger(run)
    assert [(row["stage"], row["query"]["sensitivity"], row["steps_reserved"]) for row in rows] == [
        (stage, 1.0, 1) for stage in STAGES
    ]  # fmt: skip
    assert 3 < independent_epsilon(run) <= header["target_epsilon"] + 1e-3
    assert verify.report(release) == 0
    images = load_verified(release)
    assert images["label"] == [0, 1, 2] * 4, "as many of each class, whatever there is"
    assert images[0]["image"].size == (8, 8) and images.features["label"].names == ["left", "empty", "right"]


@pytest.mark.parametrize("grey", [True, False])
@pytest.mark.parametrize("more", [[], ["--budget", "judge=0.3"], ["--matched_networks", "2"]])
def test_deformations_are_of_what_is_drawn(more, grey, script, flags, tmp_path):
    """No query and no noise differs, and the receipt and the card say it."""
    if not grey:
        colour = [*colours(tmp_path / "colours"), "--class_names", "left,right"]
        flags = [*PLAIN, *colour, "--output_dir", str(tmp_path / "run")]
    script.main([*flags, *more, "--expert", "deformation=1"])
    run, release = tmp_path / "run", tmp_path / "run" / "release"
    receipt, problems = verify.verify(release)
    assert not problems and receipt["curriculum"]["deformation"] == 1.0
    assert {row["stage"] for row in read_ledger(run)[1]} - {*STAGES} <= {"judge", "network_means"}
    assert "was turned, scaled, shifted and bent" in (release / "README.md").read_text()
    images = load_verified(release)
    assert len({image.tobytes() for image in images["image"]}) == images.num_rows


def test_a_model_of_deformed_images_learns_them_and_deforms_none_itself(script, flags, tmp_path, monkeypatch):
    """The ideal denoiser of the moments would teach it images as they were before."""
    asked, plain = [], drawing.draw
    monkeypatch.setattr(result_model, "distil", lambda *_, **__: pytest.fail("It learns the moments."))
    monkeypatch.setattr(drawing, "draw", lambda *given: asked.append(given[1].deformation) or plain(*given))
    model = "--train_on_result --diffusion_steps 2 --block_out_channels 4,8".split()
    script.main([*flags, *model, "--expert", "deformation=1"])
    assert asked == [0.0] and verify.report(tmp_path / "run" / "model" / "release") == 0


MATCHED = "--matched_networks 2".split()


def test_images_are_matched_by_one_more_query(script, flags, tmp_path):
    script.main([*flags, *MATCHED])
    run, release = tmp_path / "run", tmp_path / "run" / "release"
    header, rows = read_ledger(run)
    assert sorted(row["stage"] for row in rows) == sorted([*STAGES, "network_means"])
    (row,) = (each for each in rows if each["stage"] == "network_means")
    assert row["query"]["sensitivity"] == 1.0 and row["query"]["num_networks"] == 2
    assert 3 < independent_epsilon(run) <= header["target_epsilon"] + 1e-3
    assert verify.report(release) == 0 and load_verified(release).num_rows == 12
    with pytest.raises(UsageError, match="--matched_networks is 3, and this run began with 2"):
        script.main([*flags, "--matched_networks", "3", "--resume_from_checkpoint", "latest"])


def colours(folder, shape=(8, 8, 3)):
    for number in range(NUM_IMAGES):
        path = folder / ("left", "right")[number % 5 == 0] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)
        values[..., 1] = 7  # a channel that is constant
        Image.fromarray(values).save(path)
    return ["--train_data_dir", str(folder), "--num_channels", "3"]


@pytest.mark.parametrize(
    ("more", "classes"),
    few(
        [
            (["--class_names", "left,right", "--class_balance", "released"], 2),
            (["--class_names", "left,right", "--num_frequencies", "500"], 2),  # more than there are pixels
            ([], 1),
            (MATCHED, 1),
        ],
        0,
        3,
    ),
    ids=["uneven classes", "all frequencies", "no classes", "no classes, matched"],
)
def test_colour(more, classes, script, tmp_path, capsys):
    folder = tmp_path / "images"
    flags = [*PLAIN, *colours(folder), *more, "--output_dir", str(tmp_path / "run"), "--target_epsilon", "200"]
    if classes == 1:
        for path in sorted(folder.rglob("*.png")):
            path.rename(folder / path.name)
        flags[flags.index("--train_data_dir")] = "--dataset_name"
    script.main([*flags, "--images_per_class", "40"])
    images = load_verified(tmp_path / "run" / "release")
    assert images.num_rows == 40 * classes and images[0]["image"].mode == "RGB"
    green = np.stack([np.asarray(image)[..., 1] for image in images["image"]])
    assert green.mean() < 30, "little noise is left at this epsilon"
    card = (tmp_path / "run" / "release" / "README.md").read_text()
    if "released" in more:
        assert "in the shares of noisy counts" in card and "the same number" not in card and "is private." not in card
        assert 0.7 < np.mean(np.asarray(images["label"]) == 0) < 0.9, "four of five"
    else:
        assert ("the same number of each" in card and "how frequent the classes are" in card) == (classes > 1)


def test_a_stopped_run_asks_nothing_twice(script, flags, tmp_path, monkeypatch):
    ask, asked = SensitiveImages.noisy_sum, []

    def last_fails(door, *others, **options):
        asked.append(options["name"])
        if options["name"] == "covariances" and len(asked) == len(STAGES):
            raise KeyboardInterrupt
        return ask(door, *others, **options)

    monkeypatch.setattr(SensitiveImages, "noisy_sum", last_fails)
    with pytest.raises(KeyboardInterrupt):
        script.main(flags)
    script.main([*flags, "--resume_from_checkpoint", "latest"])
    assert asked == [*STAGES, "covariances"]
    assert verify.report(tmp_path / "run" / "release") == 0 and len(read_ledger(tmp_path / "run")[1]) == len(STAGES)
    with pytest.raises(UsageError, match="--num_parts is 3, and this run began with 2"):
        script.main([*flags, "--resume_from_checkpoint", "latest", "--num_parts", "3"])
    with pytest.raises(
        UsageError, match="'part_means_1' has budget share .*, and this run began with .*: resume with"
    ):
        script.main([*flags, "--resume_from_checkpoint", "latest", "--budget", "part_means=0.2"])
    monkeypatch.setattr("diffusers_dp.runs.moments_run.FIRST_SPREAD", 0.1)
    with pytest.raises(UsageError, match="part_means_1 was asked for with centres_sha256"):
        script.main([*flags, "--resume_from_checkpoint", "latest"])


def test_parts_follow_from_public_numbers():
    def parts(images, epsilon):
        return MomentsConfig(class_names="a,b", num_train_images=images, target_epsilon=epsilon).parts

    assert [parts(12_000, 10), parts(12_000, 1), parts(1_000_000, 10), parts(100, 10)] == [8, 2, 8, 1]


def test_noise_leaves_the_covariances_of_colour_draws_that_a_judge_labels():
    """Drawn labels teach less then, above all at a small epsilon: elsewhere it is asked for."""
    said = {"class_names": "a,b", "num_train_images": 300, "dataset_name": "somebody/images", "budget": "judge=0.3"}
    for channels, labels, given, wanted in (
        (3, "judge", None, True), (1, "judge", None, False), (3, "drawn", None, False),
        (3, "judge", "kept", False), (1, "drawn", "removed", True),
    ):  # fmt: skip
        config = MomentsConfig(num_channels=channels, labels=labels, covariance_noise=given, **said)
        assert config.moment_facts["covariance_noise_removed"] == config.removes_covariance_noise == wanted


def test_frequencies_follow_from_public_numbers():
    def frequencies(images, epsilon):
        return MomentsConfig(class_names="a,b", num_train_images=images, target_epsilon=epsilon).frequencies

    found = [frequencies(*each) for each in ((1_000_000, 10), (12_000, 1), (300, 10), (300, 1), (300, 0.01))]
    assert found == sorted(found, reverse=True) and found[0] == 144 and found[-1] == 16 and len(set(found)) == 5
    undeclared = MomentsConfig(dataset_name="somebody/images", num_parts=1)
    assert undeclared.frequencies == 144 and undeclared.moment_facts["num_frequencies"] == 144


HALF = ["--expert", "public_share=0.5"]


def public(folder, names=("public",), number=60, side=8):
    for place in range(number):
        path = folder / names[place % len(names)] / f"{place:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(1000 + place).integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(values).save(path)
    return ["--public_data_dir", str(folder)]


@pytest.mark.parametrize(
    "more", [[], ["--budget", "judge=0.3"], ["--budget", "judge=0.3", "--labels", "judge", *MATCHED, *HALF]]
)
@pytest.mark.parametrize("grey", [True, False])
def test_public_images_are_moved(grey, more, script, flags, tmp_path):
    """One of the grey classes has no image. No query is asked for them, and the receipt names them by their hash."""
    if not grey:
        flags = [*PLAIN, *colours(tmp_path / "colours"), "--class_names", "left,right"]
        flags += ["--output_dir", str(tmp_path / "run")]
    else:
        flags = [each for each in flags if each not in ("--num_parts", "2")]
    images = public(tmp_path / "public")
    script.main([*flags, *more, *images])
    run, release = tmp_path / "run", tmp_path / "run" / "release"
    header, rows = read_ledger(run)
    assert {row["stage"] for row in rows} - {"judge", "network_means"} == {STAGES[0], STAGES[1], STAGES[-1]}
    assert 3 < independent_epsilon(run) <= header["target_epsilon"] + 1e-3
    receipt, problems = verify.verify(release)
    card, two = (release / "README.md").read_text(), HALF[-1] in more
    assert not problems and receipt["curriculum"]["moves_public_images"] == (0.5 if two else 1)
    (named,) = receipt["public_inputs"]
    assert (named["kind"], named["name"], named["num_images"]) == ("public images", "local folder", 60)
    assert ("Some of them" if two else "They") + " are public images that were moved to noisy moments" in card
    assert two == ("Gaussians with these moments drew the others. Gaussian draws were moved" in card)
    for forged in ([], receipt["public_inputs"] * 2):
        assert any("public images" in each for each in verify.check_method(receipt | {"public_inputs": forged}))
    found = load_verified(release)
    assert len({image.tobytes() for image in found["image"]}) == found.num_rows


@pytest.mark.parametrize(
    ("names", "number", "words"),
    [
        (("public",), 49, "--public_data_dir.* holds 49 images for a class, and 50 are needed"),
        (("left", "other"), 120, "The public images have none of the class 'empty', and some of others"),
    ],
)  # fmt: skip
def test_public_images_that_cannot_be_moved_leave_nothing_behind(names, number, words, script, flags, tmp_path):
    with pytest.raises(UsageError, match=words):
        script.main([*flags, *public(tmp_path / "public", names, number)])
    assert not (tmp_path / "run" / "private").exists()


def test_a_run_that_goes_on_names_the_public_images_that_it_moved(script, flags, tmp_path, monkeypatch):
    """No answer follows from them: others may take their place before the judge has learned, and not after."""
    first, second = public(tmp_path / "first"), public(tmp_path / "second", number=61)
    flags, go_on = [*flags, "--budget", "judge=0.3"], ["--resume_from_checkpoint", "latest"]

    def stopped(*_, **__):
        raise KeyboardInterrupt

    for owner, name, more in ((SensitiveImages, "noisy_sum", first), (NoisyMoments, "draw", [*second, *go_on])):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, name, stopped)
            script.main([*flags, *more])
    with pytest.raises(UsageError, match="This run began with another public images than the flags name now"):
        script.main([*flags, *first, *go_on])
    script.main([*flags, *second, *go_on])
    receipt, problems = verify.verify(tmp_path / "run" / "release")
    assert not problems and [each["num_images"] for each in receipt["public_inputs"]] == [61]


def test_a_class_has_the_public_images_of_its_name(script, flags, tmp_path):
    script.main([*flags, *public(tmp_path / "public", ("left", "empty", "right"), 150), "--expert", "deformation=1"])
    assert verify.report(tmp_path / "run" / "release") == 0
    found = (tmp_path / "run" / "release" / "README.md").read_text()
    assert "They are public images" in found and "was turned, scaled" in found


@pytest.mark.parametrize(("share", "public_ones"), [(1, 9), (0.5, 4), (0.3, 2), (0.1, 0)])
@pytest.mark.parametrize("levels_twice", [False, True])
def test_a_share_of_each_class_is_public_images(levels_twice, share, public_ones):
    """Gaussians draw the others, which alone are matched."""
    spectrum = Frequencies((1, 8, 8), 4)
    mixture = GaussianMixture(torch.ones(2, 1), torch.zeros(2, 1, 4), 0.1 * torch.eye(4).expand(2, 1, 4, 4))
    levels = torch.linspace(1 / 32, 1, 32).expand(2, 1, 32)
    images = [torch.randint(256, (60, 1, 8, 8), dtype=torch.uint8)] * 2
    matching = SimpleNamespace(move=lambda images, labels, seed: torch.full_like(images, 7))
    both = NoisyMoments(mixture, torch.tensor([9.0, 1.0]), levels, spectrum, matching, images, share)
    drawn, found = both.draw(10, "released", 0, levels_twice)
    moved = (drawn == 7).flatten(1).all(1)
    assert (~moved[found == 0]).sum() == public_ones and (~moved[found == 1]).sum() == (share == 1)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([*MATCHED, "--public_data_dir", "public"], "--matched_networks moves draws of Gaussians, and all images are"),
        (HALF, "--expert public_share needs --public_dataset_name or --public_data_dir"),
    ],
)
def test_shares_without_what_they_share_are_refused(more, words, flags):
    with pytest.raises(UsageError, match=words):
        load_config([*flags, *more], METHODS[METHOD])
