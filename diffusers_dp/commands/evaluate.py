# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp evaluate`: are these images good enough to share? A report of numbers and pictures against real
images.

diffusers-dp evaluate --model runs/mnist/release --real ylecun/mnist
diffusers-dp evaluate --images synthetic --real path/to/scans --class_names benign,malignant
"""

import argparse
from dataclasses import fields

from ..distributed.worker_pool import lead
from ..evaluation.flags import EvaluationFlags
from ..files.file_modes import private_files
from ..methods.command_line import add_flags
from ..methods.flag import validate
from .sample import add_drawing_arguments, drawing_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "diffusers-dp evaluate (--model RELEASE | --images DATASET) [--real DATASET] [flags, see --help]"
    add_flags(parser, EvaluationFlags)
    add_drawing_arguments(parser)


def run(args: argparse.Namespace) -> None:
    flags = EvaluationFlags(**{each.name: getattr(args, each.name) for each in fields(EvaluationFlags)})
    validate(flags)
    drawing = drawing_of(args, flags.num_judged or 1)
    from ..evaluation.judging import judge_images  # loads torch

    with private_files():
        lead(lambda pool: judge_images(flags, drawing, pool, device=args.device, base=args.base))
