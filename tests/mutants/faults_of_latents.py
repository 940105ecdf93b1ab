# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Latents: what of an image a public autoencoder hands on, and who pays for it."""

from .fault import Fault


MAPPED, LATENTS, DOOR = (
    "diffusers_dp/data/mapped.py", "diffusers_dp/models/latents.py", "diffusers_dp/privacy/sensitive.py",
)  # fmt: skip
TESTS = "privacy/test_mapped.py::test_"

LATENT_FAULTS = (
    Fault(
        "the scale of the latents is that of their batch",
        LATENTS,
        "        mean = (posterior.mean.float() - self.shift) * self.scale\n",
        "        mean = (posterior.mean.float() - self.shift) / posterior.mean.float().std()\n",
        (f"{TESTS}rows_are_the_scaled_means_of_the_public_autoencoder",),
    ),
    Fault(
        "the encoder stays in training mode",
        LATENTS,
        "        self.vae = vae.eval().requires_grad_(False)",
        "        self.vae = vae.requires_grad_(False)",
        (f"{TESTS}an_encoder_that_mixes_records_or_draws_is_refused",),
    ),
    Fault(
        "an encoder is not tried",
        DOOR,
        'clip_norm=1.0, name="encoder",',
        'clip_norm=1e9, name="encoder",',
        (f"{TESTS}an_encoder_that_mixes_records_or_draws_is_refused",),
    ),
    Fault(
        "one record's failure blanks its batch",
        MAPPED,
        "    for number in range(len(images)):\n",
        "    for number in range(0):\n",
        (f"{TESTS}a_record_that_fails_is_a_blank_and_moves_no_other",),
    ),
    Fault(
        "a record that fails lets the others be encoded in smaller batches",
        MAPPED,
        "encode(alone)[number : number + 1]",
        "encode(images[number : number + 1])",
        (f"{TESTS}a_record_that_fails_is_a_blank_and_moves_no_other",),
    ),
    Fault(
        "an overflow of float16 stays a record",
        MAPPED,
        "there & encoded.flatten(1).isfinite().all(1)",
        "there & ~encoded.flatten(1).isnan().any(1)",
        (f"{TESTS}a_record_that_fails_is_a_blank_and_moves_no_other",),
    ),
    Fault(
        "a latent of zeros is a blank",
        MAPPED,
        "there & encoded.flatten(1).isfinite().all(1)",
        "there & encoded.flatten(1).isfinite().all(1) & (encoded != 0).flatten(1).any(1)",
        (f"{TESTS}a_black_image_is_no_blank_and_a_missing_one_stays_one",),
    ),
    Fault(
        "memory that runs out makes blanks",
        MAPPED,
        "    if is_out_of_memory(error) or should_reduce_batch_size(error):\n",
        "    if False:\n",
        (f"{TESTS}out_of_memory_stops_the_run",),
    ),
    Fault(
        "an encoder that breaks makes blanks of all",
        MAPPED,
        '    row = encode(blanks)[:1].to("cpu", torch.float16)',
        "    row = images[:1].half()",
        (f"{TESTS}an_encoder_that_breaks_for_all_is_no_record_s_fault",),
    ),
    Fault(
        "latents of another encoder are read",
        DOOR,
        "key = fingerprint([made_of, list(shape),",
        "key = fingerprint([list(shape),",
        (f"{TESTS}what_is_encoded_is_kept_and_other_encoders_begin_anew",),
    ),
    Fault(
        "the cache does not know the autoencoder's weights",
        LATENTS,
        '"weights_sha256": hash_weights(self.vae),',
        "",
        (f"{TESTS}what_is_encoded_is_kept_and_other_encoders_begin_anew",),
    ),
    Fault(
        "the cache does not know the autoencoder's type",
        LATENTS,
        '"dtype": str(self.vae.dtype), ',
        "",
        (f"{TESTS}what_is_encoded_is_kept_and_other_encoders_begin_anew",),
    ),
    Fault(
        "latents are scaled as pixels are",
        DOOR,
        "        if self._dtype != torch.uint8:\n            return images.float()\n",
        "",
        (f"{TESTS}a_step_on_rows_costs_and_moves_what_a_step_on_images_does",),
    ),
    Fault(
        "a mapped door counts what it could encode",
        DOOR,
        "            num_images=self._num_images, image_shape=shape,",
        "            num_images=len(images[readable]), image_shape=shape,",
        (f"{TESTS}a_record_that_fails_is_a_blank_and_moves_no_other",),
    ),
    Fault(
        "posteriors are drawn from the public seed",
        LATENTS,
        "        noise = Draws(generator, rows.device)",
        "        torch.manual_seed(0)\n        noise = Draws(None, rows.device)",
        ("privacy/test_mapped.py",),
    ),
)
