# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Several processes."""

from .fault import DOOR, PASSAGES, Fault


SUMS = "diffusers_dp/distributed/processes.py"
FINISHED = "distributed/test_processes.py::test_the_query_about_a_finished_model_is_that_of_one_process[2]"

PROCESSES = (
    Fault(
        "each process adds the noise of a gradient",
        PASSAGES,
        "        if processes.is_first:\n            std",
        "        if processes.is_first or normaliser != 1:\n            std",
        ("distributed/test_processes.py::test_the_noise_of_a_sum_is_one_noise[2]",),
    ),
    Fault(
        "each process adds the noise of an answer",
        PASSAGES,
        "        if processes.is_first:\n            std",
        "        if processes.is_first or normaliser == 1:\n            std",
        ("distributed/test_processes.py::test_noise_of_every_way_to_ask",),
    ),
    Fault(
        "all processes sample by the same seed",
        DOOR,
        "self._generator = PrivateGenerator(exact=exact)",
        "self._generator = PrivateGenerator(bytes(16))",
        ("distributed/test_processes.py::test_samples_of_all_processes_together_are_poisson_samples[2]",),
    ),
    Fault(
        "an image lies in two processes",
        "diffusers_dp/data/shares.py",
        "mine: slice | np.ndarray = slice(index, None, count)",
        "mine: slice | np.ndarray = slice(max(0, index - 1), None, count)",
        ("distributed/test_processes.py::test_samples_of_all_processes_together_are_poisson_samples[2]",),
    ),
    Fault(
        "the images of a unit lie in two processes",
        "diffusers_dp/data/shares.py",
        "        mine = np.flatnonzero(arrays.units % count == index)\n",
        "        mine = np.flatnonzero(np.arange(len(arrays.units)) % count == index)\n",
        ("distributed/test_processes.py::test_an_image_lies_in_one_process_with_all_of_its_unit[2]",),
    ),
    Fault(
        "each process decodes the data set that it sees, which may be ordered otherwise",
        "diffusers_dp/data/shares.py",
        "share_of(open_images(cache_dir, str(made_of)),",
        "share_of(load(),",
        ("distributed/test_processes.py::test_an_image_lies_in_one_process_with_all_of_its_unit[2]",),
    ),
    Fault(
        "a process whose sample is empty leaves the step out",
        DOOR,
        "        batches = self._records.batches_for_gradients(self._passage.units(position), size, "
        "self._generator)\n",
        "        sample = self._passage.units(position)\n"
        "        if not len(sample) and not self.processes.is_first:\n"
        "            return {name: torch.zeros_like(parameter) for name, parameter in "
        "model.named_parameters()}\n"
        "        batches = self._records.batches_for_gradients(sample, size, self._generator)\n",
        ("distributed/test_processes.py::test_all_processes_get_the_same_bits[2]",),
    ),
    Fault(
        "the mean over processes for their sum",
        SUMS,
        "                distributed.all_reduce(bucket)\n",
        "                distributed.all_reduce(bucket)\n                bucket /= self.count\n",
        ("distributed/test_processes.py::test_the_noise_of_a_sum_is_one_noise[2]",),
    ),
    Fault(
        "a refusal of the ledger stops the first process alone",
        SUMS,
        "                outcome = [(None, refusal)]\n",
        "                outcome = [(None, None)]\n",
        ("distributed/test_processes.py::test_a_refusal_of_the_ledger_stops_all_and_is_told_once[2]",),
    ),
    Fault(
        "each process compares a checkpoint with the ledger for itself",
        "diffusers_dp/runs/checkpoints.py",
        "processes.on_first(lambda: _open_checkpoint(Path(checkpoint), unet, ledger_position))",
        "_open_checkpoint(Path(checkpoint), unet, ledger_position)",
        ("distributed/test_processes.py::test_all_go_on_from_a_checkpoint_or_it_is_refused_once[2]",),
    ),
    Fault(
        "each process steps with its own sum",
        SUMS,
        "                distributed.all_reduce(bucket)\n",
        "                distributed.broadcast(torch.zeros(1), src=0)\n",
        ("distributed/test_processes.py::test_sums_are_those_of_one_process[2]",),
    ),
    Fault(
        "what is shared comes back process by process",
        SUMS,
        "        return [outcomes[i % self.count][0][i // self.count] for i in range(len(parts))]\n",
        "        return [result for results, _ in outcomes for result in results]\n",
        (FINISHED,),
    ),
    Fault(
        "each process does everybody's part and keeps its own",
        SUMS,
        "[work(part) for part in parts[self.index :: self.count]], None",
        "[work(part) for part in parts][self.index :: self.count], None",
        (FINISHED,),
    ),
    Fault(
        "the second process asks its images about a classifier of its own",
        "diffusers_dp/evaluation/charged.py",
        "            if epochs == 0 or not processes.is_first:\n                self.classifier.prepare(train)\n"
        "            processes.same_weights(self.classifier.network)\n",
        "            if not processes.is_first:\n                self.classifier.fit(train, validation)\n",
        (FINISHED,),
    ),
    Fault(
        "images drawn for the evaluation are those of the first batch again",
        "diffusers_dp/sampling/drawing.py",
        "generators(drawing.seed, part)",
        "generators(drawing.seed, range(len(part)))",
        ("evaluation/test_charged.py::test_images_are_drawn_by_the_seed_and_classes_take_turns",),
    ),
    Fault(
        "the others go on with the work that they were sent first",
        "diffusers_dp/distributed/worker_pool.py",
        "            if sent is not None:\n",
        "            if sent is not None and not pickled:\n",
        ("distributed/test_worker_pool.py::test_several_processes_find_what_one_finds[2]",),
    ),
    Fault(
        "what another process refuses is taken for a result",
        SUMS,
        "        for _, error in outcomes:\n            if error is not None:\n",
        "        for _, error in outcomes:\n            if error is not None and not self.is_first:\n",
        ("distributed/test_worker_pool.py::test_what_ends_one_process_ends_all_with_one_sentence[full]",),
    ),
)
