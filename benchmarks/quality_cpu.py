"""The benchmark of record: how good are the images of each method and curriculum, at epsilon 1 and 10, for the same
work?

    OMP_WAIT_POLICY=PASSIVE python benchmarks/quality_cpu.py train --dataset_name path/to/mnist
    python benchmarks/quality_cpu.py evaluate --dataset_name path/to/mnist
    python benchmarks/quality_cpu.py table

`train` writes a release for every epsilon, seed and curriculum; DP-SGD has the same number of steps in all of them,
and its noise is calibrated to what the ledger of that run has left. Both questions are asked once for each seed and
epsilon: every run takes the same noisy answers, which its own ledger counts too. `evaluate`, another process, verifies
each release, draws from it, and appends one line to `results/quality_cpu.jsonl`: accuracy on the real test images of a
CNN that is trained on the drawn ones only, with fixed numbers throughout. `--scored_on train` takes the last 10,000
training images in their place, to choose by: its lines are in no table. `table` writes the table of
`docs/benchmarks.md`. Each of them goes on where it was interrupted, and what is there is not done again. Without
`OMP_WAIT_POLICY=PASSIVE` the threads of small layers burn the time that other jobs on the same cores wait for.
`--preset gpu` runs the paper's recipes in full. Training flags after `--` replace the preset's. `--preset cpu_plus` is
the recipe beyond the paper, for about as much work; its table has the differences to `--preset cpu`, paired by seed.

Numbers that are measured on real images are private where these are; MNIST's are public.
"""

import argparse
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import demo_accuracy
import numpy as np
import torch
from quality_table import paired_table_of, table_of, write_table
from tqdm.auto import tqdm

from diffusers_dp import DiffusersDPError
from diffusers_dp.audit.preflight import preflight
from diffusers_dp.data.images import load_images, public_facts
from diffusers_dp.distributed.memory import keep_freed_memory
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.feta_pro import FETAProConfig
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.release.loading import load_verified
from diffusers_dp.runs.diffusion_run import DiffusionRun
from diffusers_dp.runs.folder import RunFolder
from diffusers_dp.runs.launch import run_method
from diffusers_dp.training import train_feta_pro as script
from diffusers_dp.words import RECEIPT_NAME


ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "training" / "recipes" / "feta_pro"
PLUS_RECIPE = ROOT / "training" / "recipes" / "feta_pro_plus" / "mnist_cpu.yaml"
RESULTS = Path(__file__).with_name("results") / "quality_cpu.jsonl"
DOCUMENT = ROOT / "docs" / "benchmarks.md"
METHOD = "feta_pro"
ASKED = ("central_images", "frequency_features")
NUM_TRAIN_SCORED = 10_000
GO_ON = "--resume_from_checkpoint latest --skip_preflight".split()
CURRICULA = ("none", "spatial", "frequency", "spatial,frequency", "frequency,spatial", "mix")

# Fixed once: 150 steps x 1,024 expected images x K = 2 are 307,200 rows, about 10 minutes at the 520 rows a second of
# 2 idle cores. With so few steps a large batch serves better than a large K: at epsilon 10 the noise multiplier hardly
# grows with the sample rate.
DP_SGD = (
    "--max_train_steps 150 --train_batch_size 1024 --noise_multiplicity 2 --max_physical_batch_size 128 "
    "--checkpointing_steps 5"
).split()


@dataclass(frozen=True)
class Preset:
    """What is run.

    Args:
        flags (`dict[float, list[str]]`): Training flags for each epsilon, in the order of work.
        evaluation (`dict[str, int]`): Images that are drawn from a release, and solver steps.
    """

    flags: dict[float, list[str]]
    evaluation: dict[str, int]


