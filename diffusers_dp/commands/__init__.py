# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The commands of `diffusers-dp`, one module each: `add_arguments(parser)` and `run(args)`."""

#: Modules of commands that are elsewhere, for a room above this one has them.
PLACES = {"app": "diffusers_dp.app.server"}
