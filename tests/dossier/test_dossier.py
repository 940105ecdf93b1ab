# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The dossier: its numbers recomputed without the library, every word explained, and nothing for what does not
match."""

import json
import math
import re
import shutil
from html import unescape

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from diffusers_dp import cli
from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.evaluation.report import class_rates
from diffusers_dp.release.plain_words import of_thousand
from diffusers_dp.verify import receipt_digest
from support.html_pages import Page
from support.ledgers import row
from support.releases import RECEIPT, make_release


#: Words of the field that no reader outside of it knows.
FIELD = (
    "accountant|adjacency|audit|bands|banded gaussian|canary|clip norm|composition|confidence|delta|"
    "differential privacy|differentially private|dp-sgd|epsilon|false-positive|floating-point|"
    "formal bound|gaussian|hockey-stick|hyper-parameters|hypothesis test|leaky|ledger|mechanism|membership|"
    "motivated intruder|neighbour|noise multiplicity|noise multiplier|normaliser|pld|poisson|"
    "post-processing|prior|prv|rdp|receipt|reconstruction|sample rate|seed|sensitivity|sha-256|synthetic|"
    "valid|trade-off|true-positive|unit|zero-out"
).split("|")
COUNTS = [[8, 2], [1, 9]]


def command(capsys, *arguments):
    code = 0
    try:
        cli.main(["dossier", *map(str, arguments)])
    except SystemExit as stopped:
        code = stopped.code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out + said.err


def written(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def words_of(page):
    return unescape(re.sub(r"<[^>]+>", " ", page[page.index("<body") :]))


def report(release, private, receipt_sha256=None):
    digest = receipt_sha256 or receipt_digest(release / RECEIPT)
    return {
        "read private data": "yes" if private else "no",
        "release": {"receipt_sha256": digest},
        "confusion": {"cnn": {"counts": COUNTS, "per_class": class_rates(COUNTS, ["one", "<b>two"])}},
    }


@pytest.fixture(scope="module")
def made(honest, tmp_path_factory):
    """The JSON and the page of a release without evaluation or answers."""
    folder = tmp_path_factory.mktemp("dossier")
    cli.main(["dossier", str(honest), "--output_dir", str(folder)])
    assert written(folder) == ["dossier/dossier.html", "dossier/dossier.json"]
    return (
        json.loads((folder / "dossier/dossier.json").read_text()),
        (folder / "dossier/dossier.html").read_text(encoding="utf-8"),
    )


def test_the_limits_are_those_of_the_receipt(made, honest):
    """Recomputed from its events with dp_accounting alone, on a grid of epsilons."""
    receipt = json.loads((honest / RECEIPT).read_text())
    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, 1e-4)
    for event in receipt["events"]:
        question = dp.GaussianDpEvent(event["noise_multiplier"])
        if event["sampling_probability"] < 1:
            question = dp.PoissonSampledDpEvent(event["sampling_probability"], question)
        accountant.compose(question, event["steps_reserved"])
    epsilons = np.arange(-20, 14, 2e-3)
    deltas = accountant.get_delta(epsilons)
    found = made[0]["attacker"]["bounds"]
    assert [row["without_release"] for row in found] == [0.001, 0.01, 0.0, 1e-6, 1e-3]
    for bound in found:
        if alpha := bound["without_release"]:
            assert bound["at_most"] == pytest.approx((np.exp(epsilons) * alpha + deltas).min(), abs=1e-6)
        else:
            assert bound["at_most"] == pytest.approx(accountant.get_delta(0.0), abs=1e-9)
    assert made[0]["parameters"]["epsilon"] == receipt["claimed_epsilon"]["rdp"]["epsilon"]
    assert made[0]["release"]["receipt_sha256"] == receipt_digest(honest / RECEIPT)
    finds = math.ceil(1000 * found[0]["at_most"])
    assert f"accuses 1 of 1,000 images that were not used. Then it finds at most {finds} of 1,000 images" in made[1]


@pytest.mark.parametrize(("rate", "said"), [(0.001, "1"), (0.0021981, "2.2"), (0.0022001, "2.3"), (0.1112, "112"),
                                            (0.99999, "1,000"), (1.0, "1,000"), (0.00999, "10")])  # fmt: skip
def test_a_number_of_a_thousand_is_never_below_the_limit(rate, said):
    assert of_thousand(rate) == said


def test_the_page_needs_no_network_and_can_be_read_without_eyes(made):
    page = Page(made[1])
    assert "script" not in page.tags and not [link for link in page.links if not link.startswith("#")]
    assert {link[1:] for link in page.links} <= {*page.ids} and len({*page.ids}) == len(page.ids)
    assert page.headings[0] == 1 and page.headings.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(page.headings, page.headings[1:], strict=False))
    assert len(page.images) == 5 and all("This release: epsilon" in words for words in page.images)
    assert page.tags.count("table") == page.tags.count("caption") > 4
    assert "default-src 'none'" in made[1] and "url(" not in made[1]


def unexplained(page):
    """Words of the field on a page whose form is in no explained term."""
    terms = " ".join(unescape(each) for each in re.findall(r"<dt[^>]*>(.*?)</dt>", page)).lower()
    words = words_of(page).lower()
    return [word for word in FIELD if re.search(rf"\b{word}", words) and word[:6] not in terms]


def test_no_word_of_the_field_is_left_unexplained(made):
    assert unexplained(made[1]) == []
    without = re.sub(r"<dt[^>]*>PLD</dt><dd>.*?</dd>", "", made[1])
    assert unexplained(without) == ["pld"]


def test_patients_and_earlier_releases_are_counted(tmp_path, capsys):
    facts = {"target_delta": 1e-5, "num_images": 300, "dataset_id": "scans", "unit_of_privacy": "patient"}
    first = PrivacyLedger(tmp_path / "scans.jsonl", release_id="a", target_epsilon=2.0, **facts)
    first.reserve(row(3.0, 0.1, 20, "dp_sgd"))
    first.close()
    ledger = PrivacyLedger(tmp_path / "scans.jsonl", release_id="b", target_epsilon=3.0, dataset_epsilon=4.0, **facts)
    ledger.reserve(row(3.0, 0.2, 30, "dp_sgd"))
    release = make_release(tmp_path, ledger=ledger)
    code, said = command(capsys, release, "--output_dir", tmp_path)
    assert code == 0, said
    page = (tmp_path / "dossier/dossier.html").read_text(encoding="utf-8")
    assert "of 1,000 patients that were used" in page and "everything with one value of <code>patient</code>" in page
    assert Page(page) and unexplained(page) == []

    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, 1e-4)
    for rate, steps in ((0.1, 20), (0.2, 30)):
        accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(3.0)), steps)
    epsilons = np.arange(-5, 8, 2e-3)
    bound = (np.exp(epsilons) * 0.001 + accountant.get_delta(epsilons)).min()
    limits = json.loads((tmp_path / "dossier/dossier.json").read_text())["attacker"]["bounds"][0]
    assert limits["at_most"] < limits["at_most_with_earlier_releases"] == pytest.approx(bound, abs=1e-6)
    words = f"With the earlier releases from the same data together, it finds at most {of_thousand(bound)}."
    assert words in page and words in (release / "README.md").read_text(encoding="utf-8")


def test_what_does_not_match_gets_no_dossier(release, tmp_path, capsys):
    (release / "samples.png").write_bytes(b"")
    code, said = command(capsys, release, "--output_dir", tmp_path / "out")
    assert code == 4 and "gets no dossier" in said and "samples.png" in said and not (tmp_path / "out").exists()
    (release / RECEIPT).write_text("{")
    assert command(capsys, release, "--output_dir", tmp_path / "out")[0] == 4
    (release / RECEIPT).unlink()
    assert command(capsys, release, "--output_dir", tmp_path / "out")[0] == 2 and not (tmp_path / "out").exists()


def test_an_evaluation_of_another_release_is_refused(release, tmp_path, capsys):
    for number, content in enumerate(
        [report(release, False, "0" * 64), {"release": None, "confusion": {}}, [], report(release, False)]
    ):
        path = tmp_path / f"report{number}.json"
        path.write_text(json.dumps(content))
        out = tmp_path / f"out{number}"
        code, said = command(capsys, release, "--evaluation", path, "--output_dir", out)
        assert (code, out.exists()) == ((0, True) if number == 3 else (2, False)), said
        assert number == 3 or "--evaluation" in said
    page = (tmp_path / "out3/dossier/dossier.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;two" in page and "<b>" not in page and "80.0 %" in page and "differ by 10 %" in page


def test_what_private_images_told_is_an_annex_for_the_house(release, tmp_path, capsys):
    """Also where it lies beside the release, and nobody named it."""
    place = release.parent / "private/unprotected/evaluation"
    place.mkdir(parents=True)
    (place / "report.json").write_text(json.dumps(report(release, True)))
    code, said = command(capsys, release)
    annex = release.parent / "private/unprotected/dossier_annex.html"
    assert code == 0 and "For the house alone" in said and annex.stat().st_mode & 0o777 == 0o600
    published = "".join(path.read_text(encoding="utf-8") for path in (release.parent / "dossier").iterdir())
    assert (
        "&lt;b&gt;two" in annex.read_text(encoding="utf-8") and 'two"' not in published and "b&gt;two" not in published
    )
    assert "PRIVATE" in annex.read_text(encoding="utf-8") and Page(annex.read_text(encoding="utf-8"))
    assert unexplained(annex.read_text(encoding="utf-8")) == []


def test_answers_of_the_institution_are_on_the_page(release, tmp_path, capsys):
    path = tmp_path / "context.yaml"
    path.write_text("purpose: teaching, <script>alert(1)</script>\nreview: 2027-01-31\nsigned:\n")
    assert command(capsys, release, "--context", path, "--output_dir", tmp_path / "out")[0] == 0
    page = (tmp_path / "out/dossier/dossier.html").read_text(encoding="utf-8")
    assert "teaching, &lt;script&gt;" in page and "2027-01-31" in page and page.count('class="field"') == 20
    found = json.loads((tmp_path / "out/dossier/dossier.json").read_text())
    assert {each["name"]: each["answer"] for each in found["form"] if each["answer"]} == {
        "purpose": "teaching, <script>alert(1)</script>", "review": "2027-01-31",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "words"),
    [("purpse: x", "the nearest is 'purpose'"), ("zzzzzz: x", "names are purpose"), ("- x", "name: text"),
     ("purpose: [x]", "must be a text"), ("a: b: c", "it is not YAML"), (None, "cannot be read")],
)  # fmt: skip
def test_a_context_that_cannot_be_is_one_sentence(release, tmp_path, capsys, content, words):
    path = tmp_path / "context.yaml"
    if content is not None:
        path.write_text(content)
    code, said = command(capsys, release, "--context", path, "--output_dir", tmp_path / "out")
    assert code == 2 and "--context" in said and words in said and not (tmp_path / "out").exists()


HONEST = {"formal_bound": 0.576, "gaussian_estimate": 0.2, "rejected_by": []}
AUDIT = {
    "verdict": "VALID", "tier": "mechanism", "confidence": {"formal_bound": 0.99999},
    "mechanisms": {"dp_sgd": {"claimed_epsilon": 2.0, "honest": HONEST}},
}  # fmt: skip


def with_audit(release, home, content):
    """A run whose folder holds a result of `audit mechanism`."""
    shutil.copytree(release, home / "release")
    (home / "private").mkdir()
    (home / "private" / "audit.json").write_text(json.dumps(content))
    return home / "release"


def test_the_audit_stands_beside_the_claim(release, tmp_path, capsys):
    home = tmp_path / "scans"
    assert command(capsys, with_audit(release, home, AUDIT))[0] == 0
    page = (home / "dossier/dossier.html").read_text(encoding="utf-8")
    assert all(words in page for words in ("<strong>VALID</strong>", "0.576", "2.000", "99.999 %"))
    assert unexplained(page) == []


@pytest.mark.parametrize(
    "audit",
    [{}, [], "x", {**AUDIT, "verdict": ["<b>"]}, {**AUDIT, "confidence": {"formal_bound": "9" * 99}},
     {**AUDIT, "mechanisms": {"a": {"claimed_epsilon": 2.0, "honest": {"formal_bound": "<b>"}}}}],
)  # fmt: skip
def test_an_audit_that_the_command_did_not_write_is_one_sentence(release, tmp_path, capsys, audit):
    home = tmp_path / "scans"
    code, said = command(capsys, with_audit(release, home, audit))
    assert code == 2 and "lacks results of an audit" in said and not (home / "dossier").exists()


def test_the_name_of_a_run_is_shown_and_no_path(release, tmp_path, capsys):
    home = tmp_path / "scans"
    shutil.copytree(release, home / "release")
    assert command(capsys, home / "release")[0] == 0
    page = (home / "dossier/dossier.html").read_text(encoding="utf-8")
    assert "Dossier of scans/release" in page and str(tmp_path) not in page
