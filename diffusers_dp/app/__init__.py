# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The page of `diffusers-dp app`: shows the guarantee of released models and draws from them.

An address (`?model=NAME`) shows one release. `page.py` lays the page out, `answers.py` answers what a visitor asks,
and `server.py` serves it; the other files know nothing of Gradio. Only a model's own process loads torch.
"""
