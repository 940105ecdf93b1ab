# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Latents behind the door: encoded once, record by record, and asked as images are."""

import json

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from diffusers_dp.data import mapped
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.mechanisms import sampled
from diffusers_dp.models.latents import LatentEncoder
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.randomness.keyed_hash import digests_of
from support.doors import KEY, SHAPE, Noiseless, gradient, make_door, make_ledger, put, squares
from support.latents import tiny_vae


ROW = (2, 4, 4)
TRIAL = 19  # calls of an encoder on public noise, before it sees an image


def images_of(count=12):
    return np.random.default_rng(1).integers(0, 256, (count, *SHAPE), dtype=np.uint8)


def encoded(door, encode, folder, shape=ROW, made_of="images", **arguments):
    return door.map(encode, shape=shape, cache=folder, made_of=made_of, batch_size=5, **arguments)


def rows_of(folder):
    kept = folder / "encoded-0"
    return np.load(kept / "images.npy"), np.load(kept / "readable.npy")


class Marked:
    """An encoder that fails, overflows or is not finite where the first pixel says so, and counts its calls."""

    def __init__(self):
        self.encoder, self.calls, self.sizes = LatentEncoder(tiny_vae()), 0, []

    def __call__(self, images):
        self.calls += 1
        self.sizes.append(len(images))
        kinds = ((images[:, 0, 0, 0] + 1) * 127.5).round()
        if (kinds == 77).any():
            raise ValueError("a record that breaks the encoder")
        rows = self.encoder(images)
        rows[kinds == 78] = torch.nan
        rows[kinds == 79] = 70_000.0  # finite in float32
        return rows


def test_rows_are_the_scaled_means_of_the_public_autoencoder(tmp_path):
    images, vae = images_of(), tiny_vae().eval()
    encoded(make_door(images=images), LatentEncoder(tiny_vae()), tmp_path)
    rows, readable = rows_of(tmp_path)
    with torch.no_grad():
        mean = vae.encode(torch.from_numpy(images).float() / 127.5 - 1).latent_dist.mean
    assert rows.dtype == np.float16 and readable.all()
    np.testing.assert_allclose(rows, (mean - 0.25) * 0.5, atol=2e-3)
    # By the public scale alone: other images beside it do not move a row.
    encoded(make_door(images=images[:6] // 2), LatentEncoder(tiny_vae()), tmp_path / "dark")
    both = images.copy()
    both[:6] //= 2
    encoded(make_door(images=both), LatentEncoder(tiny_vae()), tmp_path / "both")
    assert (rows_of(tmp_path / "both")[0][:6] == rows_of(tmp_path / "dark")[0]).all()
    assert (rows_of(tmp_path / "both")[0][6:] == rows[6:]).all()


@pytest.mark.parametrize("kind", [77, 78, 79])
@pytest.mark.usefixtures("watching")
def test_a_record_that_fails_is_a_blank_and_moves_no_other(kind, tmp_path):
    images = images_of()
    images[:, 0, 0, 0] = 10
    encoded(make_door(images=images), Marked(), tmp_path / "whole")
    images[3, 0, 0, 0] = kind
    encode = Marked()
    door = encoded(make_door(images=images), encode, tmp_path / "broken")
    assert set(encode.sizes[TRIAL:]) == {5}  # other sizes may be rounded otherwise
    whole, _ = rows_of(tmp_path / "whole")
    rows, readable = rows_of(tmp_path / "broken")
    assert readable.tolist() == [number != 3 for number in range(12)]
    assert (rows[3] == 0).all() and (np.delete(rows, 3, 0) == np.delete(whole, 3, 0)).all()  # bit for bit
    summed = put(
        door, "noisy_sum", lambda rows, labels: torch.ones(len(rows), 1), sampled(1.0), clip_norm=1.0,
        name="q", generator=Noiseless(KEY),
    )  # fmt: skip
    assert summed.item() == 11


def test_a_black_image_is_no_blank_and_a_missing_one_stays_one(tmp_path):
    images = images_of()
    images[0] = 0
    door = encoded(make_door(images=images, missing=[1]), lambda images: images[:, :, :4, :4] + 1, tmp_path, (1, 4, 4))
    rows, readable = rows_of(tmp_path)
    assert (rows[0] == 0).all() and readable[0] and not readable[1] and readable.sum() == 11
    assert door.num_units == 12 and door.class_names == ["a", "b", "c"] and door.image_shape == (1, 4, 4)


@pytest.mark.usefixtures("watching")
@pytest.mark.parametrize(
    ("error", "always"),
    [(torch.OutOfMemoryError("CUDA out of memory."), False), (RuntimeError("device-side assert"), True)],
    ids=["no memory, once", "an encoder that breaks for all"],
)
def test_what_is_no_record_s_fault_stops_the_run(error, always, tmp_path):
    calls = []

    def encode(images):
        calls.append(len(images))
        if len(images) == 5 and (always or calls.count(5) == 1):  # not in the trial
            raise error
        return images[:, :, :4, :4]

    with pytest.raises(type(error), match=str(error)):
        encoded(make_door(images=images_of()), encode, tmp_path, (1, 4, 4))


def test_an_encoder_that_mixes_records_or_draws_is_refused(tmp_path):
    mixing = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1))
    for encode in (mixing.train(), lambda images: images + torch.rand_like(images)):
        with pytest.raises(UsageError, match="evaluation mode"):
            encoded(make_door(images=images_of()), encode, tmp_path, SHAPE)
    with pytest.raises(UsageError, match=r"makes 32 numbers"):
        encoded(make_door(images=images_of()), LatentEncoder(tiny_vae()), tmp_path, (2, 5, 5))
    # With dropout in evaluation mode there is nothing to refuse.
    encoded(make_door(images=images_of()), LatentEncoder(tiny_vae(dropout=0.5).train()), tmp_path)


