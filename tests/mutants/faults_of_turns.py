# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Units that take part in exactly k of their turns."""

from .fault import DOOR, LEDGER, LEDGER_FILE, Fault


HASH, RUN_TURNS, VERIFY = (
    "diffusers_dp/randomness/keyed_hash.py", "diffusers_dp/runs/turns.py", "diffusers_dp/verify.py",
)  # fmt: skip

TURNS = (
    Fault(
        "turns: one more than is paid for",
        HASH,
        "range(turns - participations, turns)):\n",
        "range(turns - participations - 1, turns)):\n",
        ("privacy/test_turns.py",),
    ),
    Fault(
        "turns: by place, not by id",
        DOOR,
        "            turns[units] = allocated_turns(digests, key,",
        "            turns[units] = allocated_turns(digests_of(range(len(units))), key,",
        ("privacy/test_turns.py::test_what_is_missing_moves_nobody",),
    ),
    Fault(
        "turns: anybody can work them out",
        HASH,
        "            words = hashlib.blake2b(content, key=key, digest_size=64).digest()\n",
        "            words = hashlib.blake2b(content, digest_size=64).digest()\n",
        ("privacy/test_turns.py::test_turns_are_those_of_a_hash_that_does_not_change",),
    ),
    Fault(
        "turns: late ones are likelier",
        HASH,
        "taken.add(last if found in taken else found)",
        "taken.add(last)",
        ("privacy/test_turns.py::test_each_choice_of_turns_is_as_likely",),
    ),
    Fault(
        "turns: two units of one id have the same ones",
        HASH,
        "    if len(np.unique(digests)) != len(digests):\n",
        "    if False:\n",
        ("privacy/test_turns.py::test_what_has_no_proof_is_refused",),
    ),
    Fault(
        "turns: drawn again on resume",
        RUN_TURNS,
        "    if not taken:\n",
        "    if fresh is not None:\n",
        ("runs/test_participation.py::test_without_its_key_a_run_is_not_resumed",),
    ),
    Fault(
        "turns: a run goes on with another key",
        RUN_TURNS,
        '    if hashlib.sha256(key).hexdigest() != taken[0]["participation_key_sha256"]:\n',
        "    if not key:\n",
        ("runs/test_participation.py::test_without_its_key_a_run_is_not_resumed",),
    ),
    Fault(
        "turns: one key for all runs",
        RUN_TURNS,
        "    key = secrets.token_bytes(SECRET_BYTES)\n",
        "    key = bytes(SECRET_BYTES)\n",
        ("runs/test_participation.py::test_two_runs_have_two_keys",),
    ),
    Fault(
        "turns: a door takes any key",
        DOOR,
        "        if key is None or hashlib.sha256(key).hexdigest() != allocation.key_sha256:\n",
        "        if key is None:\n",
        ("privacy/test_turns.py::test_what_has_no_proof_is_refused",),
    ),
    Fault(
        "turns: a key serves two releases of a data set",
        LEDGER,
        "        if row.allocation.key_sha256 in elsewhere:\n",
        "        if False:\n",
        ("accounting/test_allocated_rows.py::test_releases_of_a_data_set_have_keys_of_their_own",),
    ),
    Fault(
        "turns: a lost one asked again",
        LEDGER,
        '            position = entry["first_step"] + entry["steps_executed"]\n',
        '            position = sum(row["steps_executed"] for row in self._rows)\n',
        ("privacy/test_turns.py::test_a_resumed_run_goes_on_behind_the_lost_turns",),
    ),
    Fault(
        "turns: more steps than there are turns",
        LEDGER,
        '        if entry["first_step"] + row.steps > most:\n',
        "        if False:\n",
        ("accounting/test_allocated_rows.py::test_the_first_step_costs_as_much_as_all",),
    ),
    Fault(
        "turns: a file says more steps than there are turns",
        LEDGER_FILE,
        '    if most is not None and row["first_step"] + row["steps_reserved"] > most:\n',
        "    if False:\n",
        ("accounting/test_allocated_rows.py::test_a_file_that_says_otherwise_is_refused",),
    ),
    Fault(
        "turns: counted for the steps that were taken alone",
        LEDGER_FILE,
        'turns = Turns.of(row["query"])\n',
        'turns = Turns.of(row["query"])._replace(turns=row["query"]["turns"] + 9 - row["steps_reserved"])\n',
        ("accounting/test_allocated_rows.py",),
    ),
    Fault(
        "turns: a bound that holds in one direction",
        VERIFY,
        "    for direction in (Direction.REMOVE, Direction.ADD):\n",
        "    for direction in (Direction.ADD, Direction.ADD):\n",
        ("accounting/test_allocated_rows.py::test_the_bound_holds_in_both_directions",),
    ),
    Fault(
        "turns: losses that fall into one cell are lost",
        VERIFY,
        "            losses[cell] = losses.get(cell, 0.0) + probability\n",
        "            losses[cell] = probability\n",
        ("accounting/test_allocated_rows.py::test_what_falls_into_one_cell_adds_up",),
    ),
    Fault(
        "turns: two releases are counted as one",
        VERIFY,
        '[{**event, "mechanism": WHOLE_ALLOCATION, "steps_reserved": 1}]\n',
        '[{**event, "steps_reserved": 1}]\n',
        ("release/test_verify_turns.py::test_a_stranger_finds_the_same_epsilon",),
    ),
    Fault(
        "turns: bounds on attacks as if there were one step",
        "diffusers_dp/accounting/attack_bounds.py",
        'if event.get("mechanism") == WHOLE_ALLOCATION else None\n',
        "if False else None\n",
        ("release/test_verify_turns.py::test_bounds_on_attacks_are_of_all_turns",),
    ),
    Fault(
        "turns: the verifier takes one key for two releases",
        VERIFY,
        "    if _share_turns([receipt, *prior]):\n",
        "    if False:\n",
        ("release/test_verify_turns.py::test_a_forged_receipt_is_named",),
    ),
    Fault(
        "turns: the verifier takes any number of steps",
        VERIFY,
        '    if events and events[0]["mechanism"] == ALLOCATED and reached > _steps_of_turns(events[0]):\n',
        "    if False:\n",
        ("release/test_verify_turns.py::test_a_forged_receipt_is_named",),
    ),
)
