# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Faults of teachers on shares of the units."""

from .fault import Fault


TEACHERS_FILE, ROW, VERIFY = (
    "diffusers_dp/privacy/teachers.py", "diffusers_dp/accounting/ledger_row.py", "diffusers_dp/verify.py",
)  # fmt: skip
PRIVACY, AUDIT, RUNS = (
    "privacy/test_teachers.py::",
    "audit/test_audit_teachers.py::",
    "training/test_train_teachers.py::",
)

TEACHERS = (
    Fault(
        "teachers: noise for a sensitivity of one clip norm",
        TEACHERS_FILE,
        '                total.shape, noise_multiplier * row.query["sensitivity"], total.device\n',
        '                total.shape, noise_multiplier * row.query["clip_norm"], total.device\n',
        (PRIVACY + "test_the_noise_is_for_the_sensitivity",),
    ),
    Fault(
        "teachers: a sensitivity of one clip norm in the ledger, as the audit sees it",
        ROW,
        "    sensitivity = 2 * clip_norm if votes is None else math.sqrt(2 * votes)\n",
        "    sensitivity = clip_norm if votes is None else math.sqrt(votes)\n",
        (AUDIT + "test_honest_teachers_pass_and_broken_noise_is_noticed",),
    ),
    Fault(
        "teachers: the verifier takes a sensitivity of one clip norm",
        VERIFY,
        "    least = 2 * clip_norm if votes is None",
        "    least = clip_norm if votes is None",
        (AUDIT + "test_a_forged_receipt_is_named",),
    ),
    Fault(
        "teachers: inputs are clipped one by one",
        TEACHERS_FILE,
        "        vectors = found.flatten(1).double()  # float32 factors of long vectors are subnormal\n",
        "        vectors = nn.functional.normalize(found, dim=2).mul(clip_norm).flatten(1).double()\n",
        (PRIVACY + "test_a_unit_turns_its_teacher_around_and_moves_the_sum_by_two_clip_norms_at_most",),
        "        factors = clip_factors(vectors.square().sum(1), clip_norm)\n",
        "        factors = torch.ones(len(vectors))\n",
    ),
    Fault(
        "teachers: nothing is clipped, as the audit sees it",
        TEACHERS_FILE,
        "        factors = clip_factors(vectors.square().sum(1), clip_norm)\n",
        "        factors = torch.ones(len(vectors))\n",
        (AUDIT + "test_honest_teachers_pass_and_broken_noise_is_noticed",),
    ),
    Fault(
        "teachers: votes of any size",
        TEACHERS_FILE,
        "            found = nn.functional.one_hot(found.argmax(-1), found.shape[-1])\n",
        "            found = found.float()\n",
        (PRIVACY + "test_votes_are_one_hot_and_move_by_the_root_of_two_each",),
    ),
    Fault(
        "teachers: shares by place",
        TEACHERS_FILE,
        "        share = group_of(ids, shares.number, shares.group_key)\n",
        "        share = np.cumsum(readable) % shares.number\n",
        (PRIVACY + "test_one_unit_moves_one_share_alone_to_the_last_bit",),
    ),
    Fault(
        "teachers: a teacher learns from another's share",
        TEACHERS_FILE,
        "        record = self._order[(chunk.first[:, None] + place)[there]]\n",
        "        record = self._order[place[there]]\n",
        (PRIVACY + "test_one_unit_moves_one_share_alone_to_the_last_bit",),
    ),
    Fault(
        "teachers: a teacher learns from another's share, as the audit sees it",
        TEACHERS_FILE,
        "        record = self._order[(chunk.first[:, None] + place)[there]]\n",
        "        record = self._order[place[there]]\n",
        (AUDIT + "test_the_own_teaching_is_tried",),
    ),
    Fault(
        "teachers: a record without an id is in some share",
        TEACHERS_FILE,
        "        there = np.flatnonzero(has_id(ids) & readable & self._known(ids, folder))\n",
        "        there = np.flatnonzero(readable & self._known(ids, folder))\n",
        (PRIVACY + "test_a_record_without_an_id_is_in_no_share",),
    ),
    Fault(
        "teachers: as many draws as there are records",
        TEACHERS_FILE,
        "        luck = torch.from_numpy(self._generator.uniform(len(chunk.shares) * size)).view(-1, size)\n",
        "        self._generator.uniform(int(chunk.counts.sum()))\n"
        "        luck = torch.from_numpy(self._generator.uniform(len(chunk.shares) * size)).view(-1, size)\n",
        (PRIVACY + "test_draws_do_not_depend_on_how_many_records_a_share_has",),
    ),
    Fault(
        "teachers: an empty share speaks",
        TEACHERS_FILE,
        "        counts = (chunk.counts > 0).to(self.device) & finite & (factors > 0)\n",
        "        counts = finite & (factors > 0)\n",
        (PRIVACY + "test_an_empty_share_and_a_diverged_teacher_say_nothing_in_silence",),
    ),
    Fault(
        "teachers: a round without its row",
        TEACHERS_FILE,
        "        self.ledger.take_step(row, reserve_steps=reserve_steps)\n",
        "        self._rounds or self.ledger.take_step(row, reserve_steps=reserve_steps)\n",
        (PRIVACY + "test_a_round_is_charged_before_an_image_is_read",),
    ),
    Fault(
        "teachers: the noise of a round is that of the first",
        TEACHERS_FILE,
        "            total = total + self._generator.normal(\n",
        "            total = total + type(self._generator)(bytes(16)).normal(\n",
        (PRIVACY + "test_the_noise_is_for_the_sensitivity",),
    ),
    Fault(
        "teachers: what keeps images is not noticed",
        TEACHERS_FILE,
        "                kept.refuse_private()\n",
        "",
        (PRIVACY + "test_what_keeps_images_shuts_the_door",),
    ),
    Fault(
        "teachers: a network may keep what it sees",
        TEACHERS_FILE,
        "        teaching, kept = self.teaching, KeptState(self.teaching, self._base)\n",
        "        teaching, kept = self.teaching, KeptState(self.teaching)\n",
        (PRIVACY + "test_what_keeps_a_tensor_is_refused_by_the_trial",),
        "        kept = KeptState(model, teaching, self._base)\n",
        "        kept = KeptState(model, teaching)\n",
    ),
    Fault(
        "teachers: a view sees all shares",
        TEACHERS_FILE,
        "        return vmap(self.teaching.view)(images)\n",
        "        return self.teaching.view(images.flatten(0, 1)).unflatten(0, images.shape[:2])\n",
        (PRIVACY + "test_a_view_sees_one_share",),
    ),
    Fault(
        "teachers: a record with another id is in two shares",
        TEACHERS_FILE,
        "        return np.array([each in known for each in ids.tolist()], dtype=bool)\n",
        "        return np.array([bool(known) for each in ids.tolist()], dtype=bool)\n",
        (PRIVACY + "test_an_id_that_was_not_there_at_the_first_start_is_missing",),
    ),
    Fault(
        "teachers: long vectors are clipped in float32",
        TEACHERS_FILE,
        "        factors = clip_factors(vectors.square().sum(1), clip_norm)\n",
        "        factors = clip_factors(vectors.square().sum(1), clip_norm).float()\n",
        (PRIVACY + "test_vectors_of_any_length_are_clipped",),
    ),
    Fault(
        "teachers: an error leaves the door open",
        TEACHERS_FILE,
        "        door._refused = True  # until it is known that nothing is kept, whatever is raised\n",
        "",
        (PRIVACY + "test_an_error_in_mid_round_shuts_the_door",),
    ),
    Fault(
        "teachers: calls share their inputs",
        TEACHERS_FILE,
        "    return inputs.clone(), None if labels is None else labels.clone()\n",
        "    return inputs, labels\n",
        (PRIVACY + "test_what_is_left_on_the_inputs_is_gone",),
    ),
    Fault(
        "teachers: the verifier takes votes of any norm",
        VERIFY,
        "    right = votes is None or math.isclose(clip_norm, math.sqrt(votes))\n",
        "    right = True\n",
        (AUDIT + "test_a_forged_receipt_is_named",),
    ),
    Fault(
        "teachers: each process adds noise of its own and no more",
        TEACHERS_FILE,
        "        if self.processes.is_first:\n",
        "        if not self.processes.is_first:\n",
        (PRIVACY + "test_the_noise_is_for_the_sensitivity",),
    ),
    Fault(
        "teachers: another number of shares goes on",
        "diffusers_dp/runs/bands.py",
        "    if shares and shares[0] != num_shares:\n",
        "    if False:\n",
        (RUNS + "test_another_number_of_teachers_does_not_go_on",),
    ),
    Fault(
        "teachers: shares drawn again when a run goes on",
        "diffusers_dp/runs/plan.py",
        '    query = earlier["query"] if earlier else {} if plan.step is None else plan.step.query\n',
        "    query = {} if plan.step is None else plan.step.query\n",
        (RUNS + "test_a_run_that_goes_on_keeps_its_shares",),
    ),
)
