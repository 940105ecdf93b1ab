# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The leaderboard: tables and pictures of what each method reached. `python benchmarks/rows.py docs` writes them from
measured rows. No torch."""

import json
from importlib.resources import files


#: Files of pictures by their titles, each with what it shows in words.
PICTURES = {
    "": ("leaderboard.webp", "Accuracy against minutes of training, a panel for each data set and epsilon; the tables "
         "have the numbers."),
    "MNIST": ("leaderboard_mnist.webp", "MNIST: real images, and images of each method."),
    "CIFAR-10": ("leaderboard_cifar10.webp", "CIFAR-10: real images, and images of each method."),
}  # fmt: skip


def read_tables() -> dict[str, str]:
    """Markdown: a table for each data set by its title, then methods whose published epsilons do not hold."""
    found: dict[str, str] = json.loads(files(__package__).joinpath("leaderboard.json").read_text(encoding="utf-8"))
    return found


def read_pictures() -> dict[str, tuple[str, bytes]]:
    """WebP pictures by their titles, each with what it shows in words."""
    return {
        title: (words, files(__package__).joinpath(name).read_bytes()) for title, (name, words) in PICTURES.items()
    }
