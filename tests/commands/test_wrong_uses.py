# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What wrong users type ends with 2 after one sentence that names the flag and the remedy, and writes nothing."""

import shlex
import shutil

import pytest

from diffusers_dp import cli
from diffusers_dp.files.output_files import refuse_in_release
from support.images import grey


FOLDER = "--train_data_dir scans --class_names a,b --num_channels 1 --resolution 8 --num_train_images 8"
TABLE = "--dataset_name table --class_names a,b --num_channels 1 --resolution 8 --num_train_images 8"
#: A command, and what its sentence holds. `begins` below has the first words of `train`, `moments` and `table`.
USES = """
train --target_epsilon 0                          | --target_epsilon is 0.0; give a number that is at least
train --target_epsilon -1                         | --target_epsilon is -1.0; give
train --target_epsilon nan                        | --target_epsilon is nan; give
train --target_epsilon ten                        | --target_epsilon: 'ten' is no number, such as 0.001
train --target_epsilon                            | --target_epsilon: expected one argument
train --target_delta 1                            | --target_delta is 1.0; give a number that is above 0 and below 1
train --target_delta 0                            | --target_delta is 0.0; give
train --num_train_images -8                       | --num_train_images is -8; give an integer that is at least 1
train --num_train_images 8.5                      | --num_train_images: '8.5' is no whole number, such as 1000
train --num_train_images 6                        | give --num_train_images 8 or a larger number
train --num_classes 2                             | --num_classes is not a flag; the nearest is --class_names
train --train_batch_size 0                        | --train_batch_size is 0; give
train --train_batch_size 64                       | --train_batch_size 64 is more than the 8 images; give at most 8
train --max_train_steps 1e3                       | --max_train_steps: '1e3' is no whole number
train --learning_rate -1                          | --learning_rate is -1.0; give
train --learning_rate fast                        | --learning_rate: 'fast' is no number
train --resolution 0                              | --resolution is 0; give
train --num_channels 2                            | --num_channels is 2; give one of 1 | 3
train --seed -1                                   | --seed is -1; give
train --accountant prv2                           | --accountant is 'prv2'; give one of
train --max_physical_batch_size 0                 | --max_physical_batch_size is '0'; give an integer
train --mixed_precision fp16                      | --mixed_precision fp16 is neither
train --block_out_channels 8,x                    | --block_out_channels is '8,x'; give
train --patch_size 3                              | --resolution 8 is not divisible by 6
train --curriculum spatial,time                   | --curriculum is 'spatial,time'; give one of
train --budget central_images=2                   | --budget is 'central_images=2'; give name=share
train --budget centre=0.1                         | --budget names 'centre'
train --noise_multiplier central_images=0         | --noise_multiplier is 'central_images=0'; give
train --expert nothing=1                          | --expert 'nothing=1' is not NAME=VALUE of a setting
train --config auto --expert minutes_on=gpu       | --minutes_on needs --minutes
train --minutes 8                                 | --minutes has no effect without --config auto; add that
train --hub_model_id a/b                          | --hub_model_id needs --push_to_hub
train --push_to_hub --hub_model_id a/b/c          | --hub_model_id a/b/c cannot be a name on the Hub
train --dataset_epsilon 5                         | --dataset_epsilon needs --dataset_id
train --value_range 5,1                           | --value_range is '5,1'; give two numbers
train --num_evaluation_images 9                   | --num_evaluation_images needs --evaluation_reserve
train --unit_column patient --num_train_units 4   | --unit_column needs --dataset_name
train --dry_run=maybe                             | --dry_run: 'maybe' is neither true nor false
train stray                                       | 'stray' belongs to no flag
train --train_data_dir nowhere                    | --train_data_dir nowhere is not a folder; give one
train --train_data_dir file.txt                   | --train_data_dir file.txt is not a folder; give one
train --train_data_dir empty                      | --class_names names no folder in empty, which
train --train_data_dir run                        | --train_data_dir run is a run or a release; give the folder
train --train_data_dir run/release                | --train_data_dir run/release is a run or a release; give
train --class_names a                             | --class_names does not list the folder(s) b; add them
train --class_names a,a                           | --class_names is 'a,a'; give each class once
train --dataset_name table                        | --dataset_name and --train_data_dir exclude each other
train --config nowhere                            | --config nowhere is neither a file here nor a recipe
train --config empty.yaml                         | --config empty.yaml holds no 'flag: value' lines
train --config bad.yaml                           | --config bad.yaml cannot be read (it is not YAML, line 1)
train --config typo.yaml                          | 'train_batch_sise' is not a flag; the nearest is --train_batch_size
train --config word.yaml                          | 'many' is no whole number, such as 1000; correct the recipe
train --config scans                              | --config scans is neither a file here nor a recipe
train --config moments/mnist_cpu                  | is a recipe of 'moments', and this is 'feta_pro'
train --output_dir file.txt                       | --output_dir file.txt cannot be used: Not a directory
train --output_dir file.txt/run                   | --output_dir file.txt/run cannot be used: Not a directory
train --output_dir scans/a                        | --output_dir scans/a lies in --train_data_dir scans
train --output_dir run                            | --output_dir run holds another run: choose another folder
train --output_dir run/release                    | --output_dir run/release lies in run/release of another run
train --output_dir run/release/new                | of another run: choose a folder outside of it
table --unit_column nobody --num_train_units 4    | --unit_column 'nobody' does not exist in metadata.csv; there is
table --unit_column patient                       | --unit_column needs --num_train_units
table --unit_column patient --num_train_units 9   | --num_train_units 9 is more than --num_train_images 8
table --image_column picture                      | --image_column 'picture' does not exist in metadata.csv; there is
table --label_column kind                         | --label_column 'kind' does not exist in metadata.csv; there is
table --train_split tset                          | --train_split 'tset' does not exist; there is: train
moments --train_batch_size 8                      | --train_batch_size is a flag of feta_pro or dp_feta, not
plan --num_train_images many                      | --num_train_images: 'many' is no whole number
plan --num_train_images 1000 --num_classes 0      | --num_classes is 0; give
plan --sweep target_epsilon                       | lacks a value; write it like --sweep target_epsilon=V1,V2
plan --sweep seed=1,x                             | --seed: 'x' is no whole number
plan --method dp_lora --gpu_memory nan             | --gpu_memory: invalid gigabytes value: 'nan'
plan --sweep seed=1,2 --gpu_memory 24             | --gpu_memory: not allowed with argument --sweep
plan --method nothing                             | --method: invalid choice: 'nothing'
plan dpdm                                         | 'dpdm' belongs to no flag; write --method dpdm
data nowhere                                      | --train_data_dir nowhere is not a folder; give one
data empty                                        | empty holds no folder; give one
data run/release                                  | is a run or a release
sample run/release --num_images 5                 | are required: --output_dir
sample run/release --num_images -5 --output_dir s | --num_images is -5; give
sample run/release --num_images 5 --output_dir file.txt/s | --output_dir file.txt/s cannot be used: Not a directory
sample run/release --num_images 5 --output_dir scans | --output_dir scans is not an empty folder; give another
sample run --num_images 5 --output_dir s          | 'run' is the folder of a run; give its release, run/release
sample run/release --num_images 5 --output_dir s --base scans | --base scans
sample scans --num_images 5 --output_dir s        | 'scans' holds no privacy_receipt.json: give the folder
verify run                                        | 'run' is the folder of a run; give its release
verify file.txt                                   | 'file.txt' holds no privacy_receipt.json: give
push run --hub_model_id a/b --dry_run             | 'run' is the folder of a run; give its release
push scans --hub_model_id a/b --dry_run           | scans holds no privacy_receipt.json. Give the folder of a release
dossier scans                                     | 'scans' holds no privacy_receipt.json: give the folder
dossier run/release --output_dir run/release      | --output_dir run/release lies in a release, which holds
dossier run/release --context nowhere.yaml        | --context nowhere.yaml cannot be read
evaluate --images scans --num_train_images 9      | --num_train_images needs --validation_size
evaluate --images scans --num_images -1           | --num_images is -1; give
evaluate --images scans --real scans --output_dir run/release/a | --output_dir run/release/a lies in a release
evaluate --images scans --real scans --class_names a,a | --class_names is 'a,a'; give each class once
evaluate --images scans --real scans --device meta | --device meta is not there; give --device cpu
evaluate --images file.txt                        | --images file.txt is a file; give a folder of images
app --server_port 99999                           | --server_port is 99999; give an integer
audit release scans --members scans --holdout scans | 'scans' holds no privacy_receipt.json: give
audit release run/release --members scans --holdout scans --output_dir run/release | run/release lies in a release
audit mechansim                                   | there is no 'mechansim', and the nearest is 'mechanism'
"""


