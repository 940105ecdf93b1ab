# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Correlated noise, and groups that take turns."""

from .fault import ACCOUNTING, DOOR, LEDGER, LEDGER_FILE, ROW, Fault


BANDED_NOISE, VERIFY = "diffusers_dp/randomness/banded_noise.py", "diffusers_dp/verify.py"
RUN_BANDS = "diffusers_dp/runs/bands.py"

BANDS = (
    Fault(
        "bands: noise of the past dropped",
        BANDED_NOISE,
        "            noise -= coefficient * earlier\n",
        "            noise -= 0 * coefficient * earlier\n",
        ("randomness/test_banded_noise.py::test_the_noise_is_that_of_the_matrix",),
    ),
    Fault(
        "bands: noise of the past dropped, as the audit sees it",
        BANDED_NOISE,
        "        for coefficient, earlier in zip(others, past):\n",
        "        for coefficient, earlier in ():\n",
        ("audit/test_audit_bands.py::test_an_honest_run_passes_below_its_claim",),
    ),
    Fault(
        "bands: noise as if the columns had norm 2",
        BANDED_NOISE,
        "        given = (noise / c_0).float()\n",
        "        given = (noise / c_0 / 2).float()\n",
        ("randomness/test_banded_noise.py::test_the_noise_is_that_of_the_matrix",),
    ),
    Fault(
        "bands: columns of any norm are taken",
        ROW,
        "not math.fsum(value**2 for value in numbers) <= LARGEST_SUM_OF_SQUARES",
        "not math.fsum(value**2 for value in numbers) < math.inf",
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
        "        noise = self._fresh.normal(shape, std, device).double()\n",
        "        key = self._noise._next.to_bytes(8, 'big') + self._drawn.to_bytes(8, 'big')\n"
        "        noise = PrivateGenerator(key).normal(shape, std, device).double()\n",
        ("privacy/test_bands.py::test_noise_of_a_resumed_run_is_fresh",),
    ),
    Fault(
        "bands: past noise can be pickled",
        BANDED_NOISE,
        '        raise TypeError("BandedNoise is never serialised: whoever holds past noise can subtract it.")\n',
        "        return object.__reduce_ex__(self, 2)\n",
        ("randomness/test_banded_noise.py::test_past_noise_is_never_serialised",),
    ),
    Fault(
        "bands: groups that are not disjoint",
        DOOR,
        "np.flatnonzero(own == number)",
        "np.flatnonzero((own == number) | (own == 0))",
        ("privacy/test_bands.py::test_groups_take_turns_by_the_position_in_the_ledger",),
    ),
    Fault(
        "bands: all are sampled at each turn",
        DOOR,
        "            sample = members[poisson_sample(len(members), row.sampling_probability, generator)]\n",
        "            sample = poisson_sample(self._own_units, row.sampling_probability, generator)\n",
        ("audit/test_audit_bands.py::test_an_honest_run_passes_below_its_claim",),
    ),
    Fault(
        "bands: groups by the number within a process",
        DOOR,
        "own = groups[self.processes.index :: self.processes.count]",
        "own = groups[: self._own_units]",
        ("distributed/test_processes.py::test_groups_and_correlated_noise_are_those_of_one_process",),
    ),
    Fault(
        "bands: a group sampled at the rate of all",
        DOOR,
        "poisson_sample(len(members), row.sampling_probability, generator)",
        "poisson_sample(len(members), sample_rate, generator)",
        ("privacy/test_bands.py::test_a_group_is_sampled_at_the_rate_times_the_bands",),
    ),
    Fault(
        "bands: the ledger counts the rate of all",
        LEDGER_FILE,
        "[Question(sigma, q, participations(n, bands))",
        "[Question(sigma, q / bands, participations(n, bands))",
        ("accounting/test_banded_rows.py::test_steps_are_added_up_before_turns_are_counted",),
    ),
    Fault(
        "bands: the verifier believes any rate",
        VERIFY,
        "or not math.isclose(bands * rate,",
        'or not math.isclose(event["sampling_probability"],',
        ("release/test_verify_bands.py::test_a_forged_receipt_is_named",),
    ),
    Fault(
        "bands: the group is taken from the checkpoint's step",
        LEDGER,
        'entry["first_step"] + entry["steps_executed"]',
        'sum(each["steps_executed"] for each in self._rows)',
        ("runs/test_noise_bands.py::test_an_interrupted_run_goes_on_with_its_groups",),
    ),
    Fault(
        "bands: each reservation begins with the first group",
        LEDGER_FILE,
        '    return 0 if last is None else last["first_step"] + last["steps_reserved"]\n',
        "    return 0\n",
        ("accounting/test_banded_rows.py::test_a_step_hands_back_its_position",),
    ),
    Fault(
        "bands: turns are rounded down",
        ACCOUNTING,
        "    return -(-steps // bands)\n",
        "    return max(1, steps // bands)\n",
        ("accounting/test_banded_rows.py::test_steps_are_added_up_before_turns_are_counted",),
    ),
    Fault(
        "bands: the verifier rounds turns down",
        VERIFY,
        '-(-event["steps_reserved"] // event["bands"])',
        'event["steps_reserved"] // event["bands"]',
        ("release/test_verify_bands.py::test_a_stranger_finds_the_same_epsilon",),
    ),
    Fault(
        "bands: other releases are merged before turns are counted",
        LEDGER,
        "        questions = [question for release in self._file.others for question in release.questions]\n",
        "        questions = questions_of([row for release in self._file.others for row in release.rows])\n",
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
        '    return row["first_step"] == next_step(before) and',
        '    return row["first_step"] >= next_step(before) and',
        ("accounting/test_banded_rows.py::test_a_file_that_says_otherwise_is_refused",),
    ),
    Fault(
        "bands: a second stream of other groups is taken",
        LEDGER,
        "        if row.bands is not None and not all(",
        "        if row.bands is None and not all(",
        ("accounting/test_banded_rows.py::test_a_second_stream_is_refused",),
    ),
    Fault(
        "bands: a resumed run may list its images otherwise",
        RUN_BANDS,
        "    if known != found and banded_rows(ledger.rows):\n",
        "    if known is None and banded_rows(ledger.rows):\n",
        ("runs/test_noise_bands.py::test_other_bands_and_another_listing_are_refused",),
    ),
)
