# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The ready-made configurations of Accelerate's launcher, read by its own loader."""

import re
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import launch_command_parser

from support.places import ROOT


FOLDER = ROOT / "training" / "accelerate_configs"
EXPECTED = {
    "one_cpu": ("NO", 1, 1),
    "one_gpu": ("NO", 1, 1),
    "several_cpus": ("MULTI_GPU", 1, 2),  # gloo where there is no GPU
    "several_gpus": ("MULTI_GPU", 1, 4),
    "several_nodes": ("MULTI_GPU", 2, 8),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_accelerate_reads_it(name):
    config = load_config_from_file(str(FOLDER / f"{name}.yaml"))
    assert isinstance(config, ClusterConfig)
    kind = getattr(config.distributed_type, "value", config.distributed_type)
    assert (kind, config.num_machines, config.num_processes) == EXPECTED[name]
    assert config.use_cpu is name.endswith(("cpu", "cpus")) and config.mixed_precision == "no"
    (command,) = re.findall("^#.*accelerate launch (.*)", (FOLDER / f"{name}.yaml").read_text(), re.MULTILINE)[:1]
    arguments = launch_command_parser().parse_known_args(command.split())[0]
    assert Path(arguments.config_file).name == f"{name}.yaml"
