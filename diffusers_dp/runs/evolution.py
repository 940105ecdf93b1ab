# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The generations of Private Evolution: candidates, their children, and where they come from. No private image comes
near: all of it is public, or follows from noisy votes."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from ..data.public_images import PublicImages
from ..errors import UsageError
from ..methods.flag import split_list
from ..models.font_candidates import FontCandidates, find_fonts
from ..models.pipeline_candidates import PipelineCandidates
from ..models.variations import CandidateGenerator, PublicImageCandidates
from ..queries.votes import draw_parents, embed_all, hash_tensor
from .diffusion_run import build_pipeline
from .pretrained import load_pretrained, priced_images


if TYPE_CHECKING:
    from ..methods.private_evolution import PrivateEvolutionConfig
    from ..queries.mean_features import Embedding
    from .run import TrainingRun

    Run = TrainingRun[PrivateEvolutionConfig]

GENERATOR_INFERENCE_STEPS = 20  # of a public pipeline: enough for candidates, which votes then choose among
FIRST, LOOKAHEAD, PARENTS, CHILDREN = range(4)  # draws of a generation, each with numbers of its own


@dataclass(frozen=True)
class Population:
    """
    The candidates of one generation. Classes take turns, and have the same public number of candidates.

    Args:
        run (`TrainingRun`): Keeps what is made, for a run that goes on.
        proposer (`CandidateGenerator`): Who made them.
        candidates (`torch.Tensor` of shape `[n * classes, ...]`): One of each class, and so on.
        generation (`int`): From 1 on.
        num_classes (`int`): 1 without classes.
        seed (`int`): Public.
    """

    run: "Run"
    proposer: CandidateGenerator
    candidates: torch.Tensor
    generation: int
    num_classes: int
    seed: int

    @classmethod
    def first(cls, proposer: CandidateGenerator, run: "Run", number: int, seed: int) -> "Population":
        """So many candidates of each class, as the generator proposes them."""
        classes = len(run.facts.class_names or ("",))
        empty = cls(run, proposer, torch.empty(0), 1, classes, seed)
        labels = torch.arange(number * classes) % classes
        made = run.kept(
            "candidates_1", lambda: proposer.initial(labels, empty._generator(FIRST)), empty._meaning(number)
        )
        return replace(empty, candidates=made)

    @property
    def labels(self) -> torch.Tensor:
        """Class of each candidate, int64."""
        return torch.arange(len(self.candidates)) % self.num_classes

    @property
    def sha256(self) -> str:
        """Of the candidates."""
        return hash_tensor(self.candidates)

    def images(self) -> torch.Tensor:
        """uint8, shape `[n * classes, C, H, W]`."""
        return self.proposer.images(self.candidates, self.labels)

    def embedded(
        self, embed: "Embedding", lookahead: int, strength: float, device: torch.device | str = "cpu"
    ) -> torch.Tensor:
        """
        What stands for each candidate when images vote.

        Args:
            embed (`Embedding`): Images to `[b, D]`.
            lookahead (`int`): How many children are embedded, of which it is the mean; 0: the candidate is.
            strength (`float`): Strength of such children.
            device (`torch.device`): Where it is computed, and stays.

        Returns:
            `torch.Tensor` of shape `[classes, n, D]`.
        """
        if not lookahead:
            rows = embed_all(embed, self.images(), device)
        else:
            generator, labels = self._generator(LOOKAHEAD), self.labels
            rows = torch.zeros(())
            for _ in range(lookahead):
                child = self.proposer.vary(self.candidates, labels, strength, generator)
                rows = embed_all(embed, self.proposer.images(child, labels), device) / lookahead + rows.to(device)
        return rows.view(-1, self.num_classes, rows.shape[1]).transpose(0, 1)

    def children(self, votes: torch.Tensor, number: int, strength: float) -> "Population":
        """
        The next generation: parents are drawn by their votes, and varied.

        Args:
            votes (`torch.Tensor` of shape `[classes, n]`): Noisy, at least 0.
            number (`int`): Children of each class.
            strength (`float`): How far they go.
        """

        def make() -> torch.Tensor:
            drawn = draw_parents(votes, number, self._generator(PARENTS))
            places = drawn.T * self.num_classes + torch.arange(self.num_classes)
            parents, labels = self.candidates[places.flatten()], torch.arange(places.numel()) % self.num_classes
            return self.proposer.vary(parents, labels, strength, self._generator(CHILDREN))

        made = self.run.kept(f"candidates_{self.generation + 1}", make, self._meaning(number))
        return replace(self, candidates=made, generation=self.generation + 1)

    def _meaning(self, number: int) -> dict[str, Any]:
        """What so many candidates of a class follow from, besides the candidates and the votes before."""
        inputs = [{key: each[key] for key in each if key != "licence"} for each in self.proposer.public_inputs]
        facts = {**self.run.config.training_facts, **self.proposer.facts}
        return {"number": number, **facts, "public_inputs": inputs}

    def _generator(self, draw: int) -> torch.Generator:
        """Public numbers of this generation, the same whenever they are drawn."""
        words = np.random.SeedSequence([self.seed, self.generation, draw]).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(words[0] >> np.uint64(1)))


