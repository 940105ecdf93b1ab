# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Flags that cannot be, each with one sentence. Nothing here reads an image or writes a file."""

import importlib.util
import math
import re
from dataclasses import fields
from pathlib import Path

from ..accounting.ledger_file import check_dataset_id
from ..errors import UsageError
from ..randomness.timestep_mixture import TimestepMixture
from ..verify import without_guarantee
from ..words import ACCOUNTANTS, UNIT, WITHOUT
from .bounds import check_counts, check_finite, check_places
from .data_checks import validate_data
from .flag_groups import (
    AUGMENTATIONS,
    LR_SCHEDULERS,
    OBJECTIVES,
    TRACKERS,
    NetworkFlags,
    parse_rate,
)
from .flags import DiffusionConfig, DPSGDConfig, TrainingConfig
from .grey_values import parse_range, parse_suffixes
from .method_flags import (
    AUXILIARIES,
    CENTRAL_IMAGES,
    CURRICULA,
    DPFETAConfig,
    FETAProConfig,
    PublicConfig,
)
from .public_flags import LearnsPublicImages, PretrainingFlags, PublicDataFlags


_AT_LEAST = {
    "noise_multiplicity": 1,
    "max_train_steps": 1,
    "restart_slack": 0,
    "lr_warmup_steps": 0,
    "train_batch_size": 1,
    "num_train_images": 1,
    "num_train_units": 1,
    "max_images_per_unit": 1,
    "max_image_pixels": 1,
    "validation_size": 0,
    "resolution": 2,
    "num_central_images": 1,
    "num_bins": 2,
    "spatial_steps": 1,
    "spatial_batch_size": 1,
    "num_frequency_features": 2,
    "num_features": 2,
    "num_generated_images": 1,
    "diffusion_steps": 1,
    "diffusion_batch_size": 1,
    "tangent_width": 1,
    "hermite_order": 1,
    "hermite_product_order": 1,
    "feature_resolution": 1,
    "stopping_steps": 1,
    "num_stopping_images": 1,
    "scattering_levels": 1,
    "scattering_angles": 1,
    "frequency_steps": 1,
    "frequency_batch_size": 1,
    "generator_steps": 1,
    "generator_batch_size": 1,
    "generator_channels": 1,
    "num_auxiliary_images": 1,
    "auxiliary_inference_steps": 1,
    "num_evaluation_images": 1,
    "layers_per_block": 1,
    "patch_size": 1,
    "checkpointing_steps": 1,
    "checkpoints_total_limit": 1,
    "num_inference_steps": 1,
    "seed": 0,
    "public_steps": 1,
    "public_batch_size": 1,
    "public_lr_warmup_steps": 0,
    "candidates_per_class": 1,
    "classifier_width": 1,
    "semantic_classes_per_class": 1,
    "steps_per_network": 1,
    "image_steps": 1,
    "remembered_gradients": 1,
    "network_steps": 0,
    "discriminator_channels": 1,
    "discriminator_steps": 1,
    "num_votes": 1,
    "lookahead": 0,
    "images_per_class": 1,
    "embedding_pool": 1,
    "embedding_resolution": 1,
    "semantic_resolution": 1,
    "public_margin": 0,
    "generator_inference_steps": 1,
    "lora_rank": 1,
    "encoding_batch_size": 1,
    "num_salient": 1,
}
#: What a run begins with, or writes into, where it is a folder of this machine.
_FOLDERS = (
    "output_dir", "dataset_name", "train_data_dir", "public_dataset_name", "public_data_dir",
    "pretrained_model_name_or_path", "feature_network", "stopping_network", "semantic_query_network",
    "embedding_network",
)  # fmt: skip
SIGMA_MAX = 80.0  # where EDM's sampling begins, by the paper and by Diffusers' default
# Far beyond what is sensible, and well inside of what a 32-bit float can hold.
_SMALLEST, _LARGEST = 1e-9, 1e9
_POSITIVE = (
    "target_epsilon",
    "dataset_epsilon",
    "max_grad_norm",
    "learning_rate",
    "spatial_noise_multiplier",
    "spatial_learning_rate",
    "frequency_noise_multiplier",
    "features_noise_multiplier",
    "second_moments_noise_multiplier",
    "stopping_noise_multiplier",
    "saliency_noise_multiplier",
    "moving_average_learning_rate",
    "votes_noise_multiplier",
    "semantic_noise_multiplier",
    "network_learning_rate",
    "frequency_length_scale",
    "frequency_learning_rate",
    "generator_learning_rate",
    "diffusion_learning_rate",
    "public_learning_rate",
    "sigma_data",
    "length_scale",
    "scattering_length_scale",
)
_SHARES = (
    "spatial_budget_share", "frequency_budget_share", "second_moments_budget_share", "stopping_budget_share",
    "saliency_budget_share",
    "evaluation_reserve",
)  # fmt: skip
_SMALLEST_SHARE = 1e-6  # a smaller one has no noise multiplier within float's reach
_RATES = ("sample_rate", "spatial_sample_rate")
_CHOICES = {
    "curriculum": tuple(CURRICULA),
    "auxiliary": AUXILIARIES,
    "central_images": CENTRAL_IMAGES,
    "accountant": ACCOUNTANTS,
    "lr_scheduler": LR_SCHEDULERS,
    "noise_bands": ("1", "auto", "4", "8", "16"),
}


