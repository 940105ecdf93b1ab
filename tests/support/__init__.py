# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""What several test files share."""
