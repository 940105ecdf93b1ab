# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Layers whose rows are not the loss's, losses that are not one number for each row, and gradients per image that are
not autograd's."""

from .fault import ENGINE, STEP, SUPPORTED, Fault


OWN_GRADIENTS, AUDIT = "diffusers_dp/audit/own_gradients.py", "diffusers_dp/audit/mechanism_audit.py"
ROWS_TEST, OWN_TEST = "gradients/test_rows_of_layers.py::", "audit/test_own_gradients.py::"

LAYERS = (
    Fault(
        "a layer may take windows for rows",
        ENGINE,
        "        if self.units.total_rows not in (None, rows):\n",
        "        if False:\n",
        (ROWS_TEST + "test_windows_of_one_image_are_no_records", ROWS_TEST + "test_windows_are_refused_by_name"),
    ),
    Fault(
        "the first layer says how many rows there are",
        STEP,
        "group_size=noise_multiplicity, num_rows=len(rows))",
        "group_size=noise_multiplicity)",
        (ROWS_TEST + "test_windows_of_one_image_are_no_records",),
    ),
    Fault(
        "one image stands for all gradients that the layers give",
        STEP,
        "        if squared_norms.shape != counted.shape:",
        "        if False:",
        (ROWS_TEST + "test_a_rule_that_miscounts_is_refused",),
    ),
    Fault(
        "a loss may be one number for all rows",
        STEP,
        "            _check_losses(losses, len(rows))\n",
        "",
        (ROWS_TEST + "test_a_loss_gives_one_number_for_each_row",),
    ),
    Fault(
        "a refusal tells the size of a Poisson sample",
        ENGINE,
        'was given another number of rows than the loss or another layer: dimension 0',
        'was given {rows} rows, another number of rows than the loss or another layer: dimension 0',
        (ROWS_TEST + "test_windows_are_refused_by_name",),
    ),
    Fault(
        "the pre-flight does not compare with autograd",
        AUDIT,
        "        lambda: own_gradient_checks(row, model, bf16=bf16),\n",
        "",
        (OWN_TEST + "test_a_run_is_refused_before_anything_is_written",),
    ),
    Fault(
        "zeros hide wrong gradients from the pre-flight",
        OWN_GRADIENTS,
        "                parameter.add_(",
        "                torch.add(parameter, ",
        (OWN_TEST + "test_zeros_hide_nothing",),
    ),
    Fault(
        "the pre-flight leaves weights moved",
        OWN_GRADIENTS,
        "                parameter.copy_(value)",
        "                pass",
        (OWN_TEST + "test_the_model_is_left_as_it_was",),
    ),
    Fault(
        "half a gradient may be missing",
        OWN_GRADIENTS,
        "if not error < tolerance]",
        "if not error < 0.6]",
        (OWN_TEST + "test_weights_that_act_past_their_layer_are_named",),
    ),
    Fault(
        "hooks on weights are accepted",
        SUPPORTED,
        "    if hooked:\n",
        "    if False:\n",
        (OWN_TEST + "test_a_hook_after_a_weight_is_refused",),
    ),
)  # fmt: skip
