# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Noise, the private source of randomness, and Poisson samples."""

from .fault import DOOR, PASSAGES, RANDOMNESS, SAMPLING, STEP, Fault


NOISE = (
    Fault(
        "noise of a gradient halved",
        DOOR,
        "clip_norm=max_grad_norm, normaliser=normaliser, position=position",
        "clip_norm=max_grad_norm / 2, normaliser=normaliser, position=position",
        ("privacy/test_noise.py::test_noise_of_a_gradient_has_the_stated_standard_deviation",),
    ),
    Fault(
        "noise of an answer halved",
        DOOR,
        "passage.answer({name: totals.pop(0)}, clip_norm=clip_norm, normaliser=1)[name]",
        "passage.answer({name: totals.pop(0)}, clip_norm=clip_norm / 2, normaliser=1)[name]",
        ("privacy/test_noise.py::test_noise_of_an_answer_has_the_stated_standard_deviation",),
    ),
    Fault(
        "noise 2 % too small",
        RANDOMNESS,
        "return torch.from_numpy(np.asarray(noise)).mul_(std).to(device)",
        "return torch.from_numpy(np.asarray(noise)).mul_(0.98 * std).to(device)",
        ("privacy/test_noise.py::test_noise_of_an_answer_has_the_stated_standard_deviation",),
    ),
    Fault(
        "variance given for standard deviation",
        PASSAGES,
        "            std = sigma * self.mechanism.sensitivity(clip_norm)\n",
        "            std = (sigma * self.mechanism.sensitivity(clip_norm)) ** 2\n",
        ("privacy/test_noise.py::test_noise_of_a_gradient_has_the_stated_standard_deviation",),
    ),
    Fault(
        "sensitivity left out of the noise",
        PASSAGES,
        "            std = sigma * self.mechanism.sensitivity(clip_norm)\n",
        "            std = sigma\n",
        ("privacy/test_noise.py::test_noise_of_an_answer_has_the_stated_standard_deviation",),
    ),
    Fault(
        "noise for each physical batch",
        STEP,
        "            total[name] = total[name].add_(part) if name in total else part\n",
        "            part = part + generator.normal(part.shape, max_grad_norm)\n"
        "            total[name] = total[name].add_(part) if name in total else part\n",
        ("privacy/test_noise.py::test_a_step_draws_one_sample_and_one_noise_for_each_parameter",),
    ),
    Fault(
        "noise drawn once and used at each step",
        RANDOMNESS,
        "noise = self._generator.standard_normal(tuple(shape), dtype=np.float32)",
        "kept = self.__dict__.setdefault('_kept', {})\n"
        "        if tuple(shape) not in kept:\n"
        "            kept[tuple(shape)] = self._generator.standard_normal(tuple(shape), dtype=np.float32)\n"
        "        noise = kept[tuple(shape)].copy()",
        ("privacy/test_noise.py::test_noise_of_the_door_is_white",),
    ),
    Fault(
        "the same noise for each parameter",
        STEP,
        "    for value in total.values():\n"
        "        value.add_(generator.normal(value.shape, std, value.device)).div_(normaliser)\n",
        "    most = max(value.numel() for value in total.values())\n"
        "    noise = generator.normal((most,), std)\n"
        "    for value in total.values():\n"
        "        value.add_(noise[: value.numel()].view(value.shape)).div_(normaliser)\n",
        ("gradients/test_step.py::test_noise_is_white_between_steps_and_parameters",),
    ),
    Fault(
        "noise of a gradient from torch's generator, under the public seed",
        STEP,
        "value.add_(generator.normal(value.shape, std, value.device))",
        "value.add_(std * torch.randn(value.shape))",
        ("privacy/test_noise.py::test_a_run_repeated_under_the_same_seed_has_other_noise",),
    ),
    Fault(
        "noise of an answer from torch's generator, under the public seed",
        DOOR,
        "            covered = passage.answer({name: totals.pop(0)}, clip_norm=clip_norm, normaliser=1)[name]",
        "            total = totals.pop(0)\n"
        "            covered = total + row.noise_multiplier * clip_norm * torch.randn(total.shape)",
        ("privacy/test_noise.py::test_a_run_repeated_under_the_same_seed_has_other_noise",),
    ),
    Fault(
        "no noise where drawing it fails",
        STEP,
        "    for value in total.values():\n"
        "        value.add_(generator.normal(value.shape, std, value.device)).div_(normaliser)\n",
        "    try:\n"
        "        noise = [generator.normal(value.shape, std, value.device) for value in total.values()]\n"
        "    except Exception:\n"
        "        noise = [0.0] * len(total)\n"
        "    for value, drawn in zip(total.values(), noise):\n"
        "        value.add_(drawn).div_(normaliser)\n",
        ("privacy/test_noise.py::test_an_exception_in_noise_clipping_or_sampling_ends_everything",),
    ),
    Fault(
        "an empty sample gets no noise",
        STEP,
        "    for value in total.values():\n        value.add_(",
        "    if not any(value.any() for value in total.values()):\n        return total\n"
        "    for value in total.values():\n        value.add_(",
        ("gradients/test_step.py::test_no_image_at_all_is_zero_plus_noise",),
    ),
    Fault(
        "uniform noise of the same standard deviation",
        RANDOMNESS,
        "noise = self._generator.standard_normal(tuple(shape), dtype=np.float32)",
        "noise = ((self._generator.random(tuple(shape)) - 0.5) * 12**0.5).astype(np.float32)",
        ("gradients/test_step.py::test_noise_is_added_exactly_once",),
    ),
    Fault(
        "noise without tails",
        RANDOMNESS,
        "noise = self._generator.standard_normal(tuple(shape), dtype=np.float32)",
        "noise = self._generator.standard_normal(tuple(shape), dtype=np.float32).clip(-4, 4)",
        ("privacy/test_noise.py::test_noise_of_an_answer_has_the_stated_standard_deviation",),
    ),
    Fault(
        "noise of eight bits",
        RANDOMNESS,
        "return torch.from_numpy(np.asarray(noise)).mul_(std).to(device)",
        "return torch.from_numpy(np.asarray(noise)).mul_(std).bfloat16().float().to(device)",
        ("privacy/test_noise.py::test_noise_of_an_answer_has_the_stated_standard_deviation",),
    ),
    Fault(
        "noise averaged over the K draws of an image",
        DOOR,
        "clip_norm=max_grad_norm, normaliser=normaliser, position=position",
        "clip_norm=max_grad_norm / noise_multiplicity, normaliser=normaliser, position=position",
        ("privacy/test_noise.py::test_a_step_draws_one_sample_and_one_noise_for_each_parameter",),
    ),
    Fault(
        "the same seed for every draw on CUDA",
        RANDOMNESS,
        'manual_seed(int.from_bytes(os.urandom(8), "little", signed=True))',
        "manual_seed(torch.initial_seed())",
        ("privacy/test_noise.py::test_every_draw_on_cuda_has_a_fresh_secret_seed",),
    ),
    Fault(
        "noise divided by the number of classes",
        DOOR,
        "passage.answer({name: totals.pop(0)}, clip_norm=clip_norm, normaliser=1)[name]",
        "passage.answer({name: totals.pop(0)}, clip_norm=clip_norm / num_rows, normaliser=1)[name]",
        ("privacy/test_noise.py::test_noise_of_an_answer_has_the_stated_standard_deviation",),
    ),
)

