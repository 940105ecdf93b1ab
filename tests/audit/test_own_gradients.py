# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Models whose weights act past their layers: the pre-flight compares their gradients per image with autograd's, and
names the parameters. Models of the library pass."""

import contextlib
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from diffusers.models.upsampling import FirUpsample2D
from torch import nn

from diffusers_dp.audit.own_gradients import TOLERANCE, TOLERANCE_BF16, own_gradient_checks
from diffusers_dp.audit.preflight import preflight
from diffusers_dp.audit.stand_ins import AuditedModel
from diffusers_dp.data.images import PublicFacts
from diffusers_dp.gradients import per_example
from diffusers_dp.gradients.supported import UnsupportedModel, check_model
from diffusers_dp.methods.config import CONFIGS, load_config
from diffusers_dp.methods.method import load
from diffusers_dp.methods.registry import METHODS as REGISTERED
from diffusers_dp.privacy import sensitive
from diffusers_dp.runs.dp_sgd import Trained
from diffusers_dp.runs.launch import run_method
from support.audits import STEP, changed
from support.latents import stable_diffusion


CLASSES = ("a", "b", "c")


class Model(nn.Module):
    """A layer, or a function that uses it, between two honest ones."""

    def __init__(self, layer, use=None, shape=(2, 4, 4), classes=3):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.use, self.shape = layer(), use or (lambda layer, x: layer(x)), shape
        self.first, self.last, self.classes = nn.Linear(64, 32), nn.LazyLinear(8), nn.Embedding(classes, 64)
        self(torch.zeros(1, 1, 8, 8), torch.zeros(1, dtype=torch.long))

    def forward(self, x, labels):
        hidden = self.first(x.flatten(1) + self.classes(labels)).tanh().unflatten(1, self.shape)
        return self.last(self.use(self.layer, hidden).flatten(1).tanh())


def errors(model, rows, labels, generator):
    noisy = rows + 0.1 * generator.normal(rows.shape, 1.0, rows.device)
    return (model(noisy, labels) - 1).square().mean(1)


def convolution():
    return nn.Conv2d(2, 2, 3, padding=1)


def standardised(layer, x):
    weight = layer.weight
    return F.conv2d(x, (weight - weight.mean((1, 2, 3), keepdim=True)) / weight.std(), layer.bias, padding=1)


def with_hook(layer):
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    return layer


def with_hook_on_a_weight(layer):
    layer.weight.register_hook(lambda gradient: gradient * 0.5)
    return layer


def with_hook_after_a_weight(layer):
    def scale(parameter):
        parameter.grad.mul_(0.5)

    layer.weight.register_post_accumulate_grad_hook(scale)
    return layer


def patched(layer):
    forward = layer.forward
    layer.forward = lambda x: 3 * forward(x)
    return layer


def frequent():
    return nn.Embedding(3, 32, scale_grad_by_freq=True)


def look_up(layer, x):
    """Each row by its sign, so that some are asked for more often."""
    return layer((x.mean((1, 2, 3)) > 0).long())


# Noticed by the comparison alone.
PAST_THEIR_LAYERS = {
    "tied": Model(convolution, lambda layer, x: layer(x) + F.conv2d(x.tanh(), layer.weight, padding=1)),
    "forward": Model(convolution, lambda layer, x: layer.forward(x)),
    "weight standardisation": Model(convolution, standardised),
    "a hook on outputs": Model(lambda: with_hook(convolution())),
    "a patched forward": Model(lambda: patched(convolution())),
    "FirUpsample2D": Model(lambda: FirUpsample2D(2, 2, use_conv=True)),
    "a penalty": Model(convolution, lambda layer, x: layer(x) + layer.weight.square().sum()),
}
# Refused by `check_model`, too.
REFUSED = {
    "scale_grad_by_freq": (Model(frequent, look_up), "without scale_grad_by_freq"),
    "a hook on a weight": (Model(lambda: with_hook_on_a_weight(convolution())), "hook.*'weight'"),
}  # fmt: skip


def checks(model, loss=errors, bf16=False, **changes):
    audited = AuditedModel(model, loss, (1, 8, 8), CLASSES)
    return own_gradient_checks(changed(**changes), audited, bf16=bf16)


WAYS = [{}, {"noise_multiplicity": 1}, {"mechanism": STEP.mechanism.at(max_images_per_unit=2)}]


@pytest.mark.parametrize("changes", WAYS, ids=str)
@pytest.mark.parametrize("name", PAST_THEIR_LAYERS)
def test_weights_that_act_past_their_layer_are_named(name, changes):
    with pytest.raises(UnsupportedModel, match=r"not autograd's for 'layer\.[\w.]+'.*freeze it") as refused:
        checks(PAST_THEIR_LAYERS[name], **changes)
    assert refused.value.exit_code == 2 and "'last" not in str(refused.value)


@pytest.mark.parametrize("name", REFUSED)
def test_the_comparison_sees_what_no_static_check_refuses(name, monkeypatch):
    for module in (per_example, sensitive):
        monkeypatch.setattr(module, "check_model", lambda model: None)
    for changes in WAYS:
        with pytest.raises(UnsupportedModel, match=r"not autograd's for 'layer\."):
            checks(REFUSED[name][0], **changes)


@pytest.mark.parametrize("name", REFUSED)
def test_known_ones_are_refused_by_name(name):
    model, remedy = REFUSED[name]
    with pytest.raises(UnsupportedModel, match=rf"\('layer.*'\).*{remedy}"):
        check_model(model)
    check_model(model.requires_grad_(False))
    model.requires_grad_(True)


def test_a_hook_after_a_weight_is_refused():
    """Autograd calls it where it writes gradients, which the door never does."""
    with pytest.raises(UnsupportedModel, match=r"Conv2d \('layer'\) has a hook on 'weight'.*remove it"):
        checks(Model(lambda: with_hook_after_a_weight(convolution())))


@pytest.mark.parametrize("zeros", ["last", "layer"])
def test_zeros_hide_nothing(zeros):
    """Behind a layer that starts from zeros all gradients are zero."""
    model = Model(convolution, lambda layer, x: layer(x) + F.conv2d(x.tanh(), layer.weight, padding=1))
    for parameter in getattr(model, zeros).parameters():
        nn.init.zeros_(parameter)
    with pytest.raises(UnsupportedModel, match="'layer.weight'"):
        checks(model)


def breaks(model, rows, labels, generator):
    raise RuntimeError("a loss that breaks")


@pytest.mark.parametrize("loss", [errors, breaks])
@pytest.mark.parametrize("use", [None, lambda layer, x: layer.forward(x)], ids=["honest", "refused"])
def test_the_model_is_left_as_it_was(use, loss):
    """Weights bit by bit, gradients, modes, hooks and public generators; also where it is refused, or breaks."""
    model = Model(lambda: with_hook(convolution()) if use else convolution(), use)
    model.first.weight.grad = torch.ones_like(model.first.weight)
    model.last.bias.requires_grad_(False)
    model.layer.eval()

    def state():
        return [
            (p.detach().clone(), None if p.grad is None else p.grad.clone(), p.requires_grad)
            for p in model.parameters()
        ] + [(m.training, len(m._forward_hooks)) for m in model.modules()] + [torch.get_rng_state()]  # fmt: skip

    before = state()
    with pytest.raises((UnsupportedModel, RuntimeError)) if use or loss is breaks else contextlib.nullcontext():
        checks(model, loss)
    assert all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for x, y in zip(before, state(), strict=True)
        for a, b in zip(x, y, strict=True)
    )


def drawing(model, rows, labels, generator):
    """Of torch's own generator, which no trial of records allows, but which is no fault of gradients."""
    return errors(model, rows + torch.randn_like(rows), labels, generator)


