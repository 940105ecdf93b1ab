# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The page of `app.py`: shows the guarantee of released models and draws from them.

`limits.py`, `shelf.py`, `drawing.py`, `downloads.py`, `budget.py`, `choice.py` and `views.py` are independent
of Gradio; `page.py` builds the page from them, and `server.py` serves it. torch is loaded in the background.
"""

from .server import main


__all__ = ["main"]
