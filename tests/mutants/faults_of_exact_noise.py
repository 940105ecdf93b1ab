# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`--noise exact`: whole numbers, rounded noise, and what its receipts say."""

from .fault import DOOR, ENGINE, RANDOMNESS, Fault


GRID, ROUNDED = "diffusers_dp/gradients/grid.py", "diffusers_dp/randomness/rounded_gaussian.py"
SUMS, VERIFY = "diffusers_dp/randomness/banded_noise.py", "diffusers_dp/verify.py"
AT_THE_DOOR = "privacy/test_exact_noise.py"

EXACT = (
    Fault(
        "exact: gradients are rounded after the noise",
        GRID,
        "            chunk.mul_(factor[:, None]).round_()\n",
        "            chunk.mul_(factor[:, None])\n",
        (f"{AT_THE_DOOR}::test_the_step_is_added_up_before_the_noise",),
    ),
    Fault(
        "exact: rounded vectors of any length are taken",
        GRID,
        "    return squared_norms <= float(STEPS) ** 2\n",
        "    return squared_norms <= 2 * float(STEPS) ** 2\n",
        ("gradients/test_grid.py::test_a_norm_that_float32_got_wrong_counts_as_zero",),
    ),
    Fault(
        "exact: norms of rounded gradients in float32",
        GRID,
        "torch.linalg.vector_norm(chunk, dim=1, dtype=torch.float64))",
        "torch.linalg.vector_norm(chunk, dim=1).double())",
        ("gradients/test_grid.py::test_norms_of_whole_numbers_are_exact",),
    ),
    Fault(
        "exact: the images of a unit do not share its sensitivity",
        GRID,
        "fits(squared * most.square())",
        "fits(squared)",
        ("gradients/test_grid.py::test_no_vector_of_a_question_is_longer_than_its_share",),
        "        limits = STEPS / own * (1 - SLACK) - math.sqrt(rows.shape[1]) / 2\n",
        "        limits = STEPS * (1 - SLACK) - math.sqrt(rows.shape[1]) / 2 + 0 * own\n",
    ),
    Fault(
        "exact: a record that does not count is in an answer",
        GRID,
        "fits(squared * most.square()) & counted.to(rounded.device)",
        "fits(squared * most.square())",
        ("gradients/test_grid.py::test_what_does_not_count_or_is_not_finite_is_zero_and_the_rows_stay",),
    ),
    Fault(
        "exact: noise rounded towards zero",
        ROUNDED,
        "    magnitude = z * std\n",
        "    magnitude = np.trunc(z * std)\n",
        ("randomness/test_rounded_gaussian.py::test_what_floating_point_decides_is_what_arbitrary_precision_decides",),
    ),
    Fault(
        "exact: what lies near a half step is not decided",
        ROUNDED,
        "np.flatnonzero(unsure | (z > TAIL))",
        "np.flatnonzero(z > TAIL)",
        ("randomness/test_rounded_gaussian.py::test_every_number_near_a_half_step_is_decided",),
    ),
    Fault(
        "exact: no more bits are drawn where they are needed",
        ROUNDED,
        "numerator << MORE | int(words(1)[0]), bits + MORE",
        "numerator << MORE, bits + MORE",
        ("randomness/test_rounded_gaussian.py::test_where_the_bits_leave_it_open_more_are_drawn",),
    ),
    Fault(
        "exact: noise of a gradient as if bands had a norm of a step",
        DOOR,
        "            std *= COEFFICIENT_STEPS\n",
        "            std *= COEFFICIENT_STEPS / 2\n",
        (f"{AT_THE_DOOR}::test_the_noise_of_bands_is_made_white_by_the_coefficients",),
    ),
    Fault(
        "exact: noise of a gradient halved",
        DOOR,
        "names, std = list(total), row.noise_multiplier * STEPS\n",
        "names, std = list(total), row.noise_multiplier * STEPS / 2\n",
        (f"{AT_THE_DOOR}::test_the_noise_of_a_step_has_the_deviation_that_is_charged",),
    ),
    Fault(
        "exact: coefficients of bands are rounded up",
        SUMS,
        "tuple(int(COEFFICIENT_STEPS * value) for value in coefficients)",
        "tuple(math.ceil(COEFFICIENT_STEPS * value) for value in coefficients)",
        (f"{AT_THE_DOOR}::test_whole_coefficients_are_no_longer_than_one",),
        "sum(weight**2 for weight in weights) > COEFFICIENT_STEPS**2",
        "sum(weight**2 for weight in weights) > 2 * COEFFICIENT_STEPS**2",
    ),
    Fault(
        "exact: past sums are not mixed in",
        SUMS,
        "                value += weight * other\n",
        "                value += 0 * weight * other\n",
        (f"{AT_THE_DOOR}::test_one_image_is_in_the_answer_of_its_turn_alone",),
    ),
    Fault(
        "exact: a block goes on with other noise",
        SUMS,
        "        block = (weights, scale, tuple(value.shape for value in sums))\n",
        "        block = (weights, tuple(value.shape for value in sums))\n",
        (f"{AT_THE_DOOR}::test_sums_of_another_noise_or_clip_norm_are_not_mixed",),
    ),
    Fault(
        "exact: words of the stream under a key",
        RANDOMNESS,
        "        if self.exact and not self._injected:\n",
        "        if False:\n",
        (f"{AT_THE_DOOR}::test_noise_and_samples_come_from_the_operating_system",),
    ),
    Fault(
        "exact: gradients that follow from other images are taken",
        "diffusers_dp/privacy/separate_records.py",
        "            if any(not torch.equal(wanted[name], value)",
        "            if any(False and not torch.equal(wanted[name], value)",
        (f"{AT_THE_DOOR}::test_gradients_whose_last_bits_follow_from_other_images_are_refused",),
    ),
    Fault(
        "exact: batches are not filled up",
        DOOR,
        "        batches = in_full_rows(batches, size) if self._exact else batches\n        with",
        "        with",
        (f"{AT_THE_DOOR}::test_batches_have_full_rows_however_many_are_sampled",),
    ),
    Fault(
        "exact: a copy of a gradient is rounded",
        ENGINE,
        "[part.contiguous() for part in parts]",
        "list(parts)",
        ("gradients/test_grid.py::test_gradients_in_another_memory_format_are_rounded_in_their_place",),
    ),
    Fault(
        "exact: features are not tried in each place",
        DOOR,
        "                try_bits(features",
        "                (lambda *_, **__: None)(features",
        (f"{AT_THE_DOOR}::test_features_whose_last_bits_follow_from_their_place_are_refused",),
    ),
    Fault(
        "exact: a model is tried once, however it is computed",
        DOOR,
        "        if not same or how != self._tried_how:\n",
        "        if not same:\n",
        (f"{AT_THE_DOOR}::test_a_model_that_is_computed_in_another_way_is_tried_again",),
    ),
    Fault(
        "exact: a caller says that its noise is",
        DOOR,
        '        if "grid" in (query or {}):\n',
        "        if False:\n",
        (f"{AT_THE_DOOR}::test_a_caller_cannot_say_that_its_noise_is_exact",),
    ),
    Fault(
        "exact: images that do not count are rounded in",
        ENGINE,
        "        factors = torch.where(counted & norms.isfinite(), factors, 0.0)\n",
        "        factors = torch.where(norms.isfinite(), factors, 0.0)\n",
        (f"{AT_THE_DOOR}::test_images_that_do_not_count_add_nothing",),
    ),
    Fault(
        "exact: a receipt is proven whatever its events say",
        VERIFY,
        "and not _is_exact(receipt):\n",
        "and not receipt:\n",
        ("release/test_exact_receipts.py::test_a_lie_about_whole_numbers_is_refused",),
    ),
    Fault(
        "exact: a receipt may have any sensitivity",
        VERIFY,
        ' or "clip_norm" not in query or query.get("sensitivity") != query["clip_norm"]:\n',
        ":\n",
        ("release/test_exact_receipts.py::test_a_lie_about_whole_numbers_is_refused",),
    ),
    Fault(
        "exact: a receipt may have any probability",
        VERIFY,
        '    if event.get("sampling_probability", 1) * COIN % 1:\n',
        "    if False:\n",
        ("release/test_exact_receipts.py::test_a_lie_about_whole_numbers_is_refused",),
    ),
)
