# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Faults that would break the guarantee, as they happened elsewhere or easily could. `README.md` says which tests
answer for what."""

from .faults_of_attacks import ATTACKS, DOSSIERS, INTRUDERS, SAID_OF_RELEASES
from .faults_of_bands import BANDS
from .faults_of_books import DATA_SETS, LEDGER_FAULTS, RELEASED
from .faults_of_crashes import CRASHES
from .faults_of_doors import ONE_DOOR, STATED_FILES, UNSEEN
from .faults_of_embeddings import EMBEDDINGS
from .faults_of_evaluation import EVALUATION
from .faults_of_exact_noise import EXACT
from .faults_of_gans import GANS
from .faults_of_going_public import GOING_PUBLIC
from .faults_of_images import IMAGES
from .faults_of_latents import LATENT_FAULTS, LATENT_RELEASES
from .faults_of_layers import LAYERS
from .faults_of_mechanisms import MECHANISMS
from .faults_of_no_guarantee import WITHOUT_GUARANTEE
from .faults_of_noise import CELLS, NOISE, RANDOM_SOURCE, SAMPLES
from .faults_of_one_image import CHOICES, KEPT_STATE, STRANGE_FEATURES
from .faults_of_processes import PROCESSES
from .faults_of_rows import PUBLIC_INPUTS, ROWS
from .faults_of_strangers import STRANGERS
from .faults_of_sums import CLIPPING, DIVISORS, ENGINE_FAULTS, LARGE_SUMS
from .faults_of_teachers import TEACHERS
from .faults_of_totals import FORGED, METHODS, RESUMED, TOTALS
from .faults_of_units import RELEASES, UNITS
from .faults_of_votes import EVOLVED


FAULTS = (
    *ATTACKS,
    *DOSSIERS,
    *SAID_OF_RELEASES,
    *INTRUDERS,
    *NOISE,
    *CELLS,
    *RANDOM_SOURCE,
    *SAMPLES,
    *BANDS,
    *MECHANISMS,
    *IMAGES,
    *CLIPPING,
    *ENGINE_FAULTS,
    *LAYERS,
    *LARGE_SUMS,
    *DIVISORS,
    *EMBEDDINGS,
    *EVOLVED,
    *CHOICES,
    *KEPT_STATE,
    *STRANGE_FEATURES,
    *GANS,
    *LATENT_FAULTS,
    *LATENT_RELEASES,
    *LEDGER_FAULTS,
    *DATA_SETS,
    *RELEASED,
    *TEACHERS,
    *TOTALS,
    *RESUMED,
    *FORGED,
    *METHODS,
    *UNITS,
    *RELEASES,
    *EVALUATION,
    *EXACT,
    *ROWS,
    *PUBLIC_INPUTS,
    *GOING_PUBLIC,
    *STRANGERS,
    *WITHOUT_GUARANTEE,
    *PROCESSES,
    *CRASHES,
    *ONE_DOOR,
    *STATED_FILES,
    *UNSEEN,
)
