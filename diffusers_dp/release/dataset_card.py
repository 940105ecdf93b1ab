# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The card of a dataset drawn from a release, filled from the release's receipt. Nothing here loads torch."""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from ..errors import IntegrityError
from ..verify import guarantee
from .plain_words import plain_guarantee


#: Errors of text about a receipt, because fields that the verifier does not read can contain anything.
UNSAYABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError)


def dataset_card(
    receipt: dict[str, Any],
    *,
    num_images: int,
    class_names: Sequence[str] | None,
    balance: str = "uniform",
    parameters: dict[str, Any],
) -> str:
    """
    Args:
        receipt (`dict`): Verified receipt of the release.
        num_images (`int`): Number of images in the dataset.
        class_names (sequence of `str`, *optional*): Class names by id.
        balance (`str`): `uniform`, or the requested shares.
        parameters (`dict`): Other parameters that determine the images.

    Returns:
        `str`: Markdown, with metadata for the Hub's filters.

    Raises:
        IntegrityError: The receipt has values that the card cannot describe.
    """
    from huggingface_hub import DatasetCard, DatasetCardData
    from jinja2 import TemplateError

    # No `configs`: with them `datasets` confuses folders of the same name in its cache.
    data = DatasetCardData(
        task_categories=["unconditional-image-generation"] if class_names is None else ["image-classification"],
        tags=["synthetic", "differential-privacy", "image"],
        size_categories=size_category(num_images),
    )
    try:
        card = DatasetCard.from_template(
            data,
            template_str=files("diffusers_dp").joinpath("templates", "dataset_card.md").read_text(encoding="utf-8"),
            receipt=receipt,
            num_images=num_images,
            class_names=class_names,
            balance=balance,
            parameters=parameters,
            plain=plain_guarantee(receipt),
            guarantee=guarantee(receipt),
        )
        written = f"{card}\n"
        written.encode()
    except (*UNSAYABLE, TemplateError):
        raise IntegrityError(
            "The receipt of the release holds what no receipt of this library does, so that no card can be written."
        ) from None
    return written


def size_category(num_images: int) -> str:
    """Returns the Hub's category for the size of a dataset."""
    bounds = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
    return next((word for bound, word in bounds if num_images < bound), "1M<n<10M")
