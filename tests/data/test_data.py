"""From flags to images: public facts without reading an image, damaged images that contribute nothing, refusals."""

import shutil
import unicodedata
from dataclasses import replace

import datasets
import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image, ImageFile

from diffusers_dp.data.decoding import decode_as_it_is, decode_image
from diffusers_dp.data.images import load_images, public_facts
from diffusers_dp.data.sources import load_digits_split
from diffusers_dp.errors import UsageError
from diffusers_dp.methods.feta_pro import FETAProConfig
from diffusers_dp.randomness.keyed_hash import digests_of, is_held_out
from support.images import config_of, encode, folder_config, grey, image_bytes, labelled, read_images, save_parquet


@pytest.fixture
def class_folders(tmp_path):
    """Three declared classes: one with images of all kinds, one with an empty folder, one without a folder."""
    folder = tmp_path / "images"
    (folder / "empty").mkdir(parents=True)
    (folder / "cat" / "deep").mkdir(parents=True)
    rgb = Image.new("RGB", (20, 10), (200, 0, 0))
    files = {
        "01_plain.png": encode(rgb),
        "02_broken.png": encode(rgb)[:40],
        "03_nan.tiff": encode(Image.fromarray(np.full((9, 9), np.nan, np.float32)), "TIFF"),
        "04_rgba.png": encode(rgb.convert("RGBA")),
        "05_palette.png": encode(rgb.convert("P", palette=Image.Palette.ADAPTIVE)),
        "06_16bit.png": encode(Image.fromarray(np.full((12, 30), 257 * 90, np.uint16))),
        "07_float.tiff": encode(Image.fromarray(np.full((9, 9), 0.5, np.float32)), "TIFF"),  # of no declared range
        "08_empty.jpg": b"",
        "deep/09.jpeg": encode(rgb, "JPEG"),
        "notes.txt": b"not an image",
    }
    for name, content in files.items():
        (folder / "cat" / name).write_bytes(content)
    return folder


def test_digits_split_is_stratified_and_fixed():
    (train, train_labels), (test, test_labels) = load_digits_split(True), load_digits_split(False)
    assert train.shape == (1437, 1, 8, 8) and test.shape == (360, 1, 8, 8)
    assert train.dtype == np.uint8 and train.max() == 255 and train_labels.dtype == np.int64
    shares = np.bincount(train_labels) / 1437 - np.bincount(test_labels) / 360
    assert np.abs(shares).max() < 0.003
    everything = {image.tobytes() for image in train}
    assert not everything & {image.tobytes() for image in test}
    assert (load_digits_split(True)[0] == train).all()


def test_class_folders_of_all_kinds(class_folders, tmp_path, capfd):
    facts, arrays = read_images(folder_config(class_folders), tmp_path)
    assert (facts.num_images, facts.image_shape, facts.class_names) == (9, (3, 8, 8), ("dog", "cat", "empty"))
    assert arrays.images.shape == (9, 3, 8, 8) and arrays.images.dtype == np.uint8
    assert arrays.readable.tolist() == [True, False, False, True, True, True, False, False, True]
    assert (arrays.labels[arrays.readable] == 1).all()
    assert not arrays.images[~arrays.readable].any()
    red = np.array([200, 0, 0])[:, None, None]
    for row in (0, 3, 4):
        assert (arrays.images[row] == red).all()
    assert (arrays.images[5] == 90).all()
    assert np.abs(arrays.images[8].astype(int) - red).max() <= 3
    output = capfd.readouterr()
    assert output.out == "" and output.err.count("9/9") >= 1 and "arn" not in output.err


def test_damage_and_absence_change_no_output(class_folders, tmp_path, capfd):
    """The bar ends at the declared number, whether an image is damaged or missing."""
    config = folder_config(class_folders, num_train_images=20)
    read_images(config, tmp_path)
    (class_folders / "cat/01_plain.png").unlink()
    (class_folders / "cat/04_rgba.png").write_bytes(b"II*\x00 damaged")
    facts, arrays = read_images(config, tmp_path)
    assert facts.num_images == 20 and len(arrays.images) == 8
    lines = [line.split("[")[0] for line in capfd.readouterr().err.splitlines() if "100%" in line]
    ends = [line[line.index("100%") :] for line in lines]
    assert len(ends) == 2 and ends[0] == ends[1]


