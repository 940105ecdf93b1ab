# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Clipping, per-example gradients, and divisors."""

from .fault import CENTRAL_IMAGES, DOOR, ENGINE, QUERY, RULES, SEPARATE, STEP, Fault


CLIPPING = (
    Fault(
        "clipped at the median norm of the batch",
        STEP,
        "clip_factors(gradients.squared_norms(), max_grad_norm), 0.0)",
        "clip_factors(gradients.squared_norms(), min(max_grad_norm, "
        "float(gradients.squared_norms().median().sqrt()))), 0.0)",
        ("gradients/test_step.py::test_a_large_batch_is_the_sum_of_its_images",),
    ),
    Fault(
        "clipped later in a large batch",
        STEP,
        "clip_factors(gradients.squared_norms(), max_grad_norm), 0.0)",
        "clip_factors(gradients.squared_norms(), max_grad_norm * (1.02 if len(images) > 16 else 1)), 0.0)",
        ("gradients/test_step.py::test_a_large_batch_is_the_sum_of_its_images",),
    ),
    Fault(
        "central images over the brightest of the batch",
        CENTRAL_IMAGES,
        "return _shrunk(images, self.image_shape).flatten(1)",
        "return _shrunk(images / images.max().clamp_min(1e-6), self.image_shape).flatten(1)",
        ("privacy/test_sensitive.py::test_an_answer_is_the_sum_of_answers_to_single_images",),
    ),
    Fault(
        "mode images with the clip norm of mean images",
        CENTRAL_IMAGES,
        "return math.prod(small_shape(self.image_shape)) ** 0.5\n",
        "return math.prod(small_shape(self.image_shape)) ** 0.5 / 2\n",
        ("queries/test_central_images.py::test_one_image_adds_a_vote_per_value",),
    ),
    Fault(
        "the ledger tells a divisor of the images that are there",
        QUERY,
        "self.normaliser(images.num_units, classes)",
        "self.normaliser(int(images._readable.sum()), classes)",
        ("queries/test_central_images.py::test_what_is_public_does_not_depend_on_what_is_there",),
    ),
    Fault(
        "votes of mode images as shares of their batch",
        CENTRAL_IMAGES,
        ".to(images.dtype).flatten(1)",
        ".to(images.dtype).flatten(1) / len(images)",
        ("queries/test_central_images.py::test_one_image_adds_a_vote_per_value",),
    ),
    Fault(
        "bins of mode images below the first",
        CENTRAL_IMAGES,
        "(levels * self.num_bins - 1).clamp_min(0)",
        "(levels * self.num_bins - 1)",
        ("queries/test_central_images.py::test_every_value_falls_into_one_bin",),
    ),
    Fault(
        "bins of mode images beyond the last",
        CENTRAL_IMAGES,
        "(levels * self.num_bins - 1).clamp_min(0).div(255,",
        "(levels * self.num_bins).div(255,",
        ("queries/test_central_images.py::test_every_value_falls_into_one_bin",),
    ),
    Fault(
        "white votes for no bin of a mode image",
        CENTRAL_IMAGES,
        "F.one_hot(bins, self.num_bins).to",
        "F.one_hot(bins % (self.num_bins - 1), self.num_bins).to",
        ("queries/test_central_images.py::test_every_value_falls_into_one_bin",),
    ),
    Fault(
        "queries almost without noise",
        QUERY,
        "            noise_multiplier=noise_multiplier,\n            sample_rate",
        "            noise_multiplier=noise_multiplier / 100,\n            sample_rate",
        ("queries/test_central_images.py::test_the_noise_is_that_of_the_clip_norm",),
    ),
    Fault(
        "`repeat` for `repeat_interleave`",
        STEP,
        "rows = images.repeat_interleave(noise_multiplicity, dim=0)",
        "rows = images.repeat(noise_multiplicity, 1, 1, 1)",
        ("gradients/test_per_example.py::test_one_image_moves_the_sum_by_the_clip_norm_at_most",),
    ),
    Fault(
        "the sum is clipped, not each image",
        STEP,
        "        factors = torch.where(counted, clip_factors(gradients.squared_norms(), max_grad_norm), 0.0)\n",
        "        factors = counted.float()\n"
        "        whole = sum(part.square().sum() for part in gradients.weighted_sum(factors).values())\n"
        "        factors = factors * clip_factors(whole.view(1), max_grad_norm * len(images))\n",
        ("gradients/test_step.py::test_the_sum_is_that_of_clipped_gradients",),
    ),
    Fault(
        "a mean of what was there, not a sum",
        STEP,
        "            total[name] += part\n",
        "            total[name] += part / counted.sum().clamp_min(1)\n",
        ("gradients/test_step.py::test_the_sum_does_not_depend_on_the_physical_batch_size",),
    ),
    Fault(
        "short gradients are stretched to the clip norm",
        STEP,
        "max_norm / norms.clamp_min(max_norm)",
        "max_norm / norms",
        ("gradients/test_step.py::test_clipped_norms",),
    ),
    Fault(
        "no clipping",
        STEP,
        "max_norm / norms.clamp_min(max_norm)",
        "torch.ones_like(norms)",
        ("privacy/test_sensitive.py::test_one_record_moves_a_gradient_by_the_clip_norm_over_the_normaliser",),
    ),
    Fault(
        "clipped to twice the stated norm",
        STEP,
        "clip_factors(gradients.squared_norms(), max_grad_norm)",
        "clip_factors(gradients.squared_norms(), 2 * max_grad_norm)",
        ("privacy/test_sensitive.py::test_the_gradient_bound_is_reached",),
    ),
    Fault(
        "squared norms taken for norms",
        STEP,
        "norms = squared_norms.sqrt()",
        "norms = squared_norms",
        ("gradients/test_step.py::test_clipped_norms",),
    ),
    Fault(
        "rows clipped one by one, K parts of an image in the sum",
        STEP,
        "            collected = per_example_gradients(model, group_size=noise_multiplicity)",
        "            counted = counted.repeat_interleave(noise_multiplicity)\n"
        "            collected = per_example_gradients(model, group_size=1)",
        ("gradients/test_per_example.py::test_one_image_moves_the_sum_by_the_clip_norm_at_most",),
    ),
    Fault(
        "a norm that is not finite keeps factor 1",
        STEP,
        "return torch.where(norms.isfinite(), max_norm / norms.clamp_min(max_norm), 0.0)",
        "return torch.where(norms.isfinite(), max_norm / norms.clamp_min(max_norm), 1.0)",
        ("gradients/test_step.py::test_one_broken_vector_does_not_touch_the_others",),
    ),
    Fault(
        "zero times infinity",
        ENGINE,
        "if leave_out_zeros:",
        "if False:",
        ("privacy/test_noise.py::test_a_broken_record_is_as_good_as_an_unreadable_one",),
    ),
    Fault(
        "a feature that is not finite stays",
        DOOR,
        "    return torch.where(factors[:, None] > 0, features * factors[:, None], 0.0)",
        "    return features * factors[:, None]",
        ("privacy/test_sensitive.py::test_one_record_moves_an_answer_by_the_clip_norm_at_most",),
    ),
    Fault(
        "answers are not clipped",
        DOOR,
        "rows = _clip(features(images.float() / 255, labels), clip_norm)",
        "rows = features(images.float() / 255, labels)",
        ("privacy/test_sensitive.py::test_one_record_moves_an_answer_by_the_clip_norm_at_most",),
    ),
    Fault(
        "blank images that fill up a sample count",
        STEP,
        "torch.where(counted, clip_factors(gradients.squared_norms(), max_grad_norm), 0.0)",
        "clip_factors(gradients.squared_norms(), max_grad_norm)",
        ("privacy/test_sensitive.py::test_filling_up_adds_nothing",),
    ),
    Fault(
        "an unreadable image loses its place, and shifts the draws of others",
        DOOR,
        "            there = chunk < len(self._images)\n",
        "            chunk = chunk[chunk < len(self._images)]\n"
        "            chunk = chunk[self._readable[chunk]]\n"
        "            there = chunk < len(self._images)\n",
        ("privacy/test_sensitive.py::test_one_record_moves_nobody_elses_draws",),
    ),
)

