# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`python -m diffusers_dp COMMAND` is `diffusers-dp COMMAND`."""

from .cli import main


if __name__ == "__main__":
    main()
