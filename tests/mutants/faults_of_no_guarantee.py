# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`--target_epsilon inf`: noise that goes missing elsewhere, and what takes such a run for a private one."""

from .fault import DOOR, LEDGER, LEDGER_FILE, MECHANISM, Fault


KIND = "diffusers_dp/release/no_guarantee.py"

WITHOUT_GUARANTEE = (
    Fault(
        "a finite run that gets no noise: its ledger is of the other kind",
        "diffusers_dp/runs/run_ledger.py",
        "        has_guarantee=config.has_guarantee,",
        "        has_guarantee=False,",
        ("runs/test_no_guarantee.py::TestFlags::test_a_finite_target_is_a_ledger_with_guarantee",),
    ),
    Fault(
        "a finite run that gets no noise: its ledger takes rows without",
        LEDGER,
        "        if not row.mechanism.has_noise and self.has_guarantee:\n",
        "        if not row.mechanism.has_noise and self.target_epsilon < 1:\n",
        ("runs/test_no_guarantee.py::TestDoor::test_no_finite_target_is_high_enough_for_an_answer_without_noise",),
    ),
    Fault(
        "a row without noise passes for a Gaussian one",
        MECHANISM,
        '            "mechanism": self.kind if self.has_noise else NON_PRIVATE,\n',
        '            "mechanism": self.kind,\n',
        ("runs/test_no_guarantee.py::TestLedger::test_a_row_without_noise_says_so",),
    ),
    Fault(
        "a high target counts as an infinite one",
        "diffusers_dp/methods/flag_groups.py",
        "return self.target_epsilon != math.inf",
        "return self.target_epsilon < 1000",
        ("runs/test_no_guarantee.py::TestFlags::test_a_finite_target_is_a_ledger_with_guarantee",),
    ),
    Fault(
        "a target that overflows takes the noise away",
        LEDGER,
        'finite_number(target_epsilon, field="target_epsilon") if has_guarantee else math.inf\n',
        "float(target_epsilon) if has_guarantee else math.inf\n",
        ("runs/test_no_guarantee.py::TestLedger::test_an_infinite_target_alone_is_no_ledger_without_guarantee",),
    ),
    Fault(
        "a ledger switched from finite to inf on resume",
        LEDGER_FILE,
        "        for key in (*here, *there):\n",
        '        for key in {*here, *there} - {"target_epsilon"}:\n',
        (
            "runs/test_no_guarantee.py::TestLedger::test_a_ledger_keeps_its_kind",
            "runs/test_no_guarantee.py::TestRuns::test_a_run_is_not_resumed_as_one_of_the_other_kind",
        ),
    ),
    Fault(
        "rows without noise are read under a finite target",
        LEDGER_FILE,
        '        sound = sound and asked.mechanism.has_noise == (header["target_epsilon"] != "inf")\n',
        "",
        ("runs/test_no_guarantee.py::TestLedger::test_a_row_without_noise_cannot_be_written_under_a_finite_target",),
    ),
    Fault(
        "a receipt of a run without noise",
        "diffusers_dp/release/receipt.py",
        "    if not ledger.has_guarantee:\n",
        "    if False:\n",
        ("runs/test_no_guarantee.py::TestLedger::test_no_receipt",),
    ),
    Fault(
        "a release written by an inf run",
        "diffusers_dp/runs/run.py",
        "        if not self.ledger.has_guarantee:\n",
        "        if False:\n",
        ("runs/test_no_guarantee.py::TestRuns::test_from_images_to_a_marked_pipeline[feta_pro]",),
    ),
    Fault(
        "an inf run is pushed",
        "diffusers_dp/methods/flags.py",
        'for name in ("push_to_hub", "evaluation_reserve", "dataset_id"):',
        'for name in ("evaluation_reserve", "dataset_id"):',
        ("runs/test_no_guarantee.py::TestFlags::test_what_makes_no_sense_is_refused_before_anything_is_read",),
    ),
    Fault(
        "a pipeline without guarantee does not say so",
        KIND,
        "    pipeline.register_to_config(privacy=PRIVACY)\n",
        "",
        ("runs/test_no_guarantee.py::TestRuns::test_from_images_to_a_marked_pipeline[dpdm]",),
    ),
    Fault(
        "a pipeline without guarantee is there for all to read",
        KIND,
        ", mode=0o700) as folder:",
        ") as folder:",
        ("runs/test_no_guarantee.py::test_the_folder_is_its_owner_s_whatever_the_umask",),
    ),
    Fault(
        "a private run begins with what a run without noise learned",
        "diffusers_dp/runs/prior_release.py",
        "    refuse_without_guarantee(folder, flag, OTHER_START)\n",
        "",
        ("runs/test_no_guarantee.py::TestRefusals::test_no_private_run_begins_with_it",),
    ),
    Fault(
        "a warm-up without noise passes for one with noise",
        "diffusers_dp/release/unreleased.py",
        "if ledger.has_guarantee else PRIVACY",
        "if ledger.rows is not None else PRIVACY",
        ("release/test_unreleased.py::test_no_run_begins_with_what_noisy_answers_taught",),
    ),
    Fault(
        "a finite run in the folder of an inf run",
        "diffusers_dp/runs/folder.py",
        "self.release.exists() or (self.output_dir / FOLDER).exists())",
        "self.release.exists())",
        ("runs/test_no_guarantee.py::TestRuns::test_no_other_run_goes_into_its_folder",),
    ),
    Fault(
        "gradients of a run without noise are not clipped",
        DOOR,
        "                    max_grad_norm=max_grad_norm,\n",
        "                    max_grad_norm=max_grad_norm if row.noise_multiplier else 1e9,\n",
        ("runs/test_no_guarantee.py::TestDoor::test_sums_and_gradients_without_guarantee_are_exact_and_clipped",),
    ),
)
