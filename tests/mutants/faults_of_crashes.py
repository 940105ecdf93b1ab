# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Crashes, signals and full memory."""

from .fault import DOOR, LEDGER_FILE, NOISE_OF_STEPS, Fault


POWER_CUT = ("runs/test_crash.py::test_a_power_cut_before_every_sync",)
SIGTERM = ("distributed/test_interruption.py::test_in_dp_sgd_the_step_is_finished_and_saved",)
IDENTITY = "diffusers_dp/runs/identity.py"
OUT_OF_MEMORY = "diffusers_dp/gradients/out_of_memory.py"

KILLED = "runs/test_killed_queries.py::test_"
PLAN = "diffusers_dp/runs/plan.py"

CRASHES = (
    Fault(
        "a resumed run repeats finished stages of its warm-up",
        "diffusers_dp/runs/run.py",
        "        if not self.has_learned(stage):\n            teach()\n",
        "        if True:\n            teach()\n            if self.has_learned(stage):\n                return\n",
        (f"{KILLED}a_resumed_run_repeats_no_finished_stage_of_its_warm_up",),
    ),
    Fault(
        "a resume with other public inputs changes what the receipt names",
        "diffusers_dp/runs/run.py",
        "        if self.checkpoint is None and not (private / LEARNED).exists():\n",
        "        if self.checkpoint is None:\n",
        (f"{KILLED}other_public_inputs_do_not_follow_a_finished_stage",),
    ),
    Fault(
        "a run that cannot be finished asks on",
        "diffusers_dp/runs/rest_of_plan.py",
        "    if needed and (problem",
        "    if False and (problem",
        (f"{KILLED}the_rest_is_priced_before_the_next_query",),
    ),
    Fault(
        "the rest of a plan is priced without DP-SGD",
        "diffusers_dp/runs/rest_of_plan.py",
        "    needed = [*before, *after, *(steps if before else [])]",
        "    needed = [*before, *after]",
        (f"{KILLED}the_rest_is_priced_before_the_next_query",),
    ),
    Fault(
        "a finished model whose evaluation was lost is refused",
        "diffusers_dp/runs/rest_of_plan.py",
        "later is None or later.name in asked else",
        "later is None else",
        (f"{KILLED}a_lost_evaluation_is_not_asked_again_and_stops_no_release",),
    ),
    Fault(
        "a resumed run chooses the noise of its queries again",
        PLAN,
        "    kept = identity.noise if identity.asked and config",
        "    kept = identity.noise if not identity.asked and config",
        (f"{KILLED}no_noise_is_chosen_again",),
    ),
    Fault(
        "a resumed run asks what was not planned",
        "diffusers_dp/runs/noise.py",
        "    found = kept.get(query.name)\n",
        "    found = kept.get(query.name) or {'noise_multiplier': 1.0, **_asked(query)}\n",
        (f"{KILLED}a_query_that_is_new_is_refused",),
    ),
    Fault(
        "DP-SGD gets what the slack of queries is kept for",
        PLAN,
        "    ledger.set_aside += [row for row in slack if row not in shared]\n",
        "",
        (f"{KILLED}slack_keeps_budget_for_one_answer_and_names_whose",),
    ),
    Fault(
        "queries that share the rest leave nothing for their slack",
        PLAN,
        "for query in rest) + again)",
        "for query in rest))",
        (f"{KILLED}slack_of_queries_that_share_the_rest",),
    ),
    Fault(
        "steps that a crash lost are not counted",
        LEDGER_FILE,
        "                    self.own = release\n",
        "                    self.own = release\n"
        "                    for row, asked in zip(release.rows, release.asked, strict=True):\n"
        '                        if row["state"] == "reserved":\n'
        '                            object.__setattr__(asked, "steps", max(1, row["steps_executed"]))\n',
        POWER_CUT,
    ),
    Fault(
        "a checkpoint is not synced",
        "diffusers_dp/files/journal.py",
        "        file.write(data)\n        file.flush()\n        os.fsync(file.fileno())",
        "        file.write(data)\n        file.flush()",
        POWER_CUT,
    ),
    Fault(
        "what has its final name is not synced",
        "diffusers_dp/files/journal.py",
        "    sync_tree(made)\n",
        "",
        ("runs/test_no_guarantee.py::test_a_power_cut_leaves_it_whole_or_not_at_all",),
    ),
    Fault(
        "a run's folder is not synced before its ledger",
        "diffusers_dp/runs/folder.py",
        "            sync_folder(self.output_dir)",
        "            # sync_folder(self.output_dir)",
        POWER_CUT,
    ),
    Fault(
        "the state of the generator is kept and restored",
        "diffusers_dp/runs/dp_sgd.py",
        "                if stopping:\n",
        "                import pickle\n\n"
        "                from diffusers_dp.files.journal import sync_folder, write_synced\n\n"
        "                kept = pickle.dumps(images._generator._generator.bit_generator.state)\n"
        '                write_synced(private / "random_states_0.pkl", kept)\n'
        "                sync_folder(private)\n"
        "                if stopping:\n",
        POWER_CUT,
        "    together = settings.reserved_together\n",
        "    together = settings.reserved_together\n"
        '    if (private / "random_states_0.pkl").exists():\n'
        "        import pickle\n\n"
        '        kept = pickle.loads((private / "random_states_0.pkl").read_bytes())\n'
        "        images._generator._generator.bit_generator.state = kept\n",
    ),
    Fault(
        "a run whose run.json is gone is taken for a new one",
        IDENTITY,
        "        if traces:\n",
        "        if traces and not private.exists():\n",
        (
            "runs/test_identity.py::test_a_run_whose_books_are_gone_spends_nothing",
            "runs/test_identity.py::test_a_run_that_has_begun_is_not_taken_for_a_new_one",
        ),
    ),
    Fault(
        "a run whose ledger is gone gets a fresh budget",
        IDENTITY,
        "        identity.asked = True\n",
        "        identity.asked = False\n",
        ("runs/test_identity.py::test_a_run_whose_books_are_gone_spends_nothing",),
    ),
    Fault(
        "what a run writes can be read by others",
        "diffusers_dp/runs/folder.py",
        "            with private_files(), in_one_sentence():\n",
        "            with in_one_sentence():\n",
        ("files/test_file_modes.py::test_all_that_a_run_writes",),
    ),
    Fault(
        "SIGTERM ends DP-SGD without a checkpoint of the last step",
        "diffusers_dp/runs/dp_sgd.py",
        "            if step % together == 0 or step == last_step or stopping:\n",
        "            if stopping:\n"
        "                stop_now()\n"
        "            if step % together == 0 or step == last_step or stopping:\n",
        SIGTERM,
    ),
    Fault(
        "SIGTERM ends what was paid for in its middle",
        "diffusers_dp/distributed/interruption.py",
        "    if not _unfinished:\n        stop_now()",
        "    if True:\n        stop_now()",
        (*SIGTERM, "distributed/test_interruption.py::test_a_query_is_finished_and_its_answer_kept"),
    ),
    Fault(
        "a step that ran out of memory takes another sample",
        DOOR,
        "            total = self._fitting.total(\n",
        "            def again(summed, batches):\n"
        "                try:\n"
        "                    return summed(batches)\n"
        "                except RuntimeError:\n"
        "                    sample = self._passage.units(position)\n"
        "                    other = self._records.batches_for_gradients(sample, 1, self._generator)\n"
        "                    return summed((scaled(i, -1), n, c, u) for i, n, c, u in other)\n"
        "\n"
        "            total = again(\n",
        ("gradients/test_out_of_memory.py::test_the_sample_the_step_and_the_noise_are_those_of_the_step",),
    ),
    Fault(
        "what did not fit into memory is left out",
        OUT_OF_MEMORY,
        "                    parts = [smaller for part in parts for smaller in _cut(part, self.at_most)]\n",
        "                    parts.pop(0)\n",
        ("gradients/test_out_of_memory.py::test_the_sample_the_step_and_the_noise_are_those_of_the_step",),
    ),
    Fault(
        "a unit is parted where memory runs out",
        OUT_OF_MEMORY,
        "        lengths = [int(part.sum()) for part in unit_index.bincount().split(size)]",
        "        lengths = [len(part) for part in images.split(size)]",
        ("gradients/test_out_of_memory.py::test_units_stay_whole",),
    ),
    Fault(
        "the noise of DP-SGD does not count the slack for restarts",
        NOISE_OF_STEPS,
        "mechanism.with_noise(ledger.calibrate(mechanism, config.counted_steps))",
        "mechanism.with_noise(ledger.calibrate(mechanism, config.max_train_steps))",
        ("runs/test_planning.py::test_slack_for_restarts_is_counted_before_and_spent_only_when_lost",),
    ),
)