class Honest(Model):
    """Layers of many kinds, one used twice, one of them a table; dropout; a frozen one; weights of zeros."""

    def __init__(self, zeros=True):
        super().__init__(lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.GroupNorm(2, 4), nn.Dropout(0.2),
            nn.Flatten(2), nn.Conv1d(4, 4, 3, padding=1), nn.LayerNorm(16), nn.Unflatten(2, (4, 4)),
            nn.Linear(4, 4).requires_grad_(False),
        ), lambda layer, x: F.dropout(layer(x) + layer(x.tanh()), 0.1))  # fmt: skip
        if zeros:
            nn.init.zeros_(self.last.weight)


@pytest.mark.parametrize("loss", [errors, drawing])
@pytest.mark.parametrize("changes", [*WAYS, {"noise_multiplicity": 8, "max_grad_norm": 1e6}], ids=str)
def test_honest_models_pass(changes, loss):
    (check,) = checks(Honest(), loss, **changes)
    assert check.passed and check.observed < TOLERANCE / 50


def test_mixed_precision_passes_and_hides_nothing():
    def loss(*arguments):
        with torch.autocast("cpu", torch.bfloat16):
            return errors(*arguments).float()

    (check,) = checks(Honest(), loss, bf16=True)
    assert TOLERANCE < check.observed < TOLERANCE_BF16
    for model in PAST_THEIR_LAYERS.values():
        with pytest.raises(UnsupportedModel, match=r"'layer\.[\w.]+'"):
            checks(model, loss, bf16=True)


