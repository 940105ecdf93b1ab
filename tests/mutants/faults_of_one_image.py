# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Choices that follow from more than one image, and what a loss, a model or features keep of images."""

from .fault import DOOR, RECORDS, SEPARATE, Fault


VOTES, ONE_IMAGE = "diffusers_dp/queries/votes.py", "diffusers_dp/queries/one_image.py"
KEPT, MAPPED = "diffusers_dp/privacy/kept_state.py", "diffusers_dp/data/mapped.py"
SOURCE, ROW = "diffusers_dp/randomness/private_generator.py", "diffusers_dp/accounting/ledger_row.py"
STRANGE = "privacy/test_untrusted_features.py::test_"
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
        "an image chooses its part beside others",
        "diffusers_dp/queries/moments.py",
        "chosen = self.nearest(images, labels)  # [b, P], 1 for the nearest",
        """own = self.centres.to(images)[labels if labels is not None else [0] * len(images)]
        apart = (self.spectrum(images)[:, None] - own).norm(dim=2)
        chosen = (torch.arange(own.shape[1]) == apart.argmin(1)[:, None]).float()""",
        (f"{OF_ONE_IMAGE}test_an_image_chooses_its_part_of_moments_alone",),
    ),
    Fault(
        "a stored answer about parts is taken for that about other centres",
        "diffusers_dp/queries/moments.py",
        'return {**self.facts, "centres_sha256": self.centres_sha256}',
        "return self.facts",
        ("training/test_train_moments.py::test_a_stopped_run_asks_nothing_twice",),
    ),
    Fault(
        "classes without images are left out of drawn images",
        "training/train_moments.py",
        '    run.done("images")\n',
        "    there = run.images._records.labels.bincount(minlength=len(moments.counts))[labels] > 0\n"
        "    images, labels = images[there], labels[there]\n"
        '    run.done("images")\n',
        ("training/test_train_moments.py::test_a_data_set_is_released",),
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
        "a unit without images gives up its place in a query",
        RECORDS,
        "for units in sample.split(",
        "for units in sample[counts[sample] > 0].split(",
        ("privacy/test_units.py::test_a_unit_less_leaves_every_other_image_in_its_place",),
    ),
)

KEPT_STATE = (
    Fault(
        "a loss may keep something of images",
        DOOR,
        "        self._refuse_kept(kept)\n        if self._exact and",
        "        if self._exact and",
        (f"{OF_KEPT}test_what_shows_on_images_alone_stops_the_run_in_the_same_words",),
    ),
    Fault(
        "features may keep something of images",
        DOOR,
        "            self._refuse_kept(kept)\n            return totals",
        "            return totals",
        (f"{OF_KEPT}test_features_that_keep_something_are_refused",),
    ),
    Fault(
        "an encoder may keep something of images",
        DOOR,
        "                check=functools.partial(self._refuse_kept, KeptState(encode)),\n",
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
        "        found |= zip(each,",
        "        _ = zip(each,",
        (BEFORE_IT_IS_SPENT,),
    ),
    Fault(
        "modules of a loss are not compared",
        KEPT,
        '            for value in getattr(root, "__dict__", {}).values():',
        "            for value in ():",
        (BEFORE_IT_IS_SPENT,),
    ),
)

STRANGE_FEATURES = (
    Fault(
        "features of whole numbers are clipped as they are",
        DOOR,
        "rows = rows.to(blank.dtype)  #",
        "rows = rows  #",
        (f"{STRANGE}features_that_a_square_overflows_are_refused",),
    ),
    Fault(
        "features of whole numbers are let through their trial",
        SEPARATE,
        "        if found.dtype not in (torch.float32, torch.float64):\n",
        "        if False:\n",
        (f"{STRANGE}features_that_a_square_overflows_are_refused",),
    ),
    Fault(
        "one row is repeated for all images of a batch",
        DOOR,
        "                if rows.shape != (len(images), blank.shape[1]):",
        "                if False:",
        (f"{STRANGE}one_row_for_several_images_is_not_repeated",),
    ),
    Fault(
        "features write where rows are added",
        DOOR,
        "None if labels is None else labels.clone())",
        "labels)",
        (f"{STRANGE}labels_that_features_write_to_decide_nothing",),
    ),
    Fault(
        "an encoder writes to the images that are encoded again",
        MAPPED,
        "encode(batch.clone())",
        "encode(batch)",
        (f"{STRANGE}an_image_that_an_encoder_fails_on_moves_no_other",),
    ),
    Fault(
        "an encoder leaves rows out",
        MAPPED,
        "        if rows.shape != (len(batch), *shape):",
        "        if False:",
        (f"{STRANGE}an_image_that_an_encoder_fails_on_moves_no_other",),
    ),
    Fault(
        "features are not tried on images of one class",
        SEPARATE,
        "(own_labels, torch.zeros_like(own_labels)):",
        "(own_labels,):",
        (f"{STRANGE}means_of_a_class_are_refused_however_many_classes_there_are",),
    ),
    Fault(
        "an answer has bits below its noise",
        DOOR,
        "value.to(torch.float32).to(parameters[name])",
        "value.to(parameters[name])",
        (f"{STRANGE}an_answer_has_no_bits_below_its_noise",),
    ),
    Fault(
        "a clip norm of nothing",
        ROW,
        "                if value < SMALLEST:",
        "                if False:",
        (f"{STRANGE}a_clip_norm_that_bounds_nothing_is_refused", f"{STRANGE}a_divisor_that_cannot_be_is_refused"),
    ),
    Fault(
        "a fork draws the same noise",
        SOURCE,
        "        if os.getpid() != self._process:",
        "        if False:",
        (f"{STRANGE}a_forked_process_has_no_door",),
    ),
    Fault(
        "a door answers after something was kept",
        DOOR,
        "        self._refused = True\n",
        "",
        (f"{STRANGE}a_door_that_refused_what_was_kept_stays_shut",),
    ),
    Fault(
        "words that change places are not seen",
        KEPT,
        "(joined * _weights(len(joined), tensor.device)).sum()",
        "joined.sum()",
        (f"{OF_KEPT}test_another_order_of_a_buffer_is_a_change",),
    ),
)
