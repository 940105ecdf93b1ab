# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Fine-tuning of a public latent pipeline with DP-SGD: its attention (DP-LDM), low-rank matrices (DP-LoRA), or
low-rank matrices beside layers that a noisy answer names (DP-SAPF). No torch."""

import importlib.util
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from ..errors import UsageError, install
from ..mechanisms.mechanism import NO_EXACT_LATENTS
from ..queries.query import Query
from ..queries.saliency import MatrixSaliency
from .flag import expert, flag, split_list
from .flag_groups import TimesOfRows
from .flags import DPSGDConfig
from .method import built


#: What `--train` may be, and whose it is.
TRAINED = {"lora": "dp_lora", "attention": "dp_ldm", "all": "dp_ldm", "salient": "dp_sapf"}
#: Diffusion times in (0, 1) at which DP-SAPF looks at gradients, with noise of a public seed: early, half-way, late.
SALIENCY_TIMES = (0.2, 0.5, 0.8)


@dataclass
class LatentFlags(TimesOfRows):
    """The public latent pipeline, what of it is trained, and what is released."""

    _argument_group_name = "latent pipeline"

    pretrained_model_name_or_path: str | None = flag(
        None,
        "Hub id or folder of a public pipeline of Stable Diffusion, or XL (safetensors), to begin with. With public "
        "images its network is a new one.",
        place=True,
    )  # fmt: skip
    pretrained_model_revision: str | None = flag(None, "Branch, tag or commit of it on the Hub.", rare=True)
    base_overlap: str = flag(
        "unknown",
        "What you know about sensitive images among those that the pipeline learned from, for card and receipt.",
        rare=True, choices=("none", "unknown"),
    )  # fmt: skip
    train: str = flag(
        "lora",
        "What is trained, which makes the method: low-rank matrices (beside chosen layers: salient), attention or "
        "all.",
        choices=tuple(TRAINED),
    )  # fmt: skip
    lora_rank: int = flag(8, "Rank of each pair of matrices.")
    lora_targets: str = flag("", "Ends of the names of layers that get a pair; unset: the linear ones of attention.")
    merge: bool = flag(
        False,
        "Release the whole pipeline, as --train attention and all do; else adapters, with name and hashes of their "
        "base.",
    )  # fmt: skip
    class_prompts: str | None = flag(
        None, "Fixed, public prompts, one for each class; unset: the names of the classes."
    )
    encoding_batch_size: int = expert(
        8, "Images that are encoded, and records whose gradients DP-SAPF looks at, at a time."
    )
    gradient_checkpointing: bool = flag(
        False, "Compute activations again in the backward pass: less memory, more time.", rare=True
    )


@dataclass
class LatentConfig(LatentFlags, DPSGDConfig):
    """What the methods of `training/train_dp_ldm.py` share."""

    @property
    def names_model(self) -> bool:
        return self.pretrained_model_name_or_path is not None

    @property
    def model_key(self) -> str:  # a base can have gigabytes
        return repr([getattr(self, each.name) for each in fields(LatentFlags)])

    @property
    def merges(self) -> bool:
        """Whether the release is a whole pipeline."""
        return self.merge or not self.has_adapters

    @property
    def has_adapters(self) -> bool:
        """Whether low-rank matrices are trained."""
        return self.train in ("lora", "salient")

    @property
    def targets(self) -> tuple[str, ...]:
        """`--lora_targets`, one by one."""
        return split_list(self.lora_targets)

    @property
    def prompts(self) -> tuple[str, ...] | None:
        """`--class_prompts`, one by one."""
        return None if self.class_prompts is None else split_list(self.class_prompts)

    @property
    def told(self) -> tuple[str, ...]:
        return ("train", *(("lora_rank",) if self.has_adapters else ()))

    @property
    def training_facts(self) -> dict[str, Any]:
        prompts = {} if self.prompts is None else {"class_prompts": list(self.prompts)}
        return super().training_facts | prompts

    def check(self) -> None:
        if self.is_exact:
            raise UsageError(NO_EXACT_LATENTS)
        if self.has_adapters and not self.dry_run and importlib.util.find_spec("peft") is None:
            raise UsageError(f"--train {self.train} needs peft: {install('lora')}.")
        if self.train != "lora" and self.targets:
            raise UsageError(f"--lora_targets has no effect with --train {self.train}; leave one of them out.")


@dataclass
class DPLoRAConfig(LatentConfig):
    """With low-rank matrices."""

    method: ClassVar[str] = "dp_lora"


@dataclass
class DPLDMConfig(LatentConfig):
    """With the weights of attention themselves, or all of the network."""

    method: ClassVar[str] = "dp_ldm"
    train: str = "attention"


@dataclass
class DPSAPFConfig(LatentConfig):
    """With low-rank matrices beside those that one noisy query chooses."""

    _argument_group_name = "saliency (query)"

    query_defaults: ClassVar[dict[str, dict[str, float]]] = {"saliency": {"budget_share": 0.02}}
    num_salient: int = flag(8, "Matrices that are chosen, and get low-rank ones.")

    method: ClassVar[str] = "dp_sapf"
    train: str = "salient"

    @property
    def queries(self) -> tuple[Query, ...]:
        return (MatrixSaliency(num_chosen=self.num_salient, **self.asked("saliency")),)

    @property
    def training_facts(self) -> dict[str, Any]:
        return super().training_facts | {"num_salient": self.num_salient, "saliency_times": list(SALIENCY_TIMES)}


METHODS = tuple(
    built(
        config, train="diffusers_dp.training.train_dp_ldm:train", run_class="diffusers_dp.runs.latent_run:LatentRun",
        build="diffusers_dp.runs.latent_run:build",
    )
    for config in (DPLDMConfig, DPLoRAConfig, DPSAPFConfig)
)  # fmt: skip
