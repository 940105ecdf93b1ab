# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Releases of a stranger: the numbers of the receipt are consistent, all hashes are right, and the model is a trap."""

import json
import os
import struct

from diffusers_dp.release.receipt import canonical_json, hash_release
from diffusers_dp.verify import RECEIPT_NAME, settled_digest, verify


INDEX, CONFIG, SCHEDULE, WEIGHTS = (
    "model_index.json", "unet/config.json", "scheduler/scheduler_config.json",
    "unet/diffusion_pytorch_model.safetensors",
)  # fmt: skip


def edit(file, **changes):
    """Sets fields of a JSON file; `None` as a value is written."""

    def tamper(release):
        path = release / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return tamper


def spoil(release, tamper):
    """Tampers, then makes the receipt agree with the files."""
    tamper(release)
    receipt = json.loads((release / RECEIPT_NAME).read_text())
    receipt["files"] = hash_release(release)
    (release / RECEIPT_NAME).write_text(canonical_json(receipt))
    index = json.loads((release / INDEX).read_text())
    if isinstance(index.get("privacy"), dict):
        index["privacy"]["receipt_sha256"] = settled_digest(receipt)
        (release / INDEX).write_text(json.dumps(index))
        assert verify(release)[1] == []
    return release


def header(edit_entries):
    """Rewrites the header of the weights, whose data stays."""

    def tamper(release):
        path = release / WEIGHTS
        content = path.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        entries = edit_entries(json.loads(content[8 : 8 + length]))
        new = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
        path.write_bytes(struct.pack("<Q", len(new)) + new + content[8 + length :])

    return tamper


def _widen(entries):
    return {**entries, "wide": {"dtype": "F32", "shape": [0, 10**9], "data_offsets": [0, 0]}}


def _overlap(entries):
    first = entries["conv_in.weight"]
    return {**entries, "again": first}


