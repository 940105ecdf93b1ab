# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The start of a training script: parse, plan, refuse what cannot be, and only then load torch and train."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..accounting.ledger_row import DP_SGD
from ..data.images import PublicFacts, public_facts
from ..data.values import are_positions, positions
from ..distributed.interruption import stoppable
from ..distributed.launcher import escape_output, is_launched, leave, let_threads_sleep, tell
from ..errors import DiffusersDPError, Interrupted, UsageError
from ..methods.config import load_config
from ..methods.flags import TrainingConfig
from ..methods.method import Method, load
from ..methods.private_training import PrivateTraining
from ..methods.registry import METHODS
from ..release.hub import keep_downloads_in
from ..release.push import check_hub
from .folder import RunFolder
from .plan import Plan, plan_run
from .plan_table import hopeless_step


if TYPE_CHECKING:
    import torch

    from ..distributed.processes import Processes
    from .dp_sgd import Trained


@stoppable()
def run_method(method: Method, preflight: Callable[..., None], argv: list[str] | None = None) -> None:
    """Reads the flags, plans, refuses what cannot be, and lets the method train.

    One process that no launcher started loads torch after all that, and not at all in a dry run. Needed earlier, it is
    loaded earlier: for public images, for PRV, for bf16, and where several processes plan together.

    Args:
        method (`Method`): One of the registry, or one's own.
        preflight (`Callable`): Audits the mechanism before anything is spent.
        argv (`list[str]`, *optional*): The command line without the program's name.

    Raises:
        DiffusersDPError: See there; `Interrupted` at SIGTERM.
    """
    config = load_config(argv, method)
    keep_downloads_in(config.cache_dir)
    early = _start(config) if is_launched() or config.precision == "bf16" else None
    facts, plan = _plan(config) if early is None else early.on_first(lambda: _plan(config))
    if config.dry_run:
        return
    processes = early or _start(config)
    from ..privacy.separate_records import refuse_exact_steps

    if config.is_exact and config.dp_sgd is not None:
        processes.on_first(lambda: refuse_exact_steps(processes.device))
    opened, tried = None, dict[str, list[str]]()
    if not config.skip_preflight:

        def check() -> dict[str, list[str]]:
            nonlocal opened
            trained = None if method.build is None else load(method.build)(config, facts, processes.device)
            others = planned_trainings(facts, plan, processes.device)
            if trained is None and config.dp_sgd is not None:
                raise UsageError(
                    f"Nothing says what DP-SGD of {method.name} trains, so the pre-flight has nothing to try: give "
                    "its `Method` a `build` that returns it."
                )
            opened = None if trained is None else trained.opened
            preflight(facts, plan, trained, others=others, bf16=config.precision == "bf16")
            words = "" if trained is None else hopeless_step(plan, trained.num_noisy)
            print(
                *filter(None, [words]), how_long(config, facts, plan, trained, processes.count), sep="\n", flush=True
            )
            return {name: each.kind for name, each in {DP_SGD: trained, **others}.items() if each is not None}

        tried = processes.on_first(check)
    folder = RunFolder(config.output_dir)
    processes.on_first(lambda: folder.create(resume=config.resume_from_checkpoint is not None))
    with folder.at_work():
        run = load(method.run_class)(method, config, facts, plan, processes, folder, opened, tried)
        with folder.discarded_on(UsageError, lambda: bool(run.ledger.rows)):
            load(method.train)(run)


def planned_trainings(facts: PublicFacts, plan: Plan, device: "torch.device | str") -> "dict[str, Trained]":
    """What the plan trains beside DP-SGD, new, by the name of the row."""
    return {
        query.name: load(query.build)(query, facts, device)
        for query in plan.queries
        if isinstance(query, PrivateTraining)
    }


def planned_model(config: TrainingConfig, facts: PublicFacts) -> "Trained | None":
    """What DP-SGD of a registered method will train; `None` without DP-SGD, or where the flags do not name it."""
    if config.dp_sgd is None or not config.dp_sgd.names_model:
        return None
    trained: Trained = load(METHODS[config.method].build)(config, facts, _device())
    return trained


