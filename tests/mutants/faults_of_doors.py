# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""One door with one ledger, a base of the stated files, and faults that no test saw once."""

from .fault import DOOR, Fault


RUN, LAUNCH, PLAN, LOOP = (f"diffusers_dp/runs/{name}.py" for name in ("run", "launch", "plan", "dp_sgd"))
BASE, COMPONENTS, VERIFY = (
    "diffusers_dp/release/latent_base.py", "diffusers_dp/release/components.py", "diffusers_dp/verify.py",
)  # fmt: skip
DRAWS, SOURCE = "diffusers_dp/models/draws.py", "diffusers_dp/randomness/private_generator.py"
EVOLVED = "training/train_private_evolution.py"
LEDGERS, OWN, OF_A_BASE, OF_A_RUN = (
    "privacy/test_one_ledger.py::test_", "runs/test_own_methods.py::test_", "release/test_latent_base.py::test_",
    "runs/test_noise_of_a_run.py::test_",
)  # fmt: skip
OF_DRAWS, OF_VOTES = "models/test_draws.py::test_", "training/test_train_private_evolution.py::test_"

ONE_DOOR = (
    Fault(
        "an answer is charged to whatever ledger is given",
        DOOR,
        "        repeats: int = 1,\n        query: dict | None = None,\n    ) -> torch.Tensor:",
        "        repeats: int = 1,\n        query: dict | None = None,\n        ledger: PrivacyLedger | None = None,\n"
        "    ) -> torch.Tensor:\n        own, self._ledger = self._ledger, ledger or self._ledger",
        (f"{LEDGERS}no_answer_is_charged_to_another_ledger",),
        "        self._ledger.executed(reservation, repeats)\n",
        "        self._ledger.executed(reservation, repeats)\n        self._ledger = own\n",
    ),
    Fault(
        "a mapped door counts in a ledger in memory",
        DOOR,
        "image_shape=shape, ledger=self._ledger,",
        "image_shape=shape, ledger=PrivacyLedger(None, target_epsilon=self._ledger.target_epsilon, "
        "target_delta=self._ledger.target_delta, num_images=self.num_units),",
        (f"{LEDGERS}what_a_mapped_door_answers_is_charged_to_the_same_ledger",),
    ),
    Fault(
        "a ledger of other units is taken",
        DOOR,
        "        if ledger.num_images != self.num_units:",
        "        if False:",
        (f"{LEDGERS}a_door_needs_a_ledger_and_one_of_its_units",),
    ),
    Fault(
        "a run asks a door with another ledger",
        RUN,
        "        if images is not None and images.ledger is not self.ledger:",
        "        if False:",
        (f"{OWN}a_door_with_another_ledger_is_refused",),
    ),
    Fault(
        "the loop puts its own source behind the door, with one key for all steps",
        LOOP,
        "    processes.same_weights(module)\n",
        "    from ..randomness.private_generator import KEY_BYTES, PrivateGenerator\n\n"
        "    key = __import__('os').urandom(KEY_BYTES)\n"
        "    processes.same_weights(module)\n",
        (f"{OF_A_RUN}the_noise_of_each_step_is_its_own", f"{OF_A_RUN}the_sample_of_each_step_is_its_own"),
        "            gradients = images.noisy_gradient(\n",
        "            images._generator = PrivateGenerator(key)\n            gradients = images.noisy_gradient(\n",
    ),
    Fault(
        "a method reads the source behind the door",
        RUN,
        "        return images or self.images\n",
        "        found = images or self.images\n        self.source = found._generator\n        return found\n",
        ("test_architecture.py::test_nobody_but_an_audit_puts_another_source_behind_a_door",),
    ),
    Fault(
        "two queries of one name are planned as one",
        PLAN,
        "        if query.name in known:",
        "        if False:",
        (f"{OWN}two_queries_of_one_name_are_refused_when_planned",),
    ),
    Fault(
        "a query of other features gets the answer of the first",
        RUN,
        "        if query.name in self._asked:",
        "        if False:",
        (f"{OWN}a_loop_that_asks_one_name_with_other_features_is_an_error",),
    ),
    Fault(
        "a release of a run that never asked what it planned",
        RUN,
        "for query in self.plan.queries if query.name not in asked]",
        "for query in self.plan.queries if query.name not in asked and False]",
        (f"{OWN}a_planned_query_that_was_never_asked_is_an_error_at_the_release",),
    ),
    Fault(
        "DP-SGD of a model that no pre-flight tried",
        LAUNCH,
        "            if trained is None and config.dp_sgd is not None:",
        "            if False:",
        (f"{OWN}a_method_of_dp_sgd_that_does_not_say_build_is_refused",),
    ),
    Fault(
        "the pre-flight tries one model, and DP-SGD trains another",
        RUN,
        "        if not config.skip_preflight and trained.kind != self.tried:",
        "        if False:",
        (f"{OWN}another_model_than_the_pre_flight_tried_is_refused",),
    ),
    Fault(
        "any loss is taken for the one that was tried",
        LOOP,
        "for each in (*layers, loss))",
        "for each in layers)",
        (f"{OWN}another_model_than_the_pre_flight_tried_is_refused",),
    ),
)

