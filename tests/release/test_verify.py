# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The one-file verifier: an honest release passes, and each way to tamper with one is named."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diffusers_dp import cli, load_verified, verify
from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.errors import IntegrityError
from support.ledgers import row
from support.places import ROOT
from support.releases import RECEIPT, WEIGHTS, forge, make_release, reseal


def test_an_honest_release_is_consistent(release, capsys):
    assert verify.verify(release)[1] == []
    assert verify.report(release) == 0
    said = capsys.readouterr().out
    assert said.startswith("numbers consistent: epsilon ") and "for one image" in said


def test_what_the_hub_adds_and_people_edit_is_no_tampering(release):
    (release / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (release / "README.md").write_text("Now in French.\n")
    (release / ".cache" / "huggingface").mkdir(parents=True)
    (release / ".cache" / "huggingface" / "x.lock").write_text("")
    assert verify.verify(release)[1] == []


@pytest.mark.parametrize("name", [WEIGHTS, "unet/config.json", "scheduler/scheduler_config.json", "pipeline.py"])
def test_a_changed_and_a_missing_file_are_named(release, name):
    content = bytearray((release / name).read_bytes())
    content[-2] ^= 1
    (release / name).write_bytes(content)
    assert [problem for problem in verify.verify(release)[1] if name in problem and "differs" in problem]
    (release / name).unlink()
    assert [problem for problem in verify.verify(release)[1] if name in problem and "missing" in problem]


def _event(key, value):
    return lambda receipt: receipt["events"][-1].update({key: value})


FORGERIES = {
    "more noise": _event("noise_multiplier", 4.0),
    "a smaller sampling probability": _event("sampling_probability", 0.01),
    "fewer steps": lambda receipt: receipt["events"][-1].update(steps_reserved=1, steps_executed=1),
    "an event left out": lambda receipt: receipt["events"].pop(),
    "a smaller delta": lambda receipt: receipt.update(delta=1e-9),
    "a smaller claim by PLD": lambda receipt: receipt["claimed_epsilon"]["pld"].update(epsilon=0.5),
    "a claim above the target": lambda receipt: receipt.update(target_epsilon=0.1),
    "an accountant of one's own": lambda receipt: receipt.update(
        accountant="mine", claimed_epsilon={**receipt["claimed_epsilon"], "mine": {"epsilon": 0.1}}
    ),
    "RDP without orders": lambda receipt: receipt["claimed_epsilon"].update(rdp={"epsilon": 0.1, "orders": []}),
    "no events": lambda receipt: receipt.update(events=[]),
    "another adjacency": lambda receipt: receipt.update(adjacency="replace_one"),
    "no noise": _event("noise_multiplier", 0),
    "a billion steps": _event("steps_reserved", 10**9),
    "another number of images": lambda receipt: receipt["public_facts"].update(num_images=99),
    "more executed than reserved": _event("steps_executed", 99),
    "a coarse grid": lambda receipt: receipt["claimed_epsilon"]["pld"].update(value_discretization_interval=5.0),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_receipt_is_noticed(release, forgery):
    """Although its hash in `model_index.json` was made to fit."""
    assert forge(release, FORGERIES[forgery])


def test_a_hopeless_receipt_ends_in_good_time(release):
    def hopeless(receipt):
        receipt["events"][-1].update(noise_multiplier=0.06, steps_reserved=5_000_000, steps_executed=1)

    assert "no guarantee" in forge(release, hopeless)[0]


NONE = ("[]", "null")
FORMATS = (None, 1, "diffusers_dp/0", "diffusers_dp/1 ", ["diffusers_dp/1"])


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, '{"a": "\xff"}', *NONE])
def test_a_damaged_receipt_is_4(release, content, capsys):
    (release / RECEIPT).write_bytes(content.encode("latin-1"))
    assert verify.report(release) == 4
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and "is damaged: " in said.err and not said.out


@pytest.mark.parametrize("stated", FORMATS)
def test_another_format_is_refused_by_name(release, stated, capsys):
    """Also a release of the days before there was one, whose numbers are consistent."""
    reseal(release, lambda receipt: receipt.pop("format") if stated is None else receipt.update(format=stated))
    assert verify.report(release) == 4
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and 'does not state "format": "diffusers_dp/1"' in said.err and not said.out