def validate(config: TrainingConfig) -> None:
    """
    Refuses values that cannot be, before anything is read, spent or written. A flag that the method does not have is
    passed over.

    Raises:
        `UsageError`: One sentence that names the flag and the remedy.
    """
    flags = {flag.name: getattr(config, flag.name) for flag in fields(config)}
    check_places(flags)
    check_counts(flags)
    for name, least in _AT_LEAST.items():
        value = getattr(config, name, None)
        if value is not None and value < least:
            raise UsageError(f"--{name} is {value}; give an integer of at least {least}.")
    parse_range(config.value_range, config.window)
    if parse_suffixes(config.image_suffixes) and config.train_data_dir is None:
        raise UsageError("--image_suffixes is of files in --train_data_dir; give that, or leave it out.")
    for name in _POSITIVE:
        value = getattr(config, name, None)
        if name == "target_epsilon" and not config.has_guarantee:
            continue
        if value is not None and not _SMALLEST <= value <= _LARGEST:
            raise UsageError(f"--{name} is {value}; give a number from {_SMALLEST:g} to {_LARGEST:g}.")
    for name in _SHARES:
        value = getattr(config, name, None)
        if value is not None and not _SMALLEST_SHARE <= value < 1:
            raise UsageError(f"--{name} is {value}; give a number from {_SMALLEST_SHARE:g} to below 1.")
    if config.target_delta is not None and not 0 < config.target_delta < 1:
        raise UsageError(f"--target_delta is {config.target_delta}; give a number between 0 and 1, both excluded.")
    for name in _RATES:
        text = getattr(config, name, None)
        if text is not None and not _is_rate(text):
            raise UsageError(f"--{name} is '{text}'; give a number above 0 and up to 1, such as 0.1 or 1/14.")
    for name, known in _CHOICES.items():
        if getattr(config, name, known[0]) not in known:
            raise UsageError(f"--{name} '{getattr(config, name)}' is unknown; give one of {' | '.join(known)}.")
    for name in _FOLDERS:
        given = getattr(config, name, None)
        if given and without_guarantee(Path(given)):
            raise UsageError(f"--{name} {given} was {WITHOUT}, and no run begins with that; give another.")
    _validate_sum_of_shares(config)
    if not config.push_to_hub and (config.hub_model_id is not None or config.hub_private_repo):
        name = "hub_private_repo" if config.hub_model_id is None else "hub_model_id"
        raise UsageError(f"--{name} has no effect without --push_to_hub; give both, or neither.")
    if isinstance(config, FETAProConfig):
        _validate_frequency(config)
    if isinstance(config, LearnsPublicImages):
        _validate_public_images(config)
    if isinstance(config, PublicConfig):
        _validate_public(config)
    if isinstance(config, DPFETAConfig):
        _validate_bins(config)
    if not config.has_guarantee:
        _validate_without_guarantee(config)
    validate_data(config)
    _validate_units(config)
    _validate_ledger(config)
    if isinstance(config, NetworkFlags):
        _validate_network(config, config.image_shape[1])
    if isinstance(config, DPSGDConfig):
        _validate_dp_sgd(config)
    if isinstance(config, DiffusionConfig):
        _validate_rows(config)
    config.check()
    check_finite(flags)  # of those that nothing above knows a closer bound for


