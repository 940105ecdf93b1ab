# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Runs a training script and stops it, for `make_golden.py`: `python stop_at.py FUNCTION TIME term|kill SCRIPT
FLAGS ...`.

SIGTERM comes when the call returns, in every process; SIGKILL before the call, and of several processes to the
second one.
"""

import os
import runpy
import signal
import sys
from typing import Any

from diffusers.training_utils import EMAModel

from diffusers_dp import SensitiveImages


OWNERS: dict[str, Any] = {"noisy_sum": SensitiveImages, "step": EMAModel, "noisy_gradient": SensitiveImages}


def main(name: str, time: int, how: str, script: str) -> None:
    asked, calls = getattr(OWNERS[name], name), []

    def stops(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == time and how == "kill" and os.environ.get("RANK", "1") == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        result = asked(*arguments, **options)
        if len(calls) == time and how == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        return result

    setattr(OWNERS[name], name, stops)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    _, name, time, how, *sys.argv = sys.argv
    main(name, int(time), how, sys.argv[0])
