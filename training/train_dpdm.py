"""Train a diffusion model on sensitive images with DPDM, under one total (epsilon, delta), and release it.

    accelerate launch training/train_dpdm.py
    accelerate launch training/train_dpdm.py --dataset_name ylecun/mnist --config training/recipes/dpdm/mnist_eps1.yaml
    accelerate launch training/train_dpdm.py --train_data_dir scans --class_names benign,malignant --target_epsilon 5

Stages: DP-SGD on the sensitive images, from scratch and with noise multiplicity -> release/. Only DP-SGD and the question of
`--evaluation_reserve` touch the images, through `SensitiveImages`; each writes its row to the ledger first. Label dropout trains the null
label that classifier-free guidance needs: the released pipeline takes a `guidance_scale`.

Paper: "Differentially Private Diffusion Models".
"""

import sys
from pathlib import Path

import torch
from accelerate.utils import set_seed
from diffusers import UNet2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel

from diffusers_dp import DiffusersDPError, PrivacyLedger, SensitiveImages
from diffusers_dp.audit.preflight import preflight
from diffusers_dp.checkpointing import NoisyAnswers, find_checkpoint, load_checkpoint, position_of, save_checkpoint
from diffusers_dp.config import DPDMConfig, load_config
from diffusers_dp.data import PublicFacts, load_images, public_facts
from diffusers_dp.dpsgd import largest_physical_batch
from diffusers_dp.errors import Interrupted
from diffusers_dp.evaluation.charged import charged_evaluation
from diffusers_dp.identity import read_identity, save_identity
from diffusers_dp.image_shares import load_share
from diffusers_dp.interruption import last_affordable_step, stop_now, stop_requested, stoppable, uninterrupted
from diffusers_dp.leaky_log import LEAKY_OUTPUT, LeakyLog
from diffusers_dp.methods import METHODS
from diffusers_dp.models import Denoiser, TrainingLoss, build_objective, noise_schedule, unet_config
from diffusers_dp.no_guarantee import save_without_guarantee
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.planning import Plan, dp_sgd_row, new_ledger, plan_run
from diffusers_dp.processes import Processes, start_processes, tell
from diffusers_dp.push import prepare_push, push_finished
from diffusers_dp.release import build_release, sample_grid
from diffusers_dp.run_folder import RunFolder
from diffusers_dp.shared_ledger import shared_ledger
from diffusers_dp.stages import StageTable
from diffusers_dp.trackers import Tracker


METHOD = METHODS["dpdm"]


@stoppable()
def main(argv: list[str] | None = None) -> None:
    args = load_config(argv, DPDMConfig)
    processes = start_processes(args)
    facts = processes.on_first(lambda: public_facts(args))
    plan = processes.on_first(lambda: plan_run(args, facts))
    processes.print(plan.table)
    processes.on_first(lambda: prepare_push(args))
    if args.dry_run:
        return
    folder, resume = RunFolder(args.output_dir), args.resume_from_checkpoint is not None
    processes.on_first(lambda: folder.refuse_another_run(resume=resume))
    if not args.skip_preflight:
        processes.on_first(lambda: preflight(args, facts, plan, *build_denoiser(args, facts, processes.device)))

    processes.on_first(lambda: folder.create(resume=resume))
    with folder.at_work():
        run(args, processes, facts, plan, folder)


def run(args: DPDMConfig, processes: Processes, facts: PublicFacts, plan: Plan, folder: RunFolder) -> None:
    stages = StageTable()
    # All that is not private; the door draws noise, samples and the loss's draws from its own source.
    set_seed(args.seed, device_specific=True)
    with folder.discarded_on_error():
        checkpoint = processes.on_first(lambda: find_checkpoint(folder.private, args.resume_from_checkpoint))
        cache = folder.private / "cache"
        arrays = load_share(processes, lambda: load_images(args, facts, cache), cache)
        identity = processes.on_first(lambda: read_identity(folder.private, args.dataset_id, args.ledger_path))
        ledger = shared_ledger(processes, lambda: new_ledger(args.ledger_path, args, facts, identity))
        if ledger.rows:
            identity.resumes.append(0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2]))
        identity.leaky_logs |= args.leaky_logs
        processes.note_start(identity.processes)
        processes.on_first(lambda: save_identity(folder.private, identity))
        tracker = Tracker(args.report_to, folder.private)
        processes.on_first(tracker.start)
    leaky_log = LeakyLog(folder.private, args.max_grad_norm) if args.leaky_logs else None
    images = SensitiveImages(
        arrays.images, arrays.labels, arrays.readable,
        num_images=facts.num_images, image_shape=facts.image_shape, class_names=facts.class_names,
        units=arrays.units, num_units=facts.declared_units, max_images_per_unit=args.images_per_unit,
        leaky_log=leaky_log, device=processes.device, processes=processes,
    )  # fmt: skip
    del arrays

    # 1. The model.
    denoiser, loss = build_denoiser(args, facts, processes.device)
    unet = denoiser.unet

    # 2. DP-SGD on the sensitive images.
    fine_tune(args, plan, images, denoiser, loss, ledger, folder, checkpoint, tracker)
    stages.done("DP-SGD", ledger)

    # 3. What was set aside for evaluation: one question about the finished model, whose noisy answer is published.
    pipeline = build_pipeline(args, unet.eval(), facts)
    evaluation = []
    if args.evaluation_reserve is not None:
        evaluation = charged_evaluation(
            pipeline, images, plan.rows["evaluation_reserve"], ledger, NoisyAnswers(folder.private / "answers", processes),
            num_images=args.num_evaluation_images, num_inference_steps=args.num_inference_steps, seed=args.seed,
        )  # fmt: skip
        stages.done("evaluation", ledger)

    # 4. The release; none of a run without noise, for it would claim a guarantee.
    if not processes.first_goes_on():
        return
    if not ledger.has_guarantee:
        saved = save_without_guarantee(folder.output_dir, pipeline, METHOD)
        print(stages, f"Saved {saved}, trained WITHOUT any privacy guarantee.", sep="\n")
        return
    samples = sample_grid(pipeline, 10, seed=args.seed, num_inference_steps=args.num_inference_steps)
    release = build_release(
        folder.output_dir,
        unet=unet.to("cpu"),
        scheduler=pipeline.scheduler,
        ledger=ledger,
        id2label=pipeline.config.id2label,
        patch_size=args.patch_size,
        method=METHOD,
        curriculum=None,
        samples=samples,
        resumes=identity.resumes,
        leaky_outputs=[LEAKY_OUTPUT] if identity.leaky_logs else [],
        evaluation=evaluation,
        processes=identity.processes,
    )
    stages.done("samples and release", ledger)
    print(stages)
    print(f"Released {release} with epsilon {ledger.epsilon():.4f} at delta {ledger.target_delta:.3e}.")
    if args.push_to_hub:
        print(f"Pushed to {push_finished(args, release)}")


