# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Latent releases of a stranger: all hashes are right, and the pipeline or the adapters are a trap."""

import json
import struct

import torch
from safetensors.torch import load_file, save_file

from support.latent_releases import change_index, seal_again


LORA = "pytorch_lora_weights.safetensors"
MILLION, MANY = 10**6, 10**9
NAN, INFINITE = float("nan"), float("inf")


def of(component, **changes):
    """Fields of a configuration of a merged release; `...` takes one out."""
    file = {"tokenizer": "tokenizer_config.json", "scheduler": "scheduler_config.json"}.get(component, "config.json")

    def tamper(release):
        path = release / component / file
        found = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({key: value for key, value in found.items() if value is not ...}))
        seal_again(release)

    return tamper


def index(**fields):
    return lambda release: change_index(release, **fields)


def tensors(change):
    """The adapters' tensors, changed."""

    def tamper(release):
        found = load_file(release / LORA)
        save_file(change(found) or found, release / LORA)
        seal_again(release)

    return tamper


def lora_header(entries, data=b""):
    """A file of adapters with this header, whatever its data are."""

    def tamper(release):
        header = json.dumps(entries).encode()
        (release / LORA).write_bytes(struct.pack("<Q", len(header)) + header + data)
        seal_again(release)

    return tamper


def _many_entries(release):
    entries = {
        f"unet.l{i}.lora_A.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        for i in range(MILLION // 10)
    }
    lora_header(entries)(release)


def _first(found):
    return next(iter(found))


def _shards(release):
    name = "unet/diffusion_pytorch_model.safetensors.index.json"
    found = {"metadata": {}, "weight_map": {"conv_in.weight": "../../../../host.safetensors"}}
    (release / name).write_text(json.dumps(found))
    seal_again(release)


