# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Cards of releases and of drawn images, filled from a receipt. Nothing here loads torch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import IntegrityError
from ..files.templates import render
from ..mechanisms import mechanism_of
from ..verify import guarantee
from .plain_words import attack_in_words, plain_guarantee, queries


if TYPE_CHECKING:
    from huggingface_hub import CardData, DatasetCardData


#: Errors of text about a receipt, because fields that the verifier does not read can contain anything.
UNSAYABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError)
CLASSES_NAMED = 30  # on the card


def dataset_card(
    receipt: dict[str, Any], *, num_images: int, class_names: Sequence[str] | None, balance: str = "uniform",
    parameters: dict[str, Any],
) -> str:  # fmt: skip
    """The card of drawn images.

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
    from jinja2 import TemplateError

    facts: dict[str, Any] = {"num_images": num_images, "balance": balance, "parameters": parameters}
    try:
        data = dataset_data(num_images, class_names)
        written = release_card("dataset_card.md", data, receipt, class_names, **facts) + "\n"
        written.encode()
    except (*UNSAYABLE, TemplateError):
        raise IntegrityError(
            "The receipt of the release holds what no receipt of this library does, so that no card can be written."
        ) from None
    return written


def release_card(
    template: str, data: "CardData", receipt: dict[str, Any], class_names: Sequence[str] | None,
    things: str = "this model", **more: Any,
) -> str:  # fmt: skip
    """Fills a card from a receipt, with the guarantee in the words that the verifier looks for.

    Args:
        template (`str`): File of the template.
        data (`CardData`): Metadata for the Hub's filters.
        receipt (`dict`): Receipt of the release.
        class_names (sequence of `str`, *optional*): Class names by id.
        things (`str`): What was released, in words.
        more: Further variables of the template.
    """
    asked = [{**each, "sentence": mechanism_of(each).sentence} for each in queries(receipt["events"])]
    names = class_names or ()
    return render(
        template, escape=False, card_data=data.to_yaml(), receipt=receipt, queries=asked, class_names=class_names,
        named=", ".join([*names[:CLASSES_NAMED], *(["..."] if len(names) > CLASSES_NAMED else [])]),
        guarantee=guarantee(receipt), plain=plain_guarantee(receipt, things), attack=attack_in_words(receipt, things),
        **more,
    ).rstrip()  # fmt: skip


def dataset_data(num_images: int, class_names: Sequence[str] | None) -> "DatasetCardData":
    """Metadata for the Hub's filters of a dataset. No `configs`: with them `datasets` confuses folders of the same
    name in its cache."""
    from huggingface_hub import DatasetCardData

    bounds = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
    return DatasetCardData(
        task_categories=["unconditional-image-generation" if class_names is None else "image-classification"],
        tags=["synthetic", "differential-privacy", "image"],
        size_categories=next((word for bound, word in bounds if num_images < bound), "1M<n<10M"),
    )
