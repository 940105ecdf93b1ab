# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Teachers behind the door: one network for each share of the units, and noisy sums of what they say of public inputs
(Chen et al. 2020, GS-WGAN; Jordon et al. 2019, PATE-GAN).

The share of a unit follows from its own id by a public key, so changing one unit changes the records of one share.
Its network, and all that it ever says, may then change arbitrarily. In each round the vector of one share moves from
anywhere in a ball of radius C to anywhere in it, so the sum moves by at most 2 C. Nothing is amplified: each round is
one Gaussian mechanism on all shares.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from ..accounting.ledger_row import gradient_row
from ..errors import UsageError
from ..files.sealed_folder import clear_replaced, find_replaced, open_sealed, seal
from ..gradients.step import Gradients, clip_factors
from ..mechanisms import Mechanism, Shares
from ..randomness.keyed_hash import group_of, has_id
from .kept_state import KeptState
from .kinds import OF_TEACHERS, passage_of
from .records import scaled
from .sensitive import SensitiveImages, _secret_torch_draws


if TYPE_CHECKING:
    from ..data.images import ImageArrays

#: A teacher as losses see it: images and labels (or `None`) to its output.
Teacher = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
CHUNK = 100  # shares that are computed together; changes memory, never the distribution of an answer
ANSWER = "answer"


@dataclass(frozen=True)
class Teaching:
    """How a teacher is made, learns on its share, and judges public inputs.

    All callables are functions of their arguments alone and draw nothing. They see one share at a time.

    Args:
        new (`Callable`): Returns a new network, called with images and labels. It has no buffers.
        loss (`Callable`): Teacher, views of real images `[b, ...]` with labels `[b]` or `None`, public inputs
            `[n, ...]` with labels `[n]` or `None`, to a number that the teacher lowers.
        blame (`Callable`): Teacher, inputs and labels, to a vector for each input, `[n, d]`. The door clips the
            vectors of a share together. With `votes`, scores `[n, choices]`, or `[n, queries, choices]`.
        steps (`int`): Adam steps of each teacher in each round, the same number for all.
        batch_size (`int`): Images of such a step, drawn from the share with replacement.
        learning_rate (`float`): Learning rate of Adam.
        first_steps (`int`, defaults to 0): Further steps before the first round.
        view (`Callable`, *optional*): Images `[b, C, H, W]` of one share, in [-1, 1], to what its teacher sees of
            them; by default the images.
        input_noise (`float`, defaults to 0): Standard deviation of noise on each view, drawn from the secret source:
            it smooths what a teacher learns of a small share.
        votes (`bool`, defaults to `False`): Each teacher casts one vote per query, for the choice with the highest
            score. Votes of a share move by sqrt(2) per query.
    """

    new: Callable[[], nn.Module]
    loss: Callable[[Teacher, torch.Tensor, Any, torch.Tensor, Any], torch.Tensor]
    blame: Callable[[Teacher, torch.Tensor, Any], torch.Tensor]
    steps: int
    batch_size: int
    learning_rate: float
    first_steps: int = 0
    view: Callable[[torch.Tensor], torch.Tensor] | None = None
    input_noise: float = 0.0
    votes: bool = False


@dataclass
class _Chunk:
    """Teachers that are computed together: weights `[s, ...]`, their optimizer, and where the records of their shares
    are."""

    shares: list[int]
    weights: dict[str, torch.Tensor]
    optimizer: torch.optim.Optimizer
    first: torch.Tensor
    counts: torch.Tensor


