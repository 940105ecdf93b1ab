# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The ledger of a run, new or as an earlier start left it. No torch."""

from pathlib import Path
from typing import Any

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_file import ReleaseRows, other_releases
from ..data.images import PublicFacts
from ..data.records import DataSource
from ..errors import IntegrityError
from ..methods.config import sampling_of, target_delta
from ..methods.flags import TrainingConfig
from ..queries.judgement import JudgesQuery
from .folder import RunIdentity, note_asked


HOW_READ = ("image_column", "label_column", "delimiter", "train_split", "dataset_config_name", "max_image_pixels")


def new_ledger(
    path: Path | None, config: TrainingConfig, facts: PublicFacts, identity: RunIdentity | None = None
) -> PrivacyLedger:
    """The ledger of a run: at `path`, where one may lie already, or in memory for planning.

    Args:
        identity (`RunIdentity`, *optional*): Which release of `--dataset_id` it is; needed with that flag alone. At
            `path` it is told of the first row.

    Raises:
        IntegrityError: The ledger at `path` is for another budget or other public facts, or holds no row of a run that
            has asked.
    """
    delta, public_facts = target_delta(config, facts.num_units), _public_facts(config, facts)
    dataset_id, release_id = config.dataset_id, None if identity is None else identity.release_id
    others: list[ReleaseRows] = []
    if path is None and dataset_id is not None and release_id is not None:
        others = other_releases(
            config.ledger_path, dataset_id=dataset_id, release_id=release_id, unit_of_privacy=config.unit_of_privacy,
        )  # fmt: skip
    ledger = PrivacyLedger(
        path, target_epsilon=config.target_epsilon, target_delta=delta,
        num_images=facts.num_units, accountant=config.accountant, public_facts=public_facts,
        unit_of_privacy=config.unit_of_privacy, dataset_id=dataset_id, dataset_epsilon=config.dataset_epsilon,
        release_id=release_id, others=others,
        has_guarantee=config.has_guarantee,  # False with --target_epsilon inf, and with nothing else
    )  # fmt: skip
    if path is not None and identity is not None:  # in memory nothing is lost
        if identity.asked and not ledger.rows:
            ledger.close()
            raise IntegrityError(
                f"{path} holds no row of this run, which has asked the images: restore the file, for what was spent "
                "stays spent."
            )
        private = Path(config.output_dir, "private")
        ledger.after_first_row = lambda: note_asked(private, identity)
    if config.evaluation_reserve is not None and all(row["stage"] != "evaluation_reserve" for row in ledger.rows):
        query = JudgesQuery(
            num_classes=len(facts.class_names or ()), synthetic_images=config.num_evaluation_images
        )  # fmt: skip
        noise_multiplier = ledger.calibrate_gaussian(config.evaluation_reserve)
        ledger.set_aside.append(query.row(noise_multiplier, **config.of_door))
    return ledger


def _public_facts(config: TrainingConfig, facts: PublicFacts) -> dict[str, Any]:
    """What the header of the ledger says of the images, and the receipt repeats."""
    data, sampling = config.data, sampling_of(config, facts.num_units)
    found: dict[str, Any] = {
        "image_shape": list(facts.image_shape),
        "class_names": None if facts.class_names is None else list(facts.class_names),
        "value_range": [0, 1],
    }
    if data.value_range is not None:
        found["grey_range"] = list(data.value_range)  # what became black and white
    given = {name: getattr(data, name) for name in HOW_READ if getattr(data, name) != getattr(DataSource, name)}
    if data.image_suffixes is not None:
        given["image_suffixes"] = list(data.image_suffixes)
    if given:
        found["reading"] = given  # evaluation reads the real images so, and a run that goes on must
    if sampling is not None and config.dp_sgd is not None and config.dp_sgd.num_shares is None:
        found["normaliser"] = sampling.normaliser
    if config.unit_column is not None:
        found |= {"num_images": facts.num_images, "max_images_per_unit": config.images_per_unit}
    if facts.held_out:  # evaluation holds out the same images
        found["held_out"] = {"images": facts.held_out, "ids": facts.ids, "column": data.id_column}
    if config.evaluation_reserve is not None:
        found["evaluation_reserve"] = config.evaluation_reserve
    return found
