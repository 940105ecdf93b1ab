"""The door. While a model is made, private images live in one object and leave it only as noisy sums.

Adjacency: a data set maps ids to units. Two data sets are neighbours if one unit is zeroed out: its id has nothing in
one of them, because its records are missing, damaged or without the id. A unit is an image, or all images of one
person; the number of units N and the label set are public. Both public methods below answer with noise, after writing
a row to the ledger. `map` returns a door to the outputs of a public encoder.
"""

import contextlib
import functools
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import DP_SGD, LedgerRow, gradient_row
from ..data.cache import fingerprint
from ..data.mapped import Encode, map_images
from ..data.picked_images import PickedImages
from ..distributed.processes import Processes
from ..errors import UsageError
from ..gradients.grid import ROWS, clip_steps, on_grid
from ..gradients.out_of_memory import FittingParts
from ..gradients.parts import widened
from ..gradients.step import Gradients, PhysicalBatch, RowLoss, clip_factors, clipped_gradient_sum
from ..gradients.supported import check_model
from ..mechanisms import Mechanism
from ..mechanisms.mechanism import NO_EXACT_LATENTS
from ..randomness.private_generator import PrivateGenerator
from .charged_pass import charged_pass
from .kept_state import KeptState
from .kinds import AT_THE_DOOR, passage_of
from .padded_batches import pad_batches, padded_size
from .passages import Passage
from .records import PrivateRecords, scaled
from .separate_records import Features, batch_invariant, features_of_zeros, try_loss


# Images that a query looks at together, and the most numbers of them or of their features: 64 MB in float32.
QUERY_BATCH_SIZE, QUERY_BATCH_VALUES = 500, 2**24
BAR_AFTER_SECONDS = 5


