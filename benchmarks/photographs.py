"""What Private Evolution adds to a text-to-image pipeline's own calls, and what a vote for captions takes.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/photographs.py overhead --generator example_of_photographs/public
    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/photographs.py vote

`overhead` is a whole run on images of noise, with the tiny pipeline of `examples/photographs.py` or another one. The
pipeline's calls are what Diffusers computes between `__call__` and its return; all else of the run, from loading to
the release, is ours. `vote` asks 50,000 random embeddings for the nearest of 10,000 random captions, with exact noise,
trial of bits included. Seconds are of the process, whatever else the machine does; memory is the most that it had.
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import (
    StableDiffusionImg2ImgPipeline,
    StableDiffusionPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLPipeline,
)
from PIL import Image

from diffusers_dp import PrivacyLedger, SensitiveImages
from diffusers_dp.audit.preflight import preflight
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.queries.votes import OF_UNIT_VECTORS, CaptionVotes, NearestCandidates
from diffusers_dp.runs.launch import run_method
from diffusers_dp.training.train_private_evolution import train


PIPELINES = (
    StableDiffusionPipeline, StableDiffusionImg2ImgPipeline,
    StableDiffusionXLPipeline, StableDiffusionXLImg2ImgPipeline,
)  # fmt: skip
IMAGES, SIDE = 200, 32  # private ones of the run


class Timed:
    """Adds up the seconds of the process within functions, and counts images that they return."""

    def __init__(self) -> None:
        self.seconds, self.images = 0.0, 0

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            found = function(*args, **kwargs)
            self.seconds += time.process_time() - began
            self.images += len(getattr(found, "images", ()))
            return found

        return timed


def overhead(generator: str, candidates: int, steps: int) -> dict[str, Any]:
    calls, whole = Timed(), Timed()
    for kind in PIPELINES:
        kind.__call__ = calls(kind.__call__)
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        Path(folder, "images", "cat").mkdir(parents=True)
        for number in range(IMAGES):
            pixels = rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(Path(folder, "images", "cat", f"{number}.png"))
        flags = (
            f"--generator {generator} --train_data_dir {folder}/images --class_names cat --num_train_images {IMAGES} "
            f"--resolution {SIDE} --num_channels 3 --target_epsilon 8 --candidates_per_class {candidates} "
            f"--variation_strengths 0.8,0.4 --expert generator_inference_steps={steps} --skip_preflight "
            f"--output_dir {folder}/run"
        )
        run_method(replace(METHODS["pe"], train=whole(train)), preflight, flags.split())
    ours = whole.seconds / calls.seconds - 1
    return {
        "candidates": candidates, "steps": steps, "images drawn": calls.images,
        "seconds of the pipeline": round(calls.seconds, 1), "ours in %": round(100 * ours, 1),
    }  # fmt: skip


def vote(images: int, captions: int, numbers: int) -> dict[str, Any]:
    public = torch.Generator().manual_seed(0)
    rows, texts = (torch.nn.functional.normalize(torch.randn(each, numbers, generator=public), dim=1)
                   for each in (images, captions))  # fmt: skip
    ledger = PrivacyLedger(None, target_epsilon=10, target_delta=1e-6, num_images=images, accountant="rdp")
    door = SensitiveImages(
        rows.half().numpy().reshape(images, 1, 1, numbers), np.zeros(images, np.int64), num_images=images,
        image_shape=(1, 1, numbers), ledger=ledger, class_names=("cat",), exact=True,
    )  # fmt: skip
    began = time.process_time()
    nearest = NearestCandidates(lambda seen: seen.flatten(1).float(), texts[None], spread=OF_UNIT_VECTORS)
    asked = CaptionVotes(num_candidates=captions, image_shape=(3, 512, 512))
    asked.answer(door, noise_multiplier=5.0, features=nearest)
    return {
        "images": images, "captions": captions, "numbers": numbers,
        "seconds of the process": round(time.process_time() - began, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    of_run, of_vote = what.add_parser("overhead"), what.add_parser("vote")
    of_run.add_argument("--generator", required=True, help="Folder of a saved pipeline.")
    of_run.add_argument("--candidates", type=int, default=2000)
    of_run.add_argument("--steps", type=int, default=20)
    for name, number in (("images", 50_000), ("captions", 10_000), ("numbers", 512)):
        of_vote.add_argument(f"--{name}", type=int, default=number)
    given = vars(parser.parse_args())
    found = {"overhead": overhead, "vote": vote}[given.pop("what")](**given)
    print(json.dumps({**found, "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}))


if __name__ == "__main__":
    main()
