# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Cards, filled from a receipt, and the one of a dataset drawn from a release. Nothing here loads torch."""

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ..errors import IntegrityError
from ..mechanisms import mechanism_of
from ..verify import guarantee
from .plain_words import attack_in_words, plain_guarantee, queries


if TYPE_CHECKING:
    from huggingface_hub import CardData, DatasetCardData, RepoCard


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
    from huggingface_hub import DatasetCard
    from jinja2 import TemplateError

    data = card_data(num_images, class_names is not None)
    try:
        card = filled_card(
            DatasetCard, "dataset_card.md", data, receipt, num_images=num_images, class_names=class_names,
            balance=balance, parameters=parameters,
        )  # fmt: skip
        written = f"{card}\n"
        written.encode()
    except (*UNSAYABLE, TemplateError):
        raise IntegrityError(
            "The receipt of the release holds what no receipt of this library does, so that no card can be written."
        ) from None
    return written


def filled_card(
    kind: "type[RepoCard]", template: str, data: "CardData", receipt: dict[str, Any], things: str = "this model",
    **more: Any,
) -> Any:  # fmt: skip
    """Fills a card from a receipt, with the guarantee in the words that the verifier looks for.

    Args:
        kind (`type`): Class of the card.
        template (`str`): File of the template.
        data (`CardData`): Metadata for the Hub's filters.
        receipt (`dict`): Receipt of the release.
        things (`str`): What was released, in words.
        more: Further variables of the template.
    """
    asked = [{**each, "sentence": mechanism_of(each).sentence} for each in queries(receipt["events"])]
    return kind.from_template(
        data, template_str=files("diffusers_dp").joinpath("templates", template).read_text(encoding="utf-8"),
        receipt=receipt, queries=asked, unit=receipt["unit_of_privacy"],
        guarantee=guarantee(receipt), plain=plain_guarantee(receipt, things), attack=attack_in_words(receipt, things),
        **more,
    )  # fmt: skip


def card_data(num_images: int, labelled: bool) -> "DatasetCardData":
    """Metadata for the Hub's filters of a dataset. No `configs`: with them `datasets` confuses folders of the same
    name in its cache."""
    from huggingface_hub import DatasetCardData

    bounds = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
    return DatasetCardData(
        task_categories=["image-classification" if labelled else "unconditional-image-generation"],
        tags=["synthetic", "differential-privacy", "image"],
        size_categories=next((word for bound, word in bounds if num_images < bound), "1M<n<10M"),
    )