def _device() -> "torch.device":
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def announcement(config: TrainingConfig, facts: PublicFacts, plan: Plan, asked: str) -> str:
    """Of which images what is asked, and where the result will be. Where a column has the labels, what numbers in it
    mean.

    Args:
        asked (`str`): The plan in words.
    """
    names = facts.class_names
    classes = "without classes (no --class_names)" if names is None else f"in {len(names)} classes"
    what = ", the embedded digits" if config.uses_digits else ""
    whose = "" if config.unit_column is None else f" of {facts.num_units:,} units ({config.unit_column})"
    shape = "x".join(map(str, facts.image_shape))
    lines = [f"{facts.num_images:,} images of {shape} {classes}{what}{whose}; none was read for this", asked]
    if config.dataset_name is not None and names is not None and are_positions(names):
        lines.append(f"an integer in a label column that names no classes is a position: {positions(names)}")
    release, private = (Path(config.output_dir, name) for name in ("release", "private"))
    if plan.ledger.has_guarantee:
        lines.append(f"where: {release} is for everybody; {private} never leaves your house")
    return "\n".join(lines)


def how_long(
    config: TrainingConfig, facts: PublicFacts, plan: Plan, trained: "Trained | None", num_processes: int = 1
) -> str:
    """What pre-flight and `diffusers-dp plan` say of seconds, memory and disk, see `forecast`."""
    if config.dp_sgd is not None and trained is None:
        return "how long: not measured without --pretrained_model_name_or_path."
    if not config.can_be_timed:
        return "how long: not measured for variations of public images, which take most of it."
    asked = [query for query in plan.queries if not isinstance(query, PrivateTraining)]
    if config.dp_sgd is None and any(query.num_values is None for query in asked):
        return "how long: not measured, because the public network is not here."
    from .forecast import forecast

    device = _device() if trained is None else next(trained.model.parameters()).device
    made = config.num_made(facts.num_classes or 1)
    return forecast(
        facts, plan, trained, config.dp_sgd, config.ordinary_training, made, device, count=num_processes,
        others=planned_trainings(facts, plan, device), minutes=config.minutes or math.inf,
    )  # fmt: skip


def launch(main: Callable[[], None]) -> None:
    """Runs a training script: one sentence on stderr, and the exit code, where it ends early."""
    let_threads_sleep()
    escape_output()
    code = 0
    try:
        main()
    except (DiffusersDPError, Interrupted) as error:
        tell(error)
        code = error.exit_code
    except KeyboardInterrupt:
        print("interrupted: resume with the same command and --resume_from_checkpoint latest.", file=sys.stderr)
        code = 130
    leave(code)


def _start(config: TrainingConfig) -> "Processes":
    from ..distributed.processes import start_processes

    return start_processes(
        precision=config.precision, allow_tf32=config.dp_sgd is not None and config.dp_sgd.allow_tf32
    )


def _plan(config: TrainingConfig) -> tuple[PublicFacts, Plan]:
    """What is public, and the plan, which is printed. What cannot be is refused; nothing is written."""
    facts, resume = public_facts(config.data), config.resume_from_checkpoint is not None
    public = config.public_images
    # Without sensitive images a dry run looks for no public ones. A run that goes on may have learned from them.
    if public is not None and not config.data.declared_only and not resume:
        from ..data.public_images import check_public_images
        from .prior_release import cost_of_public_images

        check_public_images(public)
        cost_of_public_images(public, facts, **config.ledger_options)  # refuses a release of probably the same images
    if not config.dry_run:
        RunFolder(config.output_dir).refuse_another_run(resume=resume)
    plan = plan_run(config, facts)
    if config.push_to_hub:
        check_hub(config.hub_name, name_alone=config.dry_run)
    print(announcement(config, facts, plan, plan.summary), flush=True)  # before torch is loaded, which takes seconds
    return facts, plan