# The noise of the recipes' two questions, raised as the paper's own recipes raise it from epsilon 10 to 1: 5 to 20,
# and 7.4 to 26.6.
EPSILON_1 = "--target_epsilon 1 --spatial_noise_multiplier 20 --frequency_noise_multiplier 18".split()
CPU = ["--config", str(RECIPES / "mnist_cpu.yaml"), *DP_SGD]
CPU_PLUS = ["--config", str(PLUS_RECIPE)]
WITHOUT_BANDS = "--noise_bands 1 --learning_rate 0.003".split()
CPU_EVALUATION = {"num_images": 5000, "num_inference_steps": 20}
PRESETS = {
    "cpu": Preset({10.0: CPU, 1.0: [*CPU, *EPSILON_1]}, CPU_EVALUATION),
    "cpu_plus": Preset({10.0: CPU_PLUS, 1.0: [*CPU_PLUS, *EPSILON_1, *WITHOUT_BANDS]}, CPU_EVALUATION),
    "gpu": Preset(
        {
            10.0: ["--config", str(RECIPES / "mnist_eps10.yaml"), "--max_physical_batch_size", "auto"],
            1.0: ["--config", str(RECIPES / "mnist_eps1.yaml"), "--max_physical_batch_size", "auto"],
        },
        {"num_images": 60_000, "num_inference_steps": 50},
    ),
}
# Flags that tell one run from another of the same recipe, or decide nothing about the result.
_NOT_RECIPE = (
    "config", "curriculum", "dataset_name", "seed", "target_epsilon", "output_dir", "max_physical_batch_size",
    "checkpointing_steps", "resume_from_checkpoint", "skip_preflight",
)  # fmt: skip
# Flags that decide nothing before DP-SGD.
_OF_DP_SGD = (
    "train_batch_size", "sample_rate", "noise_multiplicity", "max_train_steps", "learning_rate", "lr_scheduler",
    "lr_warmup_steps", "max_grad_norm", "restart_slack", "truncated_poisson", "noise_bands",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One run: the unit that is trained, interrupted, resumed and evaluated.

    Args:
        flags (`tuple[str, ...]`): Training flags, all but `--curriculum` and `--output_dir`.
        curriculum, epsilon, seed: Which one.
        recipe (`str`): Hash of the flags that differ from their defaults.
        base (`Path`): The folder of the runs of this recipe, epsilon and seed.
        shared (`Path`): The folder of the run that asks, for all recipes that begin alike.
    """

    flags: tuple[str, ...]
    curriculum: str
    epsilon: float
    seed: int
    recipe: str
    base: Path
    shared: Path

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.base / self.curriculum.replace(",", "_"))

    @property
    def config(self) -> FETAProConfig:
        return load_config(self.argv(self.curriculum, self.folder.output_dir))

    def argv(self, curriculum: str, output_dir: Path) -> list[str]:
        """The flags of this run, or of another one of its recipe."""
        return [*self.flags, "--curriculum", curriculum, "--output_dir", str(output_dir), *GO_ON]

    def key(self, preset: str, scored_on: str) -> dict[str, Any]:
        """What tells its row in the results from all others."""
        return {
            "preset": preset,
            "method": METHOD,
            "curriculum": self.curriculum,
            "epsilon": self.epsilon,
            "seed": self.seed,
            "recipe": self.recipe,
            "evaluation": evaluation_facts(preset, scored_on),
        }


def evaluation_facts(preset: str, scored_on: str = "test") -> dict[str, Any]:
    """All numbers that an accuracy depends on, besides the images."""
    return {
        **PRESETS[preset].evaluation,
        "classifier": "small_cnn",
        "classifier_steps": demo_accuracy.CLASSIFIER_STEPS,
        "classifier_batch_size": demo_accuracy.CLASSIFIER_BATCH_SIZE,
        **({} if scored_on == "test" else {"scored_on": scored_on}),
    }


def recipe_of(config: FETAProConfig, without: Collection[str] = ()) -> str:
    """A hash of the flags that differ from their defaults, so that a flag which is added later changes no hash."""
    given = asdict(config)
    chosen = {
        flag.name: given[flag.name]
        for flag in fields(config)
        if flag.name not in (*_NOT_RECIPE, *without) and given[flag.name] != flag.default
    }
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:12]


def all_runs(args: argparse.Namespace) -> Iterator[Run]:
    """Every run in the order of work: all of the first seed come first."""
    for seed in args.seeds:
        for epsilon, flags in PRESETS[args.preset].flags.items():
            if epsilon not in args.epsilons:
                continue
            flags = [*flags, *args.flags, "--seed", str(seed)]
            flags += ["--dataset_name", args.dataset_name] if args.dataset_name else []
            config = load_config([*flags, "--curriculum", "none"])
            recipe = recipe_of(config)
            base = args.output_dir / f"{args.preset}_eps{epsilon:g}_{recipe}" / f"seed{seed}"
            shared = args.output_dir / f"shared_eps{epsilon:g}_{recipe_of(config, _OF_DP_SGD)}" / f"seed{seed}"
            for curriculum in args.curricula:
                yield Run(tuple(flags), curriculum, epsilon, seed, recipe, base, shared)


# Training.


def train(args: argparse.Namespace) -> None:
    keep_freed_memory()
    torch.set_num_threads(number_of_cores())
    runs = [run for run in all_runs(args) if not (run.folder.release / RECEIPT_NAME).exists()]
    for done, run in enumerate(runs, 1):
        print(f"Run {done} of {len(runs)}: epsilon {run.epsilon:g}, seed {run.seed}, curriculum {run.curriculum}")
        train_one(run)


def train_one(run: Run) -> None:
    """The training script as it is, from the noisy answers that all runs share."""
    asked = [query.name for query in run.config.queries]
    if asked and not all((run.shared / "private" / "answers" / name).exists() for name in ASKED):
        run_method(replace(TIMED, train=ask), preflight, run.argv("spatial,frequency", run.shared))

    def train(training: TimedRun) -> None:
        if asked:
            training.take_answers(run.shared / "private")
        script.train(training)

    run_method(replace(TIMED, train=train), preflight, run.argv(run.curriculum, run.folder.output_dir))


def ask(training: "TimedRun") -> None:
    for query in training.plan.queries:
        training.ask(query)


class TimedRun(DiffusionRun[FETAProConfig]):
    """Notes how long DP-SGD took, unless an earlier start took some of its steps."""

    def dp_sgd(self, *arguments: Any, **options: Any) -> None:
        start = time.perf_counter(), time.process_time()
        super().dp_sgd(*arguments, **options)
        seconds = [round(end - begin, 1) for end, begin in zip((time.perf_counter(), time.process_time()), start)]
        if self.resumes_dp_sgd:
            seconds = [None, None]
        facts = {"dp_sgd_seconds": seconds[0], "dp_sgd_cpu_seconds": seconds[1], "machine": machine()}
        (self.folder.private / "benchmark.json").write_text(json.dumps(facts))


TIMED = replace(METHODS[METHOD], run_class=TimedRun)


def machine() -> dict[str, Any]:
    """The machine by its parts."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        cpu = models[0] if models else cpu
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"cpu": cpu, "cores": number_of_cores(), "gpu": gpu, "torch": torch.__version__}


