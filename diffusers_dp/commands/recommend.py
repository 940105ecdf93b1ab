# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp recommend`: another name of `diffusers-dp plan`."""

from .plan import add_arguments, run


__all__ = ["add_arguments", "run"]
