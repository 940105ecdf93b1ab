# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A program that ends another one by SIGKILL, or fails in it, at one moment of one query:
`killed.py MOMENT QUERY RANK program flags...`."""

import os
import runpy
import signal
import sys

from diffusers_dp.accounting.ledger import PrivacyLedger
from diffusers_dp.privacy import sensitive
from diffusers_dp.privacy.records import PrivateRecords
from diffusers_dp.privacy.stored_answers import NoisyAnswers


#: In the pass over the images, after it, with the row on disk, with all noise drawn, and with the answer stored.
MOMENTS = ("pass", "sum", "row", "noise", "answer")
FAILS = "fails"  # no kill: an error in the pass


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def end_at(moment: str, query: str) -> None:
    """Lets this process end in the query of this name."""
    charged, reserve, put = sensitive.charged_pass, PrivacyLedger.reserve, NoisyAnswers._put

    def charged_pass(ledger, row, processes, look):
        batches = PrivateRecords.batches_for_query

        def cut(self, *arguments):
            yield from batches(self, *arguments)
            if moment == FAILS:
                raise ArithmeticError("an error within the pass")
            end()

        if row.name == query and moment in ("pass", FAILS):
            PrivateRecords.batches_for_query = cut
        return charged(ledger, row, processes, look)

    def reserved(self, row):
        ours = row.name == query and self.path is not None  # a plan has a ledger in memory
        if ours and moment == "sum":
            end()
        found = reserve(self, row)
        if ours and moment == "row":
            end()
        return found

    def stored(self, row, *arguments):
        if row.name == query and moment == "noise":
            end()
        put(self, row, *arguments)
        if row.name == query and moment == "answer":
            end()

    sensitive.charged_pass, PrivacyLedger.reserve, NoisyAnswers._put = charged_pass, reserved, stored


if __name__ == "__main__":
    moment, query, rank, *sys.argv = sys.argv[1:]
    if os.environ.get("RANK", "0") == rank:
        end_at(moment, query)
    runpy.run_path(sys.argv[0], run_name="__main__")
