# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A method as one object: what is known of it, and where its code is. No torch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml


if TYPE_CHECKING:
    from .flags import TrainingConfig

STATUSES = {
    "proven": "the proof covers the program as it runs (--noise exact); the receipt lists what stays assumed",
    "proven_with_assumptions": "proven for real numbers and perfect randomness; the receipt lists all assumptions",
    "holds_elsewhere": "its guarantee holds as published; it is not built here",
    "claim_refuted": "the published epsilon does not hold; it is not built here",
    "no_guarantee": "no finite epsilon holds, or none was proven",
}
PROVEN = ("proven", "proven_with_assumptions")  # of what is, or will be, built here
#: Headings of `docs/guarantee.md`.
SUM, SAMPLED_SUM, DP_SGD, TEACHERS = "Noisy sum", "Poisson-sampled noisy sum", "DP-SGD", "Teachers on shares"
#: Code by its place: `module:function`. A method of one's own may name the function itself.
Code = str | Callable[..., Any]
#: Arguments of a method that ends with DP-SGD on a diffusion model.
DIFFUSION: dict[str, Any] = {
    "run_class": "diffusers_dp.runs.diffusion_run:DiffusionRun", "build": "diffusers_dp.runs.diffusion_run:build",
}  # fmt: skip


@dataclass(frozen=True)
class Method:
    """One method of image synthesis. What is not built here has no configuration and no code.

    Args:
        name (`str`): Name in commands, file names and folders of recipes; the configuration has the same.
        title (`str`): Name in papers.
        paper (`str`): Where it was published, and what of it is followed.
        status (`str`): One of `STATUSES`.
        note (`str`): What the status rests on, or why there is no guarantee; one sentence.
        figures (`str`): The numbers that show it, where there are some.
        mechanisms (`tuple[str, ...]`): What looks at the sensitive images, as headings of `docs/guarantee.md`. All
            else that the method does is post-processing.
        config (`type[TrainingConfig]`, *optional*): Its flags.
        train (`Code`, *optional*): What is particular to it; receives the run.
        run_class (`Code`): The class of its runs.
        build (`Code`, *optional*): Configuration, public facts and device to a new `Trained`, which the plan counts
            and the audits try. A method with DP-SGD needs it, unless `--skip_preflight` is given.
        computed (`str`): Figures that refute a published epsilon, as computed by
            `tests/methods/test_published_claims.py`.
    """

    name: str
    title: str
    paper: str
    status: str
    note: str
    figures: str = ""
    mechanisms: tuple[str, ...] = ()
    config: "type[TrainingConfig] | None" = None
    train: Code | None = None
    run_class: Code = "diffusers_dp.runs.run:TrainingRun"
    build: Code | None = None
    computed: str = ""

    @property
    def script(self) -> str | None:
        """The training script, from the root of the repository; `None` while there is none."""
        if not isinstance(self.train, str):
            return None
        return self.train.partition(":")[0].removeprefix("diffusers_dp.").replace(".", "/") + ".py"


@cache
def said_of_methods() -> dict[str, dict[str, Any]]:
    """Words and mechanisms of each method of `methods.yaml`, by its name."""
    found = yaml.safe_load(files(__package__).joinpath("methods.yaml").read_text(encoding="utf-8"))
    return {each["name"]: each | {"mechanisms": tuple(each.get("mechanisms", ()))} for each in found}


def built(config: "type[TrainingConfig]", **code: Any) -> Method:
    """A method of `methods.yaml` with its configuration and its code, as `Method` takes it."""
    return Method(**said_of_methods()[config.method], config=config, **code)


def load(code: Code | None) -> Any:
    """What a method names as its code."""
    assert code is not None  # of a method that is built
    if not isinstance(code, str):
        return code
    module, _, name = code.partition(":")
    return getattr(import_module(module), name)
