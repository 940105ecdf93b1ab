# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What each process of a few asks and finds, for `test_processes.py`, which compares."""

import copy
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from accelerate.utils import set_seed
from diffusers import EDMDPMSolverMultistepScheduler
from diffusers.training_utils import EMAModel
from torch import nn

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.accounting.ledger_row import LedgerRow
from diffusers_dp.data.cache import new_cache
from diffusers_dp.data.images import ImageArrays, open_images
from diffusers_dp.data.shares import load_share, share_of
from diffusers_dp.data.sources import load_digits_split
from diffusers_dp.distributed import processes as library
from diffusers_dp.distributed.processes import Processes
from diffusers_dp.distributed.shared_ledger import shared_ledger
from diffusers_dp.errors import BudgetExceeded, DiffusersDPError
from diffusers_dp.evaluation import charged
from diffusers_dp.mechanisms import Everyone, sampled
from diffusers_dp.mechanisms.mechanism import STEPS
from diffusers_dp.models.feature_generator import frequency_matching_loss
from diffusers_dp.pipelines import DPImagePipeline
from diffusers_dp.privacy.sensitive import SensitiveImages
from diffusers_dp.randomness.keyed_hash import digests_of
from diffusers_dp.randomness.private_generator import PrivateGenerator
from diffusers_dp.runs.checkpoints import load_checkpoint, save_checkpoint
from diffusers_dp.sampling.drawing import Drawing
from support.bands import bands_of
from support.doors import Noiseless, put
from support.noise_queries import NOISE_CELLS, noise_of
from support.releases import make_unet


SHAPE = (1, 4, 4)
SIGMA, CLIP_NORM, NORMALISER, RATE = 2.0, 0.5, 4.0, 0.3
LARGE = 2.0**27  # in float32 the next number is 16 away
BANDS = bands_of(4, rate=0.25, sigma=SIGMA)


def make_arrays(count, units=False):
    """The first pixel says which image it is."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, *SHAPE), dtype=np.uint8)
    images[:, 0, 0, 0] = np.arange(count)
    return ImageArrays(
        images, np.arange(count) % 3, np.arange(count) != 4, np.arange(count) % 7 // 2 if units else None
    )


def make_door(processes, arrays, num_images, num_units=None, ledger=None, **options):
    share = share_of(arrays, processes.index, processes.count)
    return SensitiveImages(
        share.images, share.labels, share.readable, num_images=num_images, image_shape=SHAPE,
        ledger=ledger or make_ledger(processes, num_units or num_images), class_names=("a", "b", "c"),
        units=share.units, num_units=num_units, processes=processes,
        **options,
    )  # fmt: skip


def make_ledger(processes, num_images, target_epsilon=1e15):
    return shared_ledger(
        processes,
        lambda: PrivacyLedger(
            None, target_epsilon=target_epsilon, target_delta=1e-5, num_images=num_images, accountant="rdp"
        ),
    )


def row_loss(model, images, labels, generator):
    return model(images.flatten(1)).square().sum(1) * (1 + labels)


def step(door, model, **changes):
    arguments = {"max_grad_norm": CLIP_NORM, "mechanism": sampled(RATE, SIGMA), "normaliser": NORMALISER}
    arguments |= {"noise_multiplicity": 2, "max_physical_batch_size": 3}
    return put(door, "noisy_gradient", model, row_loss, **{**arguments, **changes})


def which(images, labels=None):
    """One-hot features: the image itself."""
    return nn.functional.one_hot((images[:, 0, 0, 0] * 255).round().long(), 256).float()[:, :40]


def exact_sums(processes, model):
    """One image is missing, one cannot be read."""
    found = {}
    for name, door in (
        ("images", make_door(processes, make_arrays(10), 11)),
        ("units", make_door(processes, make_arrays(10, units=True), 10, num_units=5)),
    ):
        found[name] = step(door, model, max_grad_norm=1.0, mechanism=sampled(1.0, SIGMA), generator=Noiseless())
        found[f"answer of {name}"] = put(
            door,
            "noisy_sum",
            lambda x, _: x.flatten(1),
            sampled(1.0, by_label=True),
            clip_norm=1.0,
            name="query",
            repeats=2,
            generator=Noiseless(),
        )
    return found


def sums_of_rows(processes, model, cache):
    """Of what an encoder makes of the images, each in its process; of image 5 it makes nothing that is finite."""
    fails, found = torch.tensor(5.0) / 127.5 - 1, {}

    def encode(images):
        rows = nn.functional.pixel_unshuffle(images, 2)
        return torch.where(images[:, :1, :1, :1] == fails, torch.nan, rows)

    for name, door in (
        ("images", make_door(processes, make_arrays(10), 11)),
        ("units", make_door(processes, make_arrays(10, units=True), 10, num_units=5)),
    ):
        rows = door.map(encode, shape=(4, 2, 2), cache=cache / name, made_of=name, batch_size=3)
        found[name] = step(rows, model, max_grad_norm=1.0, generator=Noiseless(), mechanism=sampled(1.0, SIGMA))
    return found


class TakesAway(PrivateGenerator):
    """In the place of noise: what one image added, so much that float32 would not have the others' beside it."""

    def normal(self, shape, std, device="cpu"):
        return torch.full(tuple(shape), -LARGE, device=device)


