# %% [markdown]
# # Your own model
#
# A network and a loss that the library has never seen: a small variational autoencoder. It is trained with DP-SGD, and
# its decoder is released with a receipt. A loss gives one number a row; no layer may mix rows.

# %%
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from torch import nn

from diffusers_dp.audit.preflight import preflight
from diffusers_dp.files.canonical import canonical_json
from diffusers_dp.methods.flags import DPSGDConfig
from diffusers_dp.methods.method import DP_SGD, Method
from diffusers_dp.release.artefacts import write_text
from diffusers_dp.runs.dp_sgd import Trained
from diffusers_dp.runs.launch import launch, run_method
from diffusers_dp.verify import guarantee


# %%
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, images, noise):
        mean, log_std = self.encoder(images).chunk(2, dim=1)
        return self.decoder(mean + log_std.exp() * noise), mean, log_std


def row_loss(model, images, labels, generator):
    """The negative evidence lower bound of each image, in [-1, 1]. All that is random comes from the door's
    generator."""
    decoded, mean, log_std = model(images, generator.normal((len(images), 8), 1.0, images.device))
    divergence = (mean**2 + (2 * log_std).exp() - 2 * log_std - 1).sum(1) / 2
    return F.mse_loss(decoded, images.flatten(1), reduction="none").sum(1) + divergence


# %% [markdown]
# What a release of it holds: weights, and an index, to which the privacy statement is added. The receipt has the hash
# of both.


# %%
class Decoder:
    files = ("decoder.safetensors", "model_index.json")

    def __init__(self, model):
        self.weights = model.decoder.state_dict()

    def save(self, release):
        save_file(self.weights, release / "decoder.safetensors")
        write_text(release / "model_index.json", canonical_json({"_class_name": "Decoder"}))

    def card(self, receipt):
        return ModelCard(f"---\nlicense: mit\n---\n# A decoder of 8x8 digits\n\n{guarantee(receipt)}")


@dataclass
class Config(DPSGDConfig):
    method = "vae"
    output_dir: str = "example_of_own_model/run"


# %%
def build(config, facts, device):
    model = VAE().to(device)
    return Trained(model, model, row_loss)


def train(run):
    trained = build(run.config, run.facts, run.processes.device)
    run.dp_sgd(trained)
    run.release(Decoder(trained.module))


METHOD = Method(
    "vae", "VAE", "Kingma and Welling 2014", "proven_with_assumptions",
    "Its loss gives one number a row; the noise of its latents comes from the door's generator.",
    mechanisms=(DP_SGD,), config=Config, train=train, build=build,
)  # fmt: skip

folder = Path(Config.output_dir).parent
if folder.exists():
    sys.exit(f"{folder} exists: this example writes into a folder of its own; move yours away, or run it elsewhere.")
flags = "--max_train_steps 40 --noise_multiplicity 1 --max_grad_norm 1 --train_batch_size 256".split()
launch(lambda: run_method(METHOD, preflight, flags))

# %%
drawn = VAE().decoder
drawn.load_state_dict(load_file("example_of_own_model/run/release/decoder.safetensors"))
print(drawn(torch.randn(4, 8)).shape)
