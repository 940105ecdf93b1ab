# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Latents: what of an image a public autoencoder hands on, and who pays for it."""

from .fault import RECORDS, Fault


MAPPED, LATENTS, DOOR = (
    "diffusers_dp/data/mapped.py", "diffusers_dp/models/latents.py", "diffusers_dp/privacy/sensitive.py",
)  # fmt: skip
TESTS = "privacy/test_mapped.py::test_"

LATENT_FAULTS = (
    Fault(
        "the scale of the latents is that of their batch",
        LATENTS,
        "        return (posterior.mean.float() - self.shift) * self.scale\n",
        "        return (posterior.mean.float() - self.shift) / posterior.mean.float().std()\n",
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
        "functools.partial(_encoded, encode), self.image_shape",
        "lambda images, labels: images.flatten(1)[:, : math.prod(shape)], self.image_shape",
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
        "rows_of(alone)[number : number + 1]",
        "rows_of(images[number : number + 1])",
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
        "    if is_memory_error(error):\n",
        "    if False:\n",
        (f"{TESTS}what_is_no_record_s_fault_stops_the_run",),
    ),
    Fault(
        "an encoder that breaks makes blanks of all",
        MAPPED,
        "    row = rows_of(blanks)[:1]",
        "    row = images[:1].half()",
        (f"{TESTS}what_is_no_record_s_fault_stops_the_run",),
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
        RECORDS,
        "    if images.dtype != torch.uint8:\n        return images.float()\n",
        "",
        (f"{TESTS}a_step_on_rows_costs_and_moves_what_a_step_on_images_does",),
    ),
    Fault(
        "a mapped door counts what it could encode",
        DOOR,
        "            num_images=records.num_images, image_shape=shape,",
        "            num_images=len(images[readable]), image_shape=shape,",
        (f"{TESTS}a_record_that_fails_is_a_blank_and_moves_no_other",),
    ),
)

ADAPTERS, ARTEFACTS, BASE, VERIFY, RUN, SALIENCY = (
    f"diffusers_dp/{name}.py"
    for name in (
        "models/adapters", "release/latent_artefacts", "release/latent_base", "verify", "runs/latent_run",
        "queries/saliency",
    )
)  # fmt: skip
MODELS, SCRIPT = "models/test_latent_denoiser.py::test_", "training/test_train_dp_ldm.py::test_"

LATENT_RELEASES = (
    Fault(
        "adapters of another base are drawn from",
        BASE,
        "    problem = next(check_base(folder, reference), None)\n",
        "    problem = None\n",
        (f"{SCRIPT}another_base_is_refused_by_name",),
    ),
    Fault(
        "of a base the weights are not compared",
        VERIFY,
        '        elif file_digest(path) != file["sha256"]:\n',
        '        elif path.suffix == ".json" and file_digest(path) != file["sha256"]:\n',
        (f"{SCRIPT}another_base_is_refused_by_name",),
    ),
    Fault(
        "a base that is a release of the same images is taken for public",
        RUN,
        "        cost = cost_of_start(self.base",
        "        cost = (lambda *_, **__: {})(self.base",
        (f"{SCRIPT}a_base_that_is_a_release_is_counted",),
    ),
    Fault(
        "a branch is a commit",
        VERIFY,
        're.compile(r"[0-9a-f]{40}")',
        're.compile(r"[0-9a-z]+")',
        (f"{SCRIPT}a_base_without_commit_or_hashes_is_refused",),
    ),
    Fault(
        "a base may lie anywhere, and be pickled",
        VERIFY,
        '{"name": BASE_FILE, "sha256"',
        '{"name": TEXT, "sha256"',
        (f"{SCRIPT}a_base_without_commit_or_hashes_is_refused",),
    ),
    Fault(
        "pickled weights of a base are loaded",
        "diffusers_dp/release/latent_checks.py",
        "    if not weights:",
        "    if False:",
        (f"{SCRIPT}pickles_other_pipelines_and_dit_adapters_are_refused",),
    ),
    Fault(
        "classes of a base that are not known are loaded",
        BASE,
        "entry[1:] not in [[each] for each in classes]",
        "len(entry) != 2",
        (f"{SCRIPT}pickles_other_pipelines_and_dit_adapters_are_refused",),
    ),
    Fault(
        "adapters that fit nowhere are passed over",
        ARTEFACTS,
        '        if not loaded == sum("lora_" in name for name in tensors) == len(tensors):\n',
        "        if False:\n",
        (f"{SCRIPT}adapters_of_another_network_are_refused",),
    ),
    Fault(
        "a merged release tells where its base lay",
        "diffusers_dp/release/artefacts.py",
        ' if key != "_name_or_path"}',
        "}",
        (f"{SCRIPT}a_merged_release_is_a_pipeline_of_diffusers",),
    ),
    Fault(
        "steps and noise of latents from the public seed",
        "diffusers_dp/models/denoiser.py",
        "        draws = Draws(generator, images.device)\n",
        "        draws = Draws(None, images.device)\n",
        (f"{MODELS}the_loss_by_its_formula",),
    ),
    Fault(
        "frozen weights get gradients, and all the noise that goes with them",
        ADAPTERS,
        "    network.requires_grad_(False)\n    for module",
        "    for module",
        (f"{MODELS}what_is_trained", f"{SCRIPT}adapters_from_images_to_a_stranger"),
    ),
    Fault(
        "noise is added to frozen parts, and what is trained stays as it was",
        ADAPTERS,
        "for name, each in model.named_parameters() if each.requires_grad}",
        "for name, each in model.named_parameters() if not each.requires_grad}",
        (f"{MODELS}what_is_trained", f"{SCRIPT}adapters_from_images_to_a_stranger"),
    ),
    Fault(
        "DP-SGD sees images, not latents",
        RUN,
        "        self.dp_sgd(trained, images=self.latents)\n",
        "        self.dp_sgd(trained)\n",
        (f"{SCRIPT}adapters_from_images_to_a_stranger",),
    ),
    Fault(
        "a network goes on without what public images taught it",
        RUN,
        "        if public is not None and learned is None:",
        "        if False:",
        (f"{SCRIPT}a_new_network_learns_public_images_first",),
    ),
    Fault(
        "the cache of latents does not know the images",
        RUN,
        "made_of=[self.made_of, self.encoder.facts]",
        "made_of=[self.encoder.facts]",
        (f"{SCRIPT}latents_of_other_images_are_encoded_anew",),
    ),
    Fault(
        "squared norms of gradients are summed, not shares",
        SALIENCY,
        "squares / total.clamp_min(1e-38), 0.0)",
        "squares, 0.0)",
        (f"{MODELS}shares_of_squared_gradient_norms_by_autograd",),
    ),
    Fault(
        "a gradient that is not finite is a share of one",
        SALIENCY,
        "total.isfinite() & (total > 0)",
        "total != 0",
        (f"{MODELS}shares_of_squared_gradient_norms_by_autograd",),
    ),
    Fault(
        "each record's gradients see noise of their own place in the batch",
        "diffusers_dp/models/saliency.py",
        "noise = noise.repeat(len(latents), 1, 1, 1)",
        "noise = torch.randn_like(rows)",
        (f"{SCRIPT}a_noisy_answer_chooses_the_layers",),
    ),
)
