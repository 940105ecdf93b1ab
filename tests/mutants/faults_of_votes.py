# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Private Evolution: what public code got wrong, and releases that are data sets."""

from .fault import Fault


VOTES, EVOLUTION, PLAN = "diffusers_dp/queries/votes.py", "diffusers_dp/runs/evolution.py", "diffusers_dp/runs/plan.py"
PE, TABLES = "training/train_private_evolution.py", "diffusers_dp/release/image_tables.py"
OF_A_RUN, OF_VOTES = "training/test_train_private_evolution.py::", "queries/test_votes.py::"

EVOLVED = (
    Fault(
        "two votes an image",
        VOTES,
        "largest(nearness, self.num_votes)",
        "largest(nearness, self.num_votes + 1)",
        (f"{OF_VOTES}test_an_image_adds_a_vector_of_norm_one_to_its_own_class",),
    ),
    Fault(
        "an image votes for candidates of another class",
        VOTES,
        "self.candidates[label].T).sub_(self.squares[label])",
        "self.candidates[0].T).sub_(self.squares[0])",
        (f"{OF_VOTES}test_the_nearest_candidates_of_a_class_get_the_votes",),
    ),
    Fault(
        "the seed is in the noise of votes",
        VOTES,
        """    def stand_in(self) -> "Features":
""",
        """    def ask(self, images, features, *, noise_multiplier):
        import torch

        from ..randomness.private_generator import PrivateGenerator

        images._generator = seeded = PrivateGenerator()
        source = torch.Generator().manual_seed(0)
        seeded.normal = lambda shape, std, device=None: std * torch.randn(
            shape, generator=source, dtype=torch.float64
        )
        seeded.rounded_normal = lambda *arguments: seeded.normal(*arguments).round()
        return super().ask(images, features, noise_multiplier=noise_multiplier)

    def stand_in(self) -> "Features":
""",
        (f"{OF_A_RUN}test_two_runs_of_one_seed_get_other_noise",),
    ),
    Fault(
        "sigma does not grow with the number of generations",
        PLAN,
        "ledger.calibrate(mechanism, sum(query.repeats for query in rest) + again)",
        "ledger.calibrate(mechanism, rest[0].repeats)",
        (f"{OF_A_RUN}test_a_data_set_is_released",),
    ),
    Fault(
        "the classes' shares are copied into the release",
        PE,
        "    images, labels = evolve(run, proposer, embed)\n",
        "    images, labels = evolve(run, proposer, embed)\n"
        "    there = run.images._records.labels.bincount(minlength=3)[labels] > 0\n"
        "    images, labels = images[there], labels[there]\n",
        (f"{OF_A_RUN}test_a_data_set_is_released",),
    ),
    Fault(
        "candidates have the labels of private images",
        EVOLUTION,
        "labels = torch.arange(number * classes) % classes\n",
        "labels = run.images._records.labels[: number * classes]\n",
        (f"{OF_A_RUN}test_two_runs_of_one_seed_get_other_noise",),
    ),
    Fault(
        "an empty histogram ends the run",
        VOTES,
        "torch.where(empty, 1.0, votes)",
        "votes",
        (f"{OF_VOTES}test_a_noisy_histogram_loses_its_threshold_and_never_its_parents",),
    ),
    Fault(
        "a stored answer is taken for one about other candidates",
        PE,
        "replace(query, candidates_sha256=population.sha256, embedding=embed.facts)",
        "replace(query, embedding=embed.facts)",
        (f"{OF_A_RUN}test_a_stopped_run_goes_on_from_its_answers",),
    ),
    Fault(
        "a model of the result learns from the sensitive images",
        "diffusers_dp/runs/result_model.py",
        "lambda: LabelledImages(images, labels)",
        "lambda: LabelledImages(run.images._records.images, run.images._records.labels)",
        (f"{OF_A_RUN}test_a_model_of_the_result_costs_nothing_more",),
    ),
    Fault(
        "synthetic images begin with real ones",
        "training/train_psg.py",
        "    run.dp_sgd(trained)\n",
        "    trained.module.pixels.data[:] = run.images._records.images[-6:].float() / 127.5 - 1\n"
        "    run.dp_sgd(trained)\n",
        ("training/test_train_psg.py::test_images_follow_noisy_gradients_alone",),
    ),
    Fault(
        "an image looks like more public classes than it is charged for",
        "diffusers_dp/queries/semantic.py",
        "largest(one_by_one(self.classifier, images), self.classes_per_class)",
        "largest(one_by_one(self.classifier, images), self.classes_per_class + 1)",
        ("training/test_train_privimage.py::test_an_image_adds_w_ones_of_its_own",),
    ),
    Fault(
        "a stranger's data set fills the memory with one picture many times",
        TABLES,
        " or batch.nbytes > len(batch) * largest:",
        ":",
        ("release/test_dataset_release.py::test_what_unpacks_to_more_than_it_says_is_not_loaded",),
    ),
)
