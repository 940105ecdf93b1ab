# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The groups of flags that training scripts share, each flag with its default and its help text."""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ..data.decoding import MAX_IMAGE_PIXELS
from ..errors import UsageError
from ..queries.scattering import ScatteringFeatures
from ..words import ACCOUNTANTS


#: What a training row may be taught with.
OBJECTIVES = ("edm", "ddpm")
#: What may befall a training row: each keeps to its own image.
AUGMENTATIONS = ("flip", "crop")
#: What `--report_to` may be: packages of these names.
TRACKERS = ("tensorboard", "wandb")
#: Of Diffusers' `get_scheduler`, those that need no other number.
LR_SCHEDULERS = ("constant", "constant_with_warmup", "linear", "cosine")
#: Side length of images whose `--resolution` is not given, other than the embedded 8x8 digits.
DEFAULT_RESOLUTION = 32
DIGITS_RESOLUTION = 8


def flag(default: Any, text: str, *, rare: bool = False, **known: Any) -> Any:
    """A field of a group of flags, with its default and its help text. One that few runs need is `rare`: `--help_all`
    shows it. What else is `known` of it (`at_least`, `choices`, `metavar`) is read from its metadata."""
    return field(default=default, metadata={"help": text, "rare": rare, **known})


def run_folder(default: str) -> Any:
    """`--output_dir`, which each method has a default of its own for."""
    return flag(default, "Folder of the run: private/ stays in the house, release/ is public.")


@dataclass
class DataFlags:
    """Which images, and the public facts about them."""

    _argument_group_name = "data"

    dataset_name: str | None = flag(
        None, "Hub id or local dataset folder. Without this and --train_data_dir: the embedded scikit-learn digits."
    )
    dataset_config_name: str | None = flag(None, "Configuration of the dataset, where it has several.", rare=True)
    train_split: str = flag("train", "Split of --dataset_name to train on.", rare=True)
    train_data_dir: str | None = flag(None, "Folder that holds one folder of images per class; needs --class_names.")
    image_column: str = flag("image", "Column of --dataset_name that holds the images.", rare=True)
    label_column: str | None = flag(
        None, "Column of --dataset_name that holds the class; unset: 'label' if there is one, else unconditional."
    )
    class_names: str | None = flag(
        None, "The public label set, comma-separated (a list in a recipe); unset: that of the dataset's ClassLabel."
    )
    resolution: int | None = flag(
        None,
        "Images are resized (shorter side) and centre-cropped to this side length in pixels; "
        f"unset: {DIGITS_RESOLUTION} for the embedded digits, else {DEFAULT_RESOLUTION}.",
    )
    num_channels: int | None = flag(None, "1 (grey) or 3 (RGB); unset: 1 for the embedded digits, else 3.")
    unit_column: str | None = flag(
        None,
        "Column of --dataset_name that says whose image it is (patient_id): all images of one unit are protected "
        "together, and N counts units; unset: each image is one unit.",
    )
    key_column: str | None = flag(
        None,
        "Column of --dataset_name with a key of each image. --noise_bands and --validation_size go by it, so that a "
        "row that is missing moves no other; unset: by the row's number, or a file's path.",
        rare=True,
    )
    num_train_units: int | None = flag(None, "N, the declared, public number of units of --unit_column.")
    max_images_per_unit: int | None = flag(
        None, "Images of one unit that are looked at in one question or step, drawn at random; unset: 8.", rare=True
    )
    num_train_images: int | None = flag(
        None,
        "N, the declared, public number of images to train on, without the validation images; "
        "unset: the length of the split minus --validation_size. With --unit_column N counts units, and this is the "
        "most images that there are.",
    )
    max_image_pixels: int = flag(
        MAX_IMAGE_PIXELS,
        "An image of more pixels (width times height, read from its header) is not decoded and contributes nothing, "
        "like a damaged one.",
        rare=True,
    )
    value_range: str | None = flag(
        None,
        "Declared grey values that become black and white, of images with more than 8 bits: 0,4095 for 12 bits; "
        "unset: 0,65535, and of floating-point images 0,1 or 0,255.",
    )
    window: str | None = flag(
        None, "The same as --value_range, as scanners say it: center,width, such as 40,400 (Hounsfield units)."
    )
    image_suffixes: str | None = flag(
        None,
        "Suffixes of files in --train_data_dir that are images, comma-separated; others are ignored. DICOM (.dcm) and "
        "NIfTI (.nii,.nii.gz: the middle plane) need diffusers_dp[medical] and --window; unset: the usual ones of "
        "pictures, such as .png, .jpg and .tif.",
    )
    validation_size: int = flag(
        0,
        "Images held out of the split, never trained on: each by a public hash of its path, key, row number or unit. "
        "About as many are held out, and N, rates and divisors use this number.",
        rare=True,
    )


