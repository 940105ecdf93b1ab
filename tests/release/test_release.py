"""The release: exactly the allow-list, hashes that match, and two doors that open onto the same images."""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard

from diffusers_dp import load_verified
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.release.allow_list import RELEASE_FILES
from diffusers_dp.release.artefacts import PipelineArtefact
from diffusers_dp.release.receipt import hash_release
from diffusers_dp.verify import verify
from support.releases import make_release, make_unet


SECRET = "patient-4711"


def files_of(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


@pytest.fixture()
def run(tmp_path):
    """A run's folder with what must never leave it."""
    private = tmp_path / "run" / "private"
    (private / "checkpoint-5").mkdir(parents=True)
    (private / "checkpoint-5" / "random_states_0.pkl").write_text(SECRET)
    (private / "loss.csv").write_text(SECRET)
    return tmp_path / "run"


class TestAllowList:
    def test_exactly_these_files(self, run):
        release = make_release(run)
        assert release == run / "release"
        assert files_of(release) == sorted(RELEASE_FILES)
        assert sorted(os.listdir(run)) == ["private", "release"]

    def test_no_secret_and_no_path_in_any_file(self, run):
        unet = make_unet(3)
        unet.register_to_config(_name_or_path=f"{run}/private/checkpoint-5")  # as Diffusers notes it on loading
        release = make_release(run, unet=unet)
        for name in RELEASE_FILES:
            content = (release / name).read_bytes()
            assert SECRET.encode() not in content
            assert str(run).encode() not in content

    def test_an_earlier_release_is_replaced_whole(self, run):
        (make_release(run) / "stray.bin").write_text("")
        (run / "private" / "ledger.jsonl").unlink()
        assert files_of(make_release(run)) == sorted(RELEASE_FILES)
        assert sorted(os.listdir(run)) == ["private", "release"]

    def test_a_failure_leaves_nothing(self, run, monkeypatch):
        def fail(*args, **kwargs):
            raise OSError("disk full")

        monkeypatch.setattr(PipelineArtefact, "card", fail)
        with pytest.raises(OSError, match="disk full"):
            make_release(run)
        assert os.listdir(run) == ["private"]


class TestStatement:
    def test_hashes_match(self, run):
        release = make_release(run)
        content = (release / "privacy_receipt.json").read_bytes()
        receipt = json.loads(content)
        assert receipt["files"] == hash_release(release)
        hashed = {file["name"] for file in receipt["files"]}
        assert hashed == set(RELEASE_FILES) - {"README.md", "privacy_receipt.json"}
        index = json.loads((release / "model_index.json").read_text())
        assert index["privacy"]["receipt_sha256"] == hashlib.sha256(content).hexdigest()
        assert index["_class_name"] == "DPImagePipeline"

    def test_statement_is_the_receipts_claim_by_the_runs_accountant(self, run):
        release = make_release(run)
        receipt = json.loads((release / "privacy_receipt.json").read_text())
        privacy = DPImagePipeline.from_pretrained(release).config.privacy
        assert privacy["epsilon"] == receipt["claimed_epsilon"]["rdp"]["epsilon"] <= 10.0
        assert (privacy["delta"], privacy["accountant"]) == (1e-5, "rdp")

    def test_card(self, run):
        release = make_release(run)
        card = ModelCard.load(release / "README.md")
        assert card.data.library_name == "diffusers"
        assert card.data.pipeline_tag == "unconditional-image-generation"
        assert {"differential-privacy", "dp-sgd", "image-generation", "synthetic", "class-conditional"} == set(
            card.data.tags
        )
        epsilon = json.loads((release / "model_index.json").read_text())["privacy"]["epsilon"]
        stated = float(card.text.split("epsilon = ")[1].split(",")[0])
        assert epsilon <= stated < epsilon + 1e-4
        assert "| dp sgd | poisson gaussian | 2 | 0.25 | 40 |" in card.text  # two reservations, one line
        assert "class_labels=[0, 1, 2]" in card.text
        assert "num images: 1437" in card.text
        text = " ".join(card.text.split())
        # The adjacency that is accounted, and no stronger one: an image may be missing, not be another one.
        assert "was used or contributed nothing (the number of images unchanged)" in text and "replaced" not in text
        assert "SHA-256 of each file but this card and itself" in text

    def test_what_training_began_with(self, run):
        """Stated in the receipt, with what is assumed of it, and in the card; without it neither says a word."""
        origin = {"kind": "model", "name": "someone/ddpm", "revision": "ab" * 20, "licence": "apache-2.0"}
        release = make_release(run, public_inputs=[origin])
        receipt = json.loads((release / "privacy_receipt.json").read_text())
        assert receipt["public_inputs"] == [origin] and "`public_inputs` was public" in receipt["assumptions"][-1]
        assert verify(release)[1] == []
        line = f"- kind: model; licence: apache-2.0; name: someone/ddpm; revision: {'ab' * 20}"
        assert line in (release / "README.md").read_text().splitlines()
        release = make_release(run)
        receipt = json.loads((release / "privacy_receipt.json").read_text())
        assert receipt["public_inputs"] == [] and "public_inputs" not in " ".join(receipt["assumptions"])
        assert "Training began with" not in (release / "README.md").read_text()


# For releases and where to put their images, in pairs.
SECOND_DOOR = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "diffusers_dp":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocker())
import numpy, torch
from diffusers import DiffusionPipeline

