# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp plan`: what a run will ask, what that costs and how much noise it takes, before an image is read.
Where facts of the images are all that is given, it ranks the methods first. `diffusers-dp recommend` is the same.

Flags, recipe and numbers are those of the method's training script: the same `load_config`, the same `plan_run`.
Nothing is written.
"""

import argparse
import math
from collections.abc import Sequence

from ..accounting.ledger_row import DP_SGD, TEACHERS
from ..data.images import PublicFacts, public_facts
from ..errors import UsageError
from ..methods.advice import read_evidence
from ..methods.command_line import OneSentence, add_flags, nearest_flag
from ..methods.config import CONFIGS, SamplingFacts, chosen_method, load_config, underscored
from ..methods.flag import plain_flags, validate
from ..methods.flags import TrainingConfig
from ..methods.latents import LatentConfig
from ..methods.private_evolution import PrivateEvolutionConfig
from ..release.hub import keep_downloads_in
from ..runs.gpu_plan import candidates, fine_tuning
from ..runs.launch import announcement, how_long, planned_model
from ..runs.plan import Plan, plan_run
from ..runs.plan_table import aligned, hopeless_step
from ..runs.recommendation import DeclaredFacts, names_facts_alone, recommendation


LEFT_OUT = ("evaluation_reserve", "restart_slack")  # stages that a sweep does not show
LAST = (DP_SGD, TEACHERS, "batch", "steps", "signal/noise", "noise")  # columns that follow a method's own queries
LEGEND = {
    "epsilon": "epsilon: by the run's --accountant. Under each stage: its noise multiplier, and its share of the RDP "
    "spent.",
    "batch": "batch: images expected in a step of DP-SGD. signal/noise: of one of its steps, at most.",
    "noise": "noise: what reaches the weights over all steps, as a part of independent noise (--noise_bands 1).",
}


def gigabytes(text: str) -> float:
    """What `--gpu_memory` says."""
    if not 0 < float(text) < math.inf:
        raise ValueError(text)
    return float(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "%(prog)s [--method METHOD] [--config RECIPE] [--ANY_TRAINING_FLAG VALUE ...] [--sweep FLAG=V1,V2,...] "
        "[--details]"
    )
    parser.epilog = (
        "Which method? Declare --num_train_images, --class_names or --num_classes, --resolution, --num_channels, "
        "--target_epsilon and --minutes (all but the first may be left out): methods are ranked by measured rows, and "
        "the first one is planned. With --method, --config or any other flag of training (`diffusers-dp train METHOD "
        "--help` lists them) that method is planned alone. With --num_train_images no dataset is opened."
    )
    parser.add_argument(
        "--method", choices=CONFIGS, help="Whose run is planned; unset: the recipe's, or feta_pro where it names none."
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--sweep",
        metavar="FLAG=V1,V2,...",
        help="A table with one line per value of a flag. Semicolons separate values that have commas of their own.",
    )
    parser.add_argument(
        "--details",
        action="store_true",
        help="Noise multipliers, RDP, epsilon by each accountant, and signal to noise.",
    )
    parser.add_argument(
        "--no_timing", action="store_true", help="Leave out how long it takes here, which is measured in some seconds."
    )
    kinds.add_argument(
        "--gpu_memory",
        type=gigabytes,
        metavar="GB",
        help="Plan Stable Diffusion 1.5 (512 pixels) or XL (1024) for a GPU of this memory that is not here: of "
        "dp_lora, dp_ldm, dp_sapf, and of pe with a pipeline.",
    )
    parser.set_defaults(training_flags=[])  # the command line's other flags


def run(args: argparse.Namespace) -> None:
    """Prints the plan, after a ranking of the methods if there is none; or a line for each value of `--sweep`."""
    flags = [underscored(word) for word in args.training_flags]
    if args.sweep is not None:
        names = plain_flags(CONFIGS[chosen_method(flags, args.method).name])
        print(sweep(flags, *parse_sweep(args.sweep, names), args.method))
    elif args.method is None and args.gpu_memory is None and names_facts_alone(flags):
        _recommend(flags, args.details)
    else:
        _plan(flags, args.method, args.gpu_memory, details=args.details, with_timing=not args.no_timing)


def _recommend(flags: list[str], details: bool) -> None:
    parser = OneSentence(prog="diffusers-dp plan", allow_abbrev=False)
    add_flags(parser, DeclaredFacts, strict=False)
    declared = DeclaredFacts(**vars(parser.parse_args(flags)))
    validate(declared)
    print(recommendation(declared, read_evidence(), details=details))


def _plan(flags: list[str], method: str | None, gpu: float | None, *, details: bool, with_timing: bool) -> None:
    config, facts = read(flags, method)
    plan = plan_run(config, facts)
    asked = plan.table if details else plan.summary
    print(announcement(config, facts, plan, asked), flush=True)  # what follows loads torch
    if not config.has_guarantee:
        return
    if details:
        print(describe_total(plan))
    if gpu is not None:
        print(_on_gpu(config, facts, plan, gpu))
        return
    trained = planned_model(config, facts)
    if plan.sampling is not None and trained is not None and trained.num_noisy:
        step = [describe_step(plan, plan.sampling, trained.num_noisy)] if details else []
        print(*step, *filter(None, [hopeless_step(plan, trained.num_noisy)]), sep="\n", flush=True)
    if with_timing:
        print(how_long(config, facts, plan, trained))


def _on_gpu(config: TrainingConfig, facts: PublicFacts, plan: Plan, gigabytes: float) -> str:
    """Raises `UsageError` where nothing was counted."""
    if isinstance(config, LatentConfig):
        return fine_tuning(config, facts, plan, gigabytes)
    if isinstance(config, PrivateEvolutionConfig) and config.proposer == "pipeline":
        return candidates(config, facts)
    raise UsageError("--gpu_memory plans dp_lora, dp_ldm, dp_sapf, and pe with a --generator pipeline: leave it out.")


def read(training_flags: list[str], method: str | None = None) -> tuple[TrainingConfig, PublicFacts]:
    """The configuration and public facts of a dry run with these flags, of the recipe's method unless another is
    named."""
    config = load_config([*training_flags, "--dry_run"], chosen_method(training_flags, method))
    keep_downloads_in(config.cache_dir)
    try:
        return config, public_facts(config.data)
    except UsageError as error:
        raise UsageError(f"{error} Or give --num_train_images, with which a plan opens no dataset.") from None


def parse_sweep(text: str, flags: Sequence[str]) -> tuple[str, list[str]]:
    """Splits `flag=v1,v2`, or `flag=v1;v2` for values with commas of their own, into the flag and its values.

    Raises:
        UsageError: The flag is unknown, or there is no value.
    """
    name, _, listed = text.partition("=")
    name = name.strip().lstrip("-")
    names = [flag for flag in flags if flag != "dry_run"]  # a plan is always one
    if name not in names:
        raise UsageError(f"--sweep: '{name}' is not a flag that can vary; {nearest_flag(name, names)}.")
    values = [value.strip() for value in listed.split(";" if ";" in listed else ",")]
    if not all(values):
        raise UsageError(f"--sweep '{text}' lacks a value; write it like --sweep {name}=V1,V2.")
    return name, list(dict.fromkeys(values))


def sweep(training_flags: list[str], name: str, values: list[str], method: str | None = None) -> str:
    """A table with one line per value. A value whose queries cost too much has no numbers, but a reason below the
    table.

    Raises:
        UsageError: A value cannot be at all, or none can be planned.
    """
    rows: dict[str, dict[str, str]] = {}
    counts: dict[str, int] = {}
    about_delta, refused = [], []
    read_first = {value: read([*training_flags, f"--{name}={value}"], method) for value in values}
    for value, (config, facts) in read_first.items():
        try:
            plan, key = plan_run(config, facts), "" if config.dp_sgd is None else config.dp_sgd.model_key
            if key not in counts:
                trained = planned_model(config, facts)
                counts[key] = 0 if trained is None else trained.num_noisy
            rows[value] = _cells(plan, counts[key])
            about_delta.append(plan.about_delta)
        except UsageError as error:
            refused.append(f"{name}={value}: {error}")
    if not rows:
        raise UsageError(" ".join(refused))
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    columns.sort(key=lambda column: LAST.index(column) if column in LAST else -1)
    lines = [[value, *(rows.get(value, {}).get(column, "-") for column in columns)] for value in values]
    legend = [words for column, words in LEGEND.items() if column in columns]
    return "\n".join(
        [*aligned([[name, *columns], *lines]), *legend, *filter(None, dict.fromkeys(about_delta)), *refused]
    )


def _cells(plan: Plan, num_parameters: int) -> dict[str, str]:
    """Returns the cells of a plan by their columns."""
    shares = plan.ledger.budget_shares()  # empty without guarantee
    cells = {"epsilon": f"{plan.epsilon:.4f}"} | {
        stage: f"{row.noise_multiplier:.4f} ({shares[stage]:.1%})" if shares else "no noise"
        for stage, row in plan.rows.items()
        if stage not in LEFT_OUT
    }
    if plan.sampling is not None and plan.step is not None:
        signal = f"{plan.signal_to_noise(num_parameters):.4f}" if num_parameters else "-"
        cells |= {"batch": f"{plan.sampling.expected_batch_size:.1f}", "steps": str(plan.step.steps)}
        cells["signal/noise"] = signal
    if plan.noise_errors:
        cells["noise"] = f"{plan.noise_against_independent:.1%}"
    return cells


def describe_total(plan: Plan) -> str:
    """The total by every accountant."""
    lines = [["accountant", "epsilon"]]
    for name, epsilon in plan.epsilon_by_accountant().items():
        cell = "-" if epsilon is None else f"{epsilon:.4f}"
        lines.append([f"{name} (decides)" if name == plan.ledger.accountant else name, cell])
    return "\n".join(aligned(lines))


def describe_step(plan: Plan, sampling: SamplingFacts, num_parameters: int) -> str:
    """One step of DP-SGD: its images, and how far their gradients stand out from the noise."""
    sigma, memory = plan.noise_of_a_step, ""
    if remembered := plan.rows[DP_SGD].mechanism.remembered:
        numbers = remembered * num_parameters
        memory = f"\npast noise in memory: {numbers:,} numbers, {4 * numbers / 1e6:,.4g} MB, in the first process"
    return (
        f"a step of DP-SGD: {sampling.expected_batch_size:,.1f} {plan.unit}s expected, their gradient sum divided by "
        f"{sampling.normaliser:,}; {num_parameters:,} parameters\n"
        f"signal to noise of a step, at most: {plan.signal_to_noise(num_parameters):.4f} "
        f"= {sampling.expected_batch_size:,.1f} C / ({sigma:.4f} C sqrt({num_parameters:,})), C the clip norm{memory}"
    )
