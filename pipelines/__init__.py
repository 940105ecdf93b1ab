from .pipeline_dp_image import DPImagePipeline


__all__ = ["DPImagePipeline"]
