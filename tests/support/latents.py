# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Tiny public autoencoders and latent pipelines, with weights of noise."""

import json
import string

import torch
from diffusers import (
    AutoencoderKL,
    EulerDiscreteScheduler,
    PNDMScheduler,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer


def tiny_vae(channels=1, dropout=0.0, seed=0):
    """8 pixels to 4, with weights of noise."""
    torch.manual_seed(seed)
    vae = AutoencoderKL(
        in_channels=channels, out_channels=channels, latent_channels=2, block_out_channels=(4, 8), norm_num_groups=2,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, sample_size=8,
        scaling_factor=0.5, shift_factor=0.25,
    )  # fmt: skip
    for block in vae.encoder.down_blocks:
        block.resnets[0].dropout.p = dropout
    return vae


def tiny_tokenizer(folder):
    """Of letters and digits."""
    letters = [*string.ascii_lowercase, *string.digits]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    files = {"vocab": str(folder / "vocab.json"), "merges": str(folder / "merges.txt")}
    return CLIPTokenizer(**files, model_max_length=16), len(words)


def text_encoder(words, kind=CLIPTextModel):
    config = CLIPTextConfig(
        vocab_size=words, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16, bos_token_id=words - 2, eos_token_id=words - 1, pad_token_id=words - 1,
        projection_dim=8,
    )  # fmt: skip
    return kind(config)


def stable_diffusion(folder, channels=1, side=8):
    """Two levels, of which one attends to prompts."""
    torch.manual_seed(0)
    tokenizer, words = tiny_tokenizer(folder.with_name(f"{folder.name}-tokens"))
    unet = UNet2DConditionModel(
        sample_size=side // 2, in_channels=2, out_channels=2, block_out_channels=(4, 8), layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=8, attention_head_dim=2, norm_num_groups=2,
    )  # fmt: skip
    pipeline = StableDiffusionPipeline(
        vae=tiny_vae(channels), text_encoder=text_encoder(words), tokenizer=tokenizer, unet=unet,
        scheduler=PNDMScheduler(steps_offset=1, skip_prk_steps=True), safety_checker=None, feature_extractor=None,
        requires_safety_checker=False,
    )  # fmt: skip
    pipeline.save_pretrained(folder)
    return folder


def stable_diffusion_xl(folder, side=8):
    """Of colour, with two text encoders, pooled prompts and sizes among the conditions."""
    torch.manual_seed(0)
    tokenizer, words = tiny_tokenizer(folder.with_name(f"{folder.name}-tokens"))
    unet = UNet2DConditionModel(
        sample_size=side // 2, in_channels=2, out_channels=2, block_out_channels=(4, 8), layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16, attention_head_dim=(2, 4), norm_num_groups=2, use_linear_projection=True,
        addition_embed_type="text_time", addition_time_embed_dim=4, transformer_layers_per_block=(1, 2),
        projection_class_embeddings_input_dim=8 + 6 * 4,
    )  # fmt: skip
    pipeline = StableDiffusionXLPipeline(
        vae=tiny_vae(3), text_encoder=text_encoder(words), tokenizer=tokenizer, tokenizer_2=tokenizer, unet=unet,
        text_encoder_2=text_encoder(words, CLIPTextModelWithProjection),
        scheduler=EulerDiscreteScheduler(steps_offset=1, timestep_spacing="leading"),
    )  # fmt: skip
    pipeline.save_pretrained(folder)
    return folder
