"""The private source of randomness, and what is drawn."""
