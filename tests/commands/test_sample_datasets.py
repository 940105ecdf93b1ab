# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp sample`: shares of classes, the card, a disk that fills, several processes, and the way to the Hub."""

import os
import subprocess
import sys

import datasets
import numpy as np
import pytest
from huggingface_hub import DatasetCard

from diffusers_dp import cli
from diffusers_dp.sampling import shards
from diffusers_dp.sampling.drawing import balanced_labels, parse_balance
from support.hub_stand_in import OWNER, hub  # noqa: F401 (a fixture)
from support.sampling import read, run


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(shards, "IMAGES_PER_SHARD", 4)


class TestClassBalance:
    def test_every_beginning_has_the_shares(self):
        shares = parse_balance("1,1,2", 3)
        labels = balanced_labels(shares, 400)
        assert shares == (0.25, 0.25, 0.5) and np.bincount(labels).tolist() == [100, 100, 200]
        counts = np.cumsum(np.eye(3)[labels], axis=0)
        assert np.abs(counts - np.arange(1, 401)[:, None] * shares).max() <= 1
        assert np.array_equal(balanced_labels(shares, 50), labels[:50])

    def test_the_dataset_has_them_across_its_shards(self, honest, tmp_path):
        _, labels, _ = run(honest, tmp_path / "out", "--class_balance", "0,0.2,0.8")
        assert sorted(labels) == [1, 1] + [2] * 8 and labels == balanced_labels((0, 0.2, 0.8), 10).tolist()
        card = (tmp_path / "out" / "README.md").read_text()
        assert "class balance: 0,0.2,0.8" in card and "shares that were asked for" in card
        with pytest.raises(SystemExit):
            run(honest, tmp_path / "out")  # uniform: another command


def test_the_card_tells_the_guarantee_and_the_hub_what_it_is(honest, tmp_path):
    run(honest, tmp_path / "out")
    card = DatasetCard.load(tmp_path / "out" / "README.md")
    assert {"synthetic", "differential-privacy"} <= set(card.data.tags) and card.data.size_categories == "n<1K"
    assert card.data.task_categories == ["image-classification"]
    assert "per image" in card.text and "Classes take turns" in card.text and "seed: 0" in card.text
    assert str(tmp_path) not in card.content and str(honest) not in card.content


# The first process has the longer share; who is done waits, and torch lets nobody wait for longer than this unless it
# is told to.
SMALL_SHARDS = """
import sys, time
from datetime import timedelta
from torch.distributed import distributed_c10d
from diffusers_dp import cli
from diffusers_dp.sampling import shards

distributed_c10d.default_pg_timeout = timedelta(seconds=3)
shards.IMAGES_PER_SHARD = 4
write_shard = shards.replace_file

def slow(name, *arguments):
    write_shard(name, *arguments)
    time.sleep(6 if "00002-of" in name.name else 0)

shards.replace_file = slow
cli.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_two_processes_draw_what_one_draws(honest, tmp_path):
    (tmp_path / "small_shards.py").write_text(SMALL_SHARDS)
    flags = [
        "sample",
        str(honest),
        "--output_dir",
        str(tmp_path / "two"),
        "--num_images",
        "10",
        "--num_inference_steps",
        "2",
    ]
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
            str(tmp_path / "small_shards.py"), *flags,
        ],
        capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("10 images in") == 1 and "Sampling (1 of 2 processes)" in done.stderr
    alone, *_ = run(honest, tmp_path / "one")
    assert np.abs(read(tmp_path / "two")[0].astype(int) - alone).max() <= 1


class TestHub:
    def command(self, capsys, release, output, *flags):
        asked = ["sample", str(release), "--output_dir", str(output)]
        asked += ["--num_images", "5", "--num_inference_steps", "1"]
        try:
            cli.main([*asked, *flags])
            code = 0
        except SystemExit as stopped:
            code = stopped.code
        return code, "".join(capsys.readouterr())

    def test_the_dataset_goes_whole(self, hub, honest, tmp_path, capsys):  # noqa: F811
        code, said = self.command(capsys, honest, tmp_path / "faces", "--push_to_hub", "--hub_private_repo")
        name = f"datasets/{OWNER}/faces"
        assert code == 0 and f"Pushed to {hub.url}/{name}" in said and name in hub.private
        files = hub.repositories[name]
        shards = {f"data/train-0000{i}-of-00002.parquet" for i in range(2)}
        assert set(files) == {".gitattributes", "README.md", "privacy_receipt.json", "sampling.json", *shards}
        for path, content in files.items():
            (tmp_path / "back" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "back" / path).write_bytes(content)
        table = datasets.load_dataset(str(tmp_path / "back"), split="train", cache_dir=str(tmp_path / "cache"))
        assert len(table) == 5
        assert self.command(capsys, honest, tmp_path / "faces", "--push_to_hub")[0] == 0  # the same again
        code, said = self.command(
            capsys, honest, tmp_path / "others", "--seed", "1", "--push_to_hub", "--hub_dataset_id", f"{OWNER}/faces"
        )
        assert code == 2 and "--hub_dataset_id" in said and "is taken" in said
