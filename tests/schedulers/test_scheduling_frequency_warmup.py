import json

import pytest

from diffusers_dp.schedulers.scheduling_frequency_warmup import CURRICULA, FrequencyWarmupScheduler, WarmupStage


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
