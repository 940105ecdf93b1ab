# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The page of the papers' tables and figures: none without a command or a reason, and every command is one."""

import argparse
import copy
import shlex

from diffusers_dp.commands import evaluate
from diffusers_dp.methods.config import CONFIGS, load_config
from support.places import ROOT, module_of


papers = module_of(ROOT / "benchmarks" / "papers.py")


def test_the_page_is_up_to_date():
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert papers.page() == page, "run `python benchmarks/papers.py > docs/papers.md`"


def test_each_table_and_figure_has_a_command_or_a_reason(monkeypatch):
    assert papers.without_command() == []
    planted = copy.deepcopy(papers.PAPERS)
    del planted["papers"][0]["places"][3]  # Table 4
    del planted["papers"][1]["places"][0]["none"]
    planted["papers"][2]["places"][0]["at"].append("T19")  # which there is not
    monkeypatch.setattr(papers, "PAPERS", planted)
    assert papers.without_command() == ["DP-FETA T1", "DP-MEPF T19", "FETA-Pro T4"]


def test_every_command_is_taken(monkeypatch, tmp_path):
    """By the flags of its method, its recipe and its checks; nothing is planned or read."""
    monkeypatch.chdir(tmp_path)
    commands = set()
    for paper, place in papers.places():
        for method, recipe, flags in papers.commands(place):
            given = flags[: flags.index("--sweep")] if "--sweep" in flags else flags
            commands.add((method, "--config", recipe, "--dry_run", *given))
        for command in place.get("then", ()):
            program, name, *flags = shlex.split(command)
            if program == "diffusers-dp":
                parser = argparse.ArgumentParser(exit_on_error=False)
                evaluate.add_arguments(parser)
                assert name == "evaluate" and parser.parse_args(flags), (paper, place["at"])
            else:
                assert (ROOT / name).is_file(), (paper, place["at"])
    for method, *flags in commands:
        assert load_config(flags, CONFIGS[method]).method == method
