# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Many steps: memory stays flat."""

import psutil
import pytest

from diffusers_dp import SensitiveImages
from support.flags import SHORT_RUN
from support.runs import check_finished, load, write_images


MEGABYTE = 2**20


@pytest.mark.slow
def test_memory_is_flat_over_ten_thousand_steps(tmp_path, monkeypatch):
    """Between a tenth of the run, when all that is kept is there, and its end, with 100 checkpoints on the way."""
    script, resident, taken = load("dpdm", monkeypatch), {}, []
    noisy_gradient = SensitiveImages.noisy_gradient

    def watched(*arguments, **options):
        taken.append(1)
        if len(taken) in (1000, 10_000):
            resident[len(taken)] = psutil.Process().memory_info().rss / MEGABYTE
        return noisy_gradient(*arguments, **options)

    monkeypatch.setattr(SensitiveImages, "noisy_gradient", watched)
    many = "--max_train_steps 10000 --checkpointing_steps 100 --restart_slack 0".split()
    script.main([*SHORT_RUN, *many, *write_images(tmp_path / "images"), "--output_dir", str(tmp_path / "run")])
    check_finished(tmp_path / "run", 10_000, at_most=10_000)
    assert resident[10_000] < resident[1000] + 16, resident
