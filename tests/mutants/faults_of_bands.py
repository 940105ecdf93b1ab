# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Correlated noise, and groups that take turns."""

from .fault import BANDED, LEDGER, LEDGER_FILE, MECHANISM, NOISE_OF_STEPS, PASSAGES, RECORDS, Fault


BANDED_NOISE, VERIFY = "diffusers_dp/randomness/banded_noise.py", "diffusers_dp/verify.py"

BANDS = (
    Fault(
        "bands: noise of the past dropped",
        BANDED_NOISE,
        "                noise -= coefficient * earlier\n",
        "                noise -= 0 * coefficient * earlier\n",
        ("randomness/test_banded_noise.py::test_the_noise_is_that_of_the_matrix",),
    ),
    Fault(
        "bands: noise of the past dropped, as the audit sees it",
        BANDED_NOISE,
        "            for coefficient, earlier in zip(others, past):\n",
        "            for coefficient, earlier in ():\n",
        ("audit/test_audit_bands.py::test_an_honest_run_passes_below_its_claim",),
    ),
    Fault(
        "bands: noise as if the columns had norm 2",
        BANDED_NOISE,
        "            given = (noise / c_0).float()\n",
        "            given = (noise / c_0 / 2).float()\n",
        ("randomness/test_banded_noise.py::test_the_noise_is_that_of_the_matrix",),
    ),
    Fault(
        "bands: columns of any norm are taken",
        BANDED,
        "not math.fsum(c**2 for c in numbers) <= LARGEST_SUM_OF_SQUARES",
        "not math.fsum(c**2 for c in numbers) < math.inf",
        ("accounting/test_banded_rows.py::test_bands_that_prove_nothing_are_refused",),
    ),
    Fault(
        "bands: the verifier takes columns of any norm",
        VERIFY,
        "    if not math.fsum(value**2 for value in c) <= SUM_OF_SQUARES:\n",
        "    if not math.fsum(value**2 for value in c) <= 2:\n",
        ("release/test_verify_bands.py::test_a_forged_receipt_is_named",),
    ),
    Fault(
        "bands: a block goes on over lost steps",
        BANDED_NOISE,
        "        if block != self._block or position != self._next:\n",
        "        if block != self._block:\n",
        ("randomness/test_banded_noise.py::test_whatever_is_lost_a_group_meets_orthogonal_columns",),
    ),
    Fault(
        "bands: a resumed block replays its fresh noise",
        BANDED_NOISE,
        "            noise = generator.normal(tensor.shape, std, tensor.device).double()\n",
        "            key = self._next.to_bytes(8, 'big') + len(tensor).to_bytes(8, 'big')\n"
        "            noise = PrivateGenerator(key).normal(tensor.shape, std, tensor.device).double()\n",
        ("privacy/test_bands.py::test_noise_of_a_resumed_run_is_fresh",),
    ),
    Fault(
        "bands: past noise can be pickled",
        BANDED_NOISE,
        '        raise TypeError("BandedNoise is never serialised: anybody who has past noise can subtract it.")\n',
        "        return object.__reduce_ex__(self, 2)\n",
        ("randomness/test_banded_noise.py::test_past_noise_is_never_serialised",),
    ),
    Fault(
        "bands: groups that are not disjoint",
        RECORDS,
        "units[groups == each]",
        "units[(groups == each) | (groups == 0)]",
        ("privacy/test_bands.py::test_groups_take_turns_by_the_position_in_the_ledger",),
    ),
    Fault(
        "bands: a unit's group follows from its number",
        RECORDS,
        "groups = group_of(ids[named][first], number, key)",
        "groups = group_of(digests_of(units.tolist()), number, key)",
        ("privacy/test_ids.py::test_a_unit_that_is_missing_moves_no_other_unit",),
    ),
    Fault(
        "bands: a record without an id gives its unit a group",
        RECORDS,
        "        named = has_id(ids)",
        "        named = np.ones(len(ids), dtype=bool)",
        ("privacy/test_ids.py::test_a_unit_that_is_missing_moves_no_other_unit",),
    ),
    Fault(
        "bands: units without ids are dealt by their numbers",
        RECORDS,
        '        if self.units is not None and self.ids is None:\n            raise ValueError("Groups',
        '        if False:\n            raise ValueError("Groups',
        ("privacy/test_ids.py::test_groups_of_units_need_the_ids_of_the_units",),
    ),
    Fault(
        "bands: all are sampled at each turn",
        PASSAGES,
        "        return members[poisson_sample(len(members), self.mechanism.sampling_probability, self.generator)]\n",
        "        return poisson_sample(self.records.own_units, self.mechanism.sampling_probability, self.generator)\n",
        ("audit/test_audit_bands.py::test_an_honest_run_passes_below_its_claim",),
    ),
    Fault(
        "bands: groups by the number within a process",
        RECORDS,
        "row * self.processes.count + self.processes.index for row in range",
        "row for row in range",
        ("distributed/test_processes.py::test_groups_and_correlated_noise_are_those_of_one_process",),
    ),
    Fault(
        "bands: a group sampled at the rate of all",
        PASSAGES,
        "        return members[poisson_sample(len(members), self.mechanism.sampling_probability, self.generator)]\n",
        "        return members[poisson_sample(len(members), self.mechanism.sample_rate, self.generator)]\n",
        ("privacy/test_bands.py::test_a_group_is_sampled_at_the_rate_times_the_bands",),
    ),
    Fault(
        "bands: the ledger counts the rate of all",
        MECHANISM,
        "dp.PoissonSampledDpEvent(self.sampling_probability, event)",
        "dp.PoissonSampledDpEvent(self.sample_rate, event)",
        ("accounting/test_banded_rows.py::test_steps_are_added_up_before_turns_are_counted",),
    ),
    Fault(
        "bands: the verifier believes any rate",
        VERIFY,
        "if not math.isclose(bands * rate,",
        'if not math.isclose(event["sampling_probability"],',
        ("release/test_verify_bands.py::test_a_forged_receipt_is_named",),
    ),
    Fault(
        "bands: the group is taken from the checkpoint's step",
        LEDGER,
        'entry.get("first_step", 0) + entry["steps_executed"]',
        'sum(each["steps_executed"] for each in self._rows)',
        ("accounting/test_banded_rows.py::test_a_step_hands_back_its_position",),
    ),
    Fault(
        "bands: each reservation begins with the first group",
        LEDGER_FILE,
        "        return sum(row.steps for row in self.asked if row.mechanism.one_stream)\n",
        "        return 0\n",
        ("accounting/test_banded_rows.py::test_a_step_hands_back_its_position",),
    ),
    Fault(
        "bands: turns are rounded down",
        BANDED,
        "        return -(-steps // self.num_groups)\n",
        "        return max(1, steps // self.num_groups)\n",
        ("accounting/test_banded_rows.py::test_steps_are_added_up_before_turns_are_counted",),
    ),
    Fault(
        "bands: the verifier rounds turns down",
        VERIFY,
        "-(-number // bands)",
        "number // bands",
        ("release/test_verify_bands.py::test_a_stranger_finds_the_same_epsilon",),
    ),
    Fault(
        "bands: other releases are merged before turns are counted",
        LEDGER,
        "        others = [part for release in self._file.others for part in compose(release.asked)]\n",
        "        asked = [row for release in self._file.others for row in release.asked]\n"
        "        others = compose(\n"
        '            replace(row, mechanism=row.mechanism.at(group_key="0" * 32)) if '
        "row.mechanism.one_stream else row\n"
        "            for row in asked\n"
        "        )\n",
        ("accounting/test_banded_rows.py::test_releases_of_one_data_set_are_counted_one_by_one",),
    ),
    Fault(
        "bands: the verifier merges releases before turns are counted",
        VERIFY,
        '    return [event for release in releases for event in counted(release["events"])]\n',
        '    return counted([event for release in releases for event in release["events"]])\n',
        ("release/test_verify_bands.py::test_a_stranger_finds_the_same_epsilon",),
    ),
    Fault(
        "bands: the verifier accepts a gap",
        VERIFY,
        '        if event["first_step"] != reached:\n',
        '        if event["first_step"] < reached:\n',
        ("release/test_verify_bands.py::test_a_forged_receipt_is_named",),
    ),
    Fault(
        "bands: the ledger's file accepts a gap",
        LEDGER_FILE,
        'row.get("first_step") == (release.next_step if asked.mechanism.one_stream else None)',
        '(row["first_step"] >= release.next_step if asked.mechanism.one_stream else "first_step" not in row)',
        ("accounting/test_banded_rows.py::test_a_file_that_says_otherwise_is_refused",),
    ),
    Fault(
        "bands: a second stream of other groups is taken",
        LEDGER,
        "        if stream is not None and (stream.mechanism, stream.facts) != (row.mechanism, row.facts):\n",
        "        if False:\n",
        ("accounting/test_banded_rows.py::test_a_second_stream_is_refused",),
    ),
    Fault(
        "bands: a resumed run may list its images otherwise",
        NOISE_OF_STEPS,
        "    if known != found and any(",
        "    if known is None and any(",
        ("runs/test_noise_bands.py::test_rows_that_are_listed_otherwise_are_refused",),
    ),
    Fault(
        "a run goes on with another unit column",
        "diffusers_dp/data/images.py",
        "data.train_split, data.unit_column, data.key_column,",
        "data.train_split, data.key_column,",
        ("runs/test_noise_bands.py::test_all_that_gives_images_their_ids_is_in_the_listing",),
    ),
    Fault(
        "a run goes on with another key column",
        "diffusers_dp/data/images.py",
        "data.train_split, data.unit_column, data.key_column,",
        "data.train_split, data.unit_column,",
        ("runs/test_noise_bands.py::test_all_that_gives_images_their_ids_is_in_the_listing",),
    ),
)
