# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Runs without any guarantee, for comparison: `--target_epsilon inf`, the papers' rows at epsilon = infinity. No torch.

All that makes them possible is here. The door adds the noise that a ledger has a row for, and a `PrivacyLedger` takes no row without noise;
an `UnprotectedLedger` takes no other. `planning.new_ledger` is the one place that makes one. It has no receipt, so that no release can come
of it.
"""

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .accounting import Composition
from .errors import UsageError
from .journal import put_in_place, remove_leftovers
from .ledger import PrivacyLedger
from .ledger_row import NON_PRIVATE, LedgerRow
from .methods import Method
from .verify import NO_GUARANTEE, WITHOUT, without_guarantee


if TYPE_CHECKING:
    from .pipelines import DPImagePipeline

FOLDER = "no_guarantee"
#: What a model says of itself.
PRIVACY = {"status": NO_GUARANTEE, "epsilon": "infinite", "statement": WITHOUT}
_CARD = """# NOT private: {without}

This model was {without}: {title} with `--target_epsilon inf`, so that neither the questions to the sensitive images nor their gradients
got any noise. It may hold images that it was trained on. It is for comparison alone, and for those who may see the images themselves: it is no
release, it has no privacy receipt, and it must not leave the house.

    from diffusers_dp.pipelines import DPImagePipeline

    pipeline = DPImagePipeline.from_pretrained("no_guarantee")

`diffusers-dp` verifies, pushes, samples and shows releases, and refuses this folder. Images that you draw with the lines above can be judged by
`diffusers-dp evaluate --images`.
"""


class UnprotectedLedger(PrivacyLedger):
    """The ledger of a run without guarantee: it writes down what is asked, and that it was asked without noise.

    Epsilon is infinite, and there is no budget: every row is granted, and calibration answers 0. No number comes from an accountant.

    Args:
        path, target_delta, num_images, accountant, public_facts, unit_of_privacy: See `PrivacyLedger`. The data set's own ledger
            (`--dataset_id`) adds up guarantees, so it never holds such a run.

    Raises:
        UsageError, IntegrityError: See `PrivacyLedger`; its files and those of this class are not taken for each other.
    """

    has_guarantee = False

    def __init__(
        self,
        path: Path | str | None,
        *,
        target_delta: float,
        num_images: int,
        accountant: str = "pld",
        public_facts: dict | None = None,
        unit_of_privacy: str = "image",
    ) -> None:
        super().__init__(
            path, target_epsilon=math.inf, target_delta=target_delta, num_images=num_images, accountant=accountant,
            public_facts=public_facts, unit_of_privacy=unit_of_privacy,
        )  # fmt: skip

    def epsilon_of_all_releases(self, *, extra: Sequence[LedgerRow] = (), delta: float | None = None) -> float:
        return math.inf

    def budget_shares(self) -> dict[str, float]:
        """Empty: there is nothing to share out."""
        return {}

    def calibrate(
        self, sample_rate: float, steps: int, *, truncated_batch_size: int | None = None, at_least: float = 0.0
    ) -> float:
        return 0.0

    def calibrate_gaussian(self, share: float, *, sampling_probability: float = 1.0, steps: int = 1) -> float:
        return 0.0

    def _checked_target(self, target_epsilon: float) -> float:
        return math.inf

    def _check_noise(self, row: LedgerRow) -> None:
        if row.mechanism != NON_PRIVATE:
            raise UsageError(f"{row.name!r} is asked with noise, and with --target_epsilon inf nothing has any.")

    def _cost(self, composition: Composition, accountant: str | None = None) -> float:
        return math.inf

    def _affords(self, composition: Composition) -> bool:
        return True


def save_without_guarantee(output_dir: str | Path, pipeline: "DPImagePipeline", method: Method) -> Path:
    """Writes `output_dir/no_guarantee/`, mode 700: the pipeline and a card, both of which say what it is. As a release, it is there whole or not at all, and an
    earlier one is replaced.

    Args:
        output_dir (`str` or `Path`): The run's folder.
        pipeline (`DPImagePipeline`): With the final (averaged) weights. It carries the statement from here on, and so do its copies.
        method (`Method`): From the registry.

    Returns:
        `Path`: The folder.
    """
    output_dir = Path(output_dir)
    remove_leftovers(output_dir, f".{FOLDER}-", FOLDER)
    pipeline.register_to_config(privacy=PRIVACY)
    with tempfile.TemporaryDirectory(dir=output_dir, prefix=f".{FOLDER}-") as temporary:
        folder = Path(temporary, FOLDER)
        folder.mkdir(mode=0o700)
        pipeline.save_pretrained(folder)
        card = _CARD.format(without=WITHOUT, title=method.title)
        (folder / "README.md").write_text(card, encoding="utf-8")
        put_in_place(folder, output_dir / FOLDER)
    return output_dir / FOLDER


def refuse_without_guarantee(folder: str | Path, flag: str, remedy: str) -> None:
    """For what loads pipelines that have no receipt either.

    Raises:
        UsageError: The folder holds what a run without guarantee made.
    """
    if without_guarantee(Path(folder)):
        raise UsageError(f"{flag} {folder} was {WITHOUT}; {remedy}.")
