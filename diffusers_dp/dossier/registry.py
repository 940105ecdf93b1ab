# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A draft entry for the registry of deployments of differential privacy (arXiv 2509.13509).

Names of fields and values are those of records in the registry's public data repository, and of an earlier version of
its schema, as read in November 2026. The newest version of the schema was not read: its own test must take the entry.
"""

from typing import Any


OPEN = "TO FILL IN"
HEAD = (
    "# Draft entry for the registry of deployments of differential privacy. Fields follow its public records,\n"
    f"# as read in November 2026. Fill in what says {OPEN!r}, and run the registry's own test before you send it.\n"
)


def registry_entry(found: dict[str, Any], *, is_dataset: bool) -> str:
    """Returns the entry in YAML.

    Args:
        found (`dict`): Contents of the dossier. Answers of the institution fill in what no receipt knows.
        is_dataset (`bool`): Whether the release is a data set; otherwise it is a model.
    """
    import yaml

    body = yaml.safe_dump(_entry(found, is_dataset), sort_keys=False, allow_unicode=True, width=110)
    return f"{HEAD}{body}"


def _entry(found: dict[str, Any], is_dataset: bool) -> dict[str, Any]:
    answers = {each["name"]: each["answer"] for each in found["form"]}
    release, protected, parameters = found["release"], found["protected"], found["parameters"]

    def open_or(name: str, what: str) -> str:
        return answers[name] or f"{OPEN}: {what}"

    unit, number = protected["unit"], protected["number"]
    public = ", ".join(name.replace("_", " ") for name in sorted(protected["public_facts"]))
    questions = "; ".join(
        f"{row['stage']}: {row['mechanism']}, noise multiplier {row['noise_multiplier']:.4g}, sample rate "
        f"{row['sampling_probability']:.4g}, {row['steps']} times"
        for row in found["asked"]
    )
    total = parameters["epsilon_of_all_releases"]
    earlier = "" if total is None else f" With earlier releases from the same data: epsilon {total:.4f}."
    return {
        "url_slug": f"{OPEN}: a short name for addresses",
        "deployment": {
            "basic": {
                "name": release["name"],
                "data_curators": [
                    {"data_curator_name": open_or("responsible", "the institution"), "data_curator_type": OPEN}
                ],
                "description": f"{'Images' if is_dataset else 'A model that draws images'}, made by "
                f"{release['method']} under differential privacy.",
                "intended_use": open_or("purpose", "what the release is for"),
                "data_product_type": "Synthetic data" if is_dataset else "Machine learning model",
                "data_product_region": OPEN,
                "data_product_sector": OPEN,
                "publication_date": release["created"],
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"Up to {number:,} units ({unit}), each of them used or contributing nothing.",
                "unprotected_quantities": f"Public facts: {public}."
                + "".join(f" {output}." for output in found["not_covered"]["outputs"]),
            },
            "privacy_loss": {
                "privacy_unit": unit,
                "privacy_unit_details": f"Adjacent data sets differ in one {unit}, which contributes nothing in one "
                "of them (zero-out). The number of units is public.",
                "privacy_parameters": {"epsilon": parameters["epsilon"], "delta": parameters["delta"]},
                "privacy_parameters_details": f"By the accountant {parameters['accountant'].upper()}, over all "
                f"questions.{earlier} {found['attacker']['in_words']}",
            },
            "deployment_model": {
                "model_name": "Central",
                "actors": f"The house holds the images and is trusted. {open_or('access', 'who can read the images')}",
                "release_type": f"{OPEN}: one release or many",
                "release_type_details": open_or("other_releases", "other results from the same images"),
                "access_type": "Non-interactive",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": open_or(
                    "choices", "how settings were chosen, and whether the private images were looked at for it"
                ),
                "mechanisms": f"{questions}. Made with {release['made_with']}; status {release['status']}.",
                "composition": f"Sequential, by {parameters['accountant'].upper()}; classes of one question are "
                "parallel.",
                "post_processing": "Everything else is computed from the noisy answers and from public facts.",
                "justification": open_or("parameters", "why epsilon and delta are acceptable"),
            },
            "administrative": {
                "evidence_sources": {
                    "receipt": {
                        "evidence_source_type": f"{OPEN}: a kind of the registry",
                        "misc": {"title": f"privacy_receipt.json, SHA-256 {release['receipt_sha256']}", "url": OPEN},
                    }
                },
                "status": "Draft",
                "registry_authors": [OPEN],
                "tier": 3,
            },
        },
    }
