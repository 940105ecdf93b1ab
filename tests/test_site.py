# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The documentation site, and the links of all texts."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

from support.places import ROOT


TEXTS = [*ROOT.glob("*.md"), *(text for folder in ("docs", "training", "examples", "tests", ".github")
                               for text in (ROOT / folder).rglob("*.md"))]  # fmt: skip
SOURCES = [*(path for folder in ("diffusers_dp", "pipelines", "training", "examples", "benchmarks")
             for end in ("py", "yaml", "md", "ipynb") for path in (ROOT / folder).glob(f"**/*.{end}"))]  # fmt: skip
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def slugs(path):
    """Of a text's headings, as GitHub and mkdocs make them; they differ in apostrophes alone."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    named, heads = re.findall(r'<a (?:id|name)="([^"]+)"', text), re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {*named} | {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def test_every_link_leads_somewhere():
    """Links of texts, from their own folder, and pages of the documentation that code and recipes name."""
    links = [
        (path, path.parent, target) for path in TEXTS
        for target in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", path.read_text(encoding="utf-8")))
    ]  # fmt: skip
    links += [
        (path, ROOT, target) for path in SOURCES if "results" not in path.parts
        for target in re.findall(r"(?<![\w/])docs/[\w/]+\.md(?:#[\w-]+)?", path.read_text(encoding="utf-8"))
    ]  # fmt: skip
    assert len(links) > 200
    anchors = cache(slugs)
    for path, folder, target in links:
        name, _, anchor = target.partition("#")
        there = folder / name if name else path
        assert "://" in target or there.exists(), f"{path.relative_to(ROOT)}: {target}"
        assert not anchor or there.suffix != ".md" or anchor in anchors(there), f"{path.relative_to(ROOT)}: {target}"


def test_every_page_is_in_the_contents():
    def pages(entries):
        for entry in entries:
            for value in entry.values():
                yield from pages(value) if isinstance(value, list) else [value]

    named = set(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    # Each module that docs/architecture.md links to has a page that the site makes.
    modules = re.findall(
        r"\]\(\.\./((?:diffusers_dp|pipelines)/[\w/]+\.py)\)",
        (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"),
    )
    made = {f"api/{Path(path).stem}.md" for path in modules}
    assert len(made) == len(modules) > 8
    outside = {"index.md", "training.md", "security.md", "contributing.md", "examples.md", "changes.md", "flags.md"}
    assert named == written | made | outside


def test_the_site_builds_without_a_warning_and_asks_nobody(tmp_path):
    for package in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(package, reason="`make docs` installs what builds the site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert (built.returncode, built.stderr) == (0, "")
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        html = page.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(http[^\" >]+)", html)
        fetched += re.findall(
            r"<link\b[^>]*\brel=\"?(?:stylesheet|preconnect|icon)[^>]*\bhref=\"?(http[^\" >]+)", html
        )
        assert not fetched, page
    assert "iframe-worker" not in next(tmp_path.glob("assets/javascripts/bundle.*.js")).read_text(encoding="utf-8")
    assert "noisy_gradient" in (tmp_path / "api" / "sensitive.html").read_text(encoding="utf-8")
    assert 'href="api/sensitive.html"' in (tmp_path / "architecture.html").read_text(encoding="utf-8")
