# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The budget picture of `diffusers-dp plan`, for a model from its receipt and for a hypothetical run. Loads no
torch."""

import math
import threading
from collections.abc import Mapping
from typing import Any

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import DP_SGD, LedgerRow
from ..data.images import public_facts
from ..errors import DiffusersDPError, UsageError
from ..methods.config import SamplingFacts, load_config
from ..release.plain_words import questions
from ..runs.plan import Plan, plan_run
from ..runs.plan_picture import picture_of


MOST_IMAGES, MOST_STEPS = 100_000_000, 20_000
ROUNDING = 1e-6  # tolerance of a computed epsilon
_drawing = threading.Lock()  # matplotlib's fonts are shared


def plan_of_receipt(receipt: dict[str, Any]) -> Plan:
    """Converts the events of a receipt to a plan.

    Raises:
        UsageError: The events are not those of a training run.
    """
    rows: dict[str, LedgerRow] = {}
    try:
        for asked in questions(receipt["events"]):
            if asked["stage"] in rows:
                raise KeyError(asked["stage"])
            rows[asked["stage"]] = LedgerRow(
                asked["stage"], asked["mechanism"], asked["noise_multiplier"], asked["sampling_probability"],
                asked["steps"], asked["query"] if "bands" in asked else {},
                bands=asked.get("bands"),
            )  # fmt: skip
        ledger = PrivacyLedger(
            None,
            target_epsilon=receipt["target_epsilon"] * (1 + ROUNDING),
            target_delta=receipt["delta"],
            num_images=receipt["events"][0]["dataset_size"],
            accountant=receipt["accountant"],
            unit_of_privacy=receipt["unit_of_privacy"],
        )
        for row in rows.values():
            ledger.reserve(row)
    except (KeyError, IndexError, AttributeError, TypeError, DiffusersDPError):
        raise UsageError(
            "There is no picture for this model: its stages are not those of a training run here."
        ) from None
    last = rows.get(DP_SGD)  # rounds of teachers have no samples to plan
    if last is None:
        return Plan(None, rows, ledger)
    sample_rate = last.query.get("sample_rate", last.sampling_probability)
    batch = ledger.num_images * sample_rate
    sampling = SamplingFacts(ledger.num_images, sample_rate, max(1, math.floor(batch)), batch, ledger.target_delta)
    return Plan(sampling, rows, ledger)


def check_typed(values: dict[str, Any], bounds: Mapping[str, tuple[float, float]]) -> None:
    """Raises `UsageError` for the first value that is not a number within its bounds."""
    for name, value in values.items():
        low, high = bounds[name]
        if not isinstance(value, (int, float)) or not low <= value <= high:
            raise UsageError(f"The {name} has to be a number from {low:g} to {high:,}.")


def think_of(num_images: Any, epsilon: Any, batch: Any, steps: Any) -> tuple[Plan, str]:
    """Plans FETA-Pro for these numbers; returns the plan and its table.

    Raises:
        UsageError: A number is out of range, or the budget cannot work.
    """
    values = {"number of images": num_images, "epsilon": epsilon, "batch": batch, "steps": steps}
    bounds = {
        "number of images": (10, MOST_IMAGES), "epsilon": (0.01, 100), "batch": (1, MOST_IMAGES),
        "steps": (1, MOST_STEPS),
    }  # fmt: skip
    check_typed(values, bounds)
    if batch > num_images:
        raise UsageError("The batch cannot be larger than the number of images.")
    config = load_config(
        [
            "--dry_run", f"--num_train_images={int(num_images)}", f"--target_epsilon={epsilon}",
            f"--train_batch_size={int(batch)}", f"--max_train_steps={int(steps)}", "--class_names=a,b",
        ]
    )  # fmt: skip
    plan = plan_run(config, public_facts(config.data))
    return plan, plain_table(plan)


def plain_table(plan: Plan) -> str:
    """Returns the plan's table with readable stage names, of the same length so that columns stay aligned."""
    return plan.table.replace("dp_sgd", "DP-SGD").replace("_", " ")


def draw(plan: Plan) -> bytes:
    """Draws the plan as a PNG, one at a time."""
    with _drawing:
        return picture_of(plan)
