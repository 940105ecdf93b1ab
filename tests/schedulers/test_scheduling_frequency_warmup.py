import json

import pytest

from diffusers_dp.schedulers import FrequencyWarmupScheduler, WarmupStage
from diffusers_dp.schedulers.scheduling_frequency_warmup import CURRICULA


VALUES = {
    "spatial_steps": 4,
    "spatial_batch_size": 5,
    "spatial_learning_rate": 1e-3,
    "frequency_steps": 6,
    "frequency_batch_size": 9,
    "frequency_learning_rate": 2e-3,
}


def run(scheduler: FrequencyWarmupScheduler) -> list[str]:
    return [scheduler.step().name for _ in range(scheduler.num_train_steps)]


class TestCurricula:
    @pytest.mark.parametrize(
        ("curriculum", "names"),
        [
            ("spatial,frequency", ["spatial"] * 4 + ["frequency"] * 6),
            ("frequency,spatial", ["frequency"] * 6 + ["spatial"] * 4),
            ("mix", ["mix"] * 10),
            ("frequency", ["frequency"] * 6),
            ("spatial", ["spatial"] * 4),
            ("none", []),
        ],
    )
    def test_stages_follow_in_order_for_their_lengths(self, curriculum, names):
        scheduler = FrequencyWarmupScheduler(curriculum, **VALUES)
        assert scheduler.num_train_steps == len(names)
        assert run(scheduler) == names
        with pytest.raises(RuntimeError, match="over after"):
            scheduler.step()

    @pytest.mark.parametrize("curriculum", CURRICULA)
    def test_a_query_is_needed_exactly_if_a_batch_holds_its_images(self, curriculum):
        scheduler = FrequencyWarmupScheduler(curriculum, **VALUES)
        splits = [scheduler.split_batch(stage) for stage in scheduler.stages]
        assert scheduler.needs("spatial") == any(spatial for spatial, _ in splits)
        assert scheduler.needs("frequency") == any(frequency for _, frequency in splits)
        assert [sum(split) for split in splits] == [stage.batch_size for stage in scheduler.stages]

    def test_mix_is_half_spatial_half_frequency_with_the_values_of_the_frequency_stage(self):
        scheduler = FrequencyWarmupScheduler("mix", **VALUES)
        assert scheduler.stages == [WarmupStage("mix", 10, 9, 2e-3)]
        assert scheduler.split_batch(scheduler.step()) == (4, 5)


class TestSetTrainSteps:
    @pytest.mark.parametrize("num_train_steps", [1, 2, 3, 7, 10, 11, 997, 3340])
    @pytest.mark.parametrize("curriculum", [curriculum for curriculum in CURRICULA if curriculum != "none"])
    def test_sums_exactly_and_stays_within_one_step_of_proportion(self, curriculum, num_train_steps):
        scheduler = FrequencyWarmupScheduler(curriculum, spatial_steps=1000, frequency_steps=2340)
        total = scheduler.num_train_steps
        exact = [stage.num_steps * num_train_steps / total for stage in scheduler.stages]
        scheduler.set_train_steps(num_train_steps)
        assert scheduler.num_train_steps == num_train_steps == len(run(scheduler))
        assert all(abs(stage.num_steps - share) < 1 for stage, share in zip(scheduler.stages, exact, strict=True))

    def test_a_stage_without_steps_is_passed_over(self):
        scheduler = FrequencyWarmupScheduler(spatial_steps=1, frequency_steps=99)
        scheduler.set_train_steps(3)
        assert run(scheduler) == ["frequency"] * 3

    def test_no_curriculum_has_no_steps(self):
        scheduler = FrequencyWarmupScheduler("none")
        scheduler.set_train_steps(0)
        assert scheduler.num_train_steps == 0
        with pytest.raises(ValueError, match="none"):
            scheduler.set_train_steps(1)


class TestConfig:
    def test_save_and_load_keep_the_config_and_not_the_position(self, tmp_path):
        scheduler = FrequencyWarmupScheduler("frequency,spatial", **VALUES)
        scheduler.step()
        scheduler.save_pretrained(tmp_path)
        saved = json.loads((tmp_path / "scheduler_config.json").read_text())
        assert saved.items() >= {"curriculum": "frequency,spatial", **VALUES}.items()
        loaded = FrequencyWarmupScheduler.from_pretrained(tmp_path)
        assert {name: loaded.config[name] for name in VALUES} == VALUES
        assert loaded.stages == scheduler.stages
        assert loaded.train_step == 0