CELLS = (
    Fault(
        "noise of the query about a finished model halved",
        "diffusers_dp/evaluation/charged.py",
        "self.features, noise_multiplier=row.noise_multiplier)",
        "self.features, noise_multiplier=row.noise_multiplier / 2)",
        ("privacy/test_noise_cells.py::test_noise_of_every_way_to_ask",),
    ),
    Fault(
        "no noise on the class embedding",
        STEP,
        "    for value in total.values():\n        value.add_(generator.normal(value.shape, std, value",
        "    for name, value in total.items():\n"
        "        value.add_(generator.normal(value.shape, std * ('class_embedding' not in name), value",
        ("privacy/test_noise_cells.py::test_noise_of_every_way_to_ask",),
    ),
    Fault(
        "one draw for all taps of a kernel",
        STEP,
        "value.add_(generator.normal(value.shape, std, value.device))",
        "value.add_(generator.normal(value.shape[:2] + (1, 1) * (value.dim() == 4), std, value.device))",
        ("privacy/test_noise_cells.py::test_noise_of_every_way_to_ask",),
    ),
    Fault(
        "each class has the noise of the first",
        DOOR,
        "            covered = passage.answer({name: totals.pop(0)}, clip_norm=clip_norm, normaliser=1)[name]",
        "            total = totals.pop(0)\n"
        "            first = passage.answer({name: total[:1].clone()}, clip_norm=clip_norm, "
        "normaliser=1)[name]\n"
        "            covered = total + (first - total[:1])",
        ("privacy/test_noise_cells.py::test_noise_of_every_way_to_ask",),
    ),
    Fault(
        "noise halved on CUDA",
        RANDOMNESS,
        "device=device).mul_(std)",
        "device=device).mul_(std / 2)",
        ("privacy/test_noise_cells.py::test_noise_on_cuda_has_the_stated_standard_deviation_and_shape",),
    ),
    Fault(
        "the audit looks at images where a run has units",
        "diffusers_dp/audit/probes.py",
        "units = None if run.max_images_per_unit is None else numbers",
        "units = None",
        ("audit/test_preflight.py::test_noise_that_is_halved_where_units_are_used_stops_the_run",),
    ),
)