def _validate_dp_sgd(config: DPSGDConfig) -> None:
    if not 0 <= config.ema_decay < 1:
        raise UsageError(f"--ema_decay is {config.ema_decay}; give a number from 0 to below 1.")
    if config.lr_warmup_steps and config.lr_scheduler == "constant":
        raise UsageError(
            "--lr_warmup_steps has no effect with --lr_scheduler constant; give --lr_scheduler constant_with_warmup."
        )
    if config.lr_warmup_steps >= config.max_train_steps:
        raise UsageError(
            f"--lr_warmup_steps is {config.lr_warmup_steps}; give fewer than --max_train_steps "
            f"{config.max_train_steps}."
        )
    _validate_tracker(config.report_to)
    if not _is_physical_batch_size(config):
        raise UsageError(
            f"--max_physical_batch_size is '{config.max_physical_batch_size}'; give an integer of at least 1, or auto."
        )
    if config.precision not in ("no", "bf16"):
        reason = "is not supported"
        if config.precision == "fp16":
            reason = "needs loss scaling, which changes gradients before they are clipped"
        raise UsageError(f"--mixed_precision {config.precision} {reason}; give bf16 or no.")
    if config.truncated_poisson and config.accountant != "pld":
        raise UsageError(
            f"--truncated_poisson and --accountant {config.accountant} exclude each other; only pld counts such "
            "samples."
        )
    _validate_bands(config)
    _validate_steps_of_units(config)


def _validate_bands(config: DPSGDConfig) -> None:
    if config.noise_bands == "1":
        return
    if config.truncated_poisson:
        raise UsageError(
            f"--noise_bands {config.noise_bands} and --truncated_poisson exclude each other: correlated noise has no "
            "proof for truncated samples; leave one of them out."
        )
    if not config.has_guarantee and config.noise_bands != "auto":
        raise UsageError(
            f"--noise_bands {config.noise_bands} and --target_epsilon inf exclude each other: without noise nothing "
            "is correlated; leave one of them out."
        )
    if config.bands is not None and config.bands > config.max_train_steps:
        raise UsageError(
            f"--noise_bands {config.bands} is more than --max_train_steps {config.max_train_steps}: a band for each "
            "step is the most; lower the one or raise the other."
        )


def _validate_steps_of_units(config: DPSGDConfig) -> None:
    if config.truncated_poisson and config.validation_size:
        raise UsageError(
            "--truncated_poisson and --validation_size exclude each other: the cost of a truncated sample needs the "
            "exact number of images, and images are held out by their ids; leave one of them out."
        )
    if config.unit_column is None:
        return
    if config.truncated_poisson:
        raise UsageError(
            "--truncated_poisson and --unit_column exclude each other: units have no common number of images."
        )
    size = config.physical_batch_size
    if size is not None and size < config.images_per_unit:
        raise UsageError(
            f"--max_images_per_unit {config.images_per_unit} is more than --max_physical_batch_size {size}, and a "
            "unit is never split: lower the one or raise the other."
        )


def _validate_tracker(name: str | None) -> None:
    """Raises `UsageError` where the package of `--report_to` is not known or not installed."""
    if name is None:
        return
    if name not in TRACKERS:
        raise UsageError(f"--report_to '{name}' is unknown; give one of {' | '.join(TRACKERS)}, or leave it out.")
    if importlib.util.find_spec(name) is None:
        raise UsageError(f"--report_to {name} needs a package: pip install diffusers_dp[{name}], or leave it out.")


def _validate_sum_of_shares(config: TrainingConfig) -> None:
    """Shares are of one budget, the composed RDP at one order, and `takes_rest` gets the rest. A tighter accountant
    may find something left where their sum is 1 or more, but then none of them is the share that was asked for."""
    shares = config.asked_shares
    total = math.fsum(shares.values())
    if config.has_guarantee and total >= 1:
        given = " and ".join(f"{flag} {share:g}" for flag, share in shares.items())
        raise UsageError(
            f"{given} are {total:g} of the budget together, which leaves nothing to {config.takes_rest}: lower them "
            "to a sum below 1."
        )


