# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The groups of flags that training scripts share, each flag with its default and its help text."""

import math
from dataclasses import dataclass
from typing import Any

from ..accounting.epsilon import MOST_BY_PRV
from ..accounting.ledger_file import check_dataset_id
from ..errors import UsageError
from ..queries.scattering import ScatteringFeatures
from ..randomness.timestep_mixture import TimestepMixture
from ..verify import ACCOUNTANTS, MOST_EPSILON
from .data_flags import DataFlags
from .flag import SHARE, expert, flag, integers, named_numbers, split_list


#: What a flag says that holds a distribution of diffusion times.
TIMES: dict[str, Any] = {
    "read": TimestepMixture.parse,
    "range": "intervals that cover 0 to 1000 in order, with positive weights whose sum is 1, such as "
    "0-200:0.05,200-800:0.9,800-1000:0.05",
}
#: Scales J and angles L of the wavelets: coefficients are 2^J times coarser than pixels. Recipes have no others.
SCATTERING_LEVELS, SCATTERING_ANGLES = 2, 6
SOLVERS = ("dpm", "heun", "hmc")
SIGMA_MAX = 80.0  # where EDM's sampling begins, by the paper and by Diffusers' default


@dataclass
class PrivacyFlags:
    """The guarantee, and who counts it."""

    _argument_group_name = "privacy"

    target_epsilon: float = flag(
        10.0,
        "Total epsilon of all stages together. 'inf', for comparison alone: no noise, NO guarantee and no release.",
        or_else=math.inf, at_most=MOST_EPSILON,
    )  # fmt: skip
    target_delta: float | None = flag(None, "delta of the guarantee, below 1/N; unset: 1/(N ln N).", above=0, below=1)
    allow_large_delta: bool = flag(
        False, "Take a --target_delta of 1/N or more, though it allows to publish some records outright.", rare=True
    )
    noise: str | None = flag(
        None,
        "'exact': sums and noise are whole numbers, and the receipt says proven; 'float': noise of floating-point "
        "numbers; unset: exact for methods without DP-SGD.",
        choices=("float", "exact"),
    )  # fmt: skip
    accountant: str = flag("pld", f"Who computes epsilon: {', '.join(ACCOUNTANTS)}.", rare=True, choices=ACCOUNTANTS)
    noise_multiplier: str = flag(
        "",
        "Noise multipliers of queries, comma-separated or with the flag repeated; unset: from --budget. "
        "class_counts=10 asks for the sizes of classes, so that rare ones weigh as much.",
        read=named_numbers, range="name=number, such as central_images=5",
    )  # fmt: skip
    budget: str = flag(
        "",
        "Shares of the composed RDP that queries may spend, in the same form; DP-SGD, or queries without one, "
        "get the rest.",
        read=named_numbers, range="name=share, each share above 0 and below 1, such as central_images=0.01", **SHARE,
    )  # fmt: skip
    evaluation_reserve: float | None = flag(
        None,
        "Share of the composed RDP for one query about the finished model, whose noisy answer is in its card; "
        "unset: none.",
        rare=True, **SHARE,
    )  # fmt: skip
    num_evaluation_images: int = flag(5000, "Images drawn for that query.", rare=True, only_with="evaluation_reserve")
    dataset_id: str | None = flag(
        None, "Your name for the data set, under which releases add up in one ledger; unset: this one alone.",
        needs=("ledger_dir",),
    )  # fmt: skip
    ledger_dir: str | None = flag(
        None, "Private folder of the ledgers of --dataset_id.", place=True, needs=("dataset_id",)
    )
    dataset_epsilon: float | None = flag(
        None, "Bound on epsilon of all releases of --dataset_id together, at this run's delta; unset: none.",
        at_most=MOST_EPSILON, needs=("dataset_id",),
    )  # fmt: skip

    @property
    def has_guarantee(self) -> bool:
        """False with `--target_epsilon inf`, and with nothing else."""
        return self.target_epsilon != math.inf

    def check(self) -> None:
        if self.dataset_id is not None:
            check_dataset_id(self.dataset_id)
        if self.noise == "exact" and not self.has_guarantee:
            raise UsageError(
                "--noise exact has no effect with --target_epsilon inf, which has no noise: leave one out."
            )
        if self.accountant == "prv" and MOST_BY_PRV < self.target_epsilon < math.inf:
            raise UsageError(
                f"--accountant prv counts up to --target_epsilon {MOST_BY_PRV}: lower it, or give --accountant pld."
            )


