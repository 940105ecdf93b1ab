"""The curriculum of FETA-Pro: the images, length and order of the warm-up's stages."""

from dataclasses import dataclass

from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.schedulers.scheduling_utils import SchedulerMixin
from diffusers.utils import BaseOutput

from .curricula import CURRICULA


@dataclass
class WarmupStage(BaseOutput):
    """
    One stage of the warm-up, as returned by [`FrequencyWarmupScheduler.step`].

    Args:
        name (`str`):
            `"spatial"` (noisy central images), `"frequency"` (images of a generator fitted to the noisy frequency
            features) or `"mix"` (half of each batch from each).
        num_steps (`int`):
            Number of training steps of the whole stage.
        batch_size (`int`):
            Number of images in each batch.
        learning_rate (`float`):
            Learning rate, constant over the stage.
    """

    name: str
    num_steps: int
    batch_size: int
    learning_rate: float

    def __post_init__(self):
        super().__post_init__()
        if self.num_steps < 1:
            raise ValueError(f"The {self.name} stage needs at least 1 step, got {self.num_steps}.")
        smallest_batch = 2 if self.name == "mix" else 1
        if self.batch_size < smallest_batch:
            raise ValueError(
                f"The {self.name} stage needs a batch size of at least {smallest_batch}, got {self.batch_size}."
            )
        if not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"The {self.name} stage needs a finite learning rate above 0, got {self.learning_rate}.")


class FrequencyWarmupScheduler(SchedulerMixin, ConfigMixin):  # type: ignore[misc]
    """
    The spatial-frequency curriculum that warms up a diffusion model before DP-SGD: first central images, which are
    easy, then images with the frequency features. It schedules training steps, not denoising steps, and reads no
    image. Stages train on noisy answers only, so the warm-up itself costs no privacy.

    Proposed as FETA-Pro in "From Easy to Hard++: Promoting Differentially Private Image Synthesis Through
    Spatial-Frequency Curriculum" (https://huggingface.co/papers/2601.06368), Algorithm 2. The other curricula are the
    ablations of its Figure 5. The defaults are the stages of the paper's code on MNIST: 1,000 epochs over 50 central
    images, 10 epochs over 60,000 generated ones.

    `save_pretrained` and `from_pretrained` keep the curriculum as provenance, without the position in it.

    Args:
        curriculum (`str`, defaults to `"spatial,frequency"`):
            `"spatial,frequency"` (FETA-Pro), `"frequency,spatial"`, `"mix"` (one stage as long as both, with the
            frequency stage's batch size and learning rate; each batch is half spatial, half frequency), `"frequency"`,
            `"spatial"` (DP-FETA) or `"none"` (DPDM).
        spatial_steps (`int`, defaults to 1000):
            Number of training steps on central images.
        spatial_batch_size (`int`, defaults to 50):
            Batch size of the spatial stage.
        spatial_learning_rate (`float`, defaults to 3e-4):
            Learning rate of the spatial stage.
        frequency_steps (`int`, defaults to 2340):
            Number of training steps on the images of the auxiliary generator.
        frequency_batch_size (`int`, defaults to 256):
            Batch size of the frequency stage.
        frequency_learning_rate (`float`, defaults to 3e-4):
            Learning rate of the frequency stage.

    Attributes:
        stages (`list[WarmupStage]`): Stages in order.
        train_step (`int`): Number of steps taken so far.

    Raises:
        ValueError: The curriculum is unknown, or a stage has a length, batch size or learning rate that is not
            positive.

    Example:

    ```py
    >>> scheduler = FrequencyWarmupScheduler(spatial_steps=1000, frequency_steps=3000)
    >>> [(stage.name, stage.num_steps) for stage in scheduler.stages]
    [('spatial', 1000), ('frequency', 3000)]
    >>> scheduler.step().name
    'spatial'
    ```
    """

    order = 1

    @register_to_config
    def __init__(
        self,
        curriculum: str = "spatial,frequency",
        spatial_steps: int = 1000,
        spatial_batch_size: int = 50,
        spatial_learning_rate: float = 3e-4,
        frequency_steps: int = 2340,
        frequency_batch_size: int = 256,
        frequency_learning_rate: float = 3e-4,
    ):
        if curriculum not in CURRICULA:
            raise ValueError(f"`curriculum` must be one of {', '.join(map(repr, CURRICULA))}, got {curriculum!r}.")
        values = {
            "spatial": (spatial_steps, spatial_batch_size, spatial_learning_rate),
            "frequency": (frequency_steps, frequency_batch_size, frequency_learning_rate),
            "mix": (spatial_steps + frequency_steps, frequency_batch_size, frequency_learning_rate),
        }
        self.stages = [WarmupStage(name, *values[name]) for name in CURRICULA[curriculum]]
        self.train_step = 0

    @property
    def num_train_steps(self) -> int:
        """Number of training steps of all stages together."""
        return sum(stage.num_steps for stage in self.stages)

    def step(self) -> WarmupStage:
        """
        Returns the stage of the next training step, and counts that step as taken.

        Returns:
            [`WarmupStage`]: An entry of `stages`.

        Raises:
            RuntimeError: All steps have been taken.
        """
        first_step = 0
        for stage in self.stages:
            if self.train_step < first_step + stage.num_steps:
                self.train_step += 1
                return stage
            first_step += stage.num_steps
        raise RuntimeError(f"The warm-up is over after {self.num_train_steps} training steps.")

    def needs(self, query: str) -> bool:
        """
        Tells whether the curriculum needs a query to the sensitive images; other queries are neither asked nor paid.

        Args:
            query (`str`): `"spatial"` (central images) or `"frequency"` (frequency features).

        Returns:
            `bool`
        """
        return any(stage.name in (query, "mix") for stage in self.stages)

    def split_batch(self, stage: WarmupStage) -> tuple[int, int]:
        """
        Returns the numbers of central images and of images of the auxiliary generator in a batch.

        Args:
            stage ([`WarmupStage`]): Stage returned by `step`.

        Returns:
            `tuple[int, int]`: Numbers of spatial and of frequency images; they sum to `stage.batch_size`. In an odd
            batch of the stage `"mix"` the larger half is frequency.
        """
        num_spatial = {"spatial": stage.batch_size, "frequency": 0, "mix": stage.batch_size // 2}[stage.name]
        return num_spatial, stage.batch_size - num_spatial