@pytest.mark.usefixtures("watching")
def test_what_is_encoded_is_kept_and_other_encoders_begin_anew(tmp_path):
    door, vae = make_door(images=images_of()), tiny_vae()
    facts = LatentEncoder(vae).facts
    others = [
        LatentEncoder(tiny_vae(seed=1)).facts, LatentEncoder(tiny_vae().to(torch.bfloat16)).facts,
        LatentEncoder(tiny_vae().to(torch.bfloat16).float()).facts,
    ]  # fmt: skip
    vae.register_to_config(scaling_factor=0.7)
    others.append(LatentEncoder(vae).facts)
    assert len({json.dumps(each, sort_keys=True) for each in (facts, *others)}) == 5
    encode, calls = Marked(), []
    for made_of in (facts, facts, others[0], others[0]):
        encoded(door, encode, tmp_path, made_of=made_of)
        calls.append(encode.calls)
    trial = calls[1] - calls[0]  # the door's own, on noise
    assert calls[2] - calls[1] == trial + 3 and calls[3] - calls[2] == trial
    with open(tmp_path / "encoded-0" / "images.npy", "r+b") as file:
        file.truncate(300)
    with pytest.raises(IntegrityError, match="images.npy is missing or damaged"):
        encoded(door, encode, tmp_path, made_of=others[0])


@pytest.mark.usefixtures("watching")
def test_an_interrupted_map_goes_on_where_it_was(monkeypatch, tmp_path):
    images = images_of(24)
    encoded(make_door(images=images), Marked(), tmp_path / "whole")
    monkeypatch.setattr(mapped, "BATCHES_BETWEEN_SYNCS", 2)
    stopped, again = Marked(), Marked()

    def stop(images):
        if stopped.calls == TRIAL + 3:
            raise KeyboardInterrupt
        return stopped(images)

    with pytest.raises(KeyboardInterrupt):
        encoded(make_door(images=images), stop, tmp_path / "again")
    assert not (tmp_path / "again" / "encoded-0").exists()
    encoded(make_door(images=images), again, tmp_path / "again")
    assert again.calls == TRIAL + 3  # of five batches the first two were kept
    assert all((one == two).all() for one, two in zip(rows_of(tmp_path / "whole"), rows_of(tmp_path / "again")))


