# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The start of a training script: parse, plan, refuse what cannot be, and only then load torch and train."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..data.images import PublicFacts, public_facts
from ..distributed.interruption import stoppable
from ..distributed.launcher import is_launched, leave, let_threads_sleep, tell
from ..errors import DiffusersDPError, Interrupted, UsageError
from ..methods.config import DPSGDConfig, TrainingConfig, load_config
from ..methods.latents import LatentConfig
from ..release.push import prepare_push
from .folder import RunFolder
from .plan import Plan, plan_run


if TYPE_CHECKING:
    from ..distributed.processes import Processes
    from .dp_sgd import Trained

    Build = Callable[[Any, PublicFacts, Any], Any]
    Preflight = Callable[..., None]  # see `audit.preflight`

Config = TypeVar("Config", bound=TrainingConfig)


@stoppable()
def run_method(
    config_class: type[Config],
    method: "Callable[[Any], None]",
    preflight: "Preflight",
    argv: list[str] | None = None,
    *,
    build: "Build | None" = None,
) -> None:
    """Reads the flags, plans, refuses what cannot be, and lets the method train.

    One process that no launcher started loads torch after all that, and not at all in a dry run. Needed earlier, it is
    loaded earlier: for public images, for PRV, for bf16, and where several processes plan together.

    Args:
        config_class (`type[TrainingConfig]`): The method's flags.
        method (`Callable`): What is particular to it; is given a `TrainingRun`, or a `DiffusionRun`.
        preflight (`Callable`): Audits the mechanism before anything is spent.
        argv (`list[str]`, *optional*): The command line without the program's name.
        build (`Callable`, *optional*): The flags, public facts and a device to a new `Trained`, for the pre-flight. A
            method whose DP-SGD trains no diffusion model needs it, unless `--skip_preflight` is given.

    Raises:
        DiffusersDPError: See there; `Interrupted` at SIGTERM.
    """
    config = load_config(argv, config_class)
    early = _start(config) if is_launched() or config.precision != "no" else None
    facts, plan = _plan(config) if early is None else early.on_first(lambda: _plan(config))
    if config.dry_run:
        return
    processes = early or _start(config)
    from ..gradients import tune
    from .diffusion_run import model_to_audit, run_of
    from .forecast import forecast

    tune(not config.no_engine_tuning)
    opened, tried = None, None
    if not config.skip_preflight:
        make = build or model_to_audit

        def check() -> list[str] | None:
            nonlocal opened
            trained = make(config, facts, processes.device)
            if trained is None and isinstance(config, DPSGDConfig):
                raise UsageError(
                    f"{config.method} trains no diffusion model, and nothing says what the pre-flight is to try: give "
                    "`run_method` a `build` that returns what DP-SGD trains."
                )
            opened = None if trained is None else trained.opened
            preflight(facts, plan, trained, leaky_logs=config.leaky_logs, bf16=config.precision == "bf16")
            if isinstance(config, DPSGDConfig) and trained is not None:
                found = forecast(
                    facts, plan, trained, processes.device, config, config.ordinary_training, count=processes.count
                )
                print(found, flush=True)
            return None if trained is None else trained.kind

        tried = processes.on_first(check)
    folder = RunFolder(config.output_dir)
    processes.on_first(lambda: folder.create(resume=config.resume_from_checkpoint is not None))
    with folder.at_work():
        run = run_of(config)(config, facts, plan, processes, folder, opened, tried)
        with folder.discarded_on_refusal(lambda: bool(run.ledger.rows)):
            method(run)


def how_long(
    config: TrainingConfig, facts: PublicFacts, plan: Plan, build: "Build | None" = None,
    trained: "Trained | None" = None,
) -> str:  # fmt: skip
    """What the pre-flight says of seconds, memory and disk, for `diffusers-dp plan`. Arguments are those of
    `run_method`; `trained` is the model, where it was loaded already."""
    if not isinstance(config, DPSGDConfig):
        return f"how long: not measured, for {config.registered().title} takes no noisy gradients."
    if isinstance(config, LatentConfig) and config.pretrained_model_name_or_path is None:
        return "how long: not measured without --pretrained_model_name_or_path."
    import torch

    from ..gradients import tune
    from .diffusion_run import model_to_audit
    from .forecast import forecast

    tune(not config.no_engine_tuning)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trained = trained or (build or model_to_audit)(config, facts, device)
    assert trained is not None  # of a method of this library with DP-SGD
    trained.model.to(device)
    return str(forecast(facts, plan, trained, device, config, config.ordinary_training))


def launch(main: Callable[[], None]) -> None:
    """Runs a training script: one sentence on stderr, and the exit code, where it ends early."""
    let_threads_sleep()
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

    return start_processes(precision=config.precision, seed=config.seed, leaky_logs=config.leaky_logs)


def _plan(config: TrainingConfig) -> tuple[PublicFacts, Plan]:
    """What is public, and the plan, which is printed. What cannot be is refused; nothing is written."""
    facts, resume = public_facts(config.data), config.resume_from_checkpoint is not None
    public = config.public_images
    # Without sensitive images a dry run looks for no public ones. A run that goes on may have learned from them.
    if public is not None and not config.data.declared_only and not resume:
        from ..data.public_images import check_public_images
        from .prior_release import cost_of_public_images

        check_public_images(public)
        cost_of_public_images(public, facts, **config.books)  # refuses a release of probably the same images
    plan = plan_run(config, facts)
    print(plan.table, flush=True)  # before torch is loaded, which takes seconds
    if config.push_to_hub:
        prepare_push(config.hub_name, private=config.hub_private_repo, dry_run=config.dry_run)
    if not config.dry_run:
        RunFolder(config.output_dir).refuse_another_run(resume=resume)
    return facts, plan