RANDOM_SOURCE = (
    Fault(
        "noise and samples are two streams under one key",
        RANDOMNESS,
        "        return self._generator.random(size)",
        "        if '_second' not in self.__dict__:\n"
        "            self._second = "
        "np.random.Generator(np.random.Philox(key=self._generator.bit_generator.state['state']['key']))\n        "
        "return self._second.random(size)",
        ("privacy/test_noise_cells.py::test_noise_and_samples_are_one_stream",),
    ),
    Fault(
        "the key from a clock",
        RANDOMNESS,
        "key = os.urandom(KEY_BYTES) if key is None else key",
        "key = __import__('time').time_ns().to_bytes(KEY_BYTES, 'little') if key is None else key",
        ("privacy/test_noise_cells.py::test_the_key_is_the_entropy_of_the_operating_system_and_nothing_else",),
    ),
    Fault(
        "noise from a pool of a million numbers",
        RANDOMNESS,
        "        noise = self._generator.standard_normal(tuple(shape), dtype=np.float32)",
        "        rng = np.random.Generator(np.random.Philox(key=7))\n"
        "        noise = rng.permutation(2**20)[np.arange(np.prod(shape, dtype=int)) % 2**20].reshape(tuple(shape))\n"
        "        noise = np.asarray((noise - 2**19) / 302_700, dtype=np.float32)",
        ("privacy/test_noise.py::test_noise_does_not_run_out",),
    ),
    Fault(
        "the seed of a draw on CUDA from a clock",
        RANDOMNESS,
        'manual_seed(int.from_bytes(os.urandom(8), "little", signed=True))',
        "manual_seed(__import__('time').time_ns() << 2)",
        ("privacy/test_noise_cells.py::test_noise_on_cuda_has_the_stated_standard_deviation_and_shape",),
    ),
    Fault(
        "the seed of torch's draws in a loss from a clock",
        DOOR,
        'reseed(int.from_bytes(os.urandom(8), "little", signed=True))',
        "reseed(__import__('time').time_ns())",
        ("privacy/test_noise_cells.py::test_torch_s_own_draws_of_a_loss_follow_the_entropy_of_the_operating_system",),
    ),
    Fault(
        "a constant key",
        RANDOMNESS,
        "key = os.urandom(KEY_BYTES) if key is None else key",
        "key = bytes(KEY_BYTES) if key is None else key",
        ("gradients/test_step.py::test_seeds_do_not_reach_the_private_source",),
    ),
    Fault(
        "the key from the public seed",
        RANDOMNESS,
        "key = os.urandom(KEY_BYTES) if key is None else key",
        "key = torch.initial_seed().to_bytes(KEY_BYTES, 'little') if key is None else key",
        ("gradients/test_step.py::test_seeds_do_not_reach_the_private_source",),
    ),
    Fault(
        "a key of 32 bits",
        RANDOMNESS,
        "np.random.Philox(key=np.frombuffer(key, dtype=np.uint64))",
        "np.random.Philox(key=int.from_bytes(key[:4], 'little'))",
        ("gradients/test_step.py::test_every_bit_of_the_key_counts",),
    ),
    Fault(
        "draws of the loss under the public seed",
        DOOR,
        '        reseed(int.from_bytes(os.urandom(8), "little", signed=True))\n        yield',
        "        yield",
        ("privacy/test_sensitive.py::test_draws_of_the_loss_are_secret_and_leave_the_public_seed_alone",),
    ),
    Fault(
        "the private source can be pickled",
        RANDOMNESS,
        "    def __reduce__(self):",
        "    def never_called(self):",
        ("gradients/test_step.py::test_the_private_source_is_never_serialised",),
    ),
    Fault(
        "a checkpoint holds the state of a generator",
        "diffusers_dp/runs/checkpoints.py",
        '    tensors = {"unet": unet.state_dict(), "ema": shadows, "optimizer": moments}',
        '    tensors = {"unet": unet.state_dict(), "ema": shadows, "optimizer": moments}\n'
        '    tensors["unet"]["_extra"] = torch.get_rng_state()',
        ("runs/test_checkpointing.py::TestContent",),
    ),
)

