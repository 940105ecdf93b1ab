# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Losses of training rows that depend on other rows or on known draws, and public models and images that are none."""

from .fault import Fault


AUGMENTATION, DDPM, DRAWS = (
    "diffusers_dp/models/row_augmentation.py", "diffusers_dp/models/ddpm.py", "diffusers_dp/models/draws.py",
)  # fmt: skip
PRETRAINED, PUBLIC, DP_FETA = (
    "diffusers_dp/runs/pretrained.py",
    "diffusers_dp/data/public_images.py",
    "training/train_dp_feta.py",
)

ROWS = (
    Fault(
        "an augmentation mixes each image with the next",
        AUGMENTATION,
        "        return images[index, :, y, x]",
        "        images = 0.8 * images + 0.2 * images.roll(1, 0)\n        return images[index, :, y, x]",
        ("models/test_row_augmentation.py::test_a_row_does_not_depend_on_other_rows",),
    ),
    Fault(
        "images are brightened by their batch",
        AUGMENTATION,
        "        return images[index, :, y, x]",
        "        images = images / images.abs().max()\n        return images[index, :, y, x]",
        ("models/test_row_augmentation.py::test_the_gradient_of_an_image_does_not_depend_on_the_others",),
    ),
    Fault(
        "flips and shifts from the public seed",
        AUGMENTATION,
        "        draws, rows = Draws(generator, images.device), len(images)\n",
        "        draws, rows = Draws(None, images.device), len(images)\n",
        ("models/test_row_augmentation.py::test_a_row_does_not_depend_on_other_rows",),
    ),
    Fault(
        "steps and dropped labels from the public seed",
        DRAWS,
        "        if self.generator is None:\n            return torch.rand(size).double()\n",
        "        if size:\n            return torch.rand(size).double()\n",
        ("models/test_ddpm.py::test_the_loss_by_its_formula",),
    ),
    Fault(
        "losses over the mean of their batch",
        DDPM,
        'reduction="none").flatten(1).mean(1)\n',
        'reduction="none").flatten(1).mean(1) / F.mse_loss(prediction, target).detach()\n',
        ("models/test_ddpm.py::test_rows_of_the_loss_are_independent",),
    ),
    Fault(
        "more draws for an image that is bright",
        "diffusers_dp/models/denoiser.py",
        "        times = self.times(draws, len(images))\n",
        "        draws.uniform(int((images.flatten(1).mean(1) > 0).sum()))\n        times = "
        "self.times(draws, len(images))\n",
        ("models/test_ddpm.py::test_rows_of_the_loss_are_independent",),
    ),
)

PUBLIC_INPUTS = (
    Fault(
        "a pre-trained model may mix the images of a batch",
        PRETRAINED,
        "        check_layers(unet)\n",
        "",
        ("runs/test_pretrained.py::test_batch_norm_is_refused",),
    ),
    Fault(
        "pickled weights are loaded",
        PRETRAINED,
        "    if not (place / WEIGHTS).is_file():\n",
        "    if not list(place.glob('diffusion_pytorch_model.*')):\n",
        ("runs/test_pretrained.py::test_a_folder_that_is_no_such_pipeline_is_refused",),
        "components.load_whole(UNet2DModel, alone)",
        "UNet2DModel.from_pretrained(place, use_safetensors=None)",
    ),
    Fault(
        "a release of the same images begins a run, and its epsilon is not counted",
        "diffusers_dp/runs/pretrained.py",
        "        cost = cost_of_start(folder, index, FLAG, name, facts, **ledger_options)\n",
        "        cost: dict[str, Any] = {}\n",
        ("runs/test_prior_release.py::test_as_many_images_of_the_same_classes_are_refused",),
    ),
    Fault(
        "any --dataset_id is taken for the release's",
        "diffusers_dp/runs/prior_release.py",
        ' and origin.get("dataset_id") == dataset_id:',
        ":",
        ("runs/test_prior_release.py::test_one_dataset_id_adds_both_up",),
    ),
    Fault(
        "dropout's masks come from a seeded source",
        PRETRAINED,
        "            layer.p = 0.0\n",
        "            pass\n",
        ("runs/test_pretrained.py::test_dropout_is_switched_off",),
    ),
    Fault(
        "the receipt is silent about public inputs",
        "diffusers_dp/release/receipt.py",
        '"public_inputs": list(public_inputs),',
        '"public_inputs": [],',
        ("release/test_release.py::TestStatement::test_what_training_began_with",),
    ),
    Fault(
        "the sensitive images may be named as public ones",
        PUBLIC,
        "        refuse_the_same_files(data, sensitive)\n",
        "",
        ("training/test_train_dp_diffusion.py::test_public_images_that_are_the_sensitive_ones_are_refused",),
    ),
    Fault(
        "files are told apart by their names",
        PUBLIC,
        "            name = hashlib.sha256(file.read_bytes()).hexdigest()\n",
        "            name = file.name\n",
        ("training/test_train_dp_diffusion.py::test_public_images_that_are_the_sensitive_ones_are_refused",),
    ),
    Fault(
        "a shard of sensitive images may be a public one",
        PUBLIC,
        "    if any(holds_many for _, holds_many in common) or (common and",
        "    if (common and",
        ("training/test_train_dp_diffusion.py::test_a_file_of_many_images_in_common_is_refused",),
    ),
    Fault(
        "one sensitive image among the public ones stops the run",
        PUBLIC,
        "    if any(holds_many for _, holds_many in common) or (common and",
        "    if common or (common and",
        ("training/test_train_dp_diffusion.py::test_no_single_image_decides_whether_a_run_starts",),
    ),
    Fault(
        "what noisy answers taught is kept as if it were public",
        DP_FETA,
        '        run.keep("warmed_up_spatial", run.pipeline)\n',
        "        from diffusers_dp.runs.pretrained import keep_pretrained\n\n"
        "        if run.public is not None:\n"
        "            keep_pretrained(run.folder.private, run.pipeline, run.public.origin, chosen=False)\n",
        ("training/test_public_curricula.py::test_central_and_public_images_in_one_set",),
    ),
    Fault(
        "a run begins with what another's noisy answers taught, as if it were public",
        "diffusers_dp/runs/prior_release.py",
        "refuse_unreleased(index, name,",
        "refuse_unreleased({}, name,",
        ("release/test_unreleased.py::test_no_run_begins_with_what_noisy_answers_taught",),
    ),
    Fault(
        "a resumed run forgets what it began with",
        "diffusers_dp/runs/run.py",
        "        if self.checkpoint is None and not (private / LEARNED).exists():\n"
        "            self.identity.public_inputs",
        "        if True:\n            self.identity.public_inputs",
        ("training/test_public_curricula.py::test_central_and_public_images_in_one_set",),
    ),
    Fault(
        "the receipt of a curriculum is silent about public images",
        "diffusers_dp/runs/run.py",
        "            public_inputs=self.identity.public_inputs,\n",
        "",
        ("training/test_public_curricula.py::test_resuming_in_the_warm_up",),
    ),
    Fault(
        "public images take the classes of sensitive ones",
        "diffusers_dp/runs/warm_up_images.py",
        "torch.full((len(public),), self.null_label)",
        "torch.zeros(len(public), dtype=torch.long)",
        ("training/test_public_curricula.py::test_each_image_of_the_mixed_set_is_as_likely",),
    ),
)
