# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The page of `app.py`: draw from released models, and see their guarantee first.

`limits.py`, `shelf.py`, `drawing.py`, `downloads.py`, `budget.py` and `views.py` know nothing of Gradio; `page.py`
puts them on a page, and `server.py` serves it. torch is loaded behind the page.
"""

from .server import main


__all__ = ["main"]
