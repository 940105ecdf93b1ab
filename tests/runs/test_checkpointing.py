import json
from dataclasses import replace

import pytest
import torch
from diffusers import UNet2DModel
from diffusers.training_utils import EMAModel
from safetensors import safe_open

from diffusers_dp.accounting.ledger import LedgerRow, PrivacyLedger
from diffusers_dp.errors import IntegrityError, UsageError
from diffusers_dp.mechanisms import sampled
from diffusers_dp.privacy.stored_answers import NoisyAnswers
from diffusers_dp.runs.checkpoints import (
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
)


LEDGER = {"rows": 3, "steps_reserved": 40}
ROW = LedgerRow("frequency", sampled(1.0, 5.0), 2)
FILES = ["ema.safetensors", "optimizer.safetensors", "state.json", "unet.safetensors"]


class Trainee:
    """A tiny model with its moving average and optimiser."""

    def __init__(self, seed: int = 0, lr: float = 1e-3, channels: tuple[int, int] = (4, 8)):
        torch.manual_seed(seed)
        self.unet = UNet2DModel(
            sample_size=8,
            in_channels=1,
            out_channels=1,
            layers_per_block=1,
            block_out_channels=channels,
            norm_num_groups=4,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )
        self.ema = EMAModel(self.unet.parameters(), decay=0.99)
        self.optimizer = torch.optim.Adam(self.unet.parameters(), lr=lr, betas=(0.8, 0.95))

    @property
    def parts(self) -> dict:
        return {"unet": self.unet, "ema": self.ema, "optimizer": self.optimizer}

    def train(self, num_steps: int = 1) -> "Trainee":
        for step in range(num_steps):
            generator = torch.Generator().manual_seed(step)
            images = torch.randn(2, 1, 8, 8, generator=generator)
            self.optimizer.zero_grad()
            (self.unet(images, 5).sample - images).square().mean().backward()
            self.optimizer.step()
            self.ema.step(self.unet.parameters())
        return self

    def save(self, folder, step: int = 3, **kwargs):
        return save_checkpoint(folder, step, **self.parts, ledger_position=LEDGER, **kwargs)

    def load(self, checkpoint, ledger_position=LEDGER) -> dict:
        return load_checkpoint(checkpoint, **self.parts, ledger_position=ledger_position)

    def values(self) -> list[torch.Tensor]:
        states = [self.optimizer.state.get(parameter, {}) for parameter in self.unet.parameters()]
        moments = [value for state in states for _, value in sorted(state.items())]
        return [*self.unet.state_dict().values(), *self.ema.shadow_params, *moments]

    def equals(self, other: "Trainee") -> bool:
        mine, theirs = self.values(), other.values()
        return len(mine) == len(theirs) and all(map(torch.equal, mine, theirs))


def asked(*rows: LedgerRow) -> PrivacyLedger:
    """A ledger of answered queries; of `ROW` unless others are named."""
    ledger = PrivacyLedger(None, target_epsilon=100.0, target_delta=1e-5, num_images=10, accountant="rdp")
    for row in rows or (ROW,):
        ledger.executed(ledger.reserve(row), row.steps)
    return ledger