def whole_sums(processes, model):
    """In steps of the grid of `--noise exact`, without noise: a step, with the two before it mixed in, and a query."""
    door = make_door(processes, make_arrays(10), 11, exact=True)
    source, ledger = Noiseless(), make_ledger(processes, 11)
    steps = [
        step(
            door, model, max_grad_norm=1.0, normaliser=1 / STEPS, mechanism=BANDS, generator=source,
            max_physical_batch_size=1, reserve_steps=4, ledger=ledger,
        )
        for _ in range(4)
    ]  # fmt: skip
    answer = put(
        door, "noisy_sum", lambda x, _: x.flatten(1), sampled(1.0, by_label=True), clip_norm=1.0,
        name="query", generator=source, ledger=ledger,
    )  # fmt: skip
    named = {f"{turn} {name}": value for turn, each in enumerate(steps) for name, value in each.items()}
    return {"answer": answer, **named}


def large_sums(processes):
    """The image of number 1 adds 2^27; of two processes it is the second's, and the first takes it away. The others
    add 1."""

    def large_or_one(images, labels=None):
        return torch.where(images[:, :1, 0, 0] <= 0, LARGE, 1.0)

    def loss(model, images, labels, generator):
        return model(large_or_one(images)).squeeze(1)

    arrays = make_arrays(10)
    arrays.images[:, 0, 0, 0] = 255
    arrays.images[1, 0, 0, 0] = 0
    door = make_door(processes, arrays, 10)
    door._generator = TakesAway()
    answer = door.noisy_sum(large_or_one, sampled(1.0), clip_norm=2 * LARGE, name="query")
    gradient = door.noisy_gradient(
        nn.Linear(1, 1, bias=False), loss, sampled(1.0), max_grad_norm=2 * LARGE, normaliser=1.0,
        noise_multiplicity=1, max_physical_batch_size=1,
    )  # fmt: skip
    return [answer.item(), gradient["weight"].item()]


def noise_alone(processes):
    """No image can be read: what comes out of the door is its noise."""
    arrays = make_arrays(10)
    arrays.readable[:] = False
    door, wide = make_door(processes, arrays, 10), nn.Linear(16, 4096)
    gradients = [torch.cat([g.flatten() for g in step(door, wide).values()]) for _ in range(8)]
    answer = door.noisy_sum(
        lambda x, _: x.new_zeros(len(x), 5000), sampled(1.0, SIGMA), clip_norm=CLIP_NORM, name="query", repeats=40
    )
    return {"gradient": torch.stack(gradients), "answer": answer.flatten(1)}


def who_takes_part(processes):
    """The door draws from its own source here; the noise is too small to hide who was sampled."""
    door = make_door(processes, make_arrays(40), 40)
    door._records.readable[:] = True
    answer = door.noisy_sum(which, sampled(RATE, 1e-4), clip_norm=1.0, name="query", repeats=300)
    return answer[:, 0]