@dataclass
class PrivacyFlags:
    """The guarantee, and who counts it."""

    _argument_group_name = "privacy"

    target_epsilon: float = flag(
        10.0,
        "Total epsilon of all stages together. 'inf', for comparison alone: no noise anywhere, whatever other flags "
        "say, NO guarantee and no release, but output_dir/no_guarantee/.",
    )
    target_delta: float | None = flag(None, "delta of the guarantee, below 1/N; unset: 1/(N ln N).")
    allow_large_delta: bool = flag(
        False,
        "Take a --target_delta of 1/N or more, though it allows to publish some records outright; "
        "plan, card, page and `verify` then say so.",
        rare=True,
    )
    accountant: str = flag("pld", f"Who computes epsilon: {', '.join(ACCOUNTANTS)}.", rare=True)
    evaluation_reserve: float | None = flag(
        None,
        "Share of the composed RDP that DP-SGD leaves over for one question about the finished model, whose noisy "
        "answer (accuracy, moments) stands in its receipt and card; unset: nothing is left, and nothing is asked.",
        rare=True,
    )
    num_evaluation_images: int = flag(
        5000, "Images drawn for that question; without --evaluation_reserve none are.", rare=True
    )
    dataset_id: str | None = flag(
        None,
        "Your name for the data set: releases under one name are written in one ledger and add up; unset: this one "
        "alone.",
    )
    ledger_dir: str | None = flag(
        None, "Private folder of the ledgers of --dataset_id, the same for all its releases."
    )
    dataset_epsilon: float | None = flag(
        None,
        "Bound on epsilon of all releases of --dataset_id together, at this run's delta, later ones too; unset: none. "
        "Bounds of earlier ones hold at their deltas.",
    )


@dataclass
class DPSGDFlags:
    """The private training, and how its weights are averaged."""

    _argument_group_name = "DP-SGD"

    max_train_steps: int = flag(20, "DP-SGD steps.")
    restart_slack: int = flag(
        0,
        "DP-SGD steps that the noise is calibrated for beyond --max_train_steps, so that as many may be lost to "
        "interruptions before a run ends early; spent only when lost.",
        rare=True,
    )
    train_batch_size: int | None = flag(
        None, "Expected batch size B: sample rate B/N, gradient sum divided by B; unset: min(2048, N)."
    )
    sample_rate: str | None = flag(
        None,
        "Poisson sample rate q in place of --train_batch_size: a decimal or a fraction such as 1/14; "
        "the gradient sum is divided by floor(qN).",
        rare=True,
    )
    truncated_poisson: bool = flag(
        False,
        "Cut Poisson samples down to qN + 5 standard deviations and fill smaller ones up with blanks: every step has "
        "the same shape; costs next to nothing from some hundred images a step on, and epsilon where there are fewer.",
        rare=True,
    )
    noise_bands: str = flag(
        "1",
        "Steps over which DP-SGD's noise is correlated, so that it cancels in their sum: 1 | 4 | 8 | 16, or 'auto' "
        "for the one with the least computed error. As many groups of images take turns. With b bands, b - 1 vectors "
        "like the model stay in memory.",
        rare=True,
    )
    noise_multiplicity: int = flag(
        6, "K: draws of diffusion time and noise per image, averaged before its gradient is clipped."
    )
    max_grad_norm: float = flag(1e-3, "Clip norm of one image's gradient.")
    learning_rate: float = flag(4e-3, "Learning rate of Adam during DP-SGD.")
    lr_scheduler: str = flag("constant", f"Its course over --max_train_steps: {' | '.join(LR_SCHEDULERS)}.", rare=True)
    lr_warmup_steps: int = flag(0, "DP-SGD steps in which it rises to --learning_rate from 0.", rare=True)
    ema_decay: float = flag(0.999, "Decay of the averaged weights, warmed up; restarted at every stage.", rare=True)
    max_physical_batch_size: str = flag(
        "64",
        "Images (each with its K draws) that are computed at once, or 'auto' for as many as fit; memory only, no "
        "effect on the distribution of the result.",
    )
    no_engine_tuning: bool = flag(
        False,
        "Form gradients per image in fixed ways, not in those that are fastest on this machine (a second or two of "
        "timing on random numbers at the start); the same answer to rounding.",
        rare=True,
    )
    mixed_precision: str | None = flag(
        None,
        "'bf16' computes the UNet and its gradients under autocast; norms, sums and noise stay float32. Or 'no'; "
        "unset: what `accelerate launch` was told or is configured to, else no.",
    )


