# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Builds the dossier of a release: checks it, refuses what is about another release, and writes page and JSON."""

from pathlib import Path

from ..errors import IntegrityError
from ..files.canonical import canonical_json
from ..files.output_files import write_text
from ..release.cards import UNSAYABLE
from ..release.hub import verify_here
from ..verify import settled_digest
from .contents import contents
from .dossier_page import dossier_page
from .evidence import read_audit, read_evaluation, read_tests


DOSSIER, ANNEX = "dossier/dossier", "private/unprotected/dossier_annex"  # without their endings


def write_dossier(
    folder: Path, output_dir: Path, *, name: str, answers: dict[str, str], evaluation: tuple[str, Path] | None = None,
    audit: tuple[str, Path] | None = None, tests: Path | None = None,
) -> list[Path]:  # fmt: skip
    """Writes the dossier, and an annex for the house if something was measured on private images.

    Args:
        folder (`Path`): Folder of the release.
        output_dir (`Path`): Folder that gets `dossier/` and `private/unprotected/`.
        name (`str`): Name of the release.
        answers (`dict[str, str]`): See `form.read_context`.
        evaluation, audit (`tuple[str, Path]`, *optional*): Flag and file of a report of `evaluate`, and of the result
            of `audit release`.
        tests (`Path`, *optional*): Where `audit mechanism` or `audit run` put its result, if the run was audited.

    Returns:
        `list[Path]`: Written pages.

    Raises:
        IntegrityError: The release does not match its receipt; nothing is written.
        UsageError: There is no release, or evidence is about another one.
    """
    receipt, problems = verify_here(folder)
    if problems:
        raise IntegrityError(f"{folder} gets no dossier: {' '.join(problems)}")
    digest = settled_digest(receipt)
    classes, private = read_evaluation(evaluation[1], evaluation[0], digest) if evaluation else ([], False)
    attack, tested = read_audit(audit[1], audit[0], digest) if audit else None, read_tests(tests)
    from jinja2 import TemplateError

    try:
        found = contents(receipt, name=name, answers=answers, tests=tested, per_class=[] if private else classes)
        page = dossier_page(found)
        pages = [(DOSSIER, found, page)]
        if private or attack:
            kept = ("format", "library", "release", "parameters")
            annex = {name: found[name] for name in kept} | {"classes": classes if private else [], "attack": attack}
            pages.append((ANNEX, annex, dossier_page(annex, annex=True)))
        written: dict[str, str] = {}  # all of it can be said before anything is written
        for place, values, html in pages:
            written |= {f"{place}.json": canonical_json(values), f"{place}.html": html}
        "".join(written.values()).encode()
    except (*UNSAYABLE, TemplateError) as error:  # fields that no check reads can contain anything
        raise IntegrityError(
            f"{folder} gets no dossier: its receipt holds what no receipt of this library does ({error})."
        ) from None
    for name, content in written.items():
        write_text(content, output_dir / name)
    return [output_dir / f"{place}.html" for place, _, _ in pages]
