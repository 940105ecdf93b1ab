"""Fine-tune a public latent diffusion pipeline on sensitive images, under one total (epsilon, delta), and release
adapters for it.

    accelerate launch training/train_dp_ldm.py --train_data_dir scans --class_names benign,malignant \\
        --resolution 512 --pretrained_model_name_or_path stable-diffusion-v1-5/stable-diffusion-v1-5 \\
        --class_prompts "a benign scan,a malignant scan" --target_epsilon 5
    accelerate launch training/train_dp_ldm.py --train salient ...               # a noisy answer chooses the matrices
    accelerate launch training/train_dp_ldm.py --train attention ...             # the attention's own weights

Stages: each image is encoded once by the public autoencoder, into private/cache (-> DP-SAPF's query) -> DP-SGD on the
latents -> release/. Only this query and DP-SGD touch the sensitive images, through `SensitiveImages`; each writes its
row to the ledger first. The pipeline's own scale of latents is public; prompts are fixed and encoded once.

A release holds `pytorch_lora_weights.safetensors`, which `pipe.load_lora_weights` of Diffusers reads, and names its
base by commit and hashes; with `--merge` it is a whole pipeline.

`--train` makes the method: DP-LoRA (`lora`), DP-SAPF (`salient`), DP-LDM (`attention`, `all`).

Papers: DP-LDM (Liu et al. 2024), DP-LoRA (Tsai et al. 2024), DP-SAPF (arXiv 2605.30312).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from diffusers_dp.methods.latents import SALIENCY_TIMES, TRAINED
from diffusers_dp.runs.launch import launch
from diffusers_dp.training.script import main_of


if TYPE_CHECKING:
    from diffusers_dp.methods.latents import LatentConfig
    from diffusers_dp.runs.latent_run import LatentRun


def train(run: "LatentRun[LatentConfig]") -> None:
    from diffusers_dp.models.saliency import Saliency

    # 1. Which layers get low-rank matrices: those of a flag, or of a noisy answer.
    config, targets = run.config, run.config.targets
    for query in config.queries:
        saliency = Saliency(run.denoiser, SALIENCY_TIMES, config.seed, at_once=config.encoding_batch_size)
        query = replace(query, base_sha256=run.base.origin["files_sha256"])
        chosen = run.ask(query, saliency, images=run.latents)
        targets = tuple(saliency.names[number] for number in chosen.tolist())

    # 2. DP-SGD on the latents, and the release.
    run.dp_sgd_on_latents(targets)
    run.release_model({**config.training_facts, **({"lora_targets": list(targets)} if targets else {})})


main = main_of(*dict.fromkeys(TRAINED.values()), train=train)


if __name__ == "__main__":
    launch(main)
