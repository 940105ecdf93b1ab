# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Totals that are too small, runs that go on with something else than they asked about, and forged receipts."""

from .fault import PRIOR_RELEASE, Fault


PRETRAINING, SELECTION = "diffusers_dp/runs/pretrained.py", "diffusers_dp/evaluation/selection.py"
PERCEPTUAL, VERIFIER = "diffusers_dp/queries/perceptual.py", "diffusers_dp/verify.py"
EVOLUTION, DIFFUSION = "training/train_private_evolution.py", "diffusers_dp/runs/diffusion_run.py"
PUBLIC = "runs/test_public_releases.py::test_"
CHOICE = "evaluation/test_selection.py::test_"
AGAIN = "training/test_resumed_networks.py::test_"
LIE = "release/test_forgeries.py::test_"

TOTALS = (
    Fault(
        "public images that are a release are taken for public",
        PRIOR_RELEASE,
        "    if not folders:\n",
        "    if folders or not folders:\n",
        (f"{PUBLIC}drawn_images_of_the_same_images_are_refused",),
    ),
    Fault(
        "a receipt above the public images is not looked for",
        PRIOR_RELEASE,
        "for folder in (way, *way.parents)}",
        "for folder in (way,)}",
        (f"{PUBLIC}drawn_images_of_the_same_images_are_refused",),
    ),
    Fault(
        "a receipt on the Hub is not looked for beside public images",
        PRIOR_RELEASE,
        "            folders |= {path.parent for path in snapshot.rglob(RECEIPT_NAME)}\n",
        "",
        (f"{PUBLIC}a_data_set_on_the_hub_is_looked_at_for_a_receipt",),
    ),
    Fault(
        "what a release began with is forgotten",
        PRIOR_RELEASE,
        '    for origin in (release, *release.get("began_with", [])):',
        "    for origin in (release,):",
        (f"{PUBLIC}what_a_release_began_with_is_not_forgotten",),
    ),
    Fault(
        "what a release taught is kept as if it were public",
        PRETRAINING,
        '    if chosen or "epsilon" in origin:',
        "    if chosen:",
        ("release/test_unreleased.py::test_what_public_images_taught_may_depend_on_sensitive_ones",),
    ),
    Fault(
        "what a noisy answer chose is kept as if it were public",
        DIFFUSION,
        "        origin, chosen = self.public.origin, query is not None\n",
        "        origin, chosen = self.public.origin, False\n",
        ("training/test_train_privimage.py::test_a_run_asks_once_before_it_learns",),
    ),
    Fault(
        "a result without its books gets a second budget",
        "diffusers_dp/runs/folder.py",
        "        if resume and found and",
        "        if False and",
        ("runs/test_run_folder.py::TestRunFolder::test_a_result_without_its_books_gets_no_second_budget",),
    ),
    Fault(
        "a private choice has a ledger that no training reads",
        "diffusers_dp/evaluation/flags.py",
        '/ f"{self.dataset_id}.jsonl"',
        '/ f"{self.dataset_id}.choices.jsonl"',
        ("test_histories.py::test_patients_of_whom_some_choose",),
    ),
    Fault(
        "each image of a patient chooses",
        SELECTION,
        " units=images.units,",
        " units=None,",
        (f"{CHOICE}a_choice_has_the_unit_of_the_trainings",),
    ),
    Fault(
        "a private choice may protect another unit than the release",
        "diffusers_dp/evaluation/inputs.py",
        '    if facts["unit_of_privacy"] != unit:',
        "    if False:",
        ("commands/test_evaluate_options.py::TestPrivateSelection::test_the_unit_is_that_of_the_release",),
    ),
)

