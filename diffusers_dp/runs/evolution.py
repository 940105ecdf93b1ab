# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The generations of Private Evolution: candidates, their children, and where they come from. No private image comes
near: all of it is public, or follows from noisy votes."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers

from ..data.public_images import images_by_class
from ..errors import UsageError
from ..files.canonical import canonical_json
from ..methods.flag import split_list
from ..methods.private_evolution import CLASS
from ..models.font_candidates import FontCandidates, find_fonts
from ..models.pipeline_candidates import PipelineCandidates, TextToImageCandidates, at_once
from ..models.variations import CandidateGenerator, PublicImageCandidates
from ..queries.one_image import one_by_one
from ..queries.pooled import PooledFeatures
from ..queries.votes import OF_UNIT_VECTORS, NearestCandidates, draw_parents, embed_all, hash_tensor
from ..release.allow_list import read_index
from ..release.components import UNET, component
from ..release.hub import fetch_release
from ..release.latent_base import load_base
from .diffusion_run import build_pipeline
from .pretrained import load_pretrained, priced_images
from .prior_release import cost_of_start


if TYPE_CHECKING:
    from ..methods.private_evolution import PrivateEvolutionConfig
    from ..privacy.sensitive import SensitiveImages
    from ..queries.mean_features import Embedding, FeatureMap
    from ..queries.votes import CaptionVotes, PooledPixels
    from .run import TrainingRun

    Run = TrainingRun[PrivateEvolutionConfig]

FLAG = "--generator"  # also of a pipeline that --pretrained_model_name_or_path names, which needs it
MOST_TOLD = 20  # prompts in a receipt, which has the hash of all
MADE, LOOKAHEAD, PARENTS = range(3)  # draws of a generation, each with numbers of its own


