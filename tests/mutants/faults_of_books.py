# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The ledger, the accounting, the receipt and the release."""

from .fault import ACCOUNTING, DOOR, LEDGER, LEDGER_FILE, MECHANISM, PRIOR_RELEASE, ROW, SCRIPT, STEP, Fault


LARGE = "accounting/test_large_epsilon.py::test_"
CHARGED, PASS = "diffusers_dp/privacy/charged_pass.py", "privacy/test_charged_pass.py::test_"

LEDGER_FAULTS = (
    Fault(
        "a query's row is written after the answer",
        DOOR,
        "        totals, reservation = charged_pass(self._ledger, row, self.processes, exact_sums)\n",
        "        totals = exact_sums()\n",
        (f"{PASS}gate_pass_row_and_noise_follow_each_other", f"{PASS}the_row_is_on_disk_before_noise_is_drawn"),
        "        self._ledger.executed(reservation, repeats)",
        "        self._ledger.executed(self._ledger.reserve(row), repeats)",
    ),
    Fault(
        "a query's row is written before the pass over the images",
        CHARGED,
        "        seen = look()\n",
        "        reservation = ledger.reserve(row)\n        seen = look()\n",
        (f"{PASS}gate_pass_row_and_noise_follow_each_other",),
        "                reservation = ledger.reserve(row)\n",
        "                pass\n",
    ),
    Fault(
        "an error within the pass is not charged",
        CHARGED,
        "        failed = False\n    finally:\n",
        "        failed = False\n    except BaseException:\n        raise\n    else:\n",
        (f"{PASS}an_error_within_the_pass_is_charged_and_nothing_is_drawn",),
    ),
    Fault(
        "an error within the pass is not charged where another process was lost, too",
        CHARGED,
        "        charged = failed  #",
        "        charged = False  #",
        (f"{PASS}an_own_error_is_charged_whatever_ends_the_wait_for_the_others",),
    ),
    Fault(
        "an error within the pass of another process is answered",
        CHARGED,
        "    if failed:\n",
        "    if failed is None:\n",
        (f"{PASS}a_process_that_is_killed_costs_nothing_and_one_that_fails_the_query",),
    ),
    Fault(
        "the row is written while other processes still look",
        CHARGED,
        "            failed = processes.any(failed)\n            charged = True\n",
        "            reservation = ledger.reserve(row)\n            failed = processes.any(failed)\n",
        (f"{PASS}a_process_that_is_killed_costs_nothing_and_one_that_fails_the_query",),
    ),
    Fault(
        "images are looked at before the budget",
        CHARGED,
        "    ledger.refuse_unaffordable(row)\n",
        "",
        ("privacy/test_sensitive.py::test_a_query_over_the_budget_is_not_asked",),
    ),
    Fault(
        "a step is taken after the images were looked at",
        DOOR,
        "        position = self._ledger.take_step(row, reserve_steps=reserve_steps)\n",
        "        position = 0\n",
        ("privacy/test_sensitive.py::test_a_step_is_taken_before_an_image_is_read",),
        "        answer = self._passage.answer(",
        "        self._ledger.take_step(row, reserve_steps=reserve_steps)\n        answer = self._passage.answer(",
    ),
    Fault(
        "the ledger holds twice the noise that is added",
        MECHANISM,
        '            "noise_multiplier": self.noise_multiplier,\n',
        '            "noise_multiplier": 2 * self.noise_multiplier,\n',
        ("test_guarantee.py::test_every_draw_was_paid_for",),
    ),
    Fault(
        "repeats of a query count once",
        DOOR,
        "by_label=num_rows > 1 and records.units is None), repeats,\n",
        "by_label=num_rows > 1 and records.units is None), 1,\n",
        ("privacy/test_sensitive.py::test_repeats_are_independent_asks",),
        "        self._ledger.executed(reservation, repeats)\n",
        "        self._ledger.executed(reservation, 1)\n",
    ),
    Fault(
        "steps are taken without end from one reservation",
        LEDGER,
        '        if entry["steps_executed"] == entry["steps_reserved"]:',
        '        if entry["steps_executed"] > entry["steps_reserved"]:',
        ("accounting/test_ledger.py::test_steps_are_drawn_from_blocks",),
    ),
    Fault(
        "steps with less noise draw on a reservation with more",
        LEDGER,
        "if asked[n].same_query(row)",
        "if asked[n].same_query(replace(row, mechanism=asked[n].mechanism))",
        ("accounting/test_ledger.py::test_steps_are_drawn_from_blocks",),
    ),
    Fault(
        "the gate lets DP-SGD pass",
        LEDGER,
        "        if self._affords(composition):",
        '        if self._affords(composition) or rows[0].name == "dp_sgd":',
        ("privacy/test_sensitive.py::test_a_step_over_the_budget_is_not_taken",),
    ),
    Fault(
        "the gate looks at the new row alone",
        LEDGER,
        "        if self._affords(composition):",
        "        from .epsilon import compose\n"
        "\n"
        "        composition = compose(rows)\n"
        "        if self._affords(composition):",
        (
            "accounting/test_ledger.py::test_taking_steps_stops_at_the_target",
            "accounting/test_ledger.py::test_the_gate_refuses_and_writes_nothing",
        ),
    ),
    Fault(
        "calibration forgets what was asked before",
        LEDGER,
        "            before, mechanism, steps, self.target_epsilon",
        "            (), mechanism, steps, self.target_epsilon",
        ("runs/test_planning.py::test_dp_sgd_gets_what_the_queries_left",),
    ),
    Fault(
        "steps that were not executed cost nothing",
        ROW,
        'entry["steps_reserved"], facts)',
        'entry["steps_executed"] or 1, facts)',
        ("accounting/test_ledger.py::test_what_an_earlier_process_reserved_stays_spent",),
    ),
    Fault(
        "a resumed run draws on what an earlier process reserved",
        LEDGER,
        "        self._open: list[int] = []",
        '        self._open: list[int] = [row["id"] for row in self._rows if row["state"] == "reserved"]',
        ("accounting/test_ledger.py::test_what_an_earlier_process_reserved_stays_spent",),
    ),
    Fault(
        "a row is granted before it is synced",
        "diffusers_dp/files/journal.py",
        "            file.write(line)\n            file.flush()\n            os.fsync(file.fileno())",
        "            file.write(line)\n            file.flush()",
        ("accounting/test_journal.py::test_a_row_is_synced_before_it_is_granted",),
    ),
    Fault(
        "composition counts each query once",
        ACCOUNTING,
        "        pld.compose(event, count)\n",
        "        pld.compose(event)\n",
        ("accounting/test_accounting.py::test_published_epsilons",),
    ),
    Fault(
        "the accountant squares the sampling probability",
        MECHANISM,
        "            event = dp.PoissonSampledDpEvent(self.sampling_probability, event)",
        "            event = dp.PoissonSampledDpEvent(self.sampling_probability**2, event)",
        ("accounting/test_accounting.py::test_published_epsilons",),
    ),
    Fault(
        "replace-one neighbours are accepted from a file",
        LEDGER_FILE,
        "        for key in (*here, *there):",
        '        for key in ({*here, *there} - {"adjacency"}):',
        ("test_guarantee.py::test_a_ledger_for_other_neighbours_is_not_continued",),
    ),
    Fault(
        "a noisy answer is asked for again on resume",
        "diffusers_dp/privacy/stored_answers.py",
        "        if stored is None:\n",
        "        import shutil\n\n        shutil.rmtree(self.folder / row.name, ignore_errors=True)\n        if "
        "True:\n",
        ("training/test_train_feta_pro.py::test_resuming_after_a_crash",),
    ),
    Fault(
        "a stored answer is replaced",
        "diffusers_dp/privacy/stored_answers.py",
        '        if folder.exists():\n            raise IntegrityError(f"{folder} holds an answer',
        "        if folder.exists():\n"
        '            __import__("shutil").rmtree(folder)\n'
        "        if False:\n"
        '            raise IntegrityError(f"{folder} holds an answer',
        ("runs/test_checkpointing.py::TestNoisyAnswers::test_never_replaced",),
    ),
    Fault(
        "a checkpoint is taken though the ledger is shorter",
        "diffusers_dp/runs/checkpoints.py",
        "        if ledger_position[name] < saved:",
        "        if False:",
        ("runs/test_checkpointing.py::TestLedgerPosition",),
    ),
    Fault(
        "what was found affordable is granted at any sample rate",
        LEDGER,
        "        known = dict(self._affordable)\n",
        '        known = {getattr(event, "event", event): count for event, count in self._affordable}\n',
        ("accounting/test_ledger.py::test_what_was_found_affordable_is_no_other_query",),
        "known.get(event, 0)",
        'known.get(getattr(event, "event", event), 0)',
    ),
    Fault(
        "a divergence that is rounding counts as none",
        ACCOUNTING,
        "not composition else math.inf",
        "not composition else 0.0",
        ("accounting/test_accounting.py::test_rounding_below_zero_is_not_epsilon_zero",),
    ),
)

