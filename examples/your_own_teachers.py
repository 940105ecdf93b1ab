# %% [markdown]
# # Your own teachers
#
# A method that the library does not have: 300 small networks, each on a share of the images of its own, say how ten
# images should change to look like theirs. The images follow the noisy sum of what all say. They are released with a
# receipt.

# %%
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from torch import nn

from diffusers_dp.audit.preflight import preflight
from diffusers_dp.files.canonical import canonical_json
from diffusers_dp.methods.flags import DPSGDConfig
from diffusers_dp.methods.method import TEACHERS, Method
from diffusers_dp.privacy.teachers import ANSWER, Teaching
from diffusers_dp.release.artefacts import write_text
from diffusers_dp.runs.dp_sgd import Trained
from diffusers_dp.runs.launch import launch, run_method
from diffusers_dp.verify import guarantee


# %% [markdown]
# A teacher keeps a picture of each class, which comes near its images of it. What it says of a public image is the
# gradient of the distance to its picture. The loss gets public images too, which these teachers do not need.


# %%
class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.pictures = nn.Parameter(torch.zeros(10, 64))

    def forward(self, images, labels):
        of_class = (labels[:, None] == torch.arange(10, device=labels.device)).float()  # vmap cannot index by labels
        return (images.flatten(1) - of_class @ self.pictures).square().sum(1)


def loss(teacher, real, real_labels, images, labels):
    return teacher(real, real_labels).mean()


def blame(teacher, images, labels):
    return torch.func.grad(lambda images: teacher(images, labels).sum())(images).flatten(1)


# %% [markdown]
# What learns from the answers. `inputs` are public images in [-1, 1]; `learn` gets their noisy sum and sets gradients.


# %%
class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.pixels = nn.Parameter(torch.zeros(10, 1, 8, 8))
        self.register_buffer("labels", torch.arange(10))

    def inputs(self):
        return self.pixels.detach().clamp(-1, 1), self.labels

    def learn(self, answers):
        self.pixels.grad = answers[ANSWER].view_as(self.pixels)


class Release:
    files = ("images.safetensors", "model_index.json")

    def __init__(self, images):
        pixels, labels = images.inputs()
        self.tensors = {"images": pixels, "labels": labels}

    def save(self, release):
        save_file(self.tensors, release / "images.safetensors")
        write_text(release / "model_index.json", canonical_json({"_class_name": "Images"}))

    def card(self, receipt):
        return ModelCard(f"---\nlicense: mit\n---\n# Ten images of 8x8 digits\n\n{guarantee(receipt)}")


@dataclass
class Config(DPSGDConfig):
    method = "picture_teachers"
    output_dir: str = "example_of_own_teachers/run"
    num_shares = 300


# %%
def build(config, facts, device):
    images = Images().to(device)
    teaching = Teaching(new=Teacher, loss=loss, blame=blame, steps=10, batch_size=4, learning_rate=5e-2)
    return Trained(images, images, teaching, images.learn)


def train(run):
    trained = build(run.config, run.facts, run.processes.device)
    run.dp_sgd(trained, images=run.teachers(trained.loss))
    run.release(Release(trained.module))


METHOD = Method(
    "picture_teachers", "Picture teachers", "this example",
    "proven_with_assumptions", "One unit is in one share, and moves the sum of a round by two clip norms.",
    mechanisms=(TEACHERS,), config=Config, train=train, build=build,
)  # fmt: skip

folder = Path(Config.output_dir).parent
if folder.exists():
    sys.exit(f"{folder} exists: this example writes into a folder of its own; move yours away, or run it elsewhere.")
flags = "--max_train_steps 15 --noise_multiplicity 1 --max_grad_norm 1 --learning_rate 0.1".split()
launch(lambda: run_method(METHOD, preflight, flags))

# %%
drawn = load_file("example_of_own_teachers/run/release/images.safetensors")
print({name: tuple(tensor.shape) for name, tensor in drawn.items()})
