# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`--noise exact` at the door: whole numbers from each image to the answer, in every way to ask."""

import os

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from diffusers_dp.distributed.processes import Processes
from diffusers_dp.errors import UsageError
from diffusers_dp.gradients import per_example
from diffusers_dp.gradients import step as step_module
from diffusers_dp.gradients.parts import norms
from diffusers_dp.gradients.sampling import poisson_sample
from diffusers_dp.mechanisms import Poisson, sampled
from diffusers_dp.mechanisms.band_coefficients import square_root_coefficients
from diffusers_dp.mechanisms.banded import COEFFICIENT_STEPS
from diffusers_dp.mechanisms.mechanism import STEPS
from diffusers_dp.mechanisms.poisson import rate_of_coins
from diffusers_dp.privacy import sensitive
from diffusers_dp.privacy.passages import Passage
from diffusers_dp.randomness.banded_noise import BandedSums, whole_coefficients
from diffusers_dp.randomness.keyed_hash import digests_of
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.bands import bands_of
from support.doors import KEY, NUM_IMAGES, SHAPE, Noiseless, make_door, make_ledger, put, squares, two_layers


QUERY = sampled(1.0, 2.0, by_label=True)


def pixels(x, labels=None):
    return x.flatten(1)


def ask(door, fn=pixels, generator=None, **changes):
    arguments = {"mechanism": QUERY, "clip_norm": 1.0, "name": "query"} | changes
    return put(door, "noisy_sum", fn, ledger=make_ledger(door.num_units), generator=generator, **arguments)


def gradient(door, generator=None, model=None, loss=squares, **changes):
    arguments = {
        "mechanism": sampled(1.0, 2.0), "max_grad_norm": 0.5, "normaliser": 4.0, "noise_multiplicity": 1,
        "max_physical_batch_size": 5,
    }  # fmt: skip
    return put(door, "noisy_gradient", model or two_layers(), loss, generator=generator, **arguments | changes)


def flat(gradients):
    return torch.cat([value.flatten() for value in gradients.values()]).double()


def in_steps(values, scale):
    """Answers in steps of the grid; they are float32."""
    return values.double() / scale


def test_a_query_is_answered_in_steps_of_its_grid():
    found = in_steps(ask(make_door(exact=True), clip_norm=0.75), 0.75 / STEPS)
    near = found.abs() < 2**23  # float32 tells such steps apart
    assert near.any() and torch.allclose(found[near], found[near].round(), atol=0.3)


