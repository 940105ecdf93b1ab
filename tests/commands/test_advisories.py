# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`diffusers-dp advisories`."""

from diffusers_dp import cli, verify
from support.releases import RECEIPT, reseal


def command(capsys, *arguments):
    code = 0
    try:
        cli.main(list(map(str, arguments)))
    except SystemExit as stopped:
        code = stopped.code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out + said.err


class TestAdvisories:
    def test_a_release_without_known_faults(self, release, capsys):
        code, said = command(capsys, "advisories", release)
        assert code == 0 and "No known fault touches this release" in said and "new version" in said

    def test_a_fault_of_its_version_is_told_with_what_to_do(self, release, capsys):
        inputs, resumes = [{"kind": "public images", "name": "x"}], [{"step": 3, "fresh_entropy": True}]
        reseal(release, lambda receipt: receipt.update(claims_version=2, resumes=resumes, public_inputs=inputs))
        assert verify.verify(release)[1] == []
        code, said = command(capsys, "advisories", release)
        assert code == 4 and said.count("KNOWN FAULT") == said.count("What to do:") == 2
        assert "the run was resumed" in said and "Ask who trained it" in said and "withdraw" in said

    def test_each_known_fault_says_what_to_do(self):
        for _, _, sentence, remedy in verify.KNOWN_FAULTS:
            assert sentence.endswith(".") and remedy.endswith(".") and sentence != remedy

    def test_what_does_not_match_has_no_advisories(self, release, capsys):
        (release / "samples.png").write_bytes(b"")
        code, said = command(capsys, "advisories", release)
        assert code == 4 and "samples.png" in said and "KNOWN FAULT" not in said
        (release / RECEIPT).unlink()
        assert command(capsys, "advisories", release)[0] == 2