ENGINE_FAULTS = (
    Fault(
        "gradient of a convolution's bias missing from norms",
        RULES,
        "        gradients.append((layer.bias, [bias.unflatten(0, (-1, group_size)).sum(1)]))\n    return "
        "gradients\n\n\ndef _pointwise",
        "    return gradients\n\n\ndef _pointwise",
        ("gradients/test_per_example.py::test_every_kind_of_convolution",),
    ),
    Fault(
        "a shared parameter counts once",
        ENGINE,
        "parts = [torch.cat(self._sums[name]) + torch.cat(parts)]",
        "pass",
        ("gradients/test_per_example.py::test_shared_layers_and_parameters_add_up",),
    ),
    Fault(
        "group norm: the weight's gradient without normalising",
        RULES,
        "per_row = F.group_norm(x, layer.num_groups, eps=layer.eps).mul_(grad)",
        "per_row = x.mul(grad)",
        ("gradients/test_per_example.py::test_unet_with_attention_and_classes",),
    ),
    Fault(
        "norms of one parameter left out",
        ENGINE,
        "torch.stack(list(self._norms.values()))",
        "torch.stack(list(self._norms.values())[:-1])",
        ("gradients/test_per_example.py::test_every_kind_of_convolution",),
    ),
    Fault(
        "norms in bfloat16 under autocast",
        ENGINE,
        "norms = [torch.linalg.vector_norm(part.flatten(1), dim=1, dtype=torch.float32) for part in parts]",
        "norms = [torch.linalg.vector_norm(part.flatten(1).bfloat16(), dim=1).float() for part in parts]",
        ("gradients/test_per_example.py::test_autocast_around_the_context_reaches_neither_norms_nor_sums",),
    ),
    Fault(
        "BatchNorm is accepted",
        ENGINE,
        "            if _mixes_examples(module):",
        "            if False:",
        (
            "gradients/test_per_example.py::test_layers_that_mix_examples_are_refused_also_without_trainable_parameters",
        ),
    ),
    Fault(
        "float16 is accepted",
        ENGINE,
        "if output.dtype == torch.float16:",
        "if False:",
        ("gradients/test_per_example.py::test_half_precision_that_needs_loss_scaling_is_refused",),
    ),
    Fault(
        "a loss that mixes rows through a second derivative is accepted",
        ENGINE,
        "if fired or torch.is_grad_enabled():",
        "if False:",
        ("gradients/test_per_example.py::test_a_loss_that_differentiates_a_gradient_is_refused",),
    ),
)

