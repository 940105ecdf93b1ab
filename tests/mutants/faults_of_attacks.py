# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Bounds on attacks that would look better, or worse, than they are."""

from .fault import Fault


BOUNDS, TESTS = "diffusers_dp/accounting/attack_bounds.py", "accounting/test_attack_bounds.py::"

ATTACKS = (
    Fault(
        "bounds on attacks: negative epsilons forgotten",
        BOUNDS,
        "LEAST_EPSILON = -40.0",
        "LEAST_EPSILON = 0.0",
        (f"{TESTS}test_one_gaussian_has_its_closed_form",),
    ),
    Fault(
        "bounds on attacks: one order of the neighbours forgotten",
        BOUNDS,
        "delta = composed(composition, interval).get_delta  #",
        "delta = composed(composition, interval)._pld._pmf_add.get_delta_for_epsilon  #",
        (f"{TESTS}test_a_sampled_attack_is_bounded_by_the_worse_order",),
    ),
    Fault(
        "bounds on attacks: delta left out",
        BOUNDS,
        "math.exp(epsilon) * alpha + float(delta(epsilon))",
        "math.exp(epsilon) * alpha + float(delta(abs(epsilon)))",
        (f"{TESTS}test_one_gaussian_has_its_closed_form",),
    ),
    Fault(
        "bounds on attacks: earlier releases forgotten",
        BOUNDS,
        'counted_together(receipt) if all_releases else counted(receipt["events"])',
        'counted(receipt["events"]) if all_releases else counted(receipt["events"])',
        (f"{TESTS}test_groups_that_take_turns_and_earlier_releases_count",),
    ),
    Fault(
        "bounds on attacks: executed steps count, reserved ones do not",
        "diffusers_dp/verify.py",
        'steps[kind] += event["steps_reserved"]',
        'steps[kind] += event["steps_executed"]',
        (f"{TESTS}test_groups_that_take_turns_and_earlier_releases_count",),
    ),
)

WRITE, EVIDENCE, DOSSIER = (
    "diffusers_dp/dossier/write.py", "diffusers_dp/dossier/evidence.py", "dossier/test_dossier.py::"
)  # fmt: skip

DOSSIERS = (
    Fault(
        "dossier: of a release that does not match",
        WRITE,
        "    if problems:\n        raise IntegrityError",
        "    if not problems and signer:\n        raise IntegrityError",
        (f"{DOSSIER}test_what_does_not_match_gets_no_dossier",),
    ),
    Fault(
        "dossier: an evaluation of another release is taken",
        EVIDENCE,
        "or measured != receipt_sha256:",
        "or measured is None:",
        (f"{DOSSIER}test_an_evaluation_of_another_release_is_refused",),
    ),
    Fault(
        "dossier: what private images told is published",
        WRITE,
        "per_class=[] if private else classes",
        "per_class=classes",
        (f"{DOSSIER}test_what_private_images_told_is_an_annex_for_the_house",),
    ),
)

SAID_OF_RELEASES = ()

SPLIT, SPLITS = "diffusers_dp/audit/random_split.py", "audit/test_random_split.py::"

INTRUDERS = (
    Fault(
        "intruder test: all members are attacked, so that a guess of the larger side looks like a find",
        SPLIT,
        "((num_members, odds), (num_others, 1 / odds))",
        "((num_members, 1.0), (num_others, 1.0))",
        (f"{SPLITS}test_a_chosen_image_was_used_with_probability_a_half",),
    ),
    Fault(
        "intruder test: a part of the images counts as all of them",
        SPLIT,
        "    if plausible < IMPLAUSIBLE:",
        "    if plausible < 0:",
        (f"{SPLITS}test_numbers_that_no_such_coin_gives_are_refused",),
    ),
    Fault(
        "intruder test: equal scores are guessed by their place",
        SPLIT,
        "np.random.default_rng(0).permutation(len(scores))",
        "np.arange(len(scores))[::-1]",
        (f"{SPLITS}test_scores_that_tell_nothing_show_nothing",),
    ),
    Fault(
        "intruder test: other held-out images bound epsilon",
        "diffusers_dp/audit/release.py",
        "bound = None if coin is None else lower_bound(*scores, delta)",
        "bound = lower_bound(*scores, delta)",
        ("audit/test_audit_release.py::test_an_untrained_model_tells_nothing",),
    ),
)
