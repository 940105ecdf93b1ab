# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The commands of `diffusers-dp`, one module each: `add_arguments(parser)` and `run(args)`."""
