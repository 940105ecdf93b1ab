# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What mkdocs does not do: pages outside docs/, a page of all flags and one for each public module, links to source
code, and formulas without a script.

Texts are also read in the repository, where their links go to files. On the site, a link to a page or a public module
goes to its page, and a link to other code is the name alone.
"""

import html
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File


ROOT = Path(__file__).resolve().parent.parent
#: Pages from elsewhere in the repository, by their name on the site.
OUTSIDE = {
    "index.md": "README.md",
    "training.md": "training/README.md",
    "security.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "examples.md": "examples/README.md",
    "changes.md": "CHANGELOG.md",
}
#: Modules that docs/architecture.md links to, by the names of their pages.
MODULES = {
    f"api/{Path(path).stem}.md": path
    for path in re.findall(
        r"\]\(\.\./((?:diffusers_dp|pipelines)/[\w/]+\.py)\)",
        (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"),
    )
}
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
#: As pymdownx.arithmatex leaves them.
_FORMULA = re.compile(r"(?<=class=\"arithmatex\">)\\([(\[])(.*?)\\[)\]](?=</)", re.DOTALL)


def on_files(files: Any, *, config: Any) -> Any:
    sys.path.append(str(ROOT / "docs"))
    from flag_page import page

    files.append(File.generated(config, "flags.md", content=page()))
    for name, path in OUTSIDE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    for name, path in MODULES.items():
        module = path.removesuffix(".py").replace("/", ".")
        files.append(File.generated(config, name, content=f"::: {module}\n    options: {{heading_level: 1}}\n"))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    name = page.file.src_uri
    source = ROOT / OUTSIDE.get(name, f"docs/{name}")

    def link(found: re.Match) -> str:
        return _linked(found[1], found[2], source.parent, Path(name).parent)  # an image keeps its `!` in front

    return _LINK.sub(link, markdown)


def on_page_content(text: str, *, page: Any, **_: Any) -> str:
    """Formulas become MathML, after Markdown, which takes `<math>` for a block that ends a paragraph. Types in
    docstrings are written as Diffusers does, "`str`, *optional*", and shown as they are meant."""
    text = _FORMULA.sub(_mathml, text)
    if page.file.src_uri not in MODULES:
        return text
    return re.sub(
        r"<code>([^<]*)</code>",
        lambda found: f"<code>{found[1].replace('`', '').replace('*optional*', 'optional')}</code>",
        text,
    )


def on_post_build(*, config: Any) -> None:
    """The theme would ask another site for a script, where pages are opened from a disk; they do without."""
    for script in Path(config.site_dir, "assets", "javascripts").glob("bundle.*.js"):
        text = script.read_text(encoding="utf-8")
        script.write_text(
            text.replace("https://unpkg.com/iframe-worker/shim", "data:text/javascript,"), encoding="utf-8"
        )


def _linked(text: str, target: str, folder: Path, page_folder: Path) -> str:
    if "://" in target or target.startswith(("#", "mailto:")):
        return f"[{text}]({target})"
    path, hash_sign, anchor = target.partition("#")
    there = (folder / path).resolve()
    relative = there.relative_to(ROOT).as_posix()
    pages = {outside: page for page, outside in {**OUTSIDE, **MODULES}.items()}
    if relative in pages:
        page = pages[relative]
    elif relative.startswith("docs/"):
        page = relative.removeprefix("docs/")
    elif there.exists():
        return "" if text == "row" else text  # a row of measurements, which the site does not have
    else:
        return f"[{text}]({target})"  # which is reported as broken
    up = "../" * len(page_folder.parts)
    return f"[{text}]({up}{page}{hash_sign}{anchor})"


def _mathml(found: re.Match) -> str:
    return convert(html.unescape(found[2]).replace("\n", " "), display="inline" if found[1] == "(" else "block")
