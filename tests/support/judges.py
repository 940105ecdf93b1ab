# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A run of the moments with a judge, of a few steps."""

from diffusers_dp.methods import judge
from support.flags import NUM_IMAGES


CLASSES = ["--class_names", "left,empty,right"]
ASKED = ["--resolution", "8", "--num_channels", "1", "--accountant", "rdp", "--skip_preflight", "--num_train_images"]
ASKED += [str(NUM_IMAGES), "--target_epsilon", "5", "--images_per_class", "5", "--num_parts", "1"]
FLAGS = [*CLASSES, *ASKED, "--num_frequencies", "20", "--budget", "judge=0.4"]
SHAPE = (1, 8, 8)


def few_steps(patch):
    patch.setattr(judge, "STEPS", 4)
    patch.setattr(judge, "BATCH_SIZE", 8)