RESUMED = (
    Fault(
        "a network's normalisation is no part of a query's meaning",
        PERCEPTUAL,
        '"weights_sha256": self.sha256, "mean": mean.flatten().tolist(), "std": std.flatten().tolist(),\n',
        '"weights_sha256": self.sha256,\n',
        (f"{AGAIN}a_networks_name_hash_mean_std_and_resolution_are_its_meaning",),
    ),
    Fault(
        "votes of two networks are added up",
        EVOLUTION,
        ", embedding=embed.facts)",
        ")",
        (f"{AGAIN}an_evolution_goes_on_with_its_network",),
    ),
    Fault(
        "an evolution goes on with candidates of another origin",
        "diffusers_dp/runs/evolution.py",
        '        return {"number": number, **facts, "public_inputs": inputs}',
        '        return {"number": number, **facts}',
        (f"{AGAIN}an_evolution_goes_on_with_its_candidates_origin",),
    ),
    Fault(
        "the classifier that chose public images may change once they are learned",
        DIFFUSION,
        "            if query is not None:  # raises",
        "            if False:  # raises",
        (f"{AGAIN}the_semantic_query_goes_on_with_its_network",),
    ),
    Fault(
        "the saliency of one base chooses layers of another",
        "training/train_dp_ldm.py",
        'replace(query, base_sha256=run.base.origin["files_sha256"])',
        "replace(query)",
        (f"{AGAIN}a_latent_run_goes_on_with_its_base",),
    ),
    Fault(
        "adapters of one base go on beside another",
        "diffusers_dp/runs/run.py",
        "            self.identity.refuse_other_inputs(public_inputs)\n",
        "            pass\n",
        (f"{AGAIN}a_latent_run_goes_on_with_its_base",),
    ),
)

KINDS = "release/test_verify_methods.py::test_"
METHODS = (
    Fault(
        "the verifier takes the events of any method",
        VERIFIER,
        " or list(check_method(receipt))\n",
        "\n",
        (f"{KINDS}events_that_no_run_of_the_method_has_are_refused",),
    ),
    Fault(
        "the verifier takes a query of another method",
        VERIFIER,
        "    for stage in sorted(found - known):\n",
        "    for stage in ():\n",
        (f"{KINDS}events_that_no_run_of_the_method_has_are_refused[moments as DPDM]",),
    ),
    Fault(
        "the verifier misses no query of a method",
        VERIFIER,
        'or not (found & either or stage.endswith("?"))',
        "",
        (f"{KINDS}events_that_no_run_of_the_method_has_are_refused[central images left out]",),
    ),
    Fault(
        "the verifier takes any sensitivity of a method",
        VERIFIER,
        '    if not math.isclose(facts["sensitivity"], least * facts["clip_norm"], rel_tol=EXACT):\n',
        "    if False:\n",
        (f"{KINDS}events_that_no_run_of_the_method_has_are_refused[more sensitivity than a sum has]",),
    ),
    Fault(
        "the verifier takes any number of votes",
        VERIFIER,
        'method.norm and not math.isclose(facts["clip_norm"], norm)',
        "False",
        (f"{KINDS}events_that_no_run_of_the_method_has_are_refused[one vote]",),
    ),
    Fault(
        "the verifier takes another number of teachers than the receipt says",
        VERIFIER,
        "        if said.get(CALLED.get(name, name), value) != value:\n",
        "        if False:\n",
        (f"{KINDS}events_that_no_run_of_the_method_has_are_refused[another number of teachers]",),
    ),
    Fault(
        "the verifier takes public inputs of any method",
        VERIFIER,
        '    if receipt["public_inputs"] and title not in PUBLIC:\n',
        "    if False:\n",
        (f"{KINDS}events_that_no_run_of_the_method_has_are_refused[public pre-training called DPDM]",),
    ),
    Fault(
        "the verifier takes any mechanism of a method",
        VERIFIER,
        "    if participants(event) not in kinds.split() or participants(event) == method.never:\n",
        "    if False:\n",
        (f"{KINDS}events_that_no_run_of_the_method_has_are_refused[bands of a set of images]",),
    ),
    Fault(
        "the verifier takes a clip norm of nearly nothing",
        VERIFIER,
        "SIZES = (9.99e-31, LARGEST_CLAIM)",
        "SIZES = (0, LARGEST_CLAIM)",
        (f"{KINDS}events_that_no_run_of_the_method_has_are_refused[a clip norm of nearly nothing]",),
    ),
    Fault(
        "the verifier takes fields that nobody knows",
        VERIFIER,
        "table.get(..., left_out)",
        "table.get(..., anything)",
        (f"{KINDS}events_that_no_run_of_the_method_has_are_refused[a field of an event]",),
    ),
    Fault(
        "the verifier takes a key beside its hash",
        VERIFIER,
        "    if _publishes_a_key(receipt):\n",
        "    if False:\n",
        (f"{KINDS}a_key_whose_hash_is_stated_is_refused_wherever_it_stands",),
    ),
    Fault(
        "the verifier is silent about a method that it does not know",
        VERIFIER,
        '    if receipt["method"]["name"] not in METHODS:\n',
        "    if False:\n",
        (f"{KINDS}a_method_that_the_table_does_not_know_is_counted_and_that_is_said",),
    ),
)

