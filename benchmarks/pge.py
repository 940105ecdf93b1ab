# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""PGE as published, on scikit-learn's digits, and an attack on it. It reads images in the clear and has NO guarantee
of this library, whatever epsilon it claims: docs/guarantee.md says why. So it takes no data but those, which everybody
has.

    python benchmarks/pge.py --epsilon 10
    python benchmarks/pge.py --epsilon 1 --attack_only

Private Gradient Estimation: a network q learns the score of images by sliced score matching (Equation 8). Randomised
response swaps a projection for one of its k nearest with a probability that epsilon decides (Equation 6), and this is
all that is to make it private. Images are drawn by Hamiltonian dynamics (Equation 11). A classifier that learned drawn
images says what they are worth.

What differs from the paper's text, which contradicts itself:

- q is the gradient of log p, as Equation 8 minimises it, and not that of U = -log p, as the text says before it.
- Equation 11 moves x against the momentum; here x += step * c, for dx/dt = +c.
- The accepted fraction divides one vector by another, q(x') / q(x), and the energy of q is unknown. So nothing is
  rejected. Where the paper accepts, every 100 steps, fresh momentum is drawn.
- "No pre-training", and yet a pre-trained VQGAN encodes x. There is none here, and q is a small network of dense
  layers.
- Labels are embedded into images, as ten more numbers. Images get a little noise (--data_noise), without which the
  score of pixels that are always black has no bound.

The attack: networks trained with and without one chosen image, and a threshold fixed beforehand on others. If epsilon
held, the rates of hits and of false alarms could not differ by more than a factor of e^epsilon.
"""

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from diffusers_dp.audit.bounds import clopper_pearson
from diffusers_dp.files.canonical import canonical_json
from diffusers_dp.files.journal import put_in_place
from diffusers_dp.release.marked import FOLDER, PRIVACY
from diffusers_dp.verify import RECEIPT_NAME, WITHOUT


WARNING = (
    "NO GUARANTEE: PGE reads images in the clear, and no epsilon of this library covers it, whatever it claims. It "
    "runs on scikit-learn's digits, which are public, and what it writes is no release."
)
CLASSES, PIXELS, TRAINED_ON = 10, 64, 1400
MOST_EPSILON = 50.0
CONFIDENCE = 0.975  # of each of the two rates, so that the bound holds with 95 %


class Scores(torch.nn.Module):
    """As many networks as asked for, side by side: `[copies, rows, numbers]` to the same shape."""

    def __init__(self, copies: int, size: int, hidden: int):
        super().__init__()
        sizes = ((size, hidden), (hidden, hidden), (hidden, size))
        self.weights = torch.nn.ParameterList(torch.randn(copies, *shape) / math.sqrt(shape[0]) for shape in sizes)
        self.biases = torch.nn.ParameterList(torch.zeros(copies, 1, shape[1]) for shape in sizes)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            rows = torch.baddbmm(bias, rows if number == 0 else F.silu(rows), weight)
        return rows


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All digits in a fixed order, pixels in [-1, 1] and then their label as ten numbers, `[1797, 74]`; and labels."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    labels = torch.from_numpy(data.target)[order]
    pixels = torch.from_numpy(data.images).float().flatten(1)[order] / 8 - 1
    return torch.cat([pixels, 2 * F.one_hot(labels, CLASSES) - 1], 1), labels


def randomised_response(projections: torch.Tensor, neighbours: int, epsilon: float) -> torch.Tensor:
    """Equation 6, row by row: itself, or one of the others among the k that have the smallest cosine distance.

    Args:
        projections (`torch.Tensor` of shape `[copies, rows, d]`): v.
        neighbours (`int`): k, itself among them.
    """
    direction = F.normalize(projections, dim=2)
    nearest = (direction @ direction.transpose(1, 2)).topk(neighbours, dim=2).indices  # the first is the row itself
    keep = math.exp(epsilon) / (math.exp(epsilon) + neighbours - 1)
    other = torch.randint(1, neighbours, projections.shape[:2])
    choice = torch.where(torch.rand(projections.shape[:2]) < keep, 0, other)
    chosen = nearest.gather(2, choice[..., None])
    return projections.gather(1, chosen.expand_as(projections))


def matching_loss(network: Scores, rows: torch.Tensor, v: torch.Tensor, response: torch.Tensor) -> torch.Tensor:
    """Equation 8 of each row, `R(v)' grad q(x) R(v) + (v' q(x))^2 / 2`, `[copies, rows]`."""
    rows = rows.detach().requires_grad_()
    score = network(rows)
    (product,) = torch.autograd.grad((score * response).sum(), rows, create_graph=True)
    return (product * response).sum(2) + (v * score).sum(2).square() / 2


def train(
    images: torch.Tensor, args: argparse.Namespace, *, copies: int = 1, steps: int, batch_size: int, hidden: int
) -> Scores:
    """Networks that each learned from the same images, with draws of their own."""
    network = Scores(copies, images.shape[1], hidden)
    optimizer = torch.optim.Adam(network.parameters(), lr=args.learning_rate)
    for _ in range(steps):
        index = torch.rand(copies, len(images)).argsort(1)[:, :batch_size]
        rows = images[index] + args.data_noise * torch.randn(*index.shape, images.shape[1])
        v = torch.randn_like(rows)
        loss = matching_loss(network, rows, v, randomised_response(v, args.neighbours, args.epsilon))
        optimizer.zero_grad()
        loss.mean(1).sum().backward()
        optimizer.step()
    return network


@torch.no_grad()
def draw(network: Scores, count: int, args: argparse.Namespace) -> torch.Tensor:
    """Equation 11 with its sign put right, from noise, under a step that falls to a tenth: `[count, 74]`."""
    rows = torch.randn(1, count, PIXELS + CLASSES)
    for number in range(args.sampling_steps):
        if number % args.refresh == 0:
            momentum = torch.randn_like(rows)
        step = args.step_size * (1 - 0.9 * number / args.sampling_steps)
        momentum = momentum + step / 2 * network(rows)
        rows = rows + step * momentum
        momentum = momentum + step / 2 * network(rows)
    return rows[0]


def accuracy(drawn: torch.Tensor, images: torch.Tensor, labels: torch.Tensor) -> float | None:
    """Of a logistic regression that learned drawn images, on digits that PGE did not see; `None` where the sampler ran
    away, or made one class alone."""
    found = drawn[:, PIXELS:].argmax(1)
    if not drawn.isfinite().all() or len(found.unique()) < 2:
        return None
    model = LogisticRegression(max_iter=300).fit(drawn[:, :PIXELS].clamp(-1, 1).numpy(), found.numpy())
    return round(float(model.score(images[:, :PIXELS].numpy(), labels.numpy())), 4)


def attack(args: argparse.Namespace) -> dict[str, float]:
    """A lower bound on epsilon, of which an attacker who sees the weights is sure to 95 %."""
    images = digits()[0][: args.attack_records]
    canary = torch.ones(1, images.shape[1])
    canary[0, ::2] = -1  # stripes, which no digit has, with every label and none
    neighbours, found = (images, torch.cat([images, canary])), []
    for data in neighbours:
        copies = args.trials + args.pilots
        network = train(
            data, args, copies=copies, steps=args.attack_steps, batch_size=len(data), hidden=args.attack_hidden
        )
        # What Equation 8 says of the canary, over all directions: low where it took part.
        directions = torch.eye(images.shape[1]).expand(copies, -1, -1)
        loss = matching_loss(network, canary.expand(copies, images.shape[1], -1), directions, directions)
        found.append(loss.detach().sum(1))
    without, taken = found
    threshold = (without[: args.pilots].median() + taken[: args.pilots].median()) / 2
    hits = int((taken[args.pilots :] < threshold).sum())
    alarms = int((without[args.pilots :] < threshold).sum())
    least_hits, most_alarms = (
        clopper_pearson(hits, args.trials, CONFIDENCE)[0], clopper_pearson(alarms, args.trials, CONFIDENCE)[1]
    )  # fmt: skip
    bounds = (_log_ratio(least_hits, most_alarms), _log_ratio(1 - most_alarms, 1 - least_hits))
    return {
        "claimed_epsilon": args.epsilon, "trials": args.trials, "hits": hits, "false_alarms": alarms,
        "epsilon_at_least": round(max(0.0, *bounds), 3),
    }  # fmt: skip


def _log_ratio(least: float, most: float) -> float:
    return math.log(least / most) if least > 0 else 0.0


def is_free(output: Path) -> bool:
    """Whether a folder is new, or holds at most what this script wrote there."""
    written, index = output / FOLDER, output / FOLDER / "model_index.json"
    if written.exists() and not (index.is_file() and json.loads(index.read_bytes()).get("_class_name") == "PGE"):
        return False
    return not any((output / name).exists() for name in ("private", "release", "model_index.json", RECEIPT_NAME))


def write(output: Path, network: Scores | None, figures: dict[str, float | None]) -> None:
    """`output/no_guarantee/`: it says of itself what it is, and every door refuses it. There are no images in it."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output, prefix=f".{FOLDER}-") as temporary:
        folder = Path(temporary, FOLDER)
        folder.mkdir(mode=0o700)
        index = {"_class_name": "PGE", "privacy": PRIVACY}
        (folder / "model_index.json").write_text(canonical_json(index))
        (folder / "figures.json").write_text(canonical_json(figures))
        (folder / "README.md").write_text(f"# NOT private: {WITHOUT}\n\n{WARNING}\n")
        if network is not None:
            save_file(network.state_dict(), folder / "score.safetensors", metadata={"privacy": WITHOUT})
        put_in_place(folder, output / FOLDER)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=10.0, help="What PGE claims.")
    parser.add_argument("--neighbours", type=int, default=10, help="k of randomised response.")
    parser.add_argument("--train_steps", type=int, default=4000)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--data_noise", type=float, default=0.3)
    parser.add_argument("--num_images", type=int, default=2000)
    parser.add_argument("--sampling_steps", type=int, default=5000)
    parser.add_argument("--step_size", type=float, default=0.02)
    parser.add_argument("--refresh", type=int, default=100, help="Leapfrog steps between two draws of momentum.")
    parser.add_argument("--attack_only", action="store_true")
    parser.add_argument("--trials", type=int, default=100, help="Networks with the image, and as many without.")
    parser.add_argument("--pilots", type=int, default=25, help="More of both, which fix the threshold.")
    parser.add_argument("--attack_records", type=int, default=50)
    parser.add_argument("--attack_steps", type=int, default=200)
    parser.add_argument("--attack_hidden", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/pge"))
    args = parser.parse_args(argv)
    print(WARNING, file=sys.stderr, flush=True)
    most = min(args.batch_size, args.attack_records)
    if not 2 <= args.neighbours <= most:
        parser.error(f"--neighbours is {args.neighbours}; give 2 to {most}, see --batch_size and --attack_records.")
    for name, value in vars(args).items():
        if type(value) in (int, float) and name != "seed" and not value > 0:
            parser.error(f"--{name} is {value}; give a number above 0.")
    if args.epsilon > MOST_EPSILON:
        parser.error(f"--epsilon is {args.epsilon}; give {MOST_EPSILON:g} at most.")
    if not is_free(args.output_dir):
        parser.error(f"--output_dir {args.output_dir} holds something else; give a folder of its own.")
    torch.manual_seed(args.seed)
    figures: dict[str, float | None] = {}
    network = None
    if not args.attack_only:
        images, labels = digits()
        network = train(
            images[:TRAINED_ON], args, steps=args.train_steps, batch_size=args.batch_size, hidden=args.hidden
        )
        drawn = draw(network, args.num_images, args)
        unseen = images[TRAINED_ON:], labels[TRAINED_ON:]
        figures["accuracy"] = accuracy(drawn, *unseen)
        figures["accuracy_of_real_images"] = accuracy(images[:TRAINED_ON], *unseen)
    figures |= attack(args)
    write(args.output_dir, network, figures)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
