# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The dossier: what the person who decides about a release reads, fills in and signs. Loads no torch."""
