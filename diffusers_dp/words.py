# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Words and bounds that many rooms share: those of `verify.py`, which stands alone."""

from .verify import BASE_FILE as BASE_FILE
from .verify import MOST_EPSILON as MOST_EPSILON
from .verify import RECEIPT_NAME as RECEIPT_NAME