class SensitiveImages:
    """Private images behind one door.

    Args:
        images (`np.ndarray` of uint8, shape `[n, C, H, W]`, or `PickedImages`): n <= `capacity`; images that are
            missing contribute zero. May be a read-only map of a file: only images that are sampled are read. What
            `map` made of images is float16, and handed to features and losses as it is.
        labels (`np.ndarray` of int64, shape `[n]`, *optional*): Class of each image.
        readable (`np.ndarray` of bool, shape `[n]`, *optional*): False for records that could not be read: they stay
            in N and contribute zero to every answer.
        num_images (`int`): The declared, public N.
        capacity (`int`, *optional*): The most images that there can be, where they may be a few more than N because
            others are held out by their ids. Defaults to N.
        image_shape (`tuple[int, int, int]`): The declared, public (C, H, W).
        ledger (`PrivacyLedger`): The one that every answer is charged to, **before** its noise is drawn; steps before
            an image is read.
        exact (`bool`, defaults to `False`): `--noise exact`: sums and noise are whole numbers, see `gradients.grid`.
        class_names (`list[str]`, *optional*): The declared, public label set; `None` for unlabelled images.
        units (`np.ndarray` of int64, shape `[n]`, *optional*): Unit of each image, from 0 on; by default each image is
            one.
        num_units (`int`, *optional*): The declared, public number of units; needed with `units`.
        ids (`np.ndarray` of `DIGEST`, shape `[n]`, *optional*): Digest of the id of each image, or of its unit. Groups
            of units follow from it. Unset: the id of an image is its row number, and the list of rows is public.
        max_images_per_unit (`int`, defaults to 8): With `units`: how many images of a unit one query or step looks
            at, drawn at random. What a unit contributes is their mean.
        device (`torch.device`, *optional*): Where answers are computed.
        processes (`Processes`, *optional*): Those that ask together. Each holds its own share of the images
            (`load_share`), and samples from it with its own entropy, which together is Poisson sampling of all; the
            first adds the noise, once, to its part of the sum. Numbers that are declared are those of all shares
            together.

    Raises:
        UsageError: More images than `capacity` or units than `num_units`, or images of another shape.
        ValueError: `class_names` without `labels`, or the ledger is for another number of units.
    """

    def __init__(
        self, images: np.ndarray | PickedImages, labels: np.ndarray | None = None, readable: np.ndarray | None = None,
        *, num_images: int, image_shape: Sequence[int], ledger: PrivacyLedger,
        class_names: Sequence[str] | None = None, units: np.ndarray | None = None, num_units: int | None = None,
        ids: np.ndarray | None = None, capacity: int | None = None, max_images_per_unit: int = 8,
        device: torch.device | str = "cpu", processes: Processes | None = None, exact: bool = False,
    ):  # fmt: skip
        self.processes = processes or Processes()
        self.device = torch.device(device)
        self._records = records = PrivateRecords(
            images, labels, readable, num_images=num_images, image_shape=image_shape, class_names=class_names,
            units=units, num_units=num_units, ids=ids, capacity=capacity, max_images_per_unit=max_images_per_unit,
            device=self.device, processes=self.processes,
        )  # fmt: skip
        self.num_units, self.max_images_per_unit = records.num_units, max_images_per_unit
        self.image_shape, self.class_names = records.image_shape, records.class_names
        if ledger.num_images != self.num_units:
            raise ValueError(f"The ledger counts {ledger.num_images} units, but {self.num_units} are sampled from.")
        self._ledger = ledger
        self._exact = exact
        self._generator = PrivateGenerator(exact=exact)
        self._passage: Passage | None = None  # of the last step
        self._fitting = FittingParts()
        self._tried: tuple[object, object, object] = (None, None, None)  # model and loss
        self._tried_how: object = None
        self._refused = False

    def __reduce__(self):
        raise TypeError("SensitiveImages is never serialised.")

    @property
    def ledger(self) -> PrivacyLedger:
        """The one that every answer is charged to, for as long as the door exists."""
        return self._ledger

    def map(
        self, encode: Encode, *, shape: Sequence[int], cache: Path, made_of: object, batch_size: int = 8,
        alone: bool = False,
    ) -> "SensitiveImages":  # fmt: skip
        """
        A door to what a public encoder makes of each image, by itself: the same units, labels and number of records,
        so that each answer costs what it costs here. A record that the encoder fails on stays, as a blank.

        Each image is encoded once, see `data.mapped.map_images`; nothing leaves, so that nothing is spent.

        Args:
            encode (`Callable`): Images `[b, C, H, W]` in [-1, 1] to float `[b, *shape]`, each row of its own record.
            shape (`Sequence[int]`): Shape of a row, `[C, H, W]`.
            cache (`Path`): A private folder, where the rows are kept as float16.
            made_of (JSON value): Facts of the images and of all that decides what the encoder makes of one.
            batch_size (`int`, defaults to 8): Images at a time.
            alone (`bool`, defaults to `False`): Whether `encode` computes each image in a batch of one, as exact noise
                needs it: the last bits of its rows are tried.

        Raises:
            ValueError: The images are rows of an encoder.
            UsageError: The encoder mixes records, draws random numbers, keeps something between calls, or makes rows
                of another shape; or the disk is full.
            MemoryError, RuntimeError: Memory ran out, or the encoder fails on blanks.
        """
        self._refuse_shut()
        records = self._records
        if records.images.dtype != torch.uint8:
            raise ValueError("What an encoder made of images is not mapped again.")
        if self._exact and not alone:
            raise UsageError(NO_EXACT_LATENTS)
        device, encoded = torch.device("cpu") if self._exact else self.device, functools.partial(_encoded, encode)
        at_most = records.capacity if records.units is not None else self.processes.share_size(records.capacity)
        # What decides last bits. Which of two ways made a row would follow from how many records come before it.
        ways = [torch.__version__, torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()] * self._exact
        key = fingerprint([made_of, list(shape), self._exact, self.processes.index, self.processes.count, ways])
        with torch.no_grad(), _secret_torch_draws(self.device):
            row = features_of_zeros(encoded, self.image_shape, None, device=device, clip_norm=1.0, name="encoder")
            if self._exact and batch_invariant(
                encoded, self.image_shape, None, size=batch_size, device=device, name="encoder",
                processes=self.processes,
            )[0] is not encoded:  # fmt: skip
                raise UsageError(NO_EXACT_LATENTS)
            if row.shape[1] != math.prod(shape):
                raise UsageError(f"The encoder makes {row.shape[1]} numbers of an image, and {tuple(shape)} is said.")
            images, readable = map_images(
                records.images, records.readable, encode, shape=tuple(shape),
                folder=cache / f"encoded-{self.processes.index}", made_of=key, batch_size=batch_size, at_most=at_most,
                device=device, shown=self.processes.is_first,
                check=functools.partial(self._refuse_kept, KeptState(encode)),
            )  # fmt: skip
        return SensitiveImages(
            images, None if records.labels is None else records.labels.numpy(), readable,
            num_images=records.num_images, image_shape=shape, ledger=self._ledger, class_names=self.class_names,
            units=None if records.units is None else records.units.numpy(), num_units=self.num_units,
            ids=records.ids, capacity=records.capacity, max_images_per_unit=self.max_images_per_unit,
            device=self.device, processes=self.processes, exact=self._exact,
        )  # fmt: skip

    def noisy_sum(
        self,
        features: Features,
        mechanism: Mechanism,
        *,
        clip_norm: float,
        name: str,
        repeats: int = 1,
        query: dict | None = None,
    ) -> torch.Tensor:
        """A noisy sum of features, asked `repeats` times: `sum_i clip(features(x_i, y_i)) + N(0, (sigma *
        clip_norm)^2)`.

        Zeroing out one image moves the sum by at most `clip_norm` in L2 norm. The door clips each row of features and
        replaces what is not finite by zero. Whether a row is of one record alone, it tries on records of noise first.

        With `by_label` each image is added to the row of its class alone, so the bound holds for all rows together
        (parallel composition, FETA-Pro Theorem 3). A unit of several images adds the mean of their clipped features,
        each in the row of its class: a mean of vectors no longer than `clip_norm` is no longer.

        Terms and noise are added up in float64; the sum is rounded to float32 when all noise is on it. With `exact`
        both are whole numbers, see `gradients.grid`.

        Args:
            features (`Callable`): Images `[b, C, H, W]` in [0, 1] (of a mapped door: its rows) and labels, int64 `[b]`
                or `None` where there are none, to features `[b, d]`, each row a function of its own record. All of
                them are on this door's device; with exact noise, on the CPU.
            mechanism (`Mechanism`): Who takes part in each ask, and sigma; `by_label` asks for one sum for each class
                instead of one for all. The door states exact noise and units itself.
            clip_norm (`float`): Bound on the L2 norm of a feature vector; the sensitivity.
            name (`str`): Name of the ledger's row.
            repeats (`int`, defaults to 1): Independent asks under one row, each with its own sample.
            query (`dict`, *optional*): Public facts about the query for the ledger.

        Returns:
            `torch.Tensor` of shape `[repeats, classes, d]` (`classes` = 1 without `by_label`), float32. Unscaled:
            divide by a public constant.

        Raises:
            BudgetExceeded: The answer would exceed the budget; nothing was asked.
            UsageError: The features mix records, draw random numbers, or keep state between calls; no answer was
                given.
            ValueError: The mechanism is none of a query, or `query` states what the mechanism says.
        """
        self._refuse_shut()
        records = self._records
        num_classes = None if self.class_names is None else len(self.class_names)
        num_rows = num_classes if mechanism.by_label and num_classes is not None else 1
        row = LedgerRow(
            name, self._charged(mechanism, by_label=num_rows > 1 and records.units is None), repeats,
            {**(query or {}), "clip_norm": clip_norm},
        )  # fmt: skip
        if row.mechanism.one_stream:
            raise ValueError("A query has no stream of steps.")
        passage = passage_of(row.mechanism, records, self._generator, AT_THE_DOOR)
        # A GPU may add in another order in each call, so that no trial shows that bits stay.
        device = torch.device("cpu") if self._exact else self.device
        with torch.no_grad(), _secret_torch_draws(self.device):
            blank = features_of_zeros(
                features, self.image_shape, num_classes, device=device, clip_norm=clip_norm, name=name
            )
        if blank.device.type != device.type:
            raise UsageError(
                f"The features of {name!r} are computed on {blank.device.type}, and the images are on {device.type}: "
                "return rows on the device of the images."
            )
        size = min(QUERY_BATCH_SIZE, max(1, QUERY_BATCH_VALUES // max(blank.shape[1], math.prod(self.image_shape))))
        steady, kept = features, KeptState(features)  # as the trial left them
        if self._exact:
            clip_steps(blank.shape[1], 1 if records.units is None else self.max_images_per_unit)
            most_units = -(-records.places // self.processes.count)  # of a process: the same batches in each
            size = min(padded_size(size), -(-most_units // ROWS) * ROWS)
            with torch.no_grad(), _secret_torch_draws(self.device):
                steady, size = batch_invariant(
                    features, self.image_shape, num_classes, size=size, device=device, name=name,
                    processes=self.processes,
                )  # fmt: skip
            kept.refuse_public(f"The features of {name!r}")

        def exact_sum() -> torch.Tensor:
            """Of one sample, over the records of this process."""
            total = widened(blank.new_zeros(num_rows, blank.shape[1]))  # an empty sample has this shape too
            batches = records.batches_for_query(passage.units(0), size, self._generator, device)
            # Else a bar would tell how many were drawn or exist.
            if row.sampling_probability == 1 and records.units is None:
                batches = self._with_bar(batches, f"Asking {name}")
            batches = pad_batches(batches, size) if self._exact else batches
            for images, labels, counted, images_of_unit in batches:
                # No graph: along one, gradients of private images would reach the parameters of the features.
                with torch.no_grad(), _secret_torch_draws(self.device):
                    rows = steady(scaled(images, 0), None if labels is None else labels.clone())
                if rows.shape != (len(images), blank.shape[1]):  # else one row would be repeated for all images
                    raise UsageError(
                        f"The features of {name!r} must be one row of numbers for each image, of the same length in "
                        "every batch: the run stops, and no answer was given."
                    )
                rows = rows.to(blank.dtype)  # squares of other types overflow
                if self._exact:
                    rows = on_grid(rows, clip_norm, counted, images_of_unit)
                else:
                    rows = torch.where(counted[:, None], _clip(rows, clip_norm), 0.0)
                    if images_of_unit is not None:
                        rows = rows / images_of_unit[:, None].to(rows.device)
                if labels is None or num_rows == 1:
                    labels = torch.zeros(len(images), dtype=torch.long, device=device)
                # By batches: fewer roundings follow each other.
                total += torch.zeros_like(total).index_add_(0, labels.to(total.device), widened(rows))
            return total

        def exact_sums() -> list[torch.Tensor]:
            totals = [exact_sum() for _ in range(repeats)]
            self._refuse_kept(kept)
            return totals

        totals, reservation = charged_pass(self._ledger, row, self.processes, exact_sums)
        answers = []
        while totals:
            covered = passage.answer({name: totals.pop(0)}, clip_norm=clip_norm, normaliser=1)[name]
            answers.append(covered.to(self.device, torch.float32))  # with all of its noise
        answer = torch.stack(answers)
        self._ledger.executed(reservation, repeats)
        return answer

    def noisy_gradient(
        self,
        model: nn.Module,
        row_loss: RowLoss,
        mechanism: Mechanism,
        *,
        max_grad_norm: float,
        normaliser: float,
        noise_multiplicity: int,
        max_physical_batch_size: int,
        reserve_steps: int = 1,
        name: str = DP_SGD,
    ) -> Gradients:
        """One noisy sum of clipped gradients over a Poisson sample, divided by a public constant: the gradient of
        DP-SGD. It takes one step of an open reservation **before** an image is read.

        Sensitivity `max_grad_norm` (see `clipped_gradient_sum`). An empty sample takes the same path: zero plus noise.

        Args:
            model (`nn.Module`): Its trainable parameters get a gradient; nothing else of it changes.
            row_loss (`Callable`): Model, images `[rows, C, H, W]` in [-1, 1], labels and a `PrivateGenerator`, from
                which all that is random is drawn, to one loss per row.
            mechanism (`Mechanism`): Who takes part in a step, and sigma: the noise has standard deviation sigma * C.
                The door states exact noise and units itself.
            max_grad_norm (`float`): Clip norm C.
            normaliser (`float`): The public divisor, the expected batch size qN.
            noise_multiplicity (`int`): K rows per image, averaged before clipping.
            max_physical_batch_size (`int`): Images at a time; changes memory, never the answer.
            reserve_steps (`int`, defaults to 1): Steps to reserve at once when no reservation is open.
            name (`str`): Name of the ledger's row.

        Returns:
            `dict[str, torch.Tensor]`: Parameter name to noisy gradient.

        Raises:
            BudgetExceeded: The step would exceed the budget; nothing was looked at.
            UsageError: The release has a stream of another mechanism.
            UsageError: The model or the loss keeps something between calls; no answer was given. With `exact`, the
                gradient of an image follows the images beside it; nothing was spent.
            UnsupportedModel: The model has no exact gradients per image (`check_model`); nothing was spent.
            ValueError: The mechanism is none of gradients, or needs ids of units. With `exact`, there are units of
                several images.
        """
        self._refuse_shut()
        row = gradient_row(
            self._charged(mechanism, by_label=False), max_grad_norm=max_grad_norm, normaliser=normaliser,
            noise_multiplicity=noise_multiplicity, name=name,
        )  # fmt: skip
        if self._exact and self._records.units is not None:
            raise ValueError("The proof to the bit needs batches of a public shape, of one image a unit.")
        if self._passage is None or self._passage.mechanism != row.mechanism:
            self._passage = passage_of(row.mechanism, self._records, self._generator, AT_THE_DOOR)
        check_model(model)
        kept = self._state_of(model, row_loss, noise_multiplicity, max_physical_batch_size)
        position = self._ledger.take_step(row, reserve_steps=reserve_steps)
        size = padded_size(max_physical_batch_size) if self._exact else max_physical_batch_size
        batches = self._records.batches_for_gradients(self._passage.units(position), size, self._generator)
        batches = pad_batches(batches, size) if self._exact else batches
        fitted = self._fitting.at_most
        with _secret_torch_draws(self.device):
            total = self._fitting.total(
                functools.partial(
                    clipped_gradient_sum,
                    model,
                    row_loss,
                    max_grad_norm=max_grad_norm,
                    noise_multiplicity=noise_multiplicity,
                    generator=self._generator,
                    exact=self._exact,
                ),
                ((scaled(images, -1), labels, counted, units) for images, labels, counted, units in batches),
            )
        self._refuse_kept(kept)
        if self._exact and self._fitting.at_most != fitted:  # batches have two public shapes: it tells no size
            raise UsageError(
                "Memory ran out after the trial of --noise exact, which has not tried smaller batches: lower "
                "--max_physical_batch_size."
            )
        answer = self._passage.answer(total, clip_norm=max_grad_norm, normaliser=normaliser, position=position)
        return _typed(answer, model)

    def _refuse_kept(self, kept: KeptState) -> None:
        """Refuses what kept something of the images, now and from now on: whoever catches the error has it still."""
        self._refused = True
        kept.refuse_private()
        self._refused = False

    def _refuse_shut(self) -> None:
        if self._refused:
            raise UsageError(
                "This door refused a model, a loss or a feature that keeps something of the images, and gives no more "
                "answers: start another --output_dir."
            )

    def _state_of(self, model: nn.Module, row_loss: RowLoss, noise_multiplicity: int, at_most: int) -> KeptState:
        """Notes the state of a model and its loss. A pair that is new here is tried first, `at_most` images at a
        time."""
        pair = model, getattr(row_loss, "__self__", None), getattr(row_loss, "__func__", row_loss)
        how = _how_computed(model, noise_multiplicity, at_most) if self._exact else None
        same = all(known is given for known, given in zip(self._tried, pair, strict=True))
        if not same or how != self._tried_how:
            num_classes = None if self.class_names is None else len(self.class_names)
            with _secret_torch_draws(self.device):
                try_loss(
                    model, row_loss, self.image_shape, num_classes, noise_multiplicity=noise_multiplicity,
                    at_most=at_most, fitting=self._fitting, device=self.device, exact=self._exact,
                )  # fmt: skip
            self._tried, self._tried_how = pair, how
        return KeptState(model, row_loss)

    def _charged(self, mechanism: Mechanism, *, by_label: bool) -> Mechanism:
        """The mechanism as this door charges it: with its own noise and units, and the rate that coins have."""
        most = None if self._records.units is None else self.max_images_per_unit
        return mechanism.at(exact=self._exact, max_images_per_unit=most, by_label=by_label)

    def _with_bar(self, batches: Iterator[PhysicalBatch], words: str) -> Iterator[PhysicalBatch]:
        """A bar, for a query that takes long, of this process's declared images. It does not stay: where a record
        stops the run, its place would."""
        with self.processes.bar(
            total=self._records.own_units, desc=words, unit="image", delay=BAR_AFTER_SECONDS, leave=False
        ) as bar:
            for batch in batches:
                yield batch
                bar.update(len(batch[0]))


def _how_computed(model: nn.Module, noise_multiplicity: int, at_most: int) -> object:
    """What decides in which way gradients are computed, and so their last bits."""
    weights = tuple((each.requires_grad, each.stride(), each.dtype) for each in model.parameters())
    return weights, tuple(module.training for module in model.modules()), noise_multiplicity, at_most


def _typed(answer: Gradients, model: nn.Module) -> Gradients:
    """A float64 sum has bits below those of its float32 noise."""
    parameters = dict(model.named_parameters())
    return {name: value.to(torch.float32).to(parameters[name]) for name, value in answer.items()}


def _encoded(encode: Encode, images: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
    """Rows of an encoder as features, so that its trial sees its state."""
    return encode(images * 2 - 1).flatten(1)


@contextlib.contextmanager
def _secret_torch_draws(device: torch.device) -> Iterator[None]:
    """What still draws from torch's own generator in here (dropout, a loss of somebody else's) draws neither from the
    public seed nor moves its state."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        # On a CPU its generator alone: for a card that is not there, `torch.manual_seed` would keep the stack of each
        # call.
        reseed = torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed
        reseed(int.from_bytes(os.urandom(8), "little", signed=True))
        yield


def _clip(features: torch.Tensor, clip_norm: float) -> torch.Tensor:
    factors = clip_factors(features.square().sum(1), clip_norm)
    return torch.where(factors[:, None] > 0, features * factors[:, None], 0.0)