def _validate_without_guarantee(config: TrainingConfig) -> None:
    """What would publish, spend or add up a guarantee that is not there."""
    for name in ("push_to_hub", "evaluation_reserve", "dataset_id"):
        if getattr(config, name):
            raise UsageError(
                f"--{name} and --target_epsilon inf exclude each other: a run without guarantee is not published, and "
                "has no budget; leave one of them out."
            )


def _validate_frequency(config: FETAProConfig) -> None:
    if config.auxiliary != "generator" and (config.objective or config.default_objective) != "edm":
        raise UsageError(
            f"--auxiliary {config.auxiliary} draws by DDIM on EDM's noise levels; give --objective edm, or "
            "--auxiliary generator."
        )
    if config.curriculum == "mix" and config.auxiliary == "none":
        raise UsageError(
            "--auxiliary none draws no images that --curriculum mix could mix; give another --curriculum, or "
            "--auxiliary generator."
        )
    if config.curriculum == "mix" and config.frequency_batch_size < 2:
        raise UsageError(
            "--frequency_batch_size is 1, but --curriculum mix halves each batch; give an integer of at least 2."
        )
    if config.auxiliary_features not in ("rff", "scattering"):
        raise UsageError(f"--auxiliary_features '{config.auxiliary_features}' is unknown; give rff or scattering.")
    if config.auxiliary_features == "scattering":
        config.check_levels(config.image_shape)
        if config.num_frequency_features % 4:
            raise UsageError(
                f"--num_frequency_features is {config.num_frequency_features}; give a multiple of 4 for scattering: "
                "cosines and sines of wavelets and of pixels."
            )
    if config.num_frequency_features % 2:
        raise UsageError(
            f"--num_frequency_features is {config.num_frequency_features}; give an even number (cosines and sines)."
        )


def _validate_rows(config: DiffusionConfig) -> None:
    """What befalls a training row."""
    if not 0 <= config.label_dropout < 1:
        raise UsageError(f"--label_dropout is {config.label_dropout}; give a number from 0 to below 1.")
    if not -10 <= config.p_mean <= 10:
        raise UsageError(f"--p_mean is {config.p_mean}; give a number from -10 to 10.")
    if not 0 < config.p_std <= 5:
        raise UsageError(f"--p_std is {config.p_std}; give a number above 0 and up to 5.")
    if not 0 < config.sigma_min < SIGMA_MAX:
        raise UsageError(f"--sigma_min is {config.sigma_min}; give a number above 0 and below {SIGMA_MAX:g}.")
    if config.objective not in (None, *OBJECTIVES):
        raise UsageError(f"--objective '{config.objective}' is unknown; give one of {' | '.join(OBJECTIVES)}.")
    if config.timestep_mixture is not None:
        TimestepMixture.parse(config.timestep_mixture, "timestep_mixture")
    for name in config.augmentation_names:
        if name not in AUGMENTATIONS:
            raise UsageError(
                f"--augmentations '{name}' is not one of {', '.join(AUGMENTATIONS)}; give these, for what mixes "
                "images (mixup, cutmix) would let one image move the gradients of others."
            )


def _refuse_empty(config: TrainingConfig, *names: str) -> None:
    for name in names:
        if getattr(config, name) is not None and not getattr(config, name).strip():
            raise UsageError(f"--{name} is empty; give a value, or leave the flag out.")


def _validate_public_images(config: LearnsPublicImages) -> None:
    _refuse_empty(
        config, "public_dataset_name", "public_data_dir", "public_split", "public_image_column", "public_label_column"
    )
    if config.public_timestep_mixture is not None:
        TimestepMixture.parse(config.public_timestep_mixture, "public_timestep_mixture")


