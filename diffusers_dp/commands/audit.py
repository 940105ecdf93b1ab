# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp audit`: tries to break the guarantee of the mechanism, of a training script, or of a release.

diffusers-dp audit mechanism --config feta_pro/mnist_eps1 --dataset_name ylecun/mnist
diffusers-dp audit run --method feta_pro --output_dir runs/demo
diffusers-dp audit release runs/demo/release --members members --holdout holdout
"""

import argparse
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from ..audit.flags import ReleaseAudit
from ..data.images import PublicFacts, public_facts
from ..errors import UsageError
from ..files.output_files import write_json
from ..methods.command_line import Help, OneSentence, add_flags, whole_number
from ..methods.config import chosen_method, load_config
from ..methods.flag import validate
from ..methods.flags import TrainingConfig
from ..methods.method import load
from ..methods.registry import METHODS
from ..release.hub import keep_downloads_in
from ..runs.folder import AUDIT_FILE
from ..runs.plan import Plan, plan_run
from ..sampling.drawing import DrawingFlags
from .sample import drawing_of


TIERS = {
    "mechanism": "the run's sampler, clipper, noise, divisor and queries, on stand-in records; seconds",
    "run": "the training's own model and loop on synthetic images with canaries, at epsilon 2; minutes",
    "release": "membership inference and copies, on a finished release; reads private data",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(f"{name}: {text}" for name, text in TIERS.items())
    parser.add_argument(
        "tier", choices=[*TIERS], help="What is audited; `diffusers-dp audit TIER --help` has its flags."
    )
    flags = parser.add_argument(
        "flags", nargs=argparse.REMAINDER, help="Of the tier; for mechanism and run also the training's."
    )
    flags.required = False  # argparse would name them together with a tier that is missing


def run(args: argparse.Namespace) -> None:
    """Exits with 0 (VALID), 4 (INCONCLUSIVE), or 2 after one sentence (flags that cannot be)."""
    if args.tier == "release":
        found = _release_parser().parse_args(args.flags)
        given = ReleaseAudit(**{each.name: getattr(found, each.name) for each in fields(ReleaseAudit)})
        validate(given)
        drawing = drawing_of(found, given.num_samples)
        from ..audit.release import main  # loads torch

        return main(given, drawing)
    own, training = _parser(args.tier).parse_known_args(args.flags)
    config, facts, plan = _planned(training, own.method)
    if args.tier == "mechanism":
        from ..audit.mechanism_audit import audit_mechanism  # loads torch

        audit = audit_mechanism(facts, plan, bf16=config.precision == "bf16")
    else:
        audit = _training_run(own, config, facts, plan)
    path = Path(config.output_dir, "private", AUDIT_FILE)
    write_json(audit.as_json(), path)
    print(f"{audit}\nWritten to {path}; private data read: no.")
    sys.exit(0 if audit.verdict == "VALID" else 4)


def _release_parser() -> argparse.ArgumentParser:
    parser = OneSentence(
        prog="diffusers-dp audit release", description=TIERS["release"], formatter_class=Help, allow_abbrev=False
    )
    parser.add_argument("release", help="Folder of a release, or Hub id.")
    parser.add_argument("--members", required=True, help="Dataset that was trained on (Hub id or folder).")
    add_flags(parser, ReleaseAudit)
    add_flags(parser, DrawingFlags)
    return parser


def _parser(tier: str) -> argparse.ArgumentParser:
    parser = OneSentence(
        prog=f"diffusers-dp audit {tier}", description=TIERS[tier], allow_abbrev=False,
        epilog="All other flags are those of the training, --config among them.",
    )  # fmt: skip
    parser.add_argument("--method", help="Whose run is audited; unset: the recipe's, or feta_pro where it names none.")
    if tier == "run":
        parser.add_argument("--audit_steps", type=whole_number, help="DP-SGD steps of the honest run; fewer: weaker.")
        parser.add_argument(
            "--num_canaries", type=whole_number, default=2000, help="At most four fifths of the images."
        )
    return parser


def _planned(flags: list[str], method: str | None) -> tuple[TrainingConfig, PublicFacts, Plan]:
    """What is audited."""
    config = load_config(flags, chosen_method(flags, method))
    keep_downloads_in(config.cache_dir)
    if not config.has_guarantee:
        raise UsageError("--target_epsilon inf is a run without noise, which leaves nothing to audit; give a number.")
    facts = public_facts(config.data)
    return config, facts, plan_run(config, facts)


def _training_run(own: argparse.Namespace, config: TrainingConfig, facts: PublicFacts, plan: Plan) -> Any:
    for name in ("audit_steps", "num_canaries"):
        value, least = getattr(own, name), 20 if name == "num_canaries" else 1
        if value is not None and value < least:
            raise UsageError(f"--{name} is {value}; give an integer of at least {least}.")
    import torch

    from ..audit.training_run import audit_run, broken_steps, default_canaries
    from ..distributed.memory import keep_freed_memory

    method = METHODS[config.method]
    if config.dp_sgd is not None and config.dp_sgd.num_shares is not None:
        raise UsageError(f"`audit run` is of DP-SGD, and {method.title} has teachers: use `audit mechanism`.")
    if plan.sampling is None or config.dp_sgd is None:
        raise UsageError(
            f"{config.method} has no DP-SGD, whose loop is audited here; `audit mechanism` audits its queries."
        )
    canaries = default_canaries(plan.sampling, own.num_canaries)
    steps = own.audit_steps or config.dp_sgd.max_train_steps
    broken = broken_steps(steps)
    if canaries < 20:
        raise UsageError(f"{plan.sampling.num_units} images are too few for an audit; give a data set of at least 25.")
    keep_freed_memory()
    device = "cuda" if torch.cuda.is_available() else "cpu"

    weaker = "" if own.audit_steps is None else f" --audit_steps {steps}: the bounds are weaker than with all steps."
    print(f"Runs of {steps}, {broken} and {broken} steps with {canaries} canaries.{weaker}", flush=True)
    name, build = Path(str(method.script)).name, partial(load(method.build), config.dp_sgd, facts, device)
    return audit_run(build, name, config.dp_sgd, facts, plan, canaries, steps, device)
