# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Makes the golden runs of this folder, with the code as it stands: `PYTHONPATH=tests python -m golden.make_golden
[NAME ...]`.

They are made once, before code moves, and stay: `case.json` says by which commit. To make one anew is to give up
what it proves.

Each case is a run that a signal stopped (`stopped/`), and its end, reached with `--resume_from_checkpoint latest`
(`finished/`). `case.json` holds the command line, where it was stopped, the plan, and what the ledger says before
and after. Paths are placeholders, `{run}` and so on, which `runs.put` fills in. Left out are what is made anew
(decoded images, the pipeline's code, which stands in `pipeline_of_the_releases.txt`), locks, and of finished runs
what nobody reads again.

**Public draws** are pinned by weights (`learned/*.safetensors`). A stopped run holds its noisy answers, so what a
warm-up learns from them depends on `--seed` alone. With `--learning_rate 1e-9` (`STILL`) DP-SGD takes its noisy
steps and moves nothing: then the released weights and `samples.png` depend on the seed alone, too. With the same
answers a run can go on in another way (`variants`), whose draws are pinned likewise.
"""

import json
import multiprocessing
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

import diffusers_dp.runs.run  # noqa: F401  what training loads, so that copies of this process have it

from . import runs, stop_at


SHARED = (
    "--output_dir {run} --block_out_channels 4 --resolution 8 --num_channels 1 --num_inference_steps 2 "
    "--skip_preflight "
    "--noise_multiplicity 2 --train_batch_size 8 --target_epsilon 3 --max_train_steps 4 "
    "--checkpointing_steps 2 --checkpoints_total_limit 1 "
)
STILL = "--learning_rate 1e-9 "
LABELLED = "--train_data_dir {data}/folders --class_names left,empty,right --num_train_images 40 --target_delta 1e-3 "
PLAIN = "--dataset_name {data}/plain --num_train_images 40 --target_delta 1e-3 "
FETA_PRO = (
    "--spatial_steps 2 --spatial_batch_size 6 --num_central_images 2 --frequency_steps 2 "
    "--frequency_batch_size 6 --generator_steps 2 "
    "--generator_batch_size 6 --generator_channels 4 --num_auxiliary_images 9 --num_frequency_features 10 "
    "--auxiliary_inference_steps 2 "
)
SPATIAL = "--spatial_steps 2 --spatial_batch_size 6 --num_central_images 2 "
PUBLIC = "--public_data_dir {data}/public --public_steps 2 --public_batch_size 6 "
DATASET = "--dataset_id images --ledger_dir {ledgers} "
EVALUATED = "--evaluation_reserve 0.1 --num_evaluation_images 6 "
RDP = "--accountant rdp "

#: Stopped where, as `stop_at.py` has it: what is called, which time, and the signal.
ANSWERED, WARMING, STEP = "noisy_sum", "step", "noisy_gradient"
CASES: dict[str, dict[str, Any]] = {
    # After the central images' answer: the frequency features are asked after the resume.
    "feta_pro_one_answer": {
        "method": "feta_pro", "stop": [ANSWERED, 1, "term"],
        "flags": SHARED + LABELLED + FETA_PRO + RDP + EVALUATED + STILL,
        "learned": ["private.warmed_up_spatial"],
    },
    # Both answers are there, and the warm-up had begun; the paper's curriculum, and those of its tables.
    "feta_pro_warm_up": {
        "method": "feta_pro", "same_release": True, "stop": [WARMING, 1, "term"],
        "flags": SHARED + LABELLED + FETA_PRO + "--accountant pld " + STILL,
        "learned": [
            "private.warmed_up_spatial", "private.auxiliary_generator",
        ],
        "variants": {
            "mix": "--curriculum mix", "reversed": "--curriculum frequency,spatial",
            "diffusion": "--auxiliary diffusion", "no_auxiliary": "--auxiliary none",
            "patches": "--patch_size 2 --objective ddpm --timestep_mixture 0-500:0.7,500-1000:0.3",
        },
    },
    # Killed in two processes in the middle of a reservation, behind a checkpoint.
    "feta_pro_two_processes": {
        "method": "feta_pro", "processes": 2, "stop": [STEP, 4, "kill"],
        "flags": SHARED + LABELLED + FETA_PRO + RDP + "--restart_slack 2 ",
    },
    # Patients, mode images, PRV, losses written down.
    "dp_feta_mode_patients": {
        "method": "dp_feta", "same_release": True, "stop": [WARMING, 1, "term"],
        "flags": SHARED + SPATIAL + "--central_images mode --accountant prv --leaky_logs "
        "--dataset_name {data}/patients "
        "--unit_column patient_id --num_train_units 13 --num_train_images 40 --max_images_per_unit 3 "
        "--target_delta 1e-3 " + STILL,
        "learned": ["private.warmed_up_spatial"],
    },
    # Central and public images as one set, in two processes.
    "dp_feta_mixed_two_processes": {
        "method": "dp_feta", "same_release": True, "processes": 2, "stop": [WARMING, 1, "term"],
        "flags": SHARED + LABELLED + SPATIAL + PUBLIC + "--mix_public_images " + RDP + STILL,
        "learned": ["private.warmed_up_spatial"],
    },
    # No labels; stopped in the last step: the averaged weights of its checkpoint are released.
    "dpdm_last_step": {
        "method": "dpdm", "same_release": True, "stop": [STEP, 4, "term"],
        "flags": SHARED + PLAIN + RDP + "--augmentations flip --lr_scheduler linear ",
    },
    # Without any noise, for comparison: no release.
    "dpdm_no_guarantee": {
        "method": "dpdm", "stop": [STEP, 3, "term"], "flags": SHARED + PLAIN + RDP + "--target_epsilon inf ",
    },
    # The first release of a data set, stopped while public images teach the model: nothing was asked yet.
    "dp_diffusion_first": {
        "method": "dp_diffusion", "same_release": True, "stop": [WARMING, 1, "term"],
        "flags": SHARED + LABELLED + PUBLIC + DATASET + RDP + "--dataset_epsilon 4 " + STILL,
        "learned": ["private.pretrained"],
    },
    # The second, which begins with the first; killed behind a checkpoint.
    "dp_diffusion_second": {
        "method": "dp_diffusion", "stop": [STEP, 4, "kill"], "start": "dp_diffusion_first",
        "flags": SHARED + LABELLED + DATASET + RDP + "--pretrained_model_name_or_path {start} --restart_slack 2 ",
    },
    # What public images taught is kept; killed in the first reservation of DP-SGD.
    "dp_diffusion_kept": {
        "method": "dp_diffusion", "same_release": True, "stop": [STEP, 2, "kill"],
        "flags": SHARED + LABELLED + PUBLIC + RDP + "--restart_slack 2 " + STILL,
        "learned": ["private.pretrained"],
    },
}  # fmt: skip
RESUME = ["--resume_from_checkpoint", "latest"]
#: Of a run's private folder: written anew, or of no use to whoever goes on.
LEFT_OUT = ("cache", "lock", "unprotected", "tensorboard")
#: Steps that a ledger is asked for: more than any golden run has left.
MANY = 40
#: What is kept of a finished one.
FINISHED = ("ledger.jsonl", "run.json")


def main(names: list[str]) -> None:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=runs.ROOT, check=True)
    with tempfile.TemporaryDirectory() as temporary:
        data = runs.write_data(Path(temporary, "data"))
        for name in names or CASES:
            shutil.rmtree(runs.GOLDEN / name, ignore_errors=True)
            case = {"commit": commit.stdout.strip(), "processes": 1, **CASES[name]}
            make(name, case, Path(temporary, name), data)
            print(name, "made")


def make(name: str, case: dict[str, Any], temporary: Path, data: Path) -> None:
    folder, place = runs.GOLDEN / name, temporary / "made"
    place.mkdir(parents=True)
    if case.get("start"):
        golden = runs.GOLDEN / case["start"] / "finished"
        shutil.copytree(golden / "run" / "release", place / "start")
        shutil.copyfile(runs.PIPELINE, place / "start" / "pipeline.py")
        shutil.copytree(golden / "ledgers", place / "ledgers")
    given = runs.flags(case, place, data)
    assert start(case, given, stopping=True) != 0 and (place / "run" / "private" / "run.json").exists()
    keep(place, folder / "stopped")
    folder.joinpath("case.json").write_text(json.dumps(case))  # `put` reads it

    runs.put(name, "stopped", temporary / "resumed")
    place = temporary / "resumed"
    given = runs.flags(case, place, data, RESUME)
    case["plan"] = runs.planned(case["method"], given)
    case["stopped"] = without_facts(runs.read_back(case["method"], given, MANY))
    assert start(case, given) == 0
    case["finished"] = {"exit_code": 0, **without_facts(runs.read_back(case["method"], given, MANY))}
    case["finished"]["files"] = runs.outside_private(place)
    save_learned(place, folder / "learned", case.pop("learned", ()))
    if (place / "run" / "release" / "pipeline.py").exists():
        shutil.copyfile(place / "run" / "release" / "pipeline.py", runs.PIPELINE)
    keep(place, folder / "finished", FINISHED)
    for variant, more in case.get("variants", {}).items():
        place = temporary / variant
        runs.put(name, "stopped", place)
        assert start(case, runs.flags(case, place, data, [*RESUME, more])) == 0
        save_learned(place, folder / "learned" / variant, ["release", "samples"])
    folder.joinpath("case.json").write_text(json.dumps(case, indent=2) + "\n")


def start(case: dict[str, Any], given: list[str], *, stopping: bool = False) -> int:
    """Runs the script, in a copy of this process where one is enough: what is imported here need not be imported
    there. The exit code."""
    script = str(runs.script(case["method"]))
    if case["processes"] > 1:
        stop = [str(runs.GOLDEN / "stop_at.py"), *map(str, case["stop"])] if stopping else []
        return runs.launch(case["processes"], *stop, script, *given).returncode
    process = multiprocessing.get_context("fork").Process(target=begin, args=(case, script, given, stopping))
    process.start()
    process.join()
    return process.exitcode or 0


def begin(case: dict[str, Any], script: str, given: list[str], stopping: bool) -> None:
    sys.argv = [script, *given]
    if stopping:
        stop_at.main(*case["stop"], script)
    else:
        runpy.run_path(script, run_name="__main__")


def without_facts(ledger: dict[str, Any]) -> dict[str, Any]:
    """What a ledger says; of its rows their names and steps, for the file holds the rest."""
    return {**ledger, "rows": [[row["stage"], row["steps_reserved"]] for row in ledger["rows"]]}


def save_learned(place: Path, folder: Path, wanted: Any) -> None:
    found = runs.learned(place)
    for name in wanted:
        folder.mkdir(parents=True, exist_ok=True)
        if name == "samples":
            shutil.copyfile(place / "run" / "release" / "samples.png", folder / "samples.png")
        else:
            save_file(found[name], folder / f"{name}.safetensors")


def keep(place: Path, folder: Path, only: tuple[str, ...] | None = None) -> None:
    """Copies a run, and the ledger that it shares, without paths of this machine."""

    def left_out(path: str, names: list[str]) -> list[str]:
        needless = [name for name in names if name.endswith(".lock") or name == "pipeline.py"]
        if path == str(place / "run" / "private"):
            needless += [name for name in names if name in LEFT_OUT or (only is not None and name not in only)]
        if Path(path).name == "no_guarantee":
            needless += names
        return needless

    shutil.copytree(place / "run", folder / "run", ignore=left_out)
    if (place / "ledgers").exists():
        shutil.copytree(place / "ledgers", folder / "ledgers", ignore=left_out)
    identity = folder / "run" / "private" / "run.json"
    facts = json.loads(identity.read_text())
    identity.write_text(json.dumps({**facts, "ledger": "{ledger}"}))
    for path in folder.rglob("*"):
        assert path.is_dir() or str(place.parent).encode() not in path.read_bytes(), path


if __name__ == "__main__":
    main(sys.argv[1:])
