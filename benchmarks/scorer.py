"""Scores drawn images with fixed settings: the classifiers and distances of each row in `results/rows.jsonl`.

    python benchmarks/scorer.py runs/drawn --real path/to/mnist

Three classifiers learn the drawn images alone and are tested on real images. Their settings are constants, and the
last state counts, so that nothing is chosen on the images it is scored on. Distances compare drawn images with real
ones in a feature space that needs no training: coefficients of a wavelet network (`queries/scattering.py`), averaged
over the quarters of an image. They are no Inception scores, and compare rows of this file alone.

Numbers measured on real images are private where these images are.
"""

import argparse
import glob
import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from diffusers_dp.data.decoding import decode_as_it_is
from diffusers_dp.evaluation.classifiers import LogisticRegressionClassifier, PerceptronClassifier
from diffusers_dp.evaluation.feature_likelihood import FIT, feature_likelihood_divergence
from diffusers_dp.evaluation.fidelity import frechet_distance, precision_recall
from diffusers_dp.evaluation.images import ImageSet
from diffusers_dp.queries.scattering import Scattering
from diffusers_dp.release.image_tables import PROBABILITIES
from diffusers_dp.verify import RECEIPT_NAME


CNN_STEPS = 1000
CNN_BATCH_SIZE = 128
MLP_EPOCHS = 20
NUM_REAL = 5000  # real images for distances: as many as a row usually draws
NUM_HELD_OUT = 10_000  # the end of the training split, with `--scored_on train`
LEVELS, ANGLES, QUARTERS = 2, 6, 2  # of the feature space
CLASSIFIERS = ("cnn", "mlp", "logreg")


class SmallCNN(nn.Sequential):
    """Two convolutions and two linear layers, for grey or colour images of any size from 8 pixels.

    Args:
        channels (`int`): Channels of an image.
        side (`int`): Height and width of an image in pixels.
        num_classes (`int`): Number of classes.
        width (`int`, defaults to 32): Channels of the first convolution.
    """

    def __init__(self, channels: int, side: int, num_classes: int, width: int = 32):
        super().__init__(
            nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(0.5),
            nn.Linear(2 * width * (side // 4) ** 2, 128), nn.ReLU(), nn.Linear(128, num_classes),
        )  # fmt: skip


def cnn_predictions(train: ImageSet, test: np.ndarray, num_classes: int) -> np.ndarray:
    """Trains `SmallCNN` for a fixed number of steps, on soft labels where there are some, and predicts the classes of
    test images."""
    wanted = train.labels if train.probabilities is None else train.probabilities
    images, labels = torch.from_numpy(train.images), torch.from_numpy(np.asarray(wanted))
    torch.manual_seed(0)
    model = SmallCNN(images.shape[1], images.shape[-1], num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, CNN_STEPS)
    for _ in range(CNN_STEPS):
        batch = torch.randint(len(images), (CNN_BATCH_SIZE,))
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch].float() / 255), labels[batch]).backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        parts = [model(part.float() / 255).argmax(1) for part in torch.from_numpy(test).split(1000)]
    return torch.cat(parts).numpy()


def predictions(name: str, train: ImageSet, test: np.ndarray, num_classes: int) -> np.ndarray:
    """The classes that one of `CLASSIFIERS` predicts after it has learned `train`."""
    if name == "cnn":
        return cnn_predictions(train, test, num_classes)
    classifier = LogisticRegressionClassifier() if name == "logreg" else PerceptronClassifier(epochs=MLP_EPOCHS)
    return classifier.fit(train).predict(test)


def wavelet_features(images: np.ndarray) -> np.ndarray:
    """Maps uint8 images `[n, C, H, W]` to float64 features `[n, D]`: scattering coefficients, averaged
    over quarters of an image."""
    scattering = Scattering(LEVELS, ANGLES)
    sides = [math.ceil(side / 2**LEVELS) for side in images.shape[2:]]
    parts = []
    for part in torch.from_numpy(images).split(500):
        maps = scattering(part.float() / 255).unflatten(1, (-1, *sides))
        parts.append(F.adaptive_avg_pool2d(maps, QUARTERS).flatten(1))
    return torch.cat(parts).double().numpy()