# Methods of the library.

FLAGS = (
    "--dry_run --train_data_dir scans --class_names a,b,c --resolution 8 --num_channels 1 --num_train_images 500 "
    "--max_train_steps 2 --train_batch_size 8"
).split()
SMALL = ["--block_out_channels", "8,16"]
METHODS = {
    "dpdm": SMALL, "dp_feta": SMALL, "feta_pro": SMALL, "pge_dpsgd": SMALL, "dp_diffusion": SMALL, "psg": [],
    "dp_gan": ["--generator", "residual", "--expert", "input_noise=0.1"], "dp_lora": ["--train", "lora"],
    "dp_ldm": ["--train", "attention"],
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return stable_diffusion(tmp_path_factory.mktemp("bases") / "base")


def trained_by(method, flags):
    """What the method trains, and the facts."""
    config, facts = load_config([*FLAGS, *flags], CONFIGS[method]), PublicFacts(500, (1, 8, 8), CLASSES)
    torch.manual_seed(0)
    return load(REGISTERED[method].build)(config, facts, "cpu"), facts


def worst(trained, facts, **settings):
    (check,) = own_gradient_checks(STEP, AuditedModel.of(trained, facts.image_shape, facts.class_names), **settings)
    return check.observed


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("method", METHODS)
def test_models_of_the_library_pass(method, precision, base):
    """Also where module and model are two (DP-GAN, PSG), far below what is refused."""
    flags = [*METHODS[method], "--mixed_precision", precision]
    flags += ["--pretrained_model_name_or_path", str(base)] if method in ("dp_lora", "dp_ldm") else []
    trained, facts = trained_by(method, flags)
    bf16 = precision == "bf16"
    assert 0 < worst(trained, facts, bf16=bf16) < (TOLERANCE_BF16 / 5 if bf16 else TOLERANCE / 10)


# The pre-flight of a run.


def test_a_run_is_refused_before_anything_is_written(tmp_path):
    """Exit code 2, and one sentence that names what to mend."""
    model = Model(convolution, lambda layer, x: layer(x) + F.conv2d(x.tanh(), layer.weight, padding=1), classes=10)
    flags = "--max_train_steps 2 --train_batch_size 64 --noise_multiplicity 2 --accountant rdp --target_epsilon 1"
    with pytest.raises(UnsupportedModel, match=r"'layer\.weight': .*F\.linear\(x, layer\.weight\)") as refused:
        method = replace(
            REGISTERED["dpdm"], train=lambda run: pytest.fail("it was trained"),
            build=lambda config, facts, device: Trained(model, model, errors),
        )  # fmt: skip
        run_method(method, preflight, [*flags.split(), "--output_dir", str(tmp_path / "run")])
    assert refused.value.exit_code == 2 and not (tmp_path / "run").exists()
