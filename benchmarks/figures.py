"""Figures of the docs: tables that are made from rows, and the rule that each figure links to its row.

`python benchmarks/rows.py docs` writes every block between `<!-- rows: CASE, CASE -->` and `<!-- /rows -->` again,
from `results/rows.jsonl`, and `evidence.py` the block `<!-- choice -->`. Other figures link to their row:
`[row](../benchmarks/results/FILE#NAME)`. NAME has hyphens for blanks and no commas. It is a recipe's hash in
`quality_cpu.jsonl`, the `part` in `gpu_h100.jsonl`, and the `name` of a line in `measured_before.jsonl`, which has the
figures that were measured without `rows.py`. Sentences hold no names of rows.

The rule: a paragraph or a table states a figure of ours where it has a word of `WORDS` and a number of per cent or of
points, or a word of `MEASURES` and a number with a decimal point. For a table, the paragraph before or after it may
have that word. Code, headings and targets of links do not count. A figure stands in a generated block, or its
paragraph links to its row; for a table the paragraph before or after may do so. Published figures need no row: their
paragraph or table, or the paragraph before the table, says "published" or cites arXiv, and does not say "measured".
"""

import json
import re
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from board import BOARD, core_minutes, with_board


ROOT = Path(__file__).parents[1]
#: Lines of `draw_few_images`: a method, and the cases that it takes. And private images of a data set.
LINES = {
    "moments": ("Moments", "Moments of few images"),
    "Private Evolution": ("PE", "PE of few images"),
    "FETA-Pro": ("FETA-Pro with moments", "FETA-Pro by rules"),
}
IMAGES = {"mnist_1500": 1500, "mnist_6000": 6000, "mnist": 60_000}
RESULTS = ROOT / "benchmarks" / "results"
READMES = [ROOT / name / "README.md" for name in (".", "training", "examples")]
TEXTS = [*READMES, *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = {
    "rows.jsonl": "case",
    "examples.jsonl": "case",
    "quality_cpu.jsonl": "recipe",
    "measured_before.jsonl": "name",
    "gpu_h100.jsonl": "part",
}
SAME = ("case", "data", "epsilon", "num_drawn", "recipe", "flags")  # rows that differ in their seeds alone
DRAWN = 5000  # images, unless a table says otherwise
OF_A_CASE = ("train", "draw", "upscale")  # stages whose minutes a table shows; no command enlarges now
BLOCK = re.compile(r"(<!-- rows: (.+?) -->).*?(<!-- /rows -->)", re.DOTALL)
CHOICE = re.compile(r"(<!-- choice -->).*?(<!-- /choice -->)", re.DOTALL)  # `evidence.py` writes it
NAMED = re.compile(r"\]\((?:\.\./)*benchmarks/results/(\S+\.jsonl)#([^)\s]+)\)")
MEASURES = re.compile(r"accurac|Fréchet|\bFID\b|\blegible\b|±", re.IGNORECASE)
WORDS = re.compile(r"accurac|Fréchet|\bFID\b|\bs\.e\.|\breach(?:es|ed)? \W*\d|classif|\bCNN\b", re.IGNORECASE)
PER_CENT = re.compile(r"(?<![\d.,])\d{1,2}(?:\.\d+)? ?(?:%|points\b)")
DECIMAL = re.compile(r"(?<![\d.,-])\d+\.\d+(?!\d|\.\d|e-)")
PUBLISHED = re.compile(r"(?<!as )\bpublish(?:ed|es)\b|arxiv", re.IGNORECASE)
MEASURED = re.compile(r"(?<!not )\bmeasured\b", re.IGNORECASE)
NOT_TEXT = re.compile(r"\]\([^)\s]*\)|^#+ .*$", re.MULTILINE)


def table(rows: list[dict[str, Any]]) -> str:
    """All columns as Markdown, a line for each case: mean and standard error over seeds."""
    heads = ["case", "data", "epsilon", "seeds", "drawn", "cnn", "mlp", "logreg", "Fréchet", "precision", "recall"]
    lines = [f"| {' | '.join([*heads, 'minutes'])} |", "|---" * (len(heads) + 1) + "|"]
    for same in groups_of(rows):
        accuracies = [mean_of([100 * row["accuracy"][name] for row in same], 2) for name in ("cnn", "mlp", "logreg")]
        others = [mean_of([row[name] for row in same], 4) for name in ("frechet", "precision", "recall")]
        name, data, epsilon, minutes = _facts(same)
        cells = [name, data, epsilon, str(len(same)), f"{same[0]['num_drawn']:,}", *accuracies, *others, minutes]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def short_table(rows: list[dict[str, Any]]) -> str:
    """The columns that pages show: means, with the standard error and the number of seeds of the accuracy."""
    lines = [
        "| case | data | epsilon | accuracy (s.e., seeds) | Fréchet | recall | minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for same in groups_of(rows):
        accuracy = mean_of([100 * row["accuracy"]["cnn"] for row in same], 2)
        if len(same) > 1:
            accuracy = f"{accuracy[:-1]}, {len(same)})"
        distance, recall = (statistics.mean(row[name] for row in same) for name in ("frechet", "recall"))
        name, data, epsilon, minutes = _facts(same)
        drawn = "" if same[0]["num_drawn"] == DRAWN else f", {same[0]['num_drawn']:,} images"
        cells = [name + drawn, data, epsilon, accuracy, f"{distance:.4f}", f"{recall:.2f}", minutes.partition(" ")[0]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def groups_of(rows: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows of test images that differ in their seeds alone, group by group."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["scored_on"] == "test":
            groups.setdefault((*(row.get(name, "") for name in SAME), _drawing(row)), []).append(row)
    return list(groups.values())


def _drawing(row: dict[str, Any]) -> str:
    return f"{row.get('draw', '')} {row.get('upscale', '')}".strip()


def _facts(same: list[dict[str, Any]]) -> tuple[str, str, str, str]:
    """Name of the case with its flags of drawing, data set, epsilon, and minutes."""
    row, draw = same[0], _drawing(same[0])
    epsilon = "none" if row["epsilon"] is None else f"{row['epsilon']:g}"
    minutes = mean_of([core_minutes(each, *OF_A_CASE) for each in same], 1)
    return f"{row['case']} `{draw}`" if draw else row["case"], row["data"], epsilon, minutes


def mean_of(values: list[float], digits: int) -> str:
    """Mean, and in parentheses the standard error over seeds where there are several."""
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ({statistics.stdev(values) / len(values) ** 0.5:.{digits}f})"


def written(text: str, rows: list[dict[str, Any]]) -> str:
    """A text with its generated blocks made from these rows."""

    def block(found: re.Match[str]) -> str:
        cases = found[2].split(", ")
        chosen = [row for case in cases for row in rows if row["case"] == case and row["scored_on"] == "test"]
        missing = sorted(set(cases) - {row["case"] for row in chosen}, key=cases.index)
        parts = [short_table(chosen)] if chosen else []
        parts += [f"No row yet: {', '.join(missing)}."] if missing else []
        return "\n\n".join([found[1], *parts, found[3]])

    return with_board(BLOCK.sub(block, text), rows)


def cases_of(text: str) -> set[str]:
    """Names of the cases whose rows a text shows."""
    return {case for found in BLOCK.finditer(text) for case in found[2].split(", ")}


def known_names() -> dict[str, set[str]]:
    """Names of the rows in each file of results."""
    return {
        file: {json.loads(line)[key] for line in (RESULTS / file).read_text(encoding="utf-8").splitlines()}
        for file, key in NAMES.items() if (RESULTS / file).exists()
    }  # fmt: skip


def without_row(text: str, known: dict[str, set[str]]) -> list[str]:
    """
    Applies the rule of this file.

    Args:
        text (`str`): Markdown.
        known (`dict`): Names of the rows in each file.

    Returns:
        `list[str]`: Paragraphs and tables with figures of ours that name no row.
    """
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for generated in (BLOCK, CHOICE, BOARD):
        text = generated.sub("", text)
    blocks = [block for block in re.split(r"\n\s*\n", text) if block.strip()]
    found = []
    for place, block in enumerate(blocks):
        before, after = blocks[max(0, place - 1) : place], blocks[place + 1 : place + 2]
        if not block.lstrip().startswith("|"):
            before = after = []
        near = [*before, block, *after]
        if states_figure(block, near) and not is_published(block, before) and not names_row(near, known):
            found.append(block)
    return found


def prose(block: str) -> str:
    return re.sub(r"`[^`\n]*`|\*", "", NOT_TEXT.sub("", block))


def states_figure(block: str, near: Iterable[str]) -> bool:
    numbers = prose(block)
    words = "\n".join(prose(each) for each in near)
    return bool(
        (WORDS.search(words) and PER_CENT.search(numbers)) or (MEASURES.search(words) and DECIMAL.search(numbers))
    )


def is_published(block: str, before: Iterable[str]) -> bool:
    """Whether a paragraph, or a table with what stands before it, has figures of others alone."""
    return not MEASURED.search(prose(block)) and any(PUBLISHED.search(prose(each)) for each in (block, *before))


def names_row(near: Iterable[str], known: dict[str, set[str]]) -> bool:
    """Whether links name rows, all of which exist."""
    named = [pair for block in near for pair in NAMED.findall(block)]
    return bool(named) and all(name in map(anchor, known.get(file, ())) for file, name in named)


def anchor(name: str) -> str:
    """A row's name at the end of a link."""
    return name.replace(",", "").replace(" ", "-")


def draw_few_images(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws the accuracy of the small CNN against the number of private images of MNIST, a line for each method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, epsilon in zip(figure.subplots(1, 2, sharey=True), (10, 1), strict=True):
        for name, cases in LINES.items():
            found: dict[int, list[float]] = {}
            for row in rows:
                if row["case"] in cases and row["data"] in IMAGES and row["epsilon"] == epsilon:
                    found.setdefault(IMAGES[row["data"]], []).append(100 * row["accuracy"]["cnn"])
            points = sorted((number, statistics.mean(values)) for number, values in found.items())
            if len(points) > 1:
                axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.set(xscale="log", title=f"epsilon {epsilon}", xlabel="private images, in ten classes")
        axes.set_xticks(list(IMAGES.values()), [f"{number:,}" for number in IMAGES.values()], minor=False)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    figure.axes[0].set_ylabel("accuracy on test images, %")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def write_docs(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Writes the generated blocks of all texts, and returns the names of those that changed."""
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        if (new := written(text, rows)) != text:
            path.write_text(new, encoding="utf-8")
            yield str(path.relative_to(ROOT))
