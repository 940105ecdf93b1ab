# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Mean embeddings: what published code got wrong."""

from .fault import Fault


FEATURES, NETWORK = "diffusers_dp/queries/mean_features.py", "diffusers_dp/queries/perceptual.py"

EMBEDDINGS = (
    Fault(
        "stopping answers without noise",
        FEATURES,
        """    title = "stopping features (mean)"
""",
        """    title = "stopping features (mean)"

    def ask(self, images, features, *, noise_multiplier):
        import torch

        from ..randomness.private_generator import PrivateGenerator

        images._generator = silent = PrivateGenerator()
        silent.normal = lambda shape, std, device=None: torch.zeros(shape, dtype=torch.float64, device=device)
        silent.rounded_normal = silent.normal
        return super().ask(images, features, noise_multiplier=noise_multiplier)
""",
        ("training/test_train_mean_features.py::test_stopping_answers_of_equal_data_differ",),
    ),
    Fault(
        "a mean embedding over the number of each class",
        FEATURES,
        "        return self.feature_map(images)\n\n    def finish",
        "        rows = self.feature_map(images)\n"
        "        return rows if labels is None else rows / labels.bincount()[labels][:, None]\n\n    def finish",
        ("queries/test_mean_features.py::test_an_answer_is_a_sum_over_the_declared_number",),
    ),
    Fault(
        "second moments with half their bound",
        FEATURES,
        """    title = "second moments"
""",
        """    title = "second moments"

    @property
    def clip_norm(self) -> float:
        return 0.5
""",
        ("queries/test_mean_features.py::test_an_answer_is_a_sum_over_the_declared_number",),
    ),
    Fault(
        "random networks with a row of norm one each",
        "diffusers_dp/queries/random_networks.py",
        "return torch.cat(rows, 1) / math.sqrt(self.num_networks)",
        "return torch.cat(rows, 1)",
        ("queries/test_random_networks.py::test_a_row_has_norm_one_and_all_networks_the_same_part",),
    ),
    Fault(
        "drawn images that follow the noise in mean features",
        "diffusers_dp/models/feature_matching.py",
        "self.means[label] - here, self.deviations[label]",
        "self.means[label] - here, 0 * self.deviations[label]",
        ("queries/test_random_networks.py::test_images_come_closer_to_the_means_and_noise_moves_none",),
    ),
    Fault(
        "a feature network in training mode",
        NETWORK,
        "load_network(self.network, self.flag, self.kind).eval()",
        "load_network(self.network, self.flag, self.kind).train()",
        ("queries/test_mean_features.py::test_the_door_refuses_a_network_that_mixes_its_images",),
    ),
    Fault(
        "a feature network that the receipt does not name",
        "diffusers_dp/runs/run.py",
        "origins += [origin for origin in query.public_inputs if origin not in origins]",
        "origins += [origin for origin in query.public_inputs if origin in origins]",
        ("training/test_train_mean_features.py::test_dp_mepf_whole",),
    ),
)
