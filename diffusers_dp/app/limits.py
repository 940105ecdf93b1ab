# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Limits on visitors' requests, and on what the page keeps."""

PIPELINES_KEPT = 2  # the number that a comparison needs
MODELS_FETCHED = 20  # models fetched by typed names until a restart, because each uses disk space
OPENED_AT_ONCE = 8  # models that visitors have open, fetched and verified
QUEUE_LENGTH = 128
SESSIONS_KEPT = 128
SECONDS_KEPT = 1800  # time during which a visitor can save drawn images
LARGEST_SIDE = 512  # pixels of an image, from the model's config
MOST_CLASSES = 10_000  # number of classes, from the model's config