def proposer_of(run: "Run") -> CandidateGenerator:
    """What `--generator` names.

    Raises:
        UsageError: It is not there, or has nothing for one of the classes; or see `load_pretrained` and
            `priced_images`.
    """
    config, facts = run.config, run.facts
    names = facts.class_names
    if config.proposer == "text":
        if names is None:
            raise UsageError("--generator text writes the names of classes, and there are none: give another.")
        fonts, called = find_fonts(config.font_dir)
        origin = {"kind": "fonts", "name": ", ".join(called), "licence": "not stated"}
        return FontCandidates(facts.image_shape, names, fonts, facts={}, public_inputs=[origin])
    if config.proposer == "pipeline":
        name, revision = str(config.pretrained_model_name_or_path), config.pretrained_model_revision
        model = load_pretrained(name, facts, revision=revision, **config.ledger_options)
        pipeline = build_pipeline(model, facts).to(run.processes.device)
        pipeline.unet.eval()
        return PipelineCandidates(
            pipeline, facts.image_shape, GENERATOR_INFERENCE_STEPS, public_inputs=[model.origin or {}],
            facts={"generator_inference_steps": GENERATOR_INFERENCE_STEPS},
        )  # fmt: skip
    source = config.public_images
    assert source is not None
    public = run.processes.on_first(lambda: priced_images(run, source, {}))
    operations = split_list(config.variations)
    said = {"variations": list(operations), "public_margin": config.public_margin}
    by_class = images_by_class(public, names, config.public_margin)
    return PublicImageCandidates(by_class, operations, facts=said, public_inputs=[public.origin])


def images_by_class(public: PublicImages, class_names: Any, margin: int) -> list[torch.Tensor]:
    """
    The public images that the candidates of each class begin with: those of the class of the same name; all of them
    for each, where no class has such a name.

    Args:
        public (`PublicImages`): Smaller than the sensitive ones by the margin.
        class_names (sequence of `str`, *optional*): The sensitive images' label set.
        margin (`int`): Black pixels that are put around them.

    Raises:
        UsageError: Some classes have public images, and others none.
    """
    images = F.pad(public.images, (margin,) * 4)
    if class_names is None:
        return [images]
    known = public.class_names or ()
    if public.labels is None or not set(known) & set(class_names):
        return [images] * len(class_names)
    labels = public.labels
    found = [images[labels == known.index(name)] if name in known else images[:0] for name in class_names]
    for name, own in zip(class_names, found, strict=True):
        if not len(own):
            raise UsageError(
                f"The public images have none of the class '{name}', and some of others: add them, or name the public "
                "classes otherwise with --public_class_names, and all images stand for each."
            )
    return found