UNET, VAE, TEXT = "unet", "vae", "text_encoder"
#: Of a merged release.
MERGED_TRAPS = {
    **{f"unet {key} {str(value)[:30]}": of(UNET, **{key: value}) for key, value in (
        ("reverse_transformer_layers_per_block", MILLION), ("reverse_transformer_layers_per_block", [MILLION] * 2),
        ("reverse_transformer_layers_per_block", [[MILLION], [MILLION]]), ("transformer_layers_per_block", MILLION),
        ("transformer_layers_per_block", [MILLION, MILLION]), ("layers_per_block", [MILLION, 1]),
        ("layers_per_block", MILLION), ("layers_per_block", -1), ("layers_per_block", "2"),
        ("layers_per_block", None), ("attention_head_dim", 0), ("attention_head_dim", "x"),
        ("attention_head_dim", [MANY, MANY]), ("num_attention_heads", MANY), ("cross_attention_dim", MANY),
        ("cross_attention_dim", "a"), ("norm_num_groups", 0), ("norm_num_groups", MANY), ("down_block_types", []),
        ("down_block_types", ["X", "Y"]), ("down_block_types", None), ("in_channels", "2"), ("in_channels", MANY),
        ("in_channels", 5), ("out_channels", 0), ("sample_size", MILLION), ("sample_size", None),
        ("sample_size", 1e9), ("sample_size", [1, 2, 3]), ("sample_size", -4), ("sample_size", "4"),
        ("time_embedding_dim", MANY), ("addition_embed_type", "text"), ("class_embed_type", "timestep"),
        ("conv_in_kernel", 10**5), ("mid_block_type", 7), ("only_cross_attention", "x"), ("encoder_hid_dim", MANY),
        ("num_class_embeds", MANY), ("block_out_channels", [MANY, MANY]), ("block_out_channels", []),
        ("block_out_channels", 4), ("block_out_channels", [4] * 10_000), ("norm_eps", NAN), ("act_fn", "os.system"),
        ("time_embedding_type", "fourier"), ("dropout", INFINITE), ("center_input_sample", []),
        ("quantization_config", {"quant_method": "bitsandbytes", "load_in_4bit": True}),
        ("quantization_config", {"quant_method": "gguf"}), ("quantization_config", {"quant_method": "x"}),
        ("quantization_config", "x"), ("_class_name", "FluxTransformer2DModel"), ("_class_name", ["os", "system"]),
        ("more", 3), ("auto_map", {"AutoModel": "evil--evil.Model"}),
    )},
    **{f"vae {key} {str(value)[:30]}": of(VAE, **{key: value}) for key, value in (
        ("layers_per_block", MILLION), ("latent_channels", 4), ("latent_channels", MANY), ("latent_channels", None),
        ("block_out_channels", [MANY, MANY]), ("scaling_factor", NAN), ("scaling_factor", "x"),
        ("scaling_factor", 0), ("shift_factor", [1]), ("norm_num_groups", 0), ("sample_size", "x"),
        ("quantization_config", {"quant_method": "torchao"}), ("out_channels", 2), ("down_block_types", ["X"] * 2),
    )},
    **{f"text encoder {key} {str(value)[:30]}": of(TEXT, **{key: value}) for key, value in (
        ("num_hidden_layers", MILLION), ("num_hidden_layers", "x"), ("hidden_size", MANY), ("hidden_size", 0),
        ("vocab_size", MANY), ("vocab_size", 3), ("max_position_embeddings", MANY), ("max_position_embeddings", 2),
        ("quantization_config", {"quant_method": "bitsandbytes", "load_in_8bit": True}),
        ("quantization_config", {"quant_method": "gptq", "bits": 4}), ("quantization_config", []),
        ("attn_implementation", "flash_attention_2"), ("attn_implementation", "evil/kernels"),
        ("_attn_implementation", "evil/kernels"), ("_attn_implementation_internal", "evil/kernels"),
        ("dtype", "evil"), ("torch_dtype", "evil"), ("hidden_act", "nope"), ("hidden_act", None),
        ("num_attention_heads", 0), ("num_attention_heads", 3), ("eos_token_id", "x"), ("eos_token_id", MANY),
        ("model_type", "llama"), ("auto_map", {"AutoModel": "evil--evil.Model"}), ("intermediate_size", MANY),
        ("layer_norm_eps", NAN), ("architectures", 3), ("output_hidden_states", {"a": 1}),
    )},
    **{f"tokenizer {key} {str(value)[:30]}": of("tokenizer", **{key: value}) for key, value in (
        ("model_max_length", MANY), ("model_max_length", 10**30), ("model_max_length", "x"),
        ("model_max_length", None), ("model_max_length", 0), ("tokenizer_class", "EvilTokenizer"),
        ("auto_map", {"AutoTokenizer": ["evil--evil.T", None]}), ("pad_token", 3), ("pad_token", None),
        ("bos_token", {"a": []}), ("add_prefix_space", []), ("extra_special_tokens", "x"),
    )},
    **{f"scheduler {key} {str(value)[:30]}": of("scheduler", **{key: value}) for key, value in (
        ("num_train_timesteps", MANY), ("num_train_timesteps", 0), ("num_train_timesteps", "x"), ("beta_start", NAN),
        ("beta_start", "x"), ("beta_end", INFINITE), ("trained_betas", "x"), ("trained_betas", [[1]]),
        ("prediction_type", "x"), ("beta_schedule", "x"), ("_class_name", "StableDiffusionPipeline"),
        ("steps_offset", MANY), ("timestep_spacing", "x"), ("rescale_betas_zero_snr", "x"),
    )},
    **{f"index {key} {str(value)[:30]}": index(**{key: value}) for key, value in (
        ("class_prompts", 3), ("class_prompts", "text"), ("class_prompts", {"0": "a", "1": "b"}),
        ("class_prompts", [1, 2]), ("class_prompts", ["a"]), ("class_prompts", [None, None]),
        ("class_prompts", [["a"], ["b"]]), ("class_prompts", ["a" * MILLION, "b"]), ("class_prompts", []),
        ("id2label", []), ("id2label", {"a": "b"}), ("id2label", {"0": 3}), ("id2label", "x"),
        ("id2label", {"0": "a" * 10_000}), ("id2label", {"1": "a"}), ("unet", ["os", "system"]), ("unet", None),
        ("unet", ...), ("vae", ["diffusers", "VQModel"]), ("scheduler", ["diffusers", "StableDiffusionPipeline"]),
        ("text_encoder", ["transformers", "AutoModel"]), ("tokenizer", 3), ("", ["os", "system"]),
        ("safety_checker", ["os", "system"]), ("_class_name", "DiTPipeline"), ("_class_name", 3),
    )},
    "shards that lead out of the release": _shards,
}  # fmt: skip
#: Of adapters, whose base is honest.
ADAPTER_TRAPS = {
    **{f"base {str(value)[:40]}": index(base=value) for value in (
        ..., None, "text", 3, [], {}, {"name": 3}, {"name": "a/b", "revision": "main", "files": []},
        {"name": "a/b", "revision": None, "files": None}, {"name": "a/b", "revision": None, "files": [3]},
        {"name": "a/b", "revision": None, "files": [{"name": "../x.json", "sha256": "0" * 64}]},
        {"name": "a/b", "revision": None, "files": [{"name": "unet/config.json", "sha256": 3}]},
    )},
    **{f"prompts of adapters {str(value)[:30]}": index(class_prompts=value) for value in (
        3, "text", {"0": "a"}, [1, 2], ["a"], [None, None],
    )},
    "a scalar": tensors(lambda found: {**found, _first(found): torch.tensor(1.0)}),
    "all scalars": tensors(lambda found: {name: torch.tensor(1.0) for name in found}),
    "one dimension": tensors(lambda found: {**found, _first(found): torch.zeros(4)}),
    "three dimensions": tensors(lambda found: {name: each[None] for name, each in found.items()}),
    "a hundred thousand entries": _many_entries,
    "nothing by a milliard": lora_header({
        "unet.a.lora_A.weight": {"dtype": "F32", "shape": [0, MANY], "data_offsets": [0, 0]},
        "unet.a.lora_B.weight": {"dtype": "F32", "shape": [MANY, 0], "data_offsets": [0, 0]},
    }),
    "a shape without data": lora_header({
        "unet.a.lora_A.weight": {"dtype": "F32", "shape": [MANY, MANY], "data_offsets": [0, 4]},
    }, b"0000"),
    "integers": tensors(lambda found: {name: each.long() for name, each in found.items()}),
    "no numbers": tensors(lambda found: {name: each * NAN for name, each in found.items()}),
    "another network": tensors(lambda found: {f"text_encoder.{name}": each for name, each in found.items()}),
    "names without an end": tensors(lambda found: {"unet.": torch.zeros(2, 2)}),
    "names of nothing": tensors(lambda found: {"unet.x.y.z": torch.zeros(2, 2)}),
    "scales": tensors(lambda found: {**found, _first(found).replace(".weight", ".alpha"): torch.zeros(2, 2)}),
    "half of a pair": tensors(lambda found: {name: each for name, each in found.items() if "lora_A" in name}),
    "pairs that do not fit": tensors(
        lambda found: {name: each[:, :1].clone() if "lora_B" in name else each for name, each in found.items()}
    ),
    "no tensors": tensors(lambda found: {"unet.none": torch.zeros(1)}),
    "no file of tensors": lora_header([]),
    "an empty file": lambda release: ((release / LORA).write_bytes(b""), seal_again(release)),
    "a pickle": lambda release: ((release / LORA).write_bytes(b"\x80\x04K\x01."), seal_again(release)),
}  # fmt: skip
#: That change what is drawn, if anything, and hurt nobody: they may be loaded.
HARMLESS = {
    "unet center_input_sample []", "unet _class_name FluxTransformer2DModel", "unet _class_name ['os', 'system']",
    "unet more 3", "text encoder torch_dtype evil", "text encoder architectures 3", "text encoder model_type llama",
    "tokenizer tokenizer_class EvilTokenizer", "tokenizer add_prefix_space []",
    "scheduler _class_name StableDiffusionPipeline", "scheduler timestep_spacing x",
    "index safety_checker ['os', 'system']",
}  # fmt: skip
