# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Choices that follow from more than one image, and what a loss, a model or features keep of images."""

from .fault import DOOR, SEPARATE, Fault


VOTES, ONE_IMAGE = "diffusers_dp/queries/votes.py", "diffusers_dp/queries/one_image.py"
KEPT, MAPPED = "diffusers_dp/privacy/kept_state.py", "diffusers_dp/data/mapped.py"
OF_ONE_IMAGE, OF_KEPT = "queries/test_one_image.py::", "privacy/test_kept_state.py::"
BEFORE_IT_IS_SPENT = f"{OF_KEPT}test_a_loss_that_keeps_something_is_refused_before_anything_is_spent"

CHOICES = (
    Fault(
        "an image is embedded beside others before it votes",
        VOTES,
        "one_by_one(self.embed, images)",
        "self.embed(images)",
        (f"{OF_ONE_IMAGE}test_the_votes_of_an_image_do_not_depend_on_the_batch",),
    ),
    Fault(
        "embeddings are no whole numbers",
        VOTES,
        ".round().clamp(-self.limit, self.limit)",
        ".clamp(-self.limit, self.limit)",
        (f"{OF_ONE_IMAGE}test_the_votes_of_an_image_do_not_depend_on_the_batch",),
    ),
    Fault(
        "candidates are compared in float32",
        VOTES,
        "(2 * rows[own] @ self.candidates[label].T).sub_",
        "(2 * rows[own].float() @ self.candidates[label].float().T).double().sub_",
        (f"{OF_ONE_IMAGE}test_one_image_moves_votes_by_one_exactly_whoever_shares_its_batch",),
    ),
    Fault(
        "all candidates that are tied get a vote",
        ONE_IMAGE,
        "    if tied.any():\n",
        "    if False:\n",
        (f"{OF_ONE_IMAGE}test_the_largest_of_a_row",),
    ),
    Fault(
        "where an image starts in memory decides how it is rounded",
        ONE_IMAGE,
        "embed(image.clone(memory_format=torch.contiguous_format))",
        "embed(image)",
        (f"{OF_ONE_IMAGE}test_images_one_by_one",),
    ),
    Fault(
        "an image looks like public classes beside others",
        "diffusers_dp/queries/semantic.py",
        "one_by_one(self.classifier, images)",
        "self.classifier(images)",
        (f"{OF_ONE_IMAGE}test_what_an_image_looks_like_does_not_depend_on_the_batch",),
    ),
    Fault(
        "a gradient that jumps is computed beside others",
        "diffusers_dp/queries/tangent.py",
        "        return one_by_one(features, images)\n",
        "        return torch.func.vmap(lambda image: features(image)[0])(images)\n",
        (f"{OF_ONE_IMAGE}test_a_gradient_that_jumps_is_that_of_one_image",),
    ),
    Fault(
        "a finished model's classifier sees images beside others",
        "diffusers_dp/evaluation/charged.py",
        "self.classifier.predict_one_by_one(",
        "self.classifier.predict(",
        ("evaluation/test_charged.py::test_an_image_is_taken_for_a_class_by_itself",),
    ),
    Fault(
        "candidates of a private choice see images beside others",
        "diffusers_dp/evaluation/utility.py",
        "self.classifier.predict_one_by_one(",
        "self.classifier.predict(",
        ("evaluation/test_selection.py::test_a_candidate_is_right_about_an_image_by_itself",),
    ),
    Fault(
        "a row may move by rounding with other batch-mates",
        SEPARATE,
        "torch.zeros_like(limit) if repeated else limit",
        "limit",
        ("privacy/test_separate_records.py::test_features_that_mix_records_are_refused",),
    ),
    Fault(
        "a unit without images gives up its place in a question",
        DOOR,
        "for units in sample.split(",
        "for units in sample[counts[sample] > 0].split(",
        ("privacy/test_units.py::test_a_unit_less_leaves_every_other_image_in_its_place",),
    ),
)

KEPT_STATE = (
    Fault(
        "a loss may keep something of images",
        DOOR,
        "        kept.refuse_private()\n        if self._leaky_log",
        "        if self._leaky_log",
        (f"{OF_KEPT}test_what_shows_on_images_alone_stops_the_run_in_the_same_words",),
    ),
    Fault(
        "features may keep something of images",
        DOOR,
        "        kept.refuse_private()\n        answer = torch.stack",
        "        answer = torch.stack",
        (f"{OF_KEPT}test_features_that_keep_something_are_refused",),
    ),
    Fault(
        "an encoder may keep something of images",
        DOOR,
        ", check=KeptState(encode).refuse_private",
        "",
        (f"{OF_KEPT}test_an_encoder_that_keeps_something_is_refused_and_no_row_is_kept",),
    ),
    Fault(
        "rows are kept before their encoder is checked",
        MAPPED,
        "                check()\n                bar.update(at_most - bar.n)",
        "                bar.update(at_most - bar.n)",
        (f"{OF_KEPT}test_an_encoder_that_keeps_something_is_refused_and_no_row_is_kept",),
    ),
    Fault(
        "a loss that keeps something of public noise is let through to the ledger",
        SEPARATE,
        '    kept.refuse_public("A loss and its model")\n',
        "",
        (BEFORE_IT_IS_SPENT,),
    ),
    Fault(
        "features that keep something of public noise are let through to the ledger",
        SEPARATE,
        '    kept.refuse_public(f"The features of {name!r}")\n',
        "",
        (f"{OF_KEPT}test_features_that_keep_something_are_refused",),
    ),
    Fault(
        "contents of tensors are not compared",
        KEPT,
        "    return found + _digests(storages)",
        "    return found",
        (BEFORE_IT_IS_SPENT,),
    ),
    Fault(
        "what a closure holds is not compared",
        KEPT,
        "            parts.append((variable, cell.cell_contents))\n",
        "            pass\n",
        (BEFORE_IT_IS_SPENT,),
    ),
)
