# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Words of the field that the dossier uses, each explained in a sentence on the page."""

import re


#: By the word as the page lists it: a pattern of its forms, and the explanation.
TERMS: dict[str, tuple[str, str]] = {
    "accountant": (r"accountant", "Method that adds up the cost of all questions: PLD, RDP or PRV."),
    "audit": (r"audit\w*", "Attempt to break the program or the release, with a verdict. It proves no protection."),
    "banded gaussian": (
        r"banded gaussian", "Question to groups that take turns, answered with noise that is correlated over time."
    ),
    "canary": (r"canar(?:y|ies)", "Planted record with the largest effect, which an audit tries to find again."),
    "clip norm": (r"clip norm", "Largest length that one unit's contribution may have. Longer ones are scaled down."),
    "composition": (r"compos\w+", "Adding up of the cost of several questions about the same images."),
    "confidence": (r"confidence", "How often a bound that was measured in this way would be right."),
    "delta": (r"delta", "Probability with which the limit that epsilon states may fail."),
    "differential privacy": (
        r"differential(?:ly)? priva\w+",
        "Promise that a result is almost as likely with any one unit as without it. Noise makes it true.",
    ),
    "DP-SGD": (r"dp[- _]sgd", "Training in steps, each of which sees a noisy sum of scaled contributions."),
    "epsilon": (
        r"epsilon", "Limit on what anybody can learn about one unit: it changes the probability of any result by at "
        "most a factor of e to this power. Smaller is better."
    ),
    "false-positive rate": (r"false[- ]positive\w*", "Share of the unused units that an attack wrongly accuses."),
    "floating point": (r"floating[- ]point", "Way in which computers round numbers. Rounded noise can leak."),
    "formal bound": (
        r"formal bound", "Lower bound on epsilon that follows from an audit's hits, with its confidence, whatever the "
        "program does."
    ),
    "gaussian": (r"gaussian", "Noise from the bell curve, added to the answer of a question."),
    "guarantee": (r"guarantee\w*", "The limit of epsilon and delta, which holds against every attack."),
    "hyper-parameter": (r"hyper-?parameters?", "Setting of a training, such as its number of steps."),
    "leaky output": (r"leaky outputs?", "Output of the training that the guarantee does not cover, with its name."),
    "ledger": (r"ledger", "File of the house with a row for each question, written before the question is asked."),
    "mechanism": (r"mechanisms?", "Way in which a question is answered with noise."),
    "membership advantage": (
        r"membership advantage", "Largest difference between the share of used units that an attack finds and the "
        "share of unused ones that it accuses."
    ),
    "motivated intruder": (
        r"motivated intruder", "Somebody without special skills who tries to find a person in the data."
    ),
    "noise multiplier": (r"noise multiplier", "Strength of the noise, in clip norms. More noise protects better."),
    "normaliser": (r"normaliser", "Public number by which a noisy sum is divided."),
    "PLD": (r"pld", "Privacy loss distribution: the exact way to add up questions, used for all bounds here."),
    "poisson gaussian": (r"poisson gaussian", "Noisy answer about a Poisson sample."),
    "Poisson sample": (r"poisson[- ]sampl\w+", "Random selection: each unit takes part by a coin that nobody sees."),
    "proven": (r"proven", "With a proof that the limit holds, under the assumptions that this page lists."),
    "PRV": (r"prv", "Privacy random variables: another way to add up questions."),
    "public facts": (r"public facts?", "What the receipt states about the images without protecting it."),
    "RDP": (r"rdp", "Rényi differential privacy: an older and looser way to add up questions."),
    "receipt": (r"receipt", "File of the release that lists every question. Anybody can recompute epsilon from it."),
    "reconstruction": (r"reconstruct\w*", "Attack that tries to recover the content of a unit."),
    "release": (r"releases?", "The folder that may leave the house, or its publication."),
    "sample rate": (r"sample rate", "Probability with which one unit takes part in one question."),
    "seed": (r"seeds?", "Number from which a computer makes its random numbers. Who knows it can remove the noise."),
    "sensitivity": (r"sensitivity", "Largest change of an answer by one unit."),
    "SHA-256": (r"sha-?256", "Fingerprint of a file: another file has another one."),
    "signature": (r"sign(?:ed|ature|atures|er)", "Proof that the holder of a key vouches for a file."),
    "synthetic": (r"synthetic", "Drawn by a model, and not taken by a camera."),
    "true-positive rate": (r"true[- ]positive\w*", "Share of the used units that an attack finds."),
    "unit": (r"units?", "What is protected as a whole: one image, or all images of one person."),
    "VALID, INCONCLUSIVE": (
        r"valid|inconclusive", "Verdicts of an audit. VALID: it notices two versions that were broken on purpose, and "
        "found no fault in the honest one."
    ),
    "zero-out": (
        r"zero[- _]out", "Comparison with data in which one unit contributes nothing; the number of units stays."
    ),
}  # fmt: skip


def explained(text: str) -> list[tuple[str, str]]:
    """Returns the terms that occur in a text, each with its explanation, by name."""
    found = {
        name: words for name, (form, words) in TERMS.items() if re.search(rf"\b(?:{form})\b", text, re.IGNORECASE)
    }
    # What explanations use is explained, too.
    while more := {
        name: words
        for name, (form, words) in TERMS.items()
        if name not in found and re.search(rf"\b(?:{form})\b", " ".join(found.values()), re.IGNORECASE)
    }:
        found |= more
    return sorted(found.items(), key=lambda item: item[0].lower())