def who_takes_turns(processes):
    """Of whole groups, without noise; and the noise of steps with bands alone, in four of them."""
    arrays = make_arrays(40)
    arrays.readable[:] = True
    ledger = make_ledger(processes, 40)
    door = make_door(processes, arrays, 40, ledger=ledger)
    door._generator = Noiseless()
    query = {"mechanism": BANDS, "normaliser": 1.0, "noise_multiplicity": 1}
    query |= {"max_grad_norm": 1.0, "max_physical_batch_size": 64, "reserve_steps": 8}

    def one_hot_loss(model, images, _, generator):
        return model(which(images / 2 + 0.5)).sum(1)

    sums = nn.Linear(40, 1, bias=False)
    found = {"taken": torch.stack([
        door.noisy_gradient(sums, one_hot_loss, **query)["weight"].flatten()
        for _ in range(2 * BANDS.num_groups)
    ])}  # fmt: skip
    arrays.readable[:] = False
    door, wide = make_door(processes, arrays, 40, ledger=ledger), nn.Linear(40, 512)
    answers = [door.noisy_gradient(wide, one_hot_loss, **query) for _ in range(6)]
    found["noise"] = torch.stack([torch.cat([g.flatten() for g in answer.values()]) for answer in answers])
    return found


def train(processes, model):
    """With three images, fewer than processes: samples are mostly empty, and one process never has an image."""
    processes.same_weights(model)
    door = make_door(processes, make_arrays(3), 3)
    ledger = door.ledger
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(6):
        for name, gradient in step(door, model, reserve_steps=4).items():
            model.get_parameter(name).grad = gradient
        optimizer.step()
    ledger.flush_executed()
    return {"weights": model.state_dict(), "rows": ledger.rows, "epsilon": ledger.epsilon()}


def until_refused(processes, model):
    door = make_door(processes, make_arrays(3), 3, ledger=make_ledger(processes, 3, target_epsilon=4.0))
    for taken in range(100):
        try:
            step(door, model)
        except BudgetExceeded as error:
            return taken, str(error), error.is_told


def go_on(processes, folder):
    """From a checkpoint that the first process wrote; a shorter ledger, another model, a file that is damaged."""

    def states(width=3):
        model = nn.Linear(16, width)
        for parameter in model.parameters():
            nn.init.constant_(parameter, 1.0 + processes.index)
        return {"unet": model, "ema": EMAModel(model.parameters()), "optimizer": torch.optim.Adam(model.parameters())}

    def save():
        trained = states()
        trained["unet"](torch.ones(16)).sum().backward()
        trained["optimizer"].step()
        save_checkpoint(folder, 1, **trained, ledger_position={"rows": 2})

    def load(rows=2, width=3):
        loaded = states(width)
        load_checkpoint(folder / "checkpoint-1", **loaded, ledger_position={"rows": rows}, processes=processes)
        return {name: each.state_dict() for name, each in loaded.items() if name != "ema"}

    processes.on_first(save)
    found = {"restored": copy.deepcopy(load()), "refused": []}
    for changes in ({"rows": 1}, {"width": 4}, {}):
        if not changes:
            processes.on_first(lambda: (folder / "checkpoint-1" / "unet.safetensors").write_bytes(b""))
        try:
            load(**changes)
        except DiffusersDPError as error:
            words = str(error).replace(str(folder), "")
            found["refused"].append((type(error).__name__, words, error.is_told))
    return found


def warm_up(processes, model):
    """Gradients of ordinary training, and of a loss of the mean over the batch."""
    rng = torch.Generator().manual_seed(0)
    images, target = torch.rand(5, 16, generator=rng), torch.rand(3, 3, generator=rng)
    rows, found = processes.rows(5), {}
    labels = rows % 3
    for name, loss in (
        ("mean", lambda: model(images[rows]).square().mean()),
        ("matching", lambda: frequency_matching_loss(model, images[rows], labels, target, processes.mean_of_all)),
    ):
        model.zero_grad()
        loss().backward()
        processes.average_gradients(model, len(rows))
        found[name] = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
    return found


def alone(processes):
    """The first process asks its ledger in between, and cannot ask the others for a sum."""

    def work():
        try:
            processes.sum({"": torch.ones(1)})
        except RuntimeError:
            return ledger.epsilon(), processes.on_first(lambda: processes.index)

    ledger = make_ledger(processes, 3)
    return processes.on_first(work)


