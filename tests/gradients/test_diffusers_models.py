# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Models of Diffusers other than the training scripts' own: with all weights, attention alone, and LoRA."""

import pytest
import torch
from diffusers import DiTTransformer2DModel, SD3Transformer2DModel, UNet2DConditionModel, UNet2DModel
from torch import nn

from diffusers_dp.gradients.supported import check_model
from diffusers_dp.models.unet import unet_config
from support.exactness import check, squares


def unet():
    return UNet2DConditionModel(
        sample_size=8, in_channels=3, out_channels=3, block_out_channels=(4, 8), layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=6, attention_head_dim=2, norm_num_groups=2,
    )  # fmt: skip


def published_unet():
    """DP-Diffusion's: several heads, and adaptive group normalisation."""
    network = {"channels_per_level": (8, 16), "layers_per_block": 1, "attention_sizes": (4,), "patch_size": 1}
    heads = {"attention_head_dim": 4, "resnet_time_scale_shift": "scale_shift"}
    return UNet2DModel(**unet_config((3, 8, 8), 9, **network, **heads))


def dit():
    return DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=4, in_channels=3, num_layers=2, sample_size=8, patch_size=2,
        norm_num_groups=2, num_embeds_ada_norm=10,
    )  # fmt: skip


def sd3():
    return SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=3, out_channels=3, num_layers=2, num_attention_heads=2,
        attention_head_dim=4, joint_attention_dim=6, caption_projection_dim=8, pooled_projection_dim=5,
        pos_embed_max_size=4, qk_norm="rms_norm", dual_attention_layers=(0,),
    )  # fmt: skip


MODELS = {
    "UNet2DModel": published_unet,
    "UNet2DConditionModel": unet,
    "DiTTransformer2DModel": dit,
    "SD3Transformer2DModel": sd3,
}
TRAINED = ("all weights", "attention", "LoRA")
ATTENTION = ["to_q", "to_k", "to_v", "to_out.0"]


def build(name):
    torch.manual_seed(0)
    model = MODELS[name]().eval()  # a DiT drops labels while it trains, from torch's own generator
    with torch.no_grad():
        for parameter in model.parameters():  # some begin with zeros, and would hide what is behind them
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def losses_of(model, rows):
    """Row losses of a model, as a function of which rows."""
    images, times = torch.randn(rows, 3, 8, 8), torch.rand(rows) * 900
    tokens, pooled, labels = torch.randn(rows, 5, 6), torch.randn(rows, 5), torch.arange(rows) % 10

    def losses(at):
        if isinstance(model, UNet2DConditionModel):
            output = model(images[at], times[at], encoder_hidden_states=tokens[at])
        elif isinstance(model, UNet2DModel):
            output = model(images[at], times[at], class_labels=labels[at])
        elif isinstance(model, DiTTransformer2DModel):
            output = model(images[at], timestep=times[at].long(), class_labels=labels[at])
        else:
            output = model(
                images[at], encoder_hidden_states=tokens[at], pooled_projections=pooled[at], timestep=times[at]
            )
        return squares(output.sample)

    return losses


def lora(model, **changes):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=ATTENTION, init_lora_weights=False, **changes)
    model.requires_grad_(False)
    peft.inject_adapter_in_model(config, model)


@pytest.mark.parametrize("group_size", [1, 2])
@pytest.mark.parametrize("trained", TRAINED)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_autograd(name, trained, group_size):
    model = build(name)
    if trained == "attention":
        for key, parameter in model.named_parameters():
            parameter.requires_grad_(".attn" in key or ".to_" in key)
    elif trained == "LoRA":
        lora(model)
    gradients = check(
        model, losses_of(model, 3 * group_size), 3, group_size, tolerance=5e-5
    )  # rounding adds up over layers
    wanted = {key for key, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(wanted) > 8 and set(gradients.per_example) == wanted


def test_dora_is_refused():
    model = build("DiTTransformer2DModel")
    lora(model, use_dora=True)
    with pytest.raises(TypeError, match="Dora.*has no rule"):
        check_model(model)


class Attending(nn.Module):
    """Torch's own attention, which calls none of its layers."""

    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)


@pytest.mark.parametrize(
    ("target", "refused"),
    [
        ({"target_modules": ["attention"]}, r"MultiheadAttention \('attention.base_layer'\).*target_modules"),
        ({"target_modules": ["out_proj"]}, r"MultiheadAttention \('attention'\).*target_modules"),
        ({"target_modules": [], "target_parameters": ["head.weight"]}, r"ParamWrapper \('head'\).*target_modules"),
    ],
)
def test_lora_past_the_layers_is_refused(target, refused):
    peft = pytest.importorskip("peft")
    model = Attending().requires_grad_(False)
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, **target), model)
    with pytest.raises(TypeError, match=refused):
        check_model(model)


def test_lora_beside_frozen_attention_is_welcome():
    peft = pytest.importorskip("peft")
    model = Attending().requires_grad_(False)
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["head"]), model)
    check_model(model)
