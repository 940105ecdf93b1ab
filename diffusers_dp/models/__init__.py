from .denoiser import EDMDenoiser, EDMLoss
from .feature_generator import FeatureGenerator, frequency_matching_loss


__all__ = ["EDMDenoiser", "EDMLoss", "FeatureGenerator", "frequency_matching_loss"]