FORGED = (
    Fault(
        "the verifier takes a sensitivity below the clip norm",
        VERIFIER,
        'if query["sensitivity"] < query["clip_norm"]:',
        "if False:",
        (f"{LIE}a_lie_is_refused[less noise for what is clipped]",),
    ),
    Fault(
        "the verifier takes a query without its sensitivity",
        VERIFIER,
        '        "sensitivity": SIZES, "clip_norm": SIZES,',
        '        "sensitivity?": SIZES, "clip_norm?": SIZES,',
        (f"{LIE}every_field_that_is_missing_is_missed[events]",),
    ),
    Fault(
        "the verifier takes any source of noise",
        VERIFIER,
        '"rng": {"kind": {*RNG_KINDS},',
        '"rng": {"kind": words,',
        (f"{LIE}a_lie_is_refused[noise of another source]",),
    ),
    Fault(
        "the verifier takes a published key",
        VERIFIER,
        '"seed_published": {False}},',
        '"seed_published": {False}, ...: anything},',
        (f"{LIE}a_lie_is_refused[a published key]",),
    ),
    Fault(
        "the verifier takes a file that is listed twice",
        VERIFIER,
        "    if len(stated) < len(listed):",
        "    if False:",
        (f"{LIE}a_lie_is_refused[one file twice]",),
    ),
    Fault(
        "the verifier takes a unit with stray spaces",
        VERIFIER,
        'r"(?! |.*  )[\\w .-]{1,100}(?<! )"',
        'r"[\\w .-]{1,100}"',
        (f"{LIE}a_lie_about_groups_or_units_is_refused",),
    ),
    Fault(
        "the verifier takes a number of units with a decimal point",
        VERIFIER,
        '        "num_images?": COUNT, "num_units?": COUNT,',
        '        "num_images?": anything, "num_units?": COUNT,',
        (f"{LIE}a_lie_is_refused[N with a decimal point]",),
    ),
    Fault(
        "the verifier takes groups that take turns for parallel",
        VERIFIER,
        'unit != "image" or kind in ("banded", "shares")',
        'unit != "image"',
        (f"{LIE}a_lie_about_groups_or_units_is_refused[parallel groups]",),
    ),
    Fault(
        "the verifier takes a release that is derived from itself",
        VERIFIER,
        "    if _is_derived_from_itself(receipt):",
        "    if False:",
        (f"{LIE}a_lie_is_refused[derived from itself]",),
    ),
    Fault(
        "the verifier looks for no pickle in the Hub's cache",
        VERIFIER,
        "                if entry.is_dir(follow_symlinks=False):",
        "                if entry.is_dir(follow_symlinks=False) and name not in FOLDERS_OUTSIDE:",
        (f"{LIE}files_that_lie_are_refused",),
    ),
    Fault(
        "the verifier takes a pickle that the receipt lists",
        VERIFIER,
        "        elif _is_pickle(name):",
        "        elif False:",
        (f"{LIE}files_that_lie_are_refused",),
    ),
    Fault(
        "the verifier takes any format",
        VERIFIER,
        '    if receipt.get("format") != FORMAT:',
        "    if False:",
        ("release/test_verify.py::test_another_format_is_refused_by_name",),
    ),
    Fault(
        "the verifier misses no field",
        VERIFIER,
        "        elif key in value or needed:\n",
        "        elif key in value:\n",
        (f"{LIE}every_field_that_is_missing_is_missed",),
    ),
    Fault(
        "the verifier takes a release that cost nothing for a public input",
        VERIFIER,
        '        if priced and "epsilon" not in origin or',
        "        if",
        (f"{LIE}a_lie_is_refused[a release that cost nothing]",),
    ),
    Fault(
        "the verifier lets a data set forget its bounds",
        VERIFIER,
        "    if target != min(here, default=None):",
        "    if False:",
        (f"{LIE}a_lie_is_refused[no bound where one was promised]",),
    ),
    Fault(
        "the verifier is silent about a release that training began with",
        VERIFIER,
        "    yield from _about_others(receipt)\n",
        "",
        ("release/test_verify.py::test_other_numbers_and_other_epsilons_get_a_line",),
    ),
    Fault(
        "a base that may have seen the images is called made without them",
        "diffusers_dp/release/receipt.py",
        '    unknown = [origin for origin in public_inputs if origin.get("saw_training_images") == "unknown"]',
        "    unknown: list[Any] = []",
        ("release/test_promises.py::test_nothing_is_said_to_be_made_without_the_images_that_may_have_seen_them",),
    ),
)
