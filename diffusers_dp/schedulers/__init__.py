"""The scheduler of the warm-up, loaded on first use because the list of curricula needs no torch."""

from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from .scheduling_frequency_warmup import FrequencyWarmupScheduler, WarmupStage

__all__ = ["FrequencyWarmupScheduler", "WarmupStage"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import scheduling_frequency_warmup

    return getattr(scheduling_frequency_warmup, name)