LARGE_SUMS = (
    Fault(
        "an answer is added up in float32",
        DOOR,
        "            total = widened(blank.new_zeros(num_rows, blank.shape[1]))  #",
        "            total = blank.new_zeros(num_rows, blank.shape[1])  #",
        ("privacy/test_sensitive.py::test_a_large_sum_loses_none_of_its_terms",),
        "labels.to(total.device), widened(rows))",
        "labels.to(total.device), rows)",
    ),
    Fault(
        "an answer is rounded before the noise is on it",
        DOOR,
        "            if self.processes.is_first:\n                total = total + generator",
        "            total = total.float()\n            if self.processes.is_first:\n                total = total + "
        "generator",
        ("privacy/test_sensitive.py::test_a_large_sum_loses_none_of_its_terms",),
    ),
    Fault(
        "physical batches are added up in float32",
        "diffusers_dp/gradients/out_of_memory.py",
        "        total = {name: widened(value) for name, value in summed([]).items()}\n",
        "        total = summed([])\n",
        ("privacy/test_sensitive.py::test_a_large_sum_loses_none_of_its_terms",),
    ),
    Fault(
        "processes add up in float32",
        "diffusers_dp/distributed/processes.py",
        "flatten().to(wide) for tensor",
        "flatten().float() for tensor",
        ("distributed/test_processes.py::test_a_large_sum_loses_none_of_its_terms",),
    ),
)

DIVISORS = (
    Fault(
        "divided by the size of the sample",
        DOOR,
        "normaliser=normaliser, generator=generator)\n        else:",
        "normaliser=max(1, len(sample)), generator=generator)\n        else:",
        ("privacy/test_noise.py::test_noise_of_a_gradient_has_the_stated_standard_deviation",),
    ),
    Fault(
        "an answer over the number of readable images",
        QUERY,
        "(sums, images.num_units, noise_multiplier)",
        "(sums, int(images._readable.sum()), noise_multiplier)",
        ("privacy/test_sensitive.py::test_frequency_features",),
    ),
    Fault(
        "features that mix records are asked for",
        SEPARATE,
        "    for again in trials:",
        "    for again in ():",
        ("privacy/test_separate_records.py::test_features_that_mix_records_are_refused",),
    ),
    Fault(
        "features are not tried beside other records",
        SEPARATE,
        "rows(torch.arange(number).flip(0)).flip(0)[:NUM_TRIED],",
        "rows(tried),",
        ("privacy/test_separate_records.py::test_features_that_mix_records_are_refused",),
    ),
    Fault(
        "features are not tried alone",
        SEPARATE,
        "torch.cat([rows(one) for one in tried.split(1)])",
        "rows(tried)",
        ("privacy/test_separate_records.py::test_features_that_mix_records_are_refused",),
    ),
    Fault(
        "an answer carries a graph to the images",
        DOOR,
        "                with torch.no_grad(), _secret",
        "                with _secret",
        ("privacy/test_separate_records.py::test_no_gradient_of_the_images_leaves_with_an_answer",),
    ),
    Fault(
        "features are tried when the row is written",
        DOOR,
        "        with torch.no_grad(), _secret_torch_draws(self.device):\n            blank",
        "        reservation = ledger.reserve(row)\n"
        "        with torch.no_grad(), _secret_torch_draws(self.device):\n            blank",
        ("privacy/test_separate_records.py::test_features_that_mix_records_are_refused",),
        "        reservation = ledger.reserve(row)\n        generator = generator or self._generator\n        answers",
        "        generator = generator or self._generator\n        answers",
    ),
    Fault(
        "an image is added to every class",
        DOOR,
        "total += torch.zeros_like(total).index_add_(0, labels.to(total.device), widened(rows))",
        "total += rows.sum(0)",
        ("privacy/test_sensitive.py::test_a_record_changes_the_row_of_its_class_alone",),
    ),
    Fault(
        "a label outside the declared set ends the run",
        DOOR,
        "            self._readable &= (self._labels >= 0) & (self._labels < len(self.class_names or ()))\n",
        "            pass\n",
        ("privacy/test_sensitive.py::test_a_label_outside_the_label_set_is_a_damaged_record",),
    ),
)