def score(drawn: ImageSet, train: ImageSet, test: ImageSet) -> dict[str, Any]:
    """
    Computes all numbers of a row that need images.

    Args:
        drawn (`ImageSet`): Synthetic images, with the labels that they were drawn for, if there are any.
        train (`ImageSet`): Real images that distances are measured against.
        test (`ImageSet`): Real images that classifiers are tested on, and that FLD is normalised by.

    Returns:
        `dict`: `accuracy` and `accuracy_of_the_worst_class` (shares, by classifier), `accuracy_of_classes` (shares of
        each class, by the CNN), `accuracy_on_soft_labels` (where a judge gave some), `frechet`, `precision`, `recall`
        (shares), `fld`, `fld_fit` (the rule of its fit), and the numbers of images.
    """
    result: dict[str, Any] = {"num_drawn": len(drawn), "num_real": len(train), "num_test": len(test)}
    if drawn.labels is not None and test.labels is not None:
        truth = np.asarray(test.labels)
        classes = int(truth.max()) + 1
        hard = replace(drawn, probabilities=None)
        hits = {name: predictions(name, hard, test.images, classes) == truth for name in CLASSIFIERS}
        if drawn.probabilities is not None:
            soft = float((predictions("cnn", drawn, test.images, classes) == truth).mean())
            result["accuracy_on_soft_labels"] = {"cnn": round(soft, 4)}
        result["accuracy"] = {name: round(float(hit.mean()), 4) for name, hit in hits.items()}
        by_class = {
            name: [float(hit[truth == each].mean()) for each in np.unique(truth)] for name, hit in hits.items()
        }
        result["accuracy_of_the_worst_class"] = {name: round(min(shares), 4) for name, shares in by_class.items()}
        result["accuracy_of_classes"] = [round(share, 4) for share in by_class["cnn"]]
    chosen = np.random.default_rng(0).permutation(len(drawn))[:NUM_REAL]  # images may come class by class
    drawn_features, real_features, test_features = map(
        wavelet_features, (drawn.images[chosen], train.images, test.images)
    )
    precision, recall = precision_recall(real_features, drawn_features)
    result |= {
        "frechet": float(f"{frechet_distance(real_features, drawn_features):.4g}"),
        "precision": round(precision, 4), "recall": round(recall, 4),
        "fld": round(feature_likelihood_divergence(real_features, test_features, drawn_features, seed=0), 3),
        "fld_fit": FIT,
    }  # fmt: skip
    return result


def read(folder: str | Path, split: str, image_column: str = "", label_column: str = "") -> ImageSet:
    """Reads a split of a public data set, a release of images, or what `diffusers-dp sample` wrote. Columns without a
    name are found by their types."""
    with tempfile.TemporaryDirectory() as cache:  # else another folder of this name and card could be read
        kept: Any = {"split": split, "cache_dir": cache}
        if Path(folder, RECEIPT_NAME).exists():  # a release: its card, which has no hash, could name other files
            shards = sorted(glob.escape(str(shard)) for shard in Path(folder, "data").glob("*.parquet"))
            rows = datasets.load_dataset("parquet", data_files=shards, **kept)
        else:
            rows = datasets.load_dataset(str(folder), **kept)
        image_column = image_column or first_of(rows.features, datasets.Image)
        label_column = label_column or first_of(rows.features, datasets.ClassLabel)
        encoded = rows.cast_column(image_column, datasets.Image(decode=False))[image_column]
        images = [decode_as_it_is(each["bytes"] or Path(each["path"])) for each in encoded]
        labels = np.asarray(rows[label_column]) if label_column else None
        soft = np.asarray(rows[PROBABILITIES], np.float32) if PROBABILITIES in rows.features else None
    readable = [image for image in images if image is not None]
    if len(readable) < len(images):
        raise SystemExit(f"{folder}: {len(images) - len(readable)} images cannot be read; leave them out.")
    return ImageSet(np.stack(readable), labels, probabilities=soft)


def first_of(features: datasets.Features, kind: type) -> str:
    """Name of the first column of a type, or nothing."""
    return next((name for name, feature in features.items() if isinstance(feature, kind)), "")


def real_images(folder: str | Path, scored_on: str, **columns: str) -> tuple[ImageSet, ImageSet]:
    """Real images for distances, and real images to test on. To choose settings by, `scored_on` is `train`: then both
    are training images, and no test image is read."""
    train = read(folder, "train", **columns)
    if scored_on == "test":
        return train.subset(np.arange(min(NUM_REAL, len(train)))), read(folder, "test", **columns)
    held_out = np.arange(max(len(train) - NUM_HELD_OUT, len(train) // 2), len(train))
    return train.subset(np.arange(min(NUM_REAL, held_out[0]))), train.subset(held_out)


def processor_minutes(work: Callable[[], Any]) -> tuple[Any, float]:
    """What `work` returns, and the minutes of processor time that it took in this process."""
    start = time.process_time()
    result = work()
    return result, round((time.process_time() - start) / 60, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drawn", help="Folder that `diffusers-dp sample` wrote.")
    parser.add_argument("--real", required=True, help="Hub id or folder of real images, with splits train and test.")
    parser.add_argument("--image_column", default="", help="Column of the real images; unset: the first of images.")
    parser.add_argument("--label_column", default="", help="Column of their classes; unset: the first of classes.")
    parser.add_argument("--scored_on", choices=("test", "train"), default="test", help="Choose settings on train.")
    parser.add_argument("--most_images", type=int, help="Score at most this many images, drawn at random.")
    args = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    columns = {"image_column": args.image_column, "label_column": args.label_column}
    real = real_images(args.real, args.scored_on, **columns)
    drawn = read(args.drawn, "train")
    if args.most_images is not None and len(drawn) > args.most_images:
        drawn = drawn.subset(np.random.default_rng(0).permutation(len(drawn))[: args.most_images])
    numbers, minutes = processor_minutes(lambda: score(drawn, *real))
    print(json.dumps({"scored_on": args.scored_on, **numbers, "minutes_of_scoring": minutes}))


if __name__ == "__main__":
    main()