def test_images_beyond_the_declared_number_are_refused(class_folders, tmp_path):
    for flags in ({"num_train_images": 8}, {"num_train_images": 6, "validation_size": 2}):
        words = (
            f"--num_train_images {flags['num_train_images']} .* --train_data_dir; give --num_train_images [79] or a"
        )
        with pytest.raises(UsageError, match=words):
            public_facts(folder_config(class_folders, **flags).data)
    public_facts(folder_config(class_folders, num_train_images=7, validation_size=2).data)


def test_too_few_declared_images_are_refused_while_reading_where_no_metadata_tell(class_folders, tmp_path):
    config = folder_config(class_folders)
    facts = replace(public_facts(config.data), num_images=8)
    with pytest.raises(UsageError, match="--num_train_images 8 .* --train_data_dir"):
        load_images(config.data, facts, tmp_path / "cache")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda folder: (folder / "bird").mkdir(), "--class_names .* bird"),
        (lambda folder: (folder / "stray.png").write_bytes(b""), "--train_data_dir"),
        (lambda folder: folder.rename(folder.with_name("elsewhere")), "--train_data_dir"),
        (lambda folder: shutil.rmtree(folder / "cat"), "--train_data_dir holds no images"),
    ],
)
def test_folder_refusals(class_folders, change, match):
    change(class_folders)
    with pytest.raises(UsageError, match=match):
        public_facts(folder_config(class_folders).data)


def test_parquet_with_class_label(tmp_path):
    content = [encode(grey(value)) for value in (10, 20, 30)]
    images = image_bytes(*content, b"broken", None)
    name = save_parquet(tmp_path / "set", {"image": images, "label": [1, 0, None, 1, 0]}, labelled(["no", "yes"]))
    config = FETAProConfig(dataset_name=name, resolution=8, num_channels=1)
    facts, arrays = read_images(config, tmp_path)
    assert facts.num_images == 5 and facts.class_names == ("no", "yes")
    assert arrays.readable.tolist() == [True, True, False, False, False]
    assert arrays.labels[:2].tolist() == [1, 0] and arrays.images[:2, 0, 0, 0].tolist() == [10, 20]
    assert any((tmp_path / "cache").iterdir())


def test_declared_class_names_reorder_rename_and_refuse(tmp_path):
    images = image_bytes(encode(grey()), encode(grey()))
    name = save_parquet(tmp_path / "set", {"image": images, "label": [0, 1]}, labelled(["no", "yes"]))

    def labels(class_names: str) -> list[int]:
        return read_images(config_of(name, class_names=class_names), tmp_path)[1].labels.tolist()

    assert labels("yes,no,perhaps") == [1, 0]
    assert labels("nein,ja") == [0, 1]
    for names in ("no,maybe", "Yes,No", "ja,NO"):  # like another's name is no position
        with pytest.raises(UsageError, match="--class_names .* no, yes"):
            labels(names)


def test_names_of_a_class_label_are_compared_as_labels_are(tmp_path):
    accents = [unicodedata.normalize(form, "é") for form in ("NFD", "NFC")]
    columns = {"image": image_bytes(encode(grey()), encode(grey())), "label": [0, 1]}
    name = save_parquet(tmp_path / "set", columns, labelled([f"{accents[0]} ", "yes"]))
    assert read_images(config_of(name, class_names=f"yes,{accents[1]}"), tmp_path)[1].labels.tolist() == [1, 0]
    name = save_parquet(tmp_path / "two", columns, labelled(["no", "no "]))
    with pytest.raises(UsageError, match="--class_names .* no, no"):  # nor are two classes made one
        read_images(config_of(name, class_names="no,yes"), tmp_path / "other")


