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
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from ..accounting.ledger import PrivacyLedger
from ..accounting.ledger_row import (
    COEFFICIENT_STEPS,
    NO_EXACT_LATENTS,
    STEPS,
    Bands,
    LedgerRow,
    Shares,
    gradient_row,
    mechanism_of,
    rate_of_coins,
)
from ..data.cache import fingerprint
from ..data.mapped import Encode, map_images
from ..data.picked_images import PickedImages, stored_images, tensor_of
from ..distributed.processes import Processes
from ..errors import UsageError
from ..gradients import FittingParts, add_noise, clip_factors, clipped_gradient_sum, poisson_sample
from ..gradients.grid import ROWS, clip_steps, on_grid, refuse_too_much_noise
from ..gradients.parts import widened
from ..gradients.step import Gradients, PhysicalBatch, RowLoss, add_rounded_noise
from ..gradients.supported import check_model
from ..randomness.banded_noise import BandedNoise, BandedSums, whole_coefficients
from ..randomness.keyed_hash import digests_of, group_of, has_id
from ..randomness.private_generator import PrivateGenerator
from .charged_pass import charged_pass
from .full_rows import full_size, in_full_rows
from .kept_state import KeptState
from .separate_records import Features, features_of_zeros, try_loss, with_steady_bits
from .teachers import Teachers, Teaching


if TYPE_CHECKING:
    from ..data.images import ImageArrays

