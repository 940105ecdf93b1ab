# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The folder of a run: private, for one at a time, and never that of another run."""

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys

import pytest

from diffusers_dp.distributed.interruption import stoppable
from diffusers_dp.errors import IntegrityError, Interrupted, UsageError
from diffusers_dp.files.journal import replace_file
from diffusers_dp.runs import folder
from diffusers_dp.runs.folder import RunFolder


def names(place) -> list[str]:
    return sorted(path.name for path in place.iterdir())


class TestRunFolder:
    @pytest.mark.parametrize("part", ["private", "release"])
    def test_another_run_is_refused_unless_resuming(self, tmp_path, part):
        (tmp_path / part).mkdir()
        run = RunFolder(tmp_path)
        with pytest.raises(UsageError, match="holds another run"):
            run.refuse_another_run()
        assert run.refuse_another_run(resume=True) is (part == "release")
        with pytest.raises(UsageError, match="holds another run") as refusal:
            run.create()
        assert refusal.value.exit_code == 2
        run.write_status(2, "Refused.")
        assert names(tmp_path) == [part] and names(tmp_path / part) == []
        run.create(resume=True)
        assert stat.S_IMODE(run.private.stat().st_mode) == 0o700
        run.close()

    @pytest.mark.parametrize("result", ["release", "no_guarantee"])
    @pytest.mark.parametrize("resume", [False, True])
    def test_what_no_run_made_is_not_replaced(self, tmp_path, result, resume):
        """In a folder that holds other things, such as `--output_dir .`."""
        (tmp_path / result).mkdir()
        (tmp_path / result / "notes.txt").write_text("mine")
        with pytest.raises(UsageError, match=f"holds {result}, which no run made" if resume else "holds"):
            RunFolder(tmp_path).create(resume=resume)
        assert names(tmp_path) == [result]

    @pytest.mark.parametrize("result", ["release", "no_guarantee", "model/release"])
    @pytest.mark.parametrize("left", [None, [], ["audit.json"], ["lock", "status.json"]])
    def test_a_result_without_its_books_gets_no_second_budget(self, tmp_path, result, left):
        """`private/` is gone or empty, and what it paid for is there."""
        index = "privacy_receipt.json" if "release" in result else "model_index.json"
        (tmp_path / result).mkdir(parents=True)
        (tmp_path / result / index).write_text("{}")
        for name in left or ():
            (tmp_path / "private").mkdir(exist_ok=True)
            (tmp_path / "private" / name).write_text("")
        if left == []:
            (tmp_path / "private").mkdir()
        before = sorted(tmp_path.rglob("*"))
        words = f"{result} shows that a run has spent its budget here, and private/run.json is missing: restore"
        with pytest.raises(IntegrityError, match=words):
            RunFolder(tmp_path).create(resume=True)
        assert sorted(tmp_path.rglob("*")) == before
        (tmp_path / "private").mkdir(exist_ok=True)
        (tmp_path / "private" / "run.json").write_text("{}")
        run = RunFolder(tmp_path)
        run.create(resume=True)
        run.close()

    def test_an_audit_that_came_before_is_no_run(self, tmp_path):
        """It stays where it is, also when the run ends before it began."""
        (tmp_path / "private").mkdir()
        (tmp_path / "private" / "audit.json").write_text("{}")
        for _ in range(2):
            run = RunFolder(tmp_path)
            run.create()
            with pytest.raises(KeyboardInterrupt), run.discarded_on(BaseException):
                (run.private / "cache").mkdir()
                (run.private / "cache" / "images").touch()
                raise KeyboardInterrupt
            assert names(run.private) == ["audit.json"]
        run = RunFolder(tmp_path)
        run.create()
        run.close()
        with pytest.raises(UsageError, match="holds another run"):
            RunFolder(tmp_path).create()

    @pytest.mark.parametrize("there", ["", "runs", "runs/one"])
    def test_a_start_that_is_refused_leaves_no_folder_that_it_made(self, tmp_path, there):
        (tmp_path / there).mkdir(parents=True, exist_ok=True)
        before = sorted(tmp_path.rglob("*"))
        run = RunFolder(tmp_path / "runs" / "one")
        run.create()
        with pytest.raises(UsageError, match="refused"), run.discarded_on(BaseException):
            (run.private / "cache").mkdir()
            raise UsageError("refused")
        assert sorted(tmp_path.rglob("*")) == before

    def test_the_lock_holds_between_processes_and_ends_with_one(self, tmp_path):
        script = (
            "import sys; from diffusers_dp.runs.folder import RunFolder\n"
            "RunFolder(sys.argv[1]).create(); print('locked', flush=True); sys.stdin.read()"
        )
        command = [sys.executable, "-c", script, str(tmp_path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout.readline() == "locked\n"
            with pytest.raises(UsageError, match=f"in use by process {other.pid}"):
                RunFolder(tmp_path).create(resume=True)
            other.kill()
        run = RunFolder(tmp_path)
        run.create(resume=True)
        run.close()

    @pytest.mark.parametrize(
        ("ending", "raised", "code", "words"),
        [
            (None, None, 0, "done"),
            (KeyboardInterrupt(), KeyboardInterrupt, 130, "Ctrl-C: .*--resume_from_checkpoint latest"),
            (Interrupted("stopped"), Interrupted, 75, "stopped"),
            (IntegrityError("edited"), IntegrityError, 4, "edited"),
            (MemoryError(), UsageError, 2, "Memory ran out"),
            (
                RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 7 bytes."), UsageError,
                2, "Memory ran out",
            ),
            (RuntimeError("CUDA out of memory. Tried to allocate 7 bytes."), UsageError, 2, "Memory ran out"),
            (OSError(28, "No space left on device"), UsageError, 2, "make room"),
        ],
    )  # fmt: skip
    def test_how_a_run_ended_is_written(self, tmp_path, ending, raised, code, words):
        run = RunFolder(tmp_path)
        run.create()
        with pytest.raises(raised) if raised else contextlib.nullcontext(), run.at_work():
            if ending is not None:
                raise ending
        status = json.loads((run.private / "status.json").read_text())
        assert status["exit_code"] == code and re.search(words, status["message"]) and "7" not in status["message"]
        run.create(resume=True)  # the lock was given back
        run.close()

    def test_how_a_run_ended_is_written_whatever_a_launcher_sends_meanwhile(self, tmp_path, monkeypatch):
        run = RunFolder(tmp_path)
        run.create()

        def signalled(*arguments):
            os.kill(os.getpid(), signal.SIGTERM)
            replace_file(*arguments)

        monkeypatch.setattr(folder, "replace_file", signalled)
        with pytest.raises(UsageError), stoppable(), run.at_work():
            raise UsageError("refused")
        assert json.loads((run.private / "status.json").read_text()) == {"exit_code": 2, "message": "refused"}

    @pytest.mark.parametrize("happens", ["nothing", "a write fails", "Ctrl-C"])
    def test_a_private_folder_that_is_removed_in_mid_run(self, tmp_path, happens):
        run = RunFolder(tmp_path)
        run.create()
        with (
            pytest.raises(KeyboardInterrupt if happens == "Ctrl-C" else IntegrityError, match="|was removed while"),
            run.at_work(),
        ):
            shutil.rmtree(run.private)
            if happens == "a write fails":
                (run.private / "file").touch()
            if happens == "Ctrl-C":
                raise KeyboardInterrupt
        assert names(tmp_path) == []
