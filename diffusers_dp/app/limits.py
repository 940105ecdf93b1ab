# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What a visitor may ask for, and what the page keeps."""

from dataclasses import dataclass


PIPELINES_KEPT = 2  # as many as a comparison needs
MODELS_FETCHED = 20  # by name typed into the page, until it is started again: each fills the disk
OPENED_AT_ONCE = 8  # models that visitors look at, fetched and verified
QUEUE_LENGTH = 128
SESSIONS_KEPT = 128
SECONDS_KEPT = 1800  # for which a visitor can save what was drawn
LARGEST_SIDE = 512  # pixels of an image, by the model's own config
MOST_CLASSES = 10_000  # by the model's own config


@dataclass(frozen=True)
class Limits:
    """
    Args:
        max_images (`int`): In one drawing.
        max_steps (`int`): Of the solver.
        max_model_mb (`int`): Of all files of a model together, asked for before they are fetched.
        max_seconds (`int`): For loading a model, and for one drawing; its process is ended then.
    """

    max_images: int = 64
    max_steps: int = 50
    max_model_mb: int = 1000
    max_seconds: int = 900
