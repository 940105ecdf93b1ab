"""What does privacy cost in time and memory? One clipped step, without noise, against an ordinary step on the same
rows.

    python benchmarks/dp_step.py --short
    python benchmarks/dp_step.py --models 28x28 14x14 --multiplicities 1 4 8 32 --output runs/dp_step.md
    python benchmarks/dp_step.py --models 28x28 14x14 DiT --multiplicities 1 4 8 \\
        --entries ordinary ours --rounds 9
    python benchmarks/dp_step.py --bf16 --models 28x28 80M --multiplicities 32 --images 128 --peak_tflops 989 \\
        --output runs/h200.md

All entries of a row of the table run interleaved in this one process, on the same model and the same rows; the ratio
is the median over the rounds. Entries:

- `ordinary`: forward, backward, one gradient for all rows.
- `ours`: `clipped_gradient_sum`: gradients per image, norms, clipped sum.
- `exact`: the same as `ours` in whole numbers (`--noise exact`), and the step's rounded noise with it.
- `Opacus hooks`: `GradSampleModule` with contiguous inputs of convolutions (without which its gradients are wrong
  behind attention), one gradient a row, averaged over the K rows of an image, clipped, summed.
- `Opacus ghost`: fast gradient clipping, two backward passes; K = 1 alone, for it clips each row.
- `torch.func`: `vmap(grad)` over images, the K draws inside.

Memory is the highest sum of live bytes that were allocated within the step, less the ordinary step's (on a CPU by
torch's profiler, on a GPU by `max_memory_allocated`). An entry that would need more than is free says how much. With
`--output` each case is written when it is done, and a case that is there is not measured again.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from diffusers import DiTTransformer2DModel, UNet2DConditionModel, UNet2DModel
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from tqdm.auto import tqdm

from diffusers_dp.distributed.memory import free_bytes, keep_freed_memory, peak_bytes
from diffusers_dp.gradients.step import add_rounded_noise, clip_factors, clipped_gradient_sum
from diffusers_dp.mechanisms.mechanism import STEPS
from diffusers_dp.models.adapters import choose_trained
from diffusers_dp.models.denoiser import EDMDenoiser
from diffusers_dp.randomness.private_generator import PrivateGenerator


MODELS = {  # name: (side, channels, channels per level, residual blocks per level, levels with attention)
    "28x28": (28, 1, (64, 64), 2, (1,)),  # 1.6M parameters
    "14x14": (14, 4, (32, 64), 1, (1,)),  # 0.7M: 28x28 in 2x2 patches
    "32x32": (32, 3, (64, 128, 128), 1, (1,)),  # 4.4M
    "DiT": (16, 4, (256,), 4, (0,)),  # a DiTTransformer2DModel, 64 patches of 2x2
    "LoRA": (16, 4, (32, 64), 1, (1,)),  # rank 8 beside the attention of a UNet of latents, as latent_demo.py has one
    "80M": (32, 3, (192, 384, 384, 384), 2, (1, 2)),  # 83M, the size of Ghalebikesabi et al. 2023
}
ENTRIES = ("ordinary", "ours", "exact", "Opacus hooks", "Opacus ghost", "torch.func")
OF_FROZEN = ("ordinary", "ours", "exact")  # entries that leave out weights that are not trained
BY_DEFAULT = [entry for entry in ENTRIES if entry != "exact"]
MAX_NORM = 1e-3
Step = Callable[[], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["28x28", "14x14", "32x32"])
    parser.add_argument("--multiplicities", type=int, nargs="+", default=[1, 4, 8, 32], help="Values of K.")
    parser.add_argument("--images", type=int, help="B; unset: --rows in all.")
    parser.add_argument("--rows", type=int, default=64, help="B x K.")
    parser.add_argument("--entries", nargs="+", choices=ENTRIES, default=BY_DEFAULT)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bf16", action="store_true", help="Autocast of forward and input gradients.")
    parser.add_argument(
        "--short", action="store_true", help="32 rows of two models at two values of K, within two minutes."
    )
    parser.add_argument("--peak_tflops", type=float, help="Of the device, dense; prints each entry's share of it.")
    parser.add_argument("--output", type=Path, help="Write the table here, too, and go on with the one that is there.")
    args = parser.parse_args()
    if "ordinary" not in args.entries:
        parser.error("--entries needs ordinary, with which the others are compared")
    if args.short:
        args.models, args.multiplicities, args.rounds, args.rows = ["28x28", "14x14"], [1, 8], 3, 32
    keep_freed_memory()  # as the training scripts do; all entries gain
    warnings.filterwarnings("ignore")  # of torch.func and hooks, about their own speed
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    done = args.output.read_text() if args.output and args.output.exists() else ""
    if not done:
        head = (
            "| model | (B, K) | entry | rows/s | time / ordinary | memory above ordinary |\n|---|---|---|---|---|---|"
        )
        say(f"{machine(device)}\n\n{head}", args.output)
    for name, k in tqdm([(model, k) for model in args.models for k in args.multiplicities], unit="case", desc="Cases"):
        b = args.images or max(1, (4 if name == "80M" and device.type == "cpu" else args.rows) // k)
        if f"| {name}{' bf16' * args.bf16} | ({b}, {k}) |" not in done:
            say("\n".join(measure(name, b, k, args, device)), args.output)


def say(text: str, output: Path | None) -> None:
    tqdm.write(text)
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        with open(output, "a") as file:
            file.write(f"{text}\n")


def machine(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"


def measure(name: str, b: int, k: int, args: argparse.Namespace, device: torch.device) -> list[str]:
    """Lines of the table for one model and one (B, K)."""
    side, channels, *_ = MODELS[name]
    label = name + " bf16" * args.bf16
    torch.manual_seed(0)
    model = build(name).to(device)
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    rows = Rows(torch.rand(b * k, channels, side, side, device=device) * 2 - 1, k, args.bf16)
    steps: dict[str, Step] = {}
    refused: dict[str, str] = {}
    for entry in args.entries:
        if entry == "Opacus ghost" and k > 1 or name == "LoRA" and entry not in OF_FROZEN:
            continue
        need = 4 * parameters * (b * k if entry == "Opacus hooks" else b)
        if entry in ("Opacus hooks", "torch.func") and need > 0.5 * free_bytes(device):
            refused[entry] = f"| {label} | ({b}, {k}) | {entry} | would need {need / 1e9:.1f} GB | | |"
        else:
            steps[entry] = MAKERS[entry](name, model, rows)
    for entry in list(steps):
        try:
            steps[entry]()  # warm up
        except torch.OutOfMemoryError:
            refused[entry] = f"| {label} | ({b}, {k}) | {entry} | out of memory | | |"
            del steps[entry]
    if "ordinary" not in steps:
        return list(refused.values())
    times: dict[str, list[float]] = {entry: [] for entry in steps}
    for _ in range(args.rounds):
        for entry, step in steps.items():
            times[entry].append(timed(step, device))
    memory = {entry: peak_bytes(step, device) for entry, step in steps.items()}
    with FlopCounterMode(display=False) as counter:
        steps["ordinary"]()
    lines = []
    for entry in args.entries:
        if entry in refused:
            lines.append(refused[entry])
        elif entry in steps:
            ratio = statistics.median(t / o for t, o in zip(times[entry], times["ordinary"], strict=True))
            above = (memory[entry] - memory["ordinary"]) / 1e6
            unit = 4 * parameters * b / 1e6
            seconds = statistics.median(times[entry])
            share = ""
            if args.peak_tflops:
                share = f" ({counter.get_total_flops() / seconds / args.peak_tflops / 1e12:.1%} of peak)"
            lines.append(
                f"| {label} | ({b}, {k}) | {entry} | {b * k / seconds:,.0f}{share} | {ratio:.2f} | "
                f"{above:,.0f} MB ({above / unit:.2f} x B x parameters) |"
            )
    return lines


class Rows:
    """Fixed rows, with a fixed noise level and noise each, and their losses under any model."""

    def __init__(self, images: torch.Tensor, multiplicity: int, bf16: bool):
        self.images, self.multiplicity, self.bf16 = images, multiplicity, bf16
        self.sigma = torch.rand(len(images), device=images.device) + 0.1
        self.noise = torch.randn_like(images)
        self.labels = torch.arange(len(images), device=images.device) // multiplicity % 10

    def losses(self, unet: nn.Module) -> torch.Tensor:
        return self.losses_of(unet, self.images, self.sigma, self.noise, self.labels)

    def losses_of(self, unet: nn.Module, images, sigma, noise, labels) -> torch.Tensor:
        denoiser = EDMDenoiser(unet, autocast_dtype=torch.bfloat16 if self.bf16 else None)
        denoised = denoiser(images + sigma.view(-1, 1, 1, 1) * noise, sigma, labels)
        return (denoised - images).square().flatten(1).mean(1)


class ClassDiT(nn.Module):
    """A `DiTTransformer2DModel` that is called as a `UNet2DModel` is. Without dropped labels, as all entries."""

    def __init__(self, side: int, channels: int, width: int, layers: int):
        super().__init__()
        self.transformer = DiTTransformer2DModel(
            num_attention_heads=width // 64, attention_head_dim=64, in_channels=channels, num_layers=layers,
            sample_size=side, patch_size=2, num_embeds_ada_norm=11,
        ).eval()  # fmt: skip
        self.config = self.transformer.config

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor, class_labels: torch.Tensor):
        return self.transformer(sample, timestep=timestep, class_labels=class_labels)


class PromptedLoRA(nn.Module):
    """A `UNet2DConditionModel` with low-rank matrices, which alone are trained. A class is a prompt of 16 words."""

    def __init__(self, side: int, channels: int, widths: tuple[int, ...], layers: int, rank: int = 8):
        super().__init__()
        self.network = UNet2DConditionModel(
            sample_size=side, in_channels=channels, out_channels=channels, block_out_channels=widths,
            layers_per_block=layers, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=32, attention_head_dim=4,
            norm_num_groups=8,
        )  # fmt: skip
        choose_trained(self.network, "lora", rank=rank)
        self.register_buffer("prompts", torch.randn(10, 16, 32))
        self.config = self.network.config

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor, class_labels: torch.Tensor):
        return self.network(sample, timestep, encoder_hidden_states=self.prompts[class_labels])


def build(name: str) -> nn.Module:
    side, channels, widths, layers, attention = MODELS[name]
    if name == "DiT":
        return ClassDiT(side, channels, widths[0], layers)
    if name == "LoRA":
        return PromptedLoRA(side, channels, widths, layers)
    levels = range(len(widths))
    return UNet2DModel(
        sample_size=side,
        in_channels=channels,
        out_channels=channels,
        block_out_channels=widths,
        layers_per_block=layers,
        down_block_types=["AttnDownBlock2D" if i in attention else "DownBlock2D" for i in levels],
        up_block_types=["AttnUpBlock2D" if i in attention else "UpBlock2D" for i in reversed(levels)],
        norm_num_groups=8,
        num_class_embeds=11,
    )


def ordinary(name: str, model: nn.Module, rows: Rows) -> Step:
    def step() -> None:
        model.zero_grad()
        rows.losses(model).mean().backward()
        model.zero_grad()

    return step


def ours(name: str, model: nn.Module, rows: Rows, exact: bool = False) -> Step:
    images = rows.images[:: rows.multiplicity]
    batch = (images, None, torch.ones(len(images), dtype=torch.bool, device=images.device), None)

    def step() -> None:
        generator = PrivateGenerator(exact=exact)
        total = clipped_gradient_sum(
            model, lambda model, *_: rows.losses(model), [batch],
            max_grad_norm=MAX_NORM, noise_multiplicity=rows.multiplicity, generator=generator, exact=exact,
        )  # fmt: skip
        if exact:
            add_rounded_noise(total, std=STEPS, generator=generator)

    return step


def exact(name: str, model: nn.Module, rows: Rows) -> Step:
    return ours(name, model, rows, exact=True)


def opacus_hooks(name: str, model: nn.Module, rows: Rows) -> Step:
    from opacus import GradSampleModule

    copy = build(name).to(rows.images.device)
    copy.load_state_dict(model.state_dict())
    with_contiguous_inputs(copy)
    wrapped = GradSampleModule(copy, loss_reduction="sum")
    wrapped.config = copy.config  # what the denoiser asks of a UNet

    def step() -> None:
        rows.losses(wrapped).sum().backward()
        samples = [p.grad_sample.unflatten(0, (-1, rows.multiplicity)).mean(1) for p in wrapped.parameters()]
        norms = torch.stack([s.flatten(1).norm(dim=1) for s in samples]).square().sum(0)
        factors = clip_factors(norms, MAX_NORM)
        for sample in samples:
            torch.tensordot(factors, sample, dims=1)
        wrapped.zero_grad()

    return step


def opacus_ghost(name: str, model: nn.Module, rows: Rows) -> Step:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    copy = build(name).to(rows.images.device)
    copy.load_state_dict(model.state_dict())
    with_contiguous_inputs(copy)
    wrapped = GradSampleModuleFastGradientClipping(
        copy, max_grad_norm=MAX_NORM, use_ghost_clipping=True, loss_reduction="sum"
    )
    wrapped.config = copy.config

    def step() -> None:
        losses = rows.losses(wrapped)
        losses.sum().backward(retain_graph=True)
        wrapped.disable_hooks()
        wrapped.zero_grad()
        (losses * wrapped.get_clipping_coef()).sum().backward()
        wrapped.enable_hooks()
        wrapped.zero_grad()

    return step


def torch_func(name: str, model: nn.Module, rows: Rows) -> Step:
    from torch.func import functional_call, grad, vmap

    def image_loss(parameters, *row_values):
        class Bound:  # the model with these parameters, as the denoiser calls it
            config = model.config

            def __call__(self, *inputs, **kwargs):
                return functional_call(model, parameters, inputs, kwargs)

        return rows.losses_of(Bound(), *row_values).mean()

    def step() -> None:
        parameters = {key: p.detach() for key, p in model.named_parameters()}
        values = [v.unflatten(0, (-1, rows.multiplicity)) for v in (rows.images, rows.sigma, rows.noise, rows.labels)]
        samples = vmap(grad(image_loss), in_dims=(None, 0, 0, 0, 0))(parameters, *values)
        norms = torch.stack([s.flatten(1).norm(dim=1) for s in samples.values()]).square().sum(0)
        factors = clip_factors(norms, MAX_NORM)
        for sample in samples.values():
            torch.tensordot(factors, sample, dims=1)

    return step


MAKERS: dict[str, Callable[[str, nn.Module, Rows], Step]] = dict(
    zip(ENTRIES, (ordinary, ours, exact, opacus_hooks, opacus_ghost, torch_func), strict=True)
)


def with_contiguous_inputs(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(lambda _, inputs: tuple(x.contiguous() for x in inputs))


def timed(step: Step, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