@dataclass
class LevelFlags:
    """The levels of a UNet."""

    block_out_channels: str = flag("16,32", "Channels per level, comma-separated (a list in a recipe).")
    layers_per_block: int = flag(1, "Residual blocks per level.")
    attention_resolutions: str = flag(
        "", "Feature-map sizes (of patches, or of latents) that get attention, comma-separated (a list in a recipe)."
    )

    @property
    def channels_per_level(self) -> tuple[int, ...]:
        """`--block_out_channels` as integers. Raises `ValueError` where they are none."""
        return tuple(int(item) for item in split_list(self.block_out_channels))

    @property
    def attention_sizes(self) -> tuple[int, ...]:
        """`--attention_resolutions` as integers. Raises `ValueError` where they are none."""
        return tuple(int(item) for item in split_list(self.attention_resolutions))


@dataclass
class NetworkFlags(LevelFlags):
    """The UNet."""

    _argument_group_name = "network"

    patch_size: int = flag(1, "Pixels are unshuffled into patches of this side length before the first layer.")

    @property
    def network(self) -> dict[str, Any]:
        """The UNet of a model that begins from nothing, as `models.unet_config` takes it."""
        return {
            "channels_per_level": self.channels_per_level,
            "layers_per_block": self.layers_per_block,
            "attention_sizes": self.attention_sizes,
            "patch_size": self.patch_size,
        }


@dataclass
class ScatteringFlags:
    """The wavelets."""

    _argument_group_name = "scattering"

    scattering_levels: int = flag(
        2, "Scales J of the wavelets: coefficients are 2^J times coarser than pixels.", rare=True
    )
    scattering_angles: int = flag(6, "Angles L of the wavelets.", rare=True)
    scattering_length_scale: float | None = flag(
        None, "--length_scale of the coefficients; unset: sqrt(channels * height * width) / 2^(J + 1).", rare=True
    )

    def scattering(
        self, image_shape: tuple[int, ...], num_features: int, length_scale: float | None, seed: int
    ) -> ScatteringFeatures:
        """The features, with the defaults of both length scales filled in.

        Args:
            length_scale (`float`, *optional*): Of the pixels' kernel.
        """
        size = math.prod(image_shape) ** 0.5
        return ScatteringFeatures(
            image_shape, num_features, self.scattering_levels, self.scattering_angles,
            self.scattering_length_scale or size / 2 ** (self.scattering_levels + 1), length_scale or size / 4, seed,
        )  # fmt: skip

    def check_levels(self, image_shape: tuple[int, ...]) -> None:
        if 2**self.scattering_levels > min(image_shape[1:]):
            raise UsageError(
                f"--scattering_levels {self.scattering_levels} leaves nothing of images of {image_shape[1]} "
                "pixels a side; give fewer."
            )