# Images that a query looks at together, and the most numbers of them or of their features: 64 MB in float32.
QUERY_BATCH_SIZE, QUERY_BATCH_VALUES = 500, 2**24
UNITS_AT_ONCE = 64  # of several images: where few have many, few blanks are looked at
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
            of `bands` follow from it. Unset: the id of an image is its row number, and the list of rows is public.
        max_images_per_unit (`int`, defaults to 8): With `units`: how many images of a unit one question or step looks
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
        self,
        images: np.ndarray | PickedImages,
        labels: np.ndarray | None = None,
        readable: np.ndarray | None = None,
        *,
        num_images: int,
        image_shape: Sequence[int],
        ledger: PrivacyLedger,
        class_names: Sequence[str] | None = None,
        units: np.ndarray | None = None,
        num_units: int | None = None,
        ids: np.ndarray | None = None,
        capacity: int | None = None,
        max_images_per_unit: int = 8,
        device: torch.device | str = "cpu",
        processes: Processes | None = None,
        exact: bool = False,
    ):
        capacity = num_images if capacity is None else capacity
        if len(images) > capacity:
            raise UsageError("There are more images than --num_train_images declares; raise --num_train_images.")
        if tuple(images.shape[1:]) != tuple(image_shape):
            raise UsageError(
                f"Images of shape {tuple(image_shape)} were declared, see --resolution and --num_channels."
            )
        if class_names is not None and labels is None:
            raise ValueError("`class_names` are declared, but there are no `labels`.")
        self.processes = processes or Processes()
        self._num_images = self.num_units = num_images
        self._capacity = self._places = capacity  # of images, and of units
        self._units: torch.Tensor | None = None
        if units is not None:
            held_out = capacity - num_images
            if num_units is None or len(units) and units.max() >= self.processes.share_size(num_units + held_out):
                raise UsageError("There are more units than --num_train_units declares; raise --num_train_units.")
            self.num_units, self._places = num_units, num_units + held_out
            self._units = tensor_of(units)
        elif len(images) > self.processes.share_size(capacity):
            raise ValueError("There are more images than the share of one process.")
        if ledger.num_images != self.num_units:
            raise ValueError(f"The ledger counts {ledger.num_images} units, but {self.num_units} are sampled from.")
        self._ledger = ledger
        self._own_units = self.processes.share_size(self._places)
        self._ids = ids
        self.max_images_per_unit = max_images_per_unit
        self.image_shape = tuple(image_shape)
        self.class_names = None if class_names is None else list(class_names)
        self.device = torch.device(device)
        self._images = images if isinstance(images, PickedImages) else stored_images(images)
        self._labels = None if class_names is None or labels is None else tensor_of(labels)
        self._readable = torch.ones(len(images), dtype=torch.bool) if readable is None else torch.tensor(readable)
        if self._labels is not None:  # a label outside the declared set is a damaged record like any other
            self._readable &= (self._labels >= 0) & (self._labels < len(self.class_names or ()))
        self._exact = exact
        self._generator = PrivateGenerator(exact=exact)
        self._banded_sums = BandedSums()
        # Noise of the first process. A new door, as a resumed run has, begins a new block.
        self._banded_noise = BandedNoise()
        self._fitting = FittingParts()
        self._tried: tuple[object, object, object] = (None, None, None)  # model and loss
        self._tried_how: object = None
        self._groups: tuple[Bands, list[torch.Tensor]] | None = None
        self._refused = False

    def __reduce__(self):
        raise TypeError("SensitiveImages is never serialised.")

    @property
    def ledger(self) -> PrivacyLedger:
        """The one that every answer is charged to, for as long as the door exists."""
        return self._ledger

    def map(
        self, encode: Encode, *, shape: Sequence[int], cache: Path, made_of: object, batch_size: int = 8
    ) -> "SensitiveImages":
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

        Raises:
            ValueError: The images are rows of an encoder.
            UsageError: The encoder mixes records, draws random numbers, keeps something between calls, or makes rows
                of another shape; or the disk is full.
            MemoryError, RuntimeError: Memory ran out, or the encoder fails on blanks.
        """
        self._refuse_shut()
        if self._images.dtype != torch.uint8:
            raise ValueError("What an encoder made of images is not mapped again.")
        if self._exact:
            raise UsageError(NO_EXACT_LATENTS)
        at_most = self.processes.share_size(self._capacity) if self._units is None else self._capacity
        key = fingerprint([made_of, list(shape), self.processes.index, self.processes.count])
        with torch.no_grad(), _secret_torch_draws(self.device):
            row = features_of_zeros(
                functools.partial(_encoded, encode), self.image_shape, None, device=self.device, clip_norm=1.0,
                name="encoder",
            )  # fmt: skip
            if row.shape[1] != math.prod(shape):
                raise UsageError(f"The encoder makes {row.shape[1]} numbers of an image, and {tuple(shape)} is said.")
            images, readable = map_images(
                self._images, self._readable, encode, shape=tuple(shape),
                folder=cache / f"encoded-{self.processes.index}", made_of=key, batch_size=batch_size, at_most=at_most,
                device=self.device, shown=self.processes.is_first,
                check=functools.partial(self._refuse_kept, KeptState(encode)),
            )  # fmt: skip
        return SensitiveImages(
            images, None if self._labels is None else self._labels.numpy(), readable,
            num_images=self._num_images, image_shape=shape, ledger=self._ledger, class_names=self.class_names,
            units=None if self._units is None else self._units.numpy(), num_units=self.num_units,
            ids=self._ids, capacity=self._capacity, max_images_per_unit=self.max_images_per_unit,
            device=self.device, processes=self.processes, exact=self._exact,
        )  # fmt: skip

    def noisy_sum(
        self,
        features: Features,
        *,
        clip_norm: float,
        noise_multiplier: float,
        sample_rate: float = 1.0,
        by_label: bool,
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
            clip_norm (`float`): Bound on the L2 norm of a feature vector; the sensitivity.
            noise_multiplier (`float`): sigma.
            sample_rate (`float`, defaults to 1): Each ask takes its own Poisson sample at this rate.
            by_label (`bool`): One sum for each class instead of one for all.
            name (`str`): Name of the ledger's row.
            repeats (`int`, defaults to 1): Independent asks under one row.
            query (`dict`, *optional*): Public facts about the query for the ledger.

        Returns:
            `torch.Tensor` of shape `[repeats, classes, d]` (`classes` = 1 without `by_label`), float32. Unscaled:
            divide by a public constant.

        Raises:
            BudgetExceeded: The answer would exceed the budget; nothing was asked.
            UsageError: The features mix records, draw random numbers, or keep state between calls; no answer was
                given.
        """
        self._refuse_shut()
        sample_rate = rate_of_coins(sample_rate) if self._exact else sample_rate
        if "grid" in (query or {}):
            raise ValueError("`grid` is a fact that the door states itself.")
        num_classes = None if self.class_names is None else len(self.class_names)
        num_rows = num_classes if by_label and num_classes is not None else 1
        row = LedgerRow(
            name=name,
            mechanism=mechanism_of(sample_rate, noise_multiplier=noise_multiplier),
            noise_multiplier=noise_multiplier,
            sampling_probability=sample_rate,
            steps=repeats,
            query={**(query or {}), "sensitivity": clip_norm, "clip_norm": clip_norm, **self._facts},
            partition="label" if num_rows > 1 and self._units is None else None,
        )
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
            refuse_too_much_noise(noise_multiplier)
            clip_steps(blank.shape[1], 1 if self._units is None else self.max_images_per_unit)
            most_units = -(-self._places // self.processes.count)  # of a process: the same batches in each
            size = min(full_size(size), -(-most_units // ROWS) * ROWS)
            with torch.no_grad(), _secret_torch_draws(self.device):
                steady, size = with_steady_bits(
                    features, self.image_shape, num_classes, size=size, device=device, name=name,
                    processes=self.processes,
                )  # fmt: skip
            kept.refuse_public(f"The features of {name!r}")
        generator = self._generator

        def exact_sum() -> torch.Tensor:
            """Of one sample, over the records of this process."""
            total = widened(blank.new_zeros(num_rows, blank.shape[1]))  # an empty sample has this shape too
            sample = poisson_sample(self._own_units, sample_rate, generator)
            batches = self._batches_of_records(sample, size, generator, device)
            if sample_rate == 1 and self._units is None:  # else a bar would tell how many were drawn or exist
                batches = self._with_bar(batches, f"Asking {name}")
            batches = in_full_rows(batches, size) if self._exact else batches
            for images, labels, counted, images_of_unit in batches:
                # No graph: along one, gradients of private images would reach the parameters of the features.
                with torch.no_grad(), _secret_torch_draws(self.device):
                    rows = steady(self._scaled(images, 0), None if labels is None else labels.clone())
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
        noise, length = (generator.rounded_normal, STEPS) if self._exact else (generator.normal, clip_norm)
        answers = []
        while totals:
            total = totals.pop(0)
            if self.processes.is_first:
                total = total + noise(total.shape, noise_multiplier * length, total.device)
            total = self.processes.sum({name: total})[name] * (clip_norm / length)
            answers.append(total.to(self.device, torch.float32))  # with all of its noise
        answer = torch.stack(answers)
        self._ledger.executed(reservation, repeats)
        return answer

    def noisy_gradient(
        self,
        model: nn.Module,
        row_loss: RowLoss,
        *,
        max_grad_norm: float,
        noise_multiplier: float,
        sample_rate: float,
        normaliser: float,
        noise_multiplicity: int,
        max_physical_batch_size: int,
        reserve_steps: int = 1,
        bands: Bands | None = None,
    ) -> Gradients:
        """One noisy sum of clipped gradients over a Poisson sample, divided by a public constant: the gradient of
        DP-SGD. It takes one step of an open reservation **before** an image is read.

        Sensitivity `max_grad_norm` (see `clipped_gradient_sum`). An empty sample takes the same path: zero plus noise.

        Args:
            model (`nn.Module`): Its trainable parameters get a gradient; nothing else of it changes.
            row_loss (`Callable`): Model, images `[rows, C, H, W]` in [-1, 1], labels and a `PrivateGenerator`, from
                which all that is random is drawn, to one loss per row.
            max_grad_norm (`float`): Clip norm C.
            noise_multiplier (`float`): sigma; the noise has standard deviation sigma * C.
            sample_rate (`float`): q, of all units, with bands too.
            normaliser (`float`): The public divisor, the expected batch size qN.
            noise_multiplicity (`int`): K rows per image, averaged before clipping.
            max_physical_batch_size (`int`): Images at a time; changes memory, never the answer.
            reserve_steps (`int`, defaults to 1): Steps to reserve at once when no reservation is open.
            bands (`Bands`, *optional*): Groups of units take turns. Each unit of the group of the step's position in
                the ledger is sampled at the rate bq. The noise is correlated over the steps (`BandedNoise`).

        Returns:
            `dict[str, torch.Tensor]`: Parameter name to noisy gradient.

        Raises:
            BudgetExceeded: The step would exceed the budget; nothing was looked at.
            UsageError: bq is above 1, or the release has other bands.
            UsageError: The model or the loss keeps something between calls; no answer was given. With `exact`, the
                gradient of an image follows the images beside it; nothing was spent.
            UnsupportedModel: The model has no exact gradients per image (`check_model`); nothing was spent.
            ValueError: Groups are to follow from anything but the ids of units. With `exact`, there are units of
                several images.
        """
        self._refuse_shut()
        sample_rate = rate_of_coins(sample_rate) if self._exact else sample_rate
        row = gradient_row(
            max_grad_norm=max_grad_norm, noise_multiplier=noise_multiplier, sample_rate=sample_rate,
            normaliser=normaliser, noise_multiplicity=noise_multiplicity, bands=bands,
            facts=self._facts,
        )  # fmt: skip
        if self._exact:
            if self._units is not None:
                raise ValueError("The proof to the bit needs batches of a public shape, of one image a unit.")
            refuse_too_much_noise(noise_multiplier, STEPS * (1 if bands is None else COEFFICIENT_STEPS))
            whole_coefficients(() if bands is None else bands.coefficients)
        if bands is not None and (bands.group_key is None or self._units is not None and self._ids is None):
            raise ValueError("Groups of units follow from a public key and the ids of the units.")
        check_model(model)
        kept = self._state_of(model, row_loss, noise_multiplicity, max_physical_batch_size)
        position = self._ledger.take_step(row, reserve_steps=reserve_steps)
        generator = self._generator
        if bands is not None:
            members = self._members(bands, position % bands.count)
            sample = members[poisson_sample(len(members), row.sampling_probability, generator)]
        else:
            sample = poisson_sample(self._own_units, sample_rate, generator)
        size = full_size(max_physical_batch_size) if self._exact else max_physical_batch_size
        batches = self._batches(sample, size, generator)
        batches = in_full_rows(batches, size) if self._exact else batches
        fitted = self._fitting.at_most
        with _secret_torch_draws(self.device):
            total = self._fitting.total(
                functools.partial(
                    clipped_gradient_sum,
                    model,
                    row_loss,
                    max_grad_norm=max_grad_norm,
                    noise_multiplicity=noise_multiplicity,
                    generator=generator,
                    exact=self._exact,
                ),
                ((self._scaled(images, -1), labels, counted, units) for images, labels, counted, units in batches),
            )
        self._refuse_kept(kept)
        if self._exact and self._fitting.at_most != fitted:  # batches have two public shapes: it tells no size
            raise UsageError(
                "Memory ran out after the trial of --noise exact, which has not tried smaller batches: lower "
                "--max_physical_batch_size."
            )
        if self._exact:
            return _typed(self._exact_answer(total, position, row, bands), model)
        if bands is not None and self.processes.is_first:
            shapes, std = [value.shape for value in total.values()], noise_multiplier * max_grad_norm
            generator = self._banded_noise.step(position, bands.coefficients, std, shapes, generator)
        if self.processes.is_first:
            part = add_noise(total, std=noise_multiplier * max_grad_norm, normaliser=normaliser, generator=generator)
        else:
            part = {name: value / normaliser for name, value in total.items()}
        answer = self.processes.sum(part)
        return _typed(answer, model)

    def teachers(
        self, teaching: Teaching, shares: Shares, *, records: "ImageArrays | None" = None, folder: Path | None = None
    ) -> Teachers:
        """
        A network for each share of the units, which stay inside and answer with noisy sums, see `Teachers`.

        Args:
            teaching (`Teaching`): How a teacher is made, learns and judges.
            shares (`Shares`): Their public number and key. Bound to the ledger by each row.
            records (`ImageArrays`, *optional*): All images of the data set, needed with several processes.
            folder (`Path`, *optional*): A private folder, where teachers are kept between starts.

        Raises:
            ValueError: There are more shares than units, units without ids, or several processes without `records`.
        """
        self._refuse_shut()
        if shares.number > self.num_units:
            raise ValueError(f"{shares.number} shares are more than {self.num_units} units.")
        return Teachers(self, teaching, shares, self._generator, records, folder)

    def _all_records(
        self, records: "ImageArrays | None"
    ) -> tuple[torch.Tensor | PickedImages, torch.Tensor | None, np.ndarray, np.ndarray]:
        """Images, labels, which of them count, and digests of ids, of all shares: for teachers alone."""
        if records is None:
            if self.processes.count > 1 or self._units is not None and self._ids is None:
                raise ValueError("Shares need the ids of units, and with several processes all records.")
            ids = digests_of(range(len(self._images))) if self._ids is None else self._ids
            return self._images, self._labels, self._readable.numpy(), ids
        if tuple(records.images.shape[1:]) != self.image_shape:
            raise ValueError("Teachers in several processes see the images of the data set, and no mapped ones.")
        labels = None if self.class_names is None or records.labels is None else tensor_of(records.labels)
        readable = np.array(records.readable)
        if labels is not None:
            readable &= ((labels >= 0) & (labels < len(self.class_names or ()))).numpy()
        ids = digests_of(range(len(records.images))) if records.ids is None else records.ids
        images = records.images if isinstance(records.images, PickedImages) else stored_images(records.images)
        return images, labels, readable, ids

    def _secret_draws(self) -> contextlib.AbstractContextManager[None]:
        return _secret_torch_draws(self.device)

    def _exact_answer(self, total: Gradients, position: int, row: LedgerRow, bands: Bands | None) -> Gradients:
        """All that is added up, over images, steps and processes, are whole numbers, divided after the noise."""
        names, std = list(total), row.noise_multiplier * STEPS
        if bands is not None:
            std *= COEFFICIENT_STEPS
            scale = row.noise_multiplier, row.query["clip_norm"]
            mixed = self._banded_sums.mix(position, bands.coefficients, scale, list(total.values()))
            total = dict(zip(names, mixed, strict=True))
        if self.processes.is_first:
            total = add_rounded_noise(total, std=std, generator=self._generator)
        answers = list(self.processes.sum(total).values())
        if bands is not None:
            answers = self._banded_sums.solve(answers)
        step = row.query["clip_norm"] / STEPS / row.query["normaliser"]
        return {name: value * step for name, value in zip(names, answers, strict=True)}

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

    def _scaled(self, images: torch.Tensor, lowest: int) -> torch.Tensor:
        """Pixels from `lowest` to 1, float32; what an encoder made of them as it is."""
        if images.dtype != torch.uint8:
            return images.float()
        return images.float() / 255 if lowest == 0 else images.float() / 127.5 - 1

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

    @property
    def _facts(self) -> dict[str, int]:
        """What the public facts of every row state."""
        units = {} if self._units is None else {"max_images_per_unit": self.max_images_per_unit}
        return units | ({"grid": STEPS} if self._exact else {})

    def _members(self, bands: Bands, group: int) -> torch.Tensor:
        """Units of this process in a group, ascending. A unit that is not there is in no group: how large one is, is
        private, and nothing follows from it. The groups are formed once."""
        if self._groups is None or self._groups[0] != bands:
            ids = self._ids
            if ids is None:  # see `data.shares.share_of`
                ids = digests_of(row * self.processes.count + self.processes.index for row in range(len(self._images)))
            units = np.arange(len(ids)) if self._units is None else self._units.numpy()
            named = has_id(ids)  # a record without an id has the number of some unit, and is none of its images
            units, first = np.unique(units[named], return_index=True)
            groups = group_of(ids[named][first], bands.count, str(bands.group_key))
            self._groups = bands, [torch.from_numpy(units[groups == each]) for each in range(bands.count)]
        return self._groups[1][group]

    def _batches(self, sample: torch.Tensor, size: int, generator: PrivateGenerator) -> Iterator[PhysicalBatch]:
        """The drawn records for a gradient, `size` at a time and in the clear, for the door's own methods alone."""
        if self._units is None:
            return self._batches_of_images(sample, size, self.device)
        return self._batches_of_units(self._units, sample, size, generator)

    def _with_bar(self, batches: Iterator[PhysicalBatch], words: str) -> Iterator[PhysicalBatch]:
        """A bar, for a question that takes long, of this process's declared images. It does not stay: where a record
        stops the run, its place would."""
        with self.processes.bar(
            total=self._own_units, desc=words, unit="image", delay=BAR_AFTER_SECONDS, leave=False
        ) as bar:
            for batch in batches:
                yield batch
                bar.update(len(batch[0]))

    def _taken(
        self, unit_of: torch.Tensor, sample: torch.Tensor, generator: PrivateGenerator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each sampled unit at most `max_images_per_unit` of its readable images, unit by unit, and how many these
        are of every unit. The draw that chooses them takes as many numbers as there are records, whoever is sampled:
        one unit does not move what is chosen of another."""
        sampled = torch.zeros(self._own_units, dtype=torch.bool)
        sampled[sample] = True
        luck = torch.from_numpy(generator.uniform(len(unit_of)))
        taken = (sampled[unit_of] & self._readable).nonzero().squeeze(1)
        taken = taken[luck[taken].argsort()]
        taken = taken[unit_of[taken].argsort(stable=True)]  # unit by unit, each in random order
        counts = unit_of[taken].bincount(minlength=self._own_units)
        within = torch.arange(len(taken)) - (counts.cumsum(0) - counts)[unit_of[taken]]
        return taken[within < self.max_images_per_unit], counts.clamp_max(self.max_images_per_unit)

    def _batches_of_records(
        self, sample: torch.Tensor, size: int, generator: PrivateGenerator, device: torch.device
    ) -> Iterator[PhysicalBatch]:
        """The drawn images for a question. Of units, one image of each comes first, then a second one of each, and so
        on, with blanks in the places of units that have no more. So the shape of a batch, and a unit's place in it, do
        not depend on the images of other units. The last part of a batch is the number of images of each one's
        unit."""
        if self._units is None:
            yield from self._batches_of_images(sample, size, device)
            return
        taken, counts = self._taken(self._units, sample, generator)
        first = counts.cumsum(0) - counts
        for turn in range(int(counts.max())):
            for units in sample.split(min(size, UNITS_AT_ONCE)):
                there = counts[units] > turn
                if there.any():  # blanks add nothing
                    records = torch.full((len(units),), len(self._images))  # no record has this index
                    records[there] = taken[first[units[there]] + turn]
                    for images, labels, counted, _ in self._batches_of_images(records, size, device):
                        yield images, labels, counted, counts[units].clamp_min(1)

    def _batches_of_units(
        self, unit_of: torch.Tensor, sample: torch.Tensor, size: int, generator: PrivateGenerator
    ) -> Iterator[PhysicalBatch]:
        """Whole units, for gradients, which are averaged before they are clipped."""
        taken, counts = self._taken(unit_of, sample, generator)
        units = [unit for unit in taken.split(counts.tolist()) if len(unit)]
        while units:
            number = next((n for n in range(1, len(units)) if sum(map(len, units[: n + 1])) > size), len(units))
            chunk, units = units[:number], units[number:]
            index = torch.cat(chunk)
            unit_index = torch.arange(number).repeat_interleave(torch.tensor([len(unit) for unit in chunk]))
            labels = None if self._labels is None else self._labels[index].to(self.device)
            counted = torch.ones(len(index), dtype=torch.bool, device=self.device)
            yield self._images[index].to(self.device), labels, counted, unit_index

    def _batches_of_images(self, indices: torch.Tensor, size: int, device: torch.device) -> Iterator[PhysicalBatch]:
        """An image that is missing or unreadable is blank: it keeps its place, so that how many rows there are, and
        who draws which random numbers, depends on the Poisson sample alone."""
        for chunk in indices.split(size) if len(indices) else ():
            there = chunk < len(self._images)
            counted = there.clone()
            counted[there] = self._readable[chunk[there]]
            found = self._images[chunk[counted]]
            images = found.new_zeros(len(chunk), *self.image_shape)
            images[counted] = found
            labels = None
            if self._labels is not None:
                labels = torch.zeros(len(chunk), dtype=torch.long)
                labels[counted] = self._labels[chunk[counted]]
                labels = labels.to(device)
            yield images.to(device), labels, counted.to(device), None


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
