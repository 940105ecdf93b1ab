# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Pooled outputs of public vision networks, such as CLIP, SigLIP and DINOv2.

Nothing here loads torch before it is used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, first_line
from .mean_features import unit
from .perceptual import Fit, PerceptualFeatures, processor_of


if TYPE_CHECKING:
    import torch

LARGEST_SIDE = 4_096  # pixels
TEXTS_AT_ONCE = 100


@dataclass(frozen=True)
class PooledFeatures(PerceptualFeatures):
    """
    The pooled output of a network, scaled to norm 1; of CLIP and SigLIP the embedding that is compared with texts.

    Args:
        network, image_shape, flag: See `PublicNetwork`.
        resolution (`int`, *optional*): See `PublicNetwork`; `None`: as the network's image processor resizes.
    """

    @cached_property
    def fit(self) -> Fit | None:
        """As the network's image processor does, where no resolution is given."""
        config = self.loaded[0].config
        size = getattr(getattr(config, "vision_config", config), "image_size", None)
        return super().fit or fit_of({"size": size, **processor_of(self.network, config)})

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """Maps images `[b, C, H, W]` in [0, 1] to features `[b, D]` of norm 1."""
        return unit(self.outputs(images).pooler_output.flatten(1))

    def of_texts(
        self, texts: Sequence[str], device: "torch.device", shown: "Callable[[Any], Any]" = iter
    ) -> "torch.Tensor":  # fmt: skip
        """
        Maps public texts to rows `[n, D]` of norm 1 on the CPU, in the space of images, by the other tower of CLIP.
        Texts of the same tokens have the same row.

        Args:
            texts (sequence of `str`): Texts.
            device (`torch.device`): Where the network computes.
            shown (`Callable`): Shows a bar over an iterable.

        Raises:
            UsageError: It is no CLIP model with the tokenizer that belongs to it, or a text is too long.
        """
        import torch

        network = self.loaded[0].to(device)
        if network.config.model_type != "clip":
            raise UsageError(
                f"{self.network} is no CLIP model with a tower for texts beside that for images, and --captions needs "
                "one: give another, such as openai/clip-vit-large-patch14.",
                field=self.flag,
            )
        tokens = tokens_of(self.network, texts, network.config.text_config, self.flag)
        each, places = tokens.unique(dim=0, return_inverse=True)
        parts = shown(each.to(device).split(TEXTS_AT_ONCE))
        with torch.no_grad():
            rows = torch.cat([network.get_text_features(part).pooler_output.float().cpu() for part in parts])
        same, rows = len(rows) > 1 and bool((rows == rows[0]).all()), unit(rows)
        if same or not (rows.norm(dim=1) > 0.5).all():  # zeros and what is no number have no direction
            raise UsageError(f"{self.network} tells no text from another: give another network.", field=self.flag)
        return rows[places]


def tokens_of(name: str, texts: Sequence[str], config: Any, flag: str) -> "torch.Tensor":
    """
    Tokens of texts by the tokenizer of a CLIP model, int64 `[n, longest]`. No code from its repository is run.

    Args:
        name (`str`): Folder of the model, or Hub id.
        config (`CLIPTextConfig`): Configuration of its tower for texts.
        flag (`str`): Flag of the model, for messages.

    Raises:
        UsageError: The tokenizer is not there or is that of another model, or a text is too long.
    """
    import torch
    from transformers import CLIPTokenizer

    try:
        tokenizer = CLIPTokenizer.from_pretrained(name, trust_remote_code=False)
        found = [torch.tensor(tokens) for tokens in tokenizer(list(texts), verbose=False).input_ids]
    except Exception as error:  # of files that are none
        raise UsageError(f"{name} has no tokenizer that can be loaded ({first_line(error)}).", field=flag) from None
    if len(tokenizer) != config.vocab_size or max(int(tokens.max()) for tokens in found) >= config.vocab_size:
        raise UsageError(
            f"{name} has no tokenizer for the {config.vocab_size:,} tokens that it reads: download it again with its "
            "tokenizer.json, or vocab.json and merges.txt.",
            field=flag,
        )
    number, longest = max(enumerate(found), key=lambda item: len(item[1]))
    if len(longest) > config.max_position_embeddings:
        raise UsageError(
            f"--captions has '{texts[number][:60]}...' of {len(longest)} tokens, and {name} reads "
            f"{config.max_position_embeddings}: shorten it."
        )
    return torch.nn.utils.rnn.pad_sequence(found, batch_first=True, padding_value=tokenizer.eos_token_id)


def fit_of(processor: dict[str, Any]) -> Fit | None:
    """How an image processor resizes; `None` where it does not.

    Args:
        processor (`dict`): See `processor_of`.
    """
    side, crop = (_side_of(processor.get(key)) for key in ("size", "crop_size"))
    if side is None or processor.get("do_resize") is False:
        return None
    share = processor.get("crop_pct")
    if isinstance(share, float) and 0.1 < share < 1:  # in the place of a larger size
        side, crop = int(side / share), side
    kept = side if crop is None or processor.get("do_center_crop") is False else min(crop, side)
    return side, kept, "bicubic" if processor.get("resample") in (3, "bicubic") else "bilinear"


def _side_of(size: Any) -> int | None:
    """The shorter side of a size of transformers or timm."""
    sides = size.values() if isinstance(size, dict) else size[-2:] if isinstance(size, list) else [size]
    return min((each for each in sides if type(each) is int and 0 < each <= LARGEST_SIDE), default=None)
