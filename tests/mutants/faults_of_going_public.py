# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What leaves the house, and what the page opens and says."""

from .fault import Fault


PUSH, SHELF, WORDS, PAGE_SERVER, SIGNING, HUB, COMPONENTS, DOORS = (
    "diffusers_dp/release/push.py", "diffusers_dp/app/shelf.py", "diffusers_dp/release/plain_words.py",
    "diffusers_dp/app/server.py", "diffusers_dp/release/signing.py", "diffusers_dp/release/loading.py",
    "diffusers_dp/release/components.py", "diffusers_dp/app/request_filter.py",
)  # fmt: skip
VERIFIER = "diffusers_dp/verify.py"
GOING_PUBLIC = (
    Fault(
        "a push takes whatever lies in the folder",
        PUSH,
        "    return [*allowed, *signed]",
        '    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]',
        ("release/test_push.py::test_a_release_goes_whole_and_alone_and_comes_back_verified",),
    ),
    Fault(
        "a receipt widens the allow-list of a push",
        PUSH,
        "sorted(stated - set(allowed))",
        "sorted(stated - stated)",
        ("release/test_push.py::test_a_receipt_that_lists_more_files_does_not_widen_the_allow_list",),
    ),
    Fault(
        "a push does not mind what its verifier finds",
        PUSH,
        "    if problems:\n        raise IntegrityError",
        "    if missing:\n        raise IntegrityError",
        ("release/test_push.py::test_what_is_not_the_release_of_its_receipt_is_not_sent",),
    ),
    Fault(
        "what should be private goes into a public repository",
        PUSH,
        "    if seen_by_all:",
        "    if False:",
        ("release/test_push.py::test_what_should_be_private_does_not_go_into_a_public_repository",),
    ),
    Fault(
        "the page opens what does not match its receipt",
        SHELF,
        "        if found.problems and not self.allow_unverified:",
        "        if False:",
        ("app/test_app.py::TestRefusals::test_what_does_not_match",),
    ),
    Fault(
        "visitors use the owner's token",
        SHELF,
        "        return None if name in self.names else False",
        "        return None",
        ("release/test_push.py::TestThePage::test_visitors_do_not_use_the_owner_s_token",),
    ),
    Fault(
        "a link from elsewhere makes the page fetch a model",
        SHELF,
        "        if name and name not in self.names and name not in self._opened:",
        "        if False:",
        ("app/test_app.py::TestServer::test_a_link_fetches_nothing",),
    ),
    Fault(
        "any visitor may type a path",
        PAGE_SERVER,
        "    is_here = flags.server_name in (HERE, ",
        "    is_here = flags.server_name in (HERE, '0.0.0.0', ",
        ("app/test_app.py::TestServer::test_it_listens_to_this_machine_alone_unless_it_is_a_space",),
    ),
    Fault(
        "a stranger's model is loaded unseen",
        HUB,
        "            check_model(check_components(self.folder))\n",
        "            pass\n",
        ("release/test_components.py::test_nothing_is_loaded_though_the_receipt_is_consistent",),
    ),
    Fault(
        "a model may name any scheduler",
        COMPONENTS,
        'component(index, "unet") != UNET or kind not in SCHEDULERS',
        'component(index, "unet") != UNET',
        ("release/test_components.py::test_a_trap_is_refused_in_one_sentence",),
    ),
    Fault(
        "the page answers to any name",
        DOORS,
        "return host in self.names or (self.any_address and _is_address(host))",
        "return True",
        ("app/test_app_doors.py::test_a_name_that_is_not_ours_gets_no_answer",),
    ),
    Fault(
        "another site may ask the page",
        DOORS,
        "        for origin in origins:",
        "        for origin in ():",
        ("app/test_app_doors.py::test_another_site_asks_for_nothing",),
    ),
    Fault(
        "the page takes files",
        DOORS,
        'ASKED = (f"{API}/queue/join",',
        'ASKED = (f"{API}/upload", f"{API}/queue/join",',
        ("app/test_app_doors.py::test_no_files_are_taken_and_none_are_served",),
    ),
    Fault(
        "epsilon is shown rounded down",
        WORDS,
        "math.ceil(round(value / unit, 6))",
        "math.floor(value / unit)",
        ("release/test_plain_words.py::test_a_short_number_is_near_and_never_below",),
    ),
    Fault(
        "the signature check says yes to any key",
        SIGNING,
        '"-Y", "verify", "-f", signer.allowed, "-I", signer.identity, "-n", NAMESPACE,',
        '"-Y", "check-novalidate", "-n", NAMESPACE,',
        ("release/test_signing.py::test_another_key_does_not_vouch",),
    ),
    Fault(
        "a wrong signature is reported and the release called consistent",
        "diffusers_dp/verify.py",
        "    if not fits:",
        "    if False:",
        ("release/test_signing.py::test_another_key_does_not_vouch",),
    ),
    Fault(
        "a signature leaves the hashes of the files open",
        "diffusers_dp/verify.py",
        'settled = {name: value for name, value in receipt.items() if name != "audit"}',
        'settled = {name: value for name, value in receipt.items() if name not in ("audit", "files")}',
        ("release/test_signing.py::test_a_signature_says_who_vouches_and_not_that_noise_was_added",),
    ),
    Fault(
        "a signature that does not fit goes to the Hub",
        PUSH,
        "not signature_fits(folder, receipt)",
        "False",
        ("release/test_signing.py::test_a_signature_goes_to_the_hub_if_it_fits",),
    ),
    Fault(
        "a delta that allows to publish records is planned without being asked for",
        "diffusers_dp/runs/plan.py",
        "    if config.has_guarantee and not config.allow_large_delta:",
        "    if False:",
        (
            "accounting/test_large_delta.py::TestPlan::test_a_delta_that_publishes_images_is_refused_unless_a_flag_takes_it",
        ),
    ),
    Fault(
        "a large delta is called strong",
        WORDS,
        "epsilon <= STRONG and delta <= LARGE_DELTA and not outright:",
        "epsilon <= STRONG and not outright:",
        ("release/test_plain_words.py::test_delta_makes_the_words_weaker",),
    ),
    Fault(
        "the words do not mind a delta that allows to publish records",
        WORDS,
        "    outright = delta >= 1 / number",
        "    outright = False",
        ("release/test_plain_words.py::test_delta_makes_the_words_weaker",),
    ),
    Fault(
        "the scale shows epsilon whatever delta is",
        "diffusers_dp/app/views.py",
        "max(epsilon, 1.02 * begins, 1e-9)",
        "max(epsilon, 1e-9)",
        ("app/test_app.py::TestWords::test_a_large_delta_keeps_the_scale_out_of_the_green",),
    ),
    Fault(
        "the verifier says consistent of a delta that allows to publish records, and no more",
        VERIFIER,
        "    if not delta >= 1 / number:",
        "    if not delta >= 1:",
        ("accounting/test_large_delta.py::TestOutright::test_the_verifier_never_says_consistent_without_it",),
    ),
    Fault(
        "a card need not say that its delta allows to publish records",
        VERIFIER,
        '    return f"{text} {publishes_records(*about_delta(receipt))}".rstrip()',
        "    return text",
        ("accounting/test_large_delta.py::TestOutright::test_a_card_without_it_is_not_pushed",),
    ),
)