def number_of_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Evaluation.


def evaluate(args: argparse.Namespace) -> None:
    keep_freed_memory()
    rows = read_results()
    waiting = [
        run
        for run in all_runs(args)
        if (run.folder.release / RECEIPT_NAME).exists()
        and not any(run.key(args.preset, args.scored_on).items() <= row.items() for row in rows)
    ]
    if not waiting:
        print("No release waits for evaluation.")
        return
    real = real_images(list(waiting[0].flags), args.output_dir, args.scored_on)
    for run in tqdm(waiting, desc="Evaluating", unit="run"):
        key = run.key(args.preset, args.scored_on)
        row = {**key, **evaluate_one(run, key["evaluation"], real)}
        RESULTS.parent.mkdir(exist_ok=True)
        with open(RESULTS, "a") as file:
            file.write(json.dumps(row) + "\n")


def real_images(flags: list[str], folder: Path, scored_on: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The images that scores are taken on, and their labels: the test split, or the end of the training split."""
    if scored_on == "test":
        return demo_accuracy.real_test_images(flags, folder)
    config, private = load_config(flags), folder / "private"
    private.mkdir(parents=True, exist_ok=True)
    private.chmod(0o700)
    arrays = load_images(config.data, public_facts(config.data), private / "cache_train")
    images, labels = (np.array(part[-NUM_TRAIN_SCORED:]) for part in (arrays.images, arrays.labels))
    return torch.from_numpy(images), torch.from_numpy(labels)


def evaluate_one(run: Run, facts: dict[str, Any], test: tuple[torch.Tensor, torch.Tensor]) -> dict[str, Any]:
    """Scores of a verified release and of the same model before DP-SGD."""
    receipt = json.loads((run.folder.release / RECEIPT_NAME).read_text())
    steps = [event for event in receipt["events"] if event["stage"] == "dp_sgd"]
    score = accuracy(load_verified(run.folder.release), facts, test)
    before = None if run.curriculum == "none" else accuracy_before(run, facts, test)
    return {
        "accuracy": score,
        "accuracy_before_dp_sgd": before,
        "epsilon_spent": receipt["claimed_epsilon"][receipt["accountant"]]["epsilon"],
        "noise_multiplier": steps[-1]["noise_multiplier"],
        "steps": sum(event["steps_executed"] for event in steps),
        **json.loads((run.folder.private / "benchmark.json").read_text()),
    }


def accuracy_before(run: Run, facts: dict[str, Any], test: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Of the model before DP-SGD. All recipes that begin alike share it, so that it is scored once."""
    folder = run.folder.private / f"warmed_up_{run.config.curriculum_stages[-1]}"
    kept = run.shared / "accuracy.json"
    weights = hashlib.sha256((folder / "unet" / "diffusion_pytorch_model.safetensors").read_bytes()).hexdigest()
    name = f"{weights} {json.dumps(facts, sort_keys=True)}"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    if name not in known:
        known[name] = accuracy(DPImagePipeline.from_pretrained(folder), facts, test)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(known))
    return known[name]


