# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Files of strangers, and flags that cannot be: what is read, fetched, unpacked and spent."""

from .fault import Fault


SHELF, BASE, TABLES, RECORDS = (
    "diffusers_dp/app/shelf.py", "diffusers_dp/release/latent_base.py", "diffusers_dp/data/untrusted_tables.py",
    "diffusers_dp/data/records.py",
)  # fmt: skip
READER, CHECKS, LAUNCH, RECIPES, FOLDER = (
    "diffusers_dp/release/image_tables.py", "diffusers_dp/release/components.py", "diffusers_dp/runs/launch.py",
    "diffusers_dp/methods/recipes.py", "diffusers_dp/runs/folder.py",
)  # fmt: skip
PAGES, STRANGE, WRONG = (
    "app/test_app_bases.py::", "evaluation/test_untrusted_images.py::", "training/test_wrong_flags.py::",
)  # fmt: skip
VALUES, FILES, READING = (
    "diffusers_dp/files/untrusted_values.py",
    "diffusers_dp/files/untrusted_files.py",
    ("files/test_untrusted_values.py::"),
)
STRANGERS = (
    Fault(
        "a file of a user is opened like any other, and a pipe waits for ever",
        FILES,
        "    if not stat.S_ISREG(found.st_mode):",
        "    if False:",
        (READING + "test_what_is_no_file_is_never_waited_for",),
    ),
    Fault(
        "YAML of a user may name its parts again and again",
        VALUES,
        "if isinstance(event, yaml.AliasEvent) or named != (None, None):",
        "if False:",
        (READING + "test_a_context_that_cannot_be_is_one_sentence",),
    ),
    Fault(
        "numbers of a user need not be finite",
        VALUES,
        "if any(isinstance(each, float) and not math.isfinite(each) for each in layer):",
        "if False:",
        (READING + "test_json_that_programs_read_in_different_ways_is_refused",),
    ),
    Fault(
        "a base of a visitor's release is fetched with the owner's token",
        SHELF,
        '        base, revision, token = reference["name"], reference["revision"], self._token(name)',
        '        base, revision, token = reference["name"], reference["revision"], None',
        (PAGES + "test_a_private_base_is_not_fetched_for_a_visitor_and_is_for_the_owner",),
    ),
    Fault(
        "a base may be of any size",
        SHELF,
        "            self._refuse_large(f\"'{name}' is not opened: its base\", size)\n",
        "",
        (PAGES + "test_a_base_that_is_too_large_is_not_fetched",),
    ),
    Fault(
        "a base that a release names is looked for among folders",
        BASE,
        '        folder = fetch_snapshot(place, revision, kind="the base", files=stated, flag="the base")',
        '        folder = fetch_release(place, revision, kind="the base", files=stated)',
        (PAGES + "test_a_base_is_no_folder_of_this_machine_and_the_message_does_not_tell_of_one",),
    ),
    Fault(
        "a row of a stranger names a file of the host",
        RECORDS,
        "    if roots is None or not isinstance(image, Path):",
        "    if True:",
        (STRANGE + "test_a_row_that_names_a_file_of_the_host_brings_no_image",
         STRANGE + "test_public_images_are_in_the_files_of_their_data_set"),
    ),
    Fault(
        "a card of a stranger names files of the host",
        TABLES,
        "        if problem is None and any(ELSEWHERE",
        "        if False and any(ELSEWHERE",
        (STRANGE + "test_a_card_that_names_other_files_is_not_followed",),
        '    roots = [] if "://" in place else [',
        '    return str(folder)\n    roots = [] if "://" in place else [',
    ),
    Fault(
        "what is small in its file is unpacked, however large it is",
        TABLES,
        "                if left < 0:",
        "                if False:",
        (STRANGE + "test_a_row_that_is_repeated_a_million_times_is_not_unpacked",),
    ),
    Fault(
        "a release of images may name files in its rows",
        READER,
        '        if image.field("path").null_count != len(batch):',
        "        if False:",
        (STRANGE + "test_a_row_that_names_a_file_of_the_host_brings_no_image",
         "release/test_dataset_release.py::test_what_unpacks_to_more_than_it_says_is_not_loaded"),
    ),
    Fault(
        "a configuration of a stranger may ask for packages and code",
        CHECKS,
        "        if config.get(key) is not None:\n            raise",
        "        if False:\n            raise",
        ("release/test_untrusted_latents.py::test_a_trap_is_refused_in_one_sentence",),
    ),
    Fault(
        "a configuration of a few bytes is built, however many layers it has",
        CHECKS,
        "        if len(seen) > 2 * tensors + 16 or",
        "        if False or",
        ("release/test_untrusted_latents.py::test_building_ends_with_the_weights_that_there_are",),
    ),
    Fault(
        "a refusal before the first query leaves private/",
        LAUNCH,
        "        with folder.discarded_on(UsageError, lambda: bool(run.ledger.rows)):",
        "        with folder.discarded_on(UsageError, lambda: True):",
        (WRONG + "test_private_evolution_asks_nothing",),
    ),
    Fault(
        "a refusal after a query removes private/, and with it the ledger",
        LAUNCH,
        "        with folder.discarded_on(UsageError, lambda: bool(run.ledger.rows)):",
        "        with folder.discarded_on(UsageError, lambda: False):",
        (WRONG + "test_a_refusal_after_the_first_query_keeps_the_ledger",),
    ),
    Fault(
        "a recipe's N is taken for that of any images",
        RECIPES,
        "    if flag is None or named is None or not missing or",
        "    if True or",
        ("methods/test_recipe_facts.py::test_a_recipe_s_facts_are_those_of_its_own_data_set",),
    ),
)  # fmt: skip
