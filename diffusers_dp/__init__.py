# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Differentially private image synthesis on Hugging Face Diffusers.

Names are loaded when they are first used (PEP 562), so that `import diffusers_dp` and everything that only counts
privacy (`accounting`, `release.receipt`) works without loading torch.
"""

from importlib import import_module
from typing import Any


__version__ = "0.1.0.dev0"

_HOMES = {
    "BudgetExceeded": "errors",
    "DPImagePipeline": "pipelines",
    "DiffusersDPError": "errors",
    "EDMDenoiser": "models.denoiser",
    "FrequencyWarmupScheduler": "schedulers.scheduling_frequency_warmup",
    "IntegrityError": "errors",
    "LedgerRow": "accounting.ledger_row",
    "PrivacyLedger": "accounting.ledger",
    "SensitiveImages": "privacy.sensitive",
    "UsageError": "errors",
    "load_verified": "release.loading",
}

__all__ = ["__version__"]
__all__ += sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
