# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Memory: what is free, what a computation takes, and what is kept between steps."""

import pytest
import torch

from diffusers_dp.distributed import memory


CPU = torch.device("cpu")


def test_a_container_has_less_than_its_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    (tmp_path / "own").write_text("0::/job/step\n")
    monkeypatch.setattr(memory, "OWN_CGROUP", tmp_path / "own")
    (tmp_path / "job" / "step").mkdir(parents=True)
    machine = memory.free_bytes(CPU)
    assert machine > 1e7
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 250\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_bytes(CPU) > 1e7
    (tmp_path / "memory.max").write_text("1000\n")
    assert memory.free_bytes(CPU) == 350  # what is cached of files can be had back
    for name, text in (("memory.current", "60"), ("memory.stat", "inactive_file 10"), ("memory.max", "200")):
        (tmp_path / "job" / "step" / name).write_text(text)
    assert memory.free_bytes(CPU) == 150  # the narrowest of those it is in


def test_peak_bytes_are_live_bytes():
    def step():
        for _ in range(3):
            torch.zeros(1_000_000)  # freed at once: they do not add up

    assert memory.peak_bytes(step, CPU) == pytest.approx(4e6, rel=0.01)