@dataclass
class ModelFlags:
    """The denoiser, and what befalls its training rows."""

    _argument_group_name = "model"

    objective: str | None = flag(
        None,
        "'edm' (Karras et al. 2022) or 'ddpm' (noise prediction, 1,000 steps, linear schedule); unset: that of the "
        "pre-trained model, else edm (train_dp_diffusion.py: ddpm).",
    )
    sigma_data: float = flag(0.577, "EDM's standard deviation of the data, for images in [-1, 1].", rare=True)
    sigma_min: float = flag(
        0.002,
        "EDM's lowest noise level of sampling, which the last step removes at once; a pre-trained pipeline brings its "
        "own, unless another than 0.002 is given.",
        rare=True,
    )
    p_mean: float = flag(-0.5, "Mean of ln(sigma), the noise level of a training row; EDM's own is -1.2.", rare=True)
    p_std: float = flag(
        0.8, "Standard deviation of ln(sigma), the noise level of a training row; EDM's own is 1.2.", rare=True
    )
    label_dropout: float = flag(0.1, "Probability that a label is replaced by 'no label' during training.", rare=True)
    timestep_mixture: str | None = flag(
        None,
        "Intervals of diffusion time from 0 to 1000 with the weights by which training rows draw from them, such as "
        "0-200:0.05,200-800:0.9,800-1000:0.05 (a list in a recipe): steps with --objective ddpm, quantiles of the "
        "noise levels with edm; unset: evenly.",
        rare=True,
    )
    augmentations: str = flag(
        "",
        "What each training row, so each of the K draws of an image, undergoes by itself: flip (left to right, half "
        "of them), crop (shifted by up to an eighth of the side), both (comma-separated; a list in a recipe), or "
        "nothing.",
    )


@dataclass
class RunFlags:
    """Where the run lives, and how it starts."""

    _argument_group_name = "run"

    config: str | None = flag(
        None,
        "Recipe, flags that differ from the defaults: the path of a YAML file, or the name of one that comes with the "
        "package, such as mnist_cpu; a file of that name in the current folder wins.",
    )
    output_dir: str = run_folder("runs")
    seed: int = flag(0, "Seed of all that is not private; noise and Poisson draws never use it.")
    dry_run: bool = flag(False, "Print stages, noise, steps and epsilon, then stop without reading an image.")
    skip_preflight: bool = flag(
        False,
        "Leave out the pre-flight: some seconds in which the mechanism is audited on stand-in records.",
        rare=True,
    )
    resume_from_checkpoint: str | None = flag(None, "'latest', or the path of a checkpoint to go on from.")
    num_inference_steps: int = flag(20, "Sampling steps for samples.png.", rare=True)


@dataclass
class CheckpointFlags:
    """What DP-SGD leaves behind on its way."""

    _argument_group_name = "run of DP-SGD"

    checkpointing_steps: int | None = flag(
        None, "DP-SGD steps between two checkpoints, reserved together; unset: a tenth of --max_train_steps."
    )
    checkpoints_total_limit: int = flag(
        2,
        "Checkpoints of DP-SGD that stay in private/; with more, `diffusers-dp evaluate --training_curve` shows the "
        "way.",
    )
    report_to: str | None = flag(
        None,
        f"Tracker, one of {', '.join(TRACKERS)}: is told step, learning rate and epsilon at each checkpoint, and the "
        "speed of the whole run, no loss or gradient norm; unset: none.",
    )
    leaky_logs: bool = flag(
        False,
        "Write losses, gradient norms and batch sizes of DP-SGD to private/unprotected/: no guarantee covers them, "
        "never pass them on.",
    )


@dataclass
class HubFlags:
    """Whether the release goes to the Hub. The token is that of `hf auth login`, and no flag."""

    _argument_group_name = "Hub"

    push_to_hub: bool = flag(
        False, "Upload the folder release/, and nothing else, when it is finished; asked of the Hub at the start."
    )
    hub_model_id: str | None = flag(
        None, "Name on the Hub, owner/name; unset: the name of --output_dir, as one of your own."
    )
    hub_private_repo: bool = flag(False, "Make a new repository private.")


def split_list(text: str) -> tuple[str, ...]:
    """Splits a comma-separated flag; spaces around the items and empty items do not count."""
    return tuple(item.strip() for item in text.split(",") if item.strip())


def parse_rate(text: str) -> Fraction:
    """
    Reads a sample rate exactly, so that floor(qN) is not at the mercy of rounding.

    Args:
        text (`str`): A decimal (`"0.1"`) or a fraction (`"1/14"`).

    Returns:
        `Fraction`: The rate.

    Raises:
        `ValueError`: It is neither.
    """
    try:
        return Fraction(text.strip())
    except ZeroDivisionError as error:
        raise ValueError(f"{text} divides by zero") from error