def _with_wide_tensor(release):
    """A tensor of 4 MB, so that a dimension of a million has a place, and channels that wide."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(release / WEIGHTS)
    save_file({**tensors, "wide": torch.zeros(1_000_000)}, release / WEIGHTS)
    edit(CONFIG, block_out_channels=[1_000_000, 1_000_000])(release)


def _with_many_tensors(release):
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(release / WEIGHTS)
    save_file({**tensors, **{f"t{i}": torch.zeros(1) for i in range(20_000)}}, release / WEIGHTS)
    edit(CONFIG, layers_per_block=5_000)(release)


def _without_a_tensor(release):
    from safetensors.torch import load_file, save_file

    tensors = load_file(release / WEIGHTS)
    tensors.pop("conv_out.bias")
    save_file(tensors, release / WEIGHTS)


def _deep(release):
    (release / CONFIG).write_text('{"sample_size": ' + "[" * 900 + "]" * 900 + "}")


MANY, LARGE = 10_000_000, 22 * 10**8  # bytes: more than a case may take
NAN, INFINITE = float("nan"), float("inf")
#: Of each kind the telling ones: what is done, and a word of the sentence that refuses it.
HOSTILE = {
    # A class outside the list.
    "another unet": (edit(INDEX, unet=["subprocess", "Popen"]), "no model of this library"),
    "another unet of diffusers": (edit(INDEX, unet=["diffusers", "UNet2DConditionModel"]), "no model of this library"),
    "a pipeline as scheduler": (
        edit(INDEX, scheduler=["diffusers", "StableDiffusionPipeline"]), "no model of this library",
    ),
    "a scheduler that is not ours": (
        edit(INDEX, scheduler=["diffusers", "PNDMScheduler"]), "no model of this library",
    ),
    "a scheduler in a list": (edit(INDEX, scheduler=["diffusers", ["DDIMScheduler"]]), "no model of this library"),
    "one more component": (edit(INDEX, safety_checker=["webbrowser", "open"]), "no model of this library"),
    "a patch size that is a class": (edit(INDEX, patch_size=["webbrowser", "open"]), "no model of this library"),
    "another pipeline": (edit(INDEX, _class_name="DDPMPipeline"), "no model of this library"),
    "a config of another class": (edit(CONFIG, _class_name="FluxTransformer2DModel"), "names another class"),
    "a schedule of another class": (edit(SCHEDULE, _class_name="StableDiffusionPipeline"), "names another class"),
    "a quantizer": (edit(CONFIG, quantization_config={"quant_method": "bitsandbytes"}), "asks for code or packages"),
    # Sizes that the weights do not have.
    "many layers": (edit(CONFIG, layers_per_block=MANY), "layers_per_block in its configuration is 10000000"),
    "some more layers": (edit(CONFIG, layers_per_block=40), "room for"),
    "layers among many tensors": (_with_many_tensors, "tensors, and 10,000 is the most"),
    "channels as wide as a tensor": (_with_wide_tensor, "more weights than there are"),
    "many blocks": (edit(CONFIG, block_out_channels=[4] * 100_000), "describes no model|cannot draw"),
    "no groups": (edit(CONFIG, norm_num_groups=0), "describes no model|cannot draw"),
    "a larger table of classes": (edit(CONFIG, num_class_embeds=5), "more weights|not those|describes no model"),
    "another type of blocks": (edit(CONFIG, down_block_types=["X", "Y"]), "describes no model|cannot draw"),
    "large padding": (edit(CONFIG, downsample_padding=16), "describes no model|cannot draw"),
    "large images": (edit(CONFIG, sample_size=100_000), "100000 pixels"),
    "no size": (edit(CONFIG, sample_size=None), "no model of this library"),
    "large patches": (edit(INDEX, patch_size=4_096), "pixels a side"),
    "patches that do not divide": (edit(INDEX, patch_size=2), "no image in patches"),
    "layers that are no number": (edit(CONFIG, layers_per_block=NAN), "room for"),
    "an argument that it does not have": (edit(CONFIG, dtype="float16"), "describes no model|cannot draw"),
    "deep nesting": (_deep, "no model of this library"),
    # The scheduler.
    "noise without end": (edit(SCHEDULE, sigma_max=INFINITE), "sigma_max of its scheduler is inf"),
    "negative noise": (edit(SCHEDULE, sigma_min=-1.0), "no numbers|cannot draw"),
    "many noise levels": (edit(SCHEDULE, num_train_timesteps=10**9), "num_train_timesteps of its scheduler"),
    "rho of nothing": (edit(SCHEDULE, rho=0), "cannot draw|no numbers"),
    "an unknown schedule": (edit(SCHEDULE, sigma_schedule="x"), "describes no model|cannot draw"),
    "data of no spread": (edit(SCHEDULE, sigma_data="0.5"), "describes no model|cannot draw"),
    # Names.
    "names of classes that are not there": (edit(INDEX, id2label={"x": "a"}), "does not have"),
    "a name that is no text": (edit(INDEX, id2label={"0": ["a"]}), "is no text"),
    "half a character": (edit(INDEX, id2label={"0": "\ud800"}), "is no text"),
    "a long name": (edit(INDEX, id2label={"0": "a" * 100_000}), "is no text"),
    # The weights' header.
    "a header without end": (header(lambda entries: b"{" * 6_000_000), "can be read"),
    "a header that is no JSON": (header(lambda entries: b"[]"), "can be read"),
    "a tensor of nothing": (header(_widen), "can be read"),
    "tensors in one place": (header(_overlap), "can be read"),
    "a tensor that is missing": (_without_a_tensor, "not those"),
    "no weights": (lambda release: (release / WEIGHTS).write_bytes(b""), "can be read"),
    "weights that are a pickle": (lambda release: (release / WEIGHTS).write_bytes(b"\x80\x04K\x01."), "can be read"),
}  # fmt: skip
#: Not of files with hashes: they would never end.
ENDLESS = {
    "a config that is a pipe": (lambda release: _replace(release / CONFIG, os.mkfifo), "config.json that can be read"),
    "weights that are a pipe": (
        lambda release: _replace(release / WEIGHTS, os.mkfifo), "safetensors that can be read",
    ),
    "an index that is a device": (
        lambda release: _replace(release / INDEX, lambda path: path.symlink_to("/dev/zero")),
        "model_index.json that can be read",
    ),
    "weights of two gigabytes": (
        lambda release: _replace(release / WEIGHTS, lambda path: (path.touch(), os.truncate(path, LARGE))),
        "can be read",
    ),
    "a config of two gigabytes": (
        lambda release: _replace(release / CONFIG, lambda path: (path.touch(), os.truncate(path, LARGE))),
        "can be read",
    ),
}  # fmt: skip


def _replace(path, make):
    path.unlink()
    make(path)