@pytest.mark.usefixtures("watching")
def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    """Neither rows, nor images that were read from a map, stay in this process."""
    count, shape = 4_000, (3, 64, 64)  # 49 MB of pixels, 98 MB of rows
    np.save(tmp_path / "images.npy", np.ones((count, *shape), np.uint8))
    images = np.lib.format.open_memmap(tmp_path / "images.npy", mode="r")
    process, most = psutil.Process(), [0]
    before = process.memory_info().rss

    def encode(images):
        most[0] = max(most[0], process.memory_info().rss - before)
        return images

    door = SensitiveImages(images, num_images=count, image_shape=shape, ledger=make_ledger(count))
    encoded(door, encode, tmp_path, shape)
    assert most[0] < 40e6
    assert (rows_of(tmp_path)[0] == np.float16(1 / 127.5 - 1)).all()


@pytest.mark.usefixtures("watching")
def test_rows_are_not_mapped_again(tmp_path):
    door = encoded(make_door(images=images_of()), Marked(), tmp_path)
    with pytest.raises(ValueError, match="not mapped again"):
        door.map(Marked(), shape=ROW, cache=tmp_path / "twice", made_of="rows")


def test_groups_follow_from_ids_as_those_of_images_do(tmp_path):
    """By row numbers, a missing record would move others to another group."""
    door = make_door(images=images_of(), ids=digests_of(range(100, 112)))
    mapped_door = encoded(door, LatentEncoder(tiny_vae()), tmp_path)
    wanted = [group.tolist() for group in door._records.groups(3, "ab" * 16)]
    assert [group.tolist() for group in mapped_door._records.groups(3, "ab" * 16)] == wanted != [[], [], []]


def test_room_on_disk_is_that_of_the_declared_number(tmp_path, monkeypatch):
    """Else whether a run ends in a sentence, and which, would tell how many images there are."""
    said = []
    monkeypatch.setattr(mapped.shutil, "disk_usage", lambda folder: mapped.shutil._ntuple_diskusage(0, 0, 11 * 65 + 1))
    for count in (11, 12):
        door = make_door(images=images_of(count), num_images=12)
        with pytest.raises(UsageError) as refusal:
            encoded(door, LatentEncoder(tiny_vae()), tmp_path)
        said.append(str(refusal.value))
    assert said[0] == said[1]


def test_classes_without_labels_are_refused():
    with pytest.raises(ValueError, match="there are no `labels`"):
        SensitiveImages(
            np.zeros((2, *SHAPE), np.uint8), None, None, num_images=2, image_shape=SHAPE, ledger=make_ledger(2),
            class_names=("a", "b"),
        )  # fmt: skip


@pytest.mark.usefixtures("watching")
def test_a_step_on_rows_costs_and_moves_what_a_step_on_images_does(tmp_path):
    """The loss is handed float32 rows as they are, and one of them moves the sum by the clip norm at most."""
    torch.manual_seed(0)
    model, ledger = nn.Sequential(nn.Flatten(), nn.Linear(32, 3)), make_ledger()
    seen = []

    def loss(model, rows, labels, generator):
        seen.append(rows)
        return squares(model, rows, labels, generator)

    sums = []
    for missing in ((), (4,)):
        door = encoded(make_door(images=images_of(), missing=missing), Marked(), tmp_path / str(missing))
        sums.append(gradient(door, model, loss, generator=Noiseless(KEY), ledger=ledger))
    rows, _ = rows_of(tmp_path / "()")
    np.testing.assert_array_equal(torch.cat(seen[:3]), rows.astype(np.float32))
    moved = sum((sums[0][name] - sums[1][name]).square().sum() for name in sums[0]) ** 0.5
    assert 0.99 * 0.1 / 4 < moved <= 1.0001 * 0.1 / 4 and len(ledger.rows) == 2


@pytest.mark.usefixtures("watching")
def test_units_labels_and_shares_stay(tmp_path):
    images = images_of()
    units = np.arange(12) // 3
    ledger = make_ledger(4)
    door = SensitiveImages(
        images, num_images=12, image_shape=SHAPE, ledger=ledger, units=units, num_units=4, max_images_per_unit=2,
    )  # fmt: skip
    answer = put(
        encoded(door, Marked(), tmp_path), "noisy_sum", lambda rows, labels: torch.ones(len(rows), 1), sampled(1.0),
        clip_norm=1.0, name="q", generator=Noiseless(KEY),
    )  # fmt: skip
    assert answer.item() == pytest.approx(4) and ledger.rows[0]["query"]["max_images_per_unit"] == 2
