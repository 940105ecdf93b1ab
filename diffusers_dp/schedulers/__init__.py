from .scheduling_frequency_warmup import FrequencyWarmupScheduler, WarmupStage


__all__ = ["FrequencyWarmupScheduler", "WarmupStage"]
