# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp evaluate`: are these images good enough to share? A report of numbers and pictures against real
images.

diffusers-dp evaluate --model runs/mnist/release --real ylecun/mnist
diffusers-dp evaluate --images synthetic --real path/to/scans --class_names benign,malignant
"""

import argparse
from dataclasses import fields

from ..distributed.worker_pool import lead
from ..errors import UsageError
from ..evaluation.flags import EvaluationFlags
from ..files.file_modes import private_files
from ..methods.command_line import add_flags
from ..methods.flag import validate
from ..sampling.drawing import DrawingFlags
from .sample import add_drawing_arguments, drawing_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "diffusers-dp evaluate (--model RELEASE | --images DATASET) [--real DATASET] [flags, see --help]"
    add_flags(parser, EvaluationFlags)
    add_drawing_arguments(parser)


def run(args: argparse.Namespace) -> None:
    flags = EvaluationFlags(**{each.name: getattr(args, each.name) for each in fields(EvaluationFlags)})
    validate(flags)
    drawn = [each for each in fields(DrawingFlags) if each.name != "seed" and getattr(args, each.name) != each.default]
    if flags.images is not None and (drawn or args.base):
        raise UsageError(f"--{drawn[0].name if drawn else 'base'} has no effect without --model; leave it out.")
    drawing = drawing_of(args, flags.num_judged or 1)
    from ..evaluation.judging import judge_images  # loads torch

    with private_files():
        lead(lambda pool: judge_images(flags, drawing, pool, device=args.device, base=args.base))
