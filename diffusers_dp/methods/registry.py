# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Every method, and whether its guarantee is proven. No torch.

A status belongs to a method as it is, or will be, implemented here: with the door's sums, this library's accounting,
and the assumptions that a receipt lists. A method whose published proof does not hold is listed as well
(`methods.yaml`), so that nobody has to find out again. `docs/guarantee.md` has the proofs.
"""

from importlib import import_module

from .method import Method, said_of_methods


#: Files of methods that are built, in the order in which they are listed.
_FILES = (
    "feta_pro", "method_flags", "latents", "mean_embedding", "private_evolution", "moments", "psg", "dp_gan",
    "teachers",
)  # fmt: skip
_BUILT = {method.name: method for file in _FILES for method in import_module(f"{__package__}.{file}").METHODS}
_NOT_BUILT = {name: Method(**said) for name, said in said_of_methods().items() if name not in _BUILT}
METHODS: dict[str, Method] = _BUILT | _NOT_BUILT
