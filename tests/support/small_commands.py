# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp` with few images in a part, a note of who does which, and one thing that goes wrong in the second
process, for `test_worker_pool.py`.

python small_commands.py NOTES nothing|full|killed COMMAND ...
"""

import os
import signal
import sys

from diffusers_dp import cli
from diffusers_dp.distributed import processes
from diffusers_dp.evaluation import classifier_features, extractors, judging, networks
from diffusers_dp.sampling import shards


def patches(notes, trouble="nothing"):
    """Modules (or classes), names, and what stands there instead."""
    rank = os.environ.get("RANK", "0")

    def note(*words):
        with open(notes, "a") as file:
            file.write(" ".join(map(str, (rank, *words))) + "\n")

    def write_shard(name, *rest):
        if rank == "1" and trouble == "full":
            raise OSError(28, "No space left on device")
        if rank == "1" and trouble == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        note("shard", name.name)
        written(name, *rest)

    def features(self, images):
        note("features", len(images), images.astype(int).sum())
        return extracted(self, images)

    def measure_utility(*images, **options):
        note("classifier", options["classifiers"], options.get("sizes"))
        return measured(*images, **options)

    written, measured = shards.replace_file, judging.measure_utility
    extracted = classifier_features.ClassifierExtractor.__call__
    return [
        (processes, "cores", lambda: 1),  # sums depend on the number of threads
        (shards, "IMAGES_PER_SHARD", 4),
        (shards, "replace_file", write_shard),
        (extractors, "IMAGES_PER_CHUNK", 16),
        (classifier_features, "STEPS", 20),
        (classifier_features.ClassifierExtractor, "__call__", features),
        (networks, "CNN_TRAINING", networks.CNN_TRAINING.with_epochs(2)),
        (judging, "measure_utility", measure_utility),
    ]


if __name__ == "__main__":
    for place, name, value in patches(sys.argv[1], sys.argv[2]):
        setattr(place, name, value)
    cli.main(sys.argv[3:])
