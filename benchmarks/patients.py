# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""How well do drawn slices of `examples/patients.py` teach a small CNN to find tumours in new simulated patients?

    python examples/patients.py 3000
    python benchmarks/patients.py example_of_patients/run/release

New patients come from the same simulation, with another seed; the second line is for a CNN that learned the slices of
500 of them, without any privacy. The CNN's training is fixed: 400 steps of 32 slices of each class.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from demo_accuracy import SmallCNN
from sklearn.metrics import roc_auc_score

from diffusers_dp import load_verified
from diffusers_dp.distributed.memory import keep_freed_memory


EXAMPLE = Path(__file__).parents[1] / "examples" / "patients.py"
CLASSES = ["clear", "tumour"]
BLACK, WIDTH = 24, 1500  # the example's --window 774,1500


def simulation() -> dict[str, Any]:
    """What the example defines before it writes anything."""
    text = EXAMPLE.read_text(encoding="utf-8")
    parts = [part for part in text.split("# %%") if "\ndef " in part or part.lstrip().startswith("import")]
    names: dict[str, Any] = {}
    for part in parts:
        exec(compile(part, str(EXAMPLE), "exec"), names)
    return names


def new_patients(number: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Slices `[4 number, 1, 64, 64]`, uint8, and whether a tumour is in each."""
    names, rng, slices, labels = simulation(), np.random.default_rng(seed), [], []
    matrix = names["rays"]()
    for _ in range(number):
        body, has_tumour = names["patient"](rng)
        slices.append(names["scan"](body, rng, matrix))
        labels += [int(found) for found in has_tumour]
    grey = torch.from_numpy(np.concatenate(slices).astype(np.float32))[:, None]
    return ((grey - BLACK) / WIDTH).clip(0, 1).mul(255).round().byte(), torch.tensor(labels)


def drawn(release: Path, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of a release, as many of each class."""
    pipeline, labels, images = load_verified(release), torch.arange(number) % 2, []
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(0)
    for part in labels.split(250):
        names = [CLASSES[label] for label in part.tolist()]
        batch = pipeline(class_labels=names, num_inference_steps=20, generator=generator, output_type="pt").images
        images.append(batch.clamp(0, 1).mul(255).round().byte())
    return torch.cat(images), labels


def judged(learn: tuple[torch.Tensor, torch.Tensor], test: tuple[torch.Tensor, torch.Tensor]) -> str:
    """AUC, and the accuracy on each class on average, of a CNN that learned one set and is tested on the other."""
    torch.manual_seed(0)
    (images, labels), (test_images, test_labels) = learn, test
    model = SmallCNN(1, images.shape[-1], 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    of_class = [torch.where(labels == label)[0] for label in (0, 1)]
    for _ in range(400):
        batch = torch.cat([index[torch.randint(len(index), (32,))] for index in of_class])
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch].float() / 255), labels[batch]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        scores = torch.cat([model(part.float() / 255).softmax(1)[:, 1] for part in test_images.split(200)])
    right = [(scores[test_labels == label].round() == label).float().mean().item() for label in (0, 1)]
    return f"AUC {roc_auc_score(test_labels, scores):.3f}, {np.mean(right):.1%} of each class on average"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", type=Path)
    parser.add_argument("--num_images", type=int, default=2000, help="Drawn from the release.")
    args = parser.parse_args()
    keep_freed_memory()
    test = new_patients(400, seed=12345)
    print("drawn slices:", judged(drawn(args.release, args.num_images), test), flush=True)
    print("slices of 500 patients, no privacy:", judged(new_patients(500, seed=54321), test), flush=True)


if __name__ == "__main__":
    main()
