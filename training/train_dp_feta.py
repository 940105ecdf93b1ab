"""Train a diffusion model on sensitive images with DP-FETA, under one total (epsilon, delta), and release it.

    accelerate launch training/train_dp_feta.py
    accelerate launch training/train_dp_feta.py --dataset_name ylecun/mnist --config training/recipes/dp_feta/mnist_eps1.yaml
    accelerate launch training/train_dp_feta.py --train_data_dir scans --class_names benign,malignant --central_images mode

Stages, in the paper's order: noisy central images (`--central_images`: the mean, or the mode from histograms) -> warm-up on them ->
DP-SGD on the sensitive images -> release/. Public images or a pre-trained pipeline may come first, or public images be mixed with the
central ones (`--mix_public_images`). Only the query, DP-SGD and the question of `--evaluation_reserve` touch the images, through
`SensitiveImages`; each writes its row to the ledger first.

Paper: "From Easy to Hard: Building a Shortcut for Differentially Private Image Synthesis".
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch
from accelerate.utils import set_seed
from diffusers import UNet2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel

from diffusers_dp import DiffusersDPError, PrivacyLedger, SensitiveImages
from diffusers_dp.audit.preflight import preflight
from diffusers_dp.checkpointing import NoisyAnswers, find_checkpoint, load_checkpoint, position_of, save_checkpoint
from diffusers_dp.config import DPFETAConfig, load_config
from diffusers_dp.data import PublicFacts, load_images, public_facts
from diffusers_dp.dpsgd import largest_physical_batch
from diffusers_dp.errors import Interrupted
from diffusers_dp.evaluation.charged import charged_evaluation
from diffusers_dp.identity import read_identity, save_identity
from diffusers_dp.image_shares import load_share
from diffusers_dp.interruption import last_affordable_step, stop_now, stop_requested, stoppable, uninterrupted
from diffusers_dp.leaky_log import LEAKY_OUTPUT, LeakyLog
from diffusers_dp.ledger_row import LedgerRow
from diffusers_dp.methods import METHODS
from diffusers_dp.models import Denoiser, TrainingLoss, build_objective
from diffusers_dp.no_guarantee import save_without_guarantee
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.planning import Plan, dp_sgd_row, new_ledger, plan_run
from diffusers_dp.pretrained import StartingModel, fit_class_table, keep_pretrained, starting_model
from diffusers_dp.processes import Processes, start_processes, tell
from diffusers_dp.public_data import PublicImages, check_public_images, starting_point
from diffusers_dp.push import prepare_push, push_finished
from diffusers_dp.queries import mode_images, noisy_central_images, noisy_pixel_histograms
from diffusers_dp.release import build_release, sample_grid
from diffusers_dp.run_folder import RunFolder
from diffusers_dp.shared_ledger import shared_ledger
from diffusers_dp.stages import StageTable
from diffusers_dp.trackers import Tracker
from diffusers_dp.unreleased import save_unreleased
from diffusers_dp.warm_up_images import CentralImages, MixedImages


METHOD = METHODS["dp_feta"]


@stoppable()
def main(argv: list[str] | None = None) -> None:
    args = load_config(argv, DPFETAConfig)
    processes = start_processes(args)
    facts = processes.on_first(lambda: public_facts(args))
    processes.on_first(lambda: check_public_images(args))
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


def run(args: DPFETAConfig, processes: Processes, facts: PublicFacts, plan: Plan, folder: RunFolder) -> None:
    stages = StageTable()
    # All that is not private; the door draws noise, samples and the loss's draws from its own source.
    set_seed(args.seed, device_specific=True)
    with folder.discarded_on_error():
        checkpoint = processes.on_first(lambda: find_checkpoint(folder.private, args.resume_from_checkpoint))
        model, origin, public = processes.on_first(
            lambda: starting_point(args, starting_model(args, facts), folder.private, checkpoint)
        )
        cache = folder.private / "cache"
        arrays = load_share(processes, lambda: load_images(args, facts, cache), cache)
        identity = processes.on_first(lambda: read_identity(folder.private, args.dataset_id, args.ledger_path))
        ledger = shared_ledger(processes, lambda: new_ledger(args.ledger_path, args, facts, identity))
        if ledger.rows:
            identity.resumes.append(0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2]))
        identity.leaky_logs |= args.leaky_logs
        processes.note_start(identity.processes)
        if checkpoint is None:
            origin = origin if public is None else public.origin
            identity.public_inputs = [] if origin is None else [origin]
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

    # 1. The model, and what it learns from public images alone.
    unet = model.unet.to(processes.device)
    denoiser, loss = build_objective(args, unet, model.scheduler, model.patch_size)
    if public is not None and not args.mix_public_images:
        pretrain(args, public, facts, model, denoiser, processes)
        processes.on_first(lambda: keep_pretrained(folder.private, build_pipeline(unet, model, facts), public.origin))
        stages.done("public pre-training", ledger)

    # 2. One question, answered once, and a warm-up that reads its noisy answer only.
    if checkpoint is None:
        answers = NoisyAnswers(folder.private / "answers", processes)
        if args.central_images == "mode":
            central = ask_mode_images(answers, images, args.bins, plan.rows["mode_images"], ledger)
        else:
            central = ask_central_images(answers, images, plan.rows["central_images"], ledger)
        stages.done(f"{args.central_images} images", ledger)
        source = CentralImages(central, facts.image_shape, args.seed + processes.index)
        if args.mix_public_images:
            pretrain(
                args, MixedImages(source, public, len(facts.class_names or ())), facts, model, denoiser, processes
            )
        else:
            warm_up(args, source, denoiser, loss, processes)
        warmed_up, place = build_pipeline(unet, model, facts), folder.private / "warmed_up_spatial"
        processes.on_first(lambda: save_unreleased(warmed_up, place, ledger))
        stages.done("warm-up (spatial)", ledger)
        del public

    # 3. DP-SGD on the sensitive images.
    fine_tune(args, plan, images, denoiser, loss, ledger, folder, checkpoint, tracker)
    stages.done("DP-SGD", ledger)

    # 4. What was set aside for evaluation: one question about the finished model, whose noisy answer is published.
    pipeline = build_pipeline(unet.eval(), model, facts)
    evaluation = []
    if args.evaluation_reserve is not None:
        evaluation = charged_evaluation(
            pipeline, images, plan.rows["evaluation_reserve"], ledger, NoisyAnswers(folder.private / "answers", processes),
            num_images=args.num_evaluation_images, num_inference_steps=args.num_inference_steps, seed=args.seed,
        )  # fmt: skip
        stages.done("evaluation", ledger)

    # 5. The release; none of a run without noise, for it would claim a guarantee.
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
        patch_size=model.patch_size,
        method=METHOD,
        curriculum=args.warm_up_facts,
        samples=samples,
        resumes=identity.resumes,
        leaky_outputs=[LEAKY_OUTPUT] if identity.leaky_logs else [],
        evaluation=evaluation,
        processes=identity.processes,
        public_inputs=identity.public_inputs,
    )
    stages.done("samples and release", ledger)
    print(stages)
    print(f"Released {release} with epsilon {ledger.epsilon():.4f} at delta {ledger.target_delta:.3e}.")
    if args.push_to_hub:
        print(f"Pushed to {push_finished(args, release)}")


@uninterrupted()
def ask_central_images(
    answers: NoisyAnswers, images: SensitiveImages, row: LedgerRow, ledger: PrivacyLedger
) -> torch.Tensor:
    """The stored noisy central images or, the first time, the answer: a noisy answer is never asked for twice."""
    if answers.get(row, ledger) is None:
        central = noisy_central_images(
            images,
            num_images=row.steps,
            sample_rate=row.sampling_probability,
            noise_multiplier=row.noise_multiplier,
            ledger=ledger,
        )
        answers.put(row, {"answer": central.cpu()})
    return answers.get(row, ledger)["answer"]


@uninterrupted()
def ask_mode_images(
    answers: NoisyAnswers, images: SensitiveImages, num_bins: int, row: LedgerRow, ledger: PrivacyLedger
) -> torch.Tensor:
    """The stored noisy mode images or, the first time, those of the answer."""
    if answers.get(row, ledger, num_bins=num_bins) is None:
        histograms = noisy_pixel_histograms(
            images,
            num_bins=num_bins,
            num_images=row.steps,
            sample_rate=row.sampling_probability,
            noise_multiplier=row.noise_multiplier,
            ledger=ledger,
        )
        answers.put(row, {"answer": mode_images(histograms).cpu()}, num_bins=num_bins)
    return answers.get(row, ledger, num_bins=num_bins)["answer"]


def build_denoiser(
    args: DPFETAConfig, facts: PublicFacts, device: torch.device | str
) -> tuple[Denoiser, TrainingLoss]:
    model = starting_model(args, facts)
    return build_objective(args, model.unet.to(device), model.scheduler, model.patch_size)


def pretrain(
    args: DPFETAConfig,
    public: PublicImages | MixedImages,
    facts: PublicFacts,
    model: StartingModel,
    denoiser: Denoiser,
    processes: Processes,
) -> None:
    """Ordinary training on public images, with their own classes. The averaged weights go on, with the sensitive images' classes."""
    unet = denoiser.unet
    conditional = facts.class_names is not None
    if conditional and public.num_classes is not None:
        fit_class_table(unet, public.num_classes)
    mixture = args.public_timestep_mixture or args.timestep_mixture
    _, loss = build_objective(replace(args, timestep_mixture=mixture), unet, model.scheduler, model.patch_size)
    optimizer = torch.optim.Adam(unet.parameters(), lr=args.public_learning_rate)
    lr_scheduler = get_scheduler("constant_with_warmup", optimizer, num_warmup_steps=args.public_lr_warmup_steps)
    ema = EMAModel(unet.parameters(), decay=args.ema_decay)
    for _ in processes.bar(range(args.public_steps), desc="Public pre-training", unit="step"):
        images, labels = public.batch(processes.part(args.public_batch_size))
        if conditional and labels is None:
            labels = torch.full((len(images),), denoiser.null_label)
        images, labels = images.to(unet.device), labels.to(unet.device) if conditional else None
        optimizer.zero_grad()
        loss(denoiser, images, labels).mean().backward()
        processes.average_gradients(unet, len(images))
        optimizer.step()
        lr_scheduler.step()
        ema.step(unet.parameters())
    ema.copy_to(unet.parameters())
    fit_class_table(unet, len(facts.class_names) if conditional else None)