class Teachers:
    """A network for each share of the units of a door, which answer with noisy sums as `SensitiveImages` does.

    Args:
        door (`SensitiveImages`): To the units that are shared out; its ledger is charged.
        teaching (`Teaching`): How teachers are made and learn.
        shares (`Mechanism`): One of `Shares`, with their public number and key.
        records (`ImageArrays`, *optional*): All images, needed with several processes. Each process reads those of
            its own shares.
        folder (`Path`, *optional*): Private folder that keeps the teachers between starts.

    Raises:
        ValueError: There are more shares than units, units without ids, or several processes without `records`.
    """

    def __init__(
        self, door: SensitiveImages, teaching: Teaching, shares: Mechanism, *, records: "ImageArrays | None" = None,
        folder: Path | None = None,
    ):  # fmt: skip
        door._refuse_shut()
        number = shares.num_groups
        if number > door.num_units:
            raise ValueError(f"{number} shares are more than {door.num_units} units.")
        assert isinstance(shares, Shares)
        self._door, self.teaching, self.shares, self._generator = door, teaching, shares, door._generator
        self.processes, self.device = door.processes, door.device
        self.image_shape, self.class_names = door.image_shape, door.class_names
        own = list(range(self.processes.index, number, self.processes.count))
        images, labels, readable, ids = door._records.of_all_processes(records)
        self._images, self._labels = images, labels
        share = group_of(ids, number, self.shares.group_key)
        there = np.flatnonzero(has_id(ids) & readable & self._known(ids, folder))
        self._order = torch.from_numpy(there[np.argsort(share[there], kind="stable")])
        counts = np.bincount(share[there], minlength=number)
        first = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self._votes = bool(teaching.votes)
        self._base = teaching.new().to(self.device)
        if not any(True for _ in self._base.parameters()):
            raise UsageError("A teacher has nothing to learn: give it a layer with weights.")
        if any(True for _ in self._base.buffers()):
            raise UsageError("A teacher has no buffers: leave out layers that keep statistics, such as batch norm.")
        chunks = [own[start : start + CHUNK] for start in range(0, len(own), CHUNK)]
        self._chunks = [
            self._new_chunk(chunk, torch.from_numpy(first[chunk]), torch.from_numpy(counts[chunk])) for chunk in chunks
        ]
        self._rounds, self._shape = 0, torch.Size()
        index, count = self.processes.index, self.processes.count
        self._folder = None if folder is None else folder / f"teachers-{index + 1}-of-{count}"
        self._load()

    def _known(self, ids: np.ndarray, folder: Path | None) -> np.ndarray:
        """Which records had an id at the first start. Later ones count as missing: a record with another id would be
        in two shares, because the teacher of the first one remembers it."""
        if folder is None:
            return np.ones(len(ids), dtype=bool)
        place = folder / "teachers-ids"

        def read_or_make() -> torch.Tensor:
            if not place.exists():
                words = torch.from_numpy(np.frombuffer(ids.tobytes(), dtype=np.int64).copy())
                seal(place, {"ids": {"ids": words}}, {})
            return open_sealed(place)[1]["ids"]["ids"]

        first = np.frombuffer(self.processes.on_first(read_or_make).numpy().tobytes(), dtype=ids.dtype)
        known = set(first.tolist())
        return np.array([each in known for each in ids.tolist()], dtype=bool)

    @property
    def ledger(self) -> Any:
        """The door's own."""
        return self._door.ledger

    def _new_chunk(self, shares: list[int], first: torch.Tensor, counts: torch.Tensor) -> _Chunk:
        networks = [self.teaching.new() for _ in shares]
        weights = {
            name: value.detach().to(self.device).requires_grad_()
            for name, value in stack_module_state(networks)[0].items()
        }
        optimizer = torch.optim.Adam(weights.values(), lr=self.teaching.learning_rate, betas=(0.5, 0.999))
        return _Chunk(shares, weights, optimizer, first, counts)

    def noisy_gradient(
        self, model: Any, row_loss: Any, mechanism: Mechanism, *, max_grad_norm: float, normaliser: float,
        reserve_steps: int = 1,
    ) -> Gradients:  # fmt: skip
        """One round: every teacher learns on its share, judges the student's inputs, and the clipped vectors are
        added up, with noise, and divided by a public constant. It takes one step of an open reservation **before** an
        image is read.

        Sensitivity `2 max_grad_norm`: one unit is in one share. With votes `sqrt(2 n)` for n of them, where
        `max_grad_norm` is `sqrt(n)`.

        Args:
            model (`Any`): The student. `model.inputs()` draws public inputs `[n, ...]` and labels `[n]` or `None`,
                the same in every process.
            row_loss (`Teaching`): That of these teachers.
            mechanism (`Mechanism`): Of these shares, and sigma. The noise has standard deviation sigma times the
                sensitivity.
            max_grad_norm (`float`): C, which bounds the norm of all n vectors of a share together.
            normaliser (`float`): The public divisor.
            reserve_steps (`int`, defaults to 1): Rounds to reserve at once when no reservation is open.

        Returns:
            `dict[str, torch.Tensor]`: `"answer"`, float32, of the shape of what a teacher says.

        Raises:
            BudgetExceeded: The round would exceed the budget; no image was read.
            UsageError: The teaching draws random numbers, keeps something between calls, or returns no vector for
                each input.
            ValueError: The mechanism is of other shares or votes; the noise is exact; or the teaching is another one.
        """
        door, teaching = self._door, self.teaching
        door._refuse_shut()
        if row_loss is not teaching or door._exact:
            raise ValueError("Teachers answer with the teaching that they were made with, and not with exact noise.")
        inputs, labels = model.inputs()
        inputs, labels = inputs.detach().to(self.device), None if labels is None else labels.to(self.device)
        shape = self._shape = self._shape or self._try(inputs, labels)
        votes = math.prod(shape[:-1]) if self._votes else None
        if mechanism != replace(self.shares, votes=votes, noise_multiplier=mechanism.noise_multiplier):
            raise ValueError("Teachers answer for the shares that they were made with, and cast the votes that count.")
        row = gradient_row(
            door._charged(mechanism, by_label=False), max_grad_norm=max_grad_norm, normaliser=normaliser
        )
        passage = passage_of(row.mechanism, door._records, self._generator, OF_TEACHERS)
        kept = KeptState(model, teaching, self._base)
        self.ledger.take_step(row, reserve_steps=reserve_steps)
        total = torch.zeros(math.prod(shape), dtype=torch.float64, device=self.device)
        steps = teaching.steps + (0 if self._rounds else teaching.first_steps)
        door._refused = True  # until it is known that nothing is kept, whatever is raised
        with _secret_torch_draws(door.device):
            for chunk in self._chunks:
                for _ in range(steps):
                    self._learn(chunk, inputs, labels)
                total += self._vectors(chunk, inputs, labels, max_grad_norm).sum(0)
                kept.refuse_private()
        door._refused = False
        answer = passage.answer({ANSWER: total}, clip_norm=max_grad_norm, normaliser=normaliser)[ANSWER]
        self._rounds += 1
        return {ANSWER: answer.view(shape).to(torch.float32)}

    def _teacher(self, weights: dict[str, torch.Tensor]) -> Teacher:
        return lambda images, labels: functional_call(self._base, weights, (images, labels))

    def _learn(self, chunk: _Chunk, inputs: torch.Tensor, labels: torch.Tensor | None) -> None:
        """One step of each teacher. How many numbers are drawn depends on the number of shares alone."""
        teaching = self.teaching
        real, real_labels = self._drawn(chunk)
        inputs, labels = _copies(inputs, labels)

        def loss(weights: dict[str, torch.Tensor], images: torch.Tensor, classes: Any) -> torch.Tensor:
            return teaching.loss(self._teacher(weights), images, classes, inputs, labels)

        dims = (0, 0, None if real_labels is None else 0)
        gradients = vmap(grad(loss), in_dims=dims)(
            {k: w.detach() for k, w in chunk.weights.items()}, real, real_labels
        )
        for name, weight in chunk.weights.items():
            weight.grad = gradients[name]
        chunk.optimizer.step()

    def _drawn(self, chunk: _Chunk) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Views of a batch of each share, drawn with replacement, `[s, b, ...]`, and labels `[s, b]`. An empty share
        gets blanks."""
        size = self.teaching.batch_size
        luck = torch.from_numpy(self._generator.uniform(len(chunk.shares) * size)).view(-1, size)
        place = (luck * chunk.counts[:, None]).long().minimum(chunk.counts[:, None] - 1).clamp_min(0)
        there = (chunk.counts > 0)[:, None].expand_as(place)
        record = self._order[(chunk.first[:, None] + place)[there]]
        found = self._images[record]
        images = found.new_zeros(len(chunk.shares), size, *self.image_shape)
        images[there] = found
        views = self._views(scaled(images.to(self.device), -1))
        labels = None
        if self._labels is not None:
            labels = torch.zeros(len(chunk.shares), size, dtype=torch.long)
            labels[there] = self._labels[record]
            labels = labels.to(self.device)
        if self.teaching.input_noise:
            views = views + self._generator.normal(views.shape, self.teaching.input_noise, self.device)
        return views, labels

    def _views(self, images: torch.Tensor) -> torch.Tensor:
        """What teachers see of `[s, b, C, H, W]`."""
        return images if self.teaching.view is None else vmap(self.teaching.view)(images)

    def _vectors(
        self, chunk: _Chunk, inputs: torch.Tensor, labels: torch.Tensor | None, clip_norm: float
    ) -> torch.Tensor:
        """What each share says, `[s, n * d]`, no longer than `clip_norm`; zeros of an empty share, or of a teacher
        that diverged."""
        teaching = self.teaching
        inputs, labels = _copies(inputs, labels)

        def judged(weights: dict[str, torch.Tensor]) -> torch.Tensor:
            return teaching.blame(self._teacher(weights), inputs, labels)

        found = vmap(judged)({name: weight.detach() for name, weight in chunk.weights.items()}).detach()
        if found.shape[1:] != self._shape:
            raise UsageError("What a teacher says must have the same shape in each round: no answer was given.")
        finite = found.isfinite().flatten(1).all(1)
        if self._votes:
            found = nn.functional.one_hot(found.argmax(-1), found.shape[-1])
        vectors = found.flatten(1).double()  # float32 factors of long vectors are subnormal
        factors = clip_factors(vectors.square().sum(1), clip_norm)
        counts = (chunk.counts > 0).to(self.device) & finite & (factors > 0)
        return torch.where(counts[:, None], vectors * factors[:, None], 0.0)

    def _try(self, inputs: torch.Tensor, labels: torch.Tensor | None) -> torch.Size:
        """The shape of what a teacher says. Tries the teaching, on two shares of public noise; nothing is spent."""
        teaching, kept = self.teaching, KeptState(self.teaching, self._base)
        size = teaching.batch_size
        source = torch.Generator().manual_seed(0)
        classes = None if self._labels is None else torch.zeros(2, size, dtype=torch.long, device=self.device)
        weights = {name: value.detach().expand(2, *value.shape) for name, value in self._base.named_parameters()}

        inputs, labels = _copies(inputs, labels)

        def loss(weights: dict[str, torch.Tensor], images: torch.Tensor, real_labels: Any) -> torch.Tensor:
            found = teaching.loss(self._teacher(weights), images, real_labels, inputs, labels)
            if found.shape != () or not found.is_floating_point():
                raise UsageError("The loss of a teacher must be one number.")
            return found

        def judged(weights: dict[str, torch.Tensor]) -> torch.Tensor:
            return teaching.blame(self._teacher(weights), inputs, labels)

        dims = (0, 0, None if classes is None else 0)
        try:
            noise = self._views((torch.rand(2, size, *self.image_shape, generator=source) * 2 - 1).to(self.device))
            vmap(grad(loss), in_dims=dims)(weights, noise, classes)
            found = vmap(judged)(weights)
        except RuntimeError as error:
            if "random" in str(error):
                raise UsageError(
                    "A teacher draws random numbers: compute its loss from the arguments alone."
                ) from None
            raise UsageError(
                "A teacher cannot be computed beside others by torch.func.vmap: change nothing in place, and branch "
                f"on no value ({str(error).splitlines()[0]})."
            ) from None
        is_vector = isinstance(found, torch.Tensor) and found.is_floating_point() and found.numel() > 0
        if not is_vector or found.dim() < 3 or found.shape[1] != len(inputs):
            raise UsageError("What a teacher says must be one vector for each input, of shape (inputs, values).")
        kept.refuse_public("A teacher")
        return found.shape[1:]

    def save(self) -> None:
        """Keeps the teachers of this process for a later start, in `private/`."""
        if self._folder is None:
            return
        groups: dict[str, dict[str, torch.Tensor]] = {}
        for number, chunk in enumerate(self._chunks):
            moments = chunk.optimizer.state_dict()["state"]
            groups[f"weights-{number}"] = dict(chunk.weights)
            groups[f"adam-{number}"] = {
                f"{index}.{k}": v for index, parts in moments.items() for k, v in parts.items()
            }
        clear_replaced(self._folder)  # left by a crash
        seal(self._folder, groups, {"made_of": self._made_of, "rounds": self._rounds}, replace=True)
        clear_replaced(self._folder)

    @property
    def _made_of(self) -> dict[str, Any]:
        """What teachers of an earlier start must have been made of."""
        shapes = {name: list(value.shape) for name, value in self._base.named_parameters()}
        return {"shares": self.shares.own_facts, "chunk": CHUNK, "weights": shapes}

    def _load(self) -> None:
        """Teachers of an earlier start. Those of other shares, or of other processes, learn anew: an answer costs what
        it costs whatever a teacher has seen of its own share."""
        if self._folder is None or not find_replaced(self._folder):
            return
        state, groups = open_sealed(self._folder)
        if state.get("made_of") != self._made_of:
            return
        for number, chunk in enumerate(self._chunks):
            with torch.no_grad():
                for name, weight in chunk.weights.items():
                    weight.copy_(groups[f"weights-{number}"][name])
            moments: dict[int, dict[str, torch.Tensor]] = {}
            for key, value in groups[f"adam-{number}"].items():
                index, name = key.split(".", 1)
                moments.setdefault(int(index), {})[name] = value
            state_dict = chunk.optimizer.state_dict()
            chunk.optimizer.load_state_dict({**state_dict, "state": moments})
        self._rounds = state["rounds"]


def _copies(inputs: torch.Tensor, labels: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """For each call of a teaching its own: what one call leaves on them, no other call finds."""
    return inputs.clone(), None if labels is None else labels.clone()