def test_plain_labels_need_declared_names(tmp_path):
    images = image_bytes(*[encode(grey())] * 4)
    name = save_parquet(
        tmp_path / "set",
        {"image": images, "label": [0, 1, 2, -1]},
        datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    )
    with pytest.raises(UsageError, match="--class_names"):
        public_facts(FETAProConfig(dataset_name=name).data)
    _, arrays = read_images(FETAProConfig(dataset_name=name, class_names="a,b"), tmp_path)
    assert arrays.readable.tolist() == [True, True, False, False] and arrays.labels.tolist() == [0, 1, 0, 0]


def test_images_that_are_not_called_so(tmp_path):
    """Parquet that another library wrote: bytes and a path, or bytes alone, without the metadata of `datasets`."""
    struct = [{"bytes": encode(grey(9)), "path": "a.png"}, {"bytes": b"broken", "path": "b.png"}, None]
    (tmp_path / "set").mkdir()
    pyarrow.parquet.write_table(
        pyarrow.table({"scan": struct, "raw": [encode(grey(7)), b"broken", None], "text": ["a", "b", "c"]}),
        tmp_path / "set" / "train-00000-of-00001.parquet",
    )
    for column, value in (("scan", 9), ("raw", 7)):
        config = FETAProConfig(dataset_name=str(tmp_path / "set"), image_column=column, num_channels=1, resolution=8)
        facts, arrays = read_images(config, tmp_path)
        assert facts.num_images == 3 and arrays.readable.tolist() == [True, False, False]
        assert (arrays.images[0] == value).all()
    with pytest.raises(UsageError, match="--image_column 'text' holds no images"):
        public_facts(FETAProConfig(dataset_name=str(tmp_path / "set"), image_column="text").data)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([[0], [1]], datasets.List(datasets.Value("int64"))),
        (image_bytes(b"", b""), datasets.Image()),
        ([{"x": 0}, {"x": 1}], {"x": datasets.Value("int64")}),
    ],
)
def test_a_label_column_of_another_type_is_refused(tmp_path, values, kind):
    """No row of it could be read: the whole budget would be spent on noise."""
    features = datasets.Features({"image": datasets.Image(), "label": kind})
    name = save_parquet(tmp_path / "set", {"image": image_bytes(*[encode(grey())] * 2), "label": values}, features)
    config = FETAProConfig(dataset_name=name, class_names="a,b")
    with pytest.raises(UsageError, match="--label_column .*label"):
        public_facts(config.data)


def test_without_labels_the_model_is_unconditional(tmp_path):
    features = datasets.Features({"image": datasets.Image()})
    name = save_parquet(tmp_path / "set", {"image": image_bytes(encode(grey()), b"")}, features)
    facts, arrays = read_images(FETAProConfig(dataset_name=name), tmp_path)
    assert facts.class_names is None and arrays.labels is None
    assert facts.image_shape == (3, 32, 32) and arrays.readable.tolist() == [True, False]
    with pytest.raises(UsageError, match="--label_column 'label' .* image"):
        public_facts(FETAProConfig(dataset_name=name, label_column="label").data)
    with pytest.raises(UsageError, match="--label_column"):
        public_facts(FETAProConfig(dataset_name=name, class_names="a,b").data)


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        ({"train_split": "test"}, "--train_split 'test' .* train"),
        ({"image_column": "img"}, "--image_column 'img' .* image, label"),
        ({"image_column": "label"}, "--image_column 'label' holds no images"),
        ({"label_column": "target"}, "--label_column 'target' .* image, label"),
        ({"dataset_config_name": "other"}, "--dataset_config_name other .*default"),
        ({"validation_size": 1}, "--validation_size"),
    ],
)
def test_dataset_refusals(tmp_path, flags, match):
    columns = {"image": image_bytes(encode(grey())), "label": [0]}
    name = save_parquet(tmp_path / "set", columns, labelled(["a"]))
    with pytest.raises(UsageError, match=match):
        public_facts(FETAProConfig(dataset_name=name, **flags).data)
    assert not (tmp_path / "cache").exists()


def test_missing_folder_and_unreachable_hub_are_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="--dataset_name /no/such/folder"):
        public_facts(FETAProConfig(dataset_name="/no/such/folder").data)

    def offline(*args, **kwargs):
        raise ConnectionError("Couldn't reach 'some/thing' on the Hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset_builder", offline)
    with pytest.raises(UsageError, match="--dataset_name some/thing .*reach") as caught:
        public_facts(FETAProConfig(dataset_name="some/thing").data)
    assert "\n" not in str(caught.value)