for release, images in zip(sys.argv[1::2], sys.argv[2::2]):
    pipe = DiffusionPipeline.from_pretrained(release, custom_pipeline=release, trust_remote_code=True)
    numpy.save(images, pipe(batch_size=2, generator=torch.Generator().manual_seed(3), output_type="np").images)
assert not any(name.startswith("diffusers_dp.") for name in sys.modules)
"""


# For releases and folders, in pairs: a copy is saved and loaded as a release is.
COPY = """
import sys
import torch
from diffusers import DiffusionPipeline

for release, copy in zip(sys.argv[1::2], sys.argv[2::2]):
    drawn = []
    for place in (release, copy):
        pipe = DiffusionPipeline.from_pretrained(place, custom_pipeline=place, trust_remote_code=True)
        drawn.append(pipe(batch_size=2, generator=torch.Generator().manual_seed(3), output_type="pt").images)
        if place == release:
            pipe.save_pretrained(copy)
    torch.testing.assert_close(*drawn, atol=1e-4, rtol=0)
"""


class TestDoors:
    @pytest.mark.slow
    def test_a_copy_loads_as_the_release_does_and_keeps_its_receipt(self, tmp_path):
        release, copy = make_release(tmp_path), tmp_path / "copy"
        environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
        asked = [sys.executable, "-c", COPY, str(release), str(copy)]
        done = subprocess.run(asked, env=environment, check=True, capture_output=True, text=True)
        assert "covers files with the hashes that it lists" in done.stderr
        load_verified(release).save_pretrained(tmp_path / "second")
        for name in ("pipeline.py", "privacy_receipt.json"):
            for folder in (copy, tmp_path / "second"):
                assert (folder / name).read_bytes() == (release / name).read_bytes()

    def test_both_doors_give_the_same_images(self, tmp_path):
        """With classes and without, in patches of one pixel and of two."""
        first = {}
        for num_classes, patch_size in ((3, 1), (None, 2)):
            release = make_release(tmp_path / str(patch_size), num_classes, patch_size)
            pipe = DPImagePipeline.from_pretrained(release)
            images = pipe(batch_size=2, generator=torch.Generator().manual_seed(3), output_type="np").images
            assert images.shape == (2, 8, 8, 1)
            first |= {str(release): images}
        asked = [place for release in first for place in (release, f"{release}.npy")]
        environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
        subprocess.run([sys.executable, "-c", SECOND_DOOR, *asked], env=environment, check=True)
        for release, images in first.items():
            np.testing.assert_allclose(np.load(f"{release}.npy"), images, atol=1e-4)
