"""The private source of randomness, and the noise drawn from it."""
