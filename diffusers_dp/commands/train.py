# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp train METHOD ...`: the method's training script, as it comes with the package.

diffusers-dp train feta_pro --config folder_cpu --train_data_dir scans --class_names benign,malignant
"""

import argparse

from ..audit.preflight import preflight
from ..methods.config import CONFIGS
from ..methods.registry import METHODS
from ..runs.launch import launch, run_method


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "method", choices=CONFIGS, help="Whose script; `diffusers-dp train METHOD --help` has its flags."
    )
    flags = parser.add_argument("flags", nargs=argparse.REMAINDER, help="Of the script.")
    flags.required = False  # argparse would name them together with a method that is missing


def run(args: argparse.Namespace) -> None:
    """Exits as the script does: 2, 3, 4, 75 or 130 after one sentence."""
    launch(lambda: run_method(METHODS[args.method], preflight, args.flags))
