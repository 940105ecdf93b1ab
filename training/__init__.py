"""One script per method, and its recipes: also `diffusers_dp.training`, after an installation."""