@pytest.fixture
def place(honest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(honest, tmp_path / "run" / "release")
    (tmp_path / "run" / "private").mkdir()
    (tmp_path / "run" / "private" / "run.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    for name, text in {"file.txt": "hello", "empty.yaml": "", "bad.yaml": "a: [1", "typo.yaml": "train_batch_sise: 3",
                       "word.yaml": "train_batch_size: many"}.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    for folder, number in (("scans/a", 4), ("scans/b", 4), ("table", 8)):
        (tmp_path / folder).mkdir(parents=True)
        for i in range(number):
            grey(10 * i).save(tmp_path / folder / f"{i}.png")
    lines = [f"{i}.png,{'ab'[i % 2]},p{i // 2}\n" for i in range(8)]
    (tmp_path / "table" / "metadata.csv").write_text("".join(["file_name,label,patient\n", *lines]))
    return tmp_path


def test_wrong_uses_end_with_one_sentence_and_leave_nothing(place, capsys):
    def contents():
        return {path.relative_to(place): path.stat().st_mtime_ns for path in place.rglob("*")}

    begins = {
        "train": f"train feta_pro {FOLDER} --output_dir new", "moments": f"train moments {FOLDER} --output_dir new",
        "table": f"train feta_pro {TABLE} --output_dir new",
    }  # fmt: skip
    before, wrong = contents(), []
    for use in USES.strip().splitlines():
        line, _, words = (part.strip() for part in use.partition(" | "))
        first, *rest = shlex.split(line)
        try:
            cli.main([*shlex.split(begins.get(first, first)), *rest])
            code = 0
        except SystemExit as end:
            code = end.code
        error = capsys.readouterr().err
        if (code, error.count("\n"), contents()) != (2, 1, before) or words not in error:
            wrong.append((line, code, error, contents().keys() ^ before.keys()))
    assert not wrong, "\n".join(map(str, wrong))
    refuse_in_release(place / ("a" * 300))  # no such folder can be: whoever makes it says so