def build_denoiser(args: DPDMConfig, facts: PublicFacts, device: torch.device | str) -> tuple[Denoiser, TrainingLoss]:
    num_classes = None if facts.class_names is None else len(facts.class_names)
    unet = UNet2DModel(**unet_config(args, facts.image_shape, num_classes)).to(device)
    return build_objective(args, unet, noise_schedule(args))


def fine_tune(
    args: DPDMConfig,
    plan: Plan,
    images: SensitiveImages,
    denoiser: Denoiser,
    loss: TrainingLoss,
    ledger: PrivacyLedger,
    folder: RunFolder,
    checkpoint: Path | None,
    tracker: Tracker,
) -> None:
    """DP-SGD: Adam on noisy sums of clipped gradients, over Poisson samples of the sensitive images."""
    unet, processes = denoiser.unet, images.processes
    processes.same_weights(unet)
    optimizer = torch.optim.Adam(unet.parameters(), lr=args.learning_rate)
    ema = EMAModel(unet.parameters(), decay=args.ema_decay)
    step = 0
    if checkpoint is not None:
        step = load_checkpoint(
            checkpoint, unet=unet, ema=ema, optimizer=optimizer, ledger_position=position_of(ledger),
            processes=processes,
        )["step"]  # fmt: skip
    lr_scheduler = get_scheduler(
        args.lr_scheduler, optimizer,
        num_warmup_steps=args.lr_warmup_steps, num_training_steps=args.max_train_steps, last_epoch=step - 1,
    )  # fmt: skip
    row = processes.on_first(lambda: dp_sgd_row(args, plan, ledger))
    checkpointing_steps = args.checkpointing_steps or max(1, args.max_train_steps // 10)
    last_step = processes.on_first(lambda: last_affordable_step(ledger, row, step, args.max_train_steps))
    physical_batch_size = args.physical_batch_size or largest_physical_batch(
        denoiser, loss,
        image_shape=images.image_shape, labelled=images.class_names is not None, device=images.device,
        noise_multiplicity=args.noise_multiplicity, at_most=plan.sampling.largest_batch_size,
        at_least=args.images_per_unit, processes_here=processes.local_count,
    )  # fmt: skip
    with processes.bar(total=last_step, initial=step, desc="DP-SGD", unit="step") as bar, uninterrupted():
        while step < last_step:
            gradients = images.noisy_gradient(
                denoiser,
                loss,
                max_grad_norm=args.max_grad_norm,
                noise_multiplier=row.noise_multiplier,
                sample_rate=row.sampling_probability,
                normaliser=plan.sampling.normaliser,
                noise_multiplicity=args.noise_multiplicity,
                max_physical_batch_size=physical_batch_size,
                ledger=ledger,
                reserve_steps=min(checkpointing_steps - step % checkpointing_steps, last_step - step),
                truncated_batch_size=plan.sampling.truncated_batch_size,
            )
            for name, parameter in denoiser.named_parameters():
                parameter.grad = gradients[name]
            optimizer.step()
            lr_scheduler.step()
            ema.step(unet.parameters())
            step += 1
            bar.update()
            stopping = processes.any(stop_requested())
            if step % checkpointing_steps == 0 or step == last_step or stopping:
                ledger.flush_executed()
                processes.on_first(lambda: save_checkpoint(
                    folder.private, step, unet=unet, ema=ema, optimizer=optimizer, ledger_position=position_of(ledger),
                    keep=args.checkpoints_total_limit,
                ))  # fmt: skip
                processes.on_first(
                    lambda: tracker.log(step, learning_rate=lr_scheduler.get_last_lr()[0], ledger=ledger)
                )
                if stopping:
                    stop_now(is_told=not processes.is_first)
    tracker.finish(step, expected_batch_size=plan.sampling.expected_batch_size)
    ema.copy_to(unet.parameters())


def build_pipeline(args: DPDMConfig, unet: UNet2DModel, facts: PublicFacts) -> DPImagePipeline:
    id2label = None if facts.class_names is None else dict(enumerate(facts.class_names))
    pipeline = DPImagePipeline(unet, noise_schedule(args), id2label=id2label, patch_size=args.patch_size)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


if __name__ == "__main__":
    try:
        main()
    except (DiffusersDPError, Interrupted) as error:
        tell(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted: the same command and --resume_from_checkpoint latest go on with the run.", file=sys.stderr)
        sys.exit(130)
