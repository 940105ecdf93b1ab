# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Limits on visitors' requests, and on what the page keeps."""

from dataclasses import dataclass


PIPELINES_KEPT = 2  # the number that a comparison needs
MODELS_FETCHED = 20  # models fetched by typed names until a restart, because each uses disk space
OPENED_AT_ONCE = 8  # models that visitors have open, fetched and verified
QUEUE_LENGTH = 128
SESSIONS_KEPT = 128
SECONDS_KEPT = 1800  # time during which a visitor can save drawn images
LARGEST_SIDE = 512  # pixels of an image, from the model's config
MOST_CLASSES = 10_000  # number of classes, from the model's config


@dataclass(frozen=True)
class Limits:
    """
    Args:
        max_images (`int`): Maximum number of images in one drawing.
        max_steps (`int`): Maximum number of solver steps.
        max_model_mb (`int`): Maximum size of all files of a model together, checked before they are fetched.
        max_seconds (`int`): Maximum time for loading a model, and for one drawing; then its process is ended.
    """

    max_images: int = 64
    max_steps: int = 50
    max_model_mb: int = 1000
    max_seconds: int = 900
