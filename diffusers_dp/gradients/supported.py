# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Which models have exact gradients per image. What has none is refused by name, before anything is spent."""

from torch import nn
from torch.nn.utils import parametrize

from ..errors import UsageError
from .rules import rule_of, supported_layers


FREEZE = "freeze it with requires_grad_(False)"


class UnsupportedModel(UsageError, TypeError):
    """A model whose gradients per image would be missing or wrong."""


def check_model(model: nn.Module) -> None:
    """Looks at the layers alone; nothing is computed.

    Raises:
        UnsupportedModel: A trained parameter belongs to no layer with a rule; a layer mixes examples (BatchNorm in
            training), works in place, computes its weight from others (spectral or weight norm), changes its weight
            when it is asked (`max_norm`), or uses weights past their layers, as
            `nn.MultiheadAttention` and LoRA of a single parameter do; or its gradient per image would be another than
            autograd's (a hook on a weight, `scale_grad_by_freq`). Others show in the pre-flight alone.
    """
    for name, module in model.named_modules():
        reason = _reason_against(module)
        if reason is not None:
            raise UnsupportedModel(f"{type(module).__name__} ('{name}') {reason}.")


def _reason_against(module: nn.Module) -> str | None:
    if mixes_examples(module):
        return (
            "computes statistics over a batch, so that one image would move every gradient; use GroupNorm, or put the "
            "layer into evaluation mode"
        )
    if getattr(module, "inplace", False) is True:
        return "overwrites what gradients per image are formed from; make it with inplace=False"
    holds_trained = any(p.requires_grad for p in module.parameters())
    if isinstance(module, nn.MultiheadAttention) and holds_trained:  # peft's own wrapper of it holds it, too
        return (
            "uses its weights past their layers, where LoRA's gradients would be missing; leave it out of "
            f"target_modules, or {FREEZE}"
        )
    if type(module).__name__ == "ParamWrapper" and holds_trained:
        return "adds LoRA to a parameter past its layer; name layers with target_modules, not target_parameters"
    if parametrize.is_parametrized(module) and holds_trained:
        return (
            "computes its weight from other parameters (spectral or weight norm), which are no layer's; remove that "
            f"with torch.nn.utils.parametrize.remove_parametrizations, or {FREEZE}"
        )
    trained = [key for key, parameter in module.named_parameters(recurse=False) if parameter.requires_grad]
    if not trained:
        return None
    parameters = {key: getattr(module, key) for key in trained}
    hooked = [key for key, each in parameters.items() if each._backward_hooks or each._post_accumulate_grad_hooks]
    if hooked:
        return f"has a hook on '{hooked[0]}', which no gradient per image passes; remove it, or {FREEZE}"
    if getattr(module, "max_norm", None) is not None:
        return "shrinks the rows that it is asked for, which tells of the labels; make it without max_norm"
    if getattr(module, "scale_grad_by_freq", False):
        return (
            "divides gradients by how often a batch asks for a row, which mixes images; make it without "
            "scale_grad_by_freq"
        )
    has_rule = rule_of(module) is not None
    bare = [key for key in trained if key not in ("weight", "bias")]
    if bare and has_rule:
        return (
            f"computes its weight from '{bare[0]}' (spectral or weight norm), which is no layer's; remove that with "
            f"torch.nn.utils.remove_spectral_norm or remove_weight_norm, or {FREEZE}"
        )
    if bare:
        return f"trains a bare parameter, '{bare[0]}'; {FREEZE}, or put it into one of {', '.join(supported_layers())}"
    if not has_rule:
        return (
            f"is trained and has no rule for gradients per image; {FREEZE}, or use one of "
            f"{', '.join(supported_layers())}"
        )
    return None


def mixes_examples(module: nn.Module) -> bool:
    """Whether a row's output depends on other rows."""
    if not isinstance(module, nn.modules.batchnorm._NormBase) or not module.training:
        return False
    # An InstanceNorm mixes them only in the running statistics that it keeps.
    return module.track_running_stats or not isinstance(module, nn.modules.instancenorm._InstanceNorm)
