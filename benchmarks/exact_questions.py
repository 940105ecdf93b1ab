"""What does `--noise exact` cost a query? The same query in whole numbers and in floating point, in turn, in one
process; the trial of bits is included.

    OMP_NUM_THREADS=1 python benchmarks/exact_queries.py --method moments --config mnist_cpu
    OMP_NUM_THREADS=1 python benchmarks/exact_queries.py --method dp_merf --config mnist_cpu

The images are noise, as many as the recipe declares or `--num_images`; the features are those of the pre-flight.
Printed for each query: seconds in floating point, and the median ratio over the rounds.
"""

import argparse
import statistics
import time

import torch
from tqdm.auto import tqdm

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.mechanisms import sampled
from diffusers_dp.methods.config import CONFIGS, load_config
from diffusers_dp.privacy.sensitive import SensitiveImages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", required=True, choices=CONFIGS)
    parser.add_argument("--config", required=True, help="Recipe.")
    parser.add_argument("--num_images", type=int, default=None, help="Defaults to those of the recipe.")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    config = load_config(["--config", given.config], CONFIGS[given.method])
    names, number = tuple(config.class_names), given.num_images or config.num_train_images
    pixels = torch.Generator().manual_seed(0)
    images = torch.randint(256, (number, *config.image_shape), dtype=torch.uint8, generator=pixels).numpy()
    labels = (torch.arange(number) % len(names)).numpy()

    def seconds(query, exact: bool) -> float:
        ledger = PrivacyLedger(None, target_epsilon=1e15, target_delta=1e-6, num_images=number, accountant="rdp")
        door = SensitiveImages(
            images, labels, labels >= 0, num_images=number, image_shape=config.image_shape, ledger=ledger,
            class_names=names, exact=exact,
        )  # fmt: skip
        began = time.perf_counter()
        door.noisy_sum(query.stand_in(), sampled(1.0, by_label=True), clip_norm=query.clip_norm, name=query.name)
        return time.perf_counter() - began

    for query in tqdm(config.queries, desc="Queries"):
        pairs = [(seconds(query, False), seconds(query, True)) for _ in range(given.rounds)]
        ratio = statistics.median(exact / plain for plain, exact in pairs)
        tqdm.write(f"{query.name}: {statistics.median(plain for plain, _ in pairs):.2f} s, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