def test_dataset_saved_to_disk(tmp_path):
    columns = {"image": image_bytes(encode(grey()), b"broken"), "label": [1, 0]}
    dataset = datasets.Dataset.from_dict(columns, features=labelled(["a", "b"]))
    datasets.DatasetDict({"train": dataset}).save_to_disk(tmp_path / "set")
    config = FETAProConfig(dataset_name=str(tmp_path / "set"))
    facts, arrays = read_images(config, tmp_path)
    assert facts.num_images == 2 and facts.class_names == ("a", "b") and arrays.readable.tolist() == [True, False]
    config.train_split = "test"
    with pytest.raises(UsageError, match="--train_split 'test' .* train"):
        public_facts(config.data)


def test_validation_images_are_held_out_by_their_ids(tmp_path):
    images = image_bytes(*[encode(grey(value)) for value in range(1, 21)])
    name = save_parquet(tmp_path / "set", {"image": images, "label": [0] * 20}, labelled(["a"]))
    config = FETAProConfig(dataset_name=name, resolution=8, num_channels=1, validation_size=5, seed=1)
    facts, arrays = read_images(config, tmp_path)
    kept = arrays.images[:, 0, 0, 0].tolist()
    expected = ~is_held_out(digests_of(range(20)), 5, 20)
    assert facts.num_images == 15 and kept == (np.flatnonzero(expected) + 1).tolist()
    config.seed = 2
    assert read_images(config, tmp_path)[1].images[:, 0, 0, 0].tolist() == kept


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV", "LAB"]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_is_converted(mode, channels):
    image = Image.new(mode, (13, 9))
    decoded = decode_image(image, (channels, 8, 8))
    assert decoded is not None and decoded.shape == (channels, 8, 8) and decoded.dtype == np.uint8


def test_image_is_cropped_in_its_centre_and_turned_upright():
    pixels = np.zeros((8, 24), np.uint8)
    pixels[:, 8:16] = 200
    assert (decode_image(encode(Image.fromarray(pixels)), (1, 8, 8)) == 200).all()
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    pixels = np.zeros((8, 8), np.uint8)
    pixels[0] = 255
    for kind in ("PNG", "TIFF"):
        decoded = decode_image(encode(Image.fromarray(pixels), kind, exif=exif), (1, 8, 8))
        assert decoded[0, 7].min() == 255 and decoded[0, 0].max() == 0
    for kind in ("PNG", "WEBP"):  # damaged
        decoded = decode_image(encode(Image.fromarray(pixels).convert("RGB"), kind, exif=b"garbage"), (1, 8, 8))
        assert decoded is not None and decoded[0, 0].min() > 200 and decoded[0, 7].max() < 60


@pytest.mark.parametrize("decode", [lambda *a: decode_image(a[0], (1, 8, 8), *a[1:]), decode_as_it_is])
def test_an_image_of_too_many_pixels_is_not_decoded(decode, monkeypatch):
    """Its header tells; the limit of this flag is the only one."""
    loaded, load = [], ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: loaded.append(image.size) or load(image))
    for kind in ("PNG", "JPEG", "TIFF", "GIF", "WEBP", "BMP"):
        content = encode(Image.new("L", (40, 25), 77), kind)
        loaded.clear()
        assert decode(content, 999) is None and loaded == []
        assert decode(content, 1000) is not None
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
        assert decode(content) is not None and Image.MAX_IMAGE_PIXELS == 10
        assert decode(content, 999) is None and Image.MAX_IMAGE_PIXELS == 10
    bomb = encode(Image.new("1", (8193, 8192)))
    loaded.clear()
    assert len(bomb) < 20_000 and decode(bomb) is None and loaded == []


def test_damaged_images_leave_no_line(capfd):
    content = bytearray(encode(Image.effect_noise((40, 40), 50), "TIFF", compression="tiff_lzw"))
    content[300:700] = b"\xff" * 400
    assert decode_image(bytes(content), (1, 8, 8)) is None
    assert capfd.readouterr().err == ""
