"""How long does the door take for one mean embedding, and how much memory? `FrequencyFeatures` of random images.

python benchmarks/mean_features.py --num_images 60000 --num_features 50000
"""

import argparse
import resource
import sys
import time

import numpy as np

from diffusers_dp import PrivacyLedger, SensitiveImages
from diffusers_dp.queries.frequency import FrequencyFeatures, RandomFourierFeatures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_images", type=int, default=60_000)
    parser.add_argument("--num_features", type=int, default=50_000)
    parser.add_argument("--resolution", type=int, default=28)
    args = parser.parse_args()
    shape, names = (1, args.resolution, args.resolution), tuple("0123456789")
    random = np.random.default_rng(0)
    ledger = PrivacyLedger(None, target_epsilon=10, target_delta=1e-6, num_images=args.num_images, accountant="rdp")
    door = SensitiveImages(
        random.integers(0, 256, (args.num_images, *shape), dtype=np.uint8),
        random.integers(0, len(names), args.num_images),
        num_images=args.num_images, image_shape=shape, ledger=ledger, class_names=names,
    )  # fmt: skip
    query = FrequencyFeatures(feature_map=RandomFourierFeatures(shape, args.num_features, 7.0, 0))
    before, start, cpu = peak(), time.perf_counter(), time.process_time()
    query.answer(door, noise_multiplier=5.0)
    print(
        f"{args.num_images} images, D = {args.num_features}: {time.perf_counter() - start:.0f} s, "
        f"{time.process_time() - cpu:.0f} s of CPU time, {(peak() - before) / 2**30:.2f} GiB more than before, "
        f"{peak() / 2**30:.2f} GiB in all"
    )


def peak() -> int:
    """Highest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main()
