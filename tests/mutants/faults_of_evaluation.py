# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Queries that are asked when a model is judged, and what an evaluation leaves in a release."""

from .fault import LEDGER, Fault


SELECTION = "diffusers_dp/evaluation/selection.py"
CHARGED = "diffusers_dp/evaluation/charged.py"
AMENDMENTS = "diffusers_dp/evaluation/amendments.py"

EVALUATION = (
    Fault(
        "a choice among many candidates pays for one",
        SELECTION,
        "        return math.sqrt(self.candidates)",
        "        return 1.0",
        ("evaluation/test_selection.py::test_the_private_choice",),
    ),
    Fault(
        "validation images answer again and again",
        SELECTION,
        '    if not kept.is_dir() or open_sealed(kept)[0]["query"]["asked"] != subject:',
        "    if False:",
        ("evaluation/test_selection.py::test_a_second_choice_finds_nothing_left",),
    ),
    Fault(
        "another folder is another account of the validation images",
        "diffusers_dp/evaluation/flags.py",
        "        return Path(os.path.expanduser(self.ledger_dir)) /",
        "        return Path(self.output_dir) /",
        (
            "commands/test_evaluate_options.py::TestPrivateSelection::test_one_account_whatever_the_folder_and_the_budget",
        ),
    ),
    Fault(
        "DP-SGD takes what is set aside for evaluation",
        LEDGER,
        "        before = self._composition(self.set_aside)",
        "        before = self._composition()",
        ("runs/test_planning.py::test_what_is_reserved_for_evaluation_is_left_after_dp_sgd",),
    ),
    Fault(
        "an evaluation against private images is not counted",
        AMENDMENTS,
        '        receipt["private_evaluations"] += 1',
        "        pass",
        ("evaluation/test_evaluation_amendments.py::test_the_count_lies_outside_the_hashes",),
    ),
    Fault(
        "published numbers from private images leave the status as it was",
        AMENDMENTS,
        '            receipt["status"] = LOWERED_STATUS',
        "            pass",
        ("evaluation/test_evaluation_amendments.py::test_numbers_from_private_images_lower_the_status_and_are_named",),
    ),
    Fault(
        "the card tells whatever a protocol holds",
        AMENDMENTS,
        "        for name, value in protocol.items() if above + name in PROTOCOL_IN_CARD\n",
        "        for name, value in protocol.items()\n",
        (
            "evaluation/test_evaluation_amendments.py::test_a_card_tells_the_numbers_of_the_release_and_nothing_else_of_private_images",
        ),
    ),
    Fault(
        "the verifier takes a leaky output under a whole status",
        "diffusers_dp/verify.py",
        '    if bool(receipt["leaky_outputs"]) != (status',
        "    if False and (status",
        ("release/test_forgeries.py::test_a_lie_is_refused",),
    ),
    Fault(
        "a private choice is divided by how many images can be read",
        SELECTION,
        "answer.flatten().double().numpy() / validation.public_size",
        "answer.flatten().double().numpy() / len(validation)",
        ("evaluation/test_selection.py::test_an_image_that_cannot_be_read_changes_no_number_but_the_counts",),
    ),
    Fault(
        "a DP classifier's sample rate follows from how many images can be read",
        "diffusers_dp/evaluation/dp_classifier.py",
        "sample_rate = batch_size / real_train.public_size",
        "sample_rate = batch_size / len(real_train)",
        ("evaluation/test_dp_classifier.py::test_an_image_that_cannot_be_read_changes_no_rate",),
    ),
    Fault(
        "the query about a finished model pays for one of its parts",
        "diffusers_dp/queries/judgement.py",
        "        return math.sqrt(3 if self.num_classes else 2)",
        "        return 1.0",
        ("evaluation/test_charged.py::test_no_image_moves_the_sum_by_more_than_the_sensitivity_that_is_paid_for",),
    ),
    Fault(
        "the query about a finished model is asked again after a crash",
        CHARGED,
        "    if lost and ledger.over_budget([row]) or stored",
        "    if stored",
        ("evaluation/test_charged.py::test_an_answer_that_was_lost_is_asked_for_again_within_the_budget_alone",),
    ),
    Fault(
        "an evaluation is divided by how many images it saw",
        CHARGED,
        "float(confusion.trace()) / num_units,",
        "float(confusion.trace() / sums[:, :classes].sum()),",
        ("evaluation/test_charged.py::test_an_unreadable_image_counts_as_wrong",),
    ),
    Fault(
        "the verifier takes numbers of an evaluation that nobody paid for",
        "diffusers_dp/verify.py",
        '    if receipt["evaluation"] and not evaluated:',
        "    if False and not evaluated:",
        ("release/test_forgeries.py::test_a_lie_is_refused",),
    ),
    Fault(
        "what was asked out of the reserve is set aside again",
        "diffusers_dp/runs/run_ledger.py",
        ' and all(row["stage"] != "evaluation_reserve" for row in ledger.rows):',
        ":",
        ("runs/test_planning.py::test_what_was_asked_out_of_the_reserve_is_not_set_aside_again",),
    ),
)