def _validate_public(config: PublicConfig) -> None:
    _refuse_empty(config, "pretrained_model_name_or_path")
    if config.pretrained_model_revision is not None and config.pretrained_model_name_or_path is None:
        raise UsageError("--pretrained_model_revision needs --pretrained_model_name_or_path, whose it is.")
    if not (config.pretrains or config.pretrained_model_name_or_path or config.dry_run):
        for field in (*fields(PublicDataFlags), *fields(PretrainingFlags)):
            if getattr(config, field.name) != field.default:
                raise UsageError(
                    f"--{field.name} needs --public_dataset_name or --public_data_dir, or in its place "
                    "--pretrained_model_name_or_path: without one of them there is no pre-training."
                )
    if getattr(config, "mix_public_images", False) and not (config.pretrains or config.dry_run):
        raise UsageError(
            "--mix_public_images needs --public_dataset_name or --public_data_dir, whose images are mixed with the "
            "central ones."
        )
    if config.semantic_query is not None and not (config.pretrains or config.dry_run):
        raise UsageError(
            "--semantic_query_network chooses among public images, and there are none: add --public_dataset_name or "
            "--public_data_dir."
        )


def _validate_bins(config: DPFETAConfig) -> None:
    if config.num_bins is None:
        return
    if config.central_images != "mode":
        raise UsageError("--num_bins needs --central_images mode, whose histograms have bins; leave it out.")
    if config.num_bins > 256:
        raise UsageError(f"--num_bins is {config.num_bins}, but a value of an image is one of 256; give at most that.")


def _is_physical_batch_size(config: DPSGDConfig) -> bool:
    try:
        return config.physical_batch_size is None or config.physical_batch_size >= 1
    except ValueError:
        return False


def _is_rate(text: str) -> bool:
    try:
        rate = parse_rate(text)
        return rate <= 1 and float(rate) > 0  # not even after rounding
    except ValueError:
        return False


def _validate_units(config: TrainingConfig) -> None:
    if config.key_column is not None and (config.dataset_name is None or config.unit_column is not None):
        raise UsageError(
            "--key_column needs --dataset_name, because only a data set has columns, and excludes --unit_column, "
            "whose values are ids already: leave --key_column out."
        )
    if config.unit_column is None:
        for name in ("num_train_units", "max_images_per_unit"):
            if getattr(config, name) is not None:
                raise UsageError(f"--{name} needs --unit_column, which says whose image each one is.")
        return
    if config.dataset_name is None:
        raise UsageError("--unit_column needs --dataset_name, for only a dataset has columns.")
    if config.unit_column == "image" or not re.fullmatch(UNIT, config.unit_column, re.ASCII):
        raise UsageError(
            f"--unit_column '{config.unit_column}' cannot name a unit; call the column what it tells apart, such as "
            "patient_id."
        )
    for name in ("num_train_units", "num_train_images"):
        if getattr(config, name) is None:
            raise UsageError(
                f"--unit_column needs --{name}, declared and public: counted, it would tell who is there."
            )
    if (config.num_train_units or 0) > (config.num_train_images or 0):
        raise UsageError(
            f"--num_train_units {config.num_train_units} is more than --num_train_images {config.num_train_images}, "
            "and each unit has an image: lower the one or raise the other."
        )


def _validate_ledger(config: TrainingConfig) -> None:
    if config.dataset_id is not None:
        check_dataset_id(config.dataset_id)
        if config.ledger_dir is None:
            raise UsageError(
                "--dataset_id needs --ledger_dir, a private folder that is the same for all releases: else nothing "
                "adds up."
            )
        return
    for name in ("ledger_dir", "dataset_epsilon"):
        if getattr(config, name) is not None:
            raise UsageError(f"--{name} needs --dataset_id, the name under which the releases of a data set add up.")


def _validate_network(config: NetworkFlags, side: int) -> None:
    try:
        levels = config.channels_per_level
    except ValueError:
        levels = ()
    if not levels or min(levels) < 1:
        raise UsageError(
            f"--block_out_channels is '{config.block_out_channels}'; give a positive integer per level, such as 32,64."
        )
    factor = config.patch_size * 2 ** (len(levels) - 1)
    if side % factor:
        raise UsageError(
            f"--resolution {side} is not divisible by {factor} (--patch_size times 2 for each further level of "
            f"--block_out_channels); give --resolution {math.ceil(side / factor) * factor}, or fewer levels."
        )
    sizes = [side // config.patch_size // 2**level for level in range(len(levels))]
    try:
        unknown = set(config.attention_sizes) - set(sizes)
    except ValueError:
        unknown = {0}
    if unknown:
        raise UsageError(
            f"--attention_resolutions is '{config.attention_resolutions}', but this model has feature maps of size "
            f"{', '.join(map(str, sizes))}; give some of these, or nothing."
        )
