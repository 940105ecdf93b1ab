# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What leaves the house, and what the page opens and says."""

from .fault import Fault


PUSH, SHELF, WORDS, PAGE_SERVER, HUB, COMPONENTS, DOORS = (
    "diffusers_dp/push.py", "diffusers_dp/app/shelf.py", "diffusers_dp/plain_words.py", "diffusers_dp/app/server.py",
    "diffusers_dp/hub.py", "diffusers_dp/components.py", "diffusers_dp/app/doors.py",
)  # fmt: skip
GOING_PUBLIC = (
    Fault(
        "a push takes whatever lies in the folder",
        PUSH,
        "    return list(RELEASE_FILES)",
        '    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]',
        ("test_push.py::test_a_release_goes_whole_and_alone_and_comes_back_verified",),
    ),
    Fault(
        "a receipt widens the allow-list of a push",
        PUSH,
        "sorted(stated - set(RELEASE_FILES))",
        "sorted(stated - stated)",
        ("test_push.py::test_a_receipt_that_lists_more_files_does_not_widen_the_allow_list",),
    ),
    Fault(
        "a push does not mind what its verifier finds",
        PUSH,
        "    if problems:\n        raise IntegrityError",
        "    if missing:\n        raise IntegrityError",
        ("test_push.py::test_what_is_not_the_release_of_its_receipt_is_not_sent",),
    ),
    Fault(
        "what should be private goes into a public repository",
        PUSH,
        "    if seen_by_all:",
        "    if False:",
        ("test_push.py::test_what_should_be_private_does_not_go_into_a_public_repository",),
    ),
    Fault(
        "the page opens what does not match its receipt",
        SHELF,
        "        if problems and not self.allow_unverified:",
        "        if False:",
        ("test_app.py::TestRefusals::test_what_does_not_match",),
    ),
    Fault(
        "visitors use the owner's token",
        SHELF,
        "token = None if name in self.names else False",
        "token = None",
        ("test_push.py::TestThePage::test_visitors_do_not_use_the_owner_s_token",),
    ),
    Fault(
        "any visitor may type a path",
        PAGE_SERVER,
        "        folders_by_visitors=args.server_name in (HERE, ",
        "        folders_by_visitors=args.server_name in (HERE, EVERYWHERE, ",
        ("test_app.py::TestServer::test_it_listens_to_this_machine_alone_unless_it_is_a_space",),
    ),
    Fault(
        "a stranger's model is loaded unseen",
        HUB,
        "    check_model(str(release), check_components(str(release), folder))\n",
        "",
        ("test_components.py::test_nothing_is_loaded_though_the_receipt_is_consistent",),
    ),
    Fault(
        "a model may name any scheduler",
        COMPONENTS,
        'component(index, "unet") != UNET or kind not in SCHEDULERS',
        'component(index, "unet") != UNET',
        ("test_components.py::test_a_trap_is_refused_in_one_sentence",),
    ),
    Fault(
        "a configuration may describe more layers than there are weights",
        COMPONENTS,
        " or layers * len(levels) > len(shapes)",
        "",
        ("test_components.py::test_a_trap_is_refused_in_one_sentence",),
    ),
    Fault(
        "the page answers to any name",
        DOORS,
        "return host in self.names or (self.any_address and _is_address(host))",
        "return True",
        ("test_app_doors.py::test_a_name_that_is_not_ours_gets_no_answer",),
    ),
    Fault(
        "another site may ask the page",
        DOORS,
        "        for origin in origins:",
        "        for origin in ():",
        ("test_app_doors.py::test_another_site_asks_for_nothing",),
    ),
    Fault(
        "the page takes files",
        DOORS,
        'ASKED = (f"{API}/queue/join",',
        'ASKED = (f"{API}/upload", f"{API}/queue/join",',
        ("test_app_doors.py::test_no_files_are_taken_and_none_are_served",),
    ),
    Fault(
        "epsilon is shown rounded down",
        WORDS,
        "math.ceil(round(value / unit, 6))",
        "math.floor(value / unit)",
        ("test_plain_words.py::test_a_short_number_is_near_and_never_below",),
    ),
)