def test_a_known_fault_is_told_and_ends_with_4(release, monkeypatch, capsys):
    """The table has no fault yet: this entry is a test's."""
    told = "its noise was drawn twice. Treat epsilon as unproven, and train again."
    assert verify.KNOWN_FAULTS == ()
    monkeypatch.setattr(verify, "KNOWN_FAULTS", ((lambda receipt: receipt["delta"] < 1e-3, told),))
    assert verify.report(release) == 4 and f"KNOWN FAULT: {told}" in capsys.readouterr().out
    monkeypatch.setattr(verify, "KNOWN_FAULTS", ((lambda receipt: receipt["delta"] > 1e-3, told),))
    assert verify.report(release) == 0 and "KNOWN FAULT" not in capsys.readouterr().out


LIES = {
    "another epsilon": lambda card: card.replace("(epsilon = ", "(epsilon = 0."),
    "another unit": lambda card: card.replace("privacy for each image", "privacy for each patient"),
    "another delta": lambda card: card.replace("delta = 1e-05", "delta = 1e-15"),
    "a smaller headline": lambda card: re.sub(r"epsilon [\d.]+, delta", "epsilon 0.02, delta", card),
    "no guarantee": lambda card: card[: card.index("**Guarantee")],
}


@pytest.mark.parametrize("lie", [None, *LIES])
def test_a_card_that_lacks_the_guarantee_is_noted(release, lie, capsys):
    """It lies outside the hashes on purpose, so that this is no mismatch."""
    card = release / "README.md"
    honest = card.read_text()
    if lie is None:
        card.unlink()
    else:
        card.write_text(LIES[lie](honest))
        assert card.read_text() != honest
    assert verify.report(release) == 0
    note = capsys.readouterr().out.splitlines()[-1]
    assert note.startswith("NOTE: README.md does not carry the guarantee of the receipt") and "not the card" in note
    card.write_text(honest.replace(" ", "\n") + "In French, too.\n")
    assert verify.report(release) == 0 and "NOTE" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["README.md", RECEIPT, WEIGHTS, "unet", "more", "dangling"])
def test_a_link_is_refused(release, tmp_path, name):
    """It may point elsewhere tomorrow, and what lies behind a linked folder is not looked at."""
    path, target = release / name, tmp_path / "elsewhere"
    if path.exists():
        path.rename(target)
    elif name == "more":
        target.mkdir()
    path.symlink_to(target)
    assert f"{name} is a link to elsewhere: a release holds files." in verify.verify(release)[1]
    assert verify.report(release) == 4


def test_the_cache_of_the_hub_may_link_to_its_own_blobs(release, tmp_path):
    snapshot = Path(shutil.move(release, tmp_path / "models--a--b" / "snapshots" / "0123"))
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir()
    for number, path in enumerate([path for path in snapshot.rglob("*") if path.is_file()]):
        path.rename(blobs / str(number))
        path.symlink_to(blobs / str(number))
    assert verify.verify(snapshot)[1] == [] and verify.report(snapshot) == 0


