# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tiny vision networks as transformers saves them."""

import torch
from transformers import (
    CLIPConfig,
    CLIPModel,
    Dinov2Config,
    Dinov2Model,
    ResNetConfig,
    ResNetForImageClassification,
    ResNetModel,
    SiglipConfig,
    SiglipModel,
    ViTConfig,
    ViTModel,
)

from support.latents import tiny_tokenizer


def save_resnet(folder, seed=0, num_channels=3):
    """With batch norms; a card with a licence."""
    torch.manual_seed(seed)
    network = ResNetModel(ResNetConfig(
        num_channels=num_channels, embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic",
    ))  # fmt: skip
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
    network.save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\nA network.\n")
    return str(folder)


def save_vit(folder, seed=0):
    """Without a convolution but its patches."""
    torch.manual_seed(seed)
    ViTModel(ViTConfig(
        image_size=16, patch_size=8, num_channels=3, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=8,
    )).save_pretrained(folder)  # fmt: skip
    return str(folder)


def save_classifier(folder, num_labels):
    torch.manual_seed(0)
    ResNetForImageClassification(ResNetConfig(
        num_channels=3, embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic",
        num_labels=num_labels,
    )).save_pretrained(folder)  # fmt: skip
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\nA network.\n")
    return str(folder)


def save_clip(folder, kind=CLIPModel, seed=0):
    """With a tower for texts, too; also SigLIP."""
    torch.manual_seed(seed)
    tower = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {**tower, "image_size": 16, "patch_size": 8}
    config = CLIPConfig if kind is CLIPModel else SiglipConfig
    given = {"projection_dim": 6} if kind is CLIPModel else {}
    kind(config(text_config={**tower, "vocab_size": 20}, vision_config=vision, **given)).save_pretrained(folder)
    return str(folder)


def save_clip_with_tokenizer(folder):
    """As the Hub has CLIP: both towers, and the tokenizer of texts; texts of 77 tokens."""
    torch.manual_seed(0)
    tokenizer, words = tiny_tokenizer(folder.with_name(f"{folder.name}-tokens"))
    tower = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    special = {"bos_token_id": words - 2, "eos_token_id": words - 1, "pad_token_id": words - 1}
    text = {**tower, **special, "vocab_size": words, "max_position_embeddings": 77}
    vision = {**tower, "image_size": 16, "patch_size": 8}
    network = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=6))
    for weights in network.parameters():  # so that texts and images differ
        torch.nn.init.normal_(weights, std=0.5)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def save_siglip(folder):
    return save_clip(folder, SiglipModel)


def save_dinov2(folder):
    torch.manual_seed(0)
    config = Dinov2Config(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8)
    Dinov2Model(config).save_pretrained(folder)
    return str(folder)