def warm_up(
    args: DPFETAConfig, source: CentralImages, denoiser: Denoiser, loss: TrainingLoss, processes: Processes
) -> None:
    """Ordinary training on images made from noisy answers. The averaged weights go on."""
    unet, device = denoiser.unet, denoiser.unet.device
    optimizer = torch.optim.Adam(unet.parameters(), lr=args.spatial_learning_rate)
    ema = EMAModel(unet.parameters(), decay=args.ema_decay)
    for _ in processes.bar(range(args.spatial_steps), desc="Warm-up (spatial)", unit="step"):
        images, labels = (batch.to(device) for batch in source.batch(processes.part(args.spatial_batch_size)))
        optimizer.zero_grad()
        loss(denoiser, images.float() / 127.5 - 1, labels if unet.config.num_class_embeds else None).mean().backward()
        processes.average_gradients(unet, len(images))
        optimizer.step()
        ema.step(unet.parameters())
    ema.copy_to(unet.parameters())


def fine_tune(
    args: DPFETAConfig,
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


def build_pipeline(unet: UNet2DModel, model: StartingModel, facts: PublicFacts) -> DPImagePipeline:
    id2label = None if facts.class_names is None else dict(enumerate(facts.class_names))
    pipeline = DPImagePipeline(unet, model.scheduler, id2label=id2label, patch_size=model.patch_size)
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