def accuracy(pipeline: DPImagePipeline, facts: dict[str, Any], test: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Share of the real test images that a classifier gets right which has seen drawn images only."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pipeline.to(device).set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(facts["num_images"]) % pipeline.num_classes
    batches = [
        pipeline(
            class_labels=part, generator=generator, num_inference_steps=facts["num_inference_steps"], output_type="pt"
        ).images.cpu()
        for part in tqdm(labels.split(500), desc="Drawing", unit="batch", leave=False)
    ]
    images = torch.cat(batches).mul(255).round().byte()
    return round(demo_accuracy.accuracy(images, labels, *test), 4)


def read_results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def table(args: argparse.Namespace) -> None:
    """Of the rows of the recipes and the evaluation as they are now."""
    rows = current_rows(args)
    if args.preset == "cpu_plus":
        found = paired_table_of(
            current_rows(argparse.Namespace(**{**vars(args), "preset": "cpu"})), rows, args.curricula
        )
    else:
        found = table_of(rows, args.curricula)
    print(write_table(DOCUMENT, f"quality_{args.preset}", found))


def current_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    recipes, facts = {run.recipe for run in all_runs(args)}, evaluation_facts(args.preset)
    return [row for row in read_results() if row["recipe"] in recipes and row["evaluation"] == facts]


def main(argv: list[str] | None = None) -> None:
    given = sys.argv[1:] if argv is None else argv
    own, flags = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["train", "evaluate", "table"])
    parser.add_argument("--dataset_name", help="Hub id or local folder; unset: the recipe's.")
    parser.add_argument("--preset", choices=list(PRESETS), default="cpu")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/quality_cpu"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[10.0, 1.0])
    parser.add_argument("--curricula", nargs="+", choices=CURRICULA, default=list(CURRICULA))
    parser.add_argument("--scored_on", choices=("test", "train"), default="test", help="Real images of `evaluate`.")
    args = parser.parse_args(own)
    args.flags = flags
    {"train": train, "evaluate": evaluate, "table": table}[args.do](args)


if __name__ == "__main__":
    try:
        main()
    except DiffusersDPError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
