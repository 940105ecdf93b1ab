# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Words and bounds that many rooms share. `verify.py` stands alone and has copies of them; a test compares both."""

import re


RECEIPT_NAME, CARD_NAME, SIGNATURE_NAME = "privacy_receipt.json", "README.md", "privacy_receipt.json.sig"
ACCOUNTANTS = ("pld", "rdp", "prv")
#: Pattern of a unit of privacy: no stray spaces.
UNIT = r"(?! |.*  )[\w .-]{1,100}(?<! )"
NO_GUARANTEE, WITHOUT = "no_guarantee", "trained WITHOUT any privacy guarantee (epsilon is infinite)"
NO_CARD = f"{CARD_NAME} does not carry the guarantee of the receipt: it lies outside the hashes"
RELEASED = "release of diffusers_dp"  # kind of a public input
ADAPTERS = "DPLatentAdapters"  # class of a release in `model_index.json`
PICKLE_SUFFIXES = (".bin", ".ckpt", ".dill", ".joblib", ".npy", ".npz", ".pickle", ".pkl", ".pt", ".pth")
#: What a base may be made of: in folders of components, and no pickle, no program, no way out of the folder.
BASE_FILE = re.compile(
    r"(?:[a-z][a-z0-9_]*/)?[A-Za-z0-9][\w-]*(?:\.safetensors\.index)?\.(?:json|txt|model|safetensors)"
)
FORMAT = "diffusers_dp/1"  # of all files that this library writes and reads again
MOST_EVENTS, MOST_FILES = 2_000, 10_000  # of a release
MOST_EPSILON = 1000  # the largest target
QUICK_ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # with them the ledger decides how wide PLD's grid must be
MOST_BY_RDP = 5900  # PLD is not computed beyond, for its grid would be too wide
LARGE_DELTA = 1e-4  # above it delta is spoken of: it is too likely for something that must not happen
