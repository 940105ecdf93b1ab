"""The scheduler of the warm-up. Nothing is loaded here, because the list of curricula needs no torch."""
