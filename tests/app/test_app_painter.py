# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A model's own process: it is ended when it takes too much, and the page says so in one sentence and goes on."""

import subprocess
import sys

import pytest

from diffusers_dp.app.drawing import Drawn, Step
from diffusers_dp.app.painter import Painter
from diffusers_dp.app.shelf import Shelf
from diffusers_dp.commands.app import Limits
from diffusers_dp.errors import IntegrityError
from diffusers_dp.release.loading import ModelRelease
from diffusers_dp.sampling.drawing import Drawing
from support.hostile import HOSTILE, spoil


LIMITS = Limits(max_images=8, max_steps=6)
ORDER = Drawing(num_images=2, batch_size=2, num_inference_steps=4, class_labels=(0, 1))


def refused(words, make):
    with pytest.raises(IntegrityError, match=words) as refusal:
        make()
    assert "\n" not in str(refusal.value)


def test_a_model_that_takes_too_long_or_too_much_is_ended_and_others_draw(honest):
    shelf = Shelf([str(honest)], LIMITS)
    opened = shelf.open(shelf.names[0])
    refused("cannot be loaded here within 0 seconds", lambda: Painter(opened, require_dp=True, seconds=0))
    refused("more memory than there is", lambda: Painter(opened, require_dp=True, seconds=600, memory=0))

    painter = shelf.load(opened)
    painter._seconds = 0
    refused("cannot be drawn from here within 0 seconds", lambda: list(shelf.draw(opened, ORDER)))
    assert not painter.is_alive
    refused("its process ended", lambda: list(painter.watch(ORDER)))

    painter = shelf.load(opened)
    painter._process.kill()
    painter._process.join()
    *steps, drawn = shelf.draw(opened, ORDER)  # of a new process
    assert isinstance(drawn, Drawn) and steps == [Step(number, 4) for number in (1, 2, 3, 4)]

    left, painter = shelf.draw(opened, ORDER), shelf.load(opened)
    assert next(left) == steps[0]
    left.close()
    assert not painter.is_alive and list(shelf.draw(opened, ORDER))[-1].images == drawn.images


@pytest.mark.parametrize("trap", ["many layers", "large padding", "a schedule of another class"])
def test_a_trap_is_refused_by_the_page_or_by_the_model_s_process(release, trap):
    spoil(release, HOSTILE[trap][0])
    shelf = Shelf([str(release)], LIMITS)
    refused("is not opened", lambda: shelf.load(shelf.open(shelf.names[0])))
    opened = ModelRelease("a", release)  # as if the page had seen nothing
    refused("is not opened", lambda: Painter(opened, require_dp=True, seconds=600))


def test_the_page_s_own_process_loads_no_torch(honest):
    """Nor after it has drawn: `address` looks at the server of the browser's tests."""
    code = (
        "import sys; from diffusers_dp.app import planning, views\n"
        "from diffusers_dp.commands.app import Limits; from diffusers_dp.app.shelf import Shelf\n"
        "opened = Shelf([sys.argv[1]], Limits()).open(sys.argv[1])\n"
        "views.guarantee(opened); planning.planned(500, 8, 'grey', 2, 10, 0)\n"
        "assert 'torch' not in sys.modules and 'gradio' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, str(honest)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