@dataclass
class NetworkFlags(DataFlags):
    """The UNet."""

    _argument_group_name = "network"

    block_out_channels: str = flag(
        "16,32", "Channels per level.", read=integers, range="a positive integer per level, such as 32,64"
    )
    layers_per_block: int = flag(1, "Residual blocks per level.")
    attention_resolutions: str = flag(
        "", "Feature-map sizes (of patches) that get attention.",
        read=integers, range="sizes of feature maps, comma-separated, or nothing",
    )  # fmt: skip
    patch_size: int = flag(1, "Pixels are unshuffled into patches of this side length before the first layer.")
    attention_head_dim: int | None = expert(
        None, "Channels of an attention head; unset: the greatest common divisor of --block_out_channels."
    )
    resnet_time_scale_shift: str = expert(
        "default", "How residual blocks use the time: added to features, or as their scale and shift (scale_shift).",
        choices=("default", "scale_shift"),
    )  # fmt: skip

    @property
    def channels_per_level(self) -> tuple[int, ...]:
        """`--block_out_channels` as integers."""
        return integers(self.block_out_channels)

    @property
    def attention_sizes(self) -> tuple[int, ...]:
        """`--attention_resolutions` as integers."""
        return integers(self.attention_resolutions)

    @property
    def network(self) -> dict[str, Any]:
        """The UNet of a model that begins from nothing, as `models.unet_config` takes it."""
        return {
            "channels_per_level": self.channels_per_level,
            "layers_per_block": self.layers_per_block,
            "attention_sizes": self.attention_sizes,
            "patch_size": self.patch_size,
            "attention_head_dim": self.attention_head_dim,
            "resnet_time_scale_shift": self.resnet_time_scale_shift,
        }

    def check(self) -> None:
        side, levels = self.image_shape[1], len(self.channels_per_level)
        factor = self.patch_size * 2 ** (levels - 1)
        if side % factor:
            raise UsageError(
                f"--resolution {side} is not divisible by {factor} (--patch_size times 2 for each further level of "
                f"--block_out_channels); give --resolution {math.ceil(side / factor) * factor}, or fewer levels."
            )
        sizes = [side // self.patch_size // 2**level for level in range(levels)]
        if not set(self.attention_sizes) <= set(sizes):
            raise UsageError(
                f"--attention_resolutions is '{self.attention_resolutions}', but this model has feature maps of size "
                f"{', '.join(map(str, sizes))}; give some of these, or nothing."
            )
        width = math.gcd(*self.channels_per_level)
        if self.attention_head_dim is not None and width % self.attention_head_dim:
            raise UsageError(
                f"--expert attention_head_dim={self.attention_head_dim} does not divide --block_out_channels "
                f"{self.block_out_channels}; give a divisor of {width}."
            )


def length_scale_of(image_shape: tuple[int, ...]) -> float:
    """Default of a length scale of the pixels' kernel: it grows with the distances between images."""
    return math.prod(image_shape) ** 0.5 / 4


def refuse_odd(name: str, number: int, kernels: int) -> None:
    """Raises `UsageError` where there are no cosines and sines of each kernel."""
    if number % (2 * kernels):
        raise UsageError(
            f"--{name} is {number}; give an even number (cosines and sines) for each of {kernels} kernel(s), a "
            f"multiple of {2 * kernels}."
        )


@dataclass
class ScatteringFlags:
    """The wavelets."""

    _argument_group_name = "scattering"

    scattering_length_scale: float | None = expert(
        None, "--length_scale of the coefficients; unset: sqrt(channels * height * width) / 8."
    )

    def scattering(
        self, image_shape: tuple[int, ...], num_features: int, length_scale: float | None, seed: int
    ) -> ScatteringFeatures:
        """The features, with the defaults of both length scales filled in.

        Args:
            length_scale (`float`, *optional*): Length scale of the pixels' kernel.
        """
        default = length_scale_of(image_shape)
        return ScatteringFeatures(
            image_shape, num_features, SCATTERING_LEVELS, SCATTERING_ANGLES,
            self.scattering_length_scale or default / 2 ** (SCATTERING_LEVELS - 1), length_scale or default, seed,
        )  # fmt: skip

    def check_levels(self, image_shape: tuple[int, ...]) -> None:
        if 2**SCATTERING_LEVELS > min(image_shape[1:]):
            raise UsageError(
                f"Wavelets leave nothing of images of {image_shape[1]} pixels a side; raise --resolution, or give "
                "other features."
            )


@dataclass
class TimesOfRows:
    """Diffusion times of training rows."""

    timestep_mixture: str | None = expert(
        None,
        "Intervals of diffusion time with the weights by which training rows draw from them: steps of ddpm, "
        "quantiles of noise levels of edm; unset: evenly.",
        **TIMES,
    )  # fmt: skip

    @property
    def mixture(self) -> TimestepMixture | None:
        """`timestep_mixture`, read."""
        return None if self.timestep_mixture is None else TimestepMixture.parse(self.timestep_mixture)


@dataclass
class SolverFlags:
    """How noise becomes images; the stochastic sampler is Algorithm 2 of Karras et al. 2022."""

    _argument_group_name = "solver"

    solver: str = flag(
        "dpm",
        "dpm, heun or hmc. heun calls the model twice a step; hmc, Hamiltonian dynamics (docs/methods/diffusion.md), "
        "three times.",
        rare=True, choices=SOLVERS,
    )  # fmt: skip
    s_churn: float = flag(0.0, "Fresh noise of heun, over all steps.", rare=True, at_least=0)
    s_min: float = flag(
        0.0, "Smallest noise level at which heun adds fresh noise.", rare=True, at_least=0, only_with="s_churn"
    )
    s_max: float = flag(
        math.inf, "Largest noise level at which heun adds fresh noise.",
        rare=True, at_least=0, or_else=math.inf, only_with="s_churn",
    )  # fmt: skip
    s_noise: float = flag(1.0, "Standard deviation of heun's fresh noise.", rare=True, at_least=0, only_with="s_churn")

    def check(self) -> None:
        if self.s_churn and self.solver != "heun":
            raise UsageError(f"--s_churn {self.s_churn:g} needs --solver heun: give both, or --s_churn 0.")
        if self.s_min > self.s_max:
            raise UsageError(
                f"--s_min {self.s_min:g} is above --s_max {self.s_max:g}, which leaves no noise level between them; "
                "lower the one or raise the other."
            )


@dataclass
class ModelFlags(TimesOfRows):
    """The denoiser, and what befalls its training rows."""

    _argument_group_name = "model"

    objective: str | None = flag(
        None,
        "'edm' (Karras et al. 2022) or 'ddpm' (noise prediction, 1,000 steps); unset: the pre-trained model's, else "
        "edm (dp_diffusion: ddpm).",
        choices=("edm", "ddpm"),
    )  # fmt: skip
    sigma_min: float = expert(
        0.002, "EDM's lowest noise level of sampling; a pre-trained pipeline keeps its own at 0.002.",
        above=0, below=SIGMA_MAX,
    )  # fmt: skip
    p_mean: float = expert(-0.5, "Mean of ln(sigma), the noise level of a training row.", at_least=-10, at_most=10)
    p_std: float = expert(
        0.8, "Standard deviation of ln(sigma), the noise level of a training row.", above=0, at_most=5
    )
    augmentations: str = flag(
        "",
        "What each draw of a training row undergoes by itself: flip (half of them) or crop (shifted by up to an "
        "eighth), or both.",
        read=split_list, choices=("flip", "crop"),
        range="flip, crop, both or nothing: what mixes images (mixup, cutmix) would let one move gradients of others",
    )  # fmt: skip

    @property
    def augmentation_names(self) -> tuple[str, ...]:
        """`--augmentations`, one by one."""
        return split_list(self.augmentations)


@dataclass
class RunFlags:
    """Where the run lives, and how it starts."""

    _argument_group_name = "run"

    config: str | None = flag(
        None,
        "Recipe: a YAML file, or the name of one that comes with the package, such as mnist_cpu. Or 'auto': settings "
        "by rules from what is declared of your images.",
    )  # fmt: skip
    minutes: float | None = flag(None, "Minutes that --config auto plans for; unset: 20.", rare=True)
    minutes_on: str | None = expert(
        None, "Whose they are; unset: a GPU's if there is one.", choices=("core", "gpu"), only_with="minutes"
    )
    output_dir: str = flag(
        "", "Folder of the run: private/ stays in the house, release/ is public; unset: runs/METHOD.", place=True
    )
    seed: int = flag(
        0, "Seed of all that is not private; noise and Poisson draws never use it.", at_least=0, at_most=2**32 - 1
    )
    dry_run: bool = flag(False, "Print stages, noise, steps and epsilon, then stop without reading an image.")
    skip_preflight: bool = flag(False, "Leave out the audit of the mechanism on stand-in records.", rare=True)
    resume_from_checkpoint: str | None = flag(None, "'latest', or the path of a checkpoint to go on from.", place=True)
    num_inference_steps: int = flag(20, "Sampling steps for samples.png.", rare=True, at_most=1_000)


@dataclass
class HubFlags:
    """What comes from the Hub, and what goes there. The token is that of `hf auth login`, and no flag."""

    _argument_group_name = "Hub"

    cache_dir: str | None = flag(
        None, "Folder of all downloads; unset: that of huggingface_hub.", rare=True, place=True
    )

    push_to_hub: bool = flag(
        False, "Upload the folder release/, and nothing else, when it is finished; asked of the Hub at the start."
    )
    hub_model_id: str | None = flag(
        None, "Name on the Hub, owner/name; unset: the name of --output_dir.", needs=("push_to_hub",)
    )
    hub_private_repo: bool = flag(False, "Make a new repository private.", needs=("push_to_hub",))