@pytest.fixture
def trained() -> Trainee:
    return Trainee().train(3)


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def flip(path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


class TestRoundTrip:
    def test_bit_equal_and_the_next_step_is_too(self, trained, tmp_path):
        other = Trainee(seed=1, lr=5.0).train()
        state = other.load(trained.save(tmp_path))
        assert (state["step"], state["ledger_position"]) == (3, LEDGER)
        assert other.equals(trained)
        assert other.ema.optimization_step == 3
        assert other.optimizer.param_groups[0]["lr"] == 1e-3
        assert other.train().equals(trained.train())
        assert other.ema.cur_decay_value == trained.ema.cur_decay_value

    def test_another_architecture_is_refused_and_left_alone(self, trained, tmp_path):
        checkpoint = trained.save(tmp_path)
        wider = Trainee(channels=(8, 8))
        with pytest.raises(UsageError, match="another shape"):
            wider.load(checkpoint)
        assert wider.equals(Trainee(channels=(8, 8)))


class TestContent:
    def test_no_pickle_and_no_random_state(self, trained, tmp_path):
        checkpoint = trained.save(tmp_path)
        assert names(checkpoint) == FILES
        state = json.loads((checkpoint / "state.json").read_text())
        words = json.dumps(state).lower()
        for name in FILES:
            if name.endswith(".safetensors"):
                with safe_open(checkpoint / name, "pt") as file:
                    words += " ".join(file.keys()).lower()
            assert not (checkpoint / name).read_bytes().startswith((b"\x80", b"PK"))
        assert not any(word in words for word in ("rng", "seed", "generator", "random", "philox"))

    def test_no_state_of_a_generator_in_any_bytes(self, trained, tmp_path):
        state = torch.get_rng_state().numpy().tobytes()
        content = b"".join((trained.save(tmp_path) / name).read_bytes() for name in FILES)
        assert state[:64] not in content and state[1024:1088] not in content


class TestDamage:
    @pytest.mark.parametrize("name", FILES)
    @pytest.mark.parametrize("where", [0, 0.1, 0.5, 0.9, 1])
    def test_a_flipped_bit_is_named_and_restores_nothing(self, trained, tmp_path, name, where):
        checkpoint = trained.save(tmp_path)
        flip(checkpoint / name, int(where * ((checkpoint / name).stat().st_size - 1)))
        other = Trainee(seed=1)
        with pytest.raises(IntegrityError, match=f"{name} is damaged"):
            other.load(checkpoint)
        assert other.equals(Trainee(seed=1))

    @pytest.mark.parametrize("name", FILES)
    def test_truncated_missing_or_a_folder(self, trained, tmp_path, name):
        path = trained.save(tmp_path) / name
        for damage, words in (
            (lambda: path.write_bytes(path.read_bytes()[:-1]), "is damaged"),
            (path.unlink, "is missing"),
            (path.mkdir, "cannot be read"),
        ):
            damage()
            for wanted in ("checkpoint-3", "latest"):
                with pytest.raises(IntegrityError, match=f"{name} {words}"):
                    find_checkpoint(tmp_path, wanted)


class TestFind:
    def test_latest_passes_a_damaged_one_over_and_says_so(self, trained, tmp_path, caplog):
        trained.save(tmp_path, 1)
        flip(trained.save(tmp_path, 2) / "unet.safetensors", 500)
        assert find_checkpoint(tmp_path, "latest") == tmp_path / "checkpoint-1"
        assert "checkpoint-2/unet.safetensors is damaged" in caplog.text
        with pytest.raises(IntegrityError):
            find_checkpoint(tmp_path, "checkpoint-2")

    def test_unknown_or_of_another_run(self, trained, tmp_path):
        for folder in ("mine", "theirs"):
            trained.save(tmp_path / folder)
        with pytest.raises(UsageError, match="--resume_from_checkpoint"):
            find_checkpoint(tmp_path / "mine", "checkpoint-4")
        with pytest.raises(UsageError, match="--resume_from_checkpoint"):
            find_checkpoint(tmp_path / "mine", str(tmp_path / "theirs" / "checkpoint-3"))


class TestPruning:
    def test_going_back_drops_what_lay_ahead_and_never_the_new_one(self, trained, tmp_path):
        for step in (10, 20, 30):
            trained.save(tmp_path, step, keep=3)
        trained.save(tmp_path, 15, keep=2)
        assert names(tmp_path) == ["checkpoint-10", "checkpoint-15"]
        assert find_checkpoint(tmp_path, "latest") == tmp_path / "checkpoint-15"


class TestLedgerPosition:
    @pytest.mark.parametrize("now", [{"rows": 2, "steps_reserved": 40}, {"rows": 3, "steps_reserved": 39}])
    def test_a_shorter_ledger_is_refused_and_restores_nothing(self, trained, tmp_path, now):
        checkpoint, other = trained.save(tmp_path), Trainee(seed=1)
        with pytest.raises(IntegrityError, match="shorter"):
            other.load(checkpoint, now)
        assert other.equals(Trainee(seed=1))


class TestNoisyAnswers:
    def test_round_trip_of_all_shapes_and_types(self, tmp_path):
        sums = torch.randn(3, 4)
        stored = {
            "sums": sums,
            "view": sums.T,
            "scalar": torch.tensor(2.0),
            "labels": torch.arange(3),
            "none": sums[:0],
        }
        NoisyAnswers(tmp_path / "answers").put(ROW, stored, seed=0)
        read = NoisyAnswers(tmp_path / "answers").get(ROW, asked(), seed=0)
        assert read.keys() == stored.keys()
        assert all(torch.equal(read[name], stored[name]) and read[name].dtype == stored[name].dtype for name in stored)

    @pytest.fixture
    def answers(self, tmp_path):
        found = NoisyAnswers(tmp_path)
        found.put(ROW, {"sums": torch.zeros(2)})
        return found

    def test_never_replaced(self, answers):
        with pytest.raises(IntegrityError, match="never replaced"):
            answers.put(ROW, {"sums": torch.ones(2)})
        assert torch.equal(answers.get(ROW, asked())["sums"], torch.zeros(2))

    @pytest.mark.parametrize(
        "rows",
        [
            [replace(ROW, mechanism=sampled(0.5, 5.0))],
            [replace(ROW, mechanism=sampled(1.0, 3.0))],
            [replace(ROW, name="central")],
            [replace(ROW, steps=1)],
        ],
    )
    def test_an_answer_that_the_ledger_does_not_know_is_refused(self, answers, rows):
        """A ledger that was lost would let the whole budget be spent once more."""
        with pytest.raises(IntegrityError, match="put back the whole ledger.jsonl"):
            answers.get(ROW, asked(*rows))

    @pytest.mark.parametrize(
        ("row", "meaning", "said"),
        [
            (ROW, {"seed": 1, "length_scale": 2.0}, "seed = 0"),
            (ROW, {"seed": 0, "length_scale": 3.0}, "length_scale = 2.0"),
            (replace(ROW, mechanism=sampled(1.0, 3.0)), {"seed": 0, "length_scale": 2.0}, "noise_multiplier = 5.0"),
            (replace(ROW, steps=1), {"seed": 0, "length_scale": 2.0}, "steps = 2"),
        ],
    )
    def test_an_answer_to_another_query_is_refused(self, tmp_path, row, meaning, said):
        """Under another seed the frequencies are other ones, and the numbers mean nothing."""
        answers = NoisyAnswers(tmp_path)
        answers.put(ROW, {"sums": torch.zeros(2)}, seed=0, length_scale=2.0)
        with pytest.raises(UsageError, match=said):
            answers.get(row, asked(ROW, row), **meaning)