@dataclass(frozen=True)
class Population:
    """
    The candidates of one generation. Classes take turns, and have the same public number of candidates. They are kept
    on disk, in batches that the generator made together, and only some batches are in memory.

    Args:
        run (`TrainingRun`): Keeps what is made, for a run that goes on.
        proposer (`CandidateGenerator`): Who makes them.
        number (`int`): Candidates of each class.
        num_classes (`int`): 1 without classes.
        generation (`int`): From 1 on.
        parents (`Population`, *optional*): The generation before.
        drawn (`torch.Tensor` of int64, shape `[number * num_classes]`, *optional*): Place of the parent of each.
        strength (`float`): How far they are from their parents.
    """

    run: "Run"
    proposer: CandidateGenerator
    number: int
    num_classes: int
    generation: int = 1
    parents: "Population | None" = None
    drawn: torch.Tensor | None = None
    strength: float = 0.0

    @property
    def labels(self) -> torch.Tensor:
        """Class of each candidate, int64."""
        return torch.arange(self.number * self.num_classes) % self.num_classes

    def parts(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Places and candidates of one batch after the other, in the first process alone. Those that no earlier start
        made are made, and kept."""
        place, total = 0, len(self.labels)
        with self.run.processes.bar(total=total, desc=f"Generation {self.generation}", unit="candidate") as bar:
            while place < total:
                part = self._kept(place)
                yield slice(place, place + len(part)), part
                place += len(part)
                bar.update(len(part))

    def images(self) -> torch.Tensor:
        """uint8, shape `[n * classes, C, H, W]`, as they are released."""
        return self.run.processes.on_first(
            lambda: torch.cat([self.proposer.images(part, self.labels[places]) for places, part in self.parts()])
        )

    def embedded(
        self, embed: "FeatureMap | PooledPixels", lookahead: int, strength: float, device: torch.device | str = "cpu"
    ) -> tuple[torch.Tensor, str]:
        """
        What stands for each candidate when images vote. It is kept, too.

        Args:
            embed (`FeatureMap` or `PooledPixels`): Images to `[b, D]`.
            lookahead (`int`): How many children are embedded, of which it is the mean; 0: the candidate is.
            strength (`float`): Strength of such children.
            device (`torch.device`): Where it is returned.

        Returns:
            `torch.Tensor` of shape `[classes, n, D]`, and the hash of the candidates as of one tensor.
        """
        seeds, facts = self._seeds(LOOKAHEAD, lookahead), {"lookahead": lookahead, "lookahead_strength": strength}

        def rows_of(places: slice, part: torch.Tensor) -> torch.Tensor:
            labels = self.labels[places]
            children = (self.proposer.vary(part, labels, strength, own[places]) for own in seeds)
            shown = children if lookahead else [part]
            here = self.run.processes.device
            rows = (embed_all(embed, self.proposer.images(each, labels), here).cpu() for each in shown)
            mean = reduce(torch.add, (each / max(1, lookahead) for each in rows))
            if not mean.isfinite().all():
                raise UsageError("--embedding_network makes no numbers of a candidate; choose another network.")
            return mean

        def all_rows() -> tuple[torch.Tensor, str]:
            rows, digest = [], hashlib.sha256()
            for places, part in self.parts():
                digest.update(part.numpy().data)
                meaning = {**self._meaning, **facts, "embedding": embed.facts, "sha256": hash_tensor(part)}
                name = f"embedded_{self.generation}/{places.start:08}"
                rows.append(self.run.kept(name, partial(rows_of, places, part), meaning))
            return torch.cat(rows), digest.hexdigest()

        rows, sha256 = self.run.processes.on_first(all_rows)
        return rows.view(-1, self.num_classes, rows.shape[1]).transpose(0, 1).to(device), sha256

    def children(self, votes: torch.Tensor, number: int, strength: float) -> "Population":
        """
        The next generation: parents are drawn by their votes, and varied.

        Args:
            votes (`torch.Tensor` of shape `[classes, n]`): Noisy, at least 0.
            number (`int`): Children of each class.
            strength (`float`): How far they go.
        """
        drawn = draw_parents(votes, number, self._generator(PARENTS))
        places = (drawn.T * self.num_classes + torch.arange(self.num_classes)).flatten()
        after = self.generation + 1
        return replace(self, number=number, generation=after, parents=self, drawn=places, strength=strength)

    def _kept(self, place: int) -> torch.Tensor:
        """The batch that begins at this place."""
        return self.run.kept(f"candidates_{self.generation}/{place:08}", partial(self._made, place), self._meaning)

    def _made(self, place: int) -> torch.Tensor:
        places = slice(place, place + (self.proposer.batch_size or len(self.labels)))
        labels, seeds = self.labels[places], self._seeds(MADE)[0, places]
        if self.parents is None or self.drawn is None:
            return self.proposer.initial(labels, seeds)
        return self.proposer.vary(self.parents._at(self.drawn[places]), labels, self.strength, seeds)

    def _at(self, places: torch.Tensor) -> torch.Tensor:
        """Candidates at these places, int64 `[b]`, of a generation that is there."""
        folder = self.run.folder.private / f"candidates_{self.generation}"
        begins = torch.tensor(sorted(int(each.name) for each in folder.glob("[0-9]*")))
        batches = torch.bucketize(places, begins, right=True) - 1
        opened = {batch: self._kept(int(begins[batch])) for batch in batches.unique().tolist()}
        within = (places - begins[batches]).tolist()
        return torch.stack([opened[batch][place] for batch, place in zip(batches.tolist(), within, strict=True)])

    @property
    def _meaning(self) -> dict[str, Any]:
        """What so many candidates of a class follow from, besides the candidates and the votes before."""
        inputs = [{key: each[key] for key in each if key != "licence"} for each in self.proposer.public_inputs]
        facts = {**self.run.config.training_facts, **self.proposer.facts}
        return {"number": self.number, **facts, "public_inputs": inputs}

    def _seeds(self, draw: int, times: int = 1) -> torch.Tensor:
        """One for each candidate, int64 `[times, n * classes]`."""
        return torch.randint(2**62, (times, len(self.labels)), generator=self._generator(draw))

    def _generator(self, draw: int) -> torch.Generator:
        """Public numbers of this generation, the same whenever they are drawn."""
        words = np.random.SeedSequence([self.run.config.seed, self.generation, draw]).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(words[0] >> np.uint64(1)))


def embedded_images(run: "Run", network: "FeatureMap") -> "tuple[SensitiveImages, Embedding]":
    """A door to what a network sees of each image alone, computed once, and what a vote reads of such a row."""
    door = run.images.map(
        partial(_seen_alone, network), shape=(1, 1, network.num_features), cache=run.folder.private / "cache",
        made_of=[run.made_of, network.facts, transformers.__version__], alone=True,
    )  # fmt: skip
    return door, lambda rows: rows.flatten(1).float()


def _seen_alone(network: "FeatureMap", images: torch.Tensor) -> torch.Tensor:
    """What a network makes of images `[b, C, H, W]` in [-1, 1]: `[b, 1, 1, D]`. A partial of it shows the door the
    network's state."""
    return one_by_one(network, images / 2 + 0.5)[:, None, None]


def proposer_of(run: "Run") -> CandidateGenerator:
    """What `--generator` names.

    Raises:
        UsageError: It is not there, or has nothing for one of the classes; or see `load_pretrained`, `load_base` and
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
        folder = fetch_release(name, revision, kind="a saved pipeline", files=("model_index.json",), flag=FLAG)
        if component(read_index(folder), "unet") != UNET:
            return _text_to_image(run, name)
        if given := [each for each in ("prompts", "captions") if getattr(config, each) is not None]:
            raise UsageError(f"--{given[0]} has no effect with {FLAG} {name}, which reads no text; leave it out.")
        model = load_pretrained(name, facts, revision=revision, **config.ledger_options)
        pipeline = build_pipeline(model, facts).to(run.processes.device)
        pipeline.unet.eval()
        return PipelineCandidates(
            pipeline, facts.image_shape, config.generator_inference_steps, public_inputs=[model.origin or {}],
            facts={"num_inference_steps": config.generator_inference_steps}, batch_size=250,
        )  # fmt: skip
    source = config.public_images
    assert source is not None
    public = run.processes.on_first(lambda: priced_images(run, source, {}))
    operations = split_list(config.variations)
    said = {"variations": list(operations), "public_margin": config.public_margin}
    by_class = images_by_class(public, names, config.public_margin)
    return PublicImageCandidates(by_class, operations, facts=said, public_inputs=[public.origin])


def _text_to_image(run: "Run", name: str) -> TextToImageCandidates:
    """The text-to-image pipeline of this name. Raises `UsageError`, see `load_base`."""
    config, facts, device = run.config, run.facts, run.processes.device
    dtype = getattr(torch, config.generator_precision or ("float32" if device.type == "cpu" else "float16"))
    base = load_base(name, config.pretrained_model_revision, flag=FLAG, dtype=dtype)
    cost = cost_of_start(base.folder, f"{FLAG} {name}", facts, **config.ledger_options)
    pipeline, factor = base.pipeline.to(device), base.pipeline.vae_scale_factor
    size = base.network.config.sample_size
    if not isinstance(size, int):  # diffusers itself would fail
        raise UsageError(f"{FLAG} {name} is not taken (the sample_size of its unet is no whole number); give another.")
    side = config.generator_resolution or min(base.sides)
    if side % factor:
        raise UsageError(f"--expert generator_resolution={side} is no multiple of {factor}, as {name} has it.")
    prompts, kind = config.read_prompts(facts.class_names), "prompts" if config.captions is None else "captions"
    settings = {
        "num_inference_steps": config.generator_inference_steps, "guidance_scale": config.generator_guidance,
    }  # fmt: skip
    said = {
        **settings, "generator_resolution": side, f"num_{kind}": len(prompts),
        f"{kind}_sha256": hashlib.sha256(canonical_json(prompts).encode()).hexdigest(),
        **({"prompts": prompts[:MOST_TOLD]} if kind == "prompts" else {"captions_for_all": config.captions_for_all}),
    }  # fmt: skip
    origin = {**base.origin, "kind": "text-to-image pipeline", **cost}
    return TextToImageCandidates(
        pipeline, facts.image_shape, facts.class_names or ("",), prompts, side, settings, facts=said,
        public_inputs=[origin], batch_size=config.generator_batch_size or at_once(side, dtype, device),
    )  # fmt: skip


def embedded_captions(run: "Run", proposer: CandidateGenerator) -> "list[tuple[CaptionVotes, torch.Tensor]]":
    """
    Each vote for captions of the plan, with what stands for the captions, `[classes or 1, captions, D]`.

    Args:
        proposer (`CandidateGenerator`): Its prompts are the captions.

    Raises:
        UsageError: See `PooledFeatures.of_texts`; no image was looked at.
    """
    config, names, network = run.config, run.facts.class_names or ("",), run.config.perceptual
    found = []
    for query in config.caption_votes:
        assert isinstance(proposer, TextToImageCandidates) and isinstance(network, PooledFeatures)
        named = names if config.names_classes else names[:1]
        texts = [caption.replace(CLASS, name) for name in named for caption in proposer.prompts]
        bar = partial(run.processes.bar, desc="Captions", unit="batch")
        rows = run.kept(
            "embedded_captions", partial(network.of_texts, texts, run.processes.device, bar),
            {"embedding": network.facts, "class_names": list(named), **proposer.facts},
        ).unflatten(0, (len(named), -1))  # fmt: skip
        found.append((replace(query, candidates_sha256=hash_tensor(rows), embedding=network.facts), rows))
    return found


def vote_for_captions(
    run: "Run", proposer: CandidateGenerator, captions: "list[tuple[CaptionVotes, torch.Tensor]]",
    images: "SensitiveImages", see: "Embedding", device: torch.device | str,
) -> None:  # fmt: skip
    """
    Asks which captions are the nearest to the images, where the plan does, and lets the proposer draw its first
    prompts by the votes.

    Args:
        proposer (`CandidateGenerator`), captions: See `embedded_captions`.
        images (`SensitiveImages`): Door to what the network sees of each image.
        see (`Embedding`): What a vote reads of such a row.
        device (`torch.device`): Where rows are compared.
    """
    names = run.facts.class_names or ("",)
    for asked, rows in captions:
        assert isinstance(proposer, TextToImageCandidates)
        nearest = NearestCandidates(see, rows.to(device), spread=OF_UNIT_VECTORS)
        proposer.votes = votes = run.ask(asked, nearest, images=images)
        best = votes.flatten().topk(min(MOST_TOLD, votes.numel()))
        places = (divmod(place, len(proposer.prompts)) for place in best.indices.tolist())
        named = names if len(votes) == len(names) else (CLASS,)  # votes of all classes together name none
        proposer.facts["winning_captions"] = [
            f"{f'{named[row]}: ' * (len(votes) > 1)}{proposer.prompts[at].replace(CLASS, named[row])} ({n:,.0f} votes)"
            for n, (row, at) in zip(best.values.tolist(), places, strict=True) if n > 0
        ]  # fmt: skip
