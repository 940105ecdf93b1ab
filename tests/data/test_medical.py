# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""DICOM and NIfTI, on the files that pydicom and nibabel ship: a declared window, blanks for what is damaged, and
nothing outside `private/` that tells of it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diffusers_dp.data.decoding import Described, decode_as_it_is, decode_image, describe_file
from diffusers_dp.data.images import load_images, public_facts
from diffusers_dp.errors import UsageError
from diffusers_dp.evaluation.images import Source
from support.images import folder_config


CT, MR, WINDOW = "CT_small.dcm", "MR_small.dcm", (-160.0, 240.0)


@pytest.fixture
def scans():
    pydicom = pytest.importorskip("pydicom", reason="pydicom is not installed: diffusers_dp[medical]")
    return Path(pydicom.__file__).parent / "data" / "test_files"


@pytest.fixture
def nibabel():
    return pytest.importorskip("nibabel", reason="nibabel is not installed: diffusers_dp[medical]")


def folder_of(tmp_path, scans, *, last="good", name="scans"):
    folder = tmp_path / name
    (folder / "ct").mkdir(parents=True)
    for number in range(3):
        shutil.copy(scans / CT, folder / "ct" / f"{number}.dcm")
    shutil.copy(scans / MR, folder / "ct" / "3.DCM")
    if last == "broken":
        content = (scans / MR).read_bytes()
        (folder / "ct" / "3.DCM").write_bytes(content[: len(content) // 2])
    return folder


def flags(folder, **more):
    return folder_config(
        folder,
        **{"class_names": "ct", "num_channels": 1, "window": "40,400", "image_suffixes": ".dcm", **more},
    ).data


class TestDicom:
    def test_the_window_is_in_the_scanner_s_units(self, scans):
        from pydicom import dcmread

        scan = dcmread(scans / CT)
        units = scan.pixel_array * float(scan.RescaleSlope) + float(scan.RescaleIntercept)
        expected = np.rint(((units + 160) / 400 * 255).clip(0, 255))
        assert np.array_equal(decode_as_it_is(scans / CT, value_range=WINDOW)[0], expected)
        assert np.array_equal(decode_as_it_is((scans / CT).read_bytes(), value_range=WINDOW)[0], expected)
        assert decode_image(scans / CT, (3, 16, 16), value_range=WINDOW).shape == (3, 16, 16)

    def test_what_the_file_says_of_a_window_changes_nothing_and_low_values_can_be_bright(self, scans, tmp_path):
        from pydicom import dcmread

        scan = dcmread(scans / CT)
        scan.WindowCenter, scan.WindowWidth = 1000, 3
        scan.PhotometricInterpretation = "MONOCHROME1"
        scan.save_as(tmp_path / "inverted.dcm")
        both = [decode_as_it_is(path, value_range=WINDOW) for path in (scans / CT, tmp_path / "inverted.dcm")]
        assert np.abs(both[0].astype(int) + both[1] - 255).max() <= 1

    def test_their_owner_is_told_their_values_from_which_a_window_is_chosen(self, scans, tmp_path):
        from pydicom import dcmread

        scan = dcmread(scans / CT)
        units = scan.pixel_array * float(scan.RescaleSlope) + float(scan.RescaleIntercept)
        scan.PhotometricInterpretation = "MONOCHROME1"
        scan.save_as(tmp_path / "inverted.dcm")
        for path in (scans / CT, tmp_path / "inverted.dcm"):
            for source in (path, path.read_bytes()):
                said = Described("128x128", "F", ends=(units.min(), units.max()))
                assert describe_file(source, 10**6, WINDOW) == said

    @pytest.mark.parametrize(
        ("name", "shape"),
        [
            ("JPEG2000.dcm", (1, 1024, 256)), ("SC_rgb_rle_2frame.dcm", (3, 100, 100)),
            ("MR_truncated.dcm", None), ("rtplan.dcm", None), ("no_meta.dcm", None), ("examples_palette.dcm", None),
        ],
    )  # fmt: skip
    def test_the_first_frame_or_nothing_and_not_a_word(self, scans, name, shape, capfd):
        found = decode_as_it_is(scans / name, value_range=WINDOW)
        assert (None if found is None else found.shape) == shape
        assert capfd.readouterr() == ("", "")

    def test_values_that_are_no_numbers_have_no_ends(self, scans, monkeypatch):
        plane = np.array([[0.0, np.nan]], np.float32)
        monkeypatch.setattr("diffusers_dp.data.decoding.open_medical", lambda *_: Image.fromarray(plane))
        assert describe_file(scans / CT, 10**6, WINDOW).ends is None

    def test_a_stranger_s_synthetic_images_are_no_scans(self, scans, tmp_path):
        """Whatever they are called."""
        shutil.copy(scans / CT, tmp_path / "1.png")
        others = {"value_range": WINDOW, "split_flag": "--images", "is_untrusted": True}
        for given, shape in ((others, None), ({"value_range": WINDOW}, (1, 128, 128))):
            found = Source("--images", str(tmp_path), **given)._decode(tmp_path / "1.png")
            assert (None if found is None else found.shape) == shape
        assert Source("--images", str(tmp_path), **others)._decode(tmp_path / "gone") is None

    def test_a_table_names_them_with_a_suffix_or_without(self, scans, tmp_path):
        """As scanners export them; each belongs to a patient. Others beside them are ignored, and no one of these."""
        for other in ("IM0002", "3.dcm", "4.png"):
            shutil.copy(scans / CT, tmp_path / other)
        shutil.copy(scans / CT, tmp_path / "IM0001")
        shutil.copy(scans / CT, tmp_path / "2.dcm")
        (tmp_path / "scans.csv").write_text("file_name,label,patient\nIM0001,a,7\n2.dcm,b,8\nIM0003,b,8\n")
        data = folder_config(
            "", train_data_dir=None, dataset_name=str(tmp_path / "scans.csv"), class_names="a,b", num_channels=1,
            window="40,400", unit_column="patient", num_train_units=2, num_train_images=3,
        ).data  # fmt: skip
        arrays = load_images(data, public_facts(data), tmp_path / "cache")
        assert arrays.readable.tolist() == [True, True, False] and arrays.labels[:2].tolist() == [0, 1]
        noted = json.loads((tmp_path / "cache" / "reading.json").read_text())
        assert noted == {"ignored_files": {"": 1, ".dcm": 1, ".png": 1}, "unreadable_images": 1}

    def test_no_window_no_image_and_none_of_too_many_pixels(self, scans):
        """A range from the data would tell of them."""
        assert decode_as_it_is(scans / CT) is None
        assert decode_as_it_is(scans / CT, max_pixels=128 * 128 - 1, value_range=WINDOW) is None


class TestNifti:
    def test_the_middle_plane_lies_as_radiologists_look_at_it(self, nibabel, tmp_path):
        """However the file's axes run: the front above, the right side left."""
        body = np.zeros((6, 8, 5), dtype=np.float32)  # to the right, forward, upward
        body[5, 7, 2], body[0, 0, 2], body[:, :, 1] = 100, 50, 75
        volume = nibabel.Nifti1Image(body, np.eye(4))
        for axes in ("RAS", "LPS", "SAR", "PIR", "ALI"):
            turned = volume.as_reoriented(
                nibabel.orientations.ornt_transform(
                    nibabel.io_orientation(np.eye(4)), nibabel.orientations.axcodes2ornt(tuple(axes))
                )
            )
            assert nibabel.aff2axcodes(turned.affine) == tuple(axes)
            nibabel.save(turned, tmp_path / "scan.nii.gz")
            found = decode_as_it_is(tmp_path / "scan.nii.gz", value_range=(0, 100))[0]
            assert found.shape == (8, 6) and found[0, 0] == 255 and found[7, 5] == 128 and (found > 0).sum() == 2

    def test_files_of_nibabel(self, nibabel):
        folder = Path(nibabel.__file__).parent / "tests" / "data"
        if not folder.is_dir():
            pytest.skip("nibabel is installed without its files")
        assert decode_as_it_is(folder / "anatomical.nii", value_range=(0, 255)).shape == (1, 41, 33)
        assert decode_as_it_is(folder / "example4d.nii.gz", value_range=(0, 255)).shape == (1, 96, 128)

    def test_a_broken_one_is_nothing(self, nibabel, tmp_path, capfd):
        (tmp_path / "scan.nii.gz").write_bytes(b"\x1f\x8b and then nothing")
        assert decode_as_it_is(tmp_path / "scan.nii.gz", value_range=(0, 255)) is None
        assert capfd.readouterr() == ("", "")


class TestFolders:
    def read(self, folder, cache, **more):
        data = flags(folder, **more)
        facts = public_facts(data)
        return facts, load_images(data, facts, cache)

    def test_a_broken_scan_is_a_blank_and_its_number_stays_private(self, scans, tmp_path, capfd):
        said = []
        for last in ("good", "broken"):
            folder = folder_of(tmp_path, scans, last=last, name=last)
            (folder / "ct" / "notes.txt").write_text("")
            (folder / "ct" / "0.png").write_bytes(b"")
            facts, arrays = self.read(folder, tmp_path / f"{last} cache")
            said.append((facts, arrays.images.shape, capfd.readouterr().out))
            assert arrays.readable.tolist() == [True, True, True, last == "good"]
            noted = json.loads((tmp_path / f"{last} cache" / "reading.json").read_text())
            assert noted == {"ignored_files": {".png": 1, ".txt": 1}, "unreadable_images": int(last == "broken")}
        assert said[0] == said[1]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"image_suffixes": None}, r"--train_data_dir holds no images .*--image_suffixes .*\.dcm .* named"),
            ({"window": None}, "--image_suffixes .dcm needs a declared black and white; add --value_range.* 40,400"),
        ],
    )
    def test_what_is_not_declared_is_one_sentence(self, scans, tmp_path, change, words):
        with pytest.raises(UsageError, match=words) as refused:
            public_facts(flags(folder_of(tmp_path, scans), **change))
        assert refused.value.exit_code == 2

    def test_an_evaluation_names_its_own_flags(self, scans, tmp_path):
        """It has `--value_range`, and neither `--window` nor `--image_suffixes`."""
        real = Source("--real", str(folder_of(tmp_path, scans)), trained_on={"image_suffixes": [".dcm"]})
        with pytest.raises(UsageError, match="^--real .dcm needs a declared black and white; add --value_range"):
            real.shape("train", tmp_path / "cache")

    @pytest.mark.parametrize(("suffix", "package"), [(".dcm", "pydicom"), (".nii.gz", "nibabel")])
    def test_without_the_extra_it_is_one_sentence(self, tmp_path, monkeypatch, suffix, package):
        (tmp_path / "ct").mkdir()
        (tmp_path / "ct" / f"0{suffix}").write_bytes(b"")
        monkeypatch.setattr("diffusers_dp.data.medical.find_spec", lambda name: None)
        with pytest.raises(
            UsageError, match=rf"needs {package}, which is not installed: .* pip install -e .*\[medical\]"
        ):
            public_facts(flags(tmp_path, image_suffixes=suffix))