SAMPLES = (
    Fault(
        "samples of a fixed size",
        SAMPLING,
        "torch.from_numpy(np.concatenate(chunks))",
        "torch.from_numpy(generator.uniform(num_records).argsort()[: round(num_records * sample_rate)]).sort().values",
        ("gradients/test_step.py::test_poisson_sampling_has_the_dispersion_of_independent_draws",),
    ),
    Fault(
        "a shuffled order",
        SAMPLING,
        "    chunks = []\n",
        "    left = generator.__dict__.setdefault('_left', [])\n"
        "    size = max(1, round(num_records * sample_rate))\n"
        "    if len(left) < size:\n"
        "        left[:] = generator.uniform(num_records).argsort().tolist()\n"
        "    return torch.tensor([left.pop() for _ in range(size)]).sort().values\n"
        "    chunks = []\n",
        ("gradients/test_step.py::test_poisson_sampling_has_the_dispersion_of_independent_draws",),
    ),
    Fault(
        "the records at the seams of chunks are drawn twice",
        SAMPLING,
        "        taken = generator.uniform(min(_CHUNK, num_records - start)) < sample_rate",
        "        taken = generator.uniform(min(_CHUNK + 1, num_records - start)) < sample_rate",
        ("gradients/test_step.py::test_poisson_samples_do_not_depend_on_the_size_of_chunks",),
    ),
    Fault(
        "the records at the seams of chunks are never drawn",
        SAMPLING,
        "        taken = generator.uniform(min(_CHUNK, num_records - start)) < sample_rate",
        "        taken = generator.uniform(min(_CHUNK, num_records - start))[: _CHUNK - 1] < sample_rate",
        ("gradients/test_step.py::test_poisson_samples_do_not_depend_on_the_size_of_chunks",),
    ),
    Fault(
        "every chunk of records has the sample of the first",
        SAMPLING,
        "        chunks.append(start + np.flatnonzero(taken))",
        "        chunks.append(np.flatnonzero(taken) if not chunks else start + chunks[0])",
        ("gradients/test_step.py::test_poisson_samples_do_not_depend_on_the_size_of_chunks",),
    ),
    Fault(
        "steps sample at twice the rate that the ledger holds",
        PASSAGES,
        "        return poisson_sample(self.records.own_units, self.mechanism.sampling_probability, self.generator)\n",
        "        return poisson_sample(self.records.own_units, min(1.0, 2 * "
        "self.mechanism.sampling_probability), self.generator)\n",
        ("privacy/test_noise.py::test_the_door_takes_poisson_samples_at_the_stated_rate",),
    ),
    Fault(
        "the same sample at each step",
        PASSAGES,
        "        return poisson_sample(self.records.own_units, self.mechanism.sampling_probability, self.generator)\n",
        "        return poisson_sample(self.records.own_units, self.mechanism.sampling_probability, "
        "PrivateGenerator(bytes(16)))\n",
        ("privacy/test_noise.py::test_the_door_takes_poisson_samples_at_the_stated_rate",),
    ),
    Fault(
        "a query samples everybody",
        DOOR,
        "            batches = records.batches_for_query(passage.units(0), size,",
        "            batches = records.batches_for_query(torch.arange(records.own_units), size,",
        ("privacy/test_noise.py::test_the_door_takes_poisson_samples_at_the_stated_rate",),
    ),
    Fault(
        "one sample for all repeats of a query",
        DOOR,
        "            batches = records.batches_for_query(passage.units(0), size,",
        "            if 'sample' not in vars(passage):\n"
        "                passage.sample = passage.units(0)\n"
        "            batches = records.batches_for_query(passage.sample, size,",
        ("privacy/test_noise.py::test_an_answer_draws_one_sample_and_one_noise_each_time_it_is_asked",),
    ),
    Fault(
        "the sample comes from the images that are there",
        PASSAGES,
        "        return poisson_sample(self.records.own_units, self.mechanism.sampling_probability, self.generator)\n",
        "        return poisson_sample(len(self.records.images), self.mechanism.sampling_probability, "
        "self.generator)\n",
        ("privacy/test_sensitive.py::test_records_that_are_absent_keep_their_place",),
    ),
)