DATA_SETS = (
    Fault(
        "another release's bound is gated at this run's delta",
        LEDGER,
        'accounting.cost(together, self.sum_target, bound.delta, "pld", refine=False)',
        'accounting.cost(together, self.sum_target, self.target_delta, "pld", refine=False)',
        ("accounting/test_ledger_file.py::test_a_bound_holds_at_the_delta_at_which_it_was_promised",),
    ),
    Fault(
        "noise is calibrated to another release's bound at this run's delta",
        LEDGER,
        "accounting.calibrate(together, mechanism, steps, *bound,",
        "accounting.calibrate(together, mechanism, steps, bound.epsilon, self.target_delta,",
        ("accounting/test_ledger_file.py::test_a_bound_holds_at_the_delta_at_which_it_was_promised",),
    ),
    Fault(
        "the smallest bound replaces those at a smaller delta",
        LEDGER_FILE,
        "key=lambda bound: (bound.delta, bound.epsilon)",
        "key=lambda bound: bound.epsilon",
        (
            "accounting/test_ledger_file.py::test_bounds_that_others_imply_are_left_out_and_no_others",
            "accounting/test_ledger_file.py::test_a_bound_holds_at_the_delta_at_which_it_was_promised",
        ),
    ),
    Fault(
        "the verifier counts every bound of the data set at the receipt's delta",
        "diffusers_dp/verify.py",
        'cost = computed if bound["delta"] == delta else epsilon(together, bound["delta"], interval=interval)',
        "cost = computed",
        ("release/test_verify.py::test_a_forged_sum_is_named",),
    ),
    Fault(
        "a closed ledger writes on",
        "diffusers_dp/accounting/ledger_file.py",
        "        if self._closed:\n",
        "        if False:\n",
        ("accounting/test_ledger_file.py::test_a_closed_ledger_writes_no_row",),
    ),
    Fault(
        "training begins with a release of the data set that another ledger holds",
        PRIOR_RELEASE,
        "            if not (_hold(others, receipt) if is_first else",
        "            if not (True if is_first else",
        ("runs/test_prior_release.py::test_a_release_of_the_data_set_is_refused_where_the_ledger_does_not_hold_it",),
    ),
    Fault(
        "an equal query of another release stands for a release",
        PRIOR_RELEASE,
        '    if receipt["dataset"]["release_id"] not in [',
        "    if not [",
        ("runs/test_prior_release.py::test_a_release_of_the_data_set_is_refused_where_the_ledger_does_not_hold_it",),
    ),
    Fault(
        "releases before a release are not looked for",
        PRIOR_RELEASE,
        'receipt["events"], *(prior["events"] for prior in receipt.get("prior_releases", []))',
        'receipt["events"]',
        ("runs/test_prior_release.py::test_releases_before_the_release_count_too",),
    ),
)