def share_of_a_cache(processes: Processes, folder: Path) -> dict:
    """Decoded by the first process alone; the others could not."""
    whole = make_arrays(11, units=True)

    def load():
        assert processes.is_first
        with new_cache(folder / "images", "eleven", 0) as files:
            for name in ("images", "labels", "readable", "units"):
                np.save(files / f"{name}.npy", getattr(whole, name))
            np.save(files / "ids.npy", digests_of(whole.units.tolist()))
        return open_images(folder, "eleven")

    share = load_share(processes, load, folder)
    if processes.count == 1:
        return {"images": np.array(share.images)}
    assert isinstance(share.images._images, np.memmap)
    found = {name: np.array(getattr(share, name)) for name in ("labels", "readable", "units")}
    assert share.ids.tolist() == digests_of((share.units * processes.count + processes.index).tolist()).tolist()
    return {**found, "images": share.images[torch.arange(len(share.images))].numpy()}


def about_a_finished_model(processes: Processes) -> dict:
    """What is drawn from it, by whom, the classifier that is trained on it, and its query to the images, without
    noise."""
    whole, labels = load_digits_split(train=True)
    arrays = ImageArrays(whole[labels < 3][:60], labels[labels < 3][:60], np.ones(60, bool))
    share = share_of(arrays, processes.index, processes.count)
    images = SensitiveImages(
        share.images, share.labels, share.readable, num_images=60, image_shape=(1, 8, 8),
        ledger=make_ledger(processes, 60), class_names=("a", "b", "c"), processes=processes,
    )  # fmt: skip
    images._generator = Noiseless()
    torch.manual_seed(0)
    pipeline = DPImagePipeline(
        make_unet(3), EDMDPMSolverMultistepScheduler(sigma_data=0.5), id2label={0: "a", 1: "b", 2: "c"}
    )
    drawn_here, noise = [], pipeline.scheduler.set_timesteps
    pipeline.scheduler.set_timesteps = lambda *args, **options: drawn_here.append(1) or noise(*args, **options)
    pipeline.set_progress_bar_config(disable=True)
    drawn = charged.drawn_images(
        pipeline, Drawing(num_images=30, batch_size=8, num_inference_steps=1, seed=5), processes
    )
    judge = charged.Judge(drawn, seed=processes.index, epochs=1, processes=processes)
    row = LedgerRow("evaluation_reserve", Everyone(noise_multiplier=4.0))
    answer = judge.ask(images, row)
    return {
        "drawn": torch.from_numpy(drawn.images), "labels": drawn.labels.tolist(), "answer": answer,
        "weights": copy.deepcopy(judge.classifier.network.state_dict()), "batches": len(drawn_here),
    }  # fmt: skip


def measure(processes: Processes, folder: Path) -> dict:
    torch.manual_seed(0)
    model = nn.Linear(16, 3)
    found = {
        "exact": exact_sums(processes, model),
        "rows": sums_of_rows(processes, model, folder / f"rows{processes.count}"),
        "large": large_sums(processes),
        "whole": whole_sums(processes, model),
        "noise": noise_alone(processes),
        "every way": {cell: noise_of(cell, processes) for cell in NOISE_CELLS if processes.count > 1},
        "taken": who_takes_part(processes),
        "turns": who_takes_turns(processes),
    }
    found["warm-up"], found["refused"] = warm_up(processes, model), until_refused(processes, model)
    if processes.index:
        nn.init.zeros_(model.weight)  # another model than the first one's
    found["trained"] = copy.deepcopy(train(processes, model))
    found["alone"] = alone(processes)
    found["checkpoint"] = go_on(processes, folder / f"checkpoints{processes.count}")
    found["finished"] = about_a_finished_model(processes)
    found["share"] = share_of_a_cache(processes, folder / f"cache{processes.count}")
    return found


def main(folder: Path) -> None:
    library.LONGEST_WAIT = timedelta(seconds=60)  # a test that hangs, fails
    processes = library.start_processes(precision="no")
    set_seed(processes.index)  # as a run does
    found = measure(processes, folder)
    torch.save(found, folder / f"{processes.count}-{processes.index}.pt")
    if processes.first_goes_on():
        processes.on_first(lambda: (folder / f"{processes.count}").touch())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