def test_the_command(release, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    codes = []
    (tmp_path / "empty").mkdir()
    for where in (release, tmp_path / "empty", "no/such-model"):
        with pytest.raises(SystemExit) as ended:
            cli.main(["verify", str(where)])
        codes.append(ended.value.code)
    (release / "extra.bin").write_text("")
    with pytest.raises(SystemExit) as ended:
        cli.main(["verify", str(release)])
    assert [*codes, ended.value.code] == [0, 2, 2, 4]
    assert "extra.bin is not in the receipt" in capsys.readouterr().out


def test_one_file_and_dp_accounting_are_enough(release, tmp_path):
    """Copied away from the package, it checks the release and imports nothing of ours, nor torch."""
    shutil.copyfile(verify.__file__, tmp_path / "verify.py")
    code = (
        "import sys, verify; code = verify.report(sys.argv[1]); "
        "print([n for n in ('torch', 'diffusers_dp') if n in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(release)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    done = subprocess.run([sys.executable, "verify.py", str(release)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "consistent" in done.stdout and not done.stderr


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """The second release of a data set, for one patient."""
    path = tmp_path_factory.mktemp("ledgers") / "scans.jsonl"
    facts = {"target_delta": 1e-5, "num_images": 300, "dataset_id": "scans", "unit_of_privacy": "patient_id"}
    first = PrivacyLedger(path, release_id="a", target_epsilon=2.0, **facts)
    first.reserve(row(3.0, 0.1, 20, "dp_sgd"))
    first.close()
    ledger = PrivacyLedger(path, release_id="b", target_epsilon=3.0, dataset_epsilon=4.0, **facts)
    ledger.reserve(row(3.0, 0.2, 30, "dp_sgd"))
    return make_release(tmp_path_factory.mktemp("run"), ledger=ledger)


def test_releases_of_one_data_set_are_added_up(second, capsys):
    assert verify.report(second) == 0
    said = capsys.readouterr().out
    receipt = json.loads((second / RECEIPT).read_text())
    (prior,) = receipt["prior_releases"]
    together = receipt["dataset"]["epsilon_of_all_releases"]["pld"]
    assert receipt["claimed_epsilon"]["pld"]["epsilon"] < together < 4
    assert set(prior) == {"unit_of_privacy", "num_images", "events"}, "what nobody can check is not stated"
    assert (
        "for one patient_id" in said and f"With 1 other release(s) from the same data: epsilon {together:.4f}" in said
    )
    assert receipt["dataset"]["bounds"] == [{"target_epsilon": 4.0, "delta": 1e-5}]
    assert receipt["public_facts"]["num_units"] == 300 and "num_images" not in receipt["public_facts"]
    card = (second / "README.md").read_text()
    assert "all training images of any one patient_id were used" in card and "With 1 other release(s)" in card


DATASET_FORGERIES = {
    "a coarse grid": lambda r: r["dataset"].update(value_discretization_interval=0.5),
    "a prior release gone": lambda r: r["prior_releases"].clear(),
    "less of a prior release": lambda r: r["prior_releases"][0]["events"][0].update(steps_reserved=1),
    "a prior release of nothing": lambda r: r["prior_releases"][0].update(events=[]),
    "a prior release of another size": lambda r: r["prior_releases"][0].update(num_images=301),
    "too many events": lambda r: r["prior_releases"][0].update(events=r["prior_releases"][0]["events"] * 2001),
    "too little noise": lambda r: r["prior_releases"][0]["events"][0].update(
        noise_multiplier=0.051, steps_reserved=9**6
    ),
    "a bound that is exceeded": lambda r: r["dataset"].update(target_epsilon=1.0),
    "a bound at a smaller delta that is exceeded": lambda r: r["dataset"].update(
        bounds=[{"target_epsilon": r["dataset"]["epsilon_of_all_releases"]["pld"], "delta": 1e-9}]
    ),
    "a bound at the same delta that is exceeded": lambda r: r["dataset"]["bounds"][0].update(target_epsilon=1.0),
    "bounds without end": lambda r: r["dataset"].update(bounds=r["dataset"]["bounds"] * 1000),
}


@pytest.mark.parametrize("forgery", DATASET_FORGERIES)
def test_a_forged_sum_is_named(second, tmp_path, forgery):
    release = Path(shutil.copytree(second, tmp_path / "release"))
    assert forge(release, lambda receipt: None) == []
    found = forge(release, DATASET_FORGERIES[forgery])
    assert found
    if forgery.startswith("a bound at"):
        assert any("All releases together cost epsilon" in problem for problem in found)


DENIALS = {
    "no guarantee": lambda r: r.update(status="no_guarantee"),
    "a published seed": lambda r: r["rng"].update(seed_published=True),
    "a lowered status and no list": lambda r: (r.update(status="proven_except_leaky_outputs"), r.pop("leaky_outputs")),
    "an evaluation without a number": lambda r: r.update(evaluation=[{"metric": "accuracy"}]),
    "a unit with a line of its own": lambda r: r.update(unit_of_privacy="image.\nSIGNED"),
    "a file that cannot be printed": lambda r: r["files"].append({"name": "\ud800", "sha256": ""}),
    "orders that take for ever": lambda r: r["claimed_epsilon"]["rdp"].update(orders=[99_000.5] * 20),
    "too many kinds of events": lambda r: r.update(
        events=[{**r["events"][0], "noise_multiplier": 5 + i / 100} for i in range(60)]
    ),
    "a rate next to 1": lambda r: r["events"][0].update(
        mechanism="poisson_gaussian",
        noise_multiplier=0.0501,
        sampling_probability=1 - 1e-16,
    ),
}


@pytest.mark.parametrize("denial", DENIALS)
def test_what_denies_a_guarantee_is_named(release, denial, capsys):
    """And nothing that a stranger writes ends in a traceback, or in a line that looks like ours."""

    def change(receipt):
        DENIALS[denial](receipt)

    assert forge(release, lambda receipt: None) == []
    assert forge(release, change)
    assert verify.report(release) == 4
    said = capsys.readouterr().out
    assert said.startswith("does NOT match:\n- ") and "\nSIGNED" not in said
    if denial == "no guarantee":
        assert "this is no guarantee" in said


def lowered(name, by):
    """A claim that is smaller than it was, by a number or, for PRV, by a share."""

    def change(receipt):
        claims = receipt["claimed_epsilon"]
        if name == "prv":
            claims["prv"] = {"epsilon": claims["pld"]["epsilon"] * (1 - by)}
        elif name == "sum":
            receipt["dataset"]["epsilon_of_all_releases"]["pld"] -= by
        else:
            claims[name]["epsilon"] -= by

    return change


LOWERED = {"pld": 5e-4, "rdp": 5e-4, "prv": 5e-3, "sum": 5e-4}


@pytest.mark.parametrize("name", LOWERED)
def test_a_claim_that_is_a_little_too_small_is_refused(second, tmp_path, name, capsys):
    """On the receipt's own grid, with its own dp_accounting."""
    release = Path(shutil.copytree(second, tmp_path / "release"))
    assert forge(release, lowered(name, 5e-7)) == []
    assert verify.report(release) == 0 and "No claim lies more than 1e-06 below" in capsys.readouterr().out
    (problem,) = forge(release, lowered(name, LOWERED[name]))
    assert "receipt claims" in problem


@pytest.mark.parametrize("name", LOWERED)
def test_another_dp_accounting_leaves_room_of_the_grid(second, tmp_path, name, capsys):
    release = Path(shutil.copytree(second, tmp_path / "release"))
    assert forge(release, lambda receipt: receipt["versions"].update(dp_accounting="0.5.9")) == []
    assert forge(release, lowered(name, 5e-4)) == []
    assert verify.report(release) == 0
    assert "Consistent within 0.001: dp_accounting '0.5.9' computed the claims" in capsys.readouterr().out
    assert forge(release, lowered(name, 5e-3))


def test_other_numbers_and_other_epsilons_get_a_line(second, tmp_path, capsys):
    """A prior release of another N, and an input with an epsilon."""
    release = Path(shutil.copytree(second, tmp_path / "release"))
    assert verify.report(release) == 0 and "A prior release is of" not in capsys.readouterr().out
    began = {"kind": verify.RELEASED, "name": "a", "epsilon": 2.5, "delta": 1e-6, "receipt_sha256": "a" * 64}

    def change(receipt):
        receipt["prior_releases"][0]["num_images"] = 90
        receipt["prior_releases"][0]["events"][0]["dataset_size"] = 90
        receipt["public_inputs"] = [{**began, "began_with": [{**began, "epsilon": 1.5, "num_units": 7}]}]

    assert forge(release, change) == []
    assert verify.report(release) == 0
    said = capsys.readouterr().out.splitlines()
    assert (
        "A prior release is of 90 patient_ids, and this one of 300: they are added up as if all were the same ones."
        in said
    )
    first, second_ = [line for line in said if line.startswith("Began with a release")]
    assert first == "Began with a release of epsilon 2.5000 at delta 1e-06: for an image in both, the two add up."
    assert second_.startswith("Began with a release of epsilon 1.5000 at delta 1e-06 for one of its 7 units: ")


def test_the_published_pipeline_is_known_code(release, capsys):
    """After a change of `pipelines/pipeline_dp_image.py` its new SHA-256 joins `PIPELINES` in `verify.py`."""
    pipeline = ROOT / "pipelines" / "pipeline_dp_image.py"
    assert hashlib.sha256(pipeline.read_bytes()).hexdigest() in verify.PIPELINES
    assert verify.report(release) == 0
    assert (
        "pipeline.py is known code, published by diffusers_dp; `trust_remote_code=True` runs"
        in capsys.readouterr().out
    )
    (release / "pipeline.py").write_text("import os\n")
    digest = hashlib.sha256(b"import os\n").hexdigest()

    def change(receipt):
        (file,) = (file for file in receipt["files"] if file["name"] == "pipeline.py")
        file.update(sha256=digest)

    assert forge(release, change) == []
    assert verify.report(release) == 0, "unknown code is no mismatch"
    assert "pipeline.py is UNKNOWN code" in capsys.readouterr().out


def instead(name, make):
    """Puts something in the place of a file."""

    def change(release):
        (release / name).unlink(missing_ok=True)
        make(release / name)

    return change


def sparse(path):
    with open(path, "wb") as file:
        file.truncate(3_000_000_000_000)


def written(name, content):
    return lambda release: (release / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def in_receipt(change):
    return lambda release: forge(release, change)


NARROW = {"mechanism": "poisson_gaussian", "noise_multiplier": 0.06, "sampling_probability": 1e-9, "steps_reserved": 1}
INDEX = "model_index.json"
HOSTILE = {
    **{
        f"{name} is {what}": instead(name, make)
        for name in (RECEIPT, INDEX, "README.md", "more")
        for what, make in (
            ("a pipe", os.mkfifo),
            ("a device", lambda path: path.symlink_to("/dev/zero")),
            ("a folder", Path.mkdir),
            ("a huge hole", sparse),
            ("a link to itself", lambda path: path.symlink_to(path.name)),
        )
    },
    "a deep index": written(INDEX, "[" * 900 + "0," * 100_000 + "0" + "]" * 900),
    "a deep receipt": written(RECEIPT, '{"format": "diffusers_dp/1", "a": ' + "[" * 900 + "]" * 900 + "}"),
    "two receipts in one": written(RECEIPT, '{"format": "diffusers_dp/1", "delta": 0.1, "delta": 0.2}'),
    "another encoding": written(RECEIPT, '{"format": "diffusers_dp/1"}'.encode("utf-16")),
    "an index that is a list": written(INDEX, "[]"),
    "too many files": in_receipt(lambda r: r.update(files=[{"name": str(i), "sha256": ""} for i in range(10_001)])),
    "a fine grid over little noise": in_receipt(
        lambda r: (r["events"][-1].update(NARROW, steps_executed=1), r.update(delta=0.9))
    ),
    "more orders than anybody needs": in_receipt(
        lambda r: r["claimed_epsilon"]["rdp"].update(orders=[1 + i / 1000 for i in range(1, 900)])
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_folder_is_4(release, case, capsys):
    """No traceback, no endless reading, no guess."""
    HOSTILE[case](release)
    code = verify.report(release)
    said = capsys.readouterr()
    if case.startswith("README.md is") and "device" not in case and "itself" not in case and "pipe" not in case:
        assert code == 0 and "NOTE: README.md does not carry" in said.out
    elif case == "more is a folder":
        assert code == 0
    else:
        assert code == 4 and (said.out or said.err).count("\n") > 0 and "could not be checked" not in said.err


@pytest.mark.parametrize("name", ["_class_name", "unet", "id2label", "privacy", "patch_size"])
def test_an_index_that_says_one_thing_twice_is_no_index(release, name, capsys):
    """Programs read the first or the last: one would load, or show, what another has not checked."""
    text = (release / INDEX).read_text()
    other = json.dumps({name: {"epsilon": 0.1} if name == "privacy" else "Other"})[1:-1]
    (release / INDEX).write_text("{" + other + "," + text.lstrip()[1:])
    assert json.loads((release / INDEX).read_text()) == json.loads(text)  # the last
    assert verify.report(release) == 4 and INDEX in capsys.readouterr().out
    with pytest.raises(IntegrityError):
        load_verified(release)


def test_a_statement_that_says_one_thing_twice_is_none(release):
    text = (release / INDEX).read_text()
    start = text.index("{", text.index('"privacy"'))
    (release / INDEX).write_text(text[: start + 1] + '"epsilon":0.1,' + text[start + 1 :])
    assert json.loads((release / INDEX).read_text()) == json.loads(text)
    assert verify.report(release) == 4


@pytest.mark.parametrize("output", ["/dev/full", "ascii", None])
def test_whoever_reads_the_answer_gets_one(release, output):
    """A disk that is full, a terminal without the letters of a name, and no terminal at all."""
    (release / "Äpfel\udcff.bin").write_bytes(b"")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    with open("/dev/full" if output == "/dev/full" else os.devnull, "w") as stdout:
        run = [sys.executable, verify.__file__, str(release)]
        if output is None:
            run = ["bash", "-c", 'exec "$0" "$@" >&-', *run]
        done = subprocess.run(run, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment)
    assert done.returncode == 4 and "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_a_reader_may_close_the_pipe(release):
    run = ["bash", "-c", 'set -o pipefail; "$0" -u "$@" | true', sys.executable, verify.__file__, str(release)]
    done = subprocess.run(run, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 141 and done.stderr == ""