RELEASED = (
    Fault(
        "a plan is granted whose release does not verify",
        "diffusers_dp/runs/plan.py",
        "        refuse_unverifiable(ledger, config.queries)",
        "        pass",
        ("runs/test_verifiable.py::test_what_verify_would_refuse_is_refused_by_its_flag",),
    ),
    Fault(
        "reservations that a receipt adds up count once",
        "diffusers_dp/release/receipt.py",
        "first.get(key, 0) + event[key] for key in STEPS_OF_EVENT",
        "event[key] for key in STEPS_OF_EVENT",
        ("runs/test_verifiable.py::test_reservations_without_end_still_verify",),
    ),
    Fault(
        "norms of gradients are printed",
        STEP,
        "        for name, part in summed.items():",
        "        print(gradients.squared_norms().mean())\n        for name, part in summed.items():",
        ("training/test_train_feta_pro.py::test_a_damaged_or_missing_image_shows_nowhere",),
    ),
    Fault(
        "the run says how many images could be read",
        "diffusers_dp/runs/run.py",
        '            self.stages, saying, "Private',
        '            self.stages, saying, int(self.images._records.readable.sum()), "Private',
        ("training/test_train_feta_pro.py::test_a_damaged_or_missing_image_shows_nowhere",),
    ),
    Fault(
        "the receipt leaves out queries asked once",
        "diffusers_dp/release/receipt.py",
        'if key != "state"} for row in rows]  # copies',
        'if key != "state"} for row in rows if row["mechanism"] != "gaussian"]',
        ("release/test_receipt.py::TestClaims::test_reserved_steps_count_even_if_not_executed",),
    ),
    Fault(
        "the receipt claims DP-SGD alone",
        "diffusers_dp/release/receipt.py",
        '    pld = ledger.epsilon("pld")\n',
        '    pld = ledger.epsilon("pld") - ledger.epsilon_by_stage()[0][1]\n',
        ("release/test_receipt.py::TestClaims",),
    ),
    Fault(
        "the card rounds epsilon down",
        "diffusers_dp/verify.py",
        'f"{math.ceil(epsilon * 1e4) / 1e4:.4f}"',
        'f"{math.floor(epsilon * 1e4) / 1e4:.4f}"',
        ("release/test_release.py::TestStatement::test_card",),
    ),
    Fault(
        "a release takes files from the run's folder along",
        "diffusers_dp/release/build.py",
        "        give_ordinary_modes(release)\n",
        '        for path in Path(output_dir, "private").glob("*.csv"):\n'
        "            (release / path.name).write_bytes(path.read_bytes())\n"
        "        give_ordinary_modes(release)\n",
        ("release/test_release.py::TestAllowList::test_exactly_these_files",),
    ),
    Fault(
        "the export looks at the images once more",
        "diffusers_dp/runs/run.py",
        "        samples = sample_grid(pipeline, config.seed",
        "        self.images._records.images.float().mean()\n        samples = sample_grid(pipeline, config.seed",
        ("test_guarantee.py::test_the_export_reads_nothing_private",),
    ),
    Fault(
        "a warm-up image is a real one",
        SCRIPT,
        "CentralImages(central, run.facts.image_shape, config.seed + run.processes.index)\n",
        "CentralImages(central, run.facts.image_shape, config.seed + run.processes.index)\n"
        '        sources["spatial"].images[0] = run.images._records.images[0]\n',
        ("test_guarantee.py::test_the_export_reads_nothing_private",),
    ),
    Fault(
        "the verifier skips hashes",
        "diffusers_dp/verify.py",
        "        elif file_digest(found[name]) != stated[name]:",
        "        elif False:",
        ("release/test_verify.py::test_a_changed_and_a_missing_file_are_named",),
    ),
    Fault(
        "the verifier believes the claim",
        "diffusers_dp/verify.py",
        "    if not computed - slack <= claim:",
        "    if not computed - slack <= computed:",
        ("release/test_verify.py::test_a_forged_receipt_is_noticed",),
    ),
    Fault(
        "a claim may lie ten intervals below what the events cost",
        "diffusers_dp/verify.py",
        'max(EXACT, 1e-16 / receipt["delta"]) if theirs == here else math.inf',
        "math.inf",
        ("release/test_verify.py::test_a_claim_that_is_a_little_too_small_is_refused",),
    ),
    Fault(
        "PRV may claim a little less than PLD",
        "diffusers_dp/verify.py",
        'stated["prv"] < by_pld - slack:',
        'stated["prv"] < 0.99 * by_pld:',
        ("release/test_verify.py::test_a_claim_that_is_a_little_too_small_is_refused",),
    ),
    Fault(
        "a receipt claims PRV's estimate below PLD's bound",
        ACCOUNTING,
        '        return max(value, cost(composition, target_epsilon, delta, "pld", refine=refine))',
        "        return value",
        ("release/test_receipt.py::TestClaims::test_prv_claims_no_less_than_pld",),
    ),
    Fault(
        "unknown code beside the weights is called known",
        "diffusers_dp/verify.py",
        'if file["sha256"] == PIPELINE',
        'if file["sha256"]',
        ("release/test_verify.py::test_the_published_pipeline_is_known_code",),
    ),
    Fault(
        "the verifier takes any adjacency",
        "diffusers_dp/verify.py",
        '    "adjacency": {"zero_out"},',
        '    "adjacency": anything,',
        ("release/test_verify.py::test_a_forged_receipt_is_noticed",),
    ),
    Fault(
        "a noisy query beside the door and the ledger",
        "diffusers_dp/runs/dp_sgd.py",
        "            optimizer.step()\n            lr_scheduler.step()\n            ema.step",
        "            if step == 0:\n"
        "                from diffusers_dp.randomness import PrivateGenerator\n\n"
        "                images._records.images.float().mean() + PrivateGenerator().normal((1,), 0.5)\n"
        "            optimizer.step()\n            lr_scheduler.step()\n            ema.step",
        ("test_guarantee.py::test_every_draw_was_paid_for",),
    ),
    Fault(
        "a finished run is released again, with other flags in its receipt",
        "diffusers_dp/runs/run.py",
        "began=bool(self.ledger.rows)",
        "began=False",
        ("training/test_train_psg.py::test_a_finished_run_is_not_released_again_with_other_words",),
    ),
    Fault(
        "RDP's rough value is called PLD's",
        ACCOUNTING,
        "    if not rough <= MOST_BY_RDP:\n        return math.inf\n",
        "    if not rough <= MOST_EPSILON:\n        return rdp_epsilon(composition, delta, QUICK_ORDERS)[0]\n",
        (f"{LARGE}where_pld_is_not_computed_epsilon_is_infinite_and_the_gate_is_shut",),
    ),
    Fault(
        "quick orders alone say where PLD is computed",
        ACCOUNTING,
        "    return rough if history is None else scale(history, delta)",
        "    return rough",
        (f"{LARGE}the_verifier_computes_the_same_large_epsilon",),
    ),
    Fault(
        "epsilon above 709 is what overflows",
        "diffusers_dp/verify.py",
        "    if accountant.get_delta(LARGE_EPSILON) <= delta:\n",
        "    if accountant:\n",
        (f"{LARGE}one_gaussian_has_the_epsilon_of_the_closed_form",),
    ),
)
