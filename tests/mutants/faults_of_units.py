# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Units of several images, and releases of one data set."""

from .fault import DOOR, LEDGER, LEDGER_FILE, RECORDS, STEP, Fault


UNITS = (
    Fault(
        "a unit's features are added, not averaged",
        DOOR,
        "                    rows = rows / images_of_unit[:, None].to(rows.device)",
        "                    pass",
        ("privacy/test_units.py::test_one_unit_moves_a_query_by_the_clip_norm_at_most",),
    ),
    Fault(
        "noise of a gradient halved where units are used",
        DOOR,
        "clip_norm=max_grad_norm, normaliser=normaliser, position=position",
        "clip_norm=max_grad_norm / (1 if self._records.units is None else 2), normaliser=normaliser, "
        "position=position",
        ("privacy/test_noise_cells.py::test_noise_of_every_way_to_ask",),
    ),
    Fault(
        "noise of an answer halved where units are used",
        DOOR,
        "passage.answer({name: totals.pop(0)}, clip_norm=clip_norm, normaliser=1)[name]",
        "passage.answer({name: totals.pop(0)}, clip_norm=clip_norm / (1 if records.units is None else 2), "
        "normaliser=1)[name]",
        ("privacy/test_noise_cells.py::test_noise_of_every_way_to_ask",),
    ),
    Fault(
        "a unit's images are looked at without a limit",
        RECORDS,
        "return taken[within < self.max_images_per_unit], counts.clamp_max(self.max_images_per_unit)",
        "return taken, counts",
        ("privacy/test_units.py::test_no_more_images_of_a_unit_are_looked_at_than_declared",),
    ),
    Fault(
        "the first images of a unit are always taken",
        RECORDS,
        "        taken = taken[luck[taken].argsort()]",
        "        taken = taken[taken.argsort()]",
        ("privacy/test_units.py::test_which_images_of_a_unit_are_looked_at_is_drawn_anew",),
    ),
    Fault(
        "rows of a unit in the wrong order",
        STEP,
        "unit_index=unit_index.repeat_interleave(noise_multiplicity)",
        "unit_index=unit_index.repeat(noise_multiplicity)",
        ("privacy/test_units.py::test_one_unit_moves_a_gradient_by_the_clip_norm_at_most",),
    ),
    Fault(
        "classes of a unit are called parallel",
        DOOR,
        "by_label=num_rows > 1 and records.units is None)",
        "by_label=num_rows > 1)",
        ("privacy/test_units.py::test_the_ledger_counts_units",),
    ),
    Fault(
        "unreadable images of a unit are averaged over",
        RECORDS,
        "        taken = (sampled[unit_of] & self.readable).nonzero().squeeze(1)",
        "        taken = sampled[unit_of].nonzero().squeeze(1)",
        ("privacy/test_units.py::test_unreadable_images_are_not_averaged_over",),
    ),
    Fault(
        "a unit larger than a physical batch is parted",
        RECORDS,
        "tolist()) if len(unit)]",
        "tolist()) if len(unit) for unit in unit.split(size)]",
        ("privacy/test_units.py::test_a_unit_s_gradient_is_averaged_then_clipped",),
    ),
)

RELEASES = (
    Fault(
        "other releases of the data set are not gated",
        LEDGER,
        "        together = self._with_others(composition)",
        "        together = composition",
        ("accounting/test_ledger_file.py::test_the_sum_over_releases_is_gated_and_calibrated_to",),
    ),
    Fault(
        "noise is calibrated as if there were no other release",
        LEDGER,
        "                together = self._with_others(before)",
        "                together = before",
        ("accounting/test_ledger_file.py::test_the_sum_over_releases_is_gated_and_calibrated_to",),
    ),
    Fault(
        "another release's bound is forgotten",
        LEDGER,
        "[self.header, *(r.header for r in self._file.others)]",
        "[self.header]",
        ("accounting/test_ledger_file.py::test_a_bound_that_one_release_was_given_holds_for_all",),
    ),
    Fault(
        "a release that denies its guarantee is consistent",
        "diffusers_dp/verify.py",
        '    "status": {*STATUSES},\n    "assumptions"',
        '    "status": words,\n    "assumptions"',
        ("release/test_verify.py::test_what_denies_a_guarantee_is_named",),
    ),
    Fault(
        "an edited line goes unnoticed",
        LEDGER_FILE,
        '        if line.get("chain") != chain:',
        '        if "chain" not in line:',
        ("accounting/test_ledger_file.py::test_an_edited_line_is_noticed",),
    ),
    Fault(
        "releases that protect other units are added up",
        LEDGER_FILE,
        '        if other != unit and release.header["dataset_id"] is not None:',
        '        if other is None and release.header["dataset_id"] is not None:',
        ("accounting/test_ledger_file.py::test_releases_that_protect_other_units_cannot_be_added_up",),
    ),
    Fault(
        "two processes write one data set's ledger",
        LEDGER_FILE,
        "        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        ("accounting/test_ledger_file.py::test_one_process_at_a_time_writes_a_data_set_s_ledger",),
    ),
    Fault(
        "the verifier leaves prior releases out of the sum",
        "diffusers_dp/verify.py",
        '    releases = [receipt, *receipt.get("prior_releases", [])]\n',
        "    releases = [receipt]\n",
        ("release/test_verify.py::test_releases_of_one_data_set_are_added_up",),
    ),
    Fault(
        "what does not match is loaded all the same",
        "diffusers_dp/release/loading.py",
        "    if found.problems and require_dp:",
        "    if found.problems and not require_dp:",
        ("release/test_hub.py::test_what_does_not_match_raises_or_warns_loudly",),
    ),
)