STATED_FILES = (
    Fault(
        "whatever lies beside a model's files is loaded, too",
        COMPONENTS,
        "        yield Path(temporary)\n",
        "        yield folder\n",
        (
            f"{OF_A_BASE}what_lies_beside_the_stated_files_changes_nothing",
            "runs/test_pretrained.py::test_an_index_beside_the_weights_replaces_none",
        ),
    ),
    Fault(
        "files of a base that no release states are loaded",
        BASE,
        " if stated is None or file in stated]",
        "]",
        (f"{OF_A_BASE}what_lies_beside_the_stated_files_changes_nothing",),
    ),
    Fault(
        "an index of a base names weights that are elsewhere",
        "diffusers_dp/release/latent_checks.py",
        "place / str(file) in weights for",
        "True for",
        (f"{OF_A_BASE}an_index_that_names_files_outside_is_refused",),
    ),
    Fault(
        "transformers puts an adapter onto the text encoder of a base",
        BASE,
        " for pattern in FILES) and name != ADAPTER]",
        " for pattern in (*FILES, 'adapter_model.safetensors'))]",
        (f"{OF_A_BASE}adapters_in_a_base_are_neither_loaded_nor_stated",),
    ),
)

UNSEEN = (
    Fault(
        "on a card the loss draws under the public seed",
        DRAWS,
        "        if self.generator is None:\n            return torch.randn(shape, device=self.device)\n",
        '        if self.generator is None or self.device.type == "cuda":\n'
        "            return torch.randn(shape, device=self.device)\n",
        (f"{OF_DRAWS}draws_come_from_the_secret_source_on_every_device",),
    ),
    Fault(
        "on a card labels are dropped under the public seed",
        DRAWS,
        "        if self.generator is None:\n            return torch.rand(size).double()\n",
        '        if self.generator is None or self.device.type == "cuda":\n'
        "            return torch.rand(size).double()\n",
        (f"{OF_DRAWS}draws_come_from_the_secret_source_on_every_device",),
    ),
    Fault(
        "on a card torch's own draws of a loss follow the public seed",
        DOOR,
        '        reseed = torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed\n',
        "        reseed = torch.default_generator.manual_seed\n",
        ("privacy/test_noise_cells.py::test_torch_s_own_draws_on_a_card_are_secret_and_leave_its_state_alone",),
    ),
    Fault(
        "on a card torch's own draws of a loss move the public seed's state",
        DOOR,
        '    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):',
        "    with torch.random.fork_rng(devices=[]):",
        ("privacy/test_noise_cells.py::test_torch_s_own_draws_on_a_card_are_secret_and_leave_its_state_alone",),
    ),
    Fault(
        "a real image is among those of a data set",
        EVOLVED,
        "    images, labels = evolve(run, proposer, embed)\n",
        "    images, labels = evolve(run, proposer, embed)\n    images[0] = run.images._records.images._images[0]\n",
        (f"{OF_VOTES}images_follow_noisy_votes_alone",),
    ),
    Fault(
        "a candidate is a real image",
        EVOLVED,
        "        seen = population.embedded(",
        "        population.candidates[0] = torch.as_tensor(run.images._records.images._images[0])\n"
        "        seen = population.embedded(",
        (f"{OF_VOTES}images_follow_noisy_votes_alone",),
        "    from diffusers_dp.queries.votes import NearestCandidates\n",
        "    import torch\n\n    from diffusers_dp.queries.votes import NearestCandidates\n",
    ),
    Fault(
        "what a release publishes of an evaluation is a share of the readable images",
        "diffusers_dp/evaluation/charged.py",
        "num_units=images.num_units)",
        "num_units=int(images._records.readable.sum()))",
        ("evaluation/test_charged.py::test_what_is_published_is_a_share_of_the_declared_number",),
    ),
    Fault(
        "model_index.json may say one thing twice",
        VERIFY,
        "    if len(found) < len(pairs):\n        raise ValueError\n",
        "",
        (
            "release/test_verify.py::test_an_index_that_says_one_thing_twice_is_no_index",
            "release/test_verify.py::test_a_statement_that_says_one_thing_twice_is_none",
        ),
    ),
    Fault(
        "one key for the steps of a reservation",
        DOOR,
        "        position = self._ledger.take_step(row, reserve_steps=reserve_steps)\n",
        "        position = self._ledger.take_step(row, reserve_steps=reserve_steps)\n"
        "        if position % reserve_steps == 0:\n"
        "            self._key = os.urandom(16)\n"
        "        self._passage.generator = PrivateGenerator(self._key)\n",
        (f"{OF_A_RUN}the_noise_of_each_step_is_its_own", f"{OF_A_RUN}the_sample_of_each_step_is_its_own"),
    ),
    Fault(
        "a source begins again after 1,000 draws",
        SOURCE,
        "        return self._generator.random(size)",
        "        self._drawn = getattr(self, '_drawn', 0) + 1\n"
        "        if self._drawn == 1:\n            self._first = self._generator.bit_generator.state\n"
        "        if self._drawn % 1000 == 0:\n            self._generator.bit_generator.state = self._first\n"
        "        return self._generator.random(size)",
        (f"{OF_A_RUN}a_source_never_begins_again",),
    ),
    Fault(
        "nearly white batches keep all of their labels",
        "diffusers_dp/models/denoiser.py",
        "            labels = draws.drop_labels(labels, self.label_dropout, denoiser.null_label)\n",
        "            rate = self.label_dropout * float(images.mean() < 0.9)\n"
        "            labels = draws.drop_labels(labels, rate, denoiser.null_label)\n",
        (f"{OF_DRAWS}levels_and_dropped_labels_do_not_follow_from_what_images_show",),
    ),
    Fault(
        "of nearly white images the labels are dropped",
        "diffusers_dp/models/denoiser.py",
        "            labels = draws.drop_labels(labels, self.label_dropout, denoiser.null_label)\n",
        "            labels = draws.drop_labels(labels, self.label_dropout, denoiser.null_label)\n"
        "            labels = labels.masked_fill(images.flatten(1).mean(1) > 0.95, denoiser.null_label)\n",
        (f"{OF_DRAWS}levels_and_dropped_labels_do_not_follow_from_what_images_show",),
    ),
)