@pytest.mark.parametrize("units", [None, np.arange(NUM_IMAGES) // 3])
@pytest.mark.parametrize("colour", [False, True])
def test_one_unit_moves_a_query_by_the_clip_norm_at_most(units, colour):
    """Whole numbers: the bound holds to the last step, units of several images included."""
    shape = (3, 8, 8) if colour else SHAPE
    images = np.random.default_rng(0).integers(0, 256, (NUM_IMAGES, *shape), dtype=np.uint8)
    options = {} if units is None else {"units": units, "num_units": 4}
    of = np.arange(NUM_IMAGES) if units is None else units

    def answer(missing):
        gone = np.flatnonzero(of == missing)
        ledger = make_ledger(len(set(of)))
        door = make_door(gone, images, exact=True, ledger=ledger, **options)
        return ask(door, lambda x, _: 3 * x.flatten(1), generator=Noiseless(KEY)).double() * STEPS

    everybody = answer(-1)
    for unit in sorted(set(of)):
        moved = (everybody - answer(unit)).round()
        assert 0.9 * STEPS**2 / 3 < moved.square().sum() <= STEPS**2


def test_rows_say_the_grid_and_the_sensitivity_is_the_clip_norm():
    door = make_door(exact=True)
    door.noisy_sum(pixels, QUERY, clip_norm=0.3, name="query")
    door.noisy_gradient(
        two_layers(), squares, sampled(0.5, 2.0), max_grad_norm=0.5, normaliser=4.0, noise_multiplicity=1,
        max_physical_batch_size=5,
    )  # fmt: skip
    for row in door.ledger.rows:
        assert row["query"]["grid"] == STEPS and row["query"]["sensitivity"] == row["query"]["clip_norm"]


# Gradients.


def test_a_step_is_the_sum_of_what_each_image_adds():
    """In any physical batches, to the last step: whole numbers know no order."""
    alone = 0
    for number in range(NUM_IMAGES):
        others = [each for each in range(NUM_IMAGES) if each != number]
        alone = alone + flat(gradient(make_door(others, exact=True), Noiseless(KEY), normaliser=0.5 / STEPS))
    for size in (1, 5, NUM_IMAGES):
        whole = gradient(make_door(exact=True), Noiseless(KEY), normaliser=0.5 / STEPS, max_physical_batch_size=size)
        if size == 5:
            assert torch.equal(flat(whole), alone.float().double())
        assert (flat(whole) - alone).abs().max() <= NUM_IMAGES  # rows of other shapes may differ in their last bits


def test_images_that_do_not_count_add_nothing():
    """Those that are missing, and the blanks that fill up a batch."""
    assert not flat(gradient(make_door(range(NUM_IMAGES), exact=True), Noiseless(KEY))).any()
    assert flat(gradient(make_door(range(1, NUM_IMAGES), exact=True), Noiseless(KEY))).any()


def test_the_noise_of_a_step_has_the_deviation_that_is_charged():
    found = flat(gradient(make_door(range(NUM_IMAGES), exact=True), mechanism=sampled(1.0, 3.0))) * 4 / 1.5
    assert stats.kstest(found.numpy(), "norm").pvalue > 1e-3
    again = flat(gradient(make_door(range(NUM_IMAGES), exact=True), mechanism=sampled(1.0, 3.0))) * 4 / 1.5
    assert abs(float((found * again).mean())) < 5 / len(found) ** 0.5


BANDS = bands_of(4, rate=0.25)


def banded_steps(door, count, generator=None, model=None, **changes):
    ledger, own = make_ledger(door.num_units), door._generator
    door._ledger, door._generator = ledger, generator or own
    arguments = {
        "mechanism": BANDS, "max_grad_norm": 0.5, "normaliser": 4.0, "noise_multiplicity": 1,
        "max_physical_batch_size": 5, "reserve_steps": count,
    }  # fmt: skip
    model = model or two_layers()
    return [flat(door.noisy_gradient(model, squares, **arguments | changes)) for _ in range(count)]


def test_the_noise_of_bands_is_made_white_by_the_coefficients():
    weights = np.array(whole_coefficients(BANDS.coefficients)) / COEFFICIENT_STEPS
    blank = banded_steps(make_door(range(NUM_IMAGES), exact=True), 7)
    for turn in range(7):
        white = sum(weights[k] * blank[turn - k] for k in range(min(turn, 3) + 1)) * 4 / 1.0
        assert stats.kstest(white.numpy(), "norm").pvalue > 1e-3


def test_one_image_is_in_the_answer_of_its_turn_alone():
    """Without noise: the answers of a door to a single image, and those of its neighbour."""
    alone = banded_steps(make_door(range(1, NUM_IMAGES), exact=True), 8, Noiseless(KEY))
    lengths = [float(step.norm()) * 4 / 0.5 for step in alone]
    turns = [turn for turn, length in enumerate(lengths) if length > 0.5]
    assert len(turns) == 2 and turns[1] - turns[0] == 4
    assert all(length < 1e-6 for turn, length in enumerate(lengths) if turn not in turns)
    assert all(0.99 < lengths[turn] <= 1 + 1e-6 for turn in turns)


@pytest.mark.parametrize(("scale", "goes_on"), [((2.0, 0.5), True), ((1.0, 0.5), False), ((2.0, 0.25), False)])
def test_sums_of_another_noise_or_clip_norm_are_not_mixed(scale, goes_on):
    """They would stand beside noise that was not made for them: a new block begins."""
    sums, weights = BandedSums(), whole_coefficients(BANDS.coefficients)
    first, second = torch.tensor([3.0], dtype=torch.float64), torch.tensor([5.0], dtype=torch.float64)
    sums.solve(sums.mix(0, BANDS.coefficients, (2.0, 0.5), [first]))
    found = sums.mix(1, BANDS.coefficients, scale, [second])
    assert found[0].item() == weights[0] * 5 + (weights[1] * 3 if goes_on else 0)


def test_whole_coefficients_are_no_longer_than_one():
    for count in (2, 4, 16, 64):
        weights = whole_coefficients(square_root_coefficients(count))
        assert 0.97 * COEFFICIENT_STEPS**2 < sum(weight**2 for weight in weights) <= COEFFICIENT_STEPS**2
    with pytest.raises(ValueError, match="above 1"):
        whole_coefficients((1.0, 0.1))


def test_a_coin_falls_with_the_probability_that_is_charged():
    """A word that lies just at it does not take the record, and the one below does: also where q is no coin's own."""
    q = 0.3
    charged = int(rate_of_coins(q) * 2**53)
    assert charged / 2**53 > q

    class Word(PrivateGenerator):
        def words(self, size):
            return np.full(size, self.value << 11, dtype=np.uint64)

    source = Word(exact=True)
    for value, taken in ((charged - 1, 3), (charged, 0)):
        source.value = value
        assert [len(poisson_sample(3, rate, source)) for rate in (q, charged / 2**53)] == [taken] * 2


def test_noise_and_samples_come_from_the_operating_system(monkeypatch):
    asked = []

    def urandom(size, honest=os.urandom):
        asked.append(size)
        return honest(size)

    door = make_door(exact=True)
    monkeypatch.setattr("diffusers_dp.randomness.private_generator.os.urandom", urandom)
    gradient(door, mechanism=sampled(0.5, 2.0))
    assert sum(asked) >= 8 * (NUM_IMAGES + 16_400)


@pytest.mark.parametrize("count", [0, 1, 2**16 - 1, 2**16, 2**16 + 1, 2**21 + 3])
def test_every_word_is_the_operating_system_s_however_many_are_drawn(count, monkeypatch):
    """A stream under a key would be another source than the one that receipts name."""
    served = []

    def urandom(size, honest=os.urandom):
        served.append(honest(size))
        return served[-1]

    source = PrivateGenerator(exact=True)
    monkeypatch.setattr(source, "_generator", None)
    monkeypatch.setattr("diffusers_dp.randomness.private_generator.os.urandom", urandom)
    assert source.words(count).tobytes() == b"".join(served) and len(b"".join(served)) == 8 * count
    served.clear()
    uniform = source.uniform(count)
    assert np.array_equal(uniform * 2.0**53, np.frombuffer(b"".join(served), np.uint64) >> np.uint64(11))
    served.clear()
    source.rounded_normal((count,), 3.0)
    assert len(b"".join(served)) >= 8 * count


# Refusals.


class Mixing(nn.Module):
    """Its last bits follow from the other rows: a mean over the batch, too small to be seen but there."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 5)

    def forward(self, x):
        return self.layer(x.flatten(1) + 1e-4 * x.detach().mean())


def test_gradients_whose_last_bits_follow_from_other_images_are_refused():
    door = make_door(exact=True)
    with pytest.raises(UsageError, match="--noise float"):
        gradient(door, model=Mixing())
    gradient(make_door(), model=Mixing())  # within rounding, which `--noise float` assumes anyway


def test_gradients_whose_norms_alone_follow_from_their_place_are_refused(monkeypatch):
    """As a sum over a row of a batch may: its last bits decide only where a gradient is longer than the clip norm."""

    def by_place(parts):
        found = norms(parts)
        return found * (1 + 1e-6 * (torch.arange(len(found)) % 2))

    monkeypatch.setattr(per_example, "norms", by_place)
    with pytest.raises(UsageError, match="--noise float"):
        gradient(make_door(exact=True))


def test_features_whose_last_bits_follow_from_their_place_are_refused():
    """As the last few numbers of a parallel or vectorised loop do."""
    images = np.random.default_rng(0).integers(0, 256, (90, *SHAPE), dtype=np.uint8)

    def features(x, labels):
        found = x.flatten(1).clone()
        if len(x) >= 64:  # more than a short trial has
            found[-3:] *= 1 + 1e-6
        return found

    with pytest.raises(UsageError, match="'query' follow from an image's place"):
        ask(make_door((), images, exact=True), features)
    ask(make_door((), images), features)


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("shares", [lambda x: torch.get_num_threads() > 1, lambda x: len(x) > 64])
def test_features_whose_bits_follow_from_threads_or_large_batches_are_computed_without_them(shares, two_threads):
    """As a product of matrices does that many threads share, in ways that follow from its shape."""
    images = np.random.default_rng(0).integers(0, 256, (90, *SHAPE), dtype=np.uint8)

    def features(x, labels):
        found = x.flatten(1).clone()
        if shares(x):
            found[: len(x) // 3] *= 1 + 1e-6
        return found

    found, wanted = (
        ask(make_door((), images, exact=True), asked, Noiseless(KEY), clip_norm=8.0) for asked in (features, pixels)
    )
    assert torch.equal(found, wanted)
    assert torch.get_num_threads() == 2


def turned_where(mixed):
    """Features that are negated where `mixed` says so of a batch that is larger than those of the short trial."""
    return lambda x, labels: -pixels(x) if len(x) > 8 and mixed(x) else pixels(x)


def by_class_counts(x, labels):
    """As code that sorts a batch by its classes."""
    count = (labels[:, None] == labels).sum(1, keepdim=True)
    return pixels(x) * (1 + 1e-6 * count) if len(x) > 8 else pixels(x)


@pytest.mark.parametrize("number", [60, 90, 640])
@pytest.mark.parametrize(
    "features",
    [
        turned_where(lambda x: int((x * 255).round().sum()) % 2),
        turned_where(lambda x: (pixels(x).sum(1) == 0).any()),
        lambda x, labels: pixels(x - x.amin() if len(x) > 8 else x),
        lambda x, labels: pixels(x / x.amax() if len(x) > 8 else x),
        by_class_counts,
    ],
    ids=["of any order", "beside a blank", "darkest", "brightest", "counts of classes"],
)
def test_features_that_follow_from_the_other_images_of_a_large_batch_are_refused(number, features):
    images = np.random.default_rng(0).integers(0, 256, (number, *SHAPE), dtype=np.uint8)
    with pytest.raises(UsageError, match="--noise float"):
        ask(make_door((), images, exact=True), features)


def test_a_batch_that_fits_no_more_is_not_halved(watching):
    """No trial has seen its halves."""
    full = []

    def loss(model, rows, labels, generator):
        if full and len(rows) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return squares(model, rows, labels, generator)

    door, model = make_door(exact=True), two_layers()
    gradient(door, model=model, loss=loss)
    full.append(True)
    with pytest.raises(UsageError, match="--max_physical_batch_size"):
        gradient(door, model=model, loss=loss)


def test_the_trial_of_bits_leaves_nothing_behind():
    """A counter that moves in large batches alone, and rests when the query begins."""
    images = np.random.default_rng(0).integers(0, 256, (90, *SHAPE), dtype=np.uint8)

    class Counting:
        calls = 0

        def __call__(self, x, labels):
            self.calls += len(x) >= 64 and self.calls < 9
            return pixels(x)

    with pytest.raises(UsageError, match="'calls of Counting 1' changed while public noise was shown"):
        ask(make_door((), images, exact=True), Counting())


class OneOfTwo(Processes):
    """Its sums are added by hand."""

    def __init__(self, index, steady):
        super().__init__()
        self.count, self.index, self.steady = 2, index, steady

    def sum(self, tensors):
        return tensors

    def any(self, answer):
        return answer or not self.steady


def test_processes_compute_features_in_one_way_and_in_batches_of_one_size(two_threads, watching):
    """A missing record moves those behind it from one process to the other."""
    images = np.random.default_rng(0).integers(0, 256, (129, *SHAPE), dtype=np.uint8)
    for index, steady in ((0, True), (1, True), (1, False)):
        seen = set()
        door = make_door((), images[index::2], exact=True, num_images=129, processes=OneOfTwo(index, steady))

        def features(x, labels, seen=seen):
            seen.add((len(x), torch.get_num_threads()))
            return pixels(x)

        if steady:
            ask(door, features)
        else:  # in the other process, both ways fail
            with pytest.raises(UsageError, match="--noise float"):
                ask(door, features)
        large = {each for each in seen if each[0] > 8}
        assert large == ({(128, 2), (64, 2)} if steady else {(128, 2), (64, 2), (64, 1)})


@pytest.mark.parametrize("size", [1, 2, 5])
def test_gradients_that_keep_images_apart_pass_in_batches_of_any_size(size):
    gradient(make_door(exact=True), max_physical_batch_size=size)


def test_units_of_several_images_have_no_exact_step():
    units = np.arange(NUM_IMAGES) // 3
    door = make_door(
        exact=True, ledger=make_ledger(4), num_images=NUM_IMAGES, units=units, num_units=4,
        ids=digests_of(units.tolist()),
    )  # fmt: skip
    ledger = make_ledger(door.num_units)
    with pytest.raises(ValueError, match="public shape"):
        put(
            door, "noisy_gradient", two_layers(), squares, sampled(0.5, 2.0), ledger=ledger, max_grad_norm=0.5,
            normaliser=4.0, noise_multiplicity=1, max_physical_batch_size=5,
        )  # fmt: skip
    assert not ledger.rows


def test_more_noise_than_can_be_rounded_is_refused_before_anything_is_asked():
    door = make_door(exact=True)
    for mechanism in (sampled(0.5, 2.0**19), BANDS.with_noise(300.0)):
        ledger = make_ledger()
        with pytest.raises(UsageError, match="--noise float"):
            put(
                door, "noisy_gradient", two_layers(), squares, mechanism, ledger=ledger, max_grad_norm=0.5,
                normaliser=4.0, noise_multiplicity=1, max_physical_batch_size=5,
            )  # fmt: skip
        assert not ledger.rows
    with pytest.raises(UsageError, match="--noise float"):
        ask(door, mechanism=QUERY.with_noise(2.0**19))


# An attack on low-order bits.


def reachable(answers, std):
    """Which float32 numbers are a float32 standard normal times `std`: what noise alone can be."""
    nearest = (answers / np.float32(std)).astype(np.float32)
    candidates = [nearest]
    for end in (-np.inf, np.inf):
        one = np.nextafter(nearest, np.float32(end))
        candidates += [one, np.nextafter(one, np.float32(end))]
    return np.any([each * np.float32(std) == answers for each in candidates], axis=0)


def test_the_step_is_added_up_before_the_noise(monkeypatch):
    """Rounding after the noise would round what the noise hides."""
    seen = []
    honest = step_module.add_rounded_noise

    def watched(total, **arguments):
        seen.extend(value.clone() for value in total.values())
        return honest(total, **arguments)

    monkeypatch.setattr("diffusers_dp.privacy.passages.add_rounded_noise", watched)
    gradient(make_door(exact=True))
    assert seen and all(torch.equal(value, value.round()) for value in seen)


def test_classes_without_names_and_batches_of_one_work():
    door = make_door(class_names=None, labels=None, exact=True)
    assert ask(door, mechanism=sampled(1.0, 2.0), generator=Noiseless(KEY)).shape == (1, 1, 64)
    gradient(door, max_physical_batch_size=1)


# What a breaker found: bits follow from a row's place and from the number of rows.


class Delicate(nn.Module):
    """Its output for one image is next to 0, so that rounding decides whether its gradient is there."""

    def __init__(self, weight):
        super().__init__()
        self.layer = nn.Linear(64, 1, bias=False)
        self.layer.weight.data = weight

    def forward(self, x):
        return self.layer(x.flatten(1)).relu()


@pytest.mark.parametrize("bands", [None, BANDS])
def test_a_record_that_is_not_there_moves_no_other(bands):
    """Without its file, all images after it move up a place, and a sample has one row less. The sums of the others
    stay the same to the last step, or the door refuses the model."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (41, *SHAPE), dtype=np.uint8)
    changes = {"normaliser": 0.5 / STEPS, "max_physical_batch_size": 64}

    def total(kept, model):
        ids = digests_of(np.flatnonzero(kept).tolist())
        door = make_door((), images[kept], num_images=41, ledger=make_ledger(41), labels=np.arange(41)[kept] % 3,
                         exact=True, ids=ids)  # fmt: skip
        if bands is None:
            return flat(gradient(door, Noiseless(KEY), model, **changes))
        return sum(banded_steps(door, 4, Noiseless(KEY), model=model, **changes, mechanism=bands))

    for model in (two_layers(), Delicate(torch.randn(1, 64, generator=torch.Generator().manual_seed(1)))):
        try:
            everybody = total(np.arange(41) >= 0, model)
        except UsageError as error:
            assert "--noise float" in str(error)
            continue
        for missing in (0, 20):
            moved = everybody - total(np.arange(41) != missing, model)
            assert moved.square().sum() <= STEPS**2 * (1 + 1e-6)


@pytest.mark.parametrize(("size", "rows"), [(200, {64, 192}), (64, {64}), (20, {16}), (5, {5})])
def test_batches_have_full_rows_however_many_are_sampled(size, rows, monkeypatch):
    seen, of_queries = set(), set()
    sum_of, grid_of = sensitive.clipped_gradient_sum, sensitive.on_grid

    def summed(model, loss, batches, **options):
        return sum_of(model, loss, (seen.add(len(batch[0])) or batch for batch in batches), **options)

    monkeypatch.setattr(sensitive, "clipped_gradient_sum", summed)
    monkeypatch.setattr(sensitive, "on_grid", lambda x, *rest: of_queries.add(len(x)) or grid_of(x, *rest))
    door, model = make_door((), np.zeros((640, *SHAPE), dtype=np.uint8), exact=True), two_layers()
    for rate in (0.1, 0.4, 0.5, 1.0):
        gradient(door, model=model, max_physical_batch_size=size, mechanism=sampled(rate, 2.0))
        ask(door, mechanism=sampled(rate, 2.0, by_label=True))
    assert seen == rows and of_queries == {64, 448}  # no others are tried


def test_a_model_that_is_computed_in_another_way_is_tried_again(monkeypatch):
    tried = []
    monkeypatch.setattr("diffusers_dp.privacy.sensitive.try_loss", lambda *a, **options: tried.append(options))
    door, model = make_door(exact=True), two_layers()
    for change in (lambda: None, lambda: None, lambda: model[1].requires_grad_(False), model.eval):
        change()
        gradient(door, model=model)
    gradient(door, model=model, max_physical_batch_size=3)
    assert len(tried) == 4


def test_a_caller_cannot_say_that_its_noise_is_exact():
    with pytest.raises(ValueError, match="grid"):
        ask(make_door(), query={"grid": STEPS})


@pytest.mark.parametrize("units", [None, np.arange(NUM_IMAGES) // 3])
def test_queries_are_computed_on_the_cpu(units):
    """A GPU may add in another order each time. The device here is one that holds no numbers."""
    seen, options = set(), {} if units is None else {"units": units, "num_units": 4}

    def watched(x, labels):
        seen.add((x.device.type, labels.device.type))
        return x.flatten(1)

    door = make_door(exact=True, device="meta", ledger=make_ledger(4 if units is not None else NUM_IMAGES), **options)
    assert ask(door, watched).device.type == "meta" and seen == {("cpu", "cpu")}


def test_rows_from_elsewhere_are_refused(monkeypatch):
    monkeypatch.setattr(sensitive, "features_of_zeros", lambda *_, **__: torch.zeros(1, 3, device="meta"))
    with pytest.raises(UsageError, match="computed on meta, and the images are on cpu"):
        ask(make_door(exact=True))


def test_gradients_on_a_gpu_and_latents_are_refused(tmp_path):
    ledger = make_ledger(NUM_IMAGES)
    with pytest.raises(UsageError, match="no proof for DP-SGD on a GPU"):
        gradient(make_door(exact=True, device="meta", ledger=ledger))
    with pytest.raises(UsageError, match="no proof for latents"):
        make_door(exact=True, ledger=ledger).map(lambda x: x, shape=SHAPE, cache=tmp_path, made_of={})
    assert ledger.rows == []


def test_what_an_encoder_makes_of_each_image_alone_is_asked_about(tmp_path):
    """On the CPU. The last bits of its rows are tried: those that follow from an image's place are refused."""
    weights, seen = torch.randn(3, SHAPE[0] * SHAPE[1] * SHAPE[2], generator=torch.Generator().manual_seed(0)), set()

    def alone(x):
        seen.add(x.device.type)
        return torch.cat([image.flatten(1) @ weights.T for image in x.clone().split(1)])[:, None, None] / 1000

    images = np.random.default_rng(0).integers(0, 256, (NUM_IMAGES, *SHAPE), dtype=np.uint8)
    options = {"shape": (1, 1, 3), "made_of": {}, "alone": True}
    gpu = make_door(images=images, exact=True, device="meta")  # one that holds no numbers
    gpu.map(alone, cache=tmp_path / "alone", **options)
    door = make_door(images=images, exact=True)
    answer = ask(
        door.map(alone, cache=tmp_path / "alone", **options),
        generator=Noiseless(exact=True),
        mechanism=sampled(1.0, 2.0),
    )
    rows = np.load(tmp_path / "alone" / "encoded-0" / "images.npy").reshape(NUM_IMAGES, 3)
    assert seen == {"cpu"} and answer.flatten().tolist() == pytest.approx(rows.sum(0).tolist(), abs=1e-3)
    ledger = make_ledger(NUM_IMAGES)
    own = make_door(images=images, exact=True, ledger=ledger).map(alone, cache=tmp_path / "alone", **options)
    own.noisy_sum(pixels, QUERY, clip_norm=1.0, name="query")
    assert ledger.rows[0]["query"]["grid"] == STEPS
    with pytest.raises(UsageError, match="last bits of the features of 'encoder'"):
        door.map(
            lambda x: alone(x) * (1 + 1e-6 * torch.arange(len(x)).view(-1, 1, 1, 1)),
            cache=tmp_path / "mixed",
            **options,
        )


@pytest.mark.usefixtures("watching")
def test_rows_that_were_made_in_another_way_are_made_again(tmp_path, monkeypatch):
    """Else which of two ways made a row would follow from its place, and so from whether others are missing."""
    images, calls = np.random.default_rng(0).integers(0, 256, (NUM_IMAGES, *SHAPE), dtype=np.uint8), []

    def encode(x):
        calls.append(len(x))
        return x[:, :, :1, :1]

    def new_calls(exact):
        before = len(calls)
        door = make_door(images=images, exact=exact)
        door.map(encode, shape=(1, 1, 1), cache=tmp_path / str(exact), made_of={}, batch_size=4, alone=True)
        return len(calls) - before

    first, again = [[new_calls(exact) for exact in (True, False)] for _ in range(2)]
    torch.set_num_threads(torch.get_num_threads() + 1)
    threads = [new_calls(exact) for exact in (True, False)]
    monkeypatch.setattr(torch, "__version__", "another")
    assert (first[0] - again[0], first[1] - again[1]) == (3, 3), "batches of images, beside the trials"
    assert (threads, new_calls(True)) == ([first[0], again[1]], first[0])


@pytest.mark.parametrize("mechanism", [bands_of(4, rate=0.01), sampled(0.01)], ids=["banded", "poisson"])
def test_a_rate_is_one_that_coins_have(mechanism):
    exact = mechanism.at(exact=True)
    assert exact.sampling_probability * 2**53 % 1 == 0
    assert 0 <= exact.sampling_probability - mechanism.sampling_probability < 2**-50


def test_exact_noise_covers_one_clip_norm(monkeypatch):
    monkeypatch.setattr(Poisson, "sensitivity", lambda self, clip_norm: 2 * clip_norm)
    with pytest.raises(ValueError, match="one clip norm"):
        Passage(sampled(0.1, exact=True), None, None)
